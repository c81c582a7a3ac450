"""L4, P8, P11: the syphon on Spark brings every message of the backlog home once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import SparkSession

from tests.spark.bulk_kit import contents, ids, send
from tests.spark.conftest import FORM
from tests.support.broker import Broker
from twinbus.pairing.failures import BY_CONDITION, OnSyphon
from twinbus.pairing.names import backlog_queue_name
from twinbus.pairing.rewrite import restore, to_backlog
from twinbus.spark.bulk import rounds, syphon

BACKLOG = [backlog_queue_name("localhost", index) for index in range(3)]
NOW_MS = 1_900_000_000_000
FOR_GOOD = frozenset(
    condition
    for condition, verdict in BY_CONDITION.items()
    if verdict.on_syphon is OnSyphon.DEAD_LETTER
)


@pytest.fixture
def secondary(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "secondary", {queue: {} for queue in BACKLOG}, FORM) as live:
        yield live


def backlog(secondary: Broker, queue: str, path: str, *messages: ServiceBusMessage) -> None:
    """Put messages where a paired sender would, as it would."""
    rewritten = [to_backlog(m.raw_amqp_message, path, NOW_MS) for m in messages]
    client = ServiceBusClient.from_connection_string(secondary.connection_string)
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(rewritten)


def run(spark: SparkSession, primary: Broker | str, secondary: Broker) -> rounds.Tally:
    text = primary if isinstance(primary, str) else primary.connection_string
    work = syphon.Work(text, secondary.connection_string, restore, FOR_GOOD)
    return syphon.run(spark, work, BACKLOG, lambda _: None)


def test_p11_every_message_is_home_once_and_as_it_was_meant(
    spark: SparkSession, broker: Broker, secondary: Broker, queue: str, session_queue: str
) -> None:
    for index, place in enumerate(BACKLOG):
        plain = [ServiceBusMessage(b"x", message_id=f"p-{index}-{n}") for n in range(50)]
        backlog(secondary, place, queue, *plain)
        in_session = ServiceBusMessage(
            "ü",
            message_id=f"s-{index}",
            session_id="s",
            subject="kept",
            application_properties={"number": 7},
        )
        backlog(secondary, place, session_queue, in_session)
    tally = run(spark, broker, secondary)
    assert tally.counts == {"sent": 153}
    home = ids(broker.connection_string, queue)
    assert sorted(home) == sorted(f"p-{i}-{n}" for i in range(3) for n in range(50))
    for row in contents(broker.connection_string, session_queue):
        assert (row["session_id"], row["subject"], row["body"]) == ("s", "kept", "ü".encode())
        assert dict(row["application_properties"]) == {"number": "7"}
    assert sorted(ids(broker.connection_string, session_queue)) == ["s-0", "s-1", "s-2"]
    assert [contents(secondary.connection_string, place) for place in BACKLOG] == [[], [], []]
    assert run(spark, broker, secondary).counts == {}


def test_p11_what_has_no_home_dies_in_the_backlog_with_the_reason(
    spark: SparkSession, broker: Broker, secondary: Broker, queue: str
) -> None:
    place = BACKLOG[0]
    backlog(secondary, place, "no-such-queue", ServiceBusMessage(b"", message_id="gone"))
    backlog(secondary, place, queue, ServiceBusMessage(b"", message_id="good"))
    send(secondary.connection_string, place, [{"message_id": "lost", "body": b""}])
    odd: dict[str | bytes, Any] = {"x-ms-path": queue, "x-ms-timetolive": "00:05:00"}
    client = ServiceBusClient.from_connection_string(secondary.connection_string)
    with client, client.get_queue_sender(place) as sender:
        sender.send_messages(ServiceBusMessage(b"", message_id="odd", application_properties=odd))
    tally = run(spark, broker, secondary)
    assert tally.counts == {"sent": 1, "dead_lettered": 3}
    assert ids(broker.connection_string, queue) == ["good"]
    dead = contents(secondary.connection_string, f"{place}/$DeadLetterQueue")
    reasons = {row["message_id"]: row["dead_letter_reason"] for row in dead}
    assert reasons == {
        "gone": "amqp:not-found",
        "lost": "MissingPath",
        "odd": "UnreadableProperty",
    }
    assert contents(secondary.connection_string, place) == []


def test_p11_what_cannot_be_delivered_now_stays_for_later(
    spark: SparkSession, broker: Broker, secondary: Broker, queue: str
) -> None:
    backlog(secondary, BACKLOG[1], queue, ServiceBusMessage(b"", message_id="patient"))
    nobody = broker.connection_string.replace(str(broker.amqp_port), "1")
    tally = run(spark, nobody, secondary)
    assert (dict(tally.counts), dict(tally.reasons)) == (
        {"sent": 0, "returned": 1},
        {"unreachable": 1},
    )
    # An ordinary syphon can have it: nothing holds it.
    rows: list[dict[str, Any]] = contents(secondary.connection_string, BACKLOG[1])
    assert [(row["message_id"], row["state"]) for row in rows] == [("patient", "active")]
    assert run(spark, broker, secondary).counts == {"sent": 1}
    assert ids(broker.connection_string, queue) == ["patient"]
