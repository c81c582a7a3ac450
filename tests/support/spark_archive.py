"""Keeps Spark's classes as a JVM loads them, so that the tests' many sessions start in half
the time.

`python -m tests.support.spark_archive` starts a session, has it do a little of everything, and
lets the JVM leave its classes in `ARCHIVE` when it ends. A JVM that was told of an archive that
is not its own does without: nothing but time depends on it.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from tests.support.broker import PROJECT

ARCHIVE = PROJECT / ".stamps" / "spark.jsa"
# What spark-submit, and so every session, adds to the options of its JVM.
OPTIONS = "SPARK_SUBMIT_OPTS"
# The JVM would say on standard output, where reports go, that an archive is not its own.
_QUIET = "-Xlog:disable"


def use() -> None:
    """Let the sessions of this process, and of those it starts, use the archive if there is one."""
    if ARCHIVE.exists():
        os.environ.setdefault(OPTIONS, f"-XX:SharedArchiveFile={ARCHIVE} {_QUIET}")


def make() -> None:
    from pyspark import SparkContext
    from pyspark.sql import functions as F

    from twinbus.spark.session import session

    os.environ[OPTIONS] = f"-XX:ArchiveClassesAtExit={ARCHIVE} {_QUIET}"
    spark = session("classes", "local[2]", memory="512m", short=True)
    with tempfile.TemporaryDirectory() as directory:
        rows = spark.range(1000).withColumn("k", F.col("id") % 7)
        sums = rows.groupBy("k").agg(F.sum("id").alias("sum"), F.collect_list("id").alias("ids"))
        same = F.udf(lambda number: number, "long")
        rows.join(sums, "k").orderBy("id").select(same("id").alias("id")).write.parquet(
            f"{directory}/rows"
        )
        stream = spark.readStream.schema("id long").parquet(f"{directory}/rows")
        query = stream.writeStream.format("noop").trigger(availableNow=True)
        query.option("checkpointLocation", f"{directory}/checkpoint").start().awaitTermination()
    spark.stop()
    gateway: Any = SparkContext._gateway
    # The JVM ends with its input, and writes the archive then.
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    ARCHIVE.unlink(missing_ok=True)
    make()
