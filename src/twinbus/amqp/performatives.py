"""Performatives: the bodies of frames, read field by field and written whole.

The three that come with every message (transfer, disposition, flow) have readers that
touch each byte once and build no object; the rare ones go through `Fields`. What is
written always has smallulong descriptors, the only ones that the Python SDK reads, and
leaves as complete frames. Knows no state of connection, session or link.
"""

from __future__ import annotations

import struct
from typing import Final

from twinbus.amqp.codec import (
    FALSE,
    NULL,
    TRUE,
    decode,
    encode,
    encode_list,
    encode_string,
    encode_uint,
    encode_ulong,
    list_starts,
    skip,
)
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.framing import frame
from twinbus.amqp.types import Symbol

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18

_SYMBOLIC: Final[dict[str, int]] = {
    "amqp:open:list": OPEN,
    "amqp:begin:list": BEGIN,
    "amqp:attach:list": ATTACH,
    "amqp:flow:list": FLOW,
    "amqp:transfer:list": TRANSFER,
    "amqp:disposition:list": DISPOSITION,
    "amqp:detach:list": DETACH,
    "amqp:end:list": END,
    "amqp:close:list": CLOSE,
    "amqp:error:list": 0x1D,
    "amqp:received:list": 0x23,
    "amqp:accepted:list": 0x24,
    "amqp:rejected:list": 0x25,
    "amqp:released:list": 0x26,
    "amqp:modified:list": 0x27,
    "amqp:source:list": 0x28,
    "amqp:target:list": 0x29,
    "amqp:coordinator:list": 0x30,
    "amqp:declare:list": 0x31,
    "amqp:discharge:list": 0x32,
    "amqp:declared:list": 0x33,
    "amqp:transactional-state:list": 0x34,
    "amqp:sasl-mechanisms:list": 0x40,
    "amqp:sasl-init:list": 0x41,
    "amqp:sasl-challenge:list": 0x42,
    "amqp:sasl-response:list": 0x43,
    "amqp:sasl-outcome:list": 0x44,
    "amqp:header:list": 0x70,
    "amqp:delivery-annotations:map": 0x71,
    "amqp:message-annotations:map": 0x72,
    "amqp:properties:list": 0x73,
    "amqp:application-properties:map": 0x74,
    "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76,
    "amqp:amqp-value:*": 0x77,
    "amqp:footer:map": 0x78,
}


def descriptor_at(buf: bytes, pos: int) -> tuple[int, int]:
    """The code of the described value at `pos`, in any of the three spellings, and where
    its value starts."""
    if pos + 2 < len(buf) and buf[pos] == 0 and buf[pos + 1] == 0x53:
        return buf[pos + 2], pos + 3
    if pos >= len(buf) or buf[pos] != 0:
        raise DecodeError("not a described value", pos)
    descriptor, at = decode(buf, pos + 1)
    if isinstance(descriptor, Symbol):
        return _SYMBOLIC.get(descriptor, -1), at
    if isinstance(descriptor, int):
        return descriptor, at
    raise DecodeError("descriptor is neither code nor symbol", pos)


class Fields:
    """The fields of a rare performative; those left out at the end read as absent."""

    def __init__(self, buf: bytes, pos: int, end: int) -> None:
        self.buf = buf
        starts, after = list_starts(buf, pos)
        if after > end:
            raise DecodeError("performative longer than its frame", pos)
        self._starts = starts
        self.after = after

    def count(self) -> int:
        return len(self._starts)

    def present(self, index: int) -> bool:
        return index < len(self._starts) and self.buf[self._starts[index]] != 0x40

    def start(self, index: int) -> int:
        return self._starts[index]

    def raw(self, index: int) -> bytes:
        """The field as it is on the wire; null when absent."""
        if not self.present(index):
            return NULL
        start = self._starts[index]
        return self.buf[start : skip(self.buf, start)]

    def value(self, index: int) -> object:
        if not self.present(index):
            return None
        value, _ = decode(self.buf, self._starts[index])
        return value

    def integer(self, index: int) -> int:
        """A number that may be negative, such as a timestamp; it must be present."""
        value = self.value(index)
        if not isinstance(value, int):
            raise DecodeError("field is not a number", self._starts[index])
        return value

    def number(self, index: int, default: int) -> int:
        if not self.present(index):
            return default
        value = self.integer(index)
        if value < 0:
            raise DecodeError("field is negative", self._starts[index])
        return value

    def boolean(self, index: int, default: bool) -> bool:
        value = self.value(index)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise DecodeError("field is not a boolean", self._starts[index])
        return value

    def text(self, index: int) -> str | None:
        """A string or symbol, which peers interchange."""
        value = self.value(index)
        if value is None or isinstance(value, str):
            return value
        raise DecodeError("field is not text", self._starts[index])

    def binary(self, index: int) -> bytes | None:
        value = self.value(index)
        if value is None or isinstance(value, bytes):
            return value
        raise DecodeError("field is not binary", self._starts[index])

    def mapping(self, index: int) -> dict[object, object]:
        value = self.value(index)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        raise DecodeError("field is not a map", self._starts[index])


