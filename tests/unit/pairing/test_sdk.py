"""The SDK's inner names that `sdk.py` relies on are as it believes them to be."""

import pickle
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusReceivedMessage,
    TransportType,
)
from azure.servicebus import aio as sdk_aio
from azure.servicebus._common.tracing import get_span_link_from_message
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import BatchMessage, Message
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from twinbus.amqp.sections import split_batch
from twinbus.pairing import sdk
from twinbus.pairing.sync.concurrency import bounded

NOBODY = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
)
RAW = b"\x00\x53\x75\xa0\x04body"


def frame(delivery_id: int | None, more: bool, payload: bytes, lock: str = "") -> list[Any]:
    fields: list[Any] = [None] * 12
    fields[1], fields[5], fields[11] = delivery_id, more, memoryview(payload)
    if delivery_id is not None:
        fields[2] = tag(delivery_id, lock)
    return fields


def tag(delivery_id: int, lock: str) -> bytes:
    return f"{lock}{delivery_id}".encode()


class Receiver:
    """What of a receiver the tap touches."""

    def __init__(self) -> None:
        self.passed_on: list[Any] = []
        self.open_link()

    def open_link(self) -> None:
        """What the SDK does by itself when a link broke; delivery ids begin anew with it."""
        link = SimpleNamespace(_incoming_transfer=self.passed_on.append)
        self._handler = SimpleNamespace(_link=link)

    def get(self, *frames: list[Any]) -> None:
        for each in frames:
            self._handler._link._incoming_transfer(each)


def message(delivery_id: int, lock: str = "") -> Any:
    return SimpleNamespace(_delivery_id=delivery_id, _delivery_tag=tag(delivery_id, lock))


def encoded(batch: Any) -> bytes:
    return bytes(encode_payload(bytearray(), BatchMessage(*batch._message)))


def test_a_batch_carries_raw_bytes_as_they_are() -> None:
    batch = sdk.fill_raw(ServiceBusMessageBatch(), RAW, "session", "key")
    assert len(batch) == 1
    output = encoded(batch)
    assert split_batch(output) == [RAW]
    assert b"session" in output
    assert b"x-opt-partition-key" in output


@pytest.mark.parametrize("spare", [0, 1])
def test_p8_p11_a_message_that_its_entity_takes_never_becomes_too_long(spare: int) -> None:
    """A sender may say the session around a message only where there is room for that."""
    around = ("s" * 128, "key")
    whole = encoded(sdk.fill_raw(ServiceBusMessageBatch(), RAW, *around))
    batch = ServiceBusMessageBatch(max_size_in_bytes=len(whole) - 1 + spare)
    output = encoded(sdk.fill_raw(batch, RAW, *around))
    assert len(output) <= batch.max_size_in_bytes
    assert split_batch(output) == [RAW]
    assert (around[0].encode() in output) is bool(spare)


def test_p11_of_a_message_that_is_held_only_the_lock_stays() -> None:
    """Whatever kind of body it has; the SDK settles it all the same."""
    lock, until_ms = uuid.uuid4(), 1_900_000_000_000
    fields = frame(7, False, b"")
    fields[2] = lock.bytes_le
    much = b"x" * 10_000
    for body in ({"data": [much]}, {"value": [much]}, {"sequence": [[much]]}):
        raw = Message(
            **body,
            application_properties={b"much": much},
            message_annotations={b"x-opt-locked-until": until_ms},
        )
        received = ServiceBusReceivedMessage(raw, frame=fields, receiver=None)
        del raw
        assert len(pickle.dumps(received)) > len(much)
        sdk.keep_lock_only(received)
        assert len(pickle.dumps(received)) < 2000
        assert (received._delivery_id, received._delivery_tag) == (7, lock.bytes_le)
        assert received.lock_token == lock
        assert received.locked_until_utc == datetime.fromtimestamp(until_ms / 1000, UTC)
        assert not received._lock_expired
        assert get_span_link_from_message(received) is not None
        assert much.decode() not in repr(received)


