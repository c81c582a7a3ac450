"""L3: batch reads of whatever lies in an entity; nothing is locked, nothing is settled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.queues import peeked_ids, receive, send, send_numbered
from tests.support.broker import Broker
from twinbus.spark import reading
from twinbus.spark.line import Line, UnknownOperationError
from twinbus.spark.options import batch_options
from twinbus.spark.reading import ServiceBusReader


def read(spark: SparkSession, broker: Broker, entity: str, **options: object) -> DataFrame:
    reader = spark.read.format("servicebus").option("connectionString", broker.connection_string)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.option("entity", entity).load()


def ids(frame: DataFrame) -> list[str]:
    return sorted(row.message_id for row in frame.select("message_id").collect())


def test_l3_every_message_once_with_its_properties(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    message = ServiceBusMessage(
        b"\x00\x01body",
        message_id="one",
        subject="label",
        application_properties={"count": 3, "kind": "test"},
        time_to_live=timedelta(minutes=5),
    )
    send(broker, queue, [message])
    (row,) = read(spark, broker, queue).collect()
    assert (row.sequence_number, row.state, row.message_id) == (1, "active", "one")
    assert (bytes(row.body), row.body_type, row.subject) == (b"\x00\x01body", "data", "label")
    assert row.application_properties == {"count": "3", "kind": "test"}
    assert row.time_to_live_ms == 300_000
    assert row.enqueued_ts.astimezone(UTC) >= before


def test_l3_partitions_read_disjoint_pieces_and_leave_all_in_place(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    sent = send_numbered(broker, queue, 500)
    frame = read(spark, broker, queue, partitions=4)
    pieces = frame.selectExpr("spark_partition_id() as piece").groupBy("piece").count().collect()
    assert sorted(row["count"] for row in pieces) == [125, 125, 125, 125]
    assert ids(frame) == sent
    assert len(receive(broker, queue, 500)) == 500, "nothing was locked"


def test_l3_by_sequence_number_state_and_without_bodies(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    sent = send_numbered(broker, queue, 20)
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_receiver(queue) as receiver:
            (first,) = receiver.receive_messages(1, max_wait_time=5)
            receiver.defer_message(first)
        with client.get_queue_sender(queue) as sender:
            later = datetime.now(UTC) + timedelta(hours=1)
            sender.schedule_messages(ServiceBusMessage("later", message_id="later"), later)
    assert ids(read(spark, broker, queue, fromSequence=5, toSequence=7)) == sent[4:7]
    assert ids(read(spark, broker, queue, states="deferred")) == sent[:1]
    assert ids(read(spark, broker, queue, states="deferred,scheduled")) == ["later", sent[0]]
    assert ids(read(spark, broker, queue, states="active")) == sent[1:]
    lean = read(spark, broker, queue, includeBody="false", states="active").collect()
    assert {row.body for row in lean} == {None}
    assert len(lean) == 19


def test_l3_by_enqueued_time(spark: SparkSession, broker: Broker, queue: str) -> None:
    send_numbered(broker, queue, 3)
    times = [row.enqueued_ts for row in read(spark, broker, queue).collect()]
    last = max(times).astimezone(UTC)
    after = (last + timedelta(milliseconds=1)).isoformat()
    assert read(spark, broker, queue, toTime=after).count() == 3
    assert read(spark, broker, queue, fromTime=after).count() == 0
    assert read(spark, broker, queue, toTime=min(times).astimezone(UTC).isoformat()).count() == 0


def test_l3_dead_letters_with_their_reason(spark: SparkSession, broker: Broker, queue: str) -> None:
    send_numbered(broker, queue, 3)
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    with client, client.get_queue_receiver(queue) as receiver:
        for message in receiver.receive_messages(3, max_wait_time=5):
            receiver.dead_letter_message(message, reason="Bad", error_description="really")
    rows = read(spark, broker, f"{queue}/$DeadLetterQueue").collect()
    assert {(row.dead_letter_reason, row.dead_letter_description) for row in rows} == {
        ("Bad", "really")
    }
    assert len(rows) == 3


def test_l3_an_empty_queue_gives_an_empty_frame(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    assert read(spark, broker, queue).count() == 0


def test_l3_gaps_are_no_trouble(spark: SparkSession, broker: Broker, queue: str) -> None:
    send_numbered(broker, queue, 300)
    receive(broker, queue, 250)
    assert ids(read(spark, broker, queue, partitions=7)) == [f"m{n:05}" for n in range(250, 300)]
    receive(broker, queue, 50)
    sent = send_numbered(broker, queue, 1, start=700)
    assert ids(read(spark, broker, queue)) == sent


def test_l3_another_service_bus_is_browsed_by_peek(
    broker: Broker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that refuses our own operations gets the same read by peek."""

    def refuse(self: Line, operation: str, body: object) -> dict[str, object]:
        raise UnknownOperationError(operation)

    sent = send_numbered(broker, queue, 600)
    monkeypatch.setattr(reading.Line, "ask_own", refuse)
    given = {"connectionString": broker.connection_string, "entity": queue, "partitions": "3"}
    found: list[str] = []
    for more in ({}, {"toSequence": "450"}, {"states": "deferred"}, {"includeBody": "false"}):
        reader = ServiceBusReader(batch_options(given | more))
        batches = [batch for piece in reader.partitions() for batch in reader.read(piece)]
        found = [one for batch in batches for one in batch["message_id"].to_pylist()]
        expected = [] if "states" in more else sent[:450] if "toSequence" in more else sent
        assert found == expected
        if "includeBody" in more:
            assert all(batch["body"].null_count == len(batch) for batch in batches)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"entity": "nowhere"}, "could not be found"),
        ({"entity": "x", "states": "broken"}, "'states'"),
        ({"entity": "x", "startingOffsets": "latest"}, "startingoffsets"),
    ],
    ids=["entity", "value", "option"],
)
def test_l3_what_is_wrong_reaches_the_user(
    spark: SparkSession, broker: Broker, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        read(spark, broker, **options).count()


def test_l3_peek_and_read_see_the_same(spark: SparkSession, broker: Broker, queue: str) -> None:
    send_numbered(broker, queue, 10)
    assert ids(read(spark, broker, queue)) == peeked_ids(broker, queue)
