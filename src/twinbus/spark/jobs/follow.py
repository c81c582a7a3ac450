"""A job as a stream: the tables of the batch form, kept up to date as files arrive.

Enters: the roots of captures, a job, a directory. Leaves: the job's tables, written anew
after each batch of files. What is kept between batches is what `merge` gave last. It lives in
two places in turn: batch n reads the place of n - 1 and writes its own, so that a batch that
is run again after a crash finds what it found the first time. One row more says which batch it
is of, because a job may have found nothing yet. Beside it stands which captures it is of: those
of others would be added to it. Merging does not depend on order, so files may come late.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from twinbus.spark.jobs.capture_frames import letting_go, stream_capture
from twinbus.spark.jobs.catalogue import JOBS, Report, Tables

# Takes the tables of the report and the number of the batch.
Publish = Callable[[Tables, int], None]
# Null in all rows of a state but one, which has nothing else.
_BATCH: Final = "state_of_batch"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class FollowError(RuntimeError):
    """The state of a stream does not fit its checkpoint, or the captures."""


def follow(
    spark: SparkSession,
    name: str,
    roots: list[str],
    out: str,
    *,
    report: Report | None = None,
    publish: Publish | None = None,
    files_per_trigger: int | None = None,
    **trigger: Any,
) -> StreamingQuery:
    """Start following captures under `roots`. `out` gets `state`, `checkpoint` and, unless
    `publish` does something else with them, one directory of Parquet for each table.
    `trigger` is Spark's: `availableNow=True`, `processingTime="10 seconds"`. What is in `out`
    goes on with the same roots only, however they are spelled, and with what the job keeps now."""
    job = JOBS[name]
    roots = _known_roots(spark, out, roots)
    arriving = stream_capture(spark, *roots, files_per_trigger=files_per_trigger)
    _check_columns(spark, out, job.partial(arriving).columns)
    make_report = report or job.report
    deliver = publish or write_tables(out)

    def on_batch(rows: DataFrame, batch: int) -> None:
        session = rows.sparkSession
        with letting_go():
            partial = job.partial(rows)
            if batch > 0:
                partial = _state(session, out, batch - 1).unionByName(partial)
            mark = session.range(batch, batch + 1, 1, 1).toDF(_BATCH)
            state = job.merge(partial).unionByName(mark, allowMissingColumns=True)
            state.write.mode("overwrite").parquet(_place(out, batch))
            deliver(make_report(_state(session, out, batch)), batch)

    writer = arriving.writeStream.foreachBatch(on_batch).queryName(f"twinbus-{name}")
    writer = writer.option("checkpointLocation", f"{out}/checkpoint")
    return (writer.trigger(**trigger) if trigger else writer).start()


def write_tables(out: str) -> Publish:
    """Write each table as Parquet under its name, in place of the last."""

    def publish(tables: Tables, batch: int) -> None:
        for name, table in tables.items():
            table.coalesce(1).write.mode("overwrite").parquet(f"{out}/{name}")

    return publish


def _known_roots(spark: SparkSession, out: str, roots: list[str]) -> list[str]:
    """The roots as Spark is to see them: it knows a file by its path, and a directory by its
    place among the others."""
    given = sorted({root if _SCHEME.match(root) else str(Path(root).resolve()) for root in roots})
    place = f"{out}/state/roots"
    try:
        kept = sorted(row["root"] for row in spark.read.schema("root string").json(place).collect())
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        kept = []
    if kept and kept != given:
        raise FollowError(
            f"{out} holds what was found in {', '.join(kept)}, and this is about "
            f"{', '.join(given)}. Write to another directory, or remove {out} to begin anew."
        )
    if not kept:
        rows = spark.createDataFrame([(root,) for root in given], "root string")
        rows.coalesce(1).write.mode("overwrite").json(place)
    return given


def _check_columns(spark: SparkSession, out: str, columns: list[str]) -> None:
    """Refuse a state that another version kept, of which the job would not know what to make."""
    for batch in (0, 1):
        try:
            kept = spark.read.parquet(_place(out, batch)).columns
        except AnalysisException as error:
            # Nothing was kept there yet, or it was not written to the end.
            if error.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
                raise
            continue
        if {*kept} != {*columns, _BATCH}:
            raise FollowError(
                f"{out} holds what another version of this job kept, and this one cannot go on "
                f"from it. Write to another directory, or remove {out} to begin anew."
            )


def _place(out: str, batch: int) -> str:
    return f"{out}/state/{batch % 2}"


def _state(spark: SparkSession, out: str, batch: int) -> DataFrame:
    state = spark.read.parquet(_place(out, batch))
    found = state.select(F.max(_BATCH)).first() if _BATCH in state.columns else None
    if found is None or found[0] != batch:
        raise FollowError(
            f"{_place(out, batch)} does not hold the state of batch {batch}, which the "
            f"checkpoint goes on from. Remove {out} to begin anew."
        )
    return state.where(F.col(_BATCH).isNull()).drop(_BATCH)
