"""What Service Bus does not offer: abandon with a delay, purge, peek by state, resubmit,
un-defer. Asked for by name, so that the standard behaviour stays as it is.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from proton import Delivery, int32, symbol, uint
from proton.utils import BlockingConnection

from tests.compat.whole.kit import (
    DEAD_LETTER,
    TRANSFER_DEAD_LETTER,
    Bus,
    assert_empty,
    bodies,
    drain,
    ids,
    reason,
    receiver_of,
    send,
    take,
    take_one,
)
from tests.compat.whole.raw import Answer, Management, longs, messages_in, tokens

DELAY = "x-opt-abandon-delay-ms"


def ask(bus: Bus, path: str, operation: str, body: dict[str, Any]) -> Answer:
    with bus.proton() as connection:
        return Management(connection, path).ask(operation, body)


def abandon(connection: BlockingConnection, delivery: Delivery, delay_ms: int) -> None:
    delivery.local.failed = True
    delivery.local.annotations = {symbol(DELAY): uint(delay_ms)}
    delivery.update(Delivery.MODIFIED)
    connection.wait(lambda: delivery.settled)
    assert delivery.remote_state == Delivery.MODIFIED


# --- abandon with a delay -------------------------------------------------------------


def test_r4_abandon_with_a_delay(bus: Bus, client: ServiceBusClient) -> None:
    """R3 R4: held back from everyone, then back in its place with one attempt more."""
    queue = bus.queue()
    send(client, queue, "slow", "next")
    with bus.proton() as connection:
        receiver = connection.create_receiver(queue, credit=1)
        receiver.receive()
        began = time.monotonic()
        abandon(connection, receiver.fetcher.unsettled.popleft(), 2500)
        assert receiver.receive().id == "next"
        receiver.accept()
        again = receiver.receive()
        assert time.monotonic() - began >= 2.4
        assert (again.id, again.delivery_count) == ("slow", 1)
        assert not again.properties
        receiver.accept()
    assert_empty(client, queue)


def test_r4_abandon_with_a_delay_by_token(bus: Bus, client: ServiceBusClient) -> None:
    """R4 R8: the management node takes it too, with properties beside it."""
    queue = bus.queue()
    send(client, queue, "a")
    with receiver_of(client, queue) as receiver:
        message = take_one(receiver)
        body = {
            "disposition-status": "abandoned",
            "lock-tokens": tokens(message.lock_token),
            "properties-to-modify": {DELAY: int32(2500), "tried": "once"},
        }
        began = time.monotonic()
        assert ask(bus, queue, "update-disposition", body).status == 200
        again = take_one(receiver)
        assert time.monotonic() - began >= 2.4
        assert again.application_properties == {b"tried": b"once"}
        receiver.complete_message(again)


def test_d3_abandoning_with_a_delay_reaches_the_limit(bus: Bus, client: ServiceBusClient) -> None:
    """D3 D9: the last allowed attempt dead-letters at once, delay or not."""
    queue = bus.queue(max_delivery_count=2)
    send(client, queue, "a")
    with bus.proton() as connection:
        receiver = connection.create_receiver(queue, credit=1)
        for _ in range(2):
            receiver.receive()
            abandon(connection, receiver.fetcher.unsettled.popleft(), 100)
    (dead,) = drain(client, queue, 1, sub_queue=DEAD_LETTER)
    assert (str(dead), reason(dead)[0]) == ("a", "MaxDeliveryCountExceeded")
    assert_empty(client, queue)


# --- by state -------------------------------------------------------------------------


def mixed(bus: Bus, client: ServiceBusClient) -> str:
    """A queue with two messages in every state."""
    queue = bus.queue()
    send(client, queue, "deferred 1", "deferred 2", "dead 1", "dead 2", "active 1", "active 2")
    with client.get_queue_sender(queue) as sender:
        due = datetime.now(UTC) + timedelta(minutes=5)
        later = [ServiceBusMessage(f"scheduled {n}", message_id=f"scheduled {n}") for n in (1, 2)]
        sender.schedule_messages(later, due)
    with receiver_of(client, queue) as receiver:
        held = take(receiver, 4)
        for message in held[:2]:
            receiver.defer_message(message)
        for message in held[2:]:
            receiver.dead_letter_message(message, reason="unfit")
    return queue


@pytest.mark.parametrize("state", ["active", "scheduled", "deferred"])
def test_e5_peek_by_state(bus: Bus, client: ServiceBusClient, state: str) -> None:
    """E5: only messages in that state; another word is refused."""
    queue = mixed(bus, client)
    body = {"from-sequence-number": 1, "message-count": int32(10), "state": state}
    found = messages_in(ask(bus, queue, "peek-message", body))
    assert [message.id for message in found] == [f"{state} 1", f"{state} 2"]
    assert ask(bus, queue, "peek-message", body | {"state": "sideways"}).status == 400


@pytest.mark.parametrize("state", ["active", "scheduled", "deferred", "dead"])
def test_purge_by_state(bus: Bus, client: ServiceBusClient, state: str) -> None:
    """Only what is in that state goes, and the count is told."""
    queue = mixed(bus, client)
    path, wanted = (f"{queue}/$DeadLetterQueue", "active") if state == "dead" else (queue, state)
    answer = ask(bus, path, "twinbus:purge", {"state": wanted})
    assert (answer.status, answer.body) == (200, {"message-count": 2})
    assert ask(bus, path, "twinbus:purge", {"state": wanted}).body == {"message-count": 0}
    with receiver_of(client, queue) as receiver:
        left = ids(receiver.peek_messages(10))
    with receiver_of(client, queue, sub_queue=DEAD_LETTER) as receiver:
        left += ids(receiver.peek_messages(10))
    kinds = [kind for kind in ("deferred", "active", "scheduled", "dead") if kind != state]
    assert left == [f"{kind} {number}" for kind in kinds for number in (1, 2)]


def test_purge_leaves_locked_messages(bus: Bus, client: ServiceBusClient) -> None:
    """R2: a lock protects; at most the given number goes."""
    queue = bus.queue()
    send(client, queue, "a", "b", "c")
    with receiver_of(client, queue) as receiver:
        message = take_one(receiver)
        for count in (0, 1):
            body = {"state": "active", "message-count": int32(count)}
            assert ask(bus, queue, "twinbus:purge", body).body == {"message-count": count}
        receiver.complete_message(message)
    assert bodies(drain(client, queue, 1)) == ["c"]


# --- back to life ---------------------------------------------------------------------


def test_e5_undefer(bus: Bus, client: ServiceBusClient) -> None:
    """E5: active again, in its own place; all or none."""
    queue = bus.queue()
    send(client, queue, "a", "b")
    with receiver_of(client, queue) as receiver:
        receiver.defer_message(take_one(receiver))
    refused = ask(bus, queue, "twinbus:undefer", {"sequence-numbers": longs(1, 2)})
    assert (refused.status, refused.condition) == (404, "com.microsoft:message-not-found")
    assert ask(bus, queue, "twinbus:undefer", {"sequence-numbers": longs(1)}).status == 200
    got = drain(client, queue, 2)
    assert [(str(m), m.delivery_count) for m in got] == [("a", 1), ("b", 0)]


def test_d1_resubmit_to_the_one_subscription_it_came_from(
    bus: Bus, client: ServiceBusClient
) -> None:
    """D1 D2: back into that subscription only, without the marks of its death."""
    topic = bus.topic()
    sub, other = bus.subscription(topic), bus.subscription(topic)
    send(client, topic, ServiceBusMessage("a", message_id="a", application_properties={"k": 1}))
    drain(client, f"{topic}/{other}", 1)
    with receiver_of(client, f"{topic}/{sub}") as receiver:
        receiver.dead_letter_message(take_one(receiver), reason="unfit")
    path = f"{topic}/Subscriptions/{sub}/$DeadLetterQueue"
    body = {"sequence-numbers": longs(1, 99)}
    assert ask(bus, path, "twinbus:resubmit", body).body == {"message-count": 1}
    (again,) = drain(client, f"{topic}/{sub}", 1)
    assert (str(again), again.delivery_count, again.dead_letter_source) == ("a", 0, None)
    assert again.application_properties == {b"k": 1}
    assert_empty(client, f"{topic}/{other}")
    assert_empty(client, f"{topic}/{sub}", sub_queue=DEAD_LETTER)


def test_d8_resubmit_what_could_not_be_forwarded(bus: Bus, client: ServiceBusClient) -> None:
    """D8 E9: it is forwarded once more, now that the target is there."""
    target = bus.queue()
    source = bus.queue(forward_to=target)
    with bus.administration() as admin:
        admin.delete_queue(target)
        send(client, source, "a")
        admin.create_queue(target)
    path = f"{source}/$Transfer/$DeadLetterQueue"
    answer = ask(bus, path, "twinbus:resubmit", {"sequence-numbers": longs(1)})
    assert answer.body == {"message-count": 1}
    assert bodies(drain(client, target, 1)) == ["a"]
    assert_empty(client, source, sub_queue=TRANSFER_DEAD_LETTER)


def test_resubmit_is_for_dead_letters_only(bus: Bus, client: ServiceBusClient) -> None:
    """S2."""
    queue = bus.queue()
    send(client, queue, "a")
    answer = ask(bus, queue, "twinbus:resubmit", {"sequence-numbers": longs(1)})
    assert (answer.status, answer.condition) == (400, "amqp:not-allowed")
    drain(client, queue, 1)
