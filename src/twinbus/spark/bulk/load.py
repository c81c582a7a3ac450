"""Sends the messages of Parquet files to a queue or topic (L4).

The files are those of `export`, or any others with a column `body`. A message keeps its id; it
gets a new sequence number, and its time to live begins anew. Run again after a failure, a
target with duplicate detection has every message once.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from twinbus.spark import schema
from twinbus.spark.source import NAME, register


def run(spark: SparkSession, directory: str, connection_string: str, entity: str) -> int:
    """Send everything in a directory, in the order of sequence numbers; gives how many."""
    register(spark)
    messages = spark.read.parquet(directory)
    if "sequence_number" in messages.columns:
        messages = messages.sort("sequence_number")
    settable = [name for name in messages.columns if name not in schema.READ_ONLY]
    writer = messages.select(*settable).write.format(NAME).mode("append")
    writer.option("connectionString", connection_string).option("entity", entity).save()
    return messages.count()
