"""The form in which a message is kept: what the broker needs of it, then the rest untouched.

A client's message comes in; a small fixed prefix, the client's annotations and the bare
message (properties, application properties, body, footer: byte for byte) are what is stored.
Out goes the head of a delivery: header, delivery annotations and message annotations, which
are the broker's to write, made with one `struct.pack` in the common case.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from twinbus.amqp import codec, decimals
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
)
from twinbus.amqp.types import Symbol

# time to live (NO_TTL: none), durable, priority (NO_PRIORITY: none given), then count and
# length of the message annotations and of the delivery annotations that follow.
_PREFIX: Final = Struct(">IBBHIHI")
PREFIX_SIZE: Final = 18
NO_TTL: Final = 0xFFFFFFFF
_NO_PRIORITY: Final = 0xFF

_U32: Final = Struct(">I")
_EMPTY_MAP_BYTES: Final = 6
_OMITTED: Final = "omitted-message-body-size"
# The end of the year 9999, the last moment that clients can express.
_LATEST_MS: Final = 253_402_300_799_999
SCHEDULED_TIME: Final = "x-opt-scheduled-enqueue-time"
# Written by the broker on every delivery; what a client sends under these names is dropped.
_BROKERS_OWN: Final = frozenset(
    (
        "x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until",
        "x-opt-enqueue-sequence-number", "x-opt-message-state", "x-opt-deadletter-source",
        "x-opt-lock-token",
    )
)  # fmt: skip

_LOCK_TOKEN: Final = b"\xa3\x10x-opt-lock-token\x98"
_SEQUENCE_NUMBER: Final = b"\xa3\x15x-opt-sequence-number\x81"
_ENQUEUED_TIME: Final = b"\xa3\x13x-opt-enqueued-time\x83"
_LOCKED_UNTIL: Final = b"\xa3\x12x-opt-locked-until\x83"
_MESSAGE_STATE: Final = b"\xa3\x13x-opt-message-state\x71"

# The head of the common delivery, after the header section: delivery count; delivery
# annotations with the lock token; message annotations with their three entries.
_LOCKED_HEAD: Final = Struct(">I25s8sQ30sQ22sq21sq")
_LOCKED_DELIVERY: Final = b"\x00\x53\x71\xc1\x24\x02" + _LOCK_TOKEN
_LOCKED_MESSAGE: Final = b"\x00\x53\x72\xc1\x5c\x06" + _SEQUENCE_NUMBER
# The same without a lock: an empty map of delivery annotations is still there.
_FREE_HEAD: Final = Struct(">I36sQ22sq")
_FREE_MESSAGE: Final = b"\x00\x53\x71\xc1\x01\x00\x00\x53\x72\xc1\x3f\x04" + _SEQUENCE_NUMBER

# Headers repeat endlessly: what each looks like read, and what it looks like written.
_CACHE_MAX: Final = 1024
_headers_read: dict[bytes, bytes] = {}
_headers_written: dict[bytes, bytes] = {}


def _prefix(ttl_ms: int, durable: bool, priority: int) -> bytes:
    return _PREFIX.pack(ttl_ms, durable, priority, 0, 0, 0, 0)[:6]


PLAIN_HEADER: Final = b"\xff\xff\xff\xff\x00\xff"
_NO_ANNOTATIONS: Final = bytes(12)


def section_end(payload: bytes, pos: int) -> int:
    """The position after the section at `pos`, by its size; the inside is not looked at."""
    size = len(payload)
    if pos + 4 > size or payload[pos] or payload[pos + 1] != 0x53:
        raise DecodeError("no message section", pos)
    constructor = payload[pos + 3]
    if constructor in _ONE_BYTE_SIZE and pos + 4 < size:
        end = pos + 5 + payload[pos + 4]
    elif constructor in _FOUR_BYTE_SIZE and pos + 8 <= size:
        end = pos + 8 + int(_U32.unpack_from(payload, pos + 4)[0])
    else:
        end = codec.skip(payload, pos + 3)
    if end > size:
        raise DecodeError("message section longer than the message", pos)
    return end


_ONE_BYTE_SIZE: Final = b"\xc0\xc1\xa0"
_FOUR_BYTE_SIZE: Final = b"\xd0\xd1\xb0"


class Front:
    """What the broker writes itself on the way out: header and annotations."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        #: What of the bare message came before one of these sections.
        self.pieces: list[bytes] = []
        self.message_annotations: list[tuple[object, bytes]] = []
        self.delivery_annotations: list[tuple[object, bytes]] = []
        self.scheduled_ms = 0

    def read(self, payload: bytes, pos: int, end: int) -> None:
        """Take in one of the front sections."""
        code = payload[pos + 2]
        if code == HEADER:
            self.prefix = read_header(payload[pos + 3 : end])
            return
        if code != DELIVERY_ANNOTATIONS and code != MESSAGE_ANNOTATIONS:
            raise DecodeError("unknown message section", pos)
        # The JavaScript SDK writes empty ones.
        if end - pos <= _EMPTY_MAP_BYTES:
            return
        # As a text: a stranger's key may be anything, even a list.
        kept = [p for p in codec.map_pairs(payload, pos + 3) if str(p[0]) not in _BROKERS_OWN]
        if code == DELIVERY_ANNOTATIONS:
            self.delivery_annotations = kept
            return
        self.message_annotations = kept
        for key, raw in kept:
            if key == SCHEDULED_TIME:
                when = codec.decode_whole(raw)
                if isinstance(when, int):
                    self.scheduled_ms = min(when, _LATEST_MS)

    def stored(self, bare: bytes) -> bytes:
        """The stored form; `bare` is the last piece of the bare message."""
        if not bare and not self.pieces:
            raise DecodeError("the message has no body", 0)
        ma_count, ma = _encode_pairs(self.message_annotations)
        da_count, da = _encode_pairs(self.delivery_annotations)
        if max(ma_count, da_count) > 0xFFFF:
            raise DecodeError("too many annotations", 0)
        counts = _PREFIX.pack(0, 0, 0, ma_count, len(ma), da_count, len(da))[6:]
        return b"".join([self.prefix, counts, ma, da, *self.pieces, bare])


