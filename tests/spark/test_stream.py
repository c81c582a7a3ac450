"""L3: stream reads in both modes: what a query promises while nothing is killed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.queues import peek, peeked_ids, receive, send_numbered
from tests.support.broker import Broker

# To defer is the way of other brokers; its waits are long.
MODES = ("reserve", pytest.param("defer", marks=pytest.mark.slow))


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def no_query_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


def rows_of(spark: SparkSession, broker: Broker, entity: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("servicebus").option("entity", entity)
    reader = reader.option("connectionString", broker.connection_string)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def copy(
    rows: DataFrame, broker: Broker, target: str, checkpoint: Path, **trigger: Any
) -> StreamingQuery:
    return (
        rows.writeStream.format("servicebus")
        .option("connectionString", broker.connection_string)
        .option("entity", target)
        .option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )


def test_l3_a_queue_is_copied_and_emptied(
    spark: SparkSession, broker: Broker, queue: str, unique_queue: str, tmp_path: Path, mode: str
) -> None:
    sent = send_numbered(broker, queue, 250)
    rows = rows_of(
        spark, broker, queue, consumer="copy", mode=mode, maxMessagesPerTrigger=100, partitions=2
    )
    copy(rows, broker, unique_queue, tmp_path).awaitTermination()
    assert sorted(peeked_ids(broker, unique_queue)) == sent
    offsets = [(tmp_path / "offsets" / str(batch)).read_text() for batch in range(3)]
    sizes = [json.loads(offset.splitlines()[-1])["messages"] for offset in offsets]
    assert sizes == [100, 100, 50], "admission control"
    assert peeked_ids(broker, queue) == [], "settled, the last batch too"
    properties = [message.application_properties for message in peek(broker, unique_queue)]
    assert not any(properties), "the stream shows messages as their senders made them"


def test_l3_a_running_query_goes_on_and_reports_progress(
    spark: SparkSession, broker: Broker, queue: str, unique_queue: str, tmp_path: Path
) -> None:
    sent = send_numbered(broker, queue, 30)
    query = copy(
        rows_of(spark, broker, queue, consumer="running"),
        broker, unique_queue, tmp_path, processingTime="0 seconds",
    )  # fmt: skip
    _wait(lambda: len(peeked_ids(broker, unique_queue)) == 30, query)
    sent += send_numbered(broker, queue, 20, start=30)
    _wait(lambda: len(peeked_ids(broker, unique_queue)) == 50, query)
    _wait(lambda: peeked_ids(broker, queue) == [], query)
    assert sorted(peeked_ids(broker, unique_queue)) == sent
    source = next(p for p in reversed(query.recentProgress) if p["numInputRows"])["sources"][0]
    assert '"epoch": 2' in str(source["endOffset"]) or "'epoch': 2" in str(source["endOffset"])
    assert "50" in str(source["latestOffset"]), source
    query.stop()


def test_l3_set_aside_is_seen_by_no_receiver_until_settled(
    spark: SparkSession, broker: Broker, queue: str, unique_queue: str, tmp_path: Path, mode: str
) -> None:
    """A failed batch keeps its messages for the next run: nobody else gets them."""
    sent = send_numbered(broker, queue, 40)
    rows = rows_of(spark, broker, queue, consumer="failing", mode=mode, maxMessagesPerTrigger=20)
    broken = rows.selectExpr("message_id", "cast(raise_error('poison') as binary) as body")
    with pytest.raises(StreamingQueryException, match="poison"):
        copy(broken, broker, unique_queue, tmp_path).awaitTermination()
    others = sorted(str(message.message_id) for message in receive(broker, queue, 40))
    assert others == sent[20:]
    copy(rows, broker, unique_queue, tmp_path).awaitTermination()
    assert sorted(peeked_ids(broker, unique_queue)) == sent[:20]


@pytest.mark.slow
def test_l3_a_poisonous_batch_ends_in_the_dead_letter_queue(
    spark: SparkSession, broker: Broker, queue: str, unique_queue: str, tmp_path: Path, mode: str
) -> None:
    sent = send_numbered(broker, queue, 20)
    options = {"consumer": "poisoned", "mode": mode, "maxMessagesPerTrigger": 10}
    rows = rows_of(spark, broker, queue, maxBatchFailures=2, **options)
    broken = rows.selectExpr(
        "message_id", f"if(message_id <= '{sent[9]}', raise_error('poison'), body) as body"
    )
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="poison"):
            copy(broken, broker, unique_queue, tmp_path).awaitTermination()
    copy(broken, broker, unique_queue, tmp_path).awaitTermination()
    assert sorted(peeked_ids(broker, unique_queue)) == sent[10:]
    dead = peek(broker, queue, sub_queue="deadletter")
    assert sorted(str(message.message_id) for message in dead) == sent[:10]
    assert {message.dead_letter_reason for message in dead} == {"MaxBatchFailuresExceeded"}


def test_l3_sessions_keep_their_order(
    spark: SparkSession, broker: Broker, session_queue: str, unique_queue: str, tmp_path: Path
) -> None:
    """A stream cannot be sorted, its batches can: one task for each session, by number.

    Each action plans the batch again; that is not another attempt at it.
    """
    for number in range(3):
        send_numbered(broker, session_queue, 10, start=10 * number, session=f"s{number}")
    connection_string = broker.connection_string

    def write(batch: DataFrame, _: int) -> None:
        assert batch.count() == batch.count() == 30
        ordered = batch.repartition(2, "session_id").sortWithinPartitions("sequence_number")
        writer = ordered.write.format("servicebus").option("entity", unique_queue)
        writer.option("connectionString", connection_string).mode("append").save()

    rows = rows_of(spark, broker, session_queue, consumer="sessions", maxBatchFailures=1)
    stream = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
    stream.trigger(availableNow=True).start().awaitTermination()
    found = peek(broker, unique_queue)
    for number in range(3):
        mine = [str(one.message_id) for one in found if one.session_id == f"s{number}"]
        assert mine == [f"m{n:05}" for n in range(10 * number, 10 * number + 10)]


@pytest.mark.slow
def test_l3_a_zombie_query_is_fenced(
    spark: SparkSession, broker: Broker, queue: str, unique_queue: str, tmp_path: Path
) -> None:
    """Two checkpoints under one name: the one left behind is refused, and told what to do."""
    send_numbered(broker, queue, 10)
    rows = rows_of(spark, broker, queue, consumer="twice", maxMessagesPerTrigger=10)
    copy(rows, broker, unique_queue, tmp_path / "old").awaitTermination()
    send_numbered(broker, queue, 10, start=10)
    copy(rows, broker, unique_queue, tmp_path / "new").awaitTermination()
    send_numbered(broker, queue, 10, start=20)
    copy(rows, broker, unique_queue, tmp_path / "new").awaitTermination()
    with pytest.raises(StreamingQueryException, match="release"):
        copy(rows, broker, unique_queue, tmp_path / "old").awaitTermination()


def test_l3_available_now_ends_though_messages_keep_coming(
    spark: SparkSession, broker: Broker, queue: str, tmp_path: Path, mode: str
) -> None:
    """A queue copied to itself never runs dry; the run ends with what was there."""
    send_numbered(broker, queue, 60)
    rows = rows_of(spark, broker, queue, consumer="loop", mode=mode, maxMessagesPerTrigger=25)
    renamed = rows.selectExpr("concat('again-', message_id) as message_id", "body")
    copy(renamed, broker, queue, tmp_path).awaitTermination()
    names = peeked_ids(broker, queue)
    assert len([name for name in names if name.startswith("again-")]) == 60
    assert not any(name.startswith("again-again") for name in names)


def test_l3_wrong_options_reach_the_user(
    spark: SparkSession, broker: Broker, queue: str, unique_queue: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=re.escape("'consumer' is missing")):
        copy(rows_of(spark, broker, queue), broker, unique_queue, tmp_path).awaitTermination()


def _wait(reached: Any, query: StreamingQuery, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.1)
