"""Sends the messages of Parquet files to a queue or topic (L4).

The files are those of `export`, or any others with a column `body`; columns that no message has
are left out. A message keeps its id; it gets a new sequence number, and its time to live begins
anew. Run again after a failure, a target with duplicate detection has every message once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark.sql import SparkSession

from twinbus.spark import schema
from twinbus.spark.source import NAME, register

log = logging.getLogger(__name__)


def run(
    spark: SparkSession,
    directory: str,
    connection_string: str,
    entity: str,
    remark: Callable[[str], object] = log.warning,
) -> int:
    """Send everything in a directory, in the order of sequence numbers; gives how many.

    `remark` is told, in one line, which columns are left out, before anything is sent.
    """
    register(spark)
    messages = spark.read.parquet(directory)
    if "sequence_number" in messages.columns:
        messages = messages.sort("sequence_number")
    unknown = [name for name in messages.columns if name not in schema.NAMES]
    if unknown:
        remark(f"Left out, because no message has such columns: {', '.join(unknown)}")
    left_out = {*unknown, *schema.READ_ONLY}
    settable = [name for name in messages.columns if name not in left_out]
    writer = messages.select(*settable).write.format(NAME).mode("append")
    writer.option("connectionString", connection_string).option("entity", entity).save()
    return messages.count()
