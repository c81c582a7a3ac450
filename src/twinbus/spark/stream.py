"""Stream reads (L3): set aside at planning, read without locks, settle once committed.

A broker is not replayable, and nothing passes from the tasks that read to the driver that
commits. So each micro-batch is an *epoch*: a fixed set of messages that the broker keeps for
this consumer. Spark's offset log says which epoch a batch is and is the only state. No lock is
held while a batch runs, however long it takes; retried and speculative tasks do no harm.

Spark's calls go in; offsets, partitions and Arrow batches leave. `docs/spark.md` tells what
happens at every crash.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from twinbus.spark.defer import DeferredEpochs, without_marks
from twinbus.spark.epochs import Epochs, ReservedEpochs
from twinbus.spark.options import DEFER, SEQUENCE_MAX, ReadOptions
from twinbus.spark.ranges import Ranges
from twinbus.spark.reading import Pages, Slice, last_sequence_number, line_to

# An offset is written to the checkpoint for every batch: it must not grow with the queue's gaps.
OFFSET_RANGES_MAX = 64
_ALL = 2**31 - 1
# Spark asks a source that has nothing a hundred times a second.
_IDLE_PAUSE_S = 0.2

Offset = dict[str, Any]
_log = logging.getLogger("twinbus.spark")


class ServiceBusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._line = line_to(options)
        self._epochs: Epochs = (
            DeferredEpochs(self._line, options)
            if options.mode == DEFER
            else ReservedEpochs(self._line, options.consumer)
        )
        self._settled = 0
        self._begun: dict[int, Ranges] = {}
        self._last_number = 1
        #: The last message that is to be read: under Trigger.AvailableNow there is one.
        self._number_max = SEQUENCE_MAX
        self._idle_until_s = 0.0

    # --- planning, on the driver ------------------------------------------------------

    def initialOffset(self) -> Offset:
        """Begin with the lowest epoch that is outstanding: a start that got no further than
        planning left one."""
        return _offset(self._epochs.settled(), Ranges())

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.messages_max)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Settle what is committed, and set the next messages aside.

        Spark asks only once its commit log holds `start`, also after a restart. That makes it
        the right place to settle: a crash inside `commit` is not followed by another one.
        """
        epoch = int(start["epoch"])
        self._settle(epoch)
        time.sleep(max(0.0, self._idle_until_s - time.monotonic()))
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else _ALL
        ranges = self._epochs.take(epoch + 1, count, self._number_max)
        if not ranges:
            self._idle_until_s = time.monotonic() + _IDLE_PAUSE_S
            return start
        return _offset(epoch + 1, ranges)

    def prepareForTriggerAvailableNow(self) -> None:
        """What counts as available is what has come by now."""
        self._number_max = self._newest()

    def reportLatestOffset(self) -> Offset | None:
        """For the progress report: the newest message, of whatever state."""
        return {"sequence_number": self._newest()}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        pieces: list[InputPartition] = []
        for epoch in range(int(start["epoch"]) + 1, int(end["epoch"]) + 1):
            ranges = self._begin(epoch)
            if epoch == end["epoch"] and ranges:
                self._check_same(end, ranges)
            pieces += [Slice(piece) for piece in ranges.split(self._options.partitions)]
        return pieces or [Slice(Ranges())]

    def commit(self, end: Offset) -> None:
        self._settle(int(end["epoch"]))

    def stop(self) -> None:
        self._epochs.close()

    # --- reading, in a task -----------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        with line_to(self._options) as line:
            states = (self._epochs.state,)
            pages = Pages(line, include_body=self._options.include_body, states=states)
            for batch in pages.exactly(partition.ranges):
                yield without_marks(batch) if self._options.mode == DEFER else batch

    # ----------------------------------------------------------------------------------

    def _settle(self, epoch: int) -> None:
        if epoch > self._settled:
            self._epochs.settle(epoch)
            self._settled = epoch

    def _begin(self, epoch: int) -> Ranges:
        """Count an attempt, once: Spark plans a batch anew for every action on it, and a batch
        that fails ends the query and this reader with it."""
        options = self._options
        if epoch not in self._begun:
            self._begun = {epoch: self._epochs.begin(epoch, options.failures_max)}
            if not self._begun[epoch]:
                _log.error(
                    "Epoch %d of consumer '%s' on '%s' failed %d times: its messages are in the "
                    "dead-letter queue.",
                    epoch, options.consumer, options.entity, options.failures_max,
                )  # fmt: skip
        return self._begun[epoch]

    def _newest(self) -> int:
        self._last_number = last_sequence_number(self._line, self._last_number)
        return self._last_number

    def _check_same(self, end: Offset, ranges: Ranges) -> None:
        """The checkpoint must speak of the messages that the broker keeps for the epoch."""
        noted = Ranges.from_flat([number for pair in end["ranges"] for number in pair])
        if len(ranges) != end["messages"] or ranges.without(noted):
            raise RuntimeError(
                f"The checkpoint and the broker differ: of epoch {end['epoch']} the checkpoint "
                f"knows {end['messages']} messages ({noted}), the broker keeps {len(ranges)} "
                f"({ranges}) for consumer '{self._options.consumer}' on '{self._options.entity}'. "
                "Is that name used by another query, or the checkpoint an old copy? Give each "
                "query a name of its own, or release what is held (`twinbus reservations "
                "release`) and begin a new checkpoint."
            )


def _offset(epoch: int, ranges: Ranges) -> Offset:
    """The ranges of a scattered set are joined: they hold the set, the broker knows it exactly."""
    pairs = ranges.cover(OFFSET_RANGES_MAX).pairs
    return {"epoch": epoch, "messages": len(ranges), "ranges": [list(pair) for pair in pairs]}
