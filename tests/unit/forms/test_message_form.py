"""Messages and values as JSON: everything comes back as it was (E4)."""

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp import codec
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.types import (
    ARRAY_OF_LONG,
    AmqpArray,
    Byte,
    Char,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.forms import message_form, values


def whole(kind: type, bits: int, *, signed: bool) -> st.SearchStrategy[object]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high).map(kind)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.text(),
    st.binary(),
    st.uuids(),
    st.floats(),
    st.floats(width=32, allow_nan=False).map(Float32),
    st.text(st.characters(max_codepoint=127)).map(Symbol),
    st.characters(exclude_categories=[]).map(Char),
    st.just(Char("\ud83d")),
    whole(int, 64, signed=True),
    whole(Timestamp, 64, signed=True),
    whole(Int, 32, signed=True),
    whole(Short, 16, signed=True),
    whole(Byte, 8, signed=True),
    whole(ULong, 64, signed=False),
    whole(UInt, 32, signed=False),
    whole(UShort, 16, signed=False),
    whole(UByte, 8, signed=False),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_every_value_comes_back_as_the_bytes_it_was(value: object) -> None:
    """Through text, as in a file: the encoding, which shows the type, is the same."""
    text = json.dumps(values.to_json(value), ensure_ascii=False).encode()
    assert codec.encode(values.from_json(json.loads(text))) == codec.encode(value)


@pytest.mark.parametrize(
    "value",
    [
        AmqpArray([1, 2], ARRAY_OF_LONG),
        Described(Symbol("a:b"), [Int(1)]),
        {Symbol("k"): 1, 2: "x"},
        UUID(int=5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_compound_values_come_back(value: object) -> None:
    again = values.from_json(json.loads(json.dumps(values.to_json(value))))
    assert codec.encode(again) == codec.encode(value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"int": 1, "long": 2}, "one key"),
        ({"integer": 1}, "is no type"),
        ({"int": "1"}, "this is no int"),
        ({"array": []}, "this is no array"),
        ({"boolean": 1}, "this is no boolean"),
        ({"char": 0x110000}, "range"),
        ({"char": None}, "this is no char"),
    ],
)
def test_what_is_no_value_is_told(given: object, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        values.from_json(given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sbject": "x"}, "unknown: sbject"),
        ({"subject": 5}, "should be of type str"),
        ({"body": 5}, "a body is a text"),
        ({"body": {"xml": ""}}, "no kind of body"),
        ({"application_properties": {"n": {"byte": 300}}}, "does not fit"),
        ({"time_to_live": "soon"}, "not a duration"),
        ({"time_to_live": True}, "no duration"),
        ({"application_properties": 5}, "should be an object"),
    ],
)
def test_what_is_no_message_is_told(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        message_form.from_json(given)


def test_what_a_broker_wrote_is_shown_and_left_out_again() -> None:
    annotations = {
        Symbol("x-opt-sequence-number"): 12,
        Symbol("x-opt-enqueued-time"): Timestamp(0),
        Symbol("x-opt-message-state"): Int(2),
        Symbol("x-own"): Int(1),
    }
    payload = b"\x00\x53\x72" + codec.encode(annotations) + b"\x00\x53\x75\xa0\x01x"
    shown = message_form.to_json(payload)
    assert shown == {
        "sequence_number": 12,
        "enqueued_time_utc": "1970-01-01T00:00:00.000Z",
        "state": "scheduled",
        "delivery_count": 0,
        "annotations": {"x-own": {"int": 1}},
        "body": "x",
    }
    kept = codec.encode({Symbol("x-own"): Int(1)})
    assert message_form.from_json(shown).payload == (
        b"\x00\x53\x72" + kept + b"\x00\x53\x75\xa0\x01x"
    )


def test_one_line_is_one_line() -> None:
    shown = {"sequence_number": 1, "message_id": "m", "body": "a\nb" + "c" * 100,
             "application_properties": {"DeadLetterReason": "because"}}  # fmt: skip
    line = message_form.one_line(shown)
    assert "\n" not in line
    assert line.endswith("…")
    assert "reason=because" in line


def test_one_line_has_nothing_that_steers_a_terminal() -> None:
    shown = {"sequence_number": 1, "session_id": "s\x1b[2J", "body": "b",
             "application_properties": {"DeadLetterReason": "r\r\x9bm"}}  # fmt: skip
    assert message_form.one_line(shown).isprintable()
    odd = {"sequence_number": 1, "unreadable": "why\n"}
    assert message_form.one_line(odd) == "1  cannot be read: why "


TEXT, VALUE = b"\x00\x53\x75\xa0\x01x", b"\x00\x53\x77\xa1\x01x"


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b"\x00\x53\x75\xa1\x01x", "not binary"),
        (TEXT + VALUE, "do not go together"),
        (VALUE + TEXT, "do not go together"),
        (VALUE + VALUE, "do not go together"),
        (b"\x00\x40" + TEXT[3:], "no number"),
        (b"\x00\x53\x77\xa1\x01\xff", "bad value"),
    ],
    ids=["text as data", "data, value", "value, data", "two values", "no name", "no text"],
)
def test_what_has_no_form_is_told_and_not_lost_in_part(payload: bytes, told: str) -> None:
    with pytest.raises(DecodeError, match=told):
        message_form.to_json(payload)
