"""A property as it is typed on the command line: NAME=VALUE, or NAME:TYPE=VALUE."""

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from twinbus.amqp.types import Int, Timestamp
from twinbus.cli.failures import USAGE, CommandError
from twinbus.core.units import ms_from_datetime


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.casefold()]


def _whole(bits: int, kind: Callable[[int], object]) -> Callable[[str], object]:
    def read(text: str) -> object:
        number = int(text)
        if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            raise ValueError("too large")
        return kind(number)

    return read


_TYPES: dict[str, Callable[[str], object]] = {
    "string": str,
    "long": _whole(64, int),
    "int": _whole(32, Int),
    "double": float,
    "bool": _boolean,
    "uuid": UUID,
    "time": lambda text: Timestamp(ms_from_datetime(datetime.fromisoformat(text))),
}


def property_value(text: str) -> tuple[str, object]:
    """Name and value; without a type it is a string."""
    name, separator, value = text.partition("=")
    name, _, kind = name.partition(":")
    reader = _TYPES.get(kind or "string")
    if not separator or not name or reader is None:
        raise CommandError(
            f"--property {text}: use NAME=VALUE or NAME:TYPE=VALUE with one of {', '.join(_TYPES)}",
            USAGE,
        )
    try:
        return name, reader(value)
    except (ValueError, KeyError, OverflowError) as error:
        raise CommandError(f"--property {text}: '{value}' is no {kind}", USAGE) from error
