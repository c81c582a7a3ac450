"""Configuration: our TOML, and the official emulator's Config.json."""

import json
from pathlib import Path

import pytest

from twinbus.core.units import MINUTE_MS, UNLIMITED_MS
from twinbus.server.config import Config, ConfigError, load

TOML = """
memory_megabytes = 64

[namespaces.shop]
hosts = ["bus.example.com"]

[namespaces.shop.policies.reader]
rights = ["Listen"]
primary_key = "one"

[namespaces.shop.queues.orders]
lock_duration = "PT1M"
max_delivery_count = 5
auto_delete_on_idle = 600

[namespaces.shop.topics.events]
default_message_time_to_live = "P14D"

[namespaces.shop.topics.events.subscriptions.audit]
requires_session = true

[namespaces.shop.topics.events.subscriptions.audit.rules.big]
filter = "sql"
expression = "amount > 1000"
"""

EMULATOR = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "queue.1",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": False,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": False,
                        },
                    }
                ],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Properties": {"RequiresDuplicateDetection": False},
                        "Subscriptions": [
                            {
                                "Name": "subscription.1",
                                "Properties": {"MaxDeliveryCount": 3},
                                "Rules": [
                                    {
                                        "Name": "app-prop-filter-1",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {
                                                "ContentType": "application/text",
                                                "Subject": "s1",
                                                "Properties": {"prop1": "value1"},
                                            },
                                        },
                                    },
                                    {
                                        "Name": "sql",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "a = 1"},
                                            "Action": {"SqlExpression": "SET b = 2"},
                                        },
                                    },
                                ],
                            }
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_without_a_file_there_is_one_namespace() -> None:
    assert [namespace.name for namespace in Config().namespaces] == ["twinbus"]


def test_toml(tmp_path: Path) -> None:
    config = load(write(tmp_path, "twinbus.toml", TOML))
    assert config.memory_bytes_max == 64 * 1024 * 1024
    [shop] = config.namespaces
    assert shop.hosts == ["bus.example.com"]
    [reader] = shop.policies
    assert (reader.name, reader.rights, reader.primary_key) == ("reader", ["Listen"], "one")
    [orders] = shop.queues
    assert (orders.name, orders.lock_duration_ms, orders.max_delivery_count) == (
        "orders",
        MINUTE_MS,
        5,
    )
    assert orders.auto_delete_on_idle_ms == 10 * MINUTE_MS
    assert orders.default_message_time_to_live_ms == UNLIMITED_MS
    [events] = shop.topics
    assert events.default_message_time_to_live_ms == 14 * 24 * 60 * MINUTE_MS
    [(audit, [big])] = shop.subscriptions
    assert (audit.topic, audit.name, audit.requires_session) == ("events", "audit", True)
    assert (big.name, big.filter, big.expression) == ("big", "sql", "amount > 1000")


def test_the_emulators_file(tmp_path: Path) -> None:
    config = load(write(tmp_path, "Config.json", "\ufeff" + json.dumps(EMULATOR)))
    [namespace] = config.namespaces
    assert namespace.name == "sbemulatorns"
    [queue] = namespace.queues
    assert (queue.name, queue.max_delivery_count, queue.forward_to) == ("queue.1", 3, None)
    [(subscription, [correlation, sql])] = namespace.subscriptions
    assert (subscription.topic, subscription.max_delivery_count) == ("topic.1", 3)
    assert correlation.filter == "correlation"
    assert correlation.correlation == {"content_type": "application/text", "label": "s1"}
    assert correlation.properties == {"prop1": ("string", "value1")}
    assert (sql.filter, sql.expression, sql.action) == ("sql", "a = 1", "SET b = 2")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", "x = ", "not well-formed"),
        ("a.json", "{", "not well-formed"),
        ("a.json", "{}", "UserConfig.Namespaces"),
        ("a.toml", "colour = 1", "unknown in file: colour"),
        ("a.toml", "certificate = 'c.pem'", "go together"),
        ("a.toml", "[namespaces.n.policies.p]\nrights = ['Send']", "needs a primary_key"),
        ("a.toml", "[namespaces.n.policies.p]\nprimary_key = 'k'", "must be some of Manage"),
        ("a.toml", "[namespaces.n.queues.q]\nlock_durations = 1", "'lock_durations' is no setting"),
        ("a.toml", "[namespaces.n.queues.q]\nlock_duration = 'soon'", "'soon' is not a duration"),
        ("a.toml", "[namespaces.n.queues.q]\nname = 'r'", "'name' is no setting"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(write(tmp_path, name, text))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml")
