"""The official Python SDK, blocking form, unchanged, against a live broker."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    SessionCannotBeLockedError,
)

from tests.compat.whole.kit import (
    DEAD_LETTER,
    EMPTY_WAIT,
    RECEIVE_AND_DELETE,
    WAIT,
    Bus,
    assert_empty,
    bodies,
    send,
    take,
    take_one,
)

BRIEF = timedelta(seconds=5)


def test_what_is_sent_is_received_and_completed(bus: Bus, client: ServiceBusClient) -> None:
    """S1 E4 R2 R4: every property comes back with its type; complete removes."""
    queue = bus.queue()
    trace = uuid.uuid4()
    sent = ServiceBusMessage(
        b"\x00\xffbody",
        message_id="m-1",
        correlation_id="c-1",
        subject="greeting",
        content_type="application/octet-stream",
        to="there",
        reply_to="here",
        reply_to_session_id="rs",
        time_to_live=timedelta(minutes=5),
        application_properties={"text": "ž", "whole": 7, "real": 1.5, "yes": True, "id": trace},
    )
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(sent)
    with client.get_queue_receiver(queue) as receiver:
        got = take_one(receiver)
        assert b"".join(got.body) == b"\x00\xffbody"
        assert (got.message_id, got.correlation_id, got.subject) == ("m-1", "c-1", "greeting")
        assert (got.to, got.reply_to, got.reply_to_session_id) == ("there", "here", "rs")
        assert got.content_type == "application/octet-stream"
        assert got.time_to_live == timedelta(minutes=5)
        assert got.application_properties == {
            b"text": "ž".encode(),
            b"whole": 7,
            b"real": 1.5,
            b"yes": True,
            b"id": trace,
        }
        assert got.sequence_number == 1
        assert got.delivery_count == 0
        assert isinstance(got.lock_token, uuid.UUID)
        assert got.locked_until_utc is not None
        assert got.locked_until_utc > datetime.now(UTC)
        assert got.enqueued_time_utc is not None
        assert abs(datetime.now(UTC) - got.enqueued_time_utc) < timedelta(minutes=1)
        receiver.complete_message(got)
    assert_empty(client, queue)


def test_decimal_properties_come_back(bus: Bus, client: ServiceBusClient) -> None:
    """E4: this SDK reads decimals in a form of its own, and drops a message that has another."""
    queue = bus.queue()
    prices = [Decimal("12.50"), Decimal("-0.001"), Decimal(0), Decimal(4_000_000_000)]
    with client.get_queue_sender(queue) as sender:
        for price in prices:
            sender.send_messages(ServiceBusMessage("x", application_properties={"price": price}))
    with client.get_queue_receiver(queue) as receiver:
        peeked = receiver.peek_messages(max_message_count=10)
        got = take(receiver, len(prices))
        receiver.defer_message(got[0])
        deferred = receiver.receive_deferred_messages([got[0].sequence_number])
    for messages in (peeked, got):
        assert [message.application_properties[b"price"] for message in messages] == prices
    assert deferred[0].application_properties[b"price"] == prices[0]


def test_properties_that_nobody_could_read_are_refused(bus: Bus, client: ServiceBusClient) -> None:
    """E4: this SDK writes a user id that is a text so that it cannot be read."""
    queue = bus.queue()
    broken = ServiceBusMessage("x", message_id="m")
    broken.raw_amqp_message.properties.user_id = "alice"  # type: ignore[union-attr]
    with client.get_queue_sender(queue) as sender:
        with pytest.raises(ServiceBusError):
            sender.send_messages(broken)
        sender.send_messages(ServiceBusMessage("good"))
    with client.get_queue_receiver(queue) as receiver:
        assert str(take_one(receiver)) == "good"


def test_a_batch_arrives_whole_and_in_order(bus: Bus, client: ServiceBusClient) -> None:
    """S6."""
    queue = bus.queue()
    expected = [f"item {number}" for number in range(100)]
    with client.get_queue_sender(queue) as sender:
        batch = sender.create_message_batch()
        for text in expected:
            batch.add_message(ServiceBusMessage(text))
        sender.send_messages(batch)
    got: list[ServiceBusReceivedMessage] = []
    with client.get_queue_receiver(queue) as receiver:
        while len(got) < 100:
            more = receiver.receive_messages(max_message_count=100, max_wait_time=WAIT)
            assert more
            for message in more:
                receiver.complete_message(message)
            got += more
    assert bodies(got) == expected
    assert [message.sequence_number for message in got] == list(range(1, 101))


def test_receive_and_delete_leaves_nothing(bus: Bus, client: ServiceBusClient) -> None:
    """R1: settled on the wire, no lock token."""
    queue = bus.queue()
    send(client, queue, "a", "b")
    with client.get_queue_receiver(queue, receive_mode=RECEIVE_AND_DELETE) as receiver:
        got = take(receiver, 2)
    assert bodies(got) == ["a", "b"]
    assert got[0].lock_token is None
    assert_empty(client, queue)


def test_a_locked_message_is_hidden_and_abandon_puts_it_back_in_place(
    bus: Bus, client: ServiceBusClient
) -> None:
    """R2 R3 R4: competitors get other messages; abandon raises the delivery count."""
    queue = bus.queue()
    send(client, queue, "a", "b")
    with client.get_queue_receiver(queue) as first, client.get_queue_receiver(queue) as second:
        held = take_one(first)
        other = take_one(second)
        assert bodies([held, other]) == ["a", "b"]
        second.abandon_message(other)
        first.abandon_message(held)
        again = take_one(first)
        assert (str(again), again.delivery_count) == ("a", 1)
        assert again.lock_token != held.lock_token
        first.complete_message(again)
        assert str(take_one(first)) == "b"


def test_a_deferred_message_comes_only_by_its_number(bus: Bus, client: ServiceBusClient) -> None:
    """E5 R4: defer, fetch by sequence number, settle; then it is not found."""
    queue = bus.queue()
    send(client, queue, "later")
    with client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        receiver.defer_message(message)
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
        assert message.sequence_number is not None
        (fetched,) = receiver.receive_deferred_messages(message.sequence_number)
        assert (str(fetched), fetched.delivery_count) == ("later", 1)
        assert fetched.state == ServiceBusMessageState.DEFERRED
        receiver.complete_message(fetched)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(message.sequence_number)


def test_dead_lettering_carries_reason_and_description(bus: Bus, client: ServiceBusClient) -> None:
    """R4 D1 D2: and the dead-letter queue is received from like any other."""
    queue = bus.queue()
    send(client, queue, "bad")
    with client.get_queue_receiver(queue) as receiver:
        receiver.dead_letter_message(
            take_one(receiver), reason="unfit", error_description="no price"
        )
    assert_empty(client, queue)
    with client.get_queue_receiver(queue, sub_queue=DEAD_LETTER) as receiver:
        dead = take_one(receiver)
        assert (str(dead), dead.delivery_count) == ("bad", 0)
        assert dead.dead_letter_reason == "unfit"
        assert dead.dead_letter_error_description == "no price"
        receiver.complete_message(dead)
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []


def test_the_documents_loop_ends_in_the_dead_letter_queue(
    bus: Bus, client: ServiceBusClient
) -> None:
    """D3 D9: receive and abandon until nothing comes; three deliveries are allowed here."""
    queue = bus.queue(lock_duration=BRIEF, max_delivery_count=3)
    send(client, queue, "poison")
    attempts = 0
    with client.get_queue_receiver(queue) as receiver:
        # Long enough for a delivery that must come, beside fifteen other tests.
        while got := receiver.receive_messages(max_wait_time=3):
            assert got[0].delivery_count == attempts
            receiver.abandon_message(got[0])
            attempts += 1
    assert attempts == 3
    with client.get_queue_receiver(queue, sub_queue=DEAD_LETTER) as receiver:
        dead = take_one(receiver)
        assert (str(dead), dead.delivery_count) == ("poison", 3)
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
        receiver.complete_message(dead)


def test_renewing_prolongs_a_lock(bus: Bus, client: ServiceBusClient) -> None:
    """R6."""
    queue = bus.queue(lock_duration=BRIEF, max_delivery_count=3)
    send(client, queue, "slow")
    with client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        before = message.locked_until_utc
        assert before is not None
        renewed = receiver.renew_message_lock(message)
        assert renewed >= before
        assert message.locked_until_utc == renewed
        receiver.complete_message(message)


def test_a_lock_that_ran_out_cannot_settle(bus: Bus, client: ServiceBusClient) -> None:
    """R3 R5: the message is delivered again; the old lock never touches it."""
    queue = bus.queue(lock_duration=BRIEF, max_delivery_count=3)
    send(client, queue, "slow")
    with (
        client.get_queue_receiver(queue) as late,
        client.get_queue_receiver(queue) as next_one,
    ):
        held = take_one(late)
        (again,) = next_one.receive_messages(max_wait_time=WAIT)
        assert (str(again), again.delivery_count) == ("slow", 1)
        with pytest.raises(MessageLockLostError):
            late.complete_message(held)
        next_one.complete_message(again)
    assert_empty(client, queue)


def test_peek_browses_without_locking(bus: Bus, client: ServiceBusClient) -> None:
    """E5: active, deferred and scheduled messages, from a sequence number, as often as asked."""
    queue = bus.queue()
    send(client, queue, "a", "b")
    with client.get_queue_sender(queue) as sender:
        due = datetime.now(UTC) + timedelta(hours=1)
        sender.schedule_messages(ServiceBusMessage("s"), due)
    with client.get_queue_receiver(queue) as receiver:
        receiver.defer_message(take_one(receiver))
        peeked = receiver.peek_messages(10, sequence_number=1)
        assert bodies(peeked) == ["a", "b", "s"]
        assert [message.state for message in peeked] == [
            ServiceBusMessageState.DEFERRED,
            ServiceBusMessageState.ACTIVE,
            ServiceBusMessageState.SCHEDULED,
        ]
        assert bodies(receiver.peek_messages(10, sequence_number=2)) == ["b", "s"]
        assert str(take_one(receiver)) == "b"


def test_a_scheduled_message_waits_and_can_be_cancelled(bus: Bus, client: ServiceBusClient) -> None:
    """E5."""
    queue = bus.queue()
    due = datetime.now(UTC) + timedelta(seconds=5)
    with client.get_queue_sender(queue) as sender:
        kept, cancelled = sender.schedule_messages(
            [ServiceBusMessage("kept"), ServiceBusMessage("cancelled")], due
        )
        assert kept != cancelled
        sender.cancel_scheduled_messages(cancelled)
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(cancelled)
    with client.get_queue_receiver(queue) as receiver:
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
        message = take_one(receiver)
        assert str(message) == "kept"
        assert message.enqueued_time_utc is not None
        assert message.enqueued_time_utc >= due - timedelta(milliseconds=1)
        receiver.complete_message(message)
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []


def test_sessions_are_locked_ordered_and_keep_state(bus: Bus, client: ServiceBusClient) -> None:
    """E6."""
    queue = bus.queue(requires_session=True)
    with client.get_queue_sender(queue) as sender:
        for body, session_id in (("1", "red"), ("2", "blue"), ("3", "red")):
            sender.send_messages(ServiceBusMessage(body, session_id=session_id))
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("none"))
    with client.get_queue_receiver(queue, session_id="red") as red:
        assert red.session.locked_until_utc is not None
        with (
            pytest.raises(SessionCannotBeLockedError),
            client.get_queue_receiver(queue, session_id="red"),
        ):
            pass
        red.session.set_state(b"step 1")
        assert red.session.get_state() == b"step 1"
        assert red.session.renew_lock() > datetime.now(UTC)
        for expected in ("1", "3"):
            message = take_one(red)
            assert (str(message), message.session_id) == (expected, "red")
            red.complete_message(message)
        with client.get_queue_receiver(
            queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT
        ) as free:
            assert free.session.session_id == "blue"
            free.complete_message(take_one(free))
    with client.get_queue_receiver(queue, session_id="red") as red:
        assert red.session.get_state() == b"step 1"


def test_a_duplicate_is_accepted_and_dropped(bus: Bus, client: ServiceBusClient) -> None:
    """E7."""
    queue = bus.queue(requires_duplicate_detection=True)
    send(client, queue, "same", "same", "other")
    with client.get_queue_receiver(queue) as receiver:
        got = take(receiver, 2)
        assert bodies(got) == ["same", "other"]
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []


def test_large_messages_pass_and_too_large_ones_are_refused(
    bus: Bus, client: ServiceBusClient
) -> None:
    """E4 S2: 256 KB unless the entity says more; several frames each way."""
    queue = bus.queue()
    body = bytes(range(256)) * 1000
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(body))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(bytes(300 * 1024)))
    with client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        assert b"".join(message.body) == body
        receiver.complete_message(message)


def test_refusals_name_the_fault(bus: Bus, client: ServiceBusClient) -> None:
    """S2: an entity that does not exist; a key that is not the key."""
    queue = bus.queue()
    # Over $cbs, where this SDK first meets the broker, a missing entity is an authentication
    # matter to it; a link to one is MessagingEntityNotFoundError.
    missing = (ServiceBusAuthenticationError, MessagingEntityNotFoundError)
    with pytest.raises(missing), client.get_queue_sender("no-such-queue") as sender:
        sender.send_messages(ServiceBusMessage("x"))
    name, _, rest = bus.broker.connection_string.partition("SharedAccessKey=")
    forged = f"{name}SharedAccessKey={'A' * 43}={rest[rest.index(';') :]}"
    with (
        ServiceBusClient.from_connection_string(forged, retry_total=0) as stranger,
        pytest.raises(ServiceBusAuthenticationError),
        stranger.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
