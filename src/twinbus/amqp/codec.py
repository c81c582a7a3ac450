"""AMQP values to bytes and back.

Bytes of a stranger enter; values with their AMQP types leave, or a `DecodeError`. Nesting,
counts and sizes are bounded by the bytes present before anything is built from them.
The raw helpers at the end edit maps and lists without decoding what they do not need.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.maps import to_map
from twinbus.amqp.types import (
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

NULL: Final = b"\x40"
TRUE: Final = b"\x41"
FALSE: Final = b"\x42"

NESTING_MAX: Final = 32
# Elements such as null take no bytes inside an array, so their count is not bounded by
# the bytes present. Nobody sends such arrays in earnest: as many as an array has bytes
# around them will do, or a few bytes of a stranger become hundreds of values.
ZERO_WIDTH_COUNT_MAX: Final = 4

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I8: Final = struct.Struct(">b")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")

# ---------------------------------------------------------------------------------------
# Decoding


def _uuid_of(raw: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=raw)


def _char_of(raw: bytes) -> Char:
    return Char(chr(int.from_bytes(raw, "big")))


def _text_of(raw: bytes) -> str:
    return raw.decode()


def _symbol_of(raw: bytes) -> Symbol:
    return Symbol(raw.decode())


def _number(layout: str, wrap: Callable[[Any], object]) -> Callable[[bytes], object]:
    unpack = struct.Struct(layout).unpack

    def read(raw: bytes) -> object:
        return wrap(unpack(raw)[0])

    return read


def _constants() -> dict[int, object]:
    return {0x40: None, 0x41: True, 0x42: False, 0x43: UInt(0), 0x44: ULong(0)}


def _readers() -> dict[int, Callable[[bytes], object]]:
    """What to make of the bytes of each fixed-width and variable-width type."""
    return {
        0x50: _number(">B", UByte),
        0x51: _number(">b", Byte),
        0x52: _number(">B", UInt),
        0x53: _number(">B", ULong),
        0x54: _number(">b", Int),
        0x55: _number(">b", int),
        0x56: _number(">B", _boolean_of),
        0x60: _number(">H", UShort),
        0x61: _number(">h", Short),
        0x70: _number(">I", UInt),
        0x71: _number(">i", Int),
        0x72: _number(">f", Float32),
        0x73: _char_of,
        0x74: Decimal32,
        0x80: _number(">Q", ULong),
        0x81: _number(">q", int),
        0x82: _number(">d", float),
        0x83: _number(">q", Timestamp),
        0x84: Decimal64,
        0x94: Decimal128,
        0x98: _uuid_of,
        0xA0: bytes,
        0xA1: _text_of,
        0xA3: _symbol_of,
        0xB0: bytes,
        0xB1: _text_of,
        0xB3: _symbol_of,
    }


def _boolean_of(byte: int) -> bool:
    if byte > 1:
        raise ValueError("a boolean is 0 or 1")
    return byte == 1


_CONSTANTS: Final = _constants()
_READERS: Final = _readers()


def decode(buf: bytes, pos: int = 0) -> tuple[object, int]:
    """Read one value; give it and the position after it."""
    return _decode(buf, pos, 0)


def decode_whole(buf: bytes) -> object:
    """Read a value that must fill `buf`."""
    value, end = _decode(buf, 0, 0)
    if end != len(buf):
        raise DecodeError("bytes after the value", end)
    return value


def _decode(buf: bytes, pos: int, depth: int) -> tuple[object, int]:
    if pos >= len(buf):
        raise DecodeError("value missing", pos)
    if depth > NESTING_MAX:
        raise DecodeError("nested too deeply", pos)
    code = buf[pos]
    if code == 0:
        descriptor, pos = _decode(buf, pos + 1, depth + 1)
        value, pos = _decode(buf, pos, depth + 1)
        return Described(descriptor, value), pos
    return _decode_body(buf, pos + 1, code, depth)


def _decode_body(buf: bytes, pos: int, code: int, depth: int) -> tuple[object, int]:
    """Read what follows a constructor; elements of an array share one constructor."""
    if code == 0x45:
        return [], pos
    if code in _CONSTANTS:
        return _CONSTANTS[code], pos
    start, end = _body_span(buf, pos, code)
    reader = _READERS.get(code)
    if reader is not None:
        try:
            return reader(buf[start:end]), end
        except (ValueError, OverflowError):
            raise DecodeError(f"bad value of type 0x{code:02x}", pos) from None
    if code == 0xC0 or code == 0xD0:
        return _decode_items(buf, start, end, code, depth), end
    if code == 0xC1 or code == 0xD1:
        return _decode_map(buf, start, end, code, depth), end
    if code == 0xE0 or code == 0xF0:
        return _decode_array(buf, start, end, code, depth), end
    raise DecodeError(f"unknown type 0x{code:02x}", pos)


def _body_span(buf: bytes, pos: int, code: int) -> tuple[int, int]:
    """Where the body of a value begins (past its size) and ends; both lie within `buf`."""
    group = code >> 4
    limit = len(buf)
    if group < 4:
        raise DecodeError(f"unknown type 0x{code:02x}", pos)
    if group == 4:
        end = pos
    elif group < 0xA:
        end = pos + (1 << (group - 5))
    elif group & 1 == 0:
        if pos >= limit:
            raise DecodeError("value cut short", pos)
        end = pos + 1 + buf[pos]
        pos += 1
    else:
        if pos + 4 > limit:
            raise DecodeError("value cut short", pos)
        end = pos + 4 + (buf[pos] << 24 | buf[pos + 1] << 16 | buf[pos + 2] << 8 | buf[pos + 3])
        pos += 4
    if end > limit:
        raise DecodeError("value cut short", pos)
    return pos, end


def _count_at(buf: bytes, pos: int, end: int, code: int) -> tuple[int, int]:
    """The element count of a compound, and where its elements begin."""
    if code >> 4 & 1 == 0:
        if pos + 1 > end:
            raise DecodeError("compound without count", pos)
        return buf[pos], pos + 1
    if pos + 4 > end:
        raise DecodeError("compound without count", pos)
    count: int = _U32.unpack_from(buf, pos)[0]
    return count, pos + 4


def _decode_items(buf: bytes, pos: int, end: int, code: int, depth: int) -> list[object]:
    count, pos = _count_at(buf, pos, end, code)
    if count > end - pos:
        raise DecodeError("more elements than bytes", pos)
    items: list[object] = []
    for _ in range(count):
        item, pos = _decode(buf, pos, depth + 1)
        items.append(item)
    if pos != end:
        raise DecodeError("compound and its elements differ in size", pos)
    return items


def _decode_map(buf: bytes, pos: int, end: int, code: int, depth: int) -> dict[object, object]:
    return to_map(_decode_items(buf, pos, end, code, depth), pos)


def _decode_array(buf: bytes, pos: int, end: int, code: int, depth: int) -> AmqpArray:
    if depth >= NESTING_MAX:
        raise DecodeError("nested too deeply", pos)
    count, pos = _count_at(buf, pos, end, code)
    descriptor: object | None = None
    if pos < end and buf[pos] == 0:
        descriptor, pos = _decode(buf, pos + 1, depth + 1)
    if pos >= end:
        raise DecodeError("array without constructor", pos)
    element = buf[pos]
    pos += 1
    bound = ZERO_WIDTH_COUNT_MAX if element >> 4 == 4 else end - pos
    if element == 0 or count > bound:
        raise DecodeError("array of more elements than bytes", pos)
    items: list[object] = []
    for _ in range(count):
        item, pos = _decode_body(buf, pos, element, depth + 1)
        items.append(item)
    if pos != end:
        raise DecodeError("array and its elements differ in size", pos)
    return AmqpArray(items, element, descriptor)


# ---------------------------------------------------------------------------------------
# Encoding


def encode(value: object) -> bytes:
    """Write one value in the shortest form of its type (long alone is always eight bytes:
    the JavaScript SDK reads ticks and sequence numbers as eight raw bytes)."""
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise TypeError(f"no AMQP type for {type(value).__name__}")
    return writer(value)


def encode_list(items: list[bytes]) -> bytes:
    """A list of elements that are encoded already."""
    if not items:
        return b"\x45"
    return _compound(0xC0, len(items), b"".join(items))


def encode_map(pairs: list[tuple[object, bytes]]) -> bytes:
    """A map of keys and encoded values, as `map_pairs` gives them."""
    parts: list[bytes] = []
    for key, raw in pairs:
        parts.append(encode(key))
        parts.append(raw)
    return _compound(0xC1, len(parts), b"".join(parts))


def encode_uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    if value < 256:
        return bytes((0x52, value))
    return b"\x70" + _U32.pack(value)


def encode_ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    if value < 256:
        return bytes((0x53, value))
    return b"\x80" + _U64.pack(value)


def encode_string(value: str) -> bytes:
    return _variable(0xA1, value.encode())


def encode_symbol(value: str) -> bytes:
    return _variable(0xA3, value.encode())


def encode_binary(value: bytes) -> bytes:
    return _variable(0xA0, value)


def _variable(code: int, raw: bytes) -> bytes:
    size = len(raw)
    if size < 256:
        return bytes((code, size)) + raw
    return bytes((code + 0x10,)) + _U32.pack(size) + raw


def _compound(code: int, count: int, body: bytes) -> bytes:
    size = len(body)
    if size < 255 and count < 256:
        return bytes((code, size + 1, count)) + body
    return bytes((code + 0x10,)) + _U32.pack(size + 4) + _U32.pack(count) + body


def _write_int(value: int) -> bytes:
    if -128 <= value < 128:
        return b"\x54" + _I8.pack(value)
    return b"\x71" + _I32.pack(value)


def _write_list(items: list[object]) -> bytes:
    return encode_list([encode(item) for item in items])


def _write_map(pairs: dict[object, object]) -> bytes:
    return encode_map([(key, encode(value)) for key, value in pairs.items()])


def _write_described(described: Described) -> bytes:
    return b"\x00" + encode(described.descriptor) + encode(described.value)


def _write_array(array: AmqpArray) -> bytes:
    code = array.code
    if code >> 4 == 0xA or code >> 4 == 0xC or code >> 4 == 0xE:
        # One constructor serves all elements: take the wide one, which fits them all.
        code += 0x10
    head = bytes((code,))
    if array.descriptor is not None:
        head = b"\x00" + encode(array.descriptor) + head
    body = head + b"".join([_array_element(code, item) for item in array])
    return _compound(0xE0, len(array), body)


def _array_element(code: int, item: object) -> bytes:
    """The bytes of one element after its constructor."""
    if code >> 4 == 4:
        return b""
    writer = _ELEMENT_WRITERS.get(code)
    if writer is None:
        raise TypeError(f"no AMQP array of type 0x{code:02x}")
    return writer(item)


def _packed(layout: str) -> Callable[[Any], bytes]:
    return struct.Struct(layout).pack


def _exactly(width: int) -> Callable[[bytes], bytes]:
    def write(raw: bytes) -> bytes:
        if len(raw) != width:
            raise ValueError(f"{len(raw)} bytes for a decimal of {width}")
        return raw

    return write


def _char_bytes(value: Char) -> bytes:
    return _U32.pack(ord(value.character))


def _uuid_bytes(value: uuid.UUID) -> bytes:
    return value.bytes


def _sized(raw: bytes) -> bytes:
    return _U32.pack(len(raw)) + raw


def _sized_text(value: str) -> bytes:
    return _sized(value.encode())


def _wide_list(items: list[object]) -> bytes:
    return _sized(_U32.pack(len(items)) + b"".join([encode(item) for item in items]))


def _wide_map(pairs: dict[object, object]) -> bytes:
    parts = [encode(key) + encode(value) for key, value in pairs.items()]
    return _sized(_U32.pack(2 * len(pairs)) + b"".join(parts))


def _wide_array(array: AmqpArray) -> bytes:
    whole = _write_array(array)
    if whole[0] == 0xF0:
        return whole[1:]
    return _sized(_U32.pack(len(array)) + whole[3:])


def _element_writers() -> dict[int, Callable[[Any], bytes]]:
    return {
        0x50: _packed(">B"),
        0x51: _packed(">b"),
        0x52: _packed(">B"),
        0x53: _packed(">B"),
        0x54: _packed(">b"),
        0x55: _packed(">b"),
        0x56: _packed(">?"),
        0x60: _packed(">H"),
        0x61: _packed(">h"),
        0x70: _packed(">I"),
        0x71: _packed(">i"),
        0x72: _packed(">f"),
        0x73: _char_bytes,
        0x74: _exactly(4),
        0x80: _packed(">Q"),
        0x81: _packed(">q"),
        0x82: _packed(">d"),
        0x83: _packed(">q"),
        0x84: _exactly(8),
        0x94: _exactly(16),
        0x98: _uuid_bytes,
        0xB0: _sized,
        0xB1: _sized_text,
        0xB3: _sized_text,
        0xD0: _wide_list,
        0xD1: _wide_map,
        0xF0: _wide_array,
    }


def _prefixed(code: int, pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    head = bytes((code,))

    def write(value: object) -> bytes:
        return head + pack(value)

    return write


def _write_null(value: None) -> bytes:
    return NULL


def _write_boolean(value: bool) -> bytes:
    return TRUE if value else FALSE


def _writers() -> dict[type, Callable[[Any], bytes]]:
    return {
        type(None): _write_null,
        bool: _write_boolean,
        UByte: _prefixed(0x50, _packed(">B")),
        UShort: _prefixed(0x60, _U16.pack),
        UInt: encode_uint,
        ULong: encode_ulong,
        Byte: _prefixed(0x51, _I8.pack),
        Short: _prefixed(0x61, _I16.pack),
        Int: _write_int,
        int: _prefixed(0x81, _I64.pack),
        Float32: _prefixed(0x72, _F32.pack),
        float: _prefixed(0x82, _F64.pack),
        Timestamp: _prefixed(0x83, _I64.pack),
        Char: _prefixed(0x73, _char_bytes),
        Decimal32: _prefixed(0x74, _exactly(4)),
        Decimal64: _prefixed(0x84, _exactly(8)),
        Decimal128: _prefixed(0x94, _exactly(16)),
        uuid.UUID: _prefixed(0x98, _uuid_bytes),
        bytes: encode_binary,
        str: encode_string,
        Symbol: encode_symbol,
        list: _write_list,
        dict: _write_map,
        AmqpArray: _write_array,
        Described: _write_described,
    }


_ELEMENT_WRITERS: Final = _element_writers()
_WRITERS: Final = _writers()

# ---------------------------------------------------------------------------------------
# Raw access: find and copy what is there without decoding it


def skip(buf: bytes, pos: int) -> int:
    """The position after the value at `pos`; the inside of a compound is not looked at."""
    # A described value is its descriptor and its value: one more to skip. Counting
    # instead of recursing leaves a stranger no stack to exhaust.
    pending = 1
    limit = len(buf)
    while pending:
        if pos >= limit:
            raise DecodeError("value missing", pos)
        code = buf[pos]
        pos += 1
        if code == 0:
            pending += 1
            continue
        _, pos = _body_span(buf, pos, code)
        pending -= 1
    return pos


def list_starts(buf: bytes, pos: int) -> tuple[list[int], int]:
    """Where each element of the list at `pos` starts, and the position after the list."""
    if pos >= len(buf):
        raise DecodeError("list missing", pos)
    code = buf[pos]
    if code == 0x45:
        return [], pos + 1
    if code != 0xC0 and code != 0xD0:
        raise DecodeError("not a list", pos)
    return _element_starts(buf, pos)


def check_list(buf: bytes, pos: int) -> None:
    """Refuse what is no list, or one whose elements do not fill it; they are not decoded."""
    code = buf[pos] if pos < len(buf) else 0
    if code == 0x45:
        return
    if code != 0xC0 and code != 0xD0:
        raise DecodeError("not a list", pos)
    pos, end = _body_span(buf, pos + 1, code)
    count, pos = _count_at(buf, pos, end, code)
    while count and pos < end:
        count -= 1
        code = buf[pos]
        # Nothing, or something short: what most lists are made of.
        if code == 0x40:
            pos += 1
        elif 0xA0 <= code <= 0xA3 and pos + 1 < end:
            pos += 2 + buf[pos + 1]
        else:
            pos = skip(buf, pos)
    if count or pos != end:
        raise DecodeError("compound and its elements differ in size", pos)


def map_pairs(buf: bytes, pos: int) -> list[tuple[object, bytes]]:
    """The map at `pos`: decoded keys with values as they are on the wire."""
    starts, end = _map_starts(buf, pos)
    count = len(starts)
    if count % 2:
        raise DecodeError("map with a key without value", pos)
    starts.append(end)
    pairs: list[tuple[object, bytes]] = []
    for i in range(0, count, 2):
        key, value_at = _decode(buf, starts[i], 1)
        pairs.append((key, buf[value_at : starts[i + 2]]))
    return pairs


def map_value_starts(buf: bytes, pos: int) -> list[int]:
    """Where each value of the map at `pos` starts."""
    starts, _ = _map_starts(buf, pos)
    return starts[1::2]


def _map_starts(buf: bytes, pos: int) -> tuple[list[int], int]:
    if pos >= len(buf) or (buf[pos] != 0xC1 and buf[pos] != 0xD1):
        raise DecodeError("not a map", pos)
    return _element_starts(buf, pos)


def _element_starts(buf: bytes, pos: int) -> tuple[list[int], int]:
    code = buf[pos]
    pos, end = _body_span(buf, pos + 1, code)
    count, pos = _count_at(buf, pos, end, code)
    if count > end - pos:
        raise DecodeError("more elements than bytes", pos)
    starts: list[int] = []
    for _ in range(count):
        starts.append(pos)
        pos = skip(buf, pos)
    if pos != end:
        raise DecodeError("compound and its elements differ in size", pos)
    return starts, end
