"""Sessions through the blocking SDK: accept, state, renew, lose, hand over (E6)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
)
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.compat.whole.kit import (
    DEAD_LETTER,
    EMPTY_WAIT,
    RECEIVE_AND_DELETE,
    Bus,
    bodies,
    drain,
    reason,
    receiver_of,
    send,
    session_filter,
    take,
    take_one,
)

BRIEF = {"requires_session": True, "lock_duration": timedelta(seconds=5)}


def in_session(session_id: str, *texts: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(text, session_id=session_id) for text in texts]


def accept(
    client: ServiceBusClient, path: str, session_id: Any, **options: Any
) -> ServiceBusReceiver:
    return receiver_of(client, path, session_id=session_id, **options)


def make(bus: Bus, kind: str, **settings: Any) -> tuple[str, str]:
    """Give where to send and where to receive."""
    if kind == "queue":
        queue = bus.queue(**settings)
        return queue, queue
    topic = bus.topic()
    return topic, f"{topic}/{bus.subscription(topic, **settings)}"


@pytest.mark.parametrize("kind", ["queue", "subscription"])
def test_e6_a_session_is_read_in_order_by_its_holder_only(
    bus: Bus, client: ServiceBusClient, kind: str
) -> None:
    """E6: accept by id; a second receiver is refused; other sessions stay apart."""
    target, path = make(bus, kind, requires_session=True)
    send(client, target, *in_session("red", "r1"), *in_session("blue", "b1"))
    send(client, target, *in_session("red", "r2", "r3"))
    with accept(client, path, "red") as receiver:
        assert receiver.session is not None
        assert receiver.session.session_id == "red"
        messages = take(receiver, 3)
        assert bodies(messages) == ["r1", "r2", "r3"]
        assert {message.session_id for message in messages} == {"red"}
        with pytest.raises(SessionCannotBeLockedError) as refused:
            accept(client, path, "red").__enter__()
        assert "TrackingId:" in str(refused.value)
        for message in messages:
            receiver.complete_message(message)
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
    assert bodies(drain(client, path, 1, session_id="blue")) == ["b1"]


def test_e6_next_available_session(bus: Bus, client: ServiceBusClient) -> None:
    """E6 R9: free sessions one after the other; when there is none, the wait ends."""
    queue = bus.queue(requires_session=True)
    send(client, queue, *in_session("one", "1"), *in_session("two", "2"))
    first = accept(client, queue, NEXT_AVAILABLE_SESSION)
    second = accept(client, queue, NEXT_AVAILABLE_SESSION)
    with first, second:
        assert first.session is not None
        assert second.session is not None
        assert {first.session.session_id, second.session.session_id} == {"one", "two"}
        began = time.monotonic()
        with pytest.raises(OperationTimeoutError):
            accept(client, queue, NEXT_AVAILABLE_SESSION, max_wait_time=1).__enter__()
        assert 0.8 < time.monotonic() - began < 5


def test_e6_next_available_session_waits_for_one(bus: Bus, client: ServiceBusClient) -> None:
    """E6: the attach is answered when a session comes free."""
    queue = bus.queue(requires_session=True)
    waiting = accept(client, queue, NEXT_AVAILABLE_SESSION, max_wait_time=20)
    with bus.client() as other, other.get_queue_sender(queue) as sender:
        schedule_at = datetime.now(UTC) + timedelta(seconds=1.5)
        sender.schedule_messages(in_session("late", "a"), schedule_at)
        with waiting:
            assert waiting.session is not None
            assert waiting.session.session_id == "late"
            assert str(take_one(waiting)) == "a"


def test_e6_an_empty_session_and_the_empty_name(bus: Bus, client: ServiceBusClient) -> None:
    """E6: a named session can be held before it has messages; `""` is a legal id."""
    queue = bus.queue(requires_session=True)
    with accept(client, queue, "later") as receiver:
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
        send(client, queue, *in_session("later", "a"))
        assert str(take_one(receiver)) == "a"
    send(client, queue, *in_session("", "nameless"))
    with bus.proton() as connection:
        assert (
            connection.create_receiver(queue, options=session_filter("")).receive().body is not None
        )


def test_e6_session_state(bus: Bus, client: ServiceBusClient) -> None:
    """E6: set, read by the next holder, cleared; any bytes up to 256 KB."""
    queue = bus.queue(requires_session=True)
    with accept(client, queue, "s") as receiver:
        assert receiver.session is not None
        assert receiver.session.get_state() is None
        receiver.session.set_state(b"\x00\xffstate")
        assert receiver.session.get_state() == b"\x00\xffstate"
        receiver.session.set_state(b"x" * 200_000)
        with pytest.raises(ServiceBusError):
            receiver.session.set_state(b"x" * (256 * 1024 + 1))
    with accept(client, queue, "s") as receiver:
        assert receiver.session is not None
        assert receiver.session.get_state() == b"x" * 200_000
        receiver.session.set_state(None)
        assert receiver.session.get_state() is None


def test_e6_r6_renewing_keeps_a_session(bus: Bus, client: ServiceBusClient) -> None:
    """E6 R6 R5: a renewed session is kept past its first end, then its messages settle."""
    queue = bus.queue(**BRIEF)
    send(client, queue, *in_session("s", "a"))
    with accept(client, queue, "s") as receiver:
        session = receiver.session
        assert session is not None
        message = take_one(receiver)
        before = session.locked_until_utc
        assert before is not None
        time.sleep(3)
        until = session.renew_lock()
        assert until > before
        time.sleep(3)
        receiver.complete_message(message)
    with accept(client, queue, "s") as receiver:
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []


def test_e6_r5_a_lost_session(bus: Bus, client: ServiceBusClient) -> None:
    """E6 R3 R5: after the lock ran out nothing settles; the messages count one attempt more."""
    queue = bus.queue(**BRIEF)
    send(client, queue, *in_session("s", "a", "b"))
    with accept(client, queue, "s") as receiver:
        session = receiver.session
        assert session is not None
        session.set_state(b"kept")
        late, unread = take(receiver, 2)
        time.sleep(5.3)
        with pytest.raises(SessionLockLostError):
            receiver.complete_message(late)
        with pytest.raises(SessionLockLostError):
            session.renew_lock()
        with pytest.raises(SessionLockLostError):
            session.set_state(b"too late")
        with accept(client, queue, "s") as other:
            again = take(other, 2)
            assert bodies(again) == ["a", "b"]
            assert [message.delivery_count for message in again] == [1, 1]
            assert other.session is not None
            assert other.session.get_state() == b"kept"
            for message in again:
                other.complete_message(message)
    assert unread.delivery_count == 0


def test_e6_a_session_goes_from_one_receiver_to_another_with_its_state(
    bus: Bus, client: ServiceBusClient
) -> None:
    """E6 R4: the next holder goes on where the first stopped; what was unsettled comes first."""
    queue = bus.queue(requires_session=True)
    send(client, queue, *in_session("job", "1", "2", "3", "4"))
    with accept(client, queue, "job") as first:
        assert first.session is not None
        one, two = take(first, 2)
        first.complete_message(one)
        first.session.set_state(b"done: 1")
        assert str(two) == "2"
    with bus.client() as other, accept(other, queue, NEXT_AVAILABLE_SESSION) as second:
        assert second.session is not None
        assert second.session.session_id == "job"
        assert second.session.get_state() == b"done: 1"
        rest = take(second, 3)
        assert bodies(rest) == ["2", "3", "4"]
        # The first receiver left in good order: that was no failed attempt.
        assert [message.delivery_count for message in rest] == [0, 0, 0]


def test_e6_r7_a_lost_connection_frees_the_session(bus: Bus, client: ServiceBusClient) -> None:
    """E6 R7: proton's socket goes away without a word; the session is free at once."""
    queue = bus.queue(requires_session=True)
    send(client, queue, *in_session("s", "a"))
    with bus.proton() as connection:
        connection.create_receiver(queue, options=session_filter("s")).receive()
        connection.conn.transport.close_tail()
        connection.conn.transport.close_head()
        connection.container.process()
    with accept(client, queue, "s") as receiver:
        assert str(take_one(receiver)) == "a"


