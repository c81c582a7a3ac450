"""Scheduled, cancelled and deferred messages, peeking, duplicates (E5, E7)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError

from tests.compat.whole.kit import (
    DEAD_LETTER,
    EMPTY_WAIT,
    RECEIVE_AND_DELETE,
    WAIT,
    Bus,
    assert_empty,
    bodies,
    drain,
    receiver_of,
    send,
    take,
    take_one,
)

ACTIVE = ServiceBusMessageState.ACTIVE
DEFERRED = ServiceBusMessageState.DEFERRED
SCHEDULED = ServiceBusMessageState.SCHEDULED


def after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


# --- scheduling -----------------------------------------------------------------------


def test_e5_a_scheduled_message_waits_until_it_is_due(bus: Bus, client: ServiceBusClient) -> None:
    """E5 E4: invisible, then active with a new number; the scheduled time stays with it."""
    queue = bus.queue()
    due = after(6)
    with client.get_queue_sender(queue) as sender:
        (number,) = sender.schedule_messages(ServiceBusMessage("later"), due)
        sender.send_messages(ServiceBusMessage("now"))
        # A plain send with a time in the future schedules too.
        sender.send_messages(ServiceBusMessage("also", scheduled_enqueue_time_utc=due))
    with receiver_of(client, queue) as receiver:
        assert bodies(take(receiver)) == ["now"]
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
        assert datetime.now(UTC) < due
        came = take(receiver, 2)
        assert sorted(bodies(came)) == ["also", "later"]
        for message in came:
            assert message.enqueued_time_utc is not None
            assert message.enqueued_time_utc >= due - timedelta(milliseconds=1)
            assert message.scheduled_enqueue_time_utc is not None
            assert abs(message.scheduled_enqueue_time_utc - due) < timedelta(milliseconds=2)
            assert message.sequence_number is not None
            assert message.sequence_number > number
            assert message.state == ACTIVE
            assert message.delivery_count == 0


def test_e5_a_topic_schedules_and_fans_out_when_due(bus: Bus, client: ServiceBusClient) -> None:
    """E5 E8: a subscription made before it is due gets its copy as well."""
    topic = bus.topic()
    first = bus.subscription(topic)
    with client.get_topic_sender(topic) as sender:
        numbers = sender.schedule_messages(
            [ServiceBusMessage("a"), ServiceBusMessage("cancelled")], after(2)
        )
        sender.cancel_scheduled_messages(numbers[1])
    with bus.administration() as admin:
        assert admin.get_topic_runtime_properties(topic).scheduled_message_count == 1
    second = bus.subscription(topic)
    for sub in (first, second):
        assert bodies(drain(client, f"{topic}/{sub}", 1)) == ["a"]


def test_e5_cancelling(bus: Bus, client: ServiceBusClient) -> None:
    """E5: by sequence number, one or several; a number that is not scheduled is refused."""
    queue = bus.queue()
    with client.get_queue_sender(queue) as sender:
        numbers = sender.schedule_messages([ServiceBusMessage(text) for text in "abcd"], after(60))
        assert len(set(numbers)) == 4
        sender.cancel_scheduled_messages(numbers[0])
        sender.cancel_scheduled_messages(numbers[1:3])
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(numbers[0])
        with pytest.raises(MessageNotFoundError):
            # All or none: the one that is still there stays.
            sender.cancel_scheduled_messages([numbers[3], numbers[0]])
    with receiver_of(client, queue) as receiver:
        (left,) = receiver.peek_messages(10)
        assert (str(left), left.state, left.sequence_number) == ("d", SCHEDULED, numbers[3])


def test_e5_scheduling_keeps_sessions_and_time_to_live(bus: Bus, client: ServiceBusClient) -> None:
    """E5 E6 D5: time to live runs from the moment a message is due."""
    queue = bus.queue(requires_session=True)
    with client.get_queue_sender(queue) as sender:
        message = ServiceBusMessage("a", session_id="s", time_to_live=timedelta(seconds=4))
        sender.schedule_messages(message, after(2))
        with pytest.raises(ServiceBusError):
            sender.schedule_messages(ServiceBusMessage("no session"), after(2))
    time.sleep(3)
    (got,) = drain(client, queue, 1, session_id="s")
    assert got.time_to_live == timedelta(seconds=4)


# --- deferral -------------------------------------------------------------------------


def test_e5_deferred_messages_come_by_number_only(bus: Bus, client: ServiceBusClient) -> None:
    """E5 R4: never by receive; several at once; abandoned they stay deferred."""
    queue = bus.queue()
    send(client, queue, "a", "b", "c")
    with receiver_of(client, queue) as receiver:
        held = take(receiver, 3)
        numbers = [message.sequence_number or 0 for message in held]
        for message in held:
            receiver.defer_message(message)
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
        assert [m.state for m in receiver.peek_messages(5, sequence_number=1)] == [DEFERRED] * 3
        a, b, c = receiver.receive_deferred_messages(numbers)
        assert bodies([a, b, c]) == ["a", "b", "c"]
        assert [m.state for m in (a, b, c)] == [DEFERRED] * 3
        # A deferral counts as an attempt.
        assert a.delivery_count == 1
        receiver.abandon_message(a)
        receiver.defer_message(b)
        receiver.dead_letter_message(c, reason="unfit")
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
        a, b = receiver.receive_deferred_messages(numbers[:2])
        assert (a.delivery_count, b.delivery_count) == (2, 2)
        receiver.complete_message(a)
        receiver.complete_message(b)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(numbers[0])
    assert bodies(drain(client, queue, 1, sub_queue=DEAD_LETTER)) == ["c"]


def test_e5_one_missing_number_fetches_nothing(bus: Bus, client: ServiceBusClient) -> None:
    """E5: any missing is an error, and the others stay unlocked."""
    queue = bus.queue()
    send(client, queue, "a", "b")
    with receiver_of(client, queue) as receiver:
        a, b = take(receiver, 2)
        receiver.defer_message(a)
        numbers = [a.sequence_number or 0, b.sequence_number or 0]
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(numbers)
        (a,) = receiver.receive_deferred_messages(numbers[:1])
        receiver.complete_message(a)
        receiver.complete_message(b)


def test_e5_a_deferred_message_received_and_deleted(bus: Bus, client: ServiceBusClient) -> None:
    """E5 R1."""
    queue = bus.queue()
    send(client, queue, "a")
    with receiver_of(client, queue) as receiver:
        message = take_one(receiver)
        receiver.defer_message(message)
    number = message.sequence_number or 0
    with receiver_of(client, queue, receive_mode=RECEIVE_AND_DELETE) as receiver:
        (got,) = receiver.receive_deferred_messages(number)
        assert (str(got), got.delivery_count) == ("a", 1)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(number)


def test_e5_defer_on_a_subscription_and_in_a_dead_letter_queue(
    bus: Bus, client: ServiceBusClient
) -> None:
    """E5 D1: the same on a subscription; and dead letters can be deferred."""
    topic = bus.topic()
    path = f"{topic}/{bus.subscription(topic)}"
    send(client, topic, "a")
    with receiver_of(client, path) as receiver:
        message = take_one(receiver)
        receiver.defer_message(message)
        (message,) = receiver.receive_deferred_messages(message.sequence_number or 0)
        receiver.dead_letter_message(message)
    with receiver_of(client, path, sub_queue=DEAD_LETTER) as receiver:
        message = take_one(receiver)
        receiver.defer_message(message)
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
        (message,) = receiver.receive_deferred_messages(message.sequence_number or 0)
        receiver.complete_message(message)
    assert_empty(client, path, sub_queue=DEAD_LETTER)


# --- peeking --------------------------------------------------------------------------


def test_e5_peek_shows_everything_and_locks_nothing(bus: Bus, client: ServiceBusClient) -> None:
    """E5: active, locked, deferred and scheduled, from a number on; not dead letters."""
    queue = bus.queue()
    send(client, queue, "active", "locked", "deferred", "dead")
    with client.get_queue_sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("scheduled"), after(60))
    with receiver_of(client, queue) as receiver:
        active, _, deferred, dead = take(receiver, 4)
        receiver.abandon_message(active)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead)
        shown = receiver.peek_messages(10, sequence_number=1)
        assert [(str(message), message.state) for message in shown] == [
            ("active", ACTIVE),
            ("locked", ACTIVE),
            ("deferred", DEFERRED),
            ("scheduled", SCHEDULED),
        ]
        assert all(message.lock_token is None for message in shown)
        again = receiver.peek_messages(10, sequence_number=shown[2].sequence_number or 0)
        assert bodies(again) == ["deferred", "scheduled"]
        assert bodies(receiver.peek_messages(1, sequence_number=1)) == ["active"]
        assert str(take_one(receiver)) == "active"
    with receiver_of(client, queue, sub_queue=DEAD_LETTER) as receiver:
        assert bodies(receiver.peek_messages(10)) == ["dead"]


def test_e5_peek_goes_on_where_it_stopped(bus: Bus, client: ServiceBusClient) -> None:
    """E5: page by page through more than one answer holds."""
    queue = bus.queue()
    with client.get_queue_sender(queue) as sender:
        for start in range(0, 600, 200):
            sender.send_messages([ServiceBusMessage(str(n)) for n in range(start, start + 200)])
    seen: list[str] = []
    with receiver_of(client, queue) as receiver:
        number = 1
        while page := receiver.peek_messages(500, sequence_number=number):
            seen += bodies(page)
            number = (page[-1].sequence_number or 0) + 1
    assert seen == [str(n) for n in range(600)]


# --- duplicates -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_e7_a_duplicate_is_accepted_and_dropped(
    bus: Bus, client: ServiceBusClient, kind: str
) -> None:
    """E7: alone, in a batch, in any order; after the first is gone as well."""
    if kind == "queue":
        target = path = bus.queue(requires_duplicate_detection=True)
    else:
        target = bus.topic(requires_duplicate_detection=True)
        path = f"{target}/{bus.subscription(target)}"
    send(client, target, "a", "b", "a")
    assert bodies(drain(client, path, 2)) == ["a", "b"]
    with client.get_queue_sender(target) as sender:
        batch = [ServiceBusMessage(text, message_id=text) for text in ("a", "c", "c", "d")]
        sender.send_messages(batch)
        sender.schedule_messages(ServiceBusMessage("b", message_id="b"), after(0.1))
        # Without an id each is a message of its own.
        sender.send_messages(ServiceBusMessage("no id"))
        sender.send_messages(ServiceBusMessage("no id"))
    assert bodies(drain(client, path, 4)) == ["c", "d", "no id", "no id"]


def test_e7_without_detection_duplicates_come(bus: Bus, client: ServiceBusClient) -> None:
    """E7 R10."""
    queue = bus.queue()
    send(client, queue, "a", "a")
    got = drain(client, queue, 2)
    assert [message.message_id for message in got] == ["a", "a"]


def test_e7_outside_the_window_it_is_no_duplicate(bus: Bus, client: ServiceBusClient) -> None:
    """E7: the window is 20 s, the least that is allowed; it does not grow by duplicates."""
    window = timedelta(seconds=20)
    queue = bus.queue(
        requires_duplicate_detection=True, duplicate_detection_history_time_window=window
    )
    began = time.monotonic()
    send(client, queue, "a")
    time.sleep(11)
    send(client, queue, "a")
    time.sleep(max(0.0, 20.5 - (time.monotonic() - began)))
    send(client, queue, "a")
    with receiver_of(client, queue) as receiver:
        first, second = take(receiver, 2)
        assert second.enqueued_time_utc is not None
        assert first.enqueued_time_utc is not None
        assert second.enqueued_time_utc - first.enqueued_time_utc >= window
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
    assert time.monotonic() - began < 20.5 + WAIT
