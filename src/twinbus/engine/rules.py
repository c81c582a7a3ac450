"""A subscription's rule: its description, compiled once (E8)."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from twinbus.core import errors, names
from twinbus.core.descriptions import RuleDescription
from twinbus.core.errors import BusError
from twinbus.core.units import duration_from_iso, time_from_iso
from twinbus.engine.message import Message
from twinbus.engine.view import View
from twinbus.filters import (
    FALSE_FILTER,
    TRUE_FILTER,
    Action,
    Filter,
    FilterError,
    Value,
    correlation_filter,
    sql_action,
    sql_filter,
)


class Rule:
    def __init__(self, description: RuleDescription) -> None:
        self.description = description
        names.check_rule_name(description.name)
        try:
            self.filter: Filter = _filter(description)
            self.action: Action | None = None
            if description.action:
                self.action = sql_action(description.action, typed(description.action_parameters))
        except FilterError as error:
            raise BusError(
                errors.ARGUMENT_ERROR, f"Rule '{description.name}' cannot be made: {error}"
            ) from error

    def matches(self, view: View) -> bool:
        return self.filter.matches(view)

    def act(self, message: Message, new_id: Callable[[], UUID]) -> Message:
        """Give the copy of a message that this rule's action makes; EvaluationError if it fails."""
        assert self.action is not None
        copy = message.copy()
        self.action.apply(View(copy, new_id))
        # So that a receiver can tell the copies of one message apart.
        copy.merge_properties({"RuleName": self.description.name})
        copy.measure()
        return copy


def _filter(description: RuleDescription) -> Filter:
    if description.filter == "true":
        return TRUE_FILTER
    if description.filter == "false":
        return FALSE_FILTER
    if description.filter == "sql":
        return sql_filter(description.expression, typed(description.parameters))
    if description.filter == "correlation":
        return correlation_filter(
            **description.correlation, properties=typed(description.properties)
        )
    raise BusError(
        errors.ARGUMENT_ERROR,
        f"'{description.filter}' is no kind of filter: use true, false, sql or correlation.",
    )


def typed(values: dict[str, tuple[str, str]]) -> dict[str, Value]:
    """Turn values kept as (type, text) into Python's."""
    return {name: _typed(name, kind, text) for name, (kind, text) in values.items()}


def _typed(name: str, kind: str, text: str) -> Value:
    try:
        if kind in ("int", "long", "short", "byte", "unsignedInt", "unsignedLong"):
            return int(text)
        if kind in ("double", "float", "decimal"):
            return float(text)
        if kind == "boolean":
            return text.strip().lower() in ("true", "1")
        if kind == "dateTime":
            return time_from_iso(text)
        if kind == "duration":
            return timedelta(milliseconds=duration_from_iso(text))
        if kind == "guid":
            return UUID(text)
        return text
    except ValueError as error:
        raise BusError(
            errors.ARGUMENT_ERROR, f"The value '{text}' of '{name}' is no {kind}: {error}"
        ) from error
