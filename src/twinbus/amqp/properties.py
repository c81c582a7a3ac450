"""The properties section of a message as an object, and back to bytes.

Ids keep their AMQP type (string, uuid, binary or ulong), because replies must carry them
unchanged.
"""

from __future__ import annotations

from twinbus.amqp.codec import (
    NULL,
    encode,
    encode_binary,
    encode_list,
    encode_string,
    encode_symbol,
    encode_uint,
)
from twinbus.amqp.performatives import Fields
from twinbus.amqp.types import Timestamp


class Properties:
    def __init__(self) -> None:
        self.message_id: object = None
        self.user_id: bytes | None = None
        self.to: str | None = None
        self.subject: str | None = None
        self.reply_to: str | None = None
        self.correlation_id: object = None
        self.content_type: str | None = None
        self.content_encoding: str | None = None
        self.absolute_expiry_time_ms: int | None = None
        self.creation_time_ms: int | None = None
        self.group_id: str | None = None
        self.group_sequence: int | None = None
        self.reply_to_group_id: str | None = None


def decode_properties(payload: bytes, at: int) -> Properties:
    """Read the list at `at` (`Sections.properties_at`); -1 gives empty properties."""
    properties = Properties()
    if at < 0:
        return properties
    fields = Fields(payload, at, len(payload))
    properties.message_id = fields.value(0)
    properties.user_id = fields.binary(1)
    properties.to = fields.text(2)
    properties.subject = fields.text(3)
    properties.reply_to = fields.text(4)
    properties.correlation_id = fields.value(5)
    properties.content_type = fields.text(6)
    properties.content_encoding = fields.text(7)
    properties.absolute_expiry_time_ms = _optional(fields, 8)
    properties.creation_time_ms = _optional(fields, 9)
    properties.group_id = fields.text(10)
    properties.group_sequence = _optional(fields, 11)
    properties.reply_to_group_id = fields.text(12)
    return properties


def _optional(fields: Fields, index: int) -> int | None:
    return fields.integer(index) if fields.present(index) else None


def encode_properties(properties: Properties) -> bytes:
    """The whole section, descriptor included; fields unset at the end are left out."""
    items = [
        encode(properties.message_id),
        NULL if properties.user_id is None else encode_binary(properties.user_id),
        _string(properties.to),
        _string(properties.subject),
        _string(properties.reply_to),
        encode(properties.correlation_id),
        _symbol(properties.content_type),
        _symbol(properties.content_encoding),
        _timestamp(properties.absolute_expiry_time_ms),
        _timestamp(properties.creation_time_ms),
        _string(properties.group_id),
        NULL if properties.group_sequence is None else encode_uint(properties.group_sequence),
        _string(properties.reply_to_group_id),
    ]
    while items and items[-1] == NULL:
        items.pop()
    return b"\x00\x53\x73" + encode_list(items)


def _string(value: str | None) -> bytes:
    return NULL if value is None else encode_string(value)


def _symbol(value: str | None) -> bytes:
    return NULL if value is None else encode_symbol(value)


def _timestamp(value_ms: int | None) -> bytes:
    return NULL if value_ms is None else encode(Timestamp(value_ms))
