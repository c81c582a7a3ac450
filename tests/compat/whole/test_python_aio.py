"""The official Python SDK, asyncio form, unchanged, against a live broker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
)
from azure.servicebus.aio import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusReceiver,
)
from azure.servicebus.exceptions import MessageNotFoundError, SessionCannotBeLockedError

from tests.compat.whole.kit import DEAD_LETTER, EMPTY_WAIT, RECEIVE_AND_DELETE, WAIT, Bus

BRIEF = timedelta(seconds=5)


async def send(client: ServiceBusClient, queue: str, *bodies: str) -> None:
    async with client.get_queue_sender(queue) as sender:
        for body in bodies:
            await sender.send_messages(ServiceBusMessage(body, message_id=body))


async def one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    (message,) = await receiver.receive_messages(max_message_count=1, max_wait_time=WAIT)
    return message


async def assert_empty(client: ServiceBusClient, queue: str) -> None:
    async with client.get_queue_receiver(queue) as receiver:
        assert await receiver.receive_messages(max_wait_time=EMPTY_WAIT) == []


async def test_send_receive_complete(bus: Bus) -> None:
    """S1 R2 R4."""
    queue = bus.queue()
    async with bus.aio_client() as client:
        await send(client, queue, "a")
        async with client.get_queue_receiver(queue) as receiver:
            message = await one(receiver)
            assert (str(message), message.message_id, message.delivery_count) == ("a", "a", 0)
            await receiver.complete_message(message)
        await assert_empty(client, queue)


async def test_many_senders_overlap(bus: Bus) -> None:
    """S3: sends of several connections are under way together; none is lost."""
    queue = bus.queue()
    async with bus.aio_client() as client:

        async def send_some(name: str) -> None:
            await send(client, queue, *(f"{name}{number}" for number in range(20)))

        await asyncio.gather(*(send_some(name) for name in "abcde"))
        got: set[str] = set()
        async with client.get_queue_receiver(queue, prefetch_count=50) as receiver:
            while len(got) < 100:
                messages = await receiver.receive_messages(
                    max_message_count=100, max_wait_time=WAIT
                )
                assert messages
                for message in messages:
                    got.add(str(message))
                    await receiver.complete_message(message)
        assert len(got) == 100


async def test_receive_and_delete(bus: Bus) -> None:
    """R1."""
    queue = bus.queue()
    async with bus.aio_client() as client:
        await send(client, queue, "a")
        async with client.get_queue_receiver(queue, receive_mode=RECEIVE_AND_DELETE) as receiver:
            assert str(await one(receiver)) == "a"
        await assert_empty(client, queue)


async def test_abandon(bus: Bus) -> None:
    """R3 R4."""
    queue = bus.queue()
    async with bus.aio_client() as client:
        await send(client, queue, "a", "b")
        async with client.get_queue_receiver(queue) as receiver:
            await receiver.abandon_message(await one(receiver))
            again = await one(receiver)
            assert (str(again), again.delivery_count) == ("a", 1)


async def test_defer_and_fetch(bus: Bus) -> None:
    """E5 R4."""
    queue = bus.queue()
    async with bus.aio_client() as client:
        await send(client, queue, "later")
        async with client.get_queue_receiver(queue) as receiver:
            message = await one(receiver)
            await receiver.defer_message(message)
            assert message.sequence_number is not None
            (fetched,) = await receiver.receive_deferred_messages([message.sequence_number])
            assert fetched.state == ServiceBusMessageState.DEFERRED
            await receiver.complete_message(fetched)
            with pytest.raises(MessageNotFoundError):
                await receiver.receive_deferred_messages([message.sequence_number])


async def test_dead_letter(bus: Bus) -> None:
    """R4 D2."""
    queue = bus.queue()
    async with bus.aio_client() as client:
        await send(client, queue, "bad")
        async with client.get_queue_receiver(queue) as receiver:
            await receiver.dead_letter_message(
                await one(receiver), reason="unfit", error_description="no price"
            )
        async with client.get_queue_receiver(queue, sub_queue=DEAD_LETTER) as receiver:
            dead = await one(receiver)
            assert dead.dead_letter_reason == "unfit"
            assert dead.dead_letter_error_description == "no price"
            await receiver.complete_message(dead)


async def test_renew_and_the_renewing_helper(bus: Bus) -> None:
    """R6: the helper keeps a lock of 5 s for longer than that."""
    queue = bus.queue(lock_duration=BRIEF, max_delivery_count=3)
    async with bus.aio_client() as client:
        await send(client, queue, "slow")
        async with client.get_queue_receiver(queue) as receiver, AutoLockRenewer() as renewer:
            message = await one(receiver)
            before = message.locked_until_utc
            assert before is not None
            assert await receiver.renew_message_lock(message) >= before
            renewer.register(receiver, message, max_lock_renewal_duration=30)
            await asyncio.sleep(6)
            await receiver.complete_message(message)
        await assert_empty(client, queue)


async def test_peek_and_schedule(bus: Bus) -> None:
    """E5."""
    queue = bus.queue()
    async with bus.aio_client() as client:
        await send(client, queue, "a")
        due = datetime.now(UTC) + timedelta(hours=1)
        async with client.get_queue_sender(queue) as sender:
            (number,) = await sender.schedule_messages(ServiceBusMessage("s"), due)
            async with client.get_queue_receiver(queue) as receiver:
                peeked = await receiver.peek_messages(10)
                assert [str(message) for message in peeked] == ["a", "s"]
                await sender.cancel_scheduled_messages(number)
                (left,) = await receiver.peek_messages(10, sequence_number=1)
                assert str(left) == "a"


async def test_sessions(bus: Bus) -> None:
    """E6."""
    queue = bus.queue(requires_session=True)
    async with bus.aio_client() as client:
        async with client.get_queue_sender(queue) as sender:
            for body, session_id in (("1", "red"), ("2", "blue"), ("3", "red")):
                await sender.send_messages(ServiceBusMessage(body, session_id=session_id))
        async with client.get_queue_receiver(queue, session_id="red") as red:
            with pytest.raises(SessionCannotBeLockedError):
                async with client.get_queue_receiver(queue, session_id="red"):
                    pass
            await red.session.set_state(b"state")
            assert await red.session.get_state() == b"state"
            assert await red.session.renew_lock() > datetime.now(UTC)
            for expected in ("1", "3"):
                message = await one(red)
                assert str(message) == expected
                await red.complete_message(message)
            async with client.get_queue_receiver(
                queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT
            ) as free:
                assert free.session.session_id == "blue"
