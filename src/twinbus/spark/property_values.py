"""Application properties as a DataFrame has them: text, and the AMQP type where it is not text.

A decoded AMQP value goes in and (text, type name) comes out, and back again; the way there
and back loses nothing. Values that AMQP allows and no text form fits (maps, lists, described
values) are kept as their encoding in base64, under the type name `amqp`.
"""

from __future__ import annotations

import base64
import binascii
import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from twinbus.amqp.codec import decode_whole, encode
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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
from twinbus.core.units import datetime_from_ms, ms_from_datetime, time_from_iso

ENCODED: Final = "amqp"
_NAN: Final = encode(float("nan"))
# What datetime can express: the years 1 to 9999.
_EARLIEST_MS: Final = -62_135_596_800_000
_LATEST_MS: Final = 253_402_300_799_999


def _boolean_text(value: bool) -> str:
    return "true" if value else "false"


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("it is true or false")
    return text == "true"


def _base64_text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _time_text(value: int) -> str:
    return datetime_from_ms(value).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time(text: str) -> Timestamp:
    return Timestamp(ms_from_datetime(time_from_iso(text)))


def _number(kind: Callable[[int], object]) -> Callable[[str], object]:
    return lambda text: kind(int(text))


def _decimal(kind: Callable[[bytes], object]) -> Callable[[str], object]:
    return lambda text: kind(bytes.fromhex(text))


# Name, to text, from text; by the Python type that stands for the AMQP type.
_KINDS: Final[dict[type, tuple[str, Callable[[Any], str], Callable[[str], object]]]] = {
    bool: ("boolean", _boolean_text, _boolean),
    UByte: ("ubyte", int.__repr__, _number(UByte)),
    UShort: ("ushort", int.__repr__, _number(UShort)),
    UInt: ("uint", int.__repr__, _number(UInt)),
    ULong: ("ulong", int.__repr__, _number(ULong)),
    Byte: ("byte", int.__repr__, _number(Byte)),
    Short: ("short", int.__repr__, _number(Short)),
    Int: ("int", int.__repr__, _number(Int)),
    int: ("long", int.__repr__, int),
    Float32: ("float", float.__repr__, lambda text: Float32(float(text))),
    float: ("double", float.__repr__, float),
    Timestamp: ("timestamp", _time_text, _time),
    uuid.UUID: ("uuid", str, uuid.UUID),
    bytes: ("binary", _base64_text, _base64),
    Symbol: ("symbol", str, Symbol),
    Char: ("char", str, Char),
    Decimal32: ("decimal32", bytes.hex, _decimal(Decimal32)),
    Decimal64: ("decimal64", bytes.hex, _decimal(Decimal64)),
    Decimal128: ("decimal128", bytes.hex, _decimal(Decimal128)),
}
_READERS: Final[dict[str, Callable[[str], object]]] = {
    "string": str,
    **{name: read for name, _, read in _KINDS.values()},
}
TYPE_NAMES: Final = ("null", *_READERS, ENCODED)


def to_text(value: object) -> tuple[str | None, str]:
    """The text of a value that is not a string, and the name of its AMQP type."""
    if value is None:
        return None, "null"
    known = _KINDS.get(type(value))
    if known is None or not _has_text(value):
        return _base64_text(encode(value)), ENCODED
    name, write, _ = known
    return write(value), name


def _has_text(value: object) -> bool:
    if isinstance(value, Timestamp):
        return _EARLIEST_MS <= value <= _LATEST_MS
    # There are many NaNs, and text knows one.
    return not isinstance(value, float) or value == value or encode(float(value)) == _NAN


def encode_text(text: str | None, type_name: str) -> bytes:
    """The encoded value that text and type name stand for; ValueError if there is none."""
    if type_name == "null":
        return encode(None)
    if text is None:
        raise ValueError(f"its value is null and its type is '{type_name}': write 'null' as type")
    try:
        if type_name == ENCODED:
            raw = _base64(text)
            decode_whole(raw)
            return raw
        return encode(_READERS[type_name](text))
    except KeyError:
        raise ValueError(f"'{type_name}' is none of {', '.join(TYPE_NAMES)}") from None
    except (ValueError, OverflowError, TypeError, struct.error, binascii.Error, DecodeError) as why:
        raise ValueError(f"'{text}' is no {type_name}: {why}") from None
