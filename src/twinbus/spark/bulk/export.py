"""An entity's messages as Parquet files (L4); they stay where they are.

Every column of `schema.DDL` is in the files, so that `load` sends the same messages again.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from twinbus.spark.source import NAME, register


def run(spark: SparkSession, connection_string: str, entity: str, directory: str) -> int:
    """Write what is there now into a directory that does not exist yet; gives how many."""
    register(spark)
    reader = spark.read.format(NAME).option("connectionString", connection_string)
    reader.option("entity", entity).load().write.mode("errorifexists").parquet(directory)
    return spark.read.parquet(directory).count()
