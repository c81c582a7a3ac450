"""Messages set aside by deferring them (L3), against a broker that is a list of answers."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.client import Refused
from twinbus.core import errors
from twinbus.spark.defer import DeferredEpochs, Held
from twinbus.spark.line import Line
from twinbus.spark.options import ReadOptions


class Narrow:
    """A line to a broker whose answers hold so many messages."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.given: list[int] = []

    def ask(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        numbers = body["sequence-numbers"]
        if len(numbers) > self._count_max:
            raise Refused(errors.MESSAGE_TOO_LARGE.condition, "Ask for fewer at once.")
        self.given += numbers
        return {"messages": [{} for _ in numbers]}


def epochs(line: Any, numbers: list[int]) -> DeferredEpochs:
    narrow: Line = line
    made = DeferredEpochs(narrow, ReadOptions("", "q"))
    made._held = {1: Held(numbers)}
    return made


def test_l3_what_is_too_much_for_one_answer_is_fetched_in_parts() -> None:
    line = Narrow(3)
    epochs(line, [*range(1, 121)]).settle(1)
    assert line.given == [*range(1, 121)]


def test_l3_one_message_that_is_too_much_is_told() -> None:
    with pytest.raises(Refused):
        epochs(Narrow(0), [1, 2]).settle(1)