# ---------------------------------------------------------------------------------------
# Reading what comes with every message. Indexing past the frame can only hit the next
# frame or raise IndexError; either way the final check against the end of the list
# turns it into a DecodeError.


def _list_at(buf: bytes, pos: int, limit: int) -> tuple[int, int, int]:
    """Count, first element and end of the list at `pos`."""
    code = buf[pos]
    if code == 0xC0:
        count, start, end = buf[pos + 2], pos + 3, pos + 2 + buf[pos + 1]
    elif code == 0xD0:
        count, start, end = _u32(buf, pos + 5), pos + 9, pos + 5 + _u32(buf, pos + 1)
    elif code == 0x45:
        count, start, end = 0, pos + 1, pos + 1
    else:
        raise DecodeError("performative is not a list", pos)
    if end > limit or start > end or count > end - start:
        raise DecodeError("performative longer than its frame", pos)
    return count, start, end


def _u32(buf: bytes, pos: int) -> int:
    return buf[pos] << 24 | buf[pos + 1] << 16 | buf[pos + 2] << 8 | buf[pos + 3]


def _uint_at(buf: bytes, pos: int) -> tuple[int, int]:
    """An unsigned number, -1 for null, and the position after it."""
    code = buf[pos]
    if code == 0x52:
        return buf[pos + 1], pos + 2
    if code == 0x43:
        return 0, pos + 1
    if code == 0x70:
        return _u32(buf, pos + 1), pos + 5
    if code == 0x40:
        return -1, pos + 1
    raise DecodeError("field is not a uint", pos)


def _flag_at(buf: bytes, pos: int) -> tuple[bool, int]:
    """A boolean whose null means false, and the position after it."""
    code = buf[pos]
    if code == 0x41:
        return True, pos + 1
    if code == 0x42 or code == 0x40:
        return False, pos + 1
    if code == 0x56:
        return buf[pos + 1] == 1, pos + 2
    raise DecodeError("field is not a boolean", pos)


def _tag_at(buf: bytes, pos: int) -> tuple[bytes, int]:
    code = buf[pos]
    if code == 0xA0:
        start = pos + 2
        end = start + buf[pos + 1]
    elif code == 0x40:
        return b"", pos + 1
    elif code == 0xB0:
        start = pos + 5
        end = start + _u32(buf, pos + 1)
    else:
        raise DecodeError("delivery-tag is not binary", pos)
    if end > len(buf):
        raise DecodeError("delivery-tag cut short", pos)
    return buf[start:end], end


def read_transfer(
    buf: bytes, pos: int, limit: int
) -> tuple[int, int, bytes, int, bool, bool, bool, int, int]:
    """Handle, delivery-id, tag, message-format, settled, more, aborted, where the state
    starts (-1: none) and where the payload starts."""
    try:
        count, pos, end = _list_at(buf, pos, limit)
        delivery_id = message_format = state_at = -1
        tag = b""
        settled = more = aborted = False
        if count == 0:
            raise DecodeError("transfer without handle", pos)
        handle, pos = _uint_at(buf, pos)
        if count > 1:
            delivery_id, pos = _uint_at(buf, pos)
        if count > 2:
            tag, pos = _tag_at(buf, pos)
        if count > 3:
            message_format, pos = _uint_at(buf, pos)
        if count > 4:
            settled, pos = _flag_at(buf, pos)
        if count > 5:
            more, pos = _flag_at(buf, pos)
        if count > 6:
            pos = skip(buf, pos)
        if count > 7:
            if buf[pos] != 0x40:
                state_at = pos
            pos = skip(buf, pos)
        if count > 8:
            pos = skip(buf, pos)
        if count > 9:
            aborted, pos = _flag_at(buf, pos)
        if pos > end or handle < 0:
            raise DecodeError("transfer longer than its list", pos)
    except IndexError:
        raise DecodeError("transfer cut short", pos) from None
    return handle, delivery_id, tag, message_format, settled, more, aborted, state_at, end


