"""Actions (E8): what a rule changes on its own copy of a message.

Statements go in, an object with `apply` comes out. Statements run in order and each sees
what those before it did. If one fails, those before it have been done: apply an action to
a copy that can be thrown away.

SET keeps a property's type where C# would convert to it by itself: an integer set where a
double or a decimal was becomes one. Whatever can be written as a text may be set to a
system property that is one. Where the documents are silent: what is unknown sets NULL,
which clears a system property; REMOVE clears one as well.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import TypeAlias

from twinbus.filters.errors import ActionError, EvaluationError
from twinbus.filters.message import Fetch, MutableMessageView, SystemProperty
from twinbus.filters.values import MISSING, Kind, Missing, Value, from_text, kind_of, to_text

Step: TypeAlias = Callable[[MutableMessageView], None]


class Action:
    """Compiled SET and REMOVE statements."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def apply(self, message: MutableMessageView) -> None:
        """Change the message; ActionError if that cannot be done (D3)."""
        try:
            for step in self._steps:
                step(message)
        except EvaluationError as error:
            raise ActionError(str(error)) from None


def sql_action(expression: str, parameters: Mapping[str, Value] | None = None) -> Action:
    """Make an action from its statements; FilterError says what is wrong and where."""
    from twinbus.filters.sql import compile_action  # slow to import: see there

    return Action(compile_action(expression, parameters))


def set_user(name: str, fetch: Fetch) -> Step:
    """`SET name = …`; the name keeps its case."""
    folded = name.casefold()

    def step(message: MutableMessageView) -> None:
        value = fetch(message)
        message.set_user(name, _widened(value, message.user(folded)))

    return step


def remove_user(name: str) -> Step:
    """`REMOVE name`."""
    folded = name.casefold()
    return lambda message: message.remove_user(folded)


def set_system(row: SystemProperty, fetch: Fetch) -> Step:
    """`SET sys.Name = …`."""
    return lambda message: message.set_system(row.name, _system_value(row, fetch(message)))


def _widened(value: Value | Missing, existing: Value | Missing) -> Value:
    if value is MISSING:
        return None
    if type(value) is int:
        if isinstance(existing, float):
            return float(value)
        if isinstance(existing, Decimal):
            return Decimal(value)
    return value


def _system_value(row: SystemProperty, value: Value | Missing) -> Value:
    """Give the value in the type that the property has."""
    if value is None or value is MISSING:
        if row.required:
            raise EvaluationError(f"System property {row.name} cannot be NULL.")
        return None
    if row.kind is Kind.TEXT:
        value = to_text(value)
        if len(value) > row.chars_max:
            raise EvaluationError(
                f"System property {row.name} may have at most {row.chars_max} characters."
            )
        return value
    if isinstance(value, str):
        value = from_text(value, row.kind)
    if kind_of(value) is not row.kind:
        raise EvaluationError(f"System property {row.name} needs {row.kind.value}.")
    if isinstance(value, timedelta) and value < timedelta():
        raise EvaluationError(f"System property {row.name} cannot be negative.")
    return value
