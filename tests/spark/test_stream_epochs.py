"""L3: both ways of setting messages aside keep one contract, also when answers get lost.

No Spark here: the broker is real, a lost answer is a request that is asked twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusError

from tests.spark.queues import peek, peeked_ids, receive, send_numbered
from tests.support.broker import Broker
from twinbus.spark.defer import HELD, DeferredEpochs, without_marks
from twinbus.spark.epochs import Epochs, ReservedEpochs
from twinbus.spark.line import Line
from twinbus.spark.options import SEQUENCE_MAX, stream_options
from twinbus.spark.ranges import Ranges
from twinbus.spark.reading import MessagesGoneError, Pages


class Stammering(Line):
    """Asks everything twice, as one does whose first answer got lost.

    Except for locks: those of a lost answer are gone with the broker, or last for a minute.
    """

    def ask(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if body.get("receiver-settle-mode") != 1:
            super().ask(operation, body)
        return super().ask(operation, body)


class Consumer:
    """A consumer that is begun anew, with no memory, whenever asked to."""

    def __init__(self, broker: Broker, queue: str, mode: str) -> None:
        self._given = {
            "connectionString": broker.connection_string,
            "entity": queue,
            "consumer": "me",
            "mode": mode,
        }
        self._opened: list[Epochs] = []

    def begin_anew(self, line_class: type[Line] = Line) -> Epochs:
        options = stream_options(self._given)
        line = line_class(options.connection_string, options.entity, "test")
        made: Epochs = (
            DeferredEpochs(line, options)
            if options.mode == "defer"
            else ReservedEpochs(line, options.consumer)
        )
        self._opened.append(made)
        return made

    def close(self) -> None:
        for epochs in self._opened:
            epochs.close()


@pytest.fixture(params=["reserve", pytest.param("defer", marks=pytest.mark.slow)])
def consumer(broker: Broker, queue: str, request: pytest.FixtureRequest) -> Iterator[Consumer]:
    made = Consumer(broker, queue, str(request.param))
    yield made
    made.close()


@pytest.fixture
def deferring(broker: Broker, queue: str) -> Iterator[Consumer]:
    made = Consumer(broker, queue, "defer")
    yield made
    made.close()


def test_l3_an_epoch_is_the_same_for_whoever_asks_again(
    broker: Broker, queue: str, consumer: Consumer
) -> None:
    send_numbered(broker, queue, 30)
    epochs = consumer.begin_anew()
    assert epochs.settled() == 0
    assert epochs.take(1, 10, SEQUENCE_MAX) == Ranges(((1, 10),))
    after = consumer.begin_anew()
    assert after.settled() == 0
    assert after.take(1, 25, SEQUENCE_MAX) == Ranges(((1, 10),))
    assert after.begin(1, 5) == Ranges(((1, 10),))
    assert [message.sequence_number for message in receive(broker, queue, 5)] == list(range(11, 16))
    after.settle(1)
    assert after.take(2, 10, SEQUENCE_MAX) == Ranges(((16, 25),))
    assert len(peeked_ids(broker, queue)) == 15


def test_l3_nothing_above_the_bound_is_taken(
    broker: Broker, queue: str, consumer: Consumer
) -> None:
    send_numbered(broker, queue, 20)
    epochs = consumer.begin_anew()
    assert epochs.take(1, 100, 7) == Ranges(((1, 7),))
    epochs.settle(1)
    assert epochs.take(2, 100, 7) == Ranges()
    assert len(receive(broker, queue, 13)) == 13, "the others are free"


def test_l3_attempts_are_counted_across_restarts(
    broker: Broker, queue: str, consumer: Consumer
) -> None:
    sent = send_numbered(broker, queue, 12)
    consumer.begin_anew().take(1, 10, SEQUENCE_MAX)
    for _ in range(2):
        assert consumer.begin_anew().begin(1, 2) == Ranges(((1, 10),))
    assert consumer.begin_anew().begin(1, 2) == Ranges()
    dead = peek(broker, queue, sub_queue="deadletter")
    assert sorted(str(message.message_id) for message in dead) == sent[:10]
    after = consumer.begin_anew()
    assert after.begin(1, 2) == Ranges(), "it stays buried"
    after.settle(1)
    assert after.take(2, 10, SEQUENCE_MAX) == Ranges(((11, 12),))


def test_l3_every_answer_may_get_lost(broker: Broker, queue: str, consumer: Consumer) -> None:
    send_numbered(broker, queue, 120)
    epochs = consumer.begin_anew(Stammering)
    taken = epochs.take(1, 120, SEQUENCE_MAX)
    assert taken == Ranges(((1, 120),))
    assert epochs.begin(1, 5) == taken
    # Its memory and the broker agree: one that knows nothing finds the same.
    assert consumer.begin_anew().take(1, 1, SEQUENCE_MAX) == taken
    epochs.settle(1)
    assert peeked_ids(broker, queue) == []


def test_l3_a_burial_may_lose_its_answers(broker: Broker, queue: str, consumer: Consumer) -> None:
    sent = send_numbered(broker, queue, 60)
    consumer.begin_anew().take(1, 60, SEQUENCE_MAX)
    consumer.begin_anew().begin(1, 1)
    assert consumer.begin_anew(Stammering).begin(1, 1) == Ranges()
    assert sorted(peeked_ids(broker, queue, sub_queue="deadletter")) == sent
    assert peeked_ids(broker, queue) == []


def test_l3_what_was_deleted_from_under_a_query_is_named(
    broker: Broker, queue: str, deferring: Consumer
) -> None:
    send_numbered(broker, queue, 10)
    epochs = deferring.begin_anew()
    taken = epochs.take(1, 10, SEQUENCE_MAX)
    deferring.begin_anew().settle(1)
    line = Line(broker.connection_string, queue, "test")
    with line, pytest.raises(MessagesGoneError, match="1–10"):
        list(Pages(line, include_body=True, states=("deferred",)).exactly(taken))
    with pytest.raises(MessagesGoneError, match="epoch 1"):
        deferring.begin_anew().begin(1, 5)


def test_l3_the_mark_of_a_deferred_message_is_not_shown(
    broker: Broker, queue: str, deferring: Consumer
) -> None:
    send_numbered(broker, queue, 3)
    taken = deferring.begin_anew().take(1, 3, SEQUENCE_MAX)
    with Line(broker.connection_string, queue, "test") as line:
        pages = Pages(line, include_body=True, states=("deferred",))
        (batch,) = pages.exactly(taken)
    assert dict(batch["application_properties"][0].as_py()) == {HELD: "1 0 me"}
    assert without_marks(batch)["application_properties"].to_pylist() == [[], [], []]


def test_l3_sessions_cannot_be_deferred(broker: Broker, session_queue: str) -> None:
    epochs = Consumer(broker, session_queue, "defer").begin_anew()
    with pytest.raises(ServiceBusError, match="requires sessions"):
        epochs.take(1, 10, SEQUENCE_MAX)
    epochs.close()
