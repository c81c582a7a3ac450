"""AMQP values as JSON and back, so that nothing is lost on the way, not even a type.

What JSON can say by itself stands for the AMQP type of the same name (a whole number is a
long, one with a point a double). Every other type is an object with one key, the type:
`{"int": 5}`, `{"timestamp": "2026-01-01T00:00:00.000Z"}`, `{"binary": "AAE="}`.
"""

import base64
import math
import struct
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from twinbus.amqp.types import (
    DECIMALS,
    TYPE_NAMES,
    WHOLE_NUMBERS,
    AmqpArray,
    Char,
    Described,
    Float32,
    Symbol,
    Timestamp,
)
from twinbus.core.units import datetime_from_ms, ms_from_datetime

Json = Any

_DOUBLE_HEX_DIGITS = 16
#: From here on a double does not hold every whole number.
_ROUNDED_FROM = 2**53
_PLAIN = (bool, str, int, float)


def to_json(value: object) -> Json:
    """The JSON form of any AMQP value."""
    if value is None:
        return None
    kind = type(value)
    if kind in _PLAIN and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    return tagged(value)


def tagged(value: object) -> Json:
    """The JSON form that names the type, even where JSON could do without."""
    if isinstance(value, AmqpArray):
        parts = {"code": value.code, "items": [to_json(item) for item in value]}
        if value.descriptor is not None:
            parts["descriptor"] = to_json(value.descriptor)
        return {"array": parts}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {"map": [[to_json(key), to_json(item)] for key, item in value.items()]}
    if isinstance(value, Described):
        return {"described": [to_json(value.descriptor), to_json(value.value)]}
    return {TYPE_NAMES[type(value)]: _inside(value)}


def _inside(value: object) -> Json:
    if isinstance(value, Timestamp):
        return time_to_json(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _odd_number(float(value))
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Char) and value.is_half:
        return ord(value.character)
    return str(value)


def _odd_number(value: float) -> str:
    """What JSON has no number for; a NaN other than the usual one by its bits."""
    raw = struct.pack(">d", value)
    return raw.hex() if math.isnan(value) and raw != struct.pack(">d", math.nan) else str(value)


def from_json(given: Json) -> object:
    """The AMQP value of a JSON form; ValueError says what cannot be read."""
    if isinstance(given, list):
        return [from_json(item) for item in given]
    if not isinstance(given, dict):
        return given
    if len(given) != 1:
        raise ValueError(
            f"a value that is an object has one key, its type, not {len(given)}: {', '.join(given)}"
        )
    ((tag, inside),) = given.items()
    reader = _READERS.get(tag)
    if reader is None:
        raise ValueError(f"'{tag}' is no type; known are {', '.join(sorted(_READERS))}")
    try:
        return reader(inside)
    except (TypeError, KeyError) as error:
        raise ValueError(f"this is no {tag}: {inside!r}") from error


def time_to_json(unix_ms: int) -> str | int:
    """ISO 8601 with milliseconds; a time outside of the calendar stays a number."""
    moment = datetime_from_ms(unix_ms)
    if ms_from_datetime(moment) != unix_ms:
        return int(unix_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_from_json(given: Json) -> Timestamp:
    if isinstance(given, str) and _long_number(given) is None:
        return Timestamp(ms_from_datetime(datetime.fromisoformat(given)))
    return Timestamp(_whole(given))


def _long_number(given: Json) -> int | None:
    """A long number may come as its digits, since many programs would round it."""
    if isinstance(given, str) and given.removeprefix("-").isdecimal():
        number = int(given)
        if abs(number) >= _ROUNDED_FROM:
            return number
    return None


def _whole(given: Json) -> int:
    number = _long_number(given)
    if number is not None:
        return number
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError("not a whole number")
    return given


def _read_bytes(kind: Callable[[bytes], object]) -> Callable[[Json], object]:
    return lambda given: kind(base64.b64decode(given, validate=True))


def _read_number(kind: Callable[[int], object]) -> Callable[[Json], object]:
    return lambda given: kind(_whole(given))


def _read_text(kind: Callable[[str], object]) -> Callable[[Json], object]:
    def read(given: Json) -> object:
        if not isinstance(given, str):
            raise TypeError("not a text")
        return kind(given)

    return read


def _read_char(given: Json) -> Char:
    if type(given) is int:
        return Char(chr(given))
    if not isinstance(given, str):
        raise TypeError("not a character")
    return Char(given)


def _read_boolean(given: Json) -> bool:
    if not isinstance(given, bool):
        raise TypeError("not true or false")
    return given


def _read_double(given: Json) -> float:
    if isinstance(given, str) and len(given) == _DOUBLE_HEX_DIGITS:
        (number,) = struct.unpack(">d", bytes.fromhex(given))
        return float(number)
    return float(given)


def _read_array(given: Json) -> AmqpArray:
    descriptor = from_json(given["descriptor"]) if "descriptor" in given else None
    return AmqpArray([from_json(item) for item in given["items"]], given["code"], descriptor)


def _read_described(given: Json) -> Described:
    descriptor, value = given
    return Described(from_json(descriptor), from_json(value))


def _read_map(given: Json) -> dict[object, object]:
    return {from_json(key): from_json(value) for key, value in given}


_READERS: dict[str, Callable[[Json], object]] = {
    **{TYPE_NAMES[kind]: _read_number(kind) for kind in WHOLE_NUMBERS},
    **{TYPE_NAMES[kind]: _read_bytes(kind) for kind in (bytes, *DECIMALS)},
    **{TYPE_NAMES[kind]: _read_text(kind) for kind in (str, Symbol, UUID)},
    "char": _read_char,
    "boolean": _read_boolean,
    "double": _read_double,
    "float": Float32,
    "timestamp": time_from_json,
    "array": _read_array,
    "described": _read_described,
    "map": _read_map,
}
