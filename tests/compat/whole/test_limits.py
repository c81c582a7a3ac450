"""Sizes, batches, quotas, statuses, and sends that nobody waits for (S1–S6, E3, E4, E11)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from azure.servicebus.management import EntityStatus
from proton import Delivery, Message
from proton.reactor import AtMostOnce
from proton.utils import LinkDetached

from tests.compat.whole.kit import (
    DEAD_LETTER,
    EMPTY_WAIT,
    WAIT,
    Bus,
    assert_empty,
    bodies,
    drain,
    receiver_of,
    send,
    take_one,
)

KILOBYTE = 1024
MEGABYTE = 1024 * KILOBYTE


# --- sizes ----------------------------------------------------------------------------


def test_e4_256_kilobytes_unless_the_entity_says_more(bus: Bus, client: ServiceBusClient) -> None:
    """E4 S2: single messages and batches; the sender goes on."""
    queue = bus.queue()
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(b"x" * 255 * KILOBYTE))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 257 * KILOBYTE))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages([ServiceBusMessage(b"x" * 100 * KILOBYTE)] * 3)
        sender.send_messages(ServiceBusMessage("after"))
    got = drain(client, queue, 2)
    assert [len(b"".join(message.body)) for message in got] == [255 * KILOBYTE, 5]


def test_e4_the_broker_itself_refuses_what_is_too_large(bus: Bus) -> None:
    """E4 S2: proton does not look at the link's limit; header quota 64 KB."""
    queue = bus.queue()
    with bus.proton() as connection:
        sender = connection.create_sender(queue)
        for message in (
            Message(body=b"x" * 300 * KILOBYTE),
            Message(body=b"x", properties={f"p{n}": "y" * 16_000 for n in range(5)}),
        ):
            delivery = sender.link.send(message)
            connection.wait(lambda sent=delivery: sent.remote_state != 0)
            assert delivery.remote_state == Delivery.REJECTED
            assert delivery.remote.condition.name == "amqp:link:message-size-exceeded"
            assert "TrackingId:" in delivery.remote.condition.description
        assert sender.send(Message(body="after")).remote_state == Delivery.ACCEPTED


@pytest.mark.timeout(120)
def test_e4_large_messages_up_to_100_megabytes(bus: Bus, client: ServiceBusClient) -> None:
    """E4 E3: where the entity allows them; byte for byte; through the topic as well."""
    queue = bus.queue(max_message_size_in_kilobytes=100 * KILOBYTE)
    content = bytes(range(256)) * (4 * KILOBYTE)
    with bus.proton() as connection:
        sender = connection.create_sender(queue)
        for repeats in (5, 99):
            sender.send(Message(body=content * repeats, id=f"{repeats} MB"), timeout=60)
        # The entity allows 100 MB and no more.
        over = sender.link.send(Message(body=content * 101))
        connection.wait(lambda: over.remote_state != 0, timeout=60)
        assert over.remote_state == Delivery.REJECTED
        receiver = connection.create_receiver(queue)
        for repeats in (5, 99):
            got = receiver.receive(timeout=60)
            assert got.id == f"{repeats} MB"
            assert got.body == content * repeats
            receiver.accept()
    assert_empty(client, queue)


def test_e4_a_large_message_through_the_sdk(bus: Bus, client: ServiceBusClient) -> None:
    """E4 E8: 8 MB to a topic that allows it."""
    topic = bus.topic(max_message_size_in_kilobytes=10 * KILOBYTE)
    subs = [bus.subscription(topic) for _ in range(2)]
    content = bytes(range(256)) * (32 * KILOBYTE)
    send(client, topic, ServiceBusMessage(content))
    for sub in subs:
        (got,) = drain(client, f"{topic}/{sub}", 1)
        assert b"".join(got.body) == content


def test_e3_bad_settings_are_refused(bus: Bus) -> None:
    """E3 S2: each with a text that says what is allowed."""
    bad: list[dict[str, Any]] = [
        {"lock_duration": timedelta(minutes=6)},
        {"lock_duration": timedelta(seconds=1)},
        {"max_delivery_count": 0},
        {"auto_delete_on_idle": timedelta(minutes=1)},
        {"max_message_size_in_kilobytes": 512},
        {"max_message_size_in_kilobytes": 200 * KILOBYTE},
        {"max_size_in_megabytes": 0},
        {"duplicate_detection_history_time_window": timedelta(seconds=1)},
        {"default_message_time_to_live": timedelta(0)},
        {"user_metadata": "x" * 2000},
    ]
    with bus.administration() as admin:
        for settings in bad:
            with pytest.raises(HttpResponseError) as refused:
                admin.create_queue(bus.fresh("queue"), **settings)
            assert refused.value.status_code == 400, settings
            assert "TrackingId:" in str(refused.value)


