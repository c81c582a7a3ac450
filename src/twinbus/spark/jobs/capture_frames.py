"""Captures as DataFrames.

Enters: the directories that captures were written to. Leaves: their rows under the capture's
own schema, with the file each came from. It reads nothing itself; Spark does, when asked.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from twinbus.capture.schema import SCHEMA

# Where a row came from. Cheap to carry, dear to take apart: do that after grouping.
FILE: Final = "file"

_NAME: Final = re.compile(
    r"^(?:file:/*/)?(.*?)(?:/date=[^/]*)?/([^/]+)-(\d{20})-(\d{20})\.parquet$"
)
_SIMPLE: Final[dict[pa.DataType, T.DataType]] = {
    pa.int64(): T.LongType(),
    pa.int32(): T.IntegerType(),
    pa.string(): T.StringType(),
    pa.timestamp("us", tz="UTC"): T.TimestampType(),
}
# Spark forgets files that are older than the newest by this much; a capture is to be read
# whole, however late a file comes.
_FILE_AGE_MAX: Final = "3650d"
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_reads: Final = itertools.count()
_kept: ContextVar[list[DataFrame] | None] = ContextVar("kept", default=None)


class FileName(NamedTuple):
    """What a capture file's path says. A node is known by its name and its root, because two
    brokers may have the same name."""

    node: str
    first_lsn: int
    last_lsn: int


def parse_file_name(path: str) -> FileName | None:
    match = _NAME.match(path)
    if match is None:
        return None
    root, node, first, last = match.groups()
    slash = "/" if path.startswith("file:") else ""
    return FileName(f"{slash}{root}/{node}", int(first), int(last))


def node_of(file: Column) -> Column:
    """The node that wrote a file: `parse_file_name` as a Spark expression."""
    without_scheme = F.regexp_replace(file, "^file:/*", "/")
    return F.regexp_replace(
        without_scheme, r"(/date=[^/]*)?/([^/]+)-\d{20}-\d{20}\.parquet$", "/$2"
    )


def spark_schema() -> T.StructType:
    """The capture's schema in Spark's words."""
    fields = []
    for field in SCHEMA:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        fields.append(T.StructField(field.name, _SIMPLE[kind]))
    return T.StructType(fields)


def read_capture(spark: SparkSession, *roots: str) -> DataFrame:
    """All rows under the roots, as they are now."""
    reader = spark.read.schema(spark_schema()).option("recursiveFileLookup", "true")
    # Spark takes two reads of the same directories for one and the same, and would answer
    # from what was kept of the first, though there may be more files by now.
    reader = reader.option("twinbus.read", str(next(_reads)))
    rows = reader.option("pathGlobFilter", "*.parquet").parquet(*roots)
    return _with_file(rows)


def stream_capture(
    spark: SparkSession, *roots: str, files_per_trigger: int | None = None
) -> DataFrame:
    """All rows under the roots, and those to come."""
    streams = []
    for root in roots:
        reader = spark.readStream.schema(spark_schema()).option("recursiveFileLookup", "true")
        reader = reader.option("pathGlobFilter", "*.parquet").option("maxFileAge", _FILE_AGE_MAX)
        if files_per_trigger:
            reader = reader.option("maxFilesPerTrigger", files_per_trigger)
        streams.append(_with_file(reader.parquet(root)))
    rows = streams[0]
    for other in streams[1:]:
        rows = rows.unionByName(other)
    return rows


def day_of(time: Column) -> Column:
    """The UTC day of a time. Spark's `to_date` goes by the session's zone, which is its owner's
    to choose; a day of a report is the same for all."""
    return F.date_from_unix_date((_begin_us(time, _DAY_US) / F.lit(_DAY_US)).cast("int"))


def hour_of(time: Column) -> Column:
    """When the UTC hour of a time began; a zone's may begin half an hour off."""
    return F.timestamp_micros(_begin_us(time, _HOUR_US))


def _begin_us(time: Column, length_us: int) -> Column:
    micros = F.unix_micros(time)
    return micros - F.pmod(micros, F.lit(length_us))


def keep(rows: DataFrame) -> DataFrame:
    """Hold what was computed in memory, because it is read more than once: until the session
    ends, or the end of the `letting_go` around it."""
    kept = _kept.get()
    if kept is not None:
        kept.append(rows)
    return rows.persist()


@contextmanager
def letting_go() -> Iterator[None]:
    """Give back the memory of what is kept inside."""
    kept: list[DataFrame] = []
    token = _kept.set(kept)
    try:
        yield
    finally:
        _kept.reset(token)
        for rows in kept:
            rows.unpersist()


def shaped(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """The rows with just these columns (name to type); those that they lack are null."""
    have = set(rows.columns)
    return rows.select(
        *(
            (F.col(name) if name in have else F.lit(None)).cast(kind).alias(name)
            for name, kind in columns.items()
        )
    )


def _with_file(rows: DataFrame) -> DataFrame:
    return rows.select("*", F.col("_metadata.file_path").alias(FILE))