def test_the_tap_keeps_whole_messages_of_many_frames() -> None:
    receiver, tap = Receiver(), sdk.PayloadTap()
    assert not tap.sits_on(receiver)
    tap.put_on(receiver)
    assert tap.sits_on(receiver)
    receiver.get(
        frame(4, False, b"one"),
        frame(5, True, b"a"),
        frame(None, True, b"b"),
        frame(None, False, b"c"),
    )
    assert len(receiver.passed_on) == 4
    assert tap.take(message(4), receiver) == b"one"
    assert tap.take(message(5), receiver) == b"abc"
    assert tap.take(message(5), receiver) is None


def test_the_tap_forgets_all_but_the_message_that_is_coming_in() -> None:
    receiver, tap = Receiver(), sdk.PayloadTap()
    tap.put_on(receiver)
    receiver.get(frame(4, False, b"gone"), frame(5, True, b"first "))
    tap.forget()
    receiver.get(frame(None, False, b"second"))
    assert tap.take(message(4), receiver) is None
    assert tap.take(message(5), receiver) == b"first second"
    tap.forget()
    assert tap.take(message(5), receiver) is None


def test_a_link_that_the_sdk_opened_by_itself_is_noticed() -> None:
    receiver, tap = Receiver(), sdk.PayloadTap()
    tap.put_on(receiver)
    receiver.open_link()
    assert not tap.sits_on(receiver)
    receiver._handler = None  # type: ignore[assignment]
    assert not tap.sits_on(receiver)


def test_p11_bytes_of_a_broken_link_are_never_those_of_another_message() -> None:
    receiver, tap = Receiver(), sdk.PayloadTap()
    tap.put_on(receiver)
    receiver.get(frame(0, False, b"old"))
    left = receiver._handler._link
    receiver.open_link()
    receiver.get(frame(0, False, b"untapped", "new "))
    assert tap.take(message(0, "new "), receiver) is None
    assert tap.take(message(0), receiver) is None
    tap.put_on(receiver)
    receiver.get(frame(0, False, b"new", "newer "))
    left._incoming_transfer(frame(0, False, b"late", "late "))
    assert tap.take(message(0), receiver) is None
    assert tap.take(message(0, "late "), receiver) is None
    assert tap.take(message(0, "newer "), receiver) == b"new"


def test_p12_a_client_closes_what_it_made() -> None:
    client = ServiceBusClient.from_connection_string(NOBODY)
    canary = client.get_queue_sender("any")
    assert not sdk.is_closed(canary)
    client.close()
    assert sdk.is_closed(canary)


async def test_p12_an_asynchronous_client_too() -> None:
    client = sdk_aio.ServiceBusClient.from_connection_string(NOBODY)
    canary = client.get_queue_sender("any")
    assert not sdk.is_closed(canary)
    await client.close()
    assert sdk.is_closed(canary)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a peer that takes every connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Nobody accepts: to the other side a connection that waits for that is an open one.
        yield listener.getsockname()[1]


def client_of(port: int, tls: bool, **options: Any) -> ServiceBusClient:
    if tls:
        where = {"custom_endpoint_address": f"sb://127.0.0.1:{port}"}
        text = NOBODY.partition(";Use")[0]
        options |= {"transport_type": TransportType.Amqp} | where
    else:
        text = NOBODY.replace("localhost:1", f"127.0.0.1:{port}")
    return ServiceBusClient.from_connection_string(text, retry_total=0, **options)


USES: dict[str, Callable[[Any], object]] = {
    "queue sender": lambda client: client.get_queue_sender("q").send_messages(
        ServiceBusMessage("body"), timeout=0.3
    ),
    "topic sender": lambda client: client.get_topic_sender("t").create_message_batch(),
    "receiver": lambda client: client.get_queue_receiver("q").__enter__(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("tls", [False, True])
# The SDK leaves the socket of a connection that broke to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_p4_an_opening_that_is_never_answered_is_a_time_out(
    silent: int, tls: bool, use: str
) -> None:
    client: Any = bounded(client_of(silent, tls), 0.3)
    ends: list[BaseException] = []

    def work() -> None:
        try:
            USES[use](client)
        except ServiceBusError as error:
            ends.append(error)

    began = time.monotonic()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert 0.2 < time.monotonic() - began < 5
    assert [type(end) for end in ends] == [OperationTimeoutError]
    client.close()
