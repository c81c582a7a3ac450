"""Finds the sections of a message in its payload without decoding what is in them.

A payload enters; offsets leave, or a `DecodeError` when sections do not tile it. Sections
may come in any order (the Python SDK writes delivery-annotations last) and be empty.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.codec import skip
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.performatives import descriptor_at

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
AMQP_SEQUENCE: Final = 0x76
AMQP_VALUE: Final = 0x77
FOOTER: Final = 0x78

# A transfer of this message-format holds a batch: each data section is a whole message.
BATCH_FORMAT: Final = 0x80013700


class Sections:
    """Where each section lies: `*_at` is where its list or map starts, past the
    descriptor; `*_start` and `*_end` bound the whole section. -1 where there is none.

    Body sections lie together, from `body_start` to `body_end`.
    """

    def __init__(self) -> None:
        self.header_start = -1
        self.header_at = -1
        self.header_end = -1
        self.delivery_annotations_start = -1
        self.delivery_annotations_at = -1
        self.delivery_annotations_end = -1
        self.message_annotations_start = -1
        self.message_annotations_at = -1
        self.message_annotations_end = -1
        self.properties_start = -1
        self.properties_at = -1
        self.properties_end = -1
        self.application_properties_start = -1
        self.application_properties_at = -1
        self.application_properties_end = -1
        self.body_start = -1
        self.body_end = -1
        self.footer_start = -1
        self.footer_at = -1
        self.footer_end = -1


def locate(payload: bytes) -> Sections:
    """Find all sections; they must tile the payload, each at most once but for the body."""
    found = Sections()
    pos = 0
    end = len(payload)
    while pos < end:
        start = pos
        code, at = descriptor_at(payload, pos)
        pos = skip(payload, at)
        kind = payload[at]
        if DATA <= code <= AMQP_VALUE:
            _check_body(code, kind, at)
            if found.body_start < 0:
                found.body_start = start
            elif found.body_end != start:
                raise DecodeError("body in pieces", start)
            found.body_end = pos
        elif code in (HEADER, PROPERTIES):
            if kind != 0xC0 and kind != 0xD0 and kind != 0x45:
                raise DecodeError("section is not a list", at)
            _place_list(found, code, start, at, pos)
        elif code == FOOTER or DELIVERY_ANNOTATIONS <= code <= APPLICATION_PROPERTIES:
            if kind != 0xC1 and kind != 0xD1:
                raise DecodeError("section is not a map", at)
            _place_map(found, code, start, at, pos)
        else:
            raise DecodeError(f"unknown section 0x{code:x}", start)
    return found


def _check_body(code: int, kind: int, at: int) -> None:
    if code == DATA and kind != 0xA0 and kind != 0xB0:
        raise DecodeError("data section is not binary", at)
    if code == AMQP_SEQUENCE and kind != 0xC0 and kind != 0xD0 and kind != 0x45:
        raise DecodeError("amqp-sequence section is not a list", at)


def _place_list(found: Sections, code: int, start: int, at: int, end: int) -> None:
    if code == HEADER:
        _once(found.header_start, start)
        found.header_start, found.header_at, found.header_end = start, at, end
    else:
        _once(found.properties_start, start)
        found.properties_start, found.properties_at, found.properties_end = start, at, end


def _place_map(found: Sections, code: int, start: int, at: int, end: int) -> None:
    if code == DELIVERY_ANNOTATIONS:
        _once(found.delivery_annotations_start, start)
        found.delivery_annotations_start = start
        found.delivery_annotations_at = at
        found.delivery_annotations_end = end
    elif code == MESSAGE_ANNOTATIONS:
        _once(found.message_annotations_start, start)
        found.message_annotations_start = start
        found.message_annotations_at = at
        found.message_annotations_end = end
    elif code == APPLICATION_PROPERTIES:
        _once(found.application_properties_start, start)
        found.application_properties_start = start
        found.application_properties_at = at
        found.application_properties_end = end
    else:
        _once(found.footer_start, start)
        found.footer_start, found.footer_at, found.footer_end = start, at, end


def _once(known: int, start: int) -> None:
    if known >= 0:
        raise DecodeError("section comes twice", start)


def split_batch(payload: bytes, count_max: int = 1 << 32) -> list[bytes]:
    """The messages inside a batch: the contents of its data sections; of more than so many one
    more, and no further."""
    messages: list[bytes] = []
    pos = 0
    end = len(payload)
    while pos < end and len(messages) <= count_max:
        code, at = descriptor_at(payload, pos)
        pos = skip(payload, at)
        if code != DATA:
            continue
        if payload[at] == 0xA0:
            messages.append(payload[at + 2 : pos])
        elif payload[at] == 0xB0:
            messages.append(payload[at + 5 : pos])
        else:
            raise DecodeError("data section is not binary", at)
    return messages
