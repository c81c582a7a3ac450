"""Locks: competing receivers, expiry, redelivery order, renewal, the limit (R2–R10, D9)."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
)
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError
from proton import Delivery

from tests.compat.whole.kit import (
    DEAD_LETTER,
    EMPTY_WAIT,
    WAIT,
    Bus,
    assert_empty,
    bodies,
    drain,
    reason,
    receiver_of,
    send,
    take,
    take_one,
)
from tests.compat.whole.raw import Management, tokens

BRIEF = timedelta(seconds=5)


async def test_r2_competing_receivers_share_out_the_messages(bus: Bus) -> None:
    """R2 R10: two receivers, each message to one of them, each gets some."""
    queue = bus.queue()
    async with bus.aio_client() as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(str(n)) for n in range(200)])

        async def work() -> list[str]:
            done: list[str] = []
            async with client.get_queue_receiver(queue) as receiver:
                while got := await receiver.receive_messages(10, max_wait_time=1):
                    for message in got:
                        await receiver.complete_message(message)
                        done.append(str(message))
            return done

        first, second = await asyncio.gather(work(), work())
    assert first
    assert second
    assert sorted(map(int, first + second)) == list(range(200))


def test_r2_a_locked_message_is_nobody_elses(bus: Bus, client: ServiceBusClient) -> None:
    """R2: the second receiver gets the next message; lock tokens differ."""
    queue = bus.queue()
    send(client, queue, "a", "b")
    with receiver_of(client, queue) as first, receiver_of(client, queue) as second:
        a, b = take_one(first), take_one(second)
        assert (str(a), str(b)) == ("a", "b")
        assert a.lock_token != b.lock_token
        assert second.receive_messages(max_wait_time=EMPTY_WAIT) == []


def test_r3_an_expired_lock_brings_the_message_back_to_its_place(
    bus: Bus, client: ServiceBusClient
) -> None:
    """R3 R5: ahead of later ones, with one attempt more; the old lock settles nothing."""
    queue = bus.queue(lock_duration=BRIEF)
    send(client, queue, "a", "b", "c", "d")
    with receiver_of(client, queue) as slow, receiver_of(client, queue) as quick:
        a, b = take(slow, 2)
        time.sleep(5.3)
        again = take(quick, 4)
        assert bodies(again) == ["a", "b", "c", "d"]
        assert [message.delivery_count for message in again] == [1, 1, 0, 0]
        for settle in (slow.complete_message, slow.abandon_message, slow.dead_letter_message):
            with pytest.raises(MessageLockLostError):
                settle(a)
        # What is settled too late touches nothing: all four still settle here.
        for message in again:
            quick.complete_message(message)
    assert b.delivery_count == 0
    assert_empty(client, queue)
    assert_empty(client, queue, sub_queue=DEAD_LETTER)


def test_r5_an_old_delivery_on_the_same_link_settles_nothing(
    bus: Bus, client: ServiceBusClient
) -> None:
    """R5: judged by the token of that delivery, though the same link holds the message again.

    Proton does not look at the clock before it asks.
    """
    queue = bus.queue(lock_duration=BRIEF)
    send(client, queue, "a")
    with bus.proton() as connection:
        receiver = connection.create_receiver(queue, credit=2)
        first = receiver.receive()
        old = receiver.fetcher.unsettled.popleft()
        second = receiver.receive(timeout=WAIT)
        assert (first.delivery_count, second.delivery_count) == (0, 1)
        old.update(Delivery.ACCEPTED)
        connection.wait(lambda: old.settled)
        assert old.remote_state == Delivery.REJECTED
        assert old.remote.condition.name == "com.microsoft:message-lock-lost"
        receiver.accept()
    assert_empty(client, queue)


def test_r4_abandon_brings_it_back_at_once_in_its_place(bus: Bus, client: ServiceBusClient) -> None:
    """R3 R4."""
    queue = bus.queue()
    send(client, queue, "a", "b", "c")
    with receiver_of(client, queue) as receiver:
        a, _, c = take(receiver, 3)
        receiver.abandon_message(c)
        receiver.abandon_message(a)
        again = take(receiver, 2)
        assert [(str(m), m.delivery_count) for m in again] == [("a", 1), ("c", 1)]


def test_r6_a_renewed_lock_lasts(bus: Bus, client: ServiceBusClient) -> None:
    """R6: prolonged by LockDuration from now on; nobody else gets the message meanwhile."""
    queue = bus.queue(lock_duration=BRIEF)
    send(client, queue, "a")
    with receiver_of(client, queue) as receiver, receiver_of(client, queue) as other:
        message = take_one(receiver)
        time.sleep(3)
        until = receiver.renew_message_lock(message)
        assert abs(until - (datetime.now(UTC) + BRIEF)) < timedelta(seconds=1)
        assert other.receive_messages(max_wait_time=3) == []
        receiver.complete_message(message)
    assert_empty(client, queue)


def test_r6_the_renewing_helper_keeps_a_lock(bus: Bus, client: ServiceBusClient) -> None:
    """R6: for the stated time, over more than one LockDuration."""
    queue = bus.queue(lock_duration=BRIEF)
    send(client, queue, "a")
    renewer = AutoLockRenewer(max_lock_renewal_duration=9)
    with renewer, receiver_of(client, queue) as receiver:
        message = take_one(receiver)
        renewer.register(receiver, message)
        time.sleep(8)
        receiver.complete_message(message)
    assert_empty(client, queue)


def test_r6_a_lost_lock_is_not_renewed(bus: Bus, client: ServiceBusClient) -> None:
    """R5 R6."""
    queue = bus.queue(lock_duration=BRIEF)
    send(client, queue, "a")
    with receiver_of(client, queue) as receiver:
        message = take_one(receiver)
        receiver.complete_message(message)
        message._settled = False
        with pytest.raises(MessageLockLostError) as refused:
            receiver.renew_message_lock(message)
        assert "TrackingId:" in str(refused.value)


def test_r7_a_lost_connection_drops_its_locks(bus: Bus, client: ServiceBusClient) -> None:
    """R7: at once; it counts as a failed attempt."""
    queue = bus.queue()
    send(client, queue, "a")
    with bus.proton() as connection:
        connection.create_receiver(queue).receive()
        connection.conn.transport.close_tail()
        connection.conn.transport.close_head()
        connection.container.process()
    with receiver_of(client, queue) as receiver:
        message = take_one(receiver)
        assert (str(message), message.delivery_count) == ("a", 1)


def test_r7_a_change_to_the_entity_drops_locks(bus: Bus, client: ServiceBusClient) -> None:
    """R7 R5: the message is delivered again; the old lock is void."""
    queue = bus.queue()
    send(client, queue, "a")
    with receiver_of(client, queue) as receiver:
        message = take_one(receiver)
        with bus.administration() as admin:
            properties = admin.get_queue(queue)
            properties.max_delivery_count = 7
            admin.update_queue(properties)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        assert str(take_one(receiver)) == "a"


def test_r8_a_lock_is_settled_by_token_after_its_link_is_gone(
    bus: Bus, client: ServiceBusClient
) -> None:
    """R8: over the management node while the lock is valid, from another connection."""
    queue = bus.queue()
    send(client, queue, "a", "b")
    with receiver_of(client, queue) as receiver:
        a, b = take(receiver, 2)
    # The receiver's connection is closed, and its locks with it (R7).
    with receiver_of(client, queue) as other:
        held = take(other, 2)
        with bus.proton() as connection:
            management = Management(connection, queue)
            lost = management.ask("update-disposition", settlement("completed", a))
            assert lost.condition == "com.microsoft:message-lock-lost"
            done = management.ask("update-disposition", settlement("completed", held[0]))
            assert done.status == 200
        with pytest.raises(MessageLockLostError):
            other.complete_message(held[0])
        other.complete_message(held[1])
    assert_empty(client, queue)
    assert b.delivery_count == 0


def settlement(status: str, message: ServiceBusReceivedMessage) -> dict[str, object]:
    return {"disposition-status": status, "lock-tokens": tokens(message.lock_token)}


def test_r9_receive_waits_as_long_as_it_is_told(bus: Bus, client: ServiceBusClient) -> None:
    """R9: what comes while it waits ends the wait; zero takes what is there, or nothing."""
    queue = bus.queue()
    with receiver_of(client, queue) as receiver:
        began = time.monotonic()
        assert receiver.receive_messages(max_wait_time=1) == []
        assert 0.9 < time.monotonic() - began < 4
        with client.get_queue_sender(queue) as sender:
            due = datetime.now(UTC) + timedelta(seconds=1)
            sender.schedule_messages(ServiceBusMessage("a"), due)
        began = time.monotonic()
        assert bodies(receiver.receive_messages(max_wait_time=15)) == ["a"]
        assert time.monotonic() - began < 8


@pytest.mark.parametrize("kind", ["queue", "subscription"])
def test_d9_the_documents_own_loop(bus: Bus, client: ServiceBusClient, kind: str) -> None:
    """D9 D3: receive with (as good as) zero wait, abandon, until nothing comes; 10 times."""
    if kind == "queue":
        target = path = source = bus.queue()
    else:
        target = bus.topic()
        sub = bus.subscription(target)
        path, source = f"{target}/{sub}", f"{target}/Subscriptions/{sub}"
    send(client, target, "poison")
    counts = []
    with receiver_of(client, path) as receiver:
        while got := receiver.receive_messages(max_wait_time=EMPTY_WAIT):
            counts.append(got[0].delivery_count)
            receiver.abandon_message(got[0])
        assert receiver.peek_messages(10) == []
    assert counts == list(range(10))
    (dead,) = drain(client, path, 1, sub_queue=DEAD_LETTER)
    assert reason(dead)[0] == "MaxDeliveryCountExceeded"
    assert "could not be consumed after 10 delivery attempts" in (reason(dead)[1] or "")
    assert (str(dead), dead.delivery_count, dead.dead_letter_source) == ("poison", 10, source)


def test_d3_expired_locks_reach_the_limit_too(bus: Bus, client: ServiceBusClient) -> None:
    """D3 R3: two deliveries, one abandoned, one left to expire."""
    queue = bus.queue(max_delivery_count=2, lock_duration=BRIEF)
    send(client, queue, "a")
    with receiver_of(client, queue) as receiver:
        receiver.abandon_message(take_one(receiver))
        assert take_one(receiver).delivery_count == 1
        time.sleep(5.5)
    (dead,) = drain(client, queue, 1, sub_queue=DEAD_LETTER)
    assert reason(dead)[0] == "MaxDeliveryCountExceeded"
    assert "after 2 delivery attempts" in (reason(dead)[1] or "")


def test_d4_the_limit_can_be_set_very_high_only(bus: Bus) -> None:
    """D4."""
    queue = bus.queue(max_delivery_count=2**31 - 1)
    with bus.administration() as admin:
        assert admin.get_queue(queue).max_delivery_count == 2**31 - 1


def test_d1_a_dead_letter_queue_has_no_limit_and_no_dead_letters(
    bus: Bus, client: ServiceBusClient
) -> None:
    """D1 D2: abandoned beyond the limit it stays; dead-lettering from it is refused."""
    queue = bus.queue(max_delivery_count=1)
    send(client, queue, "a")
    with receiver_of(client, queue) as receiver:
        receiver.dead_letter_message(take_one(receiver), reason="r", error_description="d")
    with receiver_of(client, queue, sub_queue=DEAD_LETTER) as receiver:
        for attempt in range(4):
            message = take_one(receiver)
            assert message.delivery_count == attempt
            receiver.abandon_message(message)
        message = take_one(receiver)
        assert (*reason(message), message.dead_letter_source) == ("r", "d", queue)
        with pytest.raises(ServiceBusError):
            receiver.dead_letter_message(message, reason="again")
    drain(client, queue, 1, sub_queue=DEAD_LETTER)
    assert_empty(client, queue)