def test_e6_abandon_defer_and_dead_letter_in_a_session(bus: Bus, client: ServiceBusClient) -> None:
    """E6 R4 E5 D2: order is kept; a deferred message is fetched within its session."""
    queue = bus.queue(requires_session=True)
    send(client, queue, *in_session("s", "a", "b", "c"))
    with accept(client, queue, "s") as receiver:
        a = take_one(receiver)
        receiver.abandon_message(a)
        again = take_one(receiver)
        assert (str(again), again.delivery_count) == ("a", 1)
        receiver.defer_message(again)
        b = take_one(receiver)
        receiver.dead_letter_message(b, reason="unfit", error_description="why")
        assert again.sequence_number is not None
        (fetched,) = receiver.receive_deferred_messages(again.sequence_number)
        assert (str(fetched), fetched.delivery_count) == ("a", 2)
        receiver.complete_message(fetched)
        receiver.complete_message(take_one(receiver))
    (dead,) = drain(client, queue, 1, sub_queue=DEAD_LETTER)
    assert (str(dead), dead.session_id, *reason(dead)) == ("b", "s", "unfit", "why")


def test_e6_peek_in_a_session(bus: Bus, client: ServiceBusClient) -> None:
    """E5 E6: a session receiver browses its own session only."""
    queue = bus.queue(requires_session=True)
    send(client, queue, *in_session("x", "x1"), *in_session("y", "y1"), *in_session("x", "x2"))
    with accept(client, queue, "x") as receiver:
        assert bodies(receiver.peek_messages(10)) == ["x1", "x2"]