# --- batches and sends nobody waits for -----------------------------------------------


def test_s6_a_batch_is_refused_as_a_whole(bus: Bus, client: ServiceBusClient) -> None:
    """S6 E6: one message without a session id among others."""
    queue = bus.queue(requires_session=True)
    with client.get_queue_sender(queue) as sender:
        batch = [
            ServiceBusMessage("a", session_id="s"),
            ServiceBusMessage("b"),
            ServiceBusMessage("c", session_id="s"),
        ]
        with pytest.raises(ServiceBusError):
            sender.send_messages(batch)
        sender.send_messages([batch[0], batch[2]])
    assert bodies(drain(client, queue, 2, session_id="s")) == ["a", "c"]


async def test_s3_many_sends_are_in_flight_on_one_link(bus: Bus) -> None:
    """S3 S1: a hundred sends at once over several links; each is answered."""
    queue = bus.queue()
    async with bus.aio_client() as client:
        async with client.get_queue_sender(queue) as one, client.get_queue_sender(queue) as two:
            sends = [
                (one if n % 2 else two).send_messages(ServiceBusMessage(str(n))) for n in range(100)
            ]
            await asyncio.gather(*sends)
        async with client.get_queue_receiver(queue, prefetch_count=100) as receiver:
            got: set[str] = set()
            while len(got) < 100:
                messages = await receiver.receive_messages(100, max_wait_time=5)
                assert messages
                for message in messages:
                    await receiver.complete_message(message)
                got |= {str(message) for message in messages}
    assert got == {str(n) for n in range(100)}


def test_s5_presettled_sends_are_taken_without_a_word(bus: Bus, client: ServiceBusClient) -> None:
    """S5: one that is refused is dropped, and the link goes on."""
    queue = bus.queue()
    with bus.proton() as connection:
        sender = connection.create_sender(queue, options=AtMostOnce())
        sender.send(Message(id="a", body="a"))
        sender.send(Message(id="large", body="x" * 300 * KILOBYTE))
        sender.send(Message(id="b", body="b"))
        receiver = connection.create_receiver(queue)
        assert [receiver.receive().id for _ in range(2)] == ["a", "b"]
        for _ in range(2):
            receiver.accept()
    assert_empty(client, queue)


def test_p10_a_ping_is_taken_and_never_delivered(bus: Bus, client: ServiceBusClient) -> None:
    """P10: not by receive, not by peek, not by a subscription; a session queue takes it."""
    ping = ServiceBusMessage(
        b"",
        content_type="application/vnd.ms-servicebus-ping",
        time_to_live=timedelta(seconds=1),
        session_id="random",
    )
    topic = bus.topic()
    path = f"{topic}/{bus.subscription(topic)}"
    queue, sessions = bus.queue(), bus.queue(requires_session=True)
    for target in (queue, sessions, topic):
        send(client, target, ping)
    for source in (queue, path):
        with receiver_of(client, source) as receiver:
            assert receiver.peek_messages(5) == []
            assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
    assert_empty(client, sessions, session_id="random")


# --- quota ----------------------------------------------------------------------------


def fill(sender: ServiceBusSender, block: ServiceBusMessage) -> int:
    """Send until there is no more room; tell how many there was room for."""
    for sent in range(50):
        try:
            sender.send_messages(block)
        except ServiceBusQuotaExceededError:
            return sent
    raise AssertionError("it took all of 50 blocks")


def test_e11_a_full_queue_refuses_and_keeps_what_it_has(bus: Bus, client: ServiceBusClient) -> None:
    """E11 S2: until something is received."""
    queue = bus.queue(max_size_in_megabytes=1)
    block = ServiceBusMessage(b"x" * 200 * KILOBYTE)
    with client.get_queue_sender(queue) as sender:
        sent = fill(sender, block)
        assert 5 <= sent <= 6
        with bus.administration() as admin:
            counts = admin.get_queue_runtime_properties(queue)
            assert counts.active_message_count == sent
            assert counts.size_in_bytes >= MEGABYTE
        with receiver_of(client, queue) as receiver:
            for _ in range(2):
                receiver.complete_message(take_one(receiver))
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(block)


