"""Every entity of a namespace in one short row each: what it holds, what passed through.

A browser asks every two seconds and gets only the rows that changed since it last asked. One
look at the namespace serves all browsers that ask within a second, and it pauses now and
then, so that two thousand entities never hold up a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from twinbus.core import names
from twinbus.core.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.engine.entities import Entity, Queue
from twinbus.engine.index import (
    ACTIVE,
    DEFERRED,
    DEFERRED_LOCKED,
    LOCKED,
    RESERVED,
    SCHEDULED,
)
from twinbus.engine.namespace import Namespace
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Subscription, Topic

FRESH_MS = 1_000
#: Entities looked at before others have their turn.
STRIDE = 50
GONE_MAX = 10_000
#: A deferred message that somebody fetched and holds counts as locked.
STATES = {
    "active": (ACTIVE,),
    "locked": (LOCKED, DEFERRED_LOCKED),
    "scheduled": (SCHEDULED,),
    "deferred": (DEFERRED,),
    "reserved": (RESERVED,),
}

Row = dict[str, Any]


def entities_of(namespace: Namespace) -> Iterator[Entity]:
    """Queues, then topics, each with its subscriptions after it."""
    for path in sorted(namespace.queues):
        yield namespace.queues[path]
    for path in sorted(namespace.topics):
        topic = namespace.topics[path]
        yield topic
        for name in sorted(topic.subscriptions):
            yield topic.subscriptions[name]


def kind_of(entity: Entity) -> str:
    if isinstance(entity, Queue):
        return "queue"
    return "topic" if isinstance(entity, Topic) else "subscription"


def description_of(
    entity: Entity,
) -> QueueDescription | TopicDescription | SubscriptionDescription:
    assert isinstance(entity, Queue | Topic | Subscription)
    return entity.description


def state_counts(stream: Stream | None) -> dict[str, int]:
    """How many messages of a stream are in each state; whole chunks are counted at once."""
    if stream is None or not stream.index.live:
        return dict.fromkeys(STATES, 0)
    return {
        name: sum(stream.count_state(state) for state in states) for name, states in STATES.items()
    }


def row_of(entity: Entity) -> Row:
    dead = entity.streams.get(names.DEAD_LETTER_STREAM)
    transfer = entity.streams.get(names.TRANSFER_STREAM)
    return {
        "path": entity.path,
        "kind": kind_of(entity),
        **state_counts(entity.main),
        "dead_letter": 0 if dead is None else dead.index.live,
        "transfer_dead_letter": 0 if transfer is None else transfer.index.live,
        "size": entity.size_bytes(),
        "in": entity.meter.sends,
        "out": entity.meter.deliveries,
        "status": description_of(entity).status,
        "sessions": entity.main.sessions is not None,
    }


@dataclass
class Overview:
    """The rows of one namespace, each with the look at which it last changed."""

    namespace: Namespace
    clock_ms: Callable[[], int]
    #: Starts with the time, so that no version of before a restart is taken for one of after.
    version: int = 0
    looked_ms: int = 0
    #: Before it, what went is not known any more.
    _known_since: int = 0
    _rows: dict[str, tuple[int, Row]] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)
    _look: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.version = self._known_since = self.clock_ms()

    async def changes(self, since: int, covers: Callable[[str], bool]) -> Row:
        """What changed after a version; 0, or one from long ago, gives everything."""
        await self._refresh()
        whole = not self._known_since < since <= self.version
        rows = [
            row
            for version, row in self._rows.values()
            if (whole or version > since) and covers(row["path"])
        ]
        gone = [
            path
            for path, version in self._gone.items()
            if not whole and version > since and covers(path)
        ]
        return {
            "version": self.version,
            "time": self.looked_ms,
            "whole": whole,
            "rows": rows,
            "gone": gone,
        }

    async def _refresh(self) -> None:
        async with self._look:
            # Looked at in the future: the clock was set back.
            if 0 <= self.clock_ms() - self.looked_ms < FRESH_MS:
                return
            version = self.version + 1
            seen: set[str] = set()
            for count, entity in enumerate(list(entities_of(self.namespace)), 1):
                seen.add(entity.path)
                row = row_of(entity)
                known = self._rows.get(entity.path)
                if known is None or known[1] != row:
                    self._rows[entity.path] = (version, row)
                    self._gone.pop(entity.path, None)
                if count % STRIDE == 0:
                    await asyncio.sleep(0)
            for path in [path for path in self._rows if path not in seen]:
                del self._rows[path]
                self._gone[path] = version
            if len(self._gone) > GONE_MAX:
                self._gone.clear()
                self._known_since = version
            self.version = version
            self.looked_ms = self.clock_ms()
