"""Configuration: our TOML, and the official emulator's Config.json."""

import asyncio
import copy
import json
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine.engine_kit import ListLog
from twinbus.core.errors import BusError
from twinbus.core.units import MINUTE_MS, UNLIMITED_MS
from twinbus.engine.engine import Engine
from twinbus.server.config import Config, ConfigError, load
from twinbus.server.service import Service
from twinbus.server.service import _make_entities as make_entities

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

EVERYTHING = """
[namespaces.shop.topics.events.subscriptions.audit.rules.typed]
filter = "correlation"
correlation = { label = "x" }
properties = { colour = ["string", "red"] }
action = "SET a = @b"
action_parameters = { "@b" = ["int", "5"] }
"""

EMULATOR: dict[str, Any] = {
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
        ("a.toml", "memory_megabytes = 'abc'", "memory_megabytes is a whole number .*'abc'"),
        ("a.toml", "max_connections = 0x" + "f" * 9999, "max_connections .* many digits"),
        ("a.toml", "[capture]\ndirectory = 'c'\nroll_seconds = nan", "capture.roll_seconds"),
        ("a.toml", "[capture]\ndirectory = 5", "capture.directory must be a text, not 5"),
        ("a.toml", "certificate = 1\nkey = 2", "certificate must be a text"),
        ("a.toml", "namespaces = 5", r"namespaces must be a table.*write \[namespaces.NAME\]"),
        ("a.toml", "[namespaces]", "no namespace"),
        ("a.toml", "[namespaces.'bücher']", "no name of a host"),
        ("a.toml", "[namespaces.n]\nhosts = 'h'", "n.hosts must be a list, not a text"),
        (
            "a.toml",
            "[namespaces.n]\nqueues = ['q']",
            r"not a list: write \[namespaces.n.queues.NAME",
        ),
        ("a.toml", "[namespaces.n.queues]\nq = 1", r"write \[namespaces.n.queues.q\]"),
        ("a.toml", "[namespaces.n.queues.'a b']", "n.queues.a b: 'a b' is not a valid queue"),
        (
            "a.toml",
            "[namespaces.n.queues.q]\nmax_delivery_count = 'ten'",
            "n.queues.q.max_delivery_count must be a whole number, not 'ten'",
        ),
        (
            "a.toml",
            "[namespaces.n.queues.q]\nmax_delivery_count = 0",
            "n.queues.q: MaxDeliveryCount must be from 1",
        ),
        (
            "a.toml",
            "[namespaces.n.queues.q]\nrequires_session = 1",
            "q.requires_session must be true or false",
        ),
        (
            "a.toml",
            "[[namespaces.n.queues.q.authorization_rules]]\nname = 'r'",
            "q.authorization_rules cannot be set here: .*administration API",
        ),
        (
            "a.toml",
            "[namespaces.n.topics.t.subscriptions.s.rules.r]\nfilter = 'colour'",
            "rules.r: 'colour' is no kind of filter",
        ),
        (
            "a.toml",
            "[namespaces.n.topics.t.subscriptions.s.rules.r]\nproperties = { colour = 'red' }",
            r'r.properties.colour must be .*write colour = \["string", "red"\]',
        ),
        (
            "a.toml",
            "[namespaces.n]\n[namespaces.N]",
            "'n' and 'N' are one name among the namespaces",
        ),
        (
            "a.toml",
            "[namespaces.a]\nhosts = ['x', 'X']\n[namespaces.b]\nhosts = ['X']",
            "'x' and 'x' are one name among the hosts of all",
        ),
        (
            "a.toml",
            "[namespaces.n.queues.q]\n[namespaces.n.queues.Q]\nrequires_session = true",
            "'q' and 'Q' are one name among the queues and topics of namespace 'n'",
        ),
        (
            "a.toml",
            "[namespaces.n.queues.q]\n[namespaces.n.topics.q]",
            "'q' and 'q' are one name among the queues and topics",
        ),
        (
            "a.toml",
            "[namespaces.n.topics.t.subscriptions.s]\n[namespaces.n.topics.t.subscriptions.S]",
            "'t/s' and 't/S' are one name among the subscriptions",
        ),
        (
            "a.toml",
            "[namespaces.n.topics.t.subscriptions.s.rules]\nr = {}\nR = {}",
            "'r' and 'R' are one name among the rules of 't/s'",
        ),
        (
            "a.toml",
            "[namespaces.n.policies]\np = { primary_key = 'k', rights = ['Send'] }\n"
            "P = { primary_key = 'k', rights = ['Listen'] }",
            "'p' and 'P' are one name among the policies",
        ),
        (
            "a.toml",
            "[namespaces.n.policies.rootManageSharedAccessKey]\n"
            "primary_key = 'k'\nrights = ['Listen']",
            "has RootManageSharedAccessKey already",
        ),
        (
            "a.json",
            '{"UserConfig": {"Namespaces": [{"Name": "n"}, {"Name": "n"}]}}',
            "'n' and 'n' are one name among the namespaces",
        ),
        (
            "a.toml",
            "[namespaces.n]\nhosts = ['bus.example.com:5671']",
            "n.hosts is a name or an address alone, without a port: 'bus.example.com:5671'",
        ),
        ("a.toml", "[namespaces.n]\nhosts = ['https://bus']", "n.hosts is a name or an address"),
        ("a.toml", "x = " + "[" * 9999, "not well-formed"),
        ("a.json", '{"UserConfig": {"Namespaces": []}}', "no namespace"),
        ("a.json", '{"UserConfig": {"Namespaces": [{}]}}', r"Namespaces\[0\] needs a Name"),
        (
            "a.json",
            '{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{}]}]}}',
            r"Namespaces\[0\].Queues\[0\] needs a Name",
        ),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(write(tmp_path, name, text))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not well-formed"):
        load(path)


def test_a_wrong_key_is_not_shown(tmp_path: Path) -> None:
    for wrong in ("policies = 'hidden'", "policies.p = 'hidden'", "policies.p.primary_key = [1]"):
        with pytest.raises(ConfigError) as told:
            load(write(tmp_path, "a.toml", f"[namespaces.n]\n{wrong}"))
        assert "hidden" not in str(told.value)


# What somebody could write where something else belongs.
WRONG: tuple[Any, ...] = (
    "", "x", "ü x\n", "P1D", "\0", "\ud800", 0, -1, 2**70, 1.5, -1e300, float("nan"), float("inf"),
    True, None, [], ["x"], [1], [[]], {}, {"x": 1}, {"Name": []}, {"name": "x"}, date(2026, 1, 1),
)  # fmt: skip


def toml(value: Any) -> str:
    """The value in one line; text as JSON has it, which TOML takes too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float | date):
        return str(value)
    return json.dumps(value)


def places(given: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside."""
    inside = given.items() if isinstance(given, dict) else enumerate(given)
    for key, value in inside:
        yield (*way, key)
        if isinstance(value, dict | list):
            yield from places(value, (*way, key))


def spoilt(given: Any) -> Iterator[Any]:
    """The same with one value wrong, in every place and every way, and with one more."""
    for *way, last in places(given):
        for wrong in WRONG:
            whole = copy.deepcopy(given)
            inside = whole
            for key in way:
                inside = inside[key]
            inside[last] = wrong
            yield whole
            if isinstance(inside, dict) and isinstance(wrong, str):
                inside[wrong] = inside.pop(last)
                yield whole


def made(config: Config) -> int:
    """How many entities come of a configuration, as `serve` makes them."""
    engine = Engine(ListLog(), config.memory_bytes_max, bytes, observing=False)
    for wanted in config.namespaces:
        make_entities(wanted, engine.namespace(wanted.name, 0), 0)
    return sum(len(wanted.queues) + len(wanted.topics) for wanted in config.namespaces)


@pytest.mark.parametrize("form", ["toml", "json"])
def test_nothing_in_a_file_is_more_than_an_error_that_says_so(form: str, tmp_path: Path) -> None:
    """A file is taken or refused; no value of it surprises the broker."""
    given: Any = tomllib.loads(TOML + EVERYTHING) if form == "toml" else EMULATOR
    path = tmp_path / f"a.{form}"
    taken = refused = 0
    for wrong in spoilt(given):
        if form == "json":
            path.write_text(json.dumps(wrong, default=str))
        else:
            lines = (f"{json.dumps(key)} = {toml(value)}\n" for key, value in wrong.items())
            path.write_text("".join(lines), encoding="utf-8", errors="replace")
        try:
            taken += made(load(path)) > 0
        except (ConfigError, BusError):
            refused += 1
    assert taken
    assert refused


async def start_and_stop(directory: Path, config: Config) -> None:
    service = Service(directory, config, "key")
    try:
        await service.make_entities()
    finally:
        await service.close()


def test_a_file_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    """Else the next start would find the queue, leave it as it is, and nothing would forward."""
    text = "[namespaces.n.queues.q]\nforward_to = 'nowhere'"
    config = load(write(tmp_path, "a.toml", text))
    for _ in range(2):
        with pytest.raises(BusError, match="cannot forward to 'nowhere'"):
            asyncio.run(start_and_stop(tmp_path / "data", config))
    config.namespaces[0].queues[0].forward_to = None
    asyncio.run(start_and_stop(tmp_path / "data", config))


def test_a_host_may_be_an_address_of_either_kind(tmp_path: Path) -> None:
    text = "[namespaces.a]\n[namespaces.b]\nhosts = ['10.0.0.7', '[fe80::1]', 'FE80::2']"
    config = load(write(tmp_path, "a.toml", text))

    async def found(host: str) -> str:
        service = Service(tmp_path / "data", config, "key")
        try:
            return service.resolve(host)[0].name
        finally:
            await service.close()

    for host in ("10.0.0.7:5671", "[fe80::1]:5671", "fe80::1", "[fe80::2]"):
        assert asyncio.run(found(host)) == "b"
    assert asyncio.run(found("[::1]:5671")) == "a"
