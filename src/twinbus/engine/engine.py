"""The whole of the broker's logic: namespaces, and how they are read from the journal.

`begin_replay` is told the time, `replay` takes the journal's records in order, `finish_replay`
makes entities of them. After that commands come in through namespaces, entities and streams.
"""

import json
from collections.abc import Callable
from typing import Any

from twinbus.core.descriptions import (
    DUPLICATE_WINDOW_MS_MAX,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    read,
)
from twinbus.engine import records
from twinbus.engine.entities import QUEUE, SUBSCRIPTION, TOPIC, Entity, Queue
from twinbus.engine.index import ACTIVE
from twinbus.engine.kernel import Kernel
from twinbus.engine.namespace import Namespace, Registry
from twinbus.engine.observations import DELIVERED, Observation
from twinbus.engine.observer import Observer
from twinbus.engine.records import Log
from twinbus.engine.remembered import RememberedIds
from twinbus.engine.sessions import SessionTable
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Subscription, Topic

# Topics before their subscriptions, queues before what forwards to them.
_ORDER = (TOPIC, QUEUE, SUBSCRIPTION)


class Engine:
    def __init__(
        self, log: Log, memory_bytes_max: int, dice: Callable[[int], bytes],
        observing: bool = False,
    ) -> None:  # fmt: skip
        self.kernel = Kernel(log, memory_bytes_max, dice)
        if observing:
            self.kernel.observer = Observer(log)
        self.registry = Registry(self.kernel)
        self.namespaces: dict[str, Namespace] = {}
        # Read from the journal, not made into entities yet.
        self._puts: dict[int, tuple[int, bytes, int]] = {}
        #: Payloads that several messages may share, by place; how many do is counted at the end.
        self._shared: dict[int, int] = {}
        self._remembered: dict[int, RememberedIds] = {}
        #: The window of each entity that has such ids, by what was last read of it.
        self._windows: dict[int, int] = {}
        self._replay_now_ms = 0

    def namespace(self, name: str, now_ms: int) -> Namespace:
        """Give a namespace, made if it is not there."""
        folded = name.casefold()
        namespace = self.namespaces.get(folded)
        if namespace is None:
            namespace = self.namespaces[folded] = Namespace(name, self.registry, now_ms)
        return namespace

    # --- replay -----------------------------------------------------------------------

    def begin_replay(self, now_ms: int) -> None:
        """Take the time that `finish_replay` will be given: what is over by then is not kept."""
        self._replay_now_ms = now_ms

    def replay(self, lsn: int, location: int, time_ms: int, record: bytes) -> None:
        """Take in one record; the last one about a thing wins."""
        kind = record[0]
        if kind == records.PLACED:
            placed = records.Placed(record, location)
            stream = self.registry.orphan(placed.stream)
            if placed.session_id is not None and stream.sessions is None:
                stream.sessions = SessionTable()
            stream.replay_placed(placed)
            if placed.shared:
                self._shared[placed.shared] = 0
        elif kind == records.SETTLED:
            number, first, count, _ = records.read_settled(record)
            self.registry.orphan(number).replay_removed(first, count)
        elif kind == records.CHANGED:
            number, seq, state, delivery_count = records.read_changed(record)
            self.registry.orphan(number).replay_changed(seq, state, delivery_count)
        elif kind == records.ENTITY_PUT:
            number, entity_kind, body = records.read_entity_put(record)
            self._puts[number] = (entity_kind, body, location)
            self._windows.pop(number, None)
            self.registry.next_number = max(self.registry.next_number, number + 1)
        elif kind == records.ENTITY_REMOVED:
            self._replay_removed(records.read_entity_removed(record))
        elif kind == records.SESSION_STATE_SET:
            self._replay_session_state(record, location)
        elif kind == records.REMEMBERED:
            self._replay_remembered(record, location, time_ms)
        elif kind == records.SEQUENCE_REACHED:
            number, next_seq = records.read_sequence(record)
            stream = self.registry.orphan(number)
            stream.next_seq = max(stream.next_seq, next_seq)
        elif kind == records.OBSERVED:
            if self.kernel.observer is not None:
                self._replay_observed(Observation(record), time_ms)
        elif records.RESERVED <= kind <= records.RESERVATION_ATTEMPTED:
            number = int.from_bytes(record[1:5], "big")
            self.registry.orphan(number).replay_reservation(record, location)
        else:
            raise records.UnknownKindError(kind, location)

    def _replay_removed(self, number: int) -> None:
        self._puts.pop(number, None)
        self._windows.pop(number, None)
        self.registry.next_number = max(self.registry.next_number, number + 1)
        for which in range(4):
            self.registry.orphans.pop(number << 2 | which, None)
            self._remembered.pop(number << 2 | which, None)

    def _replay_remembered(self, record: bytes, location: int, time_ms: int) -> None:
        number, at_ms, message_id = records.read_remembered(record)
        ids = self._remembered.get(number)
        if ids is None:
            ids = self._remembered[number] = RememberedIds()
        ids.add(at_ms, message_id, location)
        # What was out of the window when this was written does not count any more, also if the
        # window is made longer later. Should the clock have been ahead then, and was set back
        # since, the present decides, as it does in the end.
        ids.drop_until(min(time_ms, self._replay_now_ms) - self._window_ms(number >> 2))

    def _window_ms(self, number: int) -> int:
        """The window of an entity; the longest that there is while nothing was read of it.

        Its description may follow what happened to it: compaction writes it anew.
        """
        window_ms = self._windows.get(number)
        if window_ms is None:
            window_ms = DUPLICATE_WINDOW_MS_MAX
            put = self._puts.get(number)
            if put is not None:
                described: dict[str, Any] = json.loads(put[1])["description"]
                window_ms = described.get("duplicate_detection_history_time_window_ms", window_ms)
            self._windows[number] = window_ms
        return window_ms

    def _replay_observed(self, seen: Observation, time_ms: int) -> None:
        stream = self.registry.orphans.get(seen.stream)
        if stream is not None and seen.what == DELIVERED:
            stream.replay_delivered(seen.first, seen.count, time_ms)

    def _replay_session_state(self, record: bytes, location: int) -> None:
        number, session_id, state, at_ms = records.read_session_state(record)
        stream = self.registry.orphan(number)
        if stream.sessions is None:
            stream.sessions = SessionTable()
        session = stream.sessions.get(session_id)
        stream.sessions.set_state(session, state, at_ms, location)
        stream.sessions.forget_if_idle(session)

    def finish_replay(self, now_ms: int) -> None:
        """Make entities of what was read."""
        # A kind after the other, each in the order in which it was made: compaction changed it.
        in_order = sorted(self._puts.items(), key=lambda it: (_ORDER.index(it[1][0]), it[0]))
        entities = [self._build(number, *put, now_ms) for number, put in in_order]
        self._puts = {}
        # What is left belongs to entities that were removed.
        self.registry.orphans = {}
        self._count_payloads()
        for entity, namespace in entities:
            for stream in entity.streams.values():
                stream.replayed()
            self._restore_history(entity, now_ms)
            main = entity.main
            if entity.forward_to is not None and main.index.find_state(ACTIVE, 1, main.last_seq()):
                # It may have been at it when the broker stopped.
                main.is_leaving = True
                self.kernel.call_at(now_ms, main)
            namespace.watch_idle(entity, now_ms)
        self._remembered = {}
        self._windows = {}

    def _count_payloads(self) -> None:
        """Only what is there in the end counts: who came first, and who is left, was not known."""
        for stream in self.streams():
            stream.count_payloads(self._shared)
        users = self._shared
        self.kernel.sharers = {place: users[place] - 1 for place in users if users[place] > 1}
        self._shared = {}

    def _build(
        self, number: int, kind: int, body: bytes, location: int, now_ms: int
    ) -> tuple[Entity, Namespace]:
        given: dict[str, Any] = json.loads(body)
        namespace = self.namespace(given["namespace"], now_ms)
        described = given["description"]
        entity: Entity
        if kind == QUEUE:
            entity = Queue(self.kernel, namespace, number, read(QueueDescription, described))
        elif kind == TOPIC:
            entity = Topic(self.kernel, namespace, number, read(TopicDescription, described))
        else:
            rules = [read(RuleDescription, rule) for rule in given["rules"]]
            entity = Subscription(
                self.kernel, namespace, number, read(SubscriptionDescription, described), rules
            )
        for which in (1, 2):
            if number << 2 | which in self.registry.orphans:
                entity.stream(which)
        entity.location = location
        namespace.adopt(entity)
        return entity, namespace

    def _restore_history(self, entity: Entity, now_ms: int) -> None:
        history = entity.history
        ids = self._remembered.pop(entity.main.number, None)
        if history is not None and ids is not None:
            for at_ms, message_id, location in ids:
                if now_ms - at_ms < history.window_ms:
                    # A clock that was set back must not make the window longer.
                    history.note(message_id, min(at_ms, now_ms), location)

    # --- for the server ---------------------------------------------------------------

    def kept_bytes(self) -> int:
        """What the journal must keep, nearly: what it has beyond that can go."""
        total = self.kernel.live_bytes
        for entity in self.registry.entities.values():
            if entity.history is not None:
                total += entity.history.bytes
            for stream in entity.streams.values():
                total += stream.index.live * records.PLACED_HEAD_SIZE
                if stream.sessions is not None:
                    total += stream.sessions.state_bytes
        return total

    def kept_before(self, location: int) -> int:
        """What of that can lie below a place in the journal: what is remembered may be anywhere."""
        total = 0
        for entity in self.registry.entities.values():
            if entity.history is not None:
                total += entity.history.bytes
            for stream in entity.streams.values():
                count, size = stream.index.bytes_before(location)
                total += count * records.PLACED_HEAD_SIZE + size
                if stream.sessions is not None:
                    total += stream.sessions.state_bytes
        return total

    def streams(self) -> list[Stream]:
        return [s for entity in self.registry.entities.values() for s in entity.streams.values()]
