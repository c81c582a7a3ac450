"""A broker in memory with one connection and a management link to each of its entities.

Bytes choose the operation, the entity and the body: a well-formed map of the names that
operations read, or an AMQP value as it comes. The answer must come and the connection stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.store.journal_disks import MemoryDisk
from tests.unit.amqp.amqp_client import Peer, source, target
from twinbus.amqp.codec import encode
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong
from twinbus.core.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.engine.engine import Engine
from twinbus.engine.namespace import Namespace
from twinbus.journal import Journal
from twinbus.server.authorization import Guard
from twinbus.server.bridge import Bridge, Hub
from twinbus.server.door import FrontDoor, Visitor

_NOW_MS = 1_700_000_000_000
ENTITIES = ("q", "s", "t", "t/Subscriptions/u", "q/$deadletterqueue")
OPERATIONS = (
    "peek-message", "renew-lock", "renew-session-lock", "get-session-state",
    "set-session-state", "get-message-sessions", "receive-by-sequence-number",
    "update-disposition", "batch-delete-messages", "schedule-message",
    "cancel-scheduled-message", "add-rule", "remove-rule", "enumerate-rules",
    "twinbus:purge", "twinbus:undefer", "twinbus:resubmit", "no-such-thing",
)  # fmt: skip
KEYS = (
    "from-sequence-number", "message-count", "session-id", "state", "omit-message-body",
    "last-updated-time", "skip", "top", "lock-tokens", "disposition-status",
    "properties-to-modify", "deadletter-reason", "deadletter-description",
    "receiver-settle-mode", "sequence-numbers", "session-state", "messages", "message",
    "rule-name", "rule-description", "enqueued-time-utc", "sql-filter", "expression",
    "correlation-filter", "sql-rule-action",
)  # fmt: skip
TEXTS = ("", "a", "active", "deferred", "completed", "suspended", "defered", "1=1", "SET x = 1")


class _Host:
    def __init__(self, namespace: Namespace) -> None:
        self._found = namespace, Guard(namespace, [], checks=False)

    def resolve(self, host: str | None) -> tuple[Namespace, Guard]:
        return self._found

    def all(self) -> list[tuple[Namespace, Guard]]:
        return [self._found]


class ManagedBroker:
    def __init__(self) -> None:
        self._journal = Journal.open(Path("journal"), disk=MemoryDisk(), segment_bytes=4096)
        engine = Engine(self._journal, 1 << 20, bytes)
        self._journal.replay(engine.replay)
        namespace = engine.namespace("n", _NOW_MS)
        namespace.create_queue(QueueDescription("q"), _NOW_MS)
        namespace.create_queue(QueueDescription("s", requires_session=True), _NOW_MS)
        namespace.create_topic(TopicDescription("t"), _NOW_MS)
        namespace.create_subscription(SubscriptionDescription("t", "u"), None, _NOW_MS)
        self._hub = Hub(engine.kernel, _track, lambda: "id")
        self._hub.now_ms = _NOW_MS
        door = FrontDoor(_Host(namespace), lambda delay_ms, call: None)
        bridge = Bridge(self._hub, door)
        door.visitors[bridge] = Visitor(bridge)
        self._peer = Peer(bridge)
        bridge.connection = self._peer.server
        self._peer.handshake()

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
        self._peer.transfer(1, 0, payload)
        self._hub.kernel.seal()
        self._journal.commit_now(_NOW_MS)
        self._hub.replies.release()
        self._peer.read()
        assert not self._peer.server.finished, "the connection was lost"


def _track(error: BusError, subject: str) -> str:
    return error.text


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
        lambda: Timestamp(next(steps, 0) << 40),
        lambda: TEXTS[next(steps, 0) % len(TEXTS)],
        lambda: Symbol("symbol"),
        lambda: bytes((next(steps, 0),) * 3),
        lambda: UUID(int=next(steps, 0)),
        lambda: 1.5 if next(steps, 0) % 2 else float("inf"),
    )
    nested: tuple[Callable[[], object], ...] = (
        lambda: [_value(steps, depth - 1) for _ in range(next(steps, 0) % 4)],
        lambda: _map(steps, depth - 1),
        lambda: Described(ULong(next(steps, 0)), _value(steps, depth - 1)),
    )
    choices = plain + nested if depth else plain
    return choices[next(steps, 0) % len(choices)]()
