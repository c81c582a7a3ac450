"""Runs a job over captures and leaves its report: tables as Parquet, and a page.

Enters: a session, the job's name, where captures are. Leaves: `<out>/<job>/<table>/` for each
table, `<out>/<job>/report.html`, and the rows that are shown. The one module of this package
that needs Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from twinbus.spark.jobs import catalogue, cost, failovers
from twinbus.spark.jobs.capture_frames import read_capture
from twinbus.spark.report import pages
from twinbus.spark.report.page import FirstRows
from twinbus.spark.tariff import load_tariff

#: Rows of one table that are shown at most; the Parquet files have them all.
ROWS_MAX: Final = 10_000

Found = dict[str, FirstRows]


@dataclass(frozen=True, slots=True)
class Sources:
    """What a job reads: captures, and what else a user has for it."""

    captures: Sequence[str]
    #: Files of pairs' events, for failovers.
    events: Sequence[str] = ()
    #: Prices, for cost; None for those that come with the package.
    tariff: Path | None = None
    #: What the prediction of an idle syphon's calls assumes, for cost (P11, C3).
    backlog_queues: int = cost.BACKLOG_QUEUES
    poll_seconds: float = cost.POLL_SECONDS


def settings(job: str, sources: Sources) -> catalogue.Report | None:
    """The job's report with what the user gave for it; None where that is nothing."""
    if job == "cost":
        return partial(
            cost.report,
            tariff=load_tariff(sources.tariff),
            queues=sources.backlog_queues,
            poll_seconds=sources.poll_seconds,
        )
    if job == "failovers":
        return partial(_with_events, sources.events)
    return None


def _with_events(paths: Sequence[str], merged: DataFrame) -> dict[str, DataFrame]:
    # Read for each report anew: while one follows, the files grow.
    return failovers.report(merged, failovers.read_events(merged.sparkSession, *paths))


def compute(session: SparkSession, job: str, sources: Sources) -> dict[str, DataFrame]:
    """The job's tables, from everything that is captured now."""
    rows = read_capture(session, *sources.captures)
    return catalogue.run(job, rows, settings(job, sources))


def write(job: str, tables: dict[str, DataFrame], out: Path) -> Found:
    """Compute the tables straight into their files; give back what is shown of them."""
    directory = out.absolute() / job
    found = {name: _write(table, str(directory / name)) for name, table in tables.items()}
    directory.mkdir(parents=True, exist_ok=True)
    page(job, out).write_text(pages.render(job, found, datetime.now(UTC)), encoding="utf-8")
    return found


def page(job: str, out: Path) -> Path:
    return out / job / "report.html"


def is_clean(job: str, found: Found) -> bool:
    """Whether all is well; only an audit can say that it is not. Nothing at all proves nothing."""
    return job != "audit" or found["verdict"][0]["verdict"] == "clean"


def was_clean(job: str, out: Path) -> bool:
    """The same of the report that was written last; none, or one cut short, proves nothing."""
    if job != "audit":
        return True
    try:
        found = [pq.ParquetFile(file).read() for file in (out / job / "verdict").glob("*.parquet")]
    except pa.ArrowInvalid:
        return False
    return [row["verdict"] for table in found for row in table.to_pylist()] == ["clean"]


def _write(table: DataFrame, path: str) -> FirstRows:
    table.coalesce(1).write.mode("overwrite").parquet(path)
    written = table.sparkSession.read.parquet(path)
    # Through Arrow, because there a time has its zone.
    rows = written.limit(ROWS_MAX).toArrow().to_pylist()
    return FirstRows(rows, written.count() if len(rows) == ROWS_MAX else len(rows))
