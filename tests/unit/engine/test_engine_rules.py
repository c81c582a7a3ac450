"""What filters and actions see of a message and do to it (E8)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from engine_kit import properties_of, section

from twinbus.amqp import decimals
from twinbus.amqp.types import Char, Symbol, Timestamp, UInt, ULong
from twinbus.core.descriptions import RuleDescription
from twinbus.engine import stored as form
from twinbus.engine.message import Message, take_in
from twinbus.engine.rules import Rule, typed
from twinbus.engine.view import View
from twinbus.filters import MISSING, EvaluationError

SOME_ID = UUID(int=7)
FIELDS: list[object] = [
    SOME_ID, b"user", "to", "label", "reply", "correlation", Symbol("text/plain"), None,
    None, None, "session", None, "reply session",
]  # fmt: skip
ANNOTATIONS = {
    Symbol("x-opt-partition-key"): "part",
    Symbol("x-opt-via-partition-key"): "via",
    Symbol("x-opt-scheduled-enqueue-time"): Timestamp(86_400_000),
}
PROPERTIES: dict[str, object] = {
    "Text": "t", "Int": UInt(3), "Long": 2**40, "Real": 1.5, "Yes": True, "Nothing": None,
    "When": Timestamp(1_000), "Id": SOME_ID, "Raw": b"\x01", "Letter": Char("x"), "List": [1],
}  # fmt: skip


def new_id() -> UUID:
    return SOME_ID


def message() -> Message:
    payload = section(0x70, [None, None, UInt(5_000)]) + section(0x72, ANNOTATIONS)
    payload += section(0x73, FIELDS) + section(0x74, PROPERTIES) + section(0x75, b"body")
    return take_in(payload, str)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message_id", str(SOME_ID)),
        ("to", "to"),
        ("label", "label"),
        ("reply_to", "reply"),
        ("correlation_id", "correlation"),
        ("content_type", "text/plain"),
        ("session_id", "session"),
        ("reply_to_session_id", "reply session"),
        ("time_to_live", timedelta(seconds=5)),
        ("delivery_count", 0),
        ("partition_key", "part"),
        ("via_partition_key", "via"),
        ("scheduled_enqueue_time_utc", datetime(1970, 1, 2, tzinfo=UTC)),
        ("dead_letter_source", None),
        ("locked_until_utc", None),
    ],
)
def test_e8_system_properties(name: str, value: object) -> None:
    view = View(message(), new_id)
    assert view.system(name) == value
    assert view.system("size") == message().wire_bytes


def test_e8_system_properties_of_a_bare_message() -> None:
    view = View(take_in(section(0x75, b""), lambda: "id"), new_id)
    assert view.system("message_id") == "id"
    assert view.system("label") is None
    assert view.system("time_to_live") is None
    assert view.system("partition_key") is None
    assert view.user("text") is MISSING
    assert view.new_id() == SOME_ID


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text", "t"), ("int", 3), ("long", 2**40), ("real", 1.5), ("yes", True),
        ("nothing", None), ("when", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)), ("id", SOME_ID),
        ("raw", b"\x01"), ("letter", "x"), ("list", None), ("no such", MISSING),
    ],
)  # fmt: skip
def test_e8_application_properties(name: str, value: object) -> None:
    assert View(message(), new_id).user(name) == value


@pytest.mark.parametrize(
    ("filter", "holds"),
    [
        ("price = 12.5", True),
        ("price > 10", True),
        ("price < 10", False),
        ("price + 1 = 13.5", True),
    ],
)
def test_e8_filters_calculate_with_decimals(filter: str, holds: bool) -> None:
    price = decimals.write(Decimal("12.50"))
    given = take_in(section(0x74, {"price": price}) + section(0x75, b""), lambda: "id")
    assert Rule(RuleDescription("r", "sql", filter)).matches(View(given, new_id)) is holds


def test_e8_what_an_action_makes_of_a_decimal_is_one() -> None:
    price = decimals.write(Decimal("12.50"))
    given = take_in(section(0x74, {"price": price}) + section(0x75, b""), lambda: "id")
    copy = Rule(RuleDescription("r", action="SET twice = price * 2")).act(given, new_id)
    assert properties_of(copy.stored)["twice"] == decimals.write(Decimal("25.00"))


@pytest.mark.parametrize("field", ["MessageId", "CorrelationId"])
def test_e8_an_id_that_is_a_number_is_a_text_to_filters(field: str) -> None:
    fields = [ULong(5), None, None, None, None, ULong(5)]
    given = take_in(section(0x73, fields) + section(0x75, b""), lambda: "id")
    for text in (f"sys.{field} = '5'", f"sys.{field} LIKE '_'"):
        assert Rule(RuleDescription("r", "sql", text)).matches(View(given, new_id)) is True


def test_e8_a_content_type_that_an_action_sets_is_a_symbol() -> None:
    copy = Rule(RuleDescription("r", action="SET sys.ContentType = 'a/b'")).act(message(), new_id)
    assert type(copy.properties()[6]) is Symbol
    assert copy.properties()[6] == "a/b"


def test_e8_annotations_that_cannot_be_read_fail_the_filter() -> None:
    broken = b"\0\x53\x72\xc1\x19\x02\xa3\x13x-opt-partition-key\xa1\x01\xff"
    view = View(take_in(broken + section(0x75, b""), lambda: "id"), new_id)
    with pytest.raises(EvaluationError):
        view.system("partition_key")


def test_e8_actions_change_system_properties() -> None:
    rule = Rule(
        RuleDescription(
            "r",
            action="SET sys.To = 'elsewhere'; SET sys.PartitionKey = 'p2';"
            " SET sys.TimeToLive = 'PT2S'; REMOVE sys.Label",
        )
    )
    given = message()
    copy = rule.act(given, new_id)
    view = View(copy, new_id)
    assert view.system("to") == "elsewhere"
    assert view.system("label") is None
    assert view.system("partition_key") == "p2"
    assert copy.ttl_ms == 2_000
    assert form.ttl_of(copy.stored) == 2_000
    assert View(given, new_id).system("to") == "to"


def test_e8_actions_change_application_properties() -> None:
    rule = Rule(
        RuleDescription(
            "r",
            action="SET text = 'new'; SET added = @n; SET fresh = newid(); REMOVE real",
            action_parameters={"@n": ("int", "5")},
        )
    )
    found = properties_of(rule.act(message(), new_id).stored)
    assert found["text"] == "new"
    assert "Text" not in found
    assert found["added"] == 5
    assert found["fresh"] == SOME_ID
    assert "Real" not in found
    assert found["Long"] == 2**40


def test_e8_actions_set_numbers_of_64_bits_with_a_sign_and_without() -> None:
    rule = Rule(RuleDescription("r", action="SET copy = ULong; SET least = Least"))
    given = take_in(
        section(0x74, {"ULong": ULong(2**64 - 1), "Least": -(2**63)}) + section(0x75, b""), str
    )
    found = properties_of(rule.act(given, new_id).stored)
    assert (found["copy"], found["least"]) == (2**64 - 1, -(2**63))


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_d6_an_action_that_sets_a_larger_number_fails(number: int) -> None:
    parameters = {"@n": ("long", str(number))}
    rule = Rule(RuleDescription("r", action="SET n = @n", action_parameters=parameters))
    with pytest.raises(EvaluationError, match="64 bits"):
        rule.act(message(), new_id)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "x", "x"),
        ("int", "-5", -5),
        ("long", "5", 5),
        ("double", "1.5", 1.5),
        ("boolean", "True", True),
        ("boolean", "0", False),
        ("dateTime", "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("duration", "PT1M", timedelta(minutes=1)),
        ("guid", str(SOME_ID), SOME_ID),
    ],
)
def test_values_of_rules_have_types(kind: str, text: str, value: object) -> None:
    assert typed({"name": (kind, text)}) == {"name": value}


def test_e8_parameters_are_used() -> None:
    rule = Rule(RuleDescription("r", "sql", "Int = @n", {"@n": ("int", "3")}))
    assert rule.matches(View(message(), new_id))