def test_e6_sessions_are_listed(bus: Bus, client: ServiceBusClient) -> None:
    """E6: those with messages or state; or those whose state was set since a time."""
    queue = bus.queue(requires_session=True)
    send(client, queue, *in_session("m1", "a"), *in_session("m2", "b"))
    since = datetime.now(UTC) - timedelta(seconds=1)
    with accept(client, queue, "stateful") as receiver:
        assert receiver.session is not None
        receiver.session.set_state(b"x")
    assert sorted(client.list_queue_sessions(queue)) == ["m1", "m2", "stateful"]
    assert list(client.list_queue_sessions(queue, state_updated_after=since)) == ["stateful"]
    topic, path = make(bus, "subscription", requires_session=True)
    send(client, topic, *in_session("t", "a"))
    assert list(client.list_subscription_sessions(*path.split("/"))) == ["t"]


def test_e6_receive_and_delete_in_a_session(bus: Bus, client: ServiceBusClient) -> None:
    """R1 E6."""
    queue = bus.queue(requires_session=True)
    send(client, queue, *in_session("s", "a", "b"))
    with accept(client, queue, "s", receive_mode=RECEIVE_AND_DELETE) as receiver:
        assert bodies(take(receiver, 2)) == ["a", "b"]
    with accept(client, queue, "s") as receiver:
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []


def test_e6_sessions_and_entities_must_fit(bus: Bus, client: ServiceBusClient) -> None:
    """E6 S2: no session id, no session receiver, a session where there are none."""
    plain, queue = bus.queue(), bus.queue(requires_session=True)
    with pytest.raises(ServiceBusError, match="TrackingId:"):
        send(client, queue, "no session id")
    with pytest.raises(ServiceBusError, match="TrackingId:"):
        accept(client, plain, "s").__enter__()
    with pytest.raises(ServiceBusError, match="TrackingId:"):
        receiver_of(client, queue).__enter__()
