"""Python code over the batches of a DataFrame.

A table function, and not `mapInArrow`: that one asks for pandas, which nothing here needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

#: A record batch goes in, record batches come out.
OnBatch = Callable[[Any], Iterator[Any]]


def map_batches(frame: DataFrame, on_batch: OnBatch, ddl: str) -> DataFrame:
    """Let a function work on each batch, in the tasks that Spark has for the frame."""

    class Mapper:
        def eval(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
            for batch in on_batch(rows):
                yield pa.Table.from_batches([batch])

    function = cast(Any, F.arrow_udtf(Mapper, returnType=ddl))
    return cast(DataFrame, function(frame.asTable()))