def read_disposition(buf: bytes, pos: int, limit: int) -> tuple[bool, int, int, bool, int, int]:
    """Role, first, last, settled, and the span of the state (empty: none)."""
    try:
        count, pos, end = _list_at(buf, pos, limit)
        if count < 2:
            raise DecodeError("disposition without first", pos)
        role, pos = _flag_at(buf, pos)
        first, pos = _uint_at(buf, pos)
        last = first
        settled = False
        if count > 2:
            last, pos = _uint_at(buf, pos)
            if last < 0:
                last = first
        if count > 3:
            settled, pos = _flag_at(buf, pos)
        state_at = pos
        if count > 4:
            pos = skip(buf, pos)
        if pos > end or first < 0:
            raise DecodeError("disposition longer than its list", pos)
    except IndexError:
        raise DecodeError("disposition cut short", pos) from None
    return role, first, last, settled, state_at, pos


def read_flow(buf: bytes, pos: int, limit: int) -> tuple[int, int, int, int, int, bool, bool]:
    """Next-incoming-id, incoming-window, handle, delivery-count and link-credit (-1: null),
    drain and echo."""
    try:
        count, pos, end = _list_at(buf, pos, limit)
        next_incoming_id = incoming_window = handle = delivery_count = link_credit = -1
        drain = echo = False
        if count > 0:
            next_incoming_id, pos = _uint_at(buf, pos)
        if count > 1:
            incoming_window, pos = _uint_at(buf, pos)
        if count > 3:
            pos = skip(buf, skip(buf, pos))
        if count > 4:
            handle, pos = _uint_at(buf, pos)
        if count > 5:
            delivery_count, pos = _uint_at(buf, pos)
        if count > 6:
            link_credit, pos = _uint_at(buf, pos)
        if count > 7:
            pos = skip(buf, pos)
        if count > 8:
            drain, pos = _flag_at(buf, pos)
        if count > 9:
            echo, pos = _flag_at(buf, pos)
        if pos > end or incoming_window < 0:
            raise DecodeError("flow longer than its list", pos)
    except IndexError:
        raise DecodeError("flow cut short", pos) from None
    return next_incoming_id, incoming_window, handle, delivery_count, link_credit, drain, echo


# ---------------------------------------------------------------------------------------
# Writing

# Size, data offset and channel, then the transfer: handle, delivery-id, tag,
# message-format, settled and more. All numbers at full width, so that one pack writes the
# whole of it for a lock token's 16 bytes; any other tag is put between two.
_TRANSFER_16: Final = struct.Struct(">II7sIBIH16sBIH")
_BEFORE_TAG: Final = struct.Struct(">II4sBBBIBIBB")
_AFTER_TAG: Final = struct.Struct(">BIH")
_pack_transfer_16 = _TRANSFER_16.pack
# A single-frame transfer but for its tag and its payload.
TRANSFER_BYTES: Final = 33


def transfer_single(
    size: int, channel: int, handle: int, delivery_id: int, tag: bytes, form: int, settled: bool
) -> bytes:
    """All of a single-frame transfer but its payload; `size` counts that in."""
    flags = 0x4142 if settled else 0x4242
    if len(tag) == 16:
        return _pack_transfer_16(
            size,
            0x02000000 | channel,
            b"\x00\x53\x14\xc0\x24\x06\x70",
            handle,
            0x70,
            delivery_id,
            0xA010,
            tag,
            0x70,
            form,
            flags,
        )
    before = _BEFORE_TAG.pack(
        size,
        0x02000000 | channel,
        b"\x00\x53\x14\xc0",
        20 + len(tag),
        6,
        0x70,
        handle,
        0x70,
        delivery_id,
        0xA0,
        len(tag),
    )
    return before + tag + _AFTER_TAG.pack(0x70, form, flags)


def transfer_first(handle: int, delivery_id: int, tag: bytes, form: int, settled: bool) -> bytes:
    """The performative of the first of several frames, without envelope."""
    fields = [
        encode_uint(handle),
        encode_uint(delivery_id),
        bytes((0xA0, len(tag))) + tag,
        encode_uint(form),
        TRUE if settled else FALSE,
        TRUE,
    ]
    return b"\x00\x53\x14" + encode_list(fields)


