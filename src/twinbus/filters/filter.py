"""Filters as the engine uses them (E8): made once, asked for every message.

An expression and its parameters go in, an object with `matches` comes out. It holds no
message and may be shared. How several rules of a subscription combine is the engine's
business.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from twinbus.filters.message import MessageView, Test
from twinbus.filters.values import Value


class Filter(ABC):
    """Tells whether a message belongs to a subscription."""

    __slots__ = ()

    @abstractmethod
    def matches(self, view: MessageView) -> bool:
        """Tell whether the message matches; EvaluationError if that cannot be told (D3)."""


class ConstantFilter(Filter):
    """The true and the false filter."""

    __slots__ = ("_outcome",)

    def __init__(self, outcome: bool) -> None:
        self._outcome = outcome

    def matches(self, view: MessageView) -> bool:
        return self._outcome


TRUE_FILTER = ConstantFilter(True)
FALSE_FILTER = ConstantFilter(False)


class SqlFilter(Filter):
    """A compiled SQL expression."""

    __slots__ = ("_test",)

    def __init__(self, test: Test) -> None:
        self._test = test

    def matches(self, view: MessageView) -> bool:
        # Unknown counts as not matched.
        return self._test(view) is True


def sql_filter(expression: str, parameters: Mapping[str, Value] | None = None) -> Filter:
    """Make a filter from a SQL expression; FilterError says what is wrong with it and where.

    Parameters are named with or without their `@`; those that are not used do no harm.
    """
    from twinbus.filters.sql import compile_filter  # slow to import: see there

    return SqlFilter(compile_filter(expression, parameters))
