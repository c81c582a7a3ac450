"""Pairs on two live brokers with real faults; the scenarios run side by side.

What the syphon does is in `test_live_syphon.py`.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError

from tests.pairing.cases import Cases, Outcomes
from tests.pairing.live import Side
from tests.pairing.pairs import LiveWorld, seen, until
from twinbus.pairing import NoBacklogQueueError, PairingError, pair_namespace
from twinbus.pairing.events import EntityFailedOver, EntityRecovered

# The SDK leaves the socket of a connection that broke to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

UNLIMITED_DAYS = 10_675_199
cases = Cases()

# --------------------------------------------------------------------------------------
# Making a pair (P1, P2) and a healthy one (P3)


@cases
async def p1_p2_the_backlog_queues_exist_when_the_call_returns(world: LiveWorld) -> None:
    admin = world.far.admin
    admin.create_queue(world.backlog(1), lock_duration=timedelta(seconds=17))
    admin.create_queue(world.backlog(7))
    options = world.options(world.far.administration(), backlog_queue_count=3)
    client = await pair_namespace(world.primary, options)
    names = {queue.name for queue in admin.list_queues() if queue.name.startswith(world.host)}
    assert names == {world.backlog(i) for i in (0, 1, 2, 7)}
    used = {queue.name for queue in client.status().backlog_queues}
    assert used == {world.backlog(i) for i in (0, 1, 2)}
    made = admin.get_queue(world.backlog(0))
    assert made.max_size_in_megabytes == 5120
    assert made.max_delivery_count == 2**31 - 1
    assert made.default_message_time_to_live.days == UNLIMITED_DAYS  # type: ignore[union-attr]
    assert made.auto_delete_on_idle.days == UNLIMITED_DAYS  # type: ignore[union-attr]
    assert made.lock_duration == timedelta(minutes=1)
    assert made.dead_lettering_on_message_expiration is True
    assert made.enable_batched_operations is True
    assert made.requires_session is False
    assert admin.get_queue(world.backlog(1)).lock_duration == timedelta(seconds=17)
    with pytest.raises(PairingError, match="already"):
        await client.pair_namespace()
    await client.close()
    assert {q.name for q in admin.list_queues() if q.name.startswith(world.host)} == names


@cases
async def p1_wrong_credentials_surface(world: LiveWorld) -> None:
    options = world.options(world.far.administration(key="d3Jvbmc="))
    with pytest.raises(ClientAuthenticationError):
        await pair_namespace(world.primary, options)


@cases
async def p1_no_backlog_queue_found_or_made(world: LiveWorld) -> None:
    for index in range(2):
        # A topic has the name: the queue is not there and cannot be made.
        world.far.admin.create_topic(world.backlog(index))
    client, _ = world.pair()
    with pytest.raises(NoBacklogQueueError, match="x-servicebus-transfer/1"):
        await client.pair_namespace()
    await client.close()


@cases
async def p1_a_sender_needs_the_pair(world: LiveWorld) -> None:
    client, _ = world.pair()
    with pytest.raises(PairingError, match="pair_namespace"):
        client.get_queue_sender("any")
    await client.close()


@cases
async def p3_a_healthy_pair_changes_nothing(world: LiveWorld) -> None:
    client, events = world.pair()
    async with client, client.get_queue_sender(world.queue) as sender:
        for number in range(5):
            await sender.send_messages(ServiceBusMessage(str(number)))
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("5"))
        await sender.send_messages(batch)
        await sender.send_messages(ServiceBusMessage(str(number)) for number in (6, 7))
        # One connection, and none of its business reached the secondary.
        assert world.proxy.connections == 1
        assert events == []
        assert world.backlog_count() == 0
        async with client.get_queue_receiver(world.queue) as receiver:
            # A call gives what there is when it has looked for long enough.
            received: list[ServiceBusReceivedMessage] = []
            while len(received) < 8:
                some = await receiver.receive_messages(8 - len(received), max_wait_time=5)
                assert some
                received += some
            assert [str(message) for message in received] == [str(i) for i in range(8)]
            for message in received:
                await receiver.complete_message(message)
        assert client.status().healthy


@cases
async def p3_p5_a_reset_of_idle_connections_fails_nothing_over(world: LiveWorld) -> None:
    client, events = world.pair()
    async with client, client.get_queue_sender(world.queue) as sender:
        for _ in range(2):
            messages = [ServiceBusMessage(str(number)) for number in range(5)]
            await asyncio.gather(*(sender.send_messages(message) for message in messages))
            world.proxy.reset()
        await sender.send_messages(ServiceBusMessage("last"))
        assert events == []
        assert world.near.count(world.queue) == 11


@cases
async def s3_s4_overlapped_sends_are_bounded(world: LiveWorld) -> None:
    client, _ = world.pair()
    async with client, client.get_queue_sender(world.queue) as sender:
        messages = [ServiceBusMessage(str(number)) for number in range(40)]
        await asyncio.gather(*(sender.send_messages(message) for message in messages[:10]))
        world.proxy.slow(0.1)
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(sender.send_messages(message) for message in messages[10:]))
        # Each waits 200 ms; 30 of them ten at a time take three rounds, not thirty.
        assert 0.6 < asyncio.get_running_loop().time() - began < 4
        assert world.proxy.connections == 10
    assert world.near.count(world.queue) == 40


# --------------------------------------------------------------------------------------
# Which faults fail over (P4), and the way back (P7, P10)

Fault = Callable[[LiveWorld, str], None]


def fill(world: LiveWorld, queue: str) -> None:
    """Bring a queue of 1 MB to its limit (E11)."""
    with world.near.client() as client, client.get_queue_sender(queue) as sender:
        for _ in range(5):
            sender.send_messages(ServiceBusMessage(b"x" * 250_000))


FAIL_OVER: dict[str, Fault] = {
    "connection_refused": lambda world, queue: world.proxy.refuse(),
    "connections_reset": lambda world, queue: world.proxy.reset_each(),
    "black_hole": lambda world, queue: world.proxy.black_hole(),
    "an_answer_in_http": lambda world, queue: world.proxy.answer_in_http(),
    "slower_than_the_time_out": lambda world, queue: world.proxy.slow(6),
    "entity_disabled": lambda world, queue: world.near.set_status(queue, "Disabled"),
    "sending_disabled": lambda world, queue: world.near.set_status(queue, "SendDisabled"),
    "entity_deleted": lambda world, queue: world.near.admin.delete_queue(queue),
    "over_quota": fill,
}


async def suffer(fault: Fault, world: LiveWorld) -> None:
    queue = world.near.new_queue(max_size_in_megabytes=1)
    client, events = world.pair(operation_timeout=timedelta(seconds=5))
    async with client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        await asyncio.to_thread(fault, world, queue)
        await sender.send_messages(ServiceBusMessage("during"))
        assert seen(events, EntityFailedOver)
        assert world.backlog_count() == 1


for name, fault in FAIL_OVER.items():
    case = partial(suffer, fault)
    case.__name__ = f"p4_{name}_fails_over"  # type: ignore[attr-defined]
    cases(case)


@cases
async def p4_a_black_hole_fails_over_before_the_first_connection(world: LiveWorld) -> None:
    """Neither a batch nor a list can be made without a link to the entity."""
    world.proxy.black_hole()
    client, events = world.pair(operation_timeout=timedelta(seconds=8))
    async with client, client.get_queue_sender(world.queue) as sender:
        batch = await sender.create_message_batch()
        assert seen(events, EntityFailedOver)
        batch.add_message(ServiceBusMessage("0"))
        await sender.send_messages(batch)
        await sender.send_messages([])
        await sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        assert world.backlog_count() == 3


@cases
async def p6_a_batch_is_made_for_a_backlog_queue_that_serves(world: LiveWorld) -> None:
    client, _ = world.pair(backlog_queue_count=8)
    async with client, client.get_queue_sender(world.queue) as sender:
        for index in range(7):
            world.far.admin.delete_queue(world.backlog(index))
        world.proxy.refuse()
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("0"))
        await sender.send_messages(batch)
        assert world.far.total(world.backlog(7)) == 1


@cases
async def p4_slow_is_not_down(world: LiveWorld) -> None:
    client, events = world.pair()
    async with client, client.get_queue_sender(world.queue) as sender:
        world.proxy.slow(0.05)
        await sender.send_messages(ServiceBusMessage("slowly"))
        assert events == []


@cases
async def p4_a_wrong_key_is_raised(world: LiveWorld) -> None:
    client, events = world.pair(world.near.connection_string(key="d3Jvbmc=", host=world.host))
    async with client, client.get_queue_sender(world.queue) as sender:
        with pytest.raises(ServiceBusAuthenticationError):
            await sender.send_messages(ServiceBusMessage("locked out"))
        assert events == []


@cases
async def p7_every_sender_returns_when_the_entity_is_back(world: LiveWorld) -> None:
    client, events = world.pair()
    async with client:
        senders = [client.get_queue_sender(world.queue) for _ in range(3)]
        world.proxy.refuse()
        await asyncio.gather(*(each.send_messages(ServiceBusMessage("b")) for each in senders))
        world.proxy.heal()
        await until(lambda: seen(events, EntityRecovered))
        await asyncio.gather(*(each.send_messages(ServiceBusMessage("a")) for each in senders))
        assert world.near.count(world.queue) == 3
        assert client.status().healthy


@cases
async def p10_a_ping_is_never_delivered(world: LiveWorld) -> None:
    world.near.set_status(world.queue, "SendDisabled")
    client, events = world.pair()
    async with client, client.get_queue_sender(world.queue) as sender:
        await sender.send_messages(ServiceBusMessage("parked"))
        world.near.set_status(world.queue, "Active")
        await until(lambda: seen(events, EntityRecovered))
        async with client.get_queue_receiver(world.queue) as receiver:
            assert await receiver.peek_messages(5) == []
            assert await receiver.receive_messages(5, max_wait_time=1) == []


@pytest.fixture(scope="module")
def outcomes(sides: tuple[Side, Side]) -> Outcomes:
    return cases.run(lambda: LiveWorld(*sides))


@pytest.mark.parametrize("name", cases.names)
def test_case(outcomes: Outcomes, name: str) -> None:
    outcomes.check(name)
