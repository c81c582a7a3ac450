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
    DECIMALS,
    TYPE_NAMES,
    WHOLE_NUMBERS,
    Char,
    Float32,
    Symbol,
    Timestamp,
)
from twinbus.core.units import ms_from_datetime, time_from_iso
from twinbus.forms.values import time_to_json

ENCODED: Final = "amqp"
_NAN: Final = encode(float("nan"))


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


def _time(text: str) -> Timestamp:
    return Timestamp(ms_from_datetime(time_from_iso(text)))


def _number(kind: Callable[[int], object]) -> Callable[[str], object]:
    return lambda text: kind(int(text))


def _decimal(kind: Callable[[bytes], object]) -> Callable[[str], object]:
    return lambda text: kind(bytes.fromhex(text))


# To text, and from text; by the Python type that stands for the AMQP type.
_WAYS: Final[dict[type, tuple[Callable[[Any], str], Callable[[str], object]]]] = {
    str: (str, str),
    bool: (_boolean_text, _boolean),
    **{kind: (int.__repr__, _number(kind)) for kind in WHOLE_NUMBERS},
    Float32: (float.__repr__, lambda text: Float32(float(text))),
    float: (float.__repr__, float),
    Timestamp: (lambda at: str(time_to_json(at)), _time),
    uuid.UUID: (str, uuid.UUID),
    bytes: (_base64_text, _base64),
    Symbol: (str, Symbol),
    Char: (str, Char),
    **{kind: (bytes.hex, _decimal(kind)) for kind in DECIMALS},
}
_READERS: Final = {TYPE_NAMES[kind]: read for kind, (_, read) in _WAYS.items()}
KNOWN_TYPES: Final = ("null", *_READERS, ENCODED)


def to_text(value: object) -> tuple[str | None, str]:
    """The text of a value and the name of its AMQP type."""
    if value is None:
        return None, "null"
    kind = type(value)
    if kind not in _WAYS or not _has_text(value):
        return _base64_text(encode(value)), ENCODED
    write, _ = _WAYS[kind]
    return write(value), TYPE_NAMES[kind]


def _has_text(value: object) -> bool:
    if isinstance(value, Timestamp):
        return isinstance(time_to_json(value), str)
    if isinstance(value, Char):
        return not value.is_half
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
        raise ValueError(f"'{type_name}' is none of {', '.join(KNOWN_TYPES)}") from None
    except (ValueError, OverflowError, TypeError, struct.error, binascii.Error, DecodeError) as why:
        raise ValueError(f"'{text}' is no {type_name}: {why}") from None
