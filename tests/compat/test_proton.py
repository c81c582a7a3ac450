"""Apache Qpid Proton, a client that knows nothing of Service Bus, against a live broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from proton import UNDESCRIBED, Array, Data, Delivery, Message, Timeout, symbol, timestamp, uint
from proton.reactor import AtMostOnce
from proton.utils import BlockingConnection, BlockingReceiver, LinkDetached

from tests.support.broker import KEY, KEY_NAME, Broker

WAIT = 5.0
EMPTY_WAIT = 0.5


@pytest.fixture
def connection(broker: Broker) -> Iterator[BlockingConnection]:
    opened = BlockingConnection(
        f"amqp://127.0.0.1:{broker.amqp_port}",
        timeout=WAIT,
        user=KEY_NAME,
        password=KEY,
        allow_insecure_mechs=True,
    )
    yield opened
    opened.close()


def send(connection: BlockingConnection, queue: str, *bodies: str) -> None:
    sender = connection.create_sender(queue)
    for body in bodies:
        delivery = sender.send(Message(body=body, id=f"id-{body}", durable=True))
        assert delivery.remote_state == Delivery.ACCEPTED
    sender.close()


def assert_empty(receiver: BlockingReceiver) -> None:
    with pytest.raises(Timeout):
        receiver.receive(timeout=EMPTY_WAIT)


def defer(receiver: BlockingReceiver) -> None:
    delivery = receiver.fetcher.unsettled[0]
    delivery.local.undeliverable = True
    receiver.settle(Delivery.MODIFIED)


class Management:
    """Requests to `<queue>/$management`, answered on the other link of the pair."""

    def __init__(self, connection: BlockingConnection, queue: str) -> None:
        self.node = f"{queue}/$management"
        self.replies = connection.create_receiver(self.node, credit=10)
        self.requests = connection.create_sender(self.node)

    def ask(self, operation: str, body: dict[str, Any]) -> tuple[int, Any]:
        request = Message(
            id=uuid.uuid4(),
            reply_to=self.node,
            properties={"operation": f"com.microsoft:{operation}"},
            body=body,
        )
        self.requests.send(request)
        reply = self.replies.receive()
        assert reply.correlation_id == request.id
        return reply.properties["statusCode"], reply.body


def test_send_receive_accept(connection: BlockingConnection, queue: str) -> None:
    """S1 E4 R2 R4: typed properties and a value body pass through."""
    sender = connection.create_sender(queue)
    properties = {"n": uint(7), "at": timestamp(1_700_000_000_000), "s": "ž", "none": None}
    sender.send(Message(body={"a": [1, 2.5]}, id="m", subject="hi", properties=properties))
    receiver = connection.create_receiver(queue)
    got = receiver.receive()
    assert (got.body, got.id, got.subject) == ({"a": [1, 2.5]}, "m", "hi")
    assert got.properties == properties
    assert isinstance(got.properties["n"], uint)
    assert got.annotations[symbol("x-opt-sequence-number")] == 1
    assert got.delivery_count == 0
    receiver.accept()
    assert_empty(receiver)


def test_presettled_transfers_are_taken(connection: BlockingConnection, queue: str) -> None:
    """S5."""
    sender = connection.create_sender(queue, options=AtMostOnce())
    sender.send(Message(body="unacknowledged"))
    assert connection.create_receiver(queue).receive().body == "unacknowledged"


def test_at_most_once_is_receive_and_delete(connection: BlockingConnection, queue: str) -> None:
    """R1."""
    send(connection, queue, "a")
    receiver = connection.create_receiver(queue, options=AtMostOnce())
    assert receiver.receive().body == "a"
    receiver.close()
    assert_empty(connection.create_receiver(queue))


def test_modified_is_abandon_and_released_is_no_attempt(
    connection: BlockingConnection, queue: str
) -> None:
    """R3: only a failed delivery counts."""
    send(connection, queue, "a", "b")
    receiver = connection.create_receiver(queue)
    receiver.receive()
    receiver.release(delivered=False)
    again = receiver.receive()
    assert (again.body, again.delivery_count) == ("a", 0)
    receiver.release(delivered=True)
    again = receiver.receive()
    assert (again.body, again.delivery_count) == ("a", 1)
    receiver.accept()
    assert receiver.receive().body == "b"


def test_defer_and_fetch(connection: BlockingConnection, queue: str) -> None:
    """E5 R4 R8: fetched and settled by lock token over the management node."""
    send(connection, queue, "later")
    receiver = connection.create_receiver(queue)
    number = receiver.receive().annotations[symbol("x-opt-sequence-number")]
    defer(receiver)
    assert_empty(receiver)
    management = Management(connection, queue)
    wanted = {"sequence-numbers": Array(UNDESCRIBED, Data.LONG, number)}
    fetch = wanted | {"receiver-settle-mode": uint(1)}
    status, body = management.ask("receive-by-sequence-number", fetch)
    assert status == 200
    (fetched,) = body["messages"]
    message = Message()
    message.decode(fetched["message"])
    assert message.body == "later"
    settle = {
        "disposition-status": "completed",
        "lock-tokens": Array(UNDESCRIBED, Data.UUID, fetched["lock-token"]),
    }
    assert management.ask("update-disposition", settle)[0] == 200
    assert management.ask("update-disposition", settle)[0] == 410
    assert management.ask("receive-by-sequence-number", fetch)[0] == 404


def test_reject_is_dead_letter(connection: BlockingConnection, queue: str) -> None:
    """R4 D1."""
    send(connection, queue, "bad")
    receiver = connection.create_receiver(queue)
    receiver.receive()
    receiver.reject()
    assert_empty(receiver)
    dead_letters = connection.create_receiver(f"{queue}/$DeadLetterQueue")
    assert dead_letters.receive().body == "bad"
    dead_letters.accept()


def test_renew_and_peek(connection: BlockingConnection, queue: str) -> None:
    """R6 E5: over the management node."""
    send(connection, queue, "a")
    receiver = connection.create_receiver(queue)
    held = receiver.receive()
    token = held.instructions[symbol("x-opt-lock-token")]
    until = held.annotations[symbol("x-opt-locked-until")]
    management = Management(connection, queue)
    status, body = management.ask(
        "renew-lock", {"lock-tokens": Array(UNDESCRIBED, Data.UUID, token)}
    )
    assert status == 200
    assert body["expirations"].elements[0] >= until
    status, body = management.ask("peek-message", {"from-sequence-number": 1, "message-count": 5})
    assert status == 200
    message = Message()
    message.decode(body["messages"][0]["message"])
    assert message.body == "a"
    receiver.accept()


def test_a_missing_queue_is_refused(connection: BlockingConnection) -> None:
    """S2."""
    with pytest.raises(LinkDetached) as refused:
        connection.create_sender("no-such-queue")
    assert refused.value.condition == "amqp:not-found"
