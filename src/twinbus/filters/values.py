"""The values of properties: how they compare, add up and turn into one another.

Values go in, a value or a truth value comes out; None is NULL and unknown alike. The rules
are C#'s implicit conversions, as the service documents them: an integer meets a double as
a double, integers divide towards zero and keep to 64 bits, `+` joins texts, nothing else is
converted. Where the documents are silent:

- Unlike kinds are neither equal nor unequal: the comparison is unknown. A publisher that
  sends text where another sends a number is not matched, and fills no dead-letter queue.
- A text that meets a time, a duration or a GUID is read as one (ISO 8601), since the
  language has no constants for them. One that cannot be read gives unknown.
- NULL behaves as unknown. Only numbers, texts, times and durations have an order; texts
  have the order of their code points, and case counts.
- A sum that leaves 64 bits, any division by zero, arithmetic between kinds that have none
  and a text longer than a property may be are errors.
"""

import math
import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

from twinbus.core.units import duration_from_iso, duration_to_iso
from twinbus.filters.errors import EvaluationError, FilterError

Value: TypeAlias = str | int | float | bool | bytes | UUID | datetime | timedelta | Decimal | None
Relation: TypeAlias = Callable[[Any, Any], bool]

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**63 - 1
# The service's bound on one property.
TEXT_CHARS_MAX = 32 * 1024


class Missing(Enum):
    """The type of MISSING: a property that is absent, as against one that is NULL."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


class Kind(Enum):
    """What a value is, in the words that error messages use."""

    UNKNOWN = "nothing"
    BOOLEAN = "a boolean"
    NUMBER = "a number"
    TEXT = "a text"
    MOMENT = "a time"
    DURATION = "a duration"
    GUID = "a GUID"
    BINARY = "binary data"
    OTHER = "a value of another type"


# bool before int, since every bool is an int.
_KINDS: dict[type, Kind] = {
    type(None): Kind.UNKNOWN,
    Missing: Kind.UNKNOWN,
    bool: Kind.BOOLEAN,
    str: Kind.TEXT,
    int: Kind.NUMBER,
    float: Kind.NUMBER,
    Decimal: Kind.NUMBER,
    datetime: Kind.MOMENT,
    timedelta: Kind.DURATION,
    UUID: Kind.GUID,
    bytes: Kind.BINARY,
}
_ORDERED = {Kind.NUMBER, Kind.TEXT, Kind.MOMENT, Kind.DURATION}

RELATIONS: dict[str, Relation] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
#: The relation that holds when its two sides are exchanged.
MIRRORED = {"=": "=", "<>": "<>", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EQUALITIES = (operator.eq, operator.ne)

_TIME_SUMS: dict[tuple[str, Kind, Kind], Callable[[Any, Any], Value]] = {
    ("+", Kind.MOMENT, Kind.DURATION): operator.add,
    ("+", Kind.DURATION, Kind.MOMENT): operator.add,
    ("+", Kind.DURATION, Kind.DURATION): operator.add,
    ("-", Kind.MOMENT, Kind.MOMENT): operator.sub,
    ("-", Kind.MOMENT, Kind.DURATION): operator.sub,
    ("-", Kind.DURATION, Kind.DURATION): operator.sub,
}

_GUID = re.compile(r"\{?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\}?|[0-9a-f]{32}", re.IGNORECASE)


def kind_of(value: object) -> Kind:
    kind = _KINDS.get(type(value))
    if kind is not None:
        return kind
    return next((kind for base, kind in _KINDS.items() if isinstance(value, base)), Kind.OTHER)


def checked_value(name: str, value: Value) -> Value:
    """Refuse a rule's value that filters cannot use; a time without a zone is in UTC."""
    if kind_of(value) is Kind.OTHER:
        raise FilterError(f"'{name}' has a value of a type that filters cannot use.")
    return _in_utc(value) if isinstance(value, datetime) else value


def compare(relation: Relation, left: Any, right: Any) -> bool | None:
    """Tell whether a relation holds; None is unknown."""
    kind = kind_of(left)
    right_kind = kind_of(right)
    if kind is not right_kind:
        if kind is Kind.TEXT:
            kind, left = right_kind, from_text(left, right_kind)
        elif right_kind is Kind.TEXT:
            right = from_text(right, kind)
        else:
            return None
        if left is None or right is None:
            return None
    if kind is Kind.NUMBER:
        left, right = plain_number(left), plain_number(right)
        if isinstance(left, float) or isinstance(right, float):
            left, right = float(left), float(right)
    elif kind is Kind.MOMENT:
        left, right = _in_utc(left), _in_utc(right)
    elif kind is Kind.UNKNOWN or kind is Kind.OTHER:
        return None
    if kind not in _ORDERED and relation not in _EQUALITIES:
        return None
    return relation(left, right)


