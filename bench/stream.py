"""A stream from queue to queue through Spark: how many messages a second, and what limits it.

Enters: the broker's form, how many messages, how many in a batch. Leaves: a table with the
rate of the warm batches, where a batch's time goes, and whose processor time it was. Both
queues are on one broker; broker, JVM and Python workers share the machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from rich.table import Table

from bench import processes, twinbus
from tests.support.broker import Broker
from twinbus.client import Client
from twinbus.spark.messages import to_messages
from twinbus.spark.session import session
from twinbus.spark.source import register

SOURCE, TARGET = "source", "target"
BODY = b"x" * 1024
ROWS = 10_000
#: The first batch warms the JVM and starts the workers.
COLD = 1
GOAL = 20_000
CORES = 2


def run(form: str, count: int, batch: int) -> Table:
    table = Table(title=f"stream, broker {form}, {batch:,} messages a batch, local[2]")
    table.add_column("what")
    table.add_column("value", justify="right")
    queues = {SOURCE: twinbus.PROPERTIES, TARGET: twinbus.PROPERTIES}
    with (
        tempfile.TemporaryDirectory(prefix="bench-stream-") as directory,
        Broker(Path(directory), queues, form) as live,
    ):
        _fill(live, count)
        spark = session("bench stream", "local[2]")
        register(spark)
        try:
            query = _copy(spark, live, batch, Path(directory))
            while query.isActive and not _done(query):
                time.sleep(0.05)
            before, rows_before = _cpu_s(live, spark), sum(_done(query))
            query.awaitTermination()
            after = _cpu_s(live, spark)
            progress = [one for one in query.recentProgress if one["numInputRows"]]
        finally:
            spark.stop()
    rows = count - rows_before
    cpu_us = {name: (after[name] - before[name]) / rows * 1e6 for name in after}
    for line in _lines(progress, cpu_us):
        table.add_row(*line)
    return table


def _fill(live: Broker, count: int) -> None:
    rows = pa.RecordBatch.from_pydict({"body": [BODY] * ROWS})
    with Client.connect(live.connection_string) as client:
        sender = client.sender(SOURCE)
        for start in range(0, count, ROWS):
            some = rows.slice(0, min(ROWS, count - start))
            sender.send(to_messages(some, lambda row, start=start: f"bench-{start + row}"))
        sender.flush()


def _copy(spark: SparkSession, live: Broker, batch: int, directory: Path) -> StreamingQuery:
    rows = (
        spark.readStream.format("servicebus")
        .option("connectionString", live.connection_string)
        .option("entity", SOURCE)
        .option("consumer", "bench")
        .option("maxMessagesPerTrigger", str(batch))
        .option("partitions", "2")
        .load()
    )
    return (
        rows.writeStream.format("servicebus")
        .option("connectionString", live.connection_string)
        .option("entity", TARGET)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def _done(query: StreamingQuery) -> list[int]:
    """The sizes of the batches that are done."""
    return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]


def _cpu_s(live: Broker, spark: SparkSession) -> dict[str, float]:
    """Processor time of the broker, of the JVM and of its Python workers."""
    jvm: Any = spark._jvm
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    whole, alone = processes.cpu_seconds(pid), processes.own_cpu_seconds(pid)
    broker = processes.cpu_seconds(live.pid)
    return {"broker": broker, "JVM": alone, "Python workers": whole - alone}


def _lines(progress: list[dict[str, Any]], cpu_us: dict[str, float]) -> Iterator[tuple[str, str]]:
    warm = progress[COLD:]
    rows = sum(one["numInputRows"] for one in warm)
    spent_ms = sum(one["durationMs"]["triggerExecution"] for one in warm)
    rate = rows / spent_ms * 1000
    yield "messages/s, warm batches", f"{rate:,.0f} ({rate / GOAL:.0%} of {GOAL:,})"
    yield "first batch, with warming up", f"{progress[0]['durationMs']['triggerExecution']} ms"
    for step in sorted(warm[0]["durationMs"]):
        taken_ms = sum(one["durationMs"].get(step, 0) for one in warm)
        yield f"a batch's time: {step}", f"{taken_ms / len(warm):,.0f} ms"
    for name, each_us in cpu_us.items():
        yield f"processor time of the {name}, warm", f"{each_us:.1f} µs/message"
    ceiling = CORES / sum(cpu_us.values()) * 1e6
    yield f"messages/s if {CORES} cores did nothing else", f"{ceiling:,.0f}"
