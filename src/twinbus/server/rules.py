"""Rules as `$management` writes them: AMQP maps in, described lists out (WIRE section 8)."""

from datetime import UTC, datetime
from typing import Any

from twinbus.amqp.types import Described, Int, Timestamp, ULong
from twinbus.core.descriptions import RuleDescription
from twinbus.core.units import ms_from_datetime, time_to_iso

_RULE = ULong(0x0000013700000004)
_EMPTY_ACTION = ULong(0x0000013700000005)
_SQL_ACTION = ULong(0x0000013700000006)
_SQL_FILTER = ULong(0x1370000006)
_TRUE_FILTER = ULong(0x1370000007)
_FALSE_FILTER = ULong(0x1370000008)
_CORRELATION_FILTER = ULong(0x1370000009)
_COMPATIBILITY = Int(20)

# In the order of the described list; keys of the map use dashes.
CORRELATION_FIELDS = (
    "correlation_id", "message_id", "to", "reply_to", "label", "session_id",
    "reply_to_session_id", "content_type",
)  # fmt: skip


def from_map(name: str, given: Any) -> RuleDescription:
    """Read the rule-description map of an add-rule request."""
    rule = RuleDescription(name)
    if given.get("sql-filter") is not None:
        rule.filter = "sql"
        rule.expression = str(given["sql-filter"]["expression"])
        if rule.expression.replace(" ", "") in ("1=1", "1=0"):
            rule.filter = "true" if rule.expression.replace(" ", "") == "1=1" else "false"
    elif given.get("correlation-filter") is not None:
        correlation = given["correlation-filter"]
        rule.filter = "correlation"
        for field in CORRELATION_FIELDS:
            value = correlation.get(field.replace("_", "-"))
            if value is not None:
                rule.correlation[field] = str(value)
        for key, value in (correlation.get("properties") or {}).items():
            rule.properties[str(key)] = _typed(value)
    if given.get("sql-rule-action") is not None:
        rule.action = str(given["sql-rule-action"]["expression"])
    return rule


def to_wire(rule: RuleDescription) -> Described:
    action = (
        Described(_SQL_ACTION, [rule.action, _COMPATIBILITY])
        if rule.action
        else Described(_EMPTY_ACTION, [])
    )
    created = Timestamp(rule.created_ms)
    return Described(_RULE, [_filter_to_wire(rule), action, rule.name, created])


def _filter_to_wire(rule: RuleDescription) -> Described:
    if rule.filter == "true":
        return Described(_TRUE_FILTER, [])
    if rule.filter == "false":
        return Described(_FALSE_FILTER, [])
    if rule.filter == "sql":
        return Described(_SQL_FILTER, [rule.expression, _COMPATIBILITY])
    fields: list[object] = [rule.correlation.get(field) for field in CORRELATION_FIELDS]
    fields.append({key: _untyped(*pair) for key, pair in rule.properties.items()})
    return Described(_CORRELATION_FILTER, fields)


def _typed(value: object) -> tuple[str, str]:
    """A value as the description keeps it: its XML Schema type and its text."""
    if isinstance(value, bool):
        return "boolean", "true" if value else "false"
    if isinstance(value, Timestamp):
        return "dateTime", time_to_iso(value)
    if isinstance(value, Int):
        return "int", str(int(value))
    if isinstance(value, int):
        return "long", str(int(value))
    if isinstance(value, float):
        return "double", repr(float(value))
    return "string", str(value)


def _untyped(kind: str, text: str) -> object:
    if kind == "boolean":
        return text == "true"
    if kind in ("int", "long"):
        return _whole(kind, int(text))
    if kind == "double":
        return float(text)
    if kind == "dateTime":
        moment = datetime.fromisoformat(text)
        return Timestamp(ms_from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC)))
    return text


def _whole(kind: str, number: int) -> object:
    """The number, in a type that holds it: nothing bounds what a rule may name."""
    if kind == "int" and -(2**31) <= number < 2**31:
        return Int(number)
    if -(2**63) <= number < 2**63:
        return number
    return ULong(number) if 0 <= number < 2**64 else str(number)
