"""Sections of a message, found without decoding them."""

from __future__ import annotations

import uuid

import pytest

from twinbus.amqp.codec import decode, encode, map_pairs
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.properties import Properties, decode_properties, encode_properties
from twinbus.amqp.sections import locate, split_batch
from twinbus.amqp.types import Described, Symbol, Timestamp, UInt, ULong


def section(code: int, value: object) -> bytes:
    return encode(Described(ULong(code), value))


HEADER = section(0x70, [True])
DELIVERY = section(0x71, {Symbol("d"): 1})
MESSAGE = section(0x72, {Symbol("m"): 1})
PROPERTIES = section(0x73, ["id"])
APPLICATION = section(0x74, {"a": 1})
DATA = section(0x75, b"body")
SEQUENCE = section(0x76, [1, 2])
VALUE = section(0x77, {"any": ["thing"]})
FOOTER = section(0x78, {Symbol("f"): 1})


def test_a_whole_message() -> None:
    payload = HEADER + DELIVERY + MESSAGE + PROPERTIES + APPLICATION + DATA + DATA + FOOTER
    found = locate(payload)
    spans = {
        HEADER: (found.header_start, found.header_end),
        DELIVERY: (found.delivery_annotations_start, found.delivery_annotations_end),
        MESSAGE: (found.message_annotations_start, found.message_annotations_end),
        PROPERTIES: (found.properties_start, found.properties_end),
        APPLICATION: (found.application_properties_start, found.application_properties_end),
        DATA + DATA: (found.body_start, found.body_end),
        FOOTER: (found.footer_start, found.footer_end),
    }
    for raw, (start, end) in spans.items():
        assert payload[start:end] == raw
    assert decode(payload, found.header_at)[0] == [True]
    assert map_pairs(payload, found.application_properties_at)[0][0] == "a"
    assert decode(payload, found.footer_at)[0] == {"f": 1}


def test_sections_in_any_order() -> None:
    """The Python SDK writes delivery-annotations last, after body and footer."""
    payload = PROPERTIES + VALUE + FOOTER + DELIVERY
    found = locate(payload)
    assert payload[found.body_start : found.body_end] == VALUE
    start, end = found.delivery_annotations_start, found.delivery_annotations_end
    assert payload[start:end] == DELIVERY


def test_empty_sections() -> None:
    """The JavaScript SDK writes sections with nothing in them."""
    payload = section(0x70, []) + section(0x72, {}) + section(0x73, []) + SEQUENCE
    found = locate(payload)
    assert found.header_at == 3
    assert found.application_properties_at == -1


def test_an_empty_payload_has_no_sections() -> None:
    found = locate(b"")
    assert (found.body_start, found.properties_at, found.header_at) == (-1, -1, -1)


@pytest.mark.parametrize(
    "payload",
    [
        b"junk",
        DATA[:-1],
        DATA + b"\x00",
        section(0x79, []),
        section(0x80, []),
        encode(Described(Symbol("no:section"), [])),
        section(0x70, {}),
        section(0x73, {}),
        section(0x72, []),
        section(0x74, None),
        section(0x75, "text"),
        section(0x76, {}),
        HEADER + HEADER,
        PROPERTIES + PROPERTIES,
        DELIVERY + DELIVERY,
        MESSAGE + MESSAGE,
        APPLICATION + APPLICATION,
        FOOTER + FOOTER,
        DATA + PROPERTIES + DATA,
    ],
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        locate(payload)


def test_batches() -> None:
    """S6: each data section of a batch is a message."""
    messages = [PROPERTIES + DATA, PROPERTIES + section(0x75, b"x" * 300)]
    payload = PROPERTIES + b"".join([section(0x75, message) for message in messages])
    assert split_batch(payload) == messages
    assert split_batch(PROPERTIES) == []
    assert split_batch(payload, len(messages)) == messages
    assert split_batch(payload, len(messages) - 2) == messages[:-1]
    with pytest.raises(DecodeError):
        split_batch(section(0x75, "text"))


def test_properties_round_trip() -> None:
    """E4: thirteen fields, ids in any of their types."""
    for message_id in ("text", uuid.UUID(int=5), b"bin", ULong(7)):
        given = Properties()
        given.message_id = message_id
        given.user_id = b"me"
        given.to = "to"
        given.subject = "subject"
        given.reply_to = "reply"
        given.correlation_id = message_id
        given.content_type = "text/plain"
        given.content_encoding = "utf-8"
        given.absolute_expiry_time_ms = 1
        given.creation_time_ms = -2
        given.group_id = "group"
        given.group_sequence = 3
        given.reply_to_group_id = "group2"
        payload = encode_properties(given)
        again = decode_properties(payload, locate(payload).properties_at)
        for name in vars_of(given):
            assert getattr(again, name) == getattr(given, name), name
        assert type(again.message_id) is type(message_id)
        assert encode_properties(again) == payload


def vars_of(properties: Properties) -> list[str]:
    return [name for name in dir(properties) if not name.startswith("_")]


def test_properties_types_on_the_wire() -> None:
    given = Properties()
    given.content_type = "a"
    given.creation_time_ms = 5
    given.group_sequence = 1
    described, _ = decode(encode_properties(given))
    assert isinstance(described, Described)
    fields = described.value
    assert isinstance(fields, list)
    assert [type(fields[i]) for i in (6, 9, 11)] == [Symbol, Timestamp, UInt]


def test_no_properties() -> None:
    assert decode_properties(b"", -1).message_id is None
    assert encode_properties(Properties()) == b"\x00\x53\x73\x45"


def test_properties_of_the_wrong_type_are_refused() -> None:
    payload = section(0x73, [None, "no binary"])
    with pytest.raises(DecodeError):
        decode_properties(payload, 3)
