"""Which faults fail over and which do not (P4), each made for real between client and broker."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from tests.pairing.live import Side
from tests.pairing.pairs import live_pair, seen, until
from tests.pairing.proxy import FaultyProxy

from twinbus.pairing.events import EntityFailedOver, EntityRecovered

# The SDK leaves the socket of a connection that broke to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Fault = Callable[[FaultyProxy, Side, str], None]


def fill(proxy: FaultyProxy, near: Side, queue: str) -> None:
    """Bring a queue of 1 MB to its limit (E11)."""
    with near.client() as client, client.get_queue_sender(queue) as sender:
        for _ in range(5):
            sender.send_messages(ServiceBusMessage(b"x" * 250_000))


FAIL_OVER: dict[str, Fault] = {
    "connection refused": lambda proxy, near, queue: proxy.refuse(),
    "connection reset": lambda proxy, near, queue: proxy.reset(),
    "black hole": lambda proxy, near, queue: proxy.black_hole(),
    "too slow": lambda proxy, near, queue: proxy.slow(3),
    "entity disabled": lambda proxy, near, queue: near.set_status(queue, "Disabled"),
    "sending disabled": lambda proxy, near, queue: near.set_status(queue, "SendDisabled"),
    "entity deleted": lambda proxy, near, queue: near.admin.delete_queue(queue),
    "over quota": fill,
}


async def suffer(name: str, fault: Fault, near: Side, far: Side) -> str | None:
    """One sender through one fault: what its send came to (None: all as it should be)."""
    queue = await asyncio.to_thread(near.new_queue, max_size_in_megabytes=1)
    with FaultyProxy(near.broker.amqp_port) as proxy:
        client, events = live_pair(near, far, proxy.port, operation_timeout=timedelta(seconds=2))
        async with client, client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            await asyncio.to_thread(fault, proxy, near, queue)
            try:
                await sender.send_messages(ServiceBusMessage("during"))
            except Exception as error:
                return f"{name}: raised {error!r}"
            if not seen(events, EntityFailedOver):
                return f"{name}: no failover"
    return None


async def test_p4_what_fails_over(near: Side, far: Side) -> None:
    outcomes = await asyncio.gather(
        *(suffer(name, fault, near, far) for name, fault in FAIL_OVER.items())
    )
    assert [outcome for outcome in outcomes if outcome] == []


async def test_p4_slow_is_not_down(near: Side, far: Side, proxy: FaultyProxy, queue: str) -> None:
    client, events = live_pair(near, far, proxy.port)
    async with client, client.get_queue_sender(queue) as sender:
        proxy.slow(0.05)
        await sender.send_messages(ServiceBusMessage("slowly"))
        assert events == []


async def test_p4_a_wrong_key_is_raised(near: Side, far: Side, queue: str) -> None:
    client, events = live_pair(near, far, key="d3Jvbmc=")
    async with client, client.get_queue_sender(queue) as sender:
        with pytest.raises(ServiceBusAuthenticationError):
            await sender.send_messages(ServiceBusMessage("locked out"))
        assert events == []


async def test_p7_every_sender_returns_when_the_entity_is_back(
    near: Side, far: Side, proxy: FaultyProxy, queue: str
) -> None:
    client, events = live_pair(near, far, proxy.port)
    async with client:
        senders = [client.get_queue_sender(queue) for _ in range(3)]
        proxy.refuse()
        await asyncio.gather(*(each.send_messages(ServiceBusMessage("b")) for each in senders))
        proxy.heal()
        await until(lambda: seen(events, EntityRecovered))
        await asyncio.gather(*(each.send_messages(ServiceBusMessage("a")) for each in senders))
        assert near.count(queue) == 3
        assert client.status().healthy


async def test_p10_a_ping_is_never_delivered(near: Side, far: Side, queue: str) -> None:
    near.set_status(queue, "SendDisabled")
    client, events = live_pair(near, far)
    async with client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("parked"))
        near.set_status(queue, "Active")
        await until(lambda: seen(events, EntityRecovered))
        async with client.get_queue_receiver(queue) as receiver:
            assert await receiver.peek_messages(5) == []
            assert await receiver.receive_messages(5, max_wait_time=1) == []
