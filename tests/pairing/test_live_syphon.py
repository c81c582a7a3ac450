"""What the syphon does (P8, P11, P12), with two live brokers; the scenarios run side by side."""

import asyncio
import contextlib
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import ServiceResponseError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.pairing.cases import Cases, Outcomes
from tests.pairing.live import Side
from tests.pairing.pairs import SHORT, LiveWorld, seen, until
from twinbus.pairing import (
    NOT_NUMBERED_YET,
    BacklogMessageTooLargeError,
    PairClosedError,
    Syphon,
    pair_namespace,
    pump,
    syphon,
)
from twinbus.pairing.events import (
    EntityRecovered,
    MessageDeadLettered,
    MessagesBacklogged,
    MessageSyphoned,
    PairFaulted,
    SyphonDeferred,
)

# The SDK leaves the socket of a connection that broke to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

cases = Cases()


def every_kind() -> list[Any]:
    """Messages with every body kind, id type, property type, a schedule and a time to live."""
    properties: dict[str | bytes, Any] = {
        "text": "żółć",
        "int": 7,
        "negative": -(2**31),
        "double": 2.5,
        "yes": True,
        "id": uuid.UUID(int=5),
        "time": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
        "long": {"TYPE": "LONG", "VALUE": 2**40},
        "nothing": None,
    }
    return [
        ServiceBusMessage(
            "data",
            message_id="first",
            session_id="s",
            application_properties=properties,
            time_to_live=timedelta(hours=2),
            content_type="text/plain",
            correlation_id="c",
            subject="subject",
            to="to",
            reply_to="reply-to",
            reply_to_session_id="r",
            partition_key="s",
        ),
        ServiceBusMessage(
            "later",
            message_id="later",
            session_id="s",
            scheduled_enqueue_time_utc=datetime(2026, 1, 1, tzinfo=UTC),
        ),
        AmqpAnnotatedMessage(
            value_body={"a": [1, "b", None, {"c": 2.0}]},
            properties={"message_id": uuid.UUID(int=9), "group_id": "s"},
            annotations={"x-mine": "kept"},
        ),
        AmqpAnnotatedMessage(
            sequence_body=[[1, 2], ["three"]],
            properties={"message_id": 2**60, "correlation_id": b"binary", "group_id": "s"},
        ),
        AmqpAnnotatedMessage(
            data_body=[b"two", b"parts"],
            header={"time_to_live": 2**32 - 1, "priority": 7, "durable": True},
            properties={"message_id": "last", "group_id": "s"},
        ),
        # More than one frame of 64 KiB.
        ServiceBusMessage(b"x" * 150_000, message_id="large", session_id="s"),
    ]


