"""A broker in memory with one connection, for fuzzing what stands behind the frames.

Bytes choose what is asked of it: requests to `$management`, or attaching, sending, receiving and
settling on links. Every request must be answered, and what the broker holds at the end must be
what its journal tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from tests.sim.loop import EPOCH_MS
from tests.sim.node import live_of, replay
from tests.store.journal_disks import MemoryDisk
from tests.unit.amqp.amqp_client import DETACH, TRANSFER, source, target
from tests.unit.server.server_kit import Machine, join
from twinbus.amqp.codec import encode
from twinbus.amqp.sections import BATCH_FORMAT
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong
from twinbus.core.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.server.broker import Broker
from twinbus.server.door import SESSION_FILTER

ENTITIES = ("q", "s", "t", "t/Subscriptions/u", "q/$deadletterqueue")
OPERATIONS = (
    "peek-message", "renew-lock", "renew-session-lock", "get-session-state",
    "set-session-state", "get-message-sessions", "receive-by-sequence-number",
    "update-disposition", "batch-delete-messages", "schedule-message",
    "cancel-scheduled-message", "add-rule", "remove-rule", "enumerate-rules",
    "twinbus:purge", "twinbus:undefer", "twinbus:resubmit", "no-such-thing",
    "twinbus:reserve", "twinbus:attempt", "twinbus:settle-upto", "twinbus:reservations",
    "twinbus:release", "twinbus:read",
)  # fmt: skip
KEYS = (
    "from-sequence-number", "message-count", "session-id", "state", "omit-message-body",
    "last-updated-time", "skip", "top", "lock-tokens", "disposition-status",
    "properties-to-modify", "deadletter-reason", "deadletter-description",
    "receiver-settle-mode", "sequence-numbers", "session-state", "messages", "message",
    "rule-name", "rule-description", "enqueued-time-utc", "sql-filter", "expression",
    "correlation-filter", "sql-rule-action", "consumer", "epoch", "max-attempts", "returned",
    "dead-lettered", "sequence-number", "reason", "description", "from", "to", "byte-count",
    "states", "to-sequence-number",
)  # fmt: skip
TEXTS = ("", "a", "active", "deferred", "completed", "suspended", "defered", "1=1", "SET x = 1")
HANDLES = 6
COORDINATOR = HANDLES + 3
_TXN_ID_BYTES = 16
# A byte from here on asks for what is against the protocol and ends the session.
_FAULTY = 0xF0


def _message(*, session: str | None = None, **annotations: object) -> bytes:
    """Annotations, properties and a body."""
    properties = ["m", *[None] * 9, session] if session else ["m"]
    marked = {Symbol(f"x-opt-{name.replace('_', '-')}"): at for name, at in annotations.items()}
    return (
        encode(Described(ULong(0x72), marked))
        + encode(Described(ULong(0x73), properties))
        + encode(Described(ULong(0x74), {"number": Int(7)}))
        + encode(Described(ULong(0x75), b"body"))
    )


MESSAGES = (
    _message(),
    _message(session="a"),
    _message(scheduled_enqueue_time=Timestamp(EPOCH_MS + 5000)),
    _message(partition_key="a", via_partition_key="b"),
    encode(Described(ULong(0x70), [True, None, UInt(1)])) + _message(),
    encode(Described(ULong(0x75), _message())) * 2,
    encode(Described(ULong(0x77), Described(ULong(0x31), []))),
    b"\x00",
)
OUTCOMES = (
    Described(ULong(0x24), []),
    Described(ULong(0x25), [Described(ULong(0x1D), [Symbol("com.microsoft:dead-letter"), "x"])]),
    Described(ULong(0x26), []),
    Described(ULong(0x27), [True, False]),
    Described(ULong(0x27), [True, True]),
    Described(ULong(0x27), [False, True, {Symbol("a"): 1}]),
    None,
    Described(ULong(0x23), [UInt(0), ULong(0)]),
)


class _Broker(Broker):
    def _check_space(self) -> None:
        """Segments as small as these would count as a full disk."""


class ManagedBroker(Machine):
    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self._dice_total = 0
        #: Handles of the links that use them, as far as the client knows.
        self._receivers: list[int] = []
        self._senders = [HANDLES, HANDLES + 1, HANDLES + 2]
        #: The transactions that were declared, and one that never was.
        self._txn_ids = [b"none"]
        super().__init__(self._disk, segment_bytes=1 << 16, kind=_Broker, dice=self._dice)
        now_ms = self.broker.begin_turn()
        namespace = self.broker.engine.namespace("n", now_ms)
        namespace.create_queue(QueueDescription("q", lock_duration_ms=5000), now_ms)
        namespace.create_queue(QueueDescription("s", requires_session=True), now_ms)
        namespace.create_topic(TopicDescription("t", requires_duplicate_detection=True), now_ms)
        namespace.create_subscription(SubscriptionDescription("t", "u"), None, now_ms)
        self._peer, _ = join(self.broker.hub, namespace)
        self._fill()

    def _dice(self, count: int) -> bytes:
        self._dice_total += 1
        drawn = self._dice_total.to_bytes(count, "big")
        if count == _TXN_ID_BYTES:
            self._txn_ids.append(drawn)
        return drawn

    def _txn_id(self, choice: int) -> bytes:
        """The latest transaction that was declared, one of those before it, or none."""
        return self._txn_ids[-1 - choice % 4 % len(self._txn_ids)]

    def _fill(self) -> None:
        """Something for requests to find: three messages in each."""
        for handle, name in zip(self._senders, ("q", "s", "t"), strict=True):
            self._peer.attach(handle, receiver=False, name=f"fill-{name}", target=target(name))
            for number in range(3):
                payload = MESSAGES[1] if name == "s" else MESSAGES[0]
                self._peer.transfer(handle, (handle - HANDLES) * 3 + number, payload)
        coordinator = Described(ULong(0x30), [])
        self._peer.attach(COORDINATOR, receiver=False, name="c", target=coordinator)
        self._turn()
        self._sent = 9

    def _turn(self, seconds: float = 0.001) -> None:
        """Let the broker do what there is to do."""
        self.broker.begin_turn()
        self.run(seconds)
        if self.broker.journal.failed is not None:
            raise self.broker.journal.failed
        self._peer.read()

    # --- requests to $management ------------------------------------------------------

    def ask(self, data: bytes) -> None:
        steps = iter(data)
        address = f"{ENTITIES[next(steps, 0) % len(ENTITIES)]}/$management"
        operation = OPERATIONS[next(steps, 0) % len(OPERATIONS)]
        body = encode(_map(steps, 3)) if next(steps, 0) % 4 else bytes(steps) or b"\x40"
        self._peer.attach(0, receiver=True, name="in", source=source(address))
        self._peer.attach(1, receiver=False, name="out", target=target(address))
        self._peer.flow(0, 10)
        headers = {"operation": f"com.microsoft:{operation}"}
        payload = encode(Described(ULong(0x73), ["m", None, None, None, "in"]))
        payload += encode(Described(ULong(0x74), headers)) + b"\x00\x53\x77" + body
        heard = len(self._peer.heard)
        self._peer.transfer(1, self._sent, payload)
        self._sent += 1
        self._turn()
        assert not self._peer.server.finished, "the connection was lost"
        # What cannot be decoded at all ends the link, with the reason.
        answers = [frame for frame in self._peer.heard[heard:] if frame.code in (TRANSFER, DETACH)]
        assert answers, "the request was not answered"
        for handle in range(2):
            self._peer.send(DETACH, [UInt(handle), True])

    # --- links ------------------------------------------------------------------------

    def use_links(self, data: bytes) -> None:
        steps = iter(data)
        acts: tuple[Callable[[Iterator[int]], None], ...] = (
            self._attach_receiver,
            self._attach_sender,
            self._flow,
            self._flow,
            self._transfer,
            self._transfer,
            self._disposition,
            self._disposition,
            self._detach,
            self._pass_time,
            self._coordinate,
        )
        for step in steps:
            acts[step % len(acts)](steps)
            if step & 0x80:
                self._turn()
            if self._peer.server.finished:
                return

    def _attach_receiver(self, steps: Iterator[int]) -> None:
        choice = next(steps, 0)
        name = ENTITIES[choice % len(ENTITIES)]
        session = (None, "", "a")[choice // 8 % 3]
        wanted = {Symbol(SESSION_FILTER): session}
        more = [None] * 6 + [wanted if name == "s" or choice & 0x80 else None]
        handle = self._free(next(steps, 0))
        self._receivers.append(handle)
        self._peer.attach(
            handle,
            receiver=True,
            name=f"r{handle}",
            source=source(name, *more),
            snd=choice // 32 % 3,
            rcv=choice // 64 % 2,
        )

    def _attach_sender(self, steps: Iterator[int]) -> None:
        choice, handle = next(steps, 0), self._free(next(steps, 0))
        self._senders.append(handle)
        name = ENTITIES[choice % len(ENTITIES)]
        self._peer.attach(handle, receiver=False, name=f"s{handle}", target=target(name))

    def _free(self, choice: int) -> int:
        """A handle that is free or is freed; now and then one in use, which ends the session."""
        handle = choice % HANDLES
        if choice < _FAULTY and handle in self._receivers + self._senders:
            self._end(handle, closed=True)
        return handle

    def _one_of(self, handles: list[int], choice: int) -> int:
        """The handle of an open link; now and then any."""
        return handles[choice % len(handles)] if handles and choice < _FAULTY else choice % HANDLES

    def _end(self, handle: int, *, closed: bool) -> None:
        self._peer.send(DETACH, [UInt(handle), closed])
        for handles in (self._receivers, self._senders):
            if handle in handles:
                handles.remove(handle)

    def _flow(self, steps: Iterator[int]) -> None:
        handle, credit = next(steps, 0), next(steps, 0)
        self._peer.flow(
            self._one_of(self._receivers, handle), credit % 16, count=credit // 32,
            drain=bool(handle & 0x40), echo=bool(handle & 0x80),
        )  # fmt: skip

    def _transfer(self, steps: Iterator[int]) -> None:
        choice, how = next(steps, 0), next(steps, 0)
        state = Described(ULong(0x34), [self._txn_id(how)]) if how & 0x40 else None
        handle = self._one_of(self._senders, choice)
        fields = [UInt(handle), UInt(self._sent), b"tag"]
        is_part = how & 0x0F == 0x0E
        fields += [UInt(BATCH_FORMAT if how & 0x10 else 0), bool(how & 0x20), is_part]
        fields += [None, state, None, how & 0x0F == 0x0F]
        self._peer.send(TRANSFER, fields, payload=MESSAGES[choice // 8 % len(MESSAGES)])
        if not is_part:
            self._sent += 1

    def _disposition(self, steps: Iterator[int]) -> None:
        first, how = next(steps, 0), next(steps, 0)
        state: object = OUTCOMES[how % len(OUTCOMES)]
        if how & 0x40:
            state = Described(ULong(0x34), [self._txn_id(first), state])
        last = None if how & 0x10 else first % 32 + first // 64
        self._peer.disposition(first % 32, last, settled=bool(how & 0x20), state=state)

    def _detach(self, steps: Iterator[int]) -> None:
        choice = next(steps, 0)
        handle = self._one_of(self._receivers + self._senders, choice)
        self._end(handle, closed=bool(choice & 0x40))

    def _pass_time(self, steps: Iterator[int]) -> None:
        self._turn(next(steps, 0) / 10)

    def _coordinate(self, steps: Iterator[int]) -> None:
        """Declare or discharge a transaction."""
        choice = next(steps, 0)
        request = Described(ULong(0x31), [])
        if choice % 2:
            request = Described(ULong(0x32), [self._txn_id(choice // 4), bool(choice & 2)])
        self._peer.transfer(COORDINATOR, self._sent, encode(Described(ULong(0x77), request)))
        self._sent += 1

    # --- the end ----------------------------------------------------------------------

    def check(self) -> None:
        """Nothing may be held that a restart would not find, and nothing less."""
        self._turn()
        live = live_of(self.broker.engine)
        assert live == replay(self._disk.contents(), self.loop.now_ms()), "not what is on disk"


def _map(steps: Iterator[int], depth: int) -> dict[Any, Any]:
    count = next(steps, 0) % 6
    return {KEYS[next(steps, 0) % len(KEYS)]: _value(steps, depth) for _ in range(count)}


def _value(steps: Iterator[int], depth: int) -> object:
    """A value of a kind that some operation expects somewhere, edge cases among them."""
    plain: tuple[Callable[[], object], ...] = (
        lambda: None,
        lambda: True,
        lambda: Int(next(steps, 0) - 128),
        lambda: (next(steps, 0) - 128) << 55,
        lambda: UInt(next(steps, 0)),
        lambda: next(steps, 0) % 8,
        lambda: Timestamp(next(steps, 0) << 40),
        lambda: TEXTS[next(steps, 0) % len(TEXTS)],
        lambda: Symbol("symbol"),
        lambda: bytes((next(steps, 0),) * 3),
        lambda: UUID(int=next(steps, 0)),
        lambda: 1.5 if next(steps, 0) % 2 else float("inf"),
        lambda: MESSAGES[next(steps, 0) % len(MESSAGES)],
    )
    nested: tuple[Callable[[], object], ...] = (
        lambda: [_value(steps, depth - 1) for _ in range(next(steps, 0) % 4)],
        lambda: _map(steps, depth - 1),
        lambda: Described(ULong(next(steps, 0)), _value(steps, depth - 1)),
    )
    choices = plain + nested if depth else plain
    return choices[next(steps, 0) % len(choices)]()
