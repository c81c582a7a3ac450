"""A small broker for unit tests: one namespace, a log in a list, a clock that is set by hand.

Commands go straight to the engine; `settle_down` is one turn of the server with its commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twinbus.amqp import codec
from twinbus.amqp.sections import DATA
from twinbus.amqp.types import Symbol, Timestamp, UInt
from twinbus.core.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.core.errors import BusError
from twinbus.engine import stored as form
from twinbus.engine.consumer import Consumer, Lock
from twinbus.engine.engine import Engine
from twinbus.engine.entities import Entity, Holder, Queue
from twinbus.engine.kernel import Sealed
from twinbus.engine.message import Message, take_in
from twinbus.engine.namespace import Namespace
from twinbus.engine.sessions import Session
from twinbus.engine.settlement import Settlement
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Subscription, Topic

LOCK_MS = 30_000


class ListLog:
    """Records in a list; every hundred of them make a segment."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []
        self.carried = 0

    def append(self, head: bytes, body: bytes = b"") -> int:
        count = len(self.records)
        location = (1 + count // 100) << 32 | (count % 100) << 20
        self.records.append((location, head + body))
        return location

    def append_carried(self, head: bytes, body: bytes = b"") -> int:
        self.carried += 1
        return self.append(head, body)

    def read(self, location: int, length: int) -> bytes:
        start, record = next(r for r in reversed(self.records) if r[0] <= location)
        return record[location - start : location - start + length]

    def drop_before(self, segment: int) -> None:
        """Blank what is in older segments, so that places stay what they are."""
        self.records = [
            (location, b"" if location >> 32 < segment else record)
            for location, record in self.records
        ]


class Taker(Consumer):
    """A receiver that remembers what it was told."""

    def __init__(self, kit: Kit, stream: Stream, credit: int, peek_lock: bool) -> None:
        super().__init__(peek_lock)
        self.kit = kit
        self.stream = stream
        self.credit = credit
        self.bodies: list[bytes] = []
        self.counts: list[int] = []
        self.seqs: list[int] = []
        self.stored: list[bytes] = []
        self.locks: list[Lock] = []
        self.detached: BusError | None = None
        self.found: str | None = None
        self.gave_up = False
        self.lost = False

    def can_take(self) -> bool:
        return self.credit > 0

    def deliver(
        self, seq: int, stored: bytes, enqueued_ms: int, delivery_count: int, lock: Lock | None
    ) -> None:
        self.credit -= 1
        self.seqs.append(seq)
        self.bodies.append(body_of(stored))
        self.counts.append(delivery_count)
        self.stored.append(stored)
        if lock is not None:
            self.locks.append(lock)

    def detach(self, error: BusError) -> None:
        self.detached = error
        self.stream.detach(self, self.kit.now_ms)

    def session_found(self, session: Session) -> None:
        self.found = session.id

    def session_not_found(self) -> None:
        self.gave_up = True

    def session_lost(self) -> None:
        self.lost = True

    def ask(self, credit: int = 1) -> None:
        """Ask for more messages."""
        self.credit += credit
        self.stream.want(self)
        self.kit.settle_down()


class Kit:
    def __init__(self, memory_bytes_max: int = 1 << 20, *, observing: bool = False) -> None:
        self.now_ms = 1_000_000
        self.log = ListLog()
        self.memory_bytes_max = memory_bytes_max
        self.observing = observing
        self._dice = 0
        self._open()

    def _open(self) -> None:
        self.engine = Engine(self.log, self.memory_bytes_max, self.dice, self.observing)
        for location, record in self.log.records:
            if record:
                self.engine.replay(0, location, 0, record)
        self.engine.finish_replay(self.now_ms)

    def dice(self, count: int) -> bytes:
        self._dice += 1
        return self._dice.to_bytes(count, "big")

    @property
    def namespace(self) -> Namespace:
        return self.engine.namespace("test", self.now_ms)

    # --- entities ---------------------------------------------------------------------

    def queue(self, name: str = "q", **settings: Any) -> Queue:
        return self.namespace.create_queue(QueueDescription(name, **settings), self.now_ms)

    def topic(self, name: str = "t", **settings: Any) -> Topic:
        return self.namespace.create_topic(TopicDescription(name, **settings), self.now_ms)

    def subscription(
        self, name: str = "s", topic: str = "t", rule: Any = None, **settings: Any
    ) -> Subscription:
        description = SubscriptionDescription(topic, name, **settings)
        return self.namespace.create_subscription(description, rule, self.now_ms)

    # --- time and disk ----------------------------------------------------------------

    def settle_down(self) -> None:
        kernel = self.engine.kernel
        kernel.run_timers(self.now_ms)
        kernel.dispatch_ready(self.now_ms)
        kernel.committed(self.seal())
        kernel.dispatch_ready(self.now_ms)

    def seal(self) -> Sealed:
        sealed = self.engine.kernel.seal()
        if self.engine.kernel.observer is not None:
            self.engine.kernel.observer.write()
        return sealed

    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.settle_down()

    def restart(self) -> None:
        """What was written is read back; everything else is gone."""
        self.seal()
        self._open()

    # --- messages ---------------------------------------------------------------------

    def send(self, entity: Entity, *payloads: bytes) -> None:
        """Send, and wait until it is durable."""
        messages = [take_in(payload, lambda: "made up") for payload in payloads]
        for message in messages:
            entity.check(message)
        for message in messages:
            entity.publish(message, self.now_ms)
        self.settle_down()

    def taker(
        self, holder: Holder, which: int = 0, credit: int = 1, peek_lock: bool = True
    ) -> Taker:
        """Attach a receiver with credit."""
        taker = Taker(self, holder.stream(which), credit, peek_lock)
        taker.stream.attach(taker, self.now_ms)
        if credit:
            taker.stream.want(taker)
        self.settle_down()
        return taker

    def session_taker(self, holder: Holder, session_id: str, credit: int = 1) -> Taker:
        taker = Taker(self, holder.main, credit, True)
        holder.main.accept_session(taker, session_id, self.now_ms)
        holder.main.attach(taker, self.now_ms)
        holder.main.want(taker)
        self.settle_down()
        return taker

    def settle(self, holder: Holder, stream: Stream, lock: Lock, wanted: Settlement) -> None:
        wanted.apply(holder, stream, lock, self.now_ms)
        self.settle_down()

    def bodies(self, holder: Holder, which: int = 0) -> list[bytes]:
        """What is in a stream, in order."""
        stream = holder.stream(which)
        return [body_of(stream.stored(seq)) for seq in present(stream)]

    def death(self, holder: Holder, which: int = 1) -> tuple[object, object, object]:
        """Reason, description and source of the first dead letter."""
        stream = holder.stream(which)
        stored = stream.stored(present(stream)[0])
        given = properties_of(stored)
        source = form.annotation(stored, "x-opt-deadletter-source")
        return given.get("DeadLetterReason"), given.get("DeadLetterErrorDescription"), source


def present(stream: Stream) -> list[int]:
    seqs: list[int] = []
    seq = stream.index.next_present(1)
    while seq:
        seqs.append(seq)
        seq = stream.index.next_present(seq + 1)
    return seqs


def section(code: int, value: object) -> bytes:
    return bytes((0, 0x53, code)) + codec.encode(value)


def payload(
    body: bytes = b"body",
    *,
    message_id: object = "id",
    session_id: str | None = None,
    ttl_ms: int | None = None,
    due_ms: int | None = None,
    subject: str | None = None,
    properties: dict[str, object] | None = None,
) -> bytes:
    """A message as a client sends it."""
    sections: list[bytes] = []
    if ttl_ms is not None:
        sections.append(section(0x70, [None, None, UInt(ttl_ms)]))
    if due_ms is not None:
        name = Symbol("x-opt-scheduled-enqueue-time")
        sections.append(section(0x72, {name: Timestamp(due_ms)}))
    fields = [message_id, None, None, subject, *[None] * 6, session_id]
    sections.append(section(0x73, fields))
    if properties is not None:
        sections.append(section(0x74, properties))
    sections.append(section(0x75, body))
    return b"".join(sections)


def body_of(stored: bytes) -> bytes:
    start, end = Message(stored).section(DATA)
    body = codec.decode_whole(stored[start + 3 : end])
    assert isinstance(body, bytes)
    return body


def properties_of(stored: bytes) -> dict[str, object]:
    pairs = Message(stored).application_properties()
    return {str(key): codec.decode_whole(raw) for key, raw in pairs}


def refusal(ask: Callable[[], object]) -> BusError:
    """The refusal that a request meets with."""
    try:
        ask()
    except BusError as error:
        return error
    raise AssertionError("it was not refused")