def plain_number(value: Any) -> Any:
    """Give a value that compares and hashes without raising.

    A decimal's NaN does neither; a float's is just unequal to everything.
    """
    return float("nan") if isinstance(value, Decimal) and value.is_nan() else value


def _in_utc(moment: datetime) -> datetime:
    # Comparing a time with a zone to one without raises.
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def from_text(text: str, kind: Kind) -> UUID | datetime | timedelta | None:
    """Read a text as a value of another kind; None where that makes no sense."""
    try:
        if kind is Kind.GUID and _GUID.fullmatch(text):
            return UUID(text)
        if kind is Kind.MOMENT:
            return _in_utc(datetime.fromisoformat(text)).astimezone(UTC)
        if kind is Kind.DURATION:
            return timedelta(milliseconds=duration_from_iso(text))
    except (ValueError, OverflowError):
        pass
    return None


def to_text(value: Value) -> str:
    """Write a value the way it would be read back."""
    kind = kind_of(value)
    if kind in (Kind.UNKNOWN, Kind.BINARY, Kind.OTHER):
        raise EvaluationError(f"Cannot write {kind.value} as a text.")
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, datetime):
        return _in_utc(value).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        milliseconds = value // timedelta(milliseconds=1)
        return ("-" if milliseconds < 0 else "") + duration_to_iso(abs(milliseconds))
    return str(value)


def arithmetic(symbol: str, left: Any, right: Any) -> Value:
    """Work out `left symbol right`; None if either side is unknown."""
    left_kind, right_kind = kind_of(left), kind_of(right)
    if left_kind is Kind.UNKNOWN or right_kind is Kind.UNKNOWN:
        return None
    try:
        if left_kind is Kind.NUMBER and right_kind is Kind.NUMBER:
            return _calculated(symbol, left, right)
        if symbol == "+" and Kind.TEXT in (left_kind, right_kind):
            return _joined(to_text(left), to_text(right))
        time_sum = _TIME_SUMS.get((symbol, left_kind, right_kind))
        if time_sum is not None:
            left, right = (_in_utc(v) if isinstance(v, datetime) else v for v in (left, right))
            return time_sum(left, right)
    except ZeroDivisionError:
        raise EvaluationError(f"Division by zero: {left} {symbol} {right}.") from None
    except (ArithmeticError, ValueError):
        raise EvaluationError(f"{left} {symbol} {right} is out of range.") from None
    raise EvaluationError(
        f"'{symbol}' cannot be applied to {left_kind.value} and {right_kind.value}."
    )


def _calculated(symbol: str, left: Any, right: Any) -> int | float | Decimal:
    if symbol in "/%" and right == 0:
        raise ZeroDivisionError
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    result: int | float | Decimal
    if symbol == "+":
        result = left + right
    elif symbol == "-":
        result = left - right
    elif symbol == "*":
        result = left * right
    elif isinstance(left, int) and isinstance(right, int):
        # C# rounds a quotient towards zero and gives a remainder the dividend's sign;
        # Python's // and % look down.
        quotient = abs(left) // abs(right)
        quotient = quotient if (left < 0) == (right < 0) else -quotient
        result = quotient if symbol == "/" else left - right * quotient
    elif symbol == "/":
        result = left / right
    else:
        result = math.fmod(left, right) if isinstance(left, float) else left % right
    if isinstance(result, int) and not INTEGER_MIN <= result <= INTEGER_MAX:
        raise OverflowError
    return result


def _joined(left: str, right: str) -> str:
    if len(left) + len(right) > TEXT_CHARS_MAX:
        raise EvaluationError(f"A text may have at most {TEXT_CHARS_MAX} characters.")
    return left + right


def signed(symbol: str, value: Any) -> Value:
    """Work out `+value` or `-value`."""
    kind = kind_of(value)
    if kind is Kind.NUMBER or kind is Kind.UNKNOWN:
        return arithmetic(symbol, 0, value)
    if kind is Kind.DURATION:
        return arithmetic(symbol, timedelta(), value)
    raise EvaluationError(f"'{symbol}' cannot be applied to {kind.value}.")