def told(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """All that a receiver can see of a message, but for what each broker writes on its own."""
    raw = message.raw_amqp_message
    own = (b"x-opt-sequence-number", b"x-opt-enqueued-time", b"x-opt-locked-until")
    properties = dict(raw.properties.items()) if raw.properties else {}
    for moment in ("creation_time", "absolute_expiry_time"):
        properties[moment] = properties.get(moment) is not None
    return {
        "body": raw.body if raw.body_type.name == "VALUE" else list(raw.body),
        "type": raw.body_type,
        "header": dict(raw.header.items()) if raw.header else {},
        "properties": properties,
        "application": message.application_properties,
        "annotations": {k: v for k, v in (raw.annotations or {}).items() if k not in own},
    }


@cases
async def p8_what_arrives_equals_what_was_sent(world: LiveWorld) -> None:
    direct = world.near.new_queue(requires_session=True)
    detour = world.near.new_queue(requires_session=True)
    client, events = world.pair(enable_syphon=True)
    async with client:
        sender = client.get_queue_sender(direct)
        for message in every_kind():
            await sender.send_messages(message)
        world.proxy.refuse()
        sender = client.get_queue_sender(detour)
        for message in every_kind():
            await sender.send_messages(message)
        assert sum(event.count for event in seen(events, MessagesBacklogged)) == 6
        world.proxy.heal()
        await until(lambda: len(seen(events, MessageSyphoned)) == 6)
        await until(lambda: world.backlog_count() == 0)
    found = [
        await world.receive(queue, 6, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5)
        for queue in (direct, detour)
    ]
    arrived = [[told(message) for message in each] for each in found]
    assert len(arrived[0]) == 6
    assert arrived[0] == arrived[1]


@cases
async def p11_dead_letters_and_what_stays(world: LiveWorld) -> None:
    gone, shut, fine = (world.near.new_queue() for _ in range(3))
    client, events = world.pair(backlog_queue_count=1)
    async with client:
        for queue in (shut, gone, fine):
            world.near.set_status(queue, "SendDisabled")
        senders = {queue: client.get_queue_sender(queue) for queue in (shut, gone, fine)}
        for queue in (shut, gone, fine, shut, fine):
            await senders[queue].send_messages(ServiceBusMessage(queue))
    world.near.admin.delete_queue(gone)
    world.near.set_status(fine, "Active")
    with world.far.client() as plain, plain.get_queue_sender(world.backlog(0)) as stray:
        stray.send_messages(ServiceBusMessage("stray"))
    events.clear()
    lone = Syphon.from_connection_strings(
        world.primary,
        world.far.connection_string(),
        on_event=events.append,
        **(SHORT | {"backlog_queue_count": 1}),
    )
    async with lone:
        await until(lambda: len(seen(events, MessageSyphoned)) == 2)
        await until(lambda: len(seen(events, MessageDeadLettered)) == 2)
        assert {event.path for event in seen(events, SyphonDeferred)} == {shut}
        assert world.far.count(world.backlog(0)) == 2
        world.near.set_status(shut, "Active")
        await until(lambda: len(seen(events, MessageSyphoned)) == 4)
        assert lone.counters()["MessageSyphoned"] == 4
    assert world.near.count(fine) == world.near.count(shut) == 2
    letters = await asyncio.to_thread(world.far.dead_letters, world.backlog(0), 2)
    reasons = {str(letter): letter.dead_letter_reason for letter in letters}
    assert reasons["stray"] == "MissingPath"
    assert reasons[gone] == "MessagingEntityNotFoundError"
    described = {str(letter): letter.dead_letter_error_description or "" for letter in letters}
    assert "x-ms-path" in described["stray"]
    assert "could not be found" in described[gone]
    assert world.backlog_count(1) == 0


@cases
async def p11_a_primary_that_answers_in_http_condemns_no_message(world: LiveWorld) -> None:
    world.proxy.answer_in_http()
    client, events = world.pair(enable_syphon=True)
    async with client, client.get_queue_sender(world.queue) as sender:
        await sender.send_messages(ServiceBusMessage("parked"))
        await until(lambda: seen(events, SyphonDeferred))
        world.proxy.heal()
        await until(lambda: seen(events, MessageSyphoned))
        assert not seen(events, MessageDeadLettered)
        assert world.near.count(world.queue) == 1


@cases
async def p11_a_backlog_queue_that_was_not_found_at_first_is_drained(world: LiveWorld) -> None:
    world.proxy.refuse()
    client, _ = world.pair()
    async with client, client.get_queue_sender(world.queue) as sender:
        # All but the second are gone, so that is where the message goes.
        world.far.admin.delete_queue(world.backlog(0))
        await sender.send_messages(ServiceBusMessage("parked"))
        assert world.far.total(world.backlog(1)) == 1
    world.proxy.heal()
    administration = world.far.administration()
    ask = administration.get_queue

    async def ask_in_vain(name: str, **options: Any) -> Any:
        if name == world.backlog(1):
            raise ServiceResponseError("no answer, for once")
        return await ask(name, **options)

    administration.get_queue = ask_in_vain  # type: ignore[method-assign]
    events: list[Any] = []
    options = world.options(administration, enable_syphon=True)
    client = await pair_namespace(world.primary, options, on_event=events.append)
    assert [queue.name for queue in client.status().backlog_queues] == [world.backlog(0)]
    await until(lambda: seen(events, MessageSyphoned))
    await client.close()
    assert world.near.count(world.queue) == 1


@cases
async def p8_p11_the_largest_message_that_the_backlog_takes_comes_home(world: LiveWorld) -> None:
    """Its session's name fits into the message, and not a second time around it."""
    queue = world.near.new_queue(requires_session=True)
    world.proxy.refuse()
    client, events = world.pair(enable_syphon=True)
    async with client, client.get_queue_sender(queue) as sender:
        limit = (await sender.create_message_batch()).max_size_in_bytes
        for size in range(limit, limit - 1000, -8):
            with contextlib.suppress(BacklogMessageTooLargeError):
                await sender.send_messages(ServiceBusMessage(b"x" * size, session_id="s" * 128))
                break
        world.proxy.heal()
        await until(lambda: seen(events, MessageSyphoned) + seen(events, MessageDeadLettered))
        assert not seen(events, MessageDeadLettered)
    (received,) = await world.receive(queue, 1, session_id="s" * 128)
    assert len(b"".join(received.body)) == size


@cases
async def p2_p11_primaries_by_address_have_a_backlog_each(world: LiveWorld) -> None:
    """Two in one network share a secondary; the syphon of one must leave the other's alone."""
    one, other = (
        world.near.connection_string(port, host=host)
        for port, host in ((None, "127.0.0.1"), (1, "127.0.0.9"))
    )
    client, events = world.pair(other)
    async with client, client.get_queue_sender(world.queue) as sender:
        await sender.send_messages(ServiceBusMessage("for the other"))
    (parked,) = seen(events, MessagesBacklogged)
    assert parked.queue.startswith("127.0.0.9/x-servicebus-transfer/")
    client, _ = world.pair(one)
    async with client:
        used = {queue.name for queue in client.status().backlog_queues}
    assert used == {f"127.0.0.1/x-servicebus-transfer/{index}" for index in range(2)}


@cases
async def p11_what_waits_keeps_its_order(world: LiveWorld) -> None:
    """More messages wait than a pass can hold, and others come after them."""
    world.near.set_status(world.queue, "SendDisabled")
    client, events = world.pair(backlog_queue_count=1, enable_syphon=True)
    async with client, client.get_queue_sender(world.queue) as sender:
        for start in range(0, 250, 50):
            await sender.send_messages(
                [ServiceBusMessage(str(number)) for number in range(start, start + 50)]
            )
        await until(lambda: seen(events, SyphonDeferred))
        world.near.set_status(world.queue, "Active")
        await until(lambda: len(seen(events, MessageSyphoned)) == 250, 40)
    received = await world.receive(world.queue, 250)
    assert [str(message) for message in received] == [str(number) for number in range(250)]


@cases
async def schedule_and_cancel_across_a_failover(world: LiveWorld) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    client, events = world.pair(enable_syphon=True)
    async with client, client.get_queue_sender(world.queue) as sender:
        number = (await sender.schedule_messages(ServiceBusMessage("a"), later))[0]
        assert number > 0
        await sender.cancel_scheduled_messages(number)
        world.near.set_status(world.queue, "SendDisabled")
        numbers = await sender.schedule_messages(
            [ServiceBusMessage("b"), ServiceBusMessage("c")], later
        )
        assert numbers == [NOT_NUMBERED_YET] * 2
        with pytest.raises(ValueError, match="sequence number"):
            await sender.cancel_scheduled_messages(numbers)
        world.near.set_status(world.queue, "Active")
        await until(lambda: len(seen(events, MessageSyphoned)) == 2)
    runtime = world.near.admin.get_queue_runtime_properties(world.queue)
    assert runtime.scheduled_message_count == 2
    assert runtime.active_message_count == 0


@cases
async def topics_fail_over_too(world: LiveWorld) -> None:
    topic = f"topic-{uuid.uuid4().hex[:6]}"
    admin = world.near.admin
    admin.create_topic(topic)
    admin.create_subscription(topic, "all")
    client, events = world.pair(enable_syphon=True)
    async with client, client.get_topic_sender(topic) as sender:
        description = admin.get_topic(topic)
        description.status = "SendDisabled"
        admin.update_topic(description)
        await sender.send_messages(ServiceBusMessage("news", subject="s"))
        description.status = "Active"
        admin.update_topic(description)
        await until(lambda: seen(events, MessageSyphoned))
        async with client.get_subscription_receiver(topic, "all") as receiver:
            (message,) = await receiver.receive_messages(1, max_wait_time=5)
            assert (str(message), message.subject) == ("news", "s")


@cases
async def the_order_of_a_session_is_kept_when_asked_for(world: LiveWorld) -> None:
    queue = world.near.new_queue(requires_session=True)
    client, events = world.pair(
        enable_syphon=True,
        keep_session_order=True,
        syphon_retry_interval=timedelta(seconds=6),
        operation_timeout=timedelta(seconds=25),
    )
    async with client:
        senders = [client.get_queue_sender(queue) for _ in range(2)]

        async def send(number: int) -> None:
            message = ServiceBusMessage(str(number), session_id="s")
            await senders[number % 2].send_messages(message)

        await send(0)
        world.near.set_status(queue, "SendDisabled")
        for number in range(1, 5):
            await send(number)
        assert len({event.queue for event in seen(events, MessagesBacklogged)}) == 1
        await until(lambda: seen(events, SyphonDeferred))
        world.near.set_status(queue, "Active")
        await until(lambda: seen(events, EntityRecovered))
        # The primary is back, the backlog is not drained: this one must wait.
        assert not seen(events, MessageSyphoned)
        await send(5)
        assert len(seen(events, MessageSyphoned)) == 4
    received = await world.receive(queue, 6, session_id="s")
    assert [str(message) for message in received] == ["0", "1", "2", "3", "4", "5"]


@cases
async def once_only_with_duplicate_detection(world: LiveWorld) -> None:
    """A send that timed out after it had arrived is sent again, and dropped (E7)."""
    queue = world.near.new_queue(requires_duplicate_detection=True)
    client, events = world.pair(
        enable_syphon=True, assign_message_ids=True, operation_timeout=timedelta(seconds=8)
    )
    async with client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(AmqpAnnotatedMessage(data_body=b"first"))
        world.proxy.slow(5)
        await sender.send_messages(AmqpAnnotatedMessage(data_body=b"second"))
        assert seen(events, MessagesBacklogged)
        world.proxy.heal()
        await until(lambda: seen(events, MessageSyphoned))
    assert world.near.count(queue) == 2


@cases
async def p12_the_syphon_faults_the_client_that_stays_open(world: LiveWorld) -> None:
    assert syphon.FAULT_AFTER_S == 5
    primary = ServiceBusClient.from_connection_string(world.primary)
    secondary = ServiceBusClient.from_connection_string(world.far.connection_string())
    events: list[Any] = []
    options = world.options(world.far.administration(), secondary=secondary, enable_syphon=True)
    client = await pair_namespace(primary, options, on_event=events.append)
    sender = client.get_queue_sender(world.queue)
    await sender.send_messages(ServiceBusMessage("before"))
    began = asyncio.get_running_loop().time()
    await secondary.close()
    await until(lambda: seen(events, PairFaulted))
    assert asyncio.get_running_loop().time() - began >= 4.5
    assert seen(events, PairFaulted) == [PairFaulted("secondary", "primary")]
    with pytest.raises(PairClosedError, match="faulted"):
        await sender.send_messages(ServiceBusMessage("after"))
    await client.close()


@cases
async def p12_the_fault_ends_though_the_application_goes_on_sending(world: LiveWorld) -> None:
    primary = ServiceBusClient.from_connection_string(world.primary, retry_total=0)
    secondary = ServiceBusClient.from_connection_string(world.far.connection_string())
    options = world.options(
        world.far.administration(),
        secondary=secondary,
        enable_syphon=True,
        # A pump that came back while its client is being closed would break the close.
        syphon_retry_interval=timedelta(minutes=1),
    )
    events: list[Any] = []
    client = await pair_namespace(primary, options, on_event=events.append)
    sender = client.get_queue_sender(world.queue)

    async def application(pause_s: float) -> None:
        # The SDK's senders break in many ways while they are being closed.
        with contextlib.suppress(Exception):
            while True:
                await sender.send_messages(ServiceBusMessage("body"))
                await asyncio.sleep(pause_s)

    applications = [asyncio.create_task(application(each)) for each in (0.0, 0.3, 0.5, 0.7)]
    await secondary.close()
    await until(lambda: seen(events, PairFaulted))
    await asyncio.wait_for(asyncio.gather(*applications), 10)
    await asyncio.wait_for(client.close(), 15)


@pytest.fixture(scope="module")
def outcomes(sides: tuple[Side, Side]) -> Outcomes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pump, "_HELD_MAX", 100)
        return cases.run(lambda: LiveWorld(*sides))


@pytest.mark.parametrize("name", cases.names)
def test_case(outcomes: Outcomes, name: str) -> None:
    outcomes.check(name)