def transfer_continuation(handle: int, settled: bool, more: bool) -> bytes:
    fields = [encode_uint(handle), NULL, NULL, NULL]
    fields += [TRUE if settled else FALSE, TRUE if more else FALSE]
    return b"\x00\x53\x14" + encode_list(fields)


_DISPOSITION: Final = struct.Struct(">II3sBIIBBIBIB")
_pack_disposition = _DISPOSITION.pack


def disposition(channel: int, is_receiver: bool, first: int, last: int, state: bytes) -> bytes:
    """A settling disposition."""
    size = len(state)
    return (
        _pack_disposition(
            _DISPOSITION.size + size,
            0x02000000 | channel,
            b"\x00\x53\x15",
            0xD0,
            16 + size,
            5,
            0x41 if is_receiver else 0x42,
            0x70,
            first,
            0x70,
            last,
            0x41,
        )
        + state
    )


_SESSION_FLOW: Final = struct.Struct(">II7sIBIBIBI")
_LINK_FLOW: Final = struct.Struct(">II7sIBIBIBIBIBIBIBB")


def session_flow(
    channel: int, next_incoming_id: int, incoming_window: int, next_outgoing_id: int, window: int
) -> bytes:
    return _SESSION_FLOW.pack(
        _SESSION_FLOW.size,
        0x02000000 | channel,
        b"\x00\x53\x13\xc0\x15\x04\x70",
        next_incoming_id,
        0x70,
        incoming_window,
        0x70,
        next_outgoing_id,
        0x70,
        window,
    )


def link_flow(
    channel: int,
    next_incoming_id: int,
    incoming_window: int,
    next_outgoing_id: int,
    window: int,
    handle: int,
    delivery_count: int,
    link_credit: int,
    drain: bool,
) -> bytes:
    return _LINK_FLOW.pack(
        _LINK_FLOW.size,
        0x02000000 | channel,
        b"\x00\x53\x13\xc0\x26\x09\x70",
        next_incoming_id,
        0x70,
        incoming_window,
        0x70,
        next_outgoing_id,
        0x70,
        window,
        0x70,
        handle,
        0x70,
        delivery_count,
        0x70,
        link_credit,
        0x40,
        0x41 if drain else 0x42,
    )


def _performative(code: int, fields: list[bytes]) -> bytes:
    # The Python SDK does not know the empty list here, so it gets its long form.
    return bytes((0x00, 0x53, code)) + (encode_list(fields) if fields else b"\xc0\x01\x00")


def open_frame(
    container_id: str, max_frame_size: int, channel_max: int, idle_timeout_ms: int
) -> bytes:
    fields = [
        encode_string(container_id),
        NULL,
        encode_uint(max_frame_size),
        b"\x60" + channel_max.to_bytes(2, "big"),
        NULL if idle_timeout_ms == 0 else encode_uint(idle_timeout_ms),
    ]
    return frame(0, _performative(OPEN, fields))


def begin_frame(
    channel: int, next_outgoing_id: int, incoming_window: int, window: int, handle_max: int
) -> bytes:
    fields = [
        b"\x60" + channel.to_bytes(2, "big"),
        encode_uint(next_outgoing_id),
        encode_uint(incoming_window),
        encode_uint(window),
        encode_uint(handle_max),
    ]
    return frame(channel, _performative(BEGIN, fields))


def attach_frame(
    channel: int,
    name: str,
    handle: int,
    is_sender: bool,
    modes: bytes,
    source: bytes,
    target: bytes,
    max_message_size: int,
    properties: dict[object, object] | None,
) -> bytes:
    """Our half of a link. `modes` are the two settle modes, encoded."""
    fields = [
        encode_string(name),
        encode_uint(handle),
        FALSE if is_sender else TRUE,
        modes,
        source,
        target,
        NULL + NULL,
        encode_uint(0) if is_sender else NULL,
        encode_ulong(max_message_size) if max_message_size else NULL,
        NULL + NULL,
        NULL if properties is None else encode(properties),
    ]
    body = b"".join(fields)
    head = b"\x00\x53\x12\xd0" + (len(body) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x0e"
    return frame(channel, head + body)


def detach_frame(channel: int, handle: int, error: bytes) -> bytes:
    return frame(channel, _performative(DETACH, [encode_uint(handle), TRUE, error]))


def end_frame(channel: int) -> bytes:
    return frame(channel, _performative(END, []))


def close_frame(error: bytes) -> bytes:
    return frame(0, _performative(CLOSE, [] if error == NULL else [error]))
