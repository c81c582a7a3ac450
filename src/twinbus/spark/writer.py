"""The sink of `servicebus`: rows of a DataFrame become messages in a queue or topic.

Columns are those of `schema`, of which only `body` must be there; the ones that the broker
alone decides are accepted and not read, so that what was read can be written. Rows of a
partition are sent in their order, in batches and without waiting for each; several partitions
are sent at once. To keep the order of sessions, repartition by `session_id` and sort within
partitions by `sequence_number`. A task that is tried again, and a connection that was lost and
made again, send rows again: a target with duplicate detection drops them by their ids, any
other keeps them. What was sent stays sent, also when the job fails in the end.

A row without a message id gets one that a second try gives it as well:

- in a stream `<query id>-<batch id>-<partition>-<row>`; the query id stays the same as long as
  the checkpoint does,
- in a batch `<run id>-<partition>-<row>`; the run id is the option `runId`, or one made when
  the write starts.

It says nothing of the content, so it is only as repeatable as the partitions and their order.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from twinbus.client.endpoint import parse_connection_string
from twinbus.client.sender import WINDOW_BYTES, WINDOW_MESSAGES
from twinbus.spark.messages import RowError, to_messages
from twinbus.spark.options import CONNECTION_STRING, OptionError
from twinbus.spark.outlet import Outlet, RefusedRowError
from twinbus.spark.schema import DDL_TYPES, NAMES

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_OPTIONS: Final = ("connectionString", "entity", "windowMessages", "windowBytes", "runId")
# Spark hands a sink its own options as well.
_SPARKS_OWN: Final = frozenset(("checkpointlocation", "path", "queryname"))
_ALSO: Final = {"body": ("string",), "time_to_live_ms": ("int",)}
_RUN_ID_CHARS_MAX: Final = 64

_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"


class ColumnError(ValueError):
    """A column that no message can have, or that has the wrong type."""


class WriteError(Exception):
    """A row could not be written; the text says which one and why."""


@dataclass(frozen=True)
class WriteOptions:
    connection_string: str = field(repr=False)
    entity: str
    #: How much may be under way unacknowledged, for each task.
    window_messages: int = WINDOW_MESSAGES
    window_bytes: int = WINDOW_BYTES
    run_id: str = ""


@dataclass
class Written(WriterCommitMessage):
    """How many rows a task has written."""

    rows: int


class ServiceBusWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        _check(schema, overwrite)
        self._options = write_options(options)
        # Made here, on the driver: every try of every task has the same.
        self._run_id = self._options.run_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        return _write(iterator, self._options, self._run_id)


class ServiceBusStreamWriter(DataSourceStreamArrowWriter):
    """A stream's write, micro-batch by micro-batch."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        _check(schema, overwrite)
        self._options = write_options(options)

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        context = TaskContext.get()
        query = context and context.getLocalProperty(_QUERY_ID)
        batch = context and context.getLocalProperty(_BATCH_ID)
        if not query or not batch:
            raise WriteError(
                "Spark does not say which micro-batch this is: Spark 4.2 or later does"
            )
        return _write(iterator, self._options, f"{query}-{batch}")


def _write(iterator: Iterator[RecordBatch], options: WriteOptions, prefix: str) -> Written:
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    rows = 0

    def message_id(row: int) -> str:
        return f"{prefix}-{partition}-{rows + row}"

    with Outlet(
        options.connection_string, options.entity, options.window_messages, options.window_bytes
    ) as outlet:
        try:
            for batch in iterator:
                outlet.send(to_messages(batch, message_id))
                rows += batch.num_rows
            outlet.flush()
        except RowError as error:
            has_ids = "message_id" in batch.schema.names
            given = batch["message_id"][error.row].as_py() if has_ids else None
            raise _failure(options, partition, rows + error.row, given, str(error)) from error
        except RefusedRowError as refusal:
            raise _failure(
                options, partition, refusal.row, refusal.message_id, str(refusal)
            ) from refusal
    return Written(rows)


def _failure(
    options: WriteOptions, partition: int, row: int, message_id: Any, why: str
) -> WriteError:
    return WriteError(
        f"row {row} of partition {partition} (message id {message_id!r}) cannot be written to"
        f" '{options.entity}': {why}"
    )


# ---------------------------------------------------------------------------------------
# What is checked on the driver, before anything is sent


def _check(schema: StructType, overwrite: bool) -> None:
    if overwrite:
        raise OptionError(
            "A queue or topic cannot be overwritten: write with mode 'append' (a stream: with"
            " output mode 'append' or 'update')."
        )
    seen = set()
    for column in schema.fields:
        given = column.dataType.simpleString()
        if column.name not in NAMES:
            raise ColumnError(
                f"The column '{column.name}' is none that a message has: those are"
                f" {', '.join(NAMES)}."
            )
        allowed = (DDL_TYPES[column.name], *_ALSO.get(column.name, ()))
        if given not in allowed:
            raise ColumnError(
                f"The column '{column.name}' is {given}; cast it to {' or '.join(allowed)}."
            )
        if column.name in seen:
            raise ColumnError(f"The column '{column.name}' is there twice.")
        seen.add(column.name)
    if "body" not in seen:
        raise ColumnError("The column 'body' is missing: it holds the message, binary or string.")


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a write, checked; an OptionError names the one that is wrong."""
    text = {key.lower(): value for key, value in given.items()}
    known = {name.lower() for name in _OPTIONS} | _SPARKS_OWN
    for key in text:
        if key not in known:
            raise OptionError(
                f"The option '{key}' is not one of a write: those are {', '.join(_OPTIONS)}."
            )
    connection_string = text.get("connectionstring") or os.environ.get(CONNECTION_STRING, "")
    entity = text.get("entity", "").strip("/")
    run_id = text.get("runid", "")
    if not connection_string:
        raise OptionError(
            "The option 'connectionString' is missing: give it, or set the environment variable"
            f" {CONNECTION_STRING}."
        )
    try:
        parse_connection_string(connection_string)
    except ValueError as error:
        raise OptionError(f"The option 'connectionString' is wrong: {error}.") from None
    if not entity:
        raise OptionError("The option 'entity' is missing: the queue or topic to write to.")
    if len(run_id) > _RUN_ID_CHARS_MAX:
        raise OptionError(f"The option 'runId' has more than {_RUN_ID_CHARS_MAX} characters.")
    return WriteOptions(
        connection_string,
        entity,
        _positive(text, "windowMessages", WINDOW_MESSAGES),
        _positive(text, "windowBytes", WINDOW_BYTES),
        run_id,
    )


def _positive(text: Mapping[str, str], name: str, default: int) -> int:
    value = text.get(name.lower())
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and int(value) > 0):
        raise OptionError(f"The option '{name}' is a whole number above 0, not '{value}'.")
    return int(value)
