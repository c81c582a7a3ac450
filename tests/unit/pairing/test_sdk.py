"""The SDK's inner names that `sdk.py` relies on are as it believes them to be."""

from types import SimpleNamespace
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessageBatch
from azure.servicebus import aio as sdk_aio
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import BatchMessage

from twinbus.amqp.sections import split_batch
from twinbus.pairing import sdk

NOBODY = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
)
RAW = b"\x00\x53\x75\xa0\x04body"


def frame(delivery_id: int | None, more: bool, payload: bytes) -> list[Any]:
    fields: list[Any] = [None] * 12
    fields[1], fields[5], fields[11] = delivery_id, more, memoryview(payload)
    return fields


class Receiver:
    """What of a receiver the tap touches."""

    def __init__(self) -> None:
        self.passed_on: list[Any] = []
        link = SimpleNamespace(_incoming_transfer=self.passed_on.append)
        self._handler = SimpleNamespace(_link=link)

    def get(self, *frames: list[Any]) -> None:
        for each in frames:
            self._handler._link._incoming_transfer(each)


def message(delivery_id: int) -> Any:
    return SimpleNamespace(_delivery_id=delivery_id)


def test_a_batch_carries_raw_bytes_as_they_are() -> None:
    batch = sdk.fill_raw(ServiceBusMessageBatch(), RAW, "session", "key")
    assert len(batch) == 1
    output = bytearray()
    encode_payload(output, BatchMessage(*batch._message))
    assert split_batch(bytes(output)) == [RAW]
    assert b"session" in output
    assert b"x-opt-partition-key" in output


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
    assert tap.take(message(4)) == b"one"
    assert tap.take(message(5)) == b"abc"
    assert tap.take(message(5)) is None


def test_the_tap_forgets_all_but_the_message_that_is_coming_in() -> None:
    receiver, tap = Receiver(), sdk.PayloadTap()
    tap.put_on(receiver)
    receiver.get(frame(4, False, b"gone"), frame(5, True, b"first "))
    tap.forget()
    receiver.get(frame(None, False, b"second"))
    assert tap.take(message(4)) is None
    assert tap.take(message(5)) == b"first second"
    tap.forget()
    assert tap.take(message(5)) is None


def test_a_link_that_the_sdk_opened_by_itself_is_noticed() -> None:
    receiver, tap = Receiver(), sdk.PayloadTap()
    tap.put_on(receiver)
    receiver._handler = SimpleNamespace(_link=SimpleNamespace())
    assert not tap.sits_on(receiver)
    receiver._handler = None  # type: ignore[assignment]
    assert not tap.sits_on(receiver)


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