def test_e11_a_topics_size_is_that_of_its_subscriptions(bus: Bus, client: ServiceBusClient) -> None:
    """E11 E8."""
    topic = bus.topic(max_size_in_megabytes=1)
    sub = bus.subscription(topic)
    block = ServiceBusMessage(b"x" * 200 * KILOBYTE)
    with client.get_topic_sender(topic) as sender:
        sent = fill(sender, block)
    drain(client, f"{topic}/{sub}", sent)
    send(client, topic, block)


# --- status ---------------------------------------------------------------------------


def set_status(bus: Bus, queue: str, status: EntityStatus) -> None:
    with bus.administration() as admin:
        properties = admin.get_queue(queue)
        properties.status = status
        admin.update_queue(properties)
        assert admin.get_queue(queue).status == status


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        (EntityStatus.DISABLED, False, False),
        (EntityStatus.SEND_DISABLED, False, True),
        (EntityStatus.RECEIVE_DISABLED, True, False),
        (EntityStatus.ACTIVE, True, True),
    ],
)
def test_e3_status(
    bus: Bus, client: ServiceBusClient, status: EntityStatus, sends: bool, receives: bool
) -> None:
    """E3 S2: each status allows what it says, and the messages are there afterwards."""
    queue = bus.queue()
    send(client, queue, "before")
    set_status(bus, queue, status)
    if sends:
        send(client, queue, "meanwhile")
    else:
        with pytest.raises(MessagingEntityDisabledError, match="TrackingId:"):
            send(client, queue, "refused")
    if receives:
        with receiver_of(client, queue) as receiver:
            receiver.abandon_message(take_one(receiver))
    else:
        with pytest.raises(MessagingEntityDisabledError):
            receiver_of(client, queue).__enter__()
    set_status(bus, queue, EntityStatus.ACTIVE)
    left = ["before"] + ["meanwhile"] * sends
    assert bodies(drain(client, queue, len(left))) == left


def test_e3_open_links_are_told_of_a_status(bus: Bus, client: ServiceBusClient) -> None:
    """E3 R7: a sender and a receiver that were open are detached with the reason."""
    queue = bus.queue()
    with bus.proton() as connection:
        connection.create_sender(queue).send(Message(body=b"a"))
        connection.create_receiver(queue).receive()
        set_status(bus, queue, EntityStatus.DISABLED)
        for _ in ("sender", "receiver"):
            with pytest.raises(LinkDetached) as told:
                connection.wait(lambda: False)
            assert told.value.condition == "com.microsoft:entity-disabled"
            assert "TrackingId:" in str(told.value)
    set_status(bus, queue, EntityStatus.ACTIVE)
    drain(client, queue, 1)


def test_e3_a_disabled_topic_and_subscription(bus: Bus, client: ServiceBusClient) -> None:
    """E3 E8."""
    topic = bus.topic()
    sub = bus.subscription(topic)
    send(client, topic, "a")
    with bus.administration() as admin:
        subscription = admin.get_subscription(topic, sub)
        subscription.status = EntityStatus.RECEIVE_DISABLED
        admin.update_subscription(topic, subscription)
        with pytest.raises(MessagingEntityDisabledError):
            receiver_of(client, f"{topic}/{sub}").__enter__()
        properties = admin.get_topic(topic)
        properties.status = EntityStatus.SEND_DISABLED
        admin.update_topic(properties)
        with pytest.raises(MessagingEntityDisabledError):
            send(client, topic, "b")
        subscription.status = EntityStatus.ACTIVE
        admin.update_subscription(topic, subscription)
    assert bodies(drain(client, f"{topic}/{sub}", 1)) == ["a"]


def test_e1_a_deleted_entity_starts_empty_when_made_again(
    bus: Bus, client: ServiceBusClient
) -> None:
    """E1 D1: messages, dead letters and sequence numbers go with it; open links are told."""
    queue = bus.queue()
    send(client, queue, "a", "b")
    with receiver_of(client, queue) as receiver:
        receiver.dead_letter_message(take_one(receiver))
        with bus.administration() as admin:
            admin.delete_queue(queue)
            with pytest.raises(ServiceBusError):
                receiver.receive_messages(max_wait_time=WAIT)
            admin.create_queue(queue)
    send(client, queue, "new")
    (got,) = drain(client, queue, 1)
    assert (str(got), got.sequence_number) == ("new", 1)
    assert_empty(client, queue, sub_queue=DEAD_LETTER)
