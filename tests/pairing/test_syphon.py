"""The syphon's rules (P8, P11, P12) with two live brokers."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage
from tests.pairing.live import BACKLOG, Side
from tests.pairing.pairs import SHORT, live_pair, seen, until
from tests.pairing.proxy import FaultyProxy

from twinbus.pairing import (
    NOT_NUMBERED_YET,
    PairClosedError,
    SendAvailabilityPairedNamespaceOptions,
    Syphon,
    pair_namespace,
    syphon,
)
from twinbus.pairing.events import (
    EntityRecovered,
    MessageDeadLettered,
    MessagesBacklogged,
    MessageSyphoned,
    PairFaulted,
    PumpFailed,
    SyphonDeferred,
)

# The SDK leaves the socket of a connection that broke to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SCHEDULED = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)


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
        ServiceBusMessage("later", session_id="s", scheduled_enqueue_time_utc=SCHEDULED),
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
    annotations = {k: v for k, v in (raw.annotations or {}).items() if k not in own}
    header = dict(raw.header.items()) if raw.header else {}
    properties = dict(raw.properties.items()) if raw.properties else {}
    for name in ("creation_time", "absolute_expiry_time"):
        properties[name] = properties.get(name) is not None
    if len(str(properties["message_id"])) in (36, 39):
        properties["message_id"] = "given by the SDK"
    return {
        "body": raw.body if raw.body_type.value == 2 else list(raw.body),
        "type": raw.body_type,
        "header": header,
        "properties": properties,
        "application": message.application_properties,
        "annotations": annotations,
    }


async def test_p8_what_arrives_equals_what_was_sent(
    near: Side, far: Side, proxy: FaultyProxy
) -> None:
    direct = near.new_queue(requires_session=True)
    detour = near.new_queue(requires_session=True)
    client, events = live_pair(near, far, proxy.port, enable_syphon=True)
    async with client:
        sender = client.get_queue_sender(direct)
        for message in every_kind():
            await sender.send_messages(message)
        proxy.refuse()
        sender = client.get_queue_sender(detour)
        for message in every_kind():
            await sender.send_messages(message)
        assert sum(event.count for event in seen(events, MessagesBacklogged)) == 6
        proxy.heal()
        await until(lambda: len(seen(events, MessageSyphoned)) == 6)
        await until(lambda: far.total(BACKLOG.format(0)) + far.total(BACKLOG.format(1)) == 0)
    found = [
        near.receive(name, 6, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5)
        for name in (direct, detour)
    ]
    by_id = [
        sorted((told(message) for message in each), key=lambda it: str(it["body"])[:20])
        for each in found
    ]
    assert len(by_id[0]) == 6
    assert by_id[0] == by_id[1]


async def test_p11_dead_letters_and_what_stays(near: Side, far: Side) -> None:
    gone, shut, fine = (near.new_queue() for _ in range(3))
    client, events = live_pair(near, far, backlog_queue_count=1)
    async with client:
        for name in (shut, gone, fine):
            near.set_status(name, "SendDisabled")
        for name in (shut, gone, fine, shut, fine):
            await client.get_queue_sender(name).send_messages(ServiceBusMessage(name))
    near.admin.delete_queue(gone)
    near.set_status(fine, "Active")
    with far.client() as plain, plain.get_queue_sender(BACKLOG.format(0)) as stray:
        stray.send_messages(ServiceBusMessage("stray"))
    events.clear()
    lone = Syphon.from_connection_strings(
        near.connection_string(),
        far.connection_string(),
        on_event=events.append,
        **(SHORT | {"backlog_queue_count": 1}),
    )
    async with lone:
        await until(lambda: len(seen(events, MessageSyphoned)) == 2)
        await until(lambda: len(seen(events, MessageDeadLettered)) == 2)
        # The entity is asked once a pass, however many messages wait for it.
        assert {event.path for event in seen(events, SyphonDeferred)} == {shut}
        assert far.count(BACKLOG.format(0)) == 2
        near.set_status(shut, "Active")
        await until(lambda: len(seen(events, MessageSyphoned)) == 4)
        assert lone.counters()["MessageSyphoned"] == 4
    assert near.count(fine) == near.count(shut) == 2
    letters = far.dead_letters(BACKLOG.format(0), 2)
    reasons = {str(letter): letter.dead_letter_reason for letter in letters}
    assert reasons["stray"] == "MissingPath"
    assert reasons[gone] in ("MessagingEntityNotFoundError", "ServiceBusAuthenticationError")
    assert all(letter.dead_letter_error_description for letter in letters)
    assert far.total(BACKLOG.format(0)) == 0


async def test_p11_it_survives_either_side(near: Side, far: Side, queue: str) -> None:
    client, events = live_pair(near, far, enable_syphon=True)
    async with client, client.get_queue_sender(queue) as sender:
        near.broker.kill()
        await sender.send_messages(ServiceBusMessage("one"))
        far.broker.kill()
        far.broker.start()
        await until(lambda: seen(events, PumpFailed))
        near.broker.start()
        await until(lambda: len(seen(events, MessageSyphoned)) == 1, 30)
        await until(lambda: seen(events, EntityRecovered), 30)
        await sender.send_messages(ServiceBusMessage("two"))
    assert [str(message) for message in near.receive(queue, 2)] == ["one", "two"]


async def test_schedule_and_cancel_across_a_failover(near: Side, far: Side, queue: str) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    client, events = live_pair(near, far, enable_syphon=True)
    async with client, client.get_queue_sender(queue) as sender:
        number = (await sender.schedule_messages(ServiceBusMessage("a"), later))[0]
        assert number > 0
        await sender.cancel_scheduled_messages(number)
        near.set_status(queue, "SendDisabled")
        numbers = await sender.schedule_messages(
            [ServiceBusMessage("b"), ServiceBusMessage("c")], later
        )
        assert numbers == [NOT_NUMBERED_YET] * 2
        with pytest.raises(ValueError, match="sequence number"):
            await sender.cancel_scheduled_messages(numbers)
        near.set_status(queue, "Active")
        await until(lambda: len(seen(events, MessageSyphoned)) == 2)
    runtime = near.admin.get_queue_runtime_properties(queue)
    assert runtime.scheduled_message_count == 2
    assert runtime.active_message_count == 0


async def test_topics_fail_over_too(near: Side, far: Side) -> None:
    topic = f"topic-{uuid.uuid4().hex[:6]}"
    near.admin.create_topic(topic)
    near.admin.create_subscription(topic, "all")
    client, events = live_pair(near, far, enable_syphon=True)
    async with client, client.get_topic_sender(topic) as sender:
        description = near.admin.get_topic(topic)
        description.status = "SendDisabled"
        near.admin.update_topic(description)
        await sender.send_messages(ServiceBusMessage("news", subject="s"))
        description.status = "Active"
        near.admin.update_topic(description)
        await until(lambda: seen(events, MessageSyphoned))
        async with client.get_subscription_receiver(topic, "all") as receiver:
            (message,) = await receiver.receive_messages(1, max_wait_time=5)
            assert (str(message), message.subject) == ("news", "s")


async def test_p13_beyond_the_order_of_a_session_is_kept_when_asked_for(
    near: Side, far: Side
) -> None:
    queue = near.new_queue(requires_session=True)
    client, events = live_pair(
        near,
        far,
        enable_syphon=True,
        keep_session_order=True,
        syphon_retry_interval=timedelta(seconds=4),
        operation_timeout=timedelta(seconds=20),
    )
    async with client:
        senders = [client.get_queue_sender(queue) for _ in range(2)]

        async def send(number: int) -> None:
            message = ServiceBusMessage(str(number), session_id="s")
            await senders[number % 2].send_messages(message)

        await send(0)
        near.set_status(queue, "SendDisabled")
        for number in range(1, 5):
            await send(number)
        assert len({event.queue for event in seen(events, MessagesBacklogged)}) == 1
        await until(lambda: seen(events, SyphonDeferred))
        near.set_status(queue, "Active")
        await until(lambda: seen(events, EntityRecovered))
        # The primary is back, the backlog is not drained: this one must wait.
        assert not seen(events, MessageSyphoned)
        await send(5)
        assert len(seen(events, MessageSyphoned)) == 4
    received = near.receive(queue, 6, session_id="s")
    assert [str(message) for message in received] == ["0", "1", "2", "3", "4", "5"]


async def test_exactly_once_with_duplicate_detection(near: Side, far: Side) -> None:
    """A send that timed out after it had arrived is sent again, and dropped (E7)."""
    queue = near.new_queue(requires_duplicate_detection=True)
    with FaultyProxy(near.broker.amqp_port) as proxy:
        client, events = live_pair(
            near,
            far,
            proxy.port,
            enable_syphon=True,
            assign_message_ids=True,
            operation_timeout=timedelta(seconds=1),
        )
        async with client, client.get_queue_sender(queue) as sender:
            await sender.send_messages(AmqpAnnotatedMessage(data_body=b"first"))
            proxy.slow(0.8)
            await sender.send_messages(AmqpAnnotatedMessage(data_body=b"second"))
            assert seen(events, MessagesBacklogged)
            proxy.heal()
            await until(lambda: seen(events, MessageSyphoned))
    assert near.count(queue) == 2


async def test_p12_the_syphon_faults_the_client_that_stays_open(
    near: Side, far: Side, queue: str
) -> None:
    assert syphon.FAULT_AFTER_S == 5
    primary = ServiceBusClient.from_connection_string(near.connection_string())
    secondary = ServiceBusClient.from_connection_string(far.connection_string())
    events: list[Any] = []
    options = SendAvailabilityPairedNamespaceOptions(
        secondary=secondary,
        administration=far.administration(),
        **(SHORT | {"enable_syphon": True, "backlog_queue_count": 1}),
    )
    client = await pair_namespace(primary, options, on_event=events.append)
    sender = client.get_queue_sender(queue)
    await sender.send_messages(ServiceBusMessage("before"))
    loop = asyncio.get_running_loop()
    began = loop.time()
    await secondary.close()
    await until(lambda: seen(events, PairFaulted))
    assert 4.9 <= loop.time() - began <= 7
    assert seen(events, PairFaulted) == [PairFaulted("secondary", "primary")]
    with pytest.raises(PairClosedError, match="faulted"):
        await sender.send_messages(ServiceBusMessage("after"))
    await client.close()
