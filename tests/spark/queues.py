"""Fills and reads queues beside Spark, with the official SDK."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from tests.support.broker import Broker

_BATCH = 200


def send(broker: Broker, queue: str, messages: Iterable[ServiceBusMessage]) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(_client(broker))
        sender = stack.enter_context(client.get_queue_sender(queue))
        waiting = list(messages)
        for at in range(0, len(waiting), _BATCH):
            sender.send_messages(waiting[at : at + _BATCH])


def send_numbered(
    broker: Broker, queue: str, count: int, start: int = 0, session: str | None = None
) -> list[str]:
    """Messages `m00000` and up; gives their ids."""
    ids = [f"m{number:05}" for number in range(start, start + count)]
    send(
        broker,
        queue,
        [ServiceBusMessage(f"body of {one}", message_id=one, session_id=session) for one in ids],
    )
    return ids


def peek(broker: Broker, queue: str, **sub_queue: str) -> list[ServiceBusReceivedMessage]:
    found: list[ServiceBusReceivedMessage] = []
    with _client(broker) as client, client.get_queue_receiver(queue, **sub_queue) as receiver:
        position = 1
        while page := receiver.peek_messages(_BATCH, sequence_number=position):
            found += page
            position = (page[-1].sequence_number or 0) + 1
    return found


def peeked_ids(broker: Broker, queue: str, **sub_queue: str) -> list[str]:
    return [str(message.message_id) for message in peek(broker, queue, **sub_queue)]


def receive(broker: Broker, queue: str, count: int) -> list[ServiceBusReceivedMessage]:
    """Receive and complete up to so many messages."""
    found: list[ServiceBusReceivedMessage] = []
    with _client(broker) as client, client.get_queue_receiver(queue) as receiver:
        while len(found) < count:
            page = receiver.receive_messages(count - len(found), max_wait_time=1)
            if not page:
                break
            for message in page:
                receiver.complete_message(message)
            found += page
    return found


def _client(broker: Broker) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.connection_string)
