"""Reads messages in pages and in parallel, without locks and without settling.

Enters: options and ranges of sequence numbers. Leaves: Arrow batches. On this broker pages come
by `twinbus:read`; any other Service Bus is browsed by peek.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from twinbus.amqp.types import Int
from twinbus.forms.message_form import sequence_number
from twinbus.spark.line import Line, UnknownOperationError
from twinbus.spark.messages import to_batch
from twinbus.spark.options import SEQUENCE_MAX, ReadOptions
from twinbus.spark.ranges import Ranges

PEEK = "com.microsoft:peek-message"
READ = "twinbus:read"
PAGE_BYTES = 4 * 1024 * 1024
# What Azure gives at most for one peek.
_PEEK_COUNT = 250


class MessagesGoneError(Exception):
    """Messages that were set aside for a consumer are not there any more."""


@dataclass
class Slice(InputPartition):
    """What one task reads."""

    ranges: Ranges


class ServiceBusReader(DataSourceReader):
    """What is there when the read is planned: one piece of the sequence numbers a task."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with line_to(options) as line:
            low = first_at_or_after(line, options.from_sequence)
            if low == 0 or low > options.to_sequence:
                return [Slice(Ranges())]
            high = min(last_sequence_number(line, low), options.to_sequence)
        return [Slice(piece) for piece in Ranges(((low, high),)).split(options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        options = self._options
        with line_to(options) as line:
            pages = Pages(line, include_body=options.include_body, states=options.states)
            for low, high in partition.ranges.pairs:
                for batch in pages.all(low, high):
                    yield _in_time(batch, options)


class Pages:
    """Reads the messages of an entity in order, some at a time."""

    def __init__(self, line: Line, *, include_body: bool, states: tuple[str, ...] = ()) -> None:
        self._line = line
        self._include_body = include_body
        self._states = states
        self._peeks = False

    def page(self, low: int, high: int) -> pa.RecordBatch | None:
        """Give the next messages from `low` to `high`, or None when there are none."""
        if not self._peeks:
            try:
                return self._read(low, high)
            except UnknownOperationError:
                self._peeks = True
        return self._peek(low, high)

    def all(self, low: int, high: int) -> Iterator[pa.RecordBatch]:
        while low <= high:
            batch = self.page(low, high)
            if batch is None:
                return
            yield batch
            low = _last(batch) + 1

    def exactly(self, wanted: Ranges) -> Iterator[pa.RecordBatch]:
        """Give these messages and no others; one that is not there is an error."""
        left = wanted
        while left:
            batch = self.page(left.low, left.high)
            last = left.high if batch is None else _last(batch)
            due = left.between(left.low, last)
            kept = None if batch is None else batch.filter(pa.array(due.mask(_numbers(batch))))
            found = 0 if kept is None else kept.num_rows
            if found != len(due):
                seen = Ranges() if kept is None else Ranges.from_numbers(_numbers(kept))
                raise MessagesGoneError(
                    f"{len(due) - found} messages of '{self._line.entity}' that were set aside "
                    f"are gone: sequence numbers {due.without(seen)}. Somebody deleted them; to "
                    "go on without them, release what is left and begin a new checkpoint."
                )
            yield kept
            left = left.between(last + 1, left.high)

    def _read(self, low: int, high: int) -> pa.RecordBatch | None:
        body: dict[str, Any] = {"from": low, "to": high, "byte-count": PAGE_BYTES}
        if self._states:
            body["states"] = list(self._states)
        if not self._include_body:
            body["omit-message-body"] = True
        messages = self._line.ask_own(READ, body).get("messages")
        return to_batch(messages, include_body=self._include_body) if messages else None

    def _peek(self, low: int, high: int) -> pa.RecordBatch | None:
        while low <= high:
            messages = peek(self._line, low, _PEEK_COUNT)
            if not messages:
                return None
            batch = to_batch(messages, include_body=self._include_body)
            low = _last(batch) + 1
            kept = batch.filter(pc.less_equal(batch["sequence_number"], high))
            if self._states:
                kept = kept.filter(pc.is_in(kept["state"], pa.array(self._states)))
            if kept.num_rows:
                return kept
        return None


def line_to(options: ReadOptions) -> Line:
    return Line(options.connection_string, options.entity, f"spark-{options.consumer or 'read'}")


def peek(line: Line, low: int, count: int) -> list[bytes]:
    """Browse, as every Service Bus can."""
    body = {"from-sequence-number": low, "message-count": Int(count)}
    return [found["message"] for found in line.ask(PEEK, body).get("messages", [])]


def first_at_or_after(line: Line, low: int) -> int:
    """Give the first sequence number from `low` on, or 0."""
    messages = peek(line, low, 1)
    return sequence_number(messages[0]) if messages else 0


def last_sequence_number(line: Line, known: int) -> int:
    """Find the highest sequence number, given one that is not higher.

    No Service Bus tells it; a search that doubles its steps and then halves them needs some
    dozens of peeks for the first time, and one when nothing has come since.
    """
    step = 1
    while step and known < SEQUENCE_MAX:
        found = first_at_or_after(line, min(known + step, SEQUENCE_MAX))
        if found:
            known, step = found, 2 * step
        else:
            step //= 2
    return known


def _numbers(batch: pa.RecordBatch) -> Any:
    return np.asarray(batch["sequence_number"])


def _last(batch: pa.RecordBatch) -> int:
    return int(_numbers(batch)[-1])


def _in_time(batch: pa.RecordBatch, options: ReadOptions) -> pa.RecordBatch:
    """Keep what was enqueued from the one time on and before the other."""
    time = batch["enqueued_ts"]
    if options.from_time is not None:
        batch = batch.filter(pc.greater_equal(time, pa.scalar(options.from_time, time.type)))
        time = batch["enqueued_ts"]
    if options.to_time is not None:
        batch = batch.filter(pc.less(time, pa.scalar(options.to_time, time.type)))
    return batch
