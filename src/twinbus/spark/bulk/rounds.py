"""Moves the messages of entities in rounds: set some aside, work on them in parallel, settle.

In each round the driver reserves messages, Spark's tasks read them without locks and do the
work, and every message gets a fate. Then one step in the broker ends the round: what was sent
is completed, what was not wanted returns to its place, what can never be delivered is
dead-lettered. The reservation in the broker is the only state: whoever runs the same command
again after a crash gets the unfinished round first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from twinbus.client import ConnectionLost, Refused
from twinbus.spark.line import Line, UnknownOperationError
from twinbus.spark.ranges import Ranges
from twinbus.spark.reading import first_at_or_after, last_sequence_number

SENT: Final = "sent"
RETURNED: Final = "returned"
DEAD_LETTERED: Final = "dead_lettered"

#: What tasks say: how many of an entity were sent, and each message that was not.
FATES: Final = pa.schema(
    [
        pa.field("entity", pa.string()),
        pa.field("sequence_number", pa.int64()),
        pa.field("fate", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("description", pa.string()),
    ]
)
FATES_DDL: Final = (
    "entity string, sequence_number bigint, fate string, count bigint, reason string,"
    " description string"
)
#: What tasks get: a row for each, with the ranges as first, last, first, last …
TASKS_DDL: Final = "entity string, ranges array<bigint>"

ROUND_MESSAGES: Final = 50_000
_TASK_MESSAGES: Final = 5_000
# Service Bus takes at most this many characters of reason and description.
_REASON_CHARS_MAX: Final = 4096
# Bytes that the texts of a round have together: a broker takes a request of 32 MB.
_TEXT_BYTES_MAX: Final = 20_000_000

Fate = tuple[int, str, str | None, str | None]


class NotThisBrokerError(Exception):
    """The namespace does not know reservations."""


@dataclass
class Tally:
    """What a run did so far."""

    counts: Counter[str] = field(default_factory=Counter)
    #: Why messages were not sent, and how many of them.
    reasons: Counter[str] = field(default_factory=Counter)
    #: What was said of the first message with that reason.
    examples: dict[str, str] = field(default_factory=dict)
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """What is set aside of one entity: what to work on, and what came after the run began."""

    entity: str
    epoch: int
    ranges: Ranges
    late: Ranges

    def tasks(self) -> list[tuple[str, list[int]]]:
        parts = -(-len(self.ranges) // _TASK_MESSAGES)
        pieces = self.ranges.split(max(2, parts)) if self.ranges else []
        return [(self.entity, [n for pair in piece.pairs for n in pair]) for piece in pieces]


class Holding:
    """One entity's side of a run: the epochs of one consumer, from the driver's view."""

    def __init__(self, line: Line, consumer: str) -> None:
        self._line = line
        self._consumer = consumer
        known = self._known()
        self._outstanding = sorted(int(each["epoch"]) for each in known.get("epochs", []))
        self._settled = int(known.get("settled-epoch", 0))
        # A run ends: what arrives meanwhile, perhaps by its own doing, is for the next one.
        first = first_at_or_after(line, 1)
        self._last_number = last_sequence_number(line, first) if first else 0
        self._next_number = 1

    @property
    def entity(self) -> str:
        return self._line.entity

    def reserve(self) -> Round | None:
        """The round that a run before left behind, or the next one; None at the end."""
        left_behind = bool(self._outstanding)
        epoch = self._outstanding.pop(0) if left_behind else self._settled + 1
        if not left_behind and self._next_number > self._last_number:
            return None
        answer = self._ask(
            "reserve",
            {
                "epoch": epoch,
                "message-count": ROUND_MESSAGES,
                "from-sequence-number": self._next_number,
            },
        )
        if not answer:
            return None
        taken = Ranges.from_flat(answer["ranges"])
        if not left_behind and taken:
            # What this run gives back it does not take again.
            self._next_number = taken.high + 1
        work = taken.between(0, self._last_number)
        return Round(self.entity, epoch, work, taken.without(work))

    def settle(self, held: Round, fates: Sequence[dict[str, Any]]) -> None:
        """End a round: complete all of it but what has another fate."""
        own = [fate for fate in fates if fate["entity"] == held.entity]
        accounted = sum(fate["count"] for fate in own)
        if accounted != len(held.ranges):
            # To complete what no task has told of would be to lose it.
            raise RuntimeError(
                f"The tasks told of {accounted} messages of '{held.entity}', and"
                f" {len(held.ranges)} were set aside for them: nothing is completed."
            )
        returned = [fate["sequence_number"] for fate in own if fate["fate"] == RETURNED]
        dying = [fate for fate in own if fate["fate"] == DEAD_LETTERED]
        # A reason and a description for each.
        bytes_max = _TEXT_BYTES_MAX // (2 * len(dying) or 1)
        dead = [
            {
                "sequence-number": fate["sequence_number"],
                "reason": _cut(fate["reason"], bytes_max),
                "description": _cut(fate["description"], bytes_max),
            }
            for fate in dying
        ]
        body = {"returned": returned + list(held.late.numbers()), "dead-lettered": dead}
        self._ask("settle-upto", {"epoch": held.epoch, **body})
        self._settled = held.epoch

    def release(self) -> None:
        """Put back what is set aside, so that others can have it."""
        # Refused, if nothing was ever set aside.
        with suppress(Refused):
            self._ask("release", {})

    def _known(self) -> dict[str, Any]:
        found = self._ask("reservations", {}).get("reservations", [])
        return next((each for each in found if each["consumer"] == self._consumer), {})

    def _ask(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._line.ask_own(f"twinbus:{operation}", {"consumer": self._consumer, **body})
        except UnknownOperationError as error:
            raise NotThisBrokerError(
                f"{self.entity} is not on a Twinbus broker, and bulk work needs what only that"
                f" can do ({error})"
            ) from error


def run(
    spark: SparkSession,
    holdings: Sequence[Holding],
    work: Callable[[DataFrame], DataFrame],
    on_round: Callable[[Tally], None],
) -> Tally:
    """Work until no entity has more. `work` gets the tasks of a round and gives fates.

    A failure puts back what is set aside; after a crash the next run takes it up.
    """
    tally = Tally()
    try:
        while held := [(h, each) for h in holdings if (each := h.reserve()) is not None]:
            tasks = [task for _, each in held for task in each.tasks()]
            fates: list[dict[str, Any]] = []
            if tasks:
                fates = work(spark.createDataFrame(tasks, TASKS_DDL)).toArrow().to_pylist()
            for holding, each in held:
                holding.settle(each, fates)
            _count(tally, fates)
            on_round(tally)
    except BaseException:
        # A courtesy: what stays set aside is taken up by the next run.
        with suppress(ConnectionLost):
            for holding in holdings:
                holding.release()
        raise
    return tally


def tasks_of(batch: Any) -> Iterator[tuple[str, Ranges]]:
    """What a task is to read: entities and their ranges."""
    for row in batch.to_pylist():
        yield row["entity"], Ranges.from_flat(row["ranges"])


def fates_batch(entity: str, sent: int, others: Sequence[Fate]) -> Any:
    """What a task says: so many were sent, and (number, fate, reason, description) of others."""
    rows: list[tuple[Any, ...]] = [(entity, None, SENT, sent, None, None)]
    rows += [(entity, number, fate, 1, why, text) for number, fate, why, text in others]
    return pa.RecordBatch.from_pylist(
        [dict(zip(FATES.names, row, strict=True)) for row in rows], schema=FATES
    )


def _cut(text: str | None, bytes_max: int) -> str:
    return (text or "")[:_REASON_CHARS_MAX].encode()[:bytes_max].decode(errors="ignore")


def _count(tally: Tally, fates: Sequence[dict[str, Any]]) -> None:
    tally.rounds += 1
    for fate in fates:
        tally.counts[fate["fate"]] += fate["count"]
        if fate["reason"]:
            tally.reasons[fate["reason"]] += fate["count"]
            if fate["description"]:
                tally.examples.setdefault(fate["reason"], fate["description"])
