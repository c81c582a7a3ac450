"""Making a pair (P1, P2) and what a healthy one does (P3), with two live brokers."""

import asyncio
from datetime import timedelta

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage
from tests.pairing.live import BACKLOG, Side
from tests.pairing.pairs import SHORT, live_pair
from tests.pairing.proxy import FaultyProxy

from twinbus.pairing import (
    NoBacklogQueueError,
    PairingError,
    SendAvailabilityPairedNamespaceOptions,
    pair_namespace,
)

UNLIMITED_DAYS = 10_675_199


async def test_p1_p2_the_backlog_queues_exist_when_the_call_returns(near: Side, far: Side) -> None:
    far.admin.create_queue(BACKLOG.format(1), lock_duration=timedelta(seconds=17))
    far.admin.create_queue(BACKLOG.format(7))
    options = SendAvailabilityPairedNamespaceOptions(
        secondary=far.connection_string(),
        administration=far.administration(),
        **(SHORT | {"backlog_queue_count": 3}),
    )
    client = await pair_namespace(near.connection_string(), options)
    try:
        names = {queue.name for queue in far.admin.list_queues()}
        assert names == {BACKLOG.format(i) for i in (0, 1, 2, 7)}
        used = {queue.name for queue in client.status().backlog_queues}
        assert used == {BACKLOG.format(i) for i in (0, 1, 2)}
        made = far.admin.get_queue(BACKLOG.format(0))
        assert made.max_size_in_megabytes == 5120
        assert made.max_delivery_count == 2**31 - 1
        assert made.default_message_time_to_live.days == UNLIMITED_DAYS  # type: ignore[union-attr]
        assert made.auto_delete_on_idle.days == UNLIMITED_DAYS  # type: ignore[union-attr]
        assert made.lock_duration == timedelta(minutes=1)
        assert made.dead_lettering_on_message_expiration is True
        assert made.enable_batched_operations is True
        assert made.requires_session is False
        found = far.admin.get_queue(BACKLOG.format(1))
        assert found.lock_duration == timedelta(seconds=17)
        with pytest.raises(PairingError, match="already"):
            await client.pair_namespace()
    finally:
        await client.close()
    assert {queue.name for queue in far.admin.list_queues()} == names


async def test_p1_wrong_credentials_surface(near: Side, far: Side) -> None:
    options = SendAvailabilityPairedNamespaceOptions(
        secondary=far.connection_string(), administration=far.administration(key="d3Jvbmc=")
    )
    with pytest.raises(ClientAuthenticationError):
        await pair_namespace(near.connection_string(), options)


async def test_p1_no_backlog_queue_found_or_made(near: Side, far: Side) -> None:
    for index in range(2):
        # A topic has the name: the queue is not there and cannot be made.
        far.admin.create_topic(BACKLOG.format(index))
    try:
        client, _ = live_pair(near, far)
        with pytest.raises(NoBacklogQueueError, match="x-servicebus-transfer/1"):
            await client.pair_namespace()
        await client.close()
    finally:
        for index in range(2):
            far.admin.delete_topic(BACKLOG.format(index))


async def test_p1_a_sender_needs_the_pair(near: Side, far: Side) -> None:
    client, _ = live_pair(near, far)
    with pytest.raises(PairingError, match="pair_namespace"):
        client.get_queue_sender("any")
    await client.close()


async def test_p3_a_healthy_pair_changes_nothing(
    near: Side, far: Side, proxy: FaultyProxy, queue: str
) -> None:
    client, events = live_pair(near, far, proxy.port)
    async with client, client.get_queue_sender(queue) as sender:
        for number in range(5):
            await sender.send_messages(ServiceBusMessage(str(number)))
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("5"))
        await sender.send_messages(batch)
        await sender.send_messages(ServiceBusMessage(str(number)) for number in (6, 7))
        # One connection, and none of its business reached the secondary.
        assert proxy.connections == 1
        assert events == []
        assert all(far.total(BACKLOG.format(index)) == 0 for index in range(2))
        async with client.get_queue_receiver(queue) as receiver:
            received = await receiver.receive_messages(8, max_wait_time=5)
            assert [str(message) for message in received] == [str(i) for i in range(8)]
            for message in received:
                await receiver.complete_message(message)
        assert client.status().healthy


async def test_s3_s4_overlapped_sends_are_bounded_and_fast(
    near: Side, far: Side, proxy: FaultyProxy, queue: str
) -> None:
    client, _ = live_pair(near, far, proxy.port)
    async with client, client.get_queue_sender(queue) as sender:
        messages = [ServiceBusMessage(str(number)) for number in range(40)]
        await asyncio.gather(*(sender.send_messages(message) for message in messages[:10]))
        proxy.slow(0.035)
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(sender.send_messages(message) for message in messages[10:]))
        took = asyncio.get_running_loop().time() - began
        # Each waits 70 ms; 30 of them ten at a time take three rounds, not thirty.
        assert 0.2 < took < 1.5
        assert proxy.connections == 10
    assert near.count(queue) == 40
