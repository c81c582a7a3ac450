"""The pump with a namespace in memory: what it completes is what it has sent (P11)."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import MessageLockLostError, MessagingEntityDisabledError

from twinbus.pairing import rewrite
from twinbus.pairing.events import (
    Event,
    MessageDeadLettered,
    MessageSyphoned,
    PumpFailed,
    SyphonDeferred,
)
from twinbus.pairing.observer import Observer
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.pump import Pump

TARGET = "orders"
SHUT = "shut"
BACKLOG = "near/x-servicebus-transfer/0"


def for_backlog(body: str | bytes, target: str = TARGET) -> bytes:
    message = ServiceBusMessage(body).raw_amqp_message
    return encoded(rewrite.to_backlog(message, target, 0))


def encoded(message: Any) -> bytes:
    return bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(message)))


class Link:
    def __init__(self) -> None:
        self.delivery_ids = itertools.count()

    async def _incoming_transfer(self, frame: Any) -> None:
        pass

    async def flow(self, link_credit: int) -> None:
        assert link_credit == 0


class Backlog:
    """A receiver over a list of messages, whose first link may break when they have come."""

    def __init__(self, payloads: list[bytes], breaks: bool = False) -> None:
        self.waiting = list(payloads)
        self.breaks = breaks
        self.completed: list[bytes] = []
        self.dead: list[tuple[bytes, str]] = []
        self.locks_are_lost = False
        self.locked_until_utc: datetime | None = None
        self.pump: Pump | None = None
        self._shutdown = SimpleNamespace(is_set=lambda: False)
        self._locks: Iterator[int] = itertools.count()
        self._open()

    def _open(self) -> None:
        self._handler = SimpleNamespace(_link=Link(), _shutdown=False)

    def get_queue_receiver(self, name: str) -> "Backlog":
        assert name == BACKLOG
        return self

    async def __aenter__(self) -> "Backlog":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def receive_messages(self, max_message_count: int, max_wait_time: float) -> list[Any]:
        """The SDK's own retry: what came over the link that broke is lost, and comes again
        over one that the SDK has opened by itself, but for the first, which a rival has."""
        if self.breaks:
            self.breaks = False
            for payload in self.waiting:
                await self._deliver(payload)
            self._open()
            self.waiting.pop(0)
        taken, self.waiting = self.waiting[:max_message_count], self.waiting[max_message_count:]
        if not taken:
            assert self.pump is not None
            self.pump.stop()
        return [await self._deliver(payload) for payload in taken]

    async def _deliver(self, payload: bytes) -> Any:
        link = self._handler._link
        number, tag = next(link.delivery_ids), f"lock {next(self._locks)}".encode()
        await link._incoming_transfer({1: number, 2: tag, 5: False, 11: payload})
        return SimpleNamespace(
            _delivery_id=number,
            _delivery_tag=tag,
            _raw_amqp_message=SimpleNamespace(),
            locked_until_utc=self.locked_until_utc,
            payload=payload,
        )

    async def complete_message(self, message: Any) -> None:
        self.completed.append(message.payload)

    async def abandon_message(self, message: Any) -> None:
        self.waiting.append(message.payload)
        if self.locks_are_lost:
            raise MessageLockLostError

    async def dead_letter_message(
        self, message: Any, *, reason: str, error_description: str
    ) -> None:
        if self.locks_are_lost:
            raise MessageLockLostError
        self.dead.append((message.payload, reason))


class Primary:
    """Takes every message, and keeps its bytes; but for those to a queue that is shut."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def get_queue_sender(self, name: str) -> "Sender":
        assert name in (TARGET, SHUT)
        return Sender(self, name)


class Sender:
    def __init__(self, primary: Primary, name: str) -> None:
        self._primary = primary
        self._name = name
        self._shutdown = SimpleNamespace(is_set=lambda: False)

    async def create_message_batch(self) -> Any:
        return ServiceBusMessageBatch()

    async def send_messages(self, batch: Any, *, timeout: float) -> None:
        if self._name == SHUT:
            raise MessagingEntityDisabledError
        self._primary.sent += batch._message[5]

    async def close(self) -> None:
        pass


