"""What a user makes of dead letters: an SQL expression or a Python function over messages.

Messages go in as a DataFrame of `schema.DDL`, with a condition that says which of them are
meant; the same comes out, changed, with two columns more: whether the message is wanted, and
what is wrong with a change of which no message can be made. One that is not wanted stays where
it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, BooleanType, StringType, StructType

from twinbus.spark import schema
from twinbus.spark.bulk.arrow import map_batches

WANTED: Final = "wanted"
#: Null for most; a message that has it is not wanted.
FAULT: Final = "fault"
DDL: Final = f"{schema.DDL}, `{WANTED}` boolean, `{FAULT}` string"
_ARROW: Final = schema.ARROW.append(pa.field(WANTED, pa.bool_())).append(
    pa.field(FAULT, pa.string())
)
_RESULT: Final = "__result"
# What Arrow says to a value that its column cannot have.
_UNFIT: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
_MAPS: Final = ("application_properties", "application_property_types")
#: What the broker wrote on a message when it died; the repaired one does not carry it.
_DEATH: Final = ("DeadLetterReason", "DeadLetterErrorDescription")

#: Messages, and the condition that those which are meant fulfil.
Transformation = Callable[[DataFrame, Column], DataFrame]
Function = Callable[[dict[str, Any]], Any]


class TransformError(ValueError):
    """The transformation is not one; the text says what it may be."""


def condition(where: str | None) -> Column:
    """The condition of those that are meant; nothing said, all of them are."""
    return F.lit(True) if where is None else F.coalesce(F.expr(where), F.lit(False))


def unchanged(messages: DataFrame, meant: Column) -> DataFrame:
    return _without_fault(messages.withColumn(WANTED, meant))


def by_sql(expression: str) -> Transformation:
    """An expression over a message's columns.

    A condition says which messages are wanted. A text or bytes is the new body, null for one
    that is not wanted. A struct has new values for the columns that its fields name.
    """

    def change(messages: DataFrame, meant: Column) -> DataFrame:
        # Without a result, which is null, a message is not wanted.
        found = messages.withColumn(_RESULT, F.when(meant, F.expr(expression)))
        kind = found.schema[_RESULT].dataType
        result = F.col(_RESULT)
        if isinstance(kind, BooleanType):
            changed = found.withColumn(WANTED, F.coalesce(result, F.lit(False)))
        elif isinstance(kind, StringType | BinaryType):
            changed = _with(found, {"body": result})
        elif isinstance(kind, StructType):
            changed = _with(found, {name: result[name] for name in kind.names})
        else:
            raise TransformError(
                "the SQL expression is a condition, a text or bytes for the new body, or a struct"
                f" with new values of columns, not {kind.simpleString()}"
            )
        return _without_fault(changed.drop(_RESULT))

    return change


def by_function(name: str) -> Transformation:
    """A Python function, by `module:function`.

    It is called with each message as a dict of its columns and gives a dict with the columns to
    change, True for a message that is good as it is, or None or False for one that is not
    wanted. A change that its column cannot have is the fault of that one message.
    """
    function = _function(name)

    def change(messages: DataFrame, meant: Column) -> DataFrame:
        def apply(batch: Any) -> Iterator[Any]:
            yield _batch(batch.to_pylist(), function)

        return map_batches(messages.withColumn(WANTED, meant), apply, DDL)

    return change


def without_death(messages: DataFrame) -> DataFrame:
    """Take off what the broker wrote on the messages when they died."""
    for name in _MAPS:
        kept = F.map_filter(F.col(name), lambda key, _: ~key.isin(*_DEATH))
        messages = messages.withColumn(name, kept)
    return messages


def _with(messages: DataFrame, values: Mapping[str, Column]) -> DataFrame:
    """Set columns; a message whose new body is null is not wanted."""
    _check_columns(values)
    changed = messages
    for name, value in values.items():
        changed = changed.withColumn(name, value.cast(schema.DDL_TYPES[name]))
    if "body" in values and "body_type" not in values:
        changed = changed.withColumn("body_type", F.lit("data"))
    result = F.col(_RESULT)
    wanted = result.isNotNull()
    if "body" in values:
        wanted = wanted & F.col("body").isNotNull()
    return changed.withColumn(WANTED, wanted)


def _check_columns(names: Mapping[str, Any]) -> None:
    settable = [name for name in schema.NAMES if name not in schema.READ_ONLY]
    for name in names:
        if name not in settable:
            raise TransformError(
                f"a transformation cannot set '{name}': it can set {', '.join(settable)}"
            )


def _function(name: str) -> Function:
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise TransformError(f"'{name}' is no function: name it as module:function")
    try:
        module = importlib.import_module(module_name)
        function: Function = getattr(module, function_name)
    except (ImportError, AttributeError) as error:
        raise TransformError(f"there is no function {name}: {error}") from error
    # So that workers need not have the module themselves.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return function


def _without_fault(messages: DataFrame) -> DataFrame:
    return messages.withColumn(FAULT, F.lit(None).cast("string"))


def _batch(given: list[dict[str, Any]], function: Function) -> Any:
    """What a function makes of messages. One that has a fault is as it was given."""
    rows = [_applied(function, row) for row in given]
    try:
        return pa.RecordBatch.from_pylist(rows, schema=_ARROW)
    except _UNFIT:
        faults = [_fault(row) for row in rows]
    sound = [
        row if fault is None else old | {WANTED: False, FAULT: fault}
        for row, old, fault in zip(rows, given, faults, strict=True)
    ]
    return pa.RecordBatch.from_pylist(sound, schema=_ARROW)


def _fault(row: dict[str, Any]) -> str | None:
    for name in schema.NAMES:
        try:
            pa.array([row[name]], schema.ARROW.field(name).type)
        except _UNFIT as why:
            return f"the new {name} is no {schema.DDL_TYPES[name]}: {why}"
    return None


def _applied(function: Function, row: dict[str, Any]) -> dict[str, Any]:
    message = {name: row[name] for name in schema.NAMES}
    for name in _MAPS:
        message[name] = dict(row[name]) if row[name] is not None else {}
    # As it was given: the function may have changed a map before it gave up.
    unwanted = row | {WANTED: False}
    result = function(dict(message)) if row[WANTED] else False
    if result is None or result is False:
        return unwanted
    if result is True:
        return message | {WANTED: True}
    if not isinstance(result, Mapping):
        raise TransformError(
            f"the function gave {type(result).__name__}: it gives a dict of columns, True, None"
            " or False"
        )
    changes = {name: value for name, value in result.items() if message.get(name) != value}
    _check_columns(changes)
    if "body" in changes:
        if changes["body"] is None:
            return unwanted
        if isinstance(changes["body"], str):
            changes["body"] = changes["body"].encode()
        changes.setdefault("body_type", "data")
    return message | changes | {WANTED: True}