def plain(prefix: bytes, bare: bytes) -> bytes:
    """The stored form of a message without annotations."""
    return prefix + _NO_ANNOTATIONS + bare


def read_header(raw: bytes) -> bytes:
    """The stored prefix that a header section means."""
    prefix = _headers_read.get(raw)
    if prefix is None:
        prefix = _read_header(raw)
        if len(_headers_read) >= _CACHE_MAX:
            _headers_read.clear()
        _headers_read[raw] = prefix
    return prefix


def _read_header(raw: bytes) -> bytes:
    fields = codec.decode_whole(raw)
    if not isinstance(fields, list):
        raise DecodeError("the header is no list", 0)
    durable = len(fields) > 0 and fields[0] is True
    priority = _NO_PRIORITY
    if len(fields) > 1 and isinstance(fields[1], int):
        priority = max(0, min(fields[1], 254))
    ttl_ms: int = NO_TTL
    if len(fields) > 2 and isinstance(fields[2], int) and fields[2] > 0:
        ttl_ms = min(fields[2], NO_TTL)
    return _prefix(ttl_ms, durable, priority)


def _encode_pairs(pairs: list[tuple[object, bytes]]) -> tuple[int, bytes]:
    return len(pairs), b"".join([codec.encode(key) + raw for key, raw in pairs])


def ttl_of(stored: bytes) -> int:
    """The time to live that the message asks for, NO_TTL if none."""
    if stored.startswith(b"\xff\xff\xff\xff"):
        return NO_TTL
    return int(_U32.unpack_from(stored)[0])


def with_ttl(stored: bytes, ttl_ms: int) -> bytes:
    return _U32.pack(min(ttl_ms, NO_TTL)) + stored[4:]


