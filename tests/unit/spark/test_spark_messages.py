"""Messages to Arrow columns and back (L3): nothing that has a column is lost on the way."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.amqp import sections
from twinbus.amqp.codec import encode, encode_map, map_pairs
from twinbus.amqp.properties import Properties, decode_properties, encode_properties
from twinbus.amqp.types import (
    ARRAY_OF_LONG,
    AmqpArray,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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
from twinbus.engine import stored as form
from twinbus.engine.message import take_in
from twinbus.spark.messages import RowError, to_batch, to_messages
from twinbus.spark.property_values import KNOWN_TYPES, encode_text, to_text
from twinbus.spark.schema import ARROW, READ_ONLY

texts = st.text(max_size=300)
values = st.one_of(
    st.none(),
    st.booleans(),
    texts,
    st.binary(max_size=300),
    st.uuids(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.floats(width=32).map(Float32),
    st.integers(0, 255).map(UByte),
    st.integers(0, 2**16 - 1).map(UShort),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-128, 127).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    st.integers(-62_135_596_800_000, 253_402_300_799_999).map(Timestamp),
    st.characters().map(Char),
    texts.map(Symbol),
    st.binary(min_size=4, max_size=4).map(Decimal32),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
    st.integers(0, 9).map(lambda n: Described(Symbol("com.microsoft:timespan"), n)),
    st.lists(st.integers(0, 9)).map(lambda items: AmqpArray(items, ARRAY_OF_LONG)),
)
optional = st.none() | texts
columns = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=400),
        "message_id": st.text(min_size=1, max_size=300),
        "session_id": optional,
        "partition_key": optional,
        "subject": optional,
        "content_type": optional,
        "correlation_id": optional,
        "to": optional,
        "reply_to": optional,
        "reply_to_session_id": optional,
        "time_to_live_ms": st.none() | st.integers(1, 2**32 - 2),
        "scheduled_ts": st.none() | st.integers(0, 4_000_000_000).map(lambda s: s * 1_000_000),
    }
)


def as_peeked(payload: bytes, seq: int = 7, state: int = 0) -> bytes:
    """What the broker shows of a message that it was sent."""
    stored = take_in(payload, lambda: "none").stored
    head = form.free_head(stored, seq, 1_700_000_000_123, 3, state)
    return head + stored[form.bare_start(stored) :]


def batch_of(rows: list[dict[str, Any]]) -> Any:
    schema = pa.schema([ARROW.field(name) for name in rows[0]])
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def no_id(row: int) -> str:
    raise AssertionError(f"row {row} has an id")


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(columns, min_size=1, max_size=4))
def test_l3_columns_come_back_as_they_went(rows: list[dict[str, Any]]) -> None:
    batch = batch_of(rows)
    wire = to_messages(batch, no_id)
    back = to_batch([as_peeked(payload) for payload in wire])
    assert back.schema == ARROW
    for name in batch.schema.names:
        assert back[name].equals(batch[name]), name
    assert back["sequence_number"].to_pylist() == [7] * len(rows)
    assert back["delivery_count"].to_pylist() == [3] * len(rows)
    assert back["enqueued_ts"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_000] * len(rows)
    assert back["state"].to_pylist() == ["active"] * len(rows)


@settings(max_examples=300, deadline=None)
@given(value=values)
def test_l3_a_property_value_comes_back_with_its_type(value: object) -> None:
    if type(value) is str:
        text, type_name = value, "string"
    else:
        text, type_name = to_text(value)  # type: ignore[assignment]
    assert type_name in KNOWN_TYPES
    assert encode_text(text, type_name) == encode(value)


@settings(max_examples=100, deadline=None)
@given(given_properties=st.dictionaries(texts, values, max_size=6), cut=st.integers(0, 3))
def test_l3_application_properties_come_back(given_properties: dict[str, object], cut: int) -> None:
    """Also when the batch is a slice of a larger one."""
    pairs: list[tuple[object, bytes]] = [(k, encode(v)) for k, v in given_properties.items()]
    properties = Properties()
    properties.message_id = "m"
    wire = (
        encode_properties(properties)
        + b"\x00\x53\x74"
        + encode_map(pairs)
        + b"\x00\x53\x75\xa0\x00"
    )
    batch = to_batch([as_peeked(wire)] * 4).slice(cut)
    for payload in to_messages(batch, no_id):
        found = sections.locate(payload)
        at = found.application_properties_at
        assert dict(map_pairs(payload, at) if at >= 0 else []) == dict(pairs)


@pytest.mark.parametrize(
    ("section", "kind", "body"),
    [
        (b"\x00\x53\x77" + encode({"a": [1, None]}), "value", encode({"a": [1, None]})),
        (b"\x00\x53\x77\x40", "value", b"\x40"),
        (
            b"\x00\x53\x76" + encode([1, 2]) + b"\x00\x53\x76" + encode([]),
            "sequence",
            encode([1, 2]) + encode([]),
        ),
        (b"\x00\x53\x75\xa0\x02ab", "data", b"ab"),
        (b"\x00\x80" + bytes(7) + b"\x75\xb0\x00\x00\x00\x02ab", "data", b"ab"),
    ],
)
def test_l3_every_kind_of_body_comes_back(section: bytes, kind: str, body: bytes) -> None:
    properties = Properties()
    properties.message_id = "m"
    batch = to_batch([encode_properties(properties) + section])
    assert (batch["body_type"].to_pylist(), batch["body"].to_pylist()) == ([kind], [body])
    (payload,) = to_messages(batch, no_id)
    found = sections.locate(payload)
    back = to_batch([payload[found.body_start : found.body_end]])
    assert (back["body_type"].to_pylist(), back["body"].to_pylist()) == ([kind], [body])


def test_what_is_not_given_is_absent() -> None:
    (payload,) = to_messages(pa.RecordBatch.from_pydict({"body": ["é"]}), lambda row: f"id-{row}")
    assert (
        payload == b"\x00\x53\x73\xc0\x07\x01\xa1\x04id-0\x00\x53\x75\xb0\x00\x00\x00\x02\xc3\xa9"
    )


def test_an_id_is_made_only_where_there_is_none() -> None:
    batch = pa.RecordBatch.from_pydict({"body": ["", "", ""], "message_id": ["a", None, "c"]})
    ids = [
        decode_properties(payload, sections.locate(payload).properties_at).message_id
        for payload in to_messages(batch, lambda row: f"made-{row}")
    ]
    assert ids == ["a", "made-1", "c"]


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (ULong(17), "17"),
        (b"\x01\x02", "AQI="),
    ],
)
def test_ids_that_are_not_text_become_text(message_id: object, text: str) -> None:
    properties = Properties()
    properties.message_id = message_id
    batch = to_batch([encode_properties(properties) + b"\x00\x53\x75\xa0\x00"])
    assert batch["message_id"].to_pylist() == [text]


def test_a_dead_letter_says_why_and_where_from() -> None:
    message = take_in(to_messages(batch_of([{"body": b"x"}]), lambda _: "m")[0], lambda: "m")
    stored = message.buried("Broken", "It was broken.", "orders").stored
    payload = form.free_head(stored, 1, 0, 10) + stored[form.bare_start(stored) :]
    row = to_batch([payload]).to_pylist()[0]
    assert row["dead_letter_reason"] == "Broken"
    assert row["dead_letter_description"] == "It was broken."
    assert row["dead_letter_source"] == "orders"


@pytest.mark.parametrize(("code", "state"), [(0, "active"), (1, "deferred"), (2, "scheduled")])
def test_the_state_is_told(code: int, state: str) -> None:
    (payload,) = to_messages(batch_of([{"body": b"x"}]), lambda _: "m")
    assert to_batch([as_peeked(payload, state=code)])["state"].to_pylist() == [state]


def test_bodies_are_left_out_on_request_and_their_size_is_known() -> None:
    (payload,) = to_messages(batch_of([{"body": b"x" * 500}]), lambda _: "m")
    stored, start = form.without_body(take_in(payload, lambda: "m").stored)
    omitted = form.free_head(stored, 1, 0, 0) + stored[start:]
    whole = as_peeked(payload)
    for batch in (to_batch([omitted]), to_batch([whole], include_body=False)):
        assert batch.schema == ARROW
        assert batch["body"].to_pylist() == [None]
        assert batch["size"][0].as_py() > 500


def test_a_message_without_a_body_has_an_empty_one() -> None:
    """The official SDK sends none for None; a row without one could not be sent again."""
    payload = b"\x00\x53\x73" + encode(["m"])
    batch = to_batch([as_peeked(payload)])
    assert (batch["body"].to_pylist(), batch["body_type"].to_pylist()) == ([b""], ["data"])
    (again,) = to_messages(batch, no_id)
    assert to_batch([as_peeked(again)])["body"].to_pylist() == [b""]
    assert to_batch([as_peeked(payload)], include_body=False)["body"].to_pylist() == [None]


def odd_properties(*values: bytes) -> bytes:
    pairs = [(f"p{number}", value) for number, value in enumerate(values)]
    return b"\x00\x53\x74" + encode_map(pairs) + b"\x00\x53\x75\xa0\x01x"


def test_what_cannot_be_read_does_not_hold_up_the_rest() -> None:
    """The broker takes texts that are none; a list that is too short another broker may take."""
    latin, half = b"\xa1\x04caf\xe9", b"\x73\x00\x00\xd8\x00"
    long_latin = b"\xb1\x00\x00\x00\x04caf\xe9"
    fields = b"\x00\x53\x73\xc0\x0c\x02\xa1\x01m\xb1\x00\x00\x00\x03\xe9t\xe9"
    nested = b"\x45"
    for _ in range(40):
        nested = b"\xc0" + bytes((len(nested) + 1, 1)) + nested
    odd = fields + odd_properties(latin, half, long_latin, b"\xa3\x01\xff", nested)
    whole, short = b"\xc0\x04\x01\xa1\x01m", b"\xc0\x04\x05\xa1\x01m"
    (good,) = to_messages(batch_of([{"body": b"good"}]), lambda _: "good")
    last = as_peeked(b"\x00\x53\x73" + whole + b"\x00\x53\x75\xa0\x01x", seq=3)
    broken = last.replace(whole, short)
    assert broken != last
    batch = to_batch([as_peeked(odd, seq=1), as_peeked(good, seq=2), broken])
    assert batch["sequence_number"].to_pylist() == [1, 2, 3]
    assert batch["message_id"].to_pylist() == ["m", "good", "m"]
    assert batch["body"].to_pylist() == [b"x", b"good", b"x"]
    shown = dict(batch["application_properties"][0].as_py())
    assert shown["p0"] == shown["p2"] == "caf\ufffd"
    assert (base64.b64decode(shown["p1"]), shown["p3"]) == (half, "\ufffd")
    assert dict(batch["application_property_types"][0].as_py())["p4"] == "binary"
    assert len(to_messages(batch, no_id)) == 3


def test_no_messages_are_an_empty_batch() -> None:
    assert to_batch([]).schema == ARROW
    assert to_batch([]).num_rows == 0


# 58 bytes are the body and 72 body and properties: without them it is a message still.
@pytest.mark.parametrize("length", [n for n in range(1, 90) if n not in (58, 72)])
def test_a_message_cut_short_is_named(length: int) -> None:
    (payload,) = to_messages(batch_of([{"body": b"x" * 50, "subject": "s"}]), lambda _: "m")
    whole = as_peeked(payload, seq=41)
    with pytest.raises(ValueError, match="is no AMQP message"):
        to_batch([whole, whole[:-length]])


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"body": None}, "body is null"),
        ({"body": b"x", "time_to_live_ms": -1}, "time_to_live_ms is -1"),
        ({"body": b"x", "body_type": "json"}, "body_type is 'json'"),
        ({"body": b"\x40\x40", "body_type": "value"}, "body is no AMQP value"),
        ({"body": b"\xa1\xff", "body_type": "value"}, "cut short"),
        ({"body": b"\x40", "body_type": "sequence"}, "body is no AMQP sequence"),
        (
            {
                "body": b"x",
                "application_properties": [("n", "300")],
                "application_property_types": [("n", "ubyte")],
            },
            "application property 'n': '300' is no ubyte",
        ),
        (
            {
                "body": b"x",
                "application_properties": [("n", "1")],
                "application_property_types": [("n", "number")],
            },
            "application property 'n': 'number' is none of",
        ),
    ],
)
def test_a_row_that_is_no_message_is_named(row: dict[str, Any], text: str) -> None:
    good = dict.fromkeys(row) | {"body": b"good"}
    with pytest.raises(RowError, match=text) as error:
        to_messages(batch_of([good, row]), lambda _: "m")
    assert error.value.row == 1


def test_the_columns_that_are_not_written_are_the_brokers() -> None:
    row = to_batch([as_peeked(to_messages(batch_of([{"body": b""}]), lambda _: "m")[0])])
    known = {name for name in ARROW.names if row[name].null_count == 0}
    assert {"sequence_number", "enqueued_ts", "state", "delivery_count", "size"} <= known
    assert known - READ_ONLY == {"message_id", "body", "body_type"}


def test_headers_are_read_however_they_are_written() -> None:
    """Not only as this broker writes them."""
    header = b"\x00\x53\x70" + encode([True, UByte(4), UInt(5000), False, UInt(2)])
    short = b"\x00\x53\x70" + encode([True])
    # A priority of 0x70 where the long form of a count would have its constructor.
    odd = b"\x00\x53\x70\xc0\x08\x05\x40\x50\x70\x40\x40\x52\x01"
    body = b"\x00\x53\x75\xa0\x00"
    batch = to_batch([head + body for head in (header, short, odd, header, odd)])
    assert batch["time_to_live_ms"].to_pylist() == [5000, None, None, 5000, None]
    assert batch["delivery_count"].to_pylist() == [2, 0, 1, 2, 1]
