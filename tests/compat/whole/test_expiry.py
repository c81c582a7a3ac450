"""Time to live and what becomes of expired messages (D5, D1, D3)."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.compat.whole.kit import (
    DEAD_LETTER,
    EMPTY_WAIT,
    Bus,
    assert_empty,
    bodies,
    drain,
    reason,
    receiver_of,
    send,
    take_one,
)

SECOND = timedelta(seconds=1)


def lasting(text: str, seconds: float) -> ServiceBusMessage:
    return ServiceBusMessage(text, time_to_live=timedelta(seconds=seconds))


def counts(bus: Bus, queue: str) -> tuple[int, int]:
    with bus.administration() as admin:
        found = admin.get_queue_runtime_properties(queue)
    return found.active_message_count, found.dead_letter_message_count


def test_d5_without_dead_lettering_expired_messages_are_dropped(
    bus: Bus, client: ServiceBusClient
) -> None:
    """D5: never delivered; purged only once somebody receives."""
    queue = bus.queue()
    send(client, queue, lasting("gone", 1), lasting("stays", 60))
    time.sleep(1.5)
    assert counts(bus, queue) == (2, 0)
    with receiver_of(client, queue) as receiver:
        message = take_one(receiver)
        assert str(message) == "stays"
        assert counts(bus, queue) == (1, 0)
        receiver.complete_message(message)
    assert_empty(client, queue, sub_queue=DEAD_LETTER)


@pytest.mark.parametrize("kind", ["queue", "subscription"])
def test_d5_with_dead_lettering_they_move(bus: Bus, client: ServiceBusClient, kind: str) -> None:
    """D5 D3 D1: once there is a receiver; in the dead-letter queue time does not run."""
    settings = {"dead_lettering_on_message_expiration": True}
    if kind == "queue":
        target = path = bus.queue(**settings)
    else:
        target = bus.topic()
        path = f"{target}/{bus.subscription(target, **settings)}"
    send(client, target, lasting("late", 1))
    time.sleep(1.5)
    with receiver_of(client, path) as receiver:
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
    time.sleep(1.5)
    (dead,) = drain(client, path, 1, sub_queue=DEAD_LETTER)
    assert reason(dead)[0] == "TTLExpiredException"
    assert "expired" in (reason(dead)[1] or "")
    assert str(dead) == "late"


def test_d5_a_message_expires_while_somebody_waits(bus: Bus, client: ServiceBusClient) -> None:
    """D5: a receiver without credit is enough; no new message has to come."""
    queue = bus.queue(dead_lettering_on_message_expiration=True)
    with receiver_of(client, queue) as receiver:
        send(client, queue, lasting("a", 1))
        time.sleep(1.6)
        assert counts(bus, queue) == (0, 1)
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []


def test_d5_the_entity_s_default_holds_and_caps(bus: Bus, client: ServiceBusClient) -> None:
    """D5 E3: a message may ask for less than the default, not for more."""
    queue = bus.queue(default_message_time_to_live=6 * SECOND)
    send(client, queue, "default", lasting("less", 5), lasting("more", 3600))
    with receiver_of(client, queue) as receiver:
        shown = receiver.peek_messages(5)
        assert [message.time_to_live for message in shown] == [6 * SECOND, 5 * SECOND, 6 * SECOND]
    time.sleep(6)
    assert_empty(client, queue)


def test_d5_topic_and_subscription_defaults(bus: Bus, client: ServiceBusClient) -> None:
    """D5 E3: the smallest of message, topic and subscription."""
    topic = bus.topic(default_message_time_to_live=timedelta(seconds=30))
    short = bus.subscription(topic, default_message_time_to_live=timedelta(seconds=1))
    long = bus.subscription(topic)
    send(client, topic, "a")
    time.sleep(1.5)
    assert_empty(client, f"{topic}/{short}")
    (message,) = drain(client, f"{topic}/{long}", 1)
    assert message.time_to_live == timedelta(seconds=30)


def test_d5_a_locked_message_may_be_settled_after_its_time(
    bus: Bus, client: ServiceBusClient
) -> None:
    """D5 R4: it was delivered before it expired; abandoned it is not delivered again."""
    queue = bus.queue(dead_lettering_on_message_expiration=True)
    send(client, queue, lasting("done", 4), lasting("abandoned", 4))
    with receiver_of(client, queue) as receiver:
        done, abandoned = take_one(receiver), take_one(receiver)
        time.sleep(4)
        receiver.complete_message(done)
        receiver.abandon_message(abandoned)
        assert receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []
    assert bodies(drain(client, queue, 1, sub_queue=DEAD_LETTER)) == ["abandoned"]


def test_d5_expiry_in_a_session(bus: Bus, client: ServiceBusClient) -> None:
    """D5 E6."""
    queue = bus.queue(requires_session=True, dead_lettering_on_message_expiration=True)
    message = ServiceBusMessage("a", session_id="s", time_to_live=SECOND)
    send(client, queue, message, ServiceBusMessage("b", session_id="s"))
    time.sleep(1.5)
    assert bodies(drain(client, queue, 1, session_id="s")) == ["b"]
    (dead,) = drain(client, queue, 1, sub_queue=DEAD_LETTER)
    assert (str(dead), reason(dead)[0]) == ("a", "TTLExpiredException")


def test_d1_time_does_not_run_for_dead_letters(bus: Bus, client: ServiceBusClient) -> None:
    """D1."""
    queue = bus.queue()
    send(client, queue, lasting("a", 4))
    with receiver_of(client, queue) as receiver:
        receiver.dead_letter_message(take_one(receiver))
    time.sleep(4)
    drain(client, queue, 1, sub_queue=DEAD_LETTER)
