"""What users say about entities (E3, D4): defaults, limits, reading back."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from twinbus.core import errors
from twinbus.core.descriptions import (
    INT32_MAX,
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    read,
)
from twinbus.core.errors import BusError
from twinbus.core.units import MINUTE_MS, UNLIMITED_MS

QUEUE = QueueDescription("q")
TOPIC = TopicDescription("t")
SUBSCRIPTION = SubscriptionDescription("t", "s")


def test_e3_defaults_are_those_of_the_documents() -> None:
    assert QUEUE.lock_duration_ms == SUBSCRIPTION.lock_duration_ms == 30_000
    assert QUEUE.max_delivery_count == SUBSCRIPTION.max_delivery_count == 10
    assert QUEUE.default_message_time_to_live_ms == UNLIMITED_MS
    assert QUEUE.duplicate_detection_history_time_window_ms == 10 * MINUTE_MS
    assert QUEUE.max_size_in_megabytes == TOPIC.max_size_in_megabytes == 1024
    assert QUEUE.auto_delete_on_idle_ms == UNLIMITED_MS
    assert QUEUE.enable_batched_operations
    assert QUEUE.status == "Active"
    assert not QUEUE.dead_lettering_on_message_expiration
    assert SUBSCRIPTION.dead_lettering_on_filter_evaluation_exceptions
    for description in (QUEUE, TOPIC, SUBSCRIPTION):
        description.check()


@pytest.mark.parametrize(
    ("setting", "good", "bad"),
    [
        ("lock_duration_ms", [5_000, 300_000], [4_999, 300_001]),
        ("max_delivery_count", [1, INT32_MAX], [0, -1, INT32_MAX + 1]),
        ("default_message_time_to_live_ms", [1_000, UNLIMITED_MS], [999, 0]),
        (
            "duplicate_detection_history_time_window_ms",
            [20_000, 604_800_000],
            [19_999, 604_800_001],
        ),
        ("auto_delete_on_idle_ms", [300_000, UNLIMITED_MS], [299_999]),
        ("max_size_in_megabytes", [1, 5120, 81_920], [0, 81_921]),
        ("max_message_size_in_kilobytes", [256, 1024, 102_400], [0, 255, 257, 102_401]),
        ("status", ["Active", "Disabled", "SendDisabled", "ReceiveDisabled"], ["active", ""]),
        ("user_metadata", [None, "", "x" * 1024], ["x" * 1025]),
    ],
)
def test_e3_d4_settings_have_limits(setting: str, good: list[object], bad: list[object]) -> None:
    for description in (QUEUE, TOPIC, SUBSCRIPTION):
        if not hasattr(description, setting):
            continue
        for value in good:
            replace(description, **{setting: value}).check()  # type: ignore[arg-type]
        for value in bad:
            with pytest.raises(BusError) as raised:
                replace(description, **{setting: value}).check()  # type: ignore[arg-type]
            assert raised.value.kind is errors.ARGUMENT_ERROR


def test_e3_what_requires_sessions_cannot_forward() -> None:
    for description in (QUEUE, SUBSCRIPTION):
        with pytest.raises(BusError):
            replace(description, requires_session=True, forward_to="x").check()


@pytest.mark.parametrize(
    ("old", "setting"),
    [
        (QUEUE, "requires_session"),
        (QUEUE, "requires_duplicate_detection"),
        (QUEUE, "enable_partitioning"),
        (TOPIC, "requires_duplicate_detection"),
        (TOPIC, "enable_partitioning"),
        (SUBSCRIPTION, "requires_session"),
    ],
)
def test_e3_some_settings_are_for_good(old: QueueDescription, setting: str) -> None:
    new = replace(old, **{setting: True})  # type: ignore[arg-type]
    with pytest.raises(BusError) as raised:
        new.check_update(old)
    assert raised.value.kind is errors.NOT_ALLOWED
    assert "".join(setting.title().split("_")) in raised.value.text
    old.check_update(old)


def test_e3_authorization_rules() -> None:
    rule = AuthorizationRule("send", ["Send", "Listen"], "k1", "k2")
    replace(QUEUE, authorization_rules=[rule] * 12).check()
    for rules in (
        [rule] * 13,
        [replace(rule, name="")],
        [replace(rule, rights=[])],
        [replace(rule, rights=["Fly"])],
    ):
        with pytest.raises(BusError):
            replace(QUEUE, authorization_rules=rules).check()


@pytest.mark.parametrize(
    "description",
    [
        replace(QUEUE, authorization_rules=[AuthorizationRule("r", ["Send"], "a", "b", 1, 2)]),
        replace(TOPIC, user_metadata="über"),
        replace(SUBSCRIPTION, forward_to="x", created_ms=5),
        RuleDescription(
            "r", "sql", "a = @a", {"@a": ("int", "1")}, {"label": "x"}, {"p": ("string", "y")},
            "SET a = @b", {"@b": ("string", "z")}, 7,
        ),
    ],
)  # fmt: skip
def test_descriptions_read_back_from_json(description: QueueDescription) -> None:
    given = json.loads(json.dumps(asdict(description)))
    assert read(type(description), given) == description


def test_a_description_from_another_version_reads() -> None:
    assert read(QueueDescription, {"name": "q", "not known yet": 1}) == QUEUE
