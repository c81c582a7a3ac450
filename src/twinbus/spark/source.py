"""The data source `servicebus`: one call registers it, then Spark reads and writes entities.

Options go in as Spark hands them over; readers and writers leave. `docs/spark.md` lists the
options and says what is promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from twinbus.spark import schema as columns
from twinbus.spark.options import batch_options, stream_options
from twinbus.spark.reading import ServiceBusReader
from twinbus.spark.stream import ServiceBusStreamReader
from twinbus.spark.writer import ServiceBusStreamWriter, ServiceBusWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "servicebus"


class ServiceBusDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return columns.DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return ServiceBusReader(batch_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ServiceBusStreamReader(stream_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return ServiceBusWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return ServiceBusStreamWriter(schema, self.options, overwrite)


def register(spark: SparkSession) -> None:
    """Make `servicebus` known to a session, local, on a cluster or over Spark Connect."""
    spark.dataSource.register(ServiceBusDataSource)
