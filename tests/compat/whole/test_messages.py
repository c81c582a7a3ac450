"""What a message looks like when it arrives: types, annotations, bodies (E4, WIRE section 6)."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader
from proton import Message, symbol
from proton.reactor import AtMostOnce

from tests.compat.whole.kit import (
    DEAD_LETTER,
    RECEIVE_AND_DELETE,
    Bus,
    assert_empty,
    drain,
    receiver_of,
    send,
    take_one,
)
from tests.compat.whole.raw import Management, tokens

SEQUENCE, ENQUEUED = b"x-opt-sequence-number", b"x-opt-enqueued-time"
LOCKED_UNTIL, LOCK_TOKEN = b"x-opt-locked-until", b"x-opt-lock-token"
PARTITION_KEY = b"x-opt-partition-key"


def test_e4_a_locked_message_has_exactly_its_annotations(
    bus: Bus, client: ServiceBusClient
) -> None:
    """E4 R2: sequence number, time, lock; nothing of scheduling, state or origin."""
    queue = bus.queue()
    send(client, queue, ServiceBusMessage("a", partition_key="k"))
    with receiver_of(client, queue) as receiver:
        message = take_one(receiver)
        raw = message.raw_amqp_message
        assert set(raw.annotations) == {SEQUENCE, ENQUEUED, LOCKED_UNTIL, PARTITION_KEY}
        assert raw.delivery_annotations == {LOCK_TOKEN: message.lock_token}
        assert raw.header.delivery_count == 0
        assert not raw.header.time_to_live
        assert (message.enqueued_sequence_number, message.scheduled_enqueue_time_utc) == (
            None,
            None,
        )
        assert message.dead_letter_source is None
        receiver.complete_message(message)


def test_e4_a_message_without_a_lock_has_none(bus: Bus, client: ServiceBusClient) -> None:
    """E4 R1 E5: received and deleted, and peeked: an empty section, no token, no end."""
    queue = bus.queue()
    send(client, queue, "a")
    with receiver_of(client, queue, receive_mode=RECEIVE_AND_DELETE) as receiver:
        (peeked,) = receiver.peek_messages(1)
        deleted = take_one(receiver)
    for message in (peeked, deleted):
        raw = message.raw_amqp_message
        assert set(raw.annotations) == {SEQUENCE, ENQUEUED}
        assert raw.delivery_annotations == {}
        assert (message.lock_token, message.locked_until_utc) == (None, None)


@pytest.mark.parametrize(
    "message_id",
    ["text", uuid.uuid4(), 7, b"\x00\xff"],
    ids=["string", "uuid", "ulong", "binary"],
)
def test_e4_ids_come_back_in_their_type(bus: Bus, message_id: Any) -> None:
    """E4: message id and correlation id."""
    queue = bus.queue()
    with bus.proton() as connection:
        sent = Message(id=message_id, correlation_id=message_id, body="x")
        connection.create_sender(queue).send(sent)
        got = connection.create_receiver(queue, options=AtMostOnce()).receive()
        for value in (got.id, got.correlation_id):
            assert (bytes(value) if isinstance(value, memoryview) else value) == message_id
            assert isinstance(value, (type(message_id), memoryview))


def test_e4_a_message_without_an_id_gets_one(bus: Bus) -> None:
    """WIRE 6.1: 32 hexadecimal digits, another for each."""
    queue = bus.queue()
    with bus.proton() as connection:
        sender = connection.create_sender(queue)
        for _ in range(2):
            sender.send(Message(body="x"))
        receiver = connection.create_receiver(queue, options=AtMostOnce())
        first, second = receiver.receive().id, receiver.receive().id
    assert first != second
    assert len(bytes.fromhex(first)) == len(bytes.fromhex(second)) == 16


def test_e4_bodies_pass_through(bus: Bus, client: ServiceBusClient) -> None:
    """E4: data in several sections, a value, a sequence; headers and footers beside them."""
    queue = bus.queue()
    messages = [
        AmqpAnnotatedMessage(data_body=[b"one", b"\x00two"], footer={"f": "v"}),
        AmqpAnnotatedMessage(value_body={"k": [1, 2.5, None, True]}),
        AmqpAnnotatedMessage(
            sequence_body=[[1, "a"], [b"b"]], header=AmqpMessageHeader(durable=True, priority=7)
        ),
    ]
    with client.get_queue_sender(queue) as sender:
        for message in messages:
            sender.send_messages(message)
    data, value, sequence = drain(client, queue, 3)
    assert list(data.raw_amqp_message.body) == [b"one", b"\x00two"]
    assert data.raw_amqp_message.footer == {b"f": b"v"}
    assert value.raw_amqp_message.body == {b"k": [1, 2.5, None, True]}
    assert [list(section) for section in sequence.raw_amqp_message.body] == [[1, b"a"], [b"b"]]
    assert sequence.raw_amqp_message.header.priority == 7
    assert sequence.raw_amqp_message.header.durable is True


def test_e4_the_senders_annotations_reach_the_receiver(bus: Bus, client: ServiceBusClient) -> None:
    """E4: delivery annotations (which the SDK puts last) and its own message annotations."""
    queue = bus.queue()
    message = AmqpAnnotatedMessage(
        data_body=b"x", delivery_annotations={"mine": "d"}, annotations={"ours": 3}
    )
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(message)
    with receiver_of(client, queue) as receiver:
        got = take_one(receiver)
        assert got.raw_amqp_message.delivery_annotations == {
            LOCK_TOKEN: got.lock_token,
            b"mine": b"d",
        }
        assert got.raw_amqp_message.annotations[b"ours"] == 3
        receiver.complete_message(got)


def test_e4_a_received_message_can_be_sent_again(bus: Bus, client: ServiceBusClient) -> None:
    """E4: what the broker had put on it is put on anew."""
    first, second = bus.queue(), bus.queue()
    send(client, second, "before")
    send(client, first, ServiceBusMessage("a", message_id="m", application_properties={"k": 1}))
    with receiver_of(client, first) as receiver:
        receiver.abandon_message(take_one(receiver))
        old = take_one(receiver)
        with client.get_queue_sender(second) as sender:
            sender.send_messages(old)
        receiver.complete_message(old)
    _, new = drain(client, second, 2)
    assert (new.message_id, new.sequence_number, new.delivery_count) == ("m", 2, 0)
    assert new.enqueued_time_utc is not None
    assert old.enqueued_time_utc is not None
    assert new.enqueued_time_utc > old.enqueued_time_utc
    assert new.application_properties == {b"k": 1}


def test_e4_times_and_counts(bus: Bus, client: ServiceBusClient) -> None:
    """E4 R3: time to live as sent, expiry from it; released is no attempt, abandoned is one."""
    queue = bus.queue()
    send(client, queue, ServiceBusMessage("a", time_to_live=timedelta(minutes=3)))
    with bus.proton() as connection:
        receiver = connection.create_receiver(queue)
        for state, wanted in (("released", 0), ("abandoned", 0), ("accepted", 1)):
            got = receiver.receive()
            assert got.delivery_count == wanted
            assert got.ttl == 180
            if state == "accepted":
                receiver.accept()
            else:
                receiver.release(delivered=state == "abandoned")
    assert_empty(client, queue)


def test_d2_a_dead_letter_says_where_it_came_from(bus: Bus, client: ServiceBusClient) -> None:
    """D2 E4: its source, its first number, its properties with the reason among them."""
    queue = bus.queue()
    send(client, queue, "first", ServiceBusMessage("a", application_properties={"k": 1}))
    with receiver_of(client, queue) as receiver:
        receiver.complete_message(take_one(receiver))
        receiver.dead_letter_message(take_one(receiver), reason="r", error_description="d")
    (dead,) = drain(client, queue, 1, sub_queue=DEAD_LETTER)
    assert (dead.sequence_number, dead.enqueued_sequence_number) == (1, 2)
    assert (dead.dead_letter_source, dead.delivery_count) == (queue, 0)
    assert dead.application_properties == {
        b"k": 1,
        b"DeadLetterReason": b"r",
        b"DeadLetterErrorDescription": b"d",
    }


def test_r8_a_lock_outlives_its_link(bus: Bus, client: ServiceBusClient) -> None:
    """R8: the link is detached, the connection stays: by token it is still settled, once."""
    queue = bus.queue()
    send(client, queue, "a")
    with bus.proton() as connection:
        receiver = connection.create_receiver(queue)
        token = receiver.receive().instructions[symbol("x-opt-lock-token")]
        receiver.close()
        assert_empty(client, queue)
        management = Management(connection, queue)
        settle = {"disposition-status": "completed", "lock-tokens": tokens(token)}
        assert management.ask("update-disposition", settle).status == 200
        assert management.ask("update-disposition", settle).status == 410
    assert_empty(client, queue)


def test_e6_a_wait_as_long_as_the_lock_ends_quietly(bus: Bus, client: ServiceBusClient) -> None:
    """E6 R9: the session's link ends a little after its lock, not with the wait."""
    queue = bus.queue(requires_session=True, lock_duration=timedelta(seconds=5))
    with receiver_of(client, queue, session_id="s") as receiver:
        assert receiver.session is not None
        until = receiver.session.locked_until_utc
        assert until is not None
        left = (until - datetime.now(UTC)).total_seconds()
        began = time.monotonic()
        assert receiver.receive_messages(max_wait_time=left) == []
        assert time.monotonic() - began < left + 5
