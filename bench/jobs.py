"""The batch jobs over captures of one and of ten million rows: seconds, and how they grow.

Enters: the sizes. Leaves: a budget line for each job. The captures are made up once and kept
in the directory for temporary files. Wall time is what a user waits for after the session has
started; processor time, of the JVM and the Python workers together, is what a busy machine
does not change much.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench import processes
from bench.report import Budget
from tests.spark.jobs import synthetic
from twinbus.spark.jobs.capture_frames import letting_go, read_capture
from twinbus.spark.jobs.catalogue import JOBS, run
from twinbus.spark.session import session

MEMORY = "2g"
WARM_UP_ROWS = 100_000
SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Run:
    rows: int
    seconds: float
    cpu_seconds: float


def run_all(small: int, large: int, only: str) -> Iterator[Budget]:
    """Each job at both sizes, in one session of local[2] with a heap of `MEMORY`."""
    captures = [capture(rows) for rows in (WARM_UP_ROWS, small, large)]
    spark = session("bench jobs", "local[2]", memory=MEMORY)
    try:
        for job in JOBS:
            if only in job:
                _, first, second = (_measure(spark, job, *one) for one in captures)
                yield from _budgets(job, first, second)
    finally:
        spark.stop()


def capture(rows: int) -> tuple[Path, int]:
    """A made-up capture of about so many rows; one that is there already is used again."""
    root = Path(tempfile.gettempdir()) / "twinbus-bench-jobs" / str(rows)
    if not (root / "_done").exists():
        synthetic.generate(root, rows)
        (root / "_done").touch()
    return root, rows


def _measure(spark: SparkSession, job: str, root: Path, rows: int) -> Run:
    before, started = processes.cpu_seconds(os.getpid()), time.monotonic()
    with letting_go():
        for table in run(job, read_capture(spark, str(root))).values():
            table.collect()
    seconds = time.monotonic() - started
    return Run(rows, seconds, processes.cpu_seconds(os.getpid()) - before)


def _budgets(job: str, small: Run, large: Run) -> Iterator[Budget]:
    name = f"{job}, {large.rows:,} rows, seconds ({large.cpu_seconds:.0f} s of processor)"
    yield Budget(name, large.seconds, SECONDS_MAX, large.seconds <= SECONDS_MAX)
    growth, linear = large.cpu_seconds / small.cpu_seconds, large.rows / small.rows
    name = f"{job}, growth of processor time from {small.rows:,} rows ({small.seconds:.1f} s)"
    yield Budget(name, growth, linear, growth <= linear)