def bare_start(stored: bytes) -> int:
    if stored.startswith(_NO_ANNOTATIONS, 6):
        return PREFIX_SIZE
    fields = _PREFIX.unpack_from(stored)
    return PREFIX_SIZE + int(fields[4]) + int(fields[6])


def for_python_sdk(message: bytes) -> bytes:
    """A message, or its bare part, with decimal properties that the Python SDK can read."""
    return _with_decimals(message, decimals.as_azure_has_it)


def from_python_sdk(message: bytes) -> bytes:
    """Undo that: what was received may be sent on as it is, as the syphon does.

    The SDK's own encoder does not write such decimals.
    """
    return _with_decimals(message, decimals.as_the_standard_has_it)


def _with_decimals(message: bytes, first_byte: Callable[[int], int]) -> bytes:
    pos = 0
    while pos < len(message):
        end = section_end(message, pos)
        if message[pos + 2] > APPLICATION_PROPERTIES:
            break
        if message[pos + 2] == APPLICATION_PROPERTIES and message.find(b"\x94", pos, end) >= 0:
            changed = bytearray(message)
            for at in codec.map_value_starts(message, pos + 3):
                if message[at] == 0x94:
                    changed[at + 1] = first_byte(message[at + 1])
            return bytes(changed)
        pos = end
    return message


def has_annotations(stored: bytes) -> bool:
    return not stored.startswith(_NO_ANNOTATIONS, 6)


def annotation(stored: bytes, name: str) -> object:
    """One message annotation, None if it is missing; the others may be beyond reading."""
    raw = raw_annotation(stored, name)
    return codec.decode_whole(raw) if raw else None


def raw_annotation(stored: bytes, name: str) -> bytes:
    """One message annotation as it is encoded; nothing if it is missing."""
    fields = _PREFIX.unpack_from(stored)
    for key, raw in _pairs(stored, PREFIX_SIZE, fields[3]):
        if key == name:
            return raw
    return b""


def with_annotation(stored: bytes, name: str, value: bytes) -> bytes:
    """Set one message annotation to an encoded value."""
    fields = _PREFIX.unpack_from(stored)
    pairs = [p for p in _pairs(stored, PREFIX_SIZE, fields[3]) if p[0] != name]
    pairs.append((Symbol(name), value))
    return _with_message_annotations(stored, pairs)


def without_annotation(stored: bytes, name: str) -> bytes:
    fields = _PREFIX.unpack_from(stored)
    pairs = [p for p in _pairs(stored, PREFIX_SIZE, fields[3]) if p[0] != name]
    return _with_message_annotations(stored, pairs)


def _with_message_annotations(stored: bytes, pairs: list[tuple[object, bytes]]) -> bytes:
    fields = _PREFIX.unpack_from(stored)
    count, raw = _encode_pairs(pairs)
    start = PREFIX_SIZE + int(fields[4])
    counts = _PREFIX.pack(0, 0, 0, count, len(raw), fields[5], fields[6])[6:]
    return b"".join([stored[:6], counts, raw, stored[start:]])


def without_body(stored: bytes) -> tuple[bytes, int]:
    """The message without body and footer, and a delivery annotation that says how much was
    left out; also where its bare part starts."""
    start = pos = bare_start(stored)
    while pos < len(stored) and stored[pos + 2] < DATA:
        pos = section_end(stored, pos)
    fields = _PREFIX.unpack_from(stored)
    da = codec.encode(Symbol(_OMITTED)) + codec.encode(len(stored) - pos)
    counts = _PREFIX.pack(0, 0, 0, fields[3], fields[4], fields[5] + 1, fields[6] + len(da))[6:]
    return b"".join([stored[:6], counts, stored[PREFIX_SIZE:start], da, stored[start:pos]]), (
        start + len(da)
    )


