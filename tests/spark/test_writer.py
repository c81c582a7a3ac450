"""The sink (L3): DataFrames written to a live broker, read back with the official SDK."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tests.support.broker import Broker
from twinbus.amqp.types import Int
from twinbus.client import Client
from twinbus.spark.messages import to_batch
from twinbus.spark.options import OptionError
from twinbus.spark.writer import (
    ColumnError,
    ServiceBusStreamWriter,
    ServiceBusWriter,
    write_options,
)


def write(frame: DataFrame, broker: Broker, entity: str, /, **options: str) -> None:
    given = {"connectionString": broker.connection_string, "entity": entity} | options
    frame.write.format("servicebus").options(**given).mode("append").save()


def receive(broker: Broker, queue: str, **options: Any) -> list[ServiceBusReceivedMessage]:
    """All messages of a queue, taken out of it by the SDK."""
    found: list[ServiceBusReceivedMessage] = []
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue, receive_mode="receiveanddelete", **options) as receiver,
    ):
        while got := receiver.receive_messages(max_message_count=2000, max_wait_time=1):
            found += got
    return found


def ids_in(broker: Broker, queue: str) -> list[str]:
    """The ids in a queue, in order."""
    ids: list[str] = []
    low = 1
    with Client.connect(broker.connection_string) as client:
        while True:
            body = {"from-sequence-number": low, "message-count": Int(250)}
            page = client.request(queue, "peek-message", body).body.get("messages")
            if not page:
                return ids
            batch = to_batch([entry["message"] for entry in page])
            ids += batch["message_id"].to_pylist()
            low = batch["sequence_number"][-1].as_py() + 1


def bodies(messages: Iterable[ServiceBusReceivedMessage]) -> list[bytes]:
    return [b"".join(message.body) for message in messages]


def test_l3_every_property_is_set_by_its_column(
    spark: SparkSession, broker: Broker, session_queue: str
) -> None:
    marker = uuid.UUID(int=7)
    properties = {"text": "hello", "number": "7", "ratio": "2.5", "yes": "true", "id": str(marker)}
    types = {"number": "int", "ratio": "double", "yes": "boolean", "id": "uuid"}
    schema = (
        "message_id string, session_id string, partition_key string, subject string,"
        " content_type string, correlation_id string, `to` string, reply_to string,"
        " reply_to_session_id string, time_to_live_ms bigint,"
        " application_properties map<string,string>,"
        " application_property_types map<string,string>, body binary"
    )
    row = (
        "m-1", "s-1", "s-1", "order", "application/json", "c-1", "there", "here", "s-9",
        3_600_000, properties, types, bytearray(b"{}"),
    )  # fmt: skip
    write(spark.createDataFrame([row], schema), broker, session_queue)

    (message,) = receive(broker, session_queue, session_id="s-1")
    assert bodies([message]) == [b"{}"]
    assert (message.message_id, message.session_id) == ("m-1", "s-1")
    assert (message.partition_key, message.subject) == ("s-1", "order")
    assert (message.content_type, message.correlation_id) == ("application/json", "c-1")
    assert (message.to, message.reply_to) == ("there", "here")
    assert (message.reply_to_session_id, message.time_to_live) == ("s-9", timedelta(hours=1))
    assert message.application_properties == {
        b"text": b"hello",
        b"number": 7,
        b"ratio": 2.5,
        b"yes": True,
        b"id": marker,
    }


def test_l3_a_scheduled_column_schedules(spark: SparkSession, broker: Broker, queue: str) -> None:
    when = datetime(2099, 1, 31, 12, tzinfo=UTC)
    write(
        spark.createDataFrame([("later", when)], "body string, scheduled_ts timestamp"),
        broker,
        queue,
    )
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        (message,) = receiver.peek_messages()
    assert message.scheduled_enqueue_time_utc == when
    assert message.state.name == "SCHEDULED"


def test_l3_what_was_read_can_be_written(
    spark: SparkSession, broker: Broker, queue: str, unique_queue: str
) -> None:
    write(spark.range(5).select(f.format_string("b%d", "id").alias("body")), broker, queue)
    source = {"connectionString": broker.connection_string, "entity": queue}
    write(spark.read.format("servicebus").options(**source).load(), broker, unique_queue)
    assert sorted(ids_in(broker, unique_queue)) == sorted(ids_in(broker, queue))
    assert sorted(bodies(receive(broker, unique_queue))) == [b"b0", b"b1", b"b2", b"b3", b"b4"]


def test_l3_ids_without_a_column_are_the_same_in_a_second_run(
    spark: SparkSession, broker: Broker, unique_queue: str
) -> None:
    frame = spark.range(0, 100, 1, 2).select(f.lit("x").alias("body"))
    for _ in range(2):
        write(frame, broker, unique_queue, runId="night")
    wanted = {f"night-{partition}-{row}" for partition in range(2) for row in range(50)}
    found = ids_in(broker, unique_queue)
    assert set(found) == wanted
    assert len(found) == 100


def test_l3_order_within_a_partition_is_kept(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    """Far more than the window holds, in batches that differ in size."""
    ids = f.format_string("%06d", "id")
    frame = spark.range(0, 4000, 1, 1).select(
        ids.alias("message_id"), f.expr("repeat('x', int(id % 977))").alias("body")
    )
    write(frame, broker, queue, windowMessages="300", windowBytes="100000")
    assert ids_in(broker, queue) == [f"{i:06}" for i in range(4000)]


def test_l3_a_refused_row_is_named(spark: SparkSession, broker: Broker, session_queue: str) -> None:
    """In a queue that requires sessions, a row without one; its neighbours are in its batch."""
    session = f.when(f.col("id") != 417, "s")
    frame = spark.range(0, 1000, 1, 1).select(
        session.alias("session_id"),
        f.format_string("m-%d", "id").alias("message_id"),
        f.lit("x").alias("body"),
    )
    with pytest.raises(PySparkException) as failure:
        write(frame, broker, session_queue)
    assert "row 417 of partition 0 (message id 'm-417') cannot be written" in str(failure.value)
    assert "session" in str(failure.value)


def test_l3_a_row_that_is_no_message_is_named(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    frame = spark.sql(
        "SELECT 'm' AS message_id, 'x' AS body, map('n', 'seven') AS application_properties,"
        " map('n', 'int') AS application_property_types"
    )
    with pytest.raises(PySparkException) as failure:
        write(frame, broker, queue)
    assert "row 0 of partition 0 (message id 'm') cannot be written" in str(failure.value)
    assert "application property 'n': 'seven' is no int" in str(failure.value)


def test_l3_a_wrong_column_fails_before_anything_is_sent(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    with pytest.raises(PySparkException, match="The column 'priority' is none that a message has"):
        write(spark.sql("SELECT 'x' AS body, 1 AS priority"), broker, queue)
    assert ids_in(broker, queue) == []


PLACE = {
    "connectionString": "Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey=b",
    "entity": "q",
}
BODY = StructField("body", BinaryType())


@pytest.mark.parametrize("kind", [ServiceBusWriter, ServiceBusStreamWriter])
@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ([StructField("message_id", LongType())], "'message_id' is bigint; cast it to string"),
        ([StructField("scheduled_ts", StringType())], "'scheduled_ts' is string; cast it to times"),
        ([StructField("body", DoubleType())], "'body' is double; cast it to binary or string"),
        ([StructField("priority", LongType())], "'priority' is none that a message has"),
        ([BODY, BODY], "'body' is there twice"),
        ([StructField("subject", StringType())], "'body' is missing"),
    ],
)
def test_l3_a_wrong_column_is_named(
    kind: type[ServiceBusWriter], columns: list[StructField], text: str
) -> None:
    with pytest.raises(ColumnError, match=text):
        kind(StructType(columns), PLACE, False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"windowBytes": "none"}, "'windowBytes' is a whole number above 0, not 'none'"),
        ({"windowMessages": "0"}, "'windowMessages' is a whole number above 0, not '0'"),
        ({"entity": ""}, "'entity' is missing"),
        ({"connectionString": ""}, "'connectionString' is missing: .*TWINBUS_CONNECTION"),
        ({"connectionString": "Endpoint=sb://host"}, "'connectionString' is wrong: .*neither"),
        ({"color": "red"}, "'color' is not one of a write: those are connectionString, entity"),
        ({"runId": "x" * 65}, "'runId' has more than 64 characters"),
    ],
)
def test_l3_a_wrong_option_is_named(
    options: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TWINBUS_CONNECTION", raising=False)
    with pytest.raises(OptionError, match=text):
        write_options(PLACE | options)


def test_l3_a_queue_is_not_overwritten() -> None:
    with pytest.raises(OptionError, match="cannot be overwritten: write with mode 'append'"):
        ServiceBusWriter(StructType([BODY]), PLACE, True)


def test_the_connection_string_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TWINBUS_CONNECTION", PLACE["connectionString"])
    options = write_options({"entity": "/q/"})
    assert (options.connection_string, options.entity) == (PLACE["connectionString"], "q")
    assert "SharedAccessKey" not in repr(options)


def test_l3_a_micro_batch_that_is_run_again_has_the_same_ids(
    spark: SparkSession, broker: Broker, unique_queue: str, tmp_path: Path
) -> None:
    """The commit of the last batch is taken away, as a crash in the sink would leave it."""
    lines = tmp_path / "in"
    lines.mkdir()
    (lines / "one.txt").write_text("".join(f"{i}\n" for i in range(50)))
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        stream = spark.readStream.text(str(lines)).withColumnRenamed("value", "body")
        query = (
            stream.writeStream.format("servicebus")
            .option("connectionString", broker.connection_string)
            .option("entity", unique_queue)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    run()
    first = ids_in(broker, unique_queue)
    assert len(first) == len(set(first)) == 50
    shutil.rmtree(checkpoint / "commits")
    (checkpoint / "commits").mkdir()
    run()
    assert ids_in(broker, unique_queue) == first
