"""What survives the end of a broker, seen through the SDK and proton (S1, R7, E5–E7, E10).

These take longest, so they come first.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import SqlRuleAction, SqlRuleFilter
from proton import ConnectionException, Message
from proton.utils import BlockingConnection

from tests.compat.whole.kit import (
    DEAD_LETTER,
    TRANSFER_DEAD_LETTER,
    Bus,
    bodies,
    drain,
    receiver_of,
    send,
    session_filter,
    take,
    take_one,
)
from tests.compat.whole.raw import Management, messages_in
from tests.compat.whole.work import Via, Work

WINDOW = timedelta(seconds=30)


def test_e7_the_duplicate_window_outlives_the_broker(bus: Bus) -> None:
    """E7: within the window it is a duplicate after kill -9 too, outside it is not."""
    with bus.another() as other:
        queue = other.queue(
            requires_duplicate_detection=True, duplicate_detection_history_time_window=WINDOW
        )
        with other.client() as client:
            send(client, queue, "a")
            sent = time.monotonic()
        other.broker.kill()
        other.broker.start()
        with other.client() as client:
            send(client, queue, "a", "b")
            assert time.monotonic() - sent < 29, "too slow to tell"
            assert bodies(drain(client, queue, 2)) == ["a", "b"]
        other.broker.restart()
        time.sleep(max(0.0, 30.5 - (time.monotonic() - sent)))
        with other.client() as client:
            send(client, queue, "a")
            assert bodies(drain(client, queue, 1)) == ["a"]


def test_d7_a_dead_letter_that_comes_back_does_not_end_the_broker(bus: Bus) -> None:
    """D7 D8: what a topic's subscription buries and sends to that topic again ends in its
    transfer dead-letter queue, when it is sent and when it comes due at a start."""
    with bus.another() as other:
        topic, queue = other.topic(), other.queue()
        subscription = other.subscription(
            topic, requires_session=True, forward_dead_lettered_messages_to=topic
        )
        with other.client() as client, client.get_topic_sender(topic) as sender:
            sender.send_messages(ServiceBusMessage("now"))
            soon = datetime.now(UTC) + timedelta(seconds=1)
            sender.schedule_messages(ServiceBusMessage("later"), soon)
        other.broker.kill()
        time.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds()))
        for _ in range(2):
            other.broker.start()
            with other.client() as client:
                send(client, queue, "served")
                assert bodies(drain(client, queue, 1)) == ["served"]
                receiver = client.get_subscription_receiver(
                    topic, subscription, sub_queue=TRANSFER_DEAD_LETTER
                )
                with receiver:
                    assert bodies(receiver.peek_messages(5)) == ["now", "later"]
            other.broker.kill()
        other.broker.start()


def test_e5_scheduled_messages_across_a_restart(bus: Bus) -> None:
    """E5: due while the broker is down, due afterwards, cancelled before and after."""
    with bus.another() as other:
        queue, topic = other.queue(), other.topic()
        path = f"{topic}/{other.subscription(topic)}"
        soon = datetime.now(UTC) + timedelta(seconds=2)
        late = datetime.now(UTC) + timedelta(seconds=30)
        with other.client() as client, client.get_queue_sender(queue) as sender:
            numbers = sender.schedule_messages(
                [ServiceBusMessage(text) for text in ("late", "before", "after")], late
            )
            sender.schedule_messages(ServiceBusMessage("soon"), soon)
            sender.cancel_scheduled_messages(numbers[1])
            with client.get_topic_sender(topic) as publisher:
                publisher.schedule_messages(ServiceBusMessage("fan out"), late)
        other.broker.kill()
        time.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds()))
        other.broker.start()
        with other.client() as client, client.get_queue_sender(queue) as sender:
            sender.cancel_scheduled_messages(numbers[2])
            with receiver_of(client, queue) as receiver:
                assert bodies(take(receiver)) == ["soon"]
                time.sleep(max(0.0, (late - datetime.now(UTC)).total_seconds()))
                second = take_one(receiver)
                assert str(second) == "late"
                assert second.enqueued_time_utc is not None
                assert second.enqueued_time_utc >= late - timedelta(milliseconds=1)
            assert bodies(drain(client, path, 1)) == ["fan out"]


@pytest.mark.parametrize("ending", ["terminate", "kill"])
def test_r7_everything_but_locks_survives(bus: Bus, ending: str) -> None:
    """S1 R7 E6 E8 D5: entities, rules, states, counts, numbers; locks and sessions are free.

    A broker that goes is nobody's failed attempt.
    """
    with bus.another() as other:
        queue = other.queue(max_delivery_count=3, dead_lettering_on_message_expiration=True)
        sessions = other.queue(requires_session=True)
        topic = other.topic()
        action = SqlRuleAction("SET b = a + 1")
        path = f"{topic}/{other.subscription(topic, {'r': (SqlRuleFilter('a > 1'), action)})}"
        with other.client() as client:
            expires = ServiceBusMessage("expires", time_to_live=timedelta(seconds=1))
            send(client, queue, "deferred", "tried", "locked", expires)
            with receiver_of(client, queue) as receiver:
                deferred = take_one(receiver)
                receiver.defer_message(deferred)
                receiver.abandon_message(take_one(receiver))
            send(client, sessions, ServiceBusMessage("a", session_id="s"))
            with receiver_of(client, sessions, session_id="s") as holder:
                assert holder.session is not None
                holder.session.set_state(b"kept")
        with doomed(other) as connection:
            receiver = connection.create_receiver(queue)
            assert [receiver.receive().id for _ in range(2)] == ["tried", "locked"]
            connection.create_receiver(sessions, options=session_filter("s")).receive()
            getattr(other.broker, ending)()
        other.broker.start()
        with other.client() as client:
            with receiver_of(client, queue) as receiver:
                again = take(receiver, 2)
                assert [(str(m), m.delivery_count) for m in again] == [("tried", 1), ("locked", 0)]
                (fetched,) = receiver.receive_deferred_messages(deferred.sequence_number or 0)
                assert fetched.delivery_count == 1
            with receiver_of(client, sessions, session_id="s") as holder:
                assert holder.session is not None
                assert holder.session.get_state() == b"kept"
                message = take_one(holder)
                assert (str(message), message.delivery_count) == ("a", 0)
            assert bodies(drain(client, queue, 1, sub_queue=DEAD_LETTER)) == ["expires"]
            for number in (1, 2):
                send(client, topic, ServiceBusMessage("m", application_properties={"a": number}))
            (copy,) = drain(client, path, 1)
            assert copy.application_properties[b"b"] == 3
            send(client, queue, "next")
            with receiver_of(client, queue) as receiver:
                last = receiver.peek_messages(10)[-1]
                assert (str(last), last.sequence_number) == ("next", 5)


# --- transactions ---------------------------------------------------------------------


@contextmanager
def doomed(bus: Bus) -> Iterator[BlockingConnection]:
    """A connection whose broker may be killed under it."""
    with suppress(ConnectionException), bus.proton() as connection:
        yield connection
        # Its end must be seen before it is closed, or closing waits for an answer.
        connection.wait(lambda: False)


def parts(bus: Bus, queues: list[str]) -> list[list[str]]:
    """What each queue holds; it is then empty."""
    with bus.proton() as connection:
        return [emptied(Management(connection, queue)) for queue in queues]


def emptied(management: Management) -> list[str]:
    shown = management.ask("peek-message", {"from-sequence-number": 1, "message-count": 100})
    found = [message.id for message in messages_in(shown)]
    purged = management.ask("twinbus:purge", {"state": "active"})
    assert purged.body == {"message-count": len(found)}
    return found


def send_with_proton(bus: Bus, queue: str, text: str) -> None:
    with bus.proton() as connection:
        connection.create_sender(queue).send(Message(body=text, id=text))


@pytest.mark.parametrize("moment", ["before the discharge", "after the commit"])
def test_e10_a_crash_between_the_parts(bus: Bus, moment: str) -> None:
    """E10 S1 R7: kill -9 with the parts sent: none of them; after the answer: all of them."""
    with bus.another() as other:
        source, first, second = (other.queue() for _ in range(3))
        send_with_proton(other, source, "order")
        with doomed(other) as connection:
            work = Work(connection)
            work.complete(connection.create_receiver(source))
            work.send(connection.create_sender(first), "invoice")
            work.send(connection.create_sender(source, options=Via(second)), "label")
            if moment == "after the commit":
                assert work.commit() == "committed"
            other.broker.kill()
        other.broker.start()
        found = parts(other, [source, first, second])
        if moment == "after the commit":
            assert found == [[], ["invoice"], ["label"]]
        else:
            assert found == [["order"], [], []]


@pytest.mark.timeout(120)
def test_e10_a_crash_during_the_commit(bus: Bus) -> None:
    """E10 S1: killed at a random moment around the discharge, all of it is there or nothing."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    with bus.another() as other:
        source, first, second = (other.queue() for _ in range(3))
        for number in range(5):
            send_with_proton(other, source, f"order {number}")
            outcome = ""
            with doomed(other) as connection:
                work = Work(connection)
                work.complete(connection.create_receiver(source))
                work.send(connection.create_sender(first), f"invoice {number}")
                work.send(connection.create_sender(second), f"label {number}")
                killer = threading.Timer(dice.uniform(0, 0.004), other.broker.kill)
                killer.start()
                try:
                    outcome = work.commit()
                finally:
                    killer.join()
            other.broker.start()
            found = parts(other, [source, first, second])
            nothing = [[f"order {number}"], [], []]
            everything = [[], [f"invoice {number}"], [f"label {number}"]]
            where = f"round {number} of seed {seed}: {found}"
            assert found == everything or (found == nothing and outcome != "committed"), where
