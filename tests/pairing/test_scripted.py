"""What each refusal does (P4, P5, P6, P9), against namespaces that refuse as told."""

import asyncio
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from tests.pairing.cases import Cases, Outcomes
from tests.pairing.pairs import ScriptedWorld, scripted_pair, until
from twinbus.pairing import (
    BacklogMessageTooLargeError,
    BacklogSendError,
    PairClosedError,
    Syphon,
    sender,
)
from twinbus.pairing.events import (
    BacklogQueueDropped,
    EntityCleared,
    EntityFailedOver,
    EntityRecovered,
    EntitySuspected,
    PingSent,
)

# The SDK leaves the socket of a connection that broke to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

cases = Cases()
PING = b"application/vnd.ms-servicebus-ping"
ANYTHING = ServiceBusMessage("body", message_id="m")
COUNTING = [
    "amqp:internal-error",
    "com.microsoft:timeout",
    "com.microsoft:entity-disabled",
    "amqp:resource-limit-exceeded",
    "amqp:not-found",
]
NOT_COUNTING = [
    "amqp:unauthorized-access",
    "amqp:not-allowed",
    "amqp:link:message-size-exceeded",
    "com.microsoft:argument-error",
]


@cases
async def p4_p5_what_counts_fails_over(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    primary.answer = lambda entity, number: entity
    client, events = scripted_pair(primary, secondary)
    async with client:
        senders = [client.get_queue_sender(condition) for condition in COUNTING]
        await asyncio.gather(*(each.send_messages(ANYTHING) for each in senders))
        failed = {event.path for event in events if isinstance(event, EntityFailedOver)}
        assert failed == set(COUNTING)
        assert len(secondary.accepted) == len(COUNTING)
        assert not client.status().healthy


@cases
async def p4_what_does_not_count_is_raised(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    primary.answer = lambda entity, number: entity if number == 0 else None
    client, events = scripted_pair(primary, secondary)
    async with client:
        senders = [client.get_queue_sender(condition) for condition in NOT_COUNTING]
        refusals = await asyncio.gather(
            *(each.send_messages(ANYTHING) for each in senders), return_exceptions=True
        )
        assert all(isinstance(refusal, ServiceBusError) for refusal in refusals)
        await asyncio.gather(*(each.send_messages(ANYTHING) for each in senders))
        assert events == []
        assert secondary.offered == []


@cases
async def p4_wrong_key_is_raised(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    primary.token_status = 401
    client, events = scripted_pair(primary, secondary)
    async with client, client.get_queue_sender("orders") as paired:
        with pytest.raises(ServiceBusAuthenticationError):
            await paired.send_messages(ANYTHING)
        assert events == []


@cases
async def p4_a_missing_entity_is_no_wrong_key(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    primary.token_status = 404
    client, _ = scripted_pair(primary, secondary)
    async with client, client.get_queue_sender("orders") as paired:
        await paired.send_messages(ANYTHING)
        assert len(secondary.accepted) == 1


@cases
async def p4_busy_waits_and_sends_again_to_the_primary(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    primary.answer = lambda entity, number: "com.microsoft:server-busy" if number < 2 else None
    client, events = scripted_pair(primary, secondary)
    async with client, client.get_queue_sender("orders") as paired:
        began = asyncio.get_running_loop().time()
        await paired.send_messages(ANYTHING)
        assert asyncio.get_running_loop().time() - began >= 0.6
        assert len(primary.accepted) == 1
        assert events == []
        primary.answer = lambda entity, number: "com.microsoft:server-busy"
        with pytest.raises(ServiceBusServerBusyError):
            await paired.send_messages(ANYTHING, timeout=1)
        assert secondary.offered == []


@cases
async def p5_suspicion_ends_with_a_success(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    primary.answer = lambda entity, number: "amqp:internal-error" if number == 0 else None
    client, events = scripted_pair(primary, secondary, failover_interval=timedelta(seconds=30))
    async with client, client.get_queue_sender("orders") as paired:
        with pytest.raises(ServiceBusError):
            await paired.send_messages(ANYTHING)
        assert isinstance(events[-1], EntitySuspected)
        await paired.send_messages(ANYTHING)
        assert events[-1] == EntityCleared("orders")
        assert secondary.offered == []


@cases
async def p5_failover_engages_by_time_alone(
    world: ScriptedWorld,
) -> None:
    primary, secondary = world.primary, world.secondary
    primary.answer = lambda entity, number: "amqp:internal-error"
    client, events = scripted_pair(primary, secondary, failover_interval=timedelta(seconds=0.3))
    async with client, client.get_queue_sender("orders") as paired:
        with pytest.raises(ServiceBusError):
            await paired.send_messages(ANYTHING)
        await until(lambda: any(isinstance(event, EntityFailedOver) for event in events))
        await paired.send_messages(ANYTHING)
        assert len([None for _, payload in primary.offered if PING not in payload]) == 1
        assert len(secondary.accepted) == 1


@cases
async def p6_p7_p10_pings_run_until_one_succeeds(
    world: ScriptedWorld,
) -> None:
    primary, secondary = world.primary, world.secondary
    primary.answer = lambda entity, number: "amqp:internal-error" if number < 2 else None
    client, events = scripted_pair(primary, secondary, ping_primary_interval=timedelta(seconds=3))
    async with client:
        one, other = client.get_queue_sender("orders"), client.get_queue_sender("ORDERS")
        await one.send_messages(ANYTHING)
        await other.send_messages(ANYTHING)
        assert len([None for _, payload in primary.offered if PING not in payload]) == 1
        assert len(secondary.accepted) == 2
        await until(lambda: isinstance(events[-1], EntityRecovered))
        pings = [event for event in events if isinstance(event, PingSent)]
        assert [ping.error is None for ping in pings] == [False, True]
        assert PING in primary.accepted[0][1]
        await one.send_messages(ANYTHING)
        await other.send_messages(ANYTHING)
        assert [entity for entity, _ in primary.accepted[1:]] == ["orders", "orders"]
        await asyncio.sleep(3.2)
        assert [event for event in events if isinstance(event, PingSent)] == pings


@cases
async def p6_only_the_entity_that_failed_is_off(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    primary.answer = lambda entity, number: "amqp:internal-error" if entity == "bad" else None
    client, _ = scripted_pair(primary, secondary)
    async with client:
        await client.get_queue_sender("bad").send_messages(ANYTHING)
        await client.get_topic_sender("good").send_messages(ANYTHING)
        assert [entity for entity, _ in primary.accepted] == ["good"]
        states = {entity.path: entity.state for entity in client.status().entities}
        assert states == {"bad": "failed over", "good": "healthy"}


@cases
async def p6_a_failing_backlog_queue_leaves_the_rotation(
    world: ScriptedWorld,
) -> None:
    primary, secondary = world.primary, world.secondary
    primary.answer = lambda entity, number: "amqp:internal-error"
    bad = ["localhost/x-servicebus-transfer/0", "localhost/x-servicebus-transfer/1"]
    secondary.answer = lambda entity, number: "amqp:internal-error" if entity in bad else None
    client, events = scripted_pair(
        primary, secondary, backlog_queue_count=3, ping_primary_interval=timedelta(seconds=60)
    )
    async with client:
        senders = [client.get_queue_sender("orders") for _ in range(12)]
        await asyncio.gather(*(each.send_messages(ANYTHING) for each in senders))
        assert {entity for entity, _ in secondary.accepted} == {"localhost/x-servicebus-transfer/2"}
        assert len(secondary.accepted) == 12
        dropped = [event.queue for event in events if isinstance(event, BacklogQueueDropped)]
        assert sorted(dropped) == sorted(set(dropped))
        assert set(dropped) <= set(bad)
        rotation = {queue.name for queue in client.status().backlog_queues if queue.in_rotation}
        assert rotation == {f"localhost/x-servicebus-transfer/{i}" for i in range(3)} - set(dropped)


@cases
async def p6_no_backlog_queue_left_shows_both_errors(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    primary.answer = lambda entity, number: "com.microsoft:entity-disabled"
    secondary.answer = lambda entity, number: "amqp:resource-limit-exceeded"
    client, _ = scripted_pair(
        primary,
        secondary,
        backlog_queue_count=2,
        ping_primary_interval=timedelta(seconds=5),
    )
    async with client, client.get_queue_sender("orders") as paired:
        with pytest.raises(BacklogSendError) as caught:
            await paired.send_messages(ANYTHING)
        assert "entity-disabled" in str(caught.value)
        assert "resource-limit-exceeded" in str(caught.value)
        assert len(secondary.offered) == 2
        with pytest.raises(BacklogSendError, match="entity-disabled"):
            await paired.send_messages(ANYTHING)
        assert len(secondary.offered) == 2
        secondary.answer = lambda entity, number: None
        await asyncio.sleep(5.1)
        await paired.send_messages(ANYTHING)


@cases
async def p9_too_large_for_the_backlog_says_so(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    primary.answer = lambda entity, number: None if number == 0 else "amqp:internal-error"
    client, events = scripted_pair(primary, secondary)
    near_the_limit = ServiceBusMessage(b"x" * (262_144 - 74))
    async with client, client.get_queue_sender("orders") as paired:
        await paired.send_messages(near_the_limit)
        with pytest.raises(BacklogMessageTooLargeError, match=r"adds about \d+ bytes") as caught:
            await paired.send_messages(near_the_limit)
        assert isinstance(caught.value, MessageSizeExceededError)
        assert secondary.accepted == []
        assert not any(isinstance(event, BacklogQueueDropped) for event in events)
        await paired.send_messages(ANYTHING)


@cases
async def a_full_batch_goes_to_the_backlog_in_several_transfers(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    client, _ = scripted_pair(primary, secondary)
    async with client, client.get_queue_sender("orders") as paired:
        batch = await paired.create_message_batch()
        while True:
            try:
                batch.add_message(ServiceBusMessage(b"x" * 1000, session_id="s"))
            except MessageSizeExceededError:
                break
        primary.answer = lambda entity, number: "amqp:internal-error"
        await paired.send_messages(batch)
        assert len(secondary.accepted) == 2
        again = await paired.create_message_batch()
        assert again.max_size_in_bytes == 262_144


@cases
async def many_callers_share_a_sender(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    client, _ = scripted_pair(primary, secondary)
    async with client, client.get_queue_sender("orders", max_in_flight=4) as paired:
        bodies = [ServiceBusMessage(str(i)) for i in range(60)]
        await asyncio.gather(*(paired.send_messages(body) for body in bodies))
        assert len(primary.offered) == 60


@cases
async def p11_c3_an_idle_syphon_makes_40_receive_calls_an_hour(world: ScriptedWorld) -> None:
    """With 15 minutes of poll 40 calls are an hour; here a poll takes 2 s, and 40 calls 8 s, or
    longer where the machine is slow."""
    lone = Syphon.from_connection_strings(
        world.primary.connection_string,
        world.secondary.connection_string,
        syphon_poll=timedelta(seconds=2),
    )
    polled = world.secondary.polled
    async with lone:
        await until(lambda: len(set(polled)) == 10)
        began, before = asyncio.get_running_loop().time(), len(polled)
        await until(lambda: len(polled) - before >= 40, 20)
        took = asyncio.get_running_loop().time() - began
    assert took >= 7.5
    assert {polled.count(queue) for queue in set(polled)} <= {4, 5, 6}
    assert world.primary.offered == []


@cases
async def p12_a_closed_pair_takes_nothing(world: ScriptedWorld) -> None:
    primary, secondary = world.primary, world.secondary
    client, _ = scripted_pair(primary, secondary)
    async with client:
        paired = client.get_queue_sender("orders")
        await paired.send_messages(ANYTHING)
    with pytest.raises(PairClosedError):
        await paired.send_messages(ANYTHING)


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    assert sender.SERVER_BUSY_WAIT_S == 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sender, "SERVER_BUSY_WAIT_S", 0.3)
        return cases.run(ScriptedWorld)


@pytest.mark.parametrize("name", cases.names)
def test_case(outcomes: Outcomes, name: str) -> None:
    outcomes.check(name)
