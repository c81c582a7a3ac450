"""The data source with points at which everything that runs the query is killed.

`STREAM_POINT` is `<consumer>:<point>`: when that query first comes to that point, every process
of the driver's session gets SIGKILL: driver, JVM, Python workers. The classes only add the
points; what they do otherwise is the product's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from twinbus.spark.options import stream_options
from twinbus.spark.source import ServiceBusDataSource
from twinbus.spark.stream import ServiceBusStreamReader
from twinbus.spark.writer import ServiceBusStreamWriter

POINT = "STREAM_POINT"
#: In the order in which a batch comes to them.
POINTS = (
    "set_aside",  # planned at the broker, not in Spark's offset log
    "logged",  # in the offset log, no task has begun
    "reading",  # a task has read part of its messages
    "sending",  # a task has sent its rows and not said so
    "sent",  # all rows are at the target, not in Spark's commit log
    "committed",  # in the commit log, not settled at the broker
    "settled",  # settled, and Spark does not know it
)


def die_at(consumer: str, point: str) -> None:
    if os.environ.get(POINT) == f"{consumer}:{point}":
        kill_session()


def kill_session() -> None:
    """SIGKILL for all of the session that this process belongs to, itself last."""
    session = os.getsid(0)
    for pid in session_members(session) - {os.getpid()}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def session_members(session: int) -> set[int]:
    members: set[int] = set()
    for entry in Path("/proc").iterdir():
        with suppress(ProcessLookupError):
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                members.add(int(entry.name))
    return members


class PointedReader(ServiceBusStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = super().latestOffset(start, limit)
        if offset != start:
            self._pass("set_aside")
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._pass("logged")
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            half = len(batch) // 2
            yield batch.slice(0, half)
            self._pass("reading")
            yield batch.slice(half)

    def commit(self, end: dict[str, Any]) -> None:
        self._pass("committed")
        super().commit(end)
        self._pass("settled")

    def _pass(self, point: str) -> None:
        die_at(self._options.consumer, point)


class PointedWriter(ServiceBusStreamWriter):
    def __init__(self, schema: StructType, options: dict[str, str], consumer: str) -> None:
        super().__init__(schema, options, False)
        self._consumer = consumer

    def write(self, iterator: Iterator[Any]) -> Any:
        written = super().write(iterator)
        die_at(self._consumer, "sending")
        return written

    def commit(self, messages: list[Any], batchId: int) -> None:
        die_at(self._consumer, "sent")
        super().commit(messages, batchId)


class PointedSource(ServiceBusDataSource):
    def streamReader(self, schema: StructType) -> ServiceBusStreamReader:
        return PointedReader(stream_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> ServiceBusStreamWriter:
        options = dict(self.options)
        return PointedWriter(schema, options, options.pop("runid"))