def _pairs(stored: bytes, pos: int, count: int) -> list[tuple[object, bytes]]:
    found: list[tuple[object, bytes]] = []
    for _ in range(count):
        key, value_at = codec.decode(stored, pos)
        pos = codec.skip(stored, value_at)
        found.append((key, stored[value_at:pos]))
    return found


def _header_section(stored: bytes) -> bytes:
    """The header section up to the delivery count, from the stored prefix."""
    key = stored[:6]
    section = _headers_written.get(key)
    if section is None:
        ttl_ms, durable, priority = _U32.unpack_from(key)[0], key[4], key[5]
        fields = codec.TRUE if durable else codec.NULL
        fields += codec.NULL if priority == _NO_PRIORITY else bytes((0x50, priority))
        fields += codec.NULL if ttl_ms == NO_TTL else b"\x70" + key[:4]
        fields += codec.NULL + b"\x70"
        section = b"\x00\x53\x70\xc0" + bytes((len(fields) + 5, 5)) + fields
        if len(_headers_written) >= _CACHE_MAX:
            _headers_written.clear()
        _headers_written[key] = section
    return section


def locked_head(
    stored: bytes, seq: int, enqueued_ms: int, delivery_count: int, token_high: bytes, low: int,
    locked_until_ms: int, state: int = 0,
) -> bytes:  # fmt: skip
    """The head of a peek-lock delivery.

    `state` is 1 for a deferred and 2 for a scheduled message; an active one says nothing.
    """
    if state or not stored.startswith(_NO_ANNOTATIONS, 6):
        token = _LOCK_TOKEN + token_high + low.to_bytes(8, "big")
        until = _LOCKED_UNTIL + locked_until_ms.to_bytes(8, "big", signed=True)
        return _annotated_head(stored, seq, enqueued_ms, delivery_count, token, until, state)
    return _header_section(stored) + _LOCKED_HEAD.pack(
        delivery_count, _LOCKED_DELIVERY, token_high, low, _LOCKED_MESSAGE, seq, _ENQUEUED_TIME,
        enqueued_ms, _LOCKED_UNTIL, locked_until_ms,
    )  # fmt: skip


def free_head(
    stored: bytes, seq: int, enqueued_ms: int, delivery_count: int, state: int = 0
) -> bytes:
    """The head of a message without a lock: received and deleted, or peeked at."""
    if state or not stored.startswith(_NO_ANNOTATIONS, 6):
        return _annotated_head(stored, seq, enqueued_ms, delivery_count, b"", b"", state)
    return _header_section(stored) + _FREE_HEAD.pack(
        delivery_count, _FREE_MESSAGE, seq, _ENQUEUED_TIME, enqueued_ms
    )


def _annotated_head(
    stored: bytes, seq: int, enqueued_ms: int, delivery_count: int, token: bytes, until: bytes,
    state: int,
) -> bytes:  # fmt: skip
    fields = _PREFIX.unpack_from(stored)
    ma_end = PREFIX_SIZE + int(fields[4])
    da = token + stored[ma_end : ma_end + int(fields[6])]
    da_count = int(fields[5]) + (1 if token else 0)
    ma = b"".join(
        [
            _SEQUENCE_NUMBER, seq.to_bytes(8, "big"), _ENQUEUED_TIME,
            enqueued_ms.to_bytes(8, "big", signed=True), until,
            _MESSAGE_STATE + _U32.pack(state) if state else b"", stored[PREFIX_SIZE:ma_end],
        ]
    )  # fmt: skip
    ma_count = int(fields[3]) + 2 + (1 if until else 0) + (1 if state else 0)
    return b"".join(
        [
            _header_section(stored), _U32.pack(delivery_count),
            b"\x00\x53\x71\xd1", _U32.pack(len(da) + 4), _U32.pack(da_count * 2), da,
            b"\x00\x53\x72\xd1", _U32.pack(len(ma) + 4), _U32.pack(ma_count * 2), ma,
        ]
    )  # fmt: skip