async def pumped(
    backlog: Backlog, until: type[Event] = PumpFailed
) -> tuple[list[bytes], list[Event]]:
    """Run a pump until the backlog is empty, or an event comes; give what the primary has, and
    the events."""
    events: list[Event] = []

    def note(event: Event) -> None:
        events.append(event)
        if isinstance(event, until):
            assert backlog.pump is not None
            backlog.pump.stop()

    options = SendAvailabilityPairedNamespaceOptions(
        secondary="", administration="", syphon_retry_interval=timedelta(milliseconds=1)
    )
    primary: Any = Primary()
    secondary: Any = backlog
    backlog.pump = Pump(primary, secondary, BACKLOG, options, Observer(note))
    await backlog.pump.run()
    return primary.sent, events


@pytest.mark.parametrize("locks_are_lost", [False, True])
async def test_p11_a_link_that_breaks_under_received_messages_loses_none(
    locks_are_lost: bool,
) -> None:
    payloads = [for_backlog(body) for body in "ABC"]
    backlog = Backlog(payloads, breaks=True)
    backlog.locks_are_lost = locks_are_lost
    sent, _ = await pumped(backlog)
    assert backlog.completed == payloads[1:]
    assert sent == [rewrite.restore(payload).payload for payload in payloads[1:]]


async def test_p11_a_message_that_cannot_be_restored_does_not_stop_those_behind_it() -> None:
    unreadable = ServiceBusMessage(
        "", application_properties={rewrite.PATH: TARGET, rewrite.TIME_TO_LIVE: "00:05:00"}
    )
    stray, bad, good = (
        encoded(ServiceBusMessage("stray").raw_amqp_message),
        encoded(unreadable.raw_amqp_message),
        for_backlog("D"),
    )
    backlog = Backlog([stray, bad, b"\xff", good])
    _, events = await pumped(backlog)
    assert backlog.completed == [good]
    reasons = ["MissingPath", "UnreadableProperty", "MissingPath"]
    assert [reason for _, reason in backlog.dead] == reasons
    dead = [event for event in events if isinstance(event, MessageDeadLettered)]
    assert "x-ms-timetolive is '00:05:00'" in dead[1].description


async def test_p11_a_refusal_that_outlasts_the_lock_does_not_stop_those_behind_it() -> None:
    stray, good = encoded(ServiceBusMessage("stray").raw_amqp_message), for_backlog("D")
    backlog = Backlog([stray, good])
    backlog.locks_are_lost = True
    _, events = await pumped(backlog)
    assert backlog.completed == [good]
    assert [type(event) for event in events] == [MessageSyphoned]


@pytest.mark.parametrize("work_s", [0, 10])
async def test_p11_a_clock_that_is_ahead_is_told_from_a_lock_that_ran_out(
    work_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0, work_s * 1000)
    monkeypatch.setattr("twinbus.pairing.pump.now_ms", lambda: next(clock))
    backlog = Backlog([for_backlog("E")])
    backlog.locked_until_utc = datetime.now(UTC) - timedelta(seconds=30)
    sent, events = await pumped(backlog)
    assert sent == []
    told = [event.error for event in events if isinstance(event, PumpFailed)]
    assert told == ([] if work_s else ["this machine's clock is ahead of the secondary's"])


async def test_p11_many_large_messages_that_wait_do_not_stop_those_behind_them() -> None:
    """They are more than 1,000, and more than 16 MB: one pass looks past them all."""
    waiting, good = for_backlog(bytes(16 * 1024), SHUT), for_backlog("F")
    backlog = Backlog([waiting] * 1100 + [good])
    _, events = await pumped(backlog, until=MessageSyphoned)
    assert backlog.completed == [good]
    assert [type(event) for event in events] == [SyphonDeferred, MessageSyphoned]
    assert backlog.waiting == [waiting] * 1100, "given back"
