"""The engine under test and the naive broker side by side, on one clock and one store.

Commands go to both; refusals must agree, and after each turn so must everything else. The
driver plays the server's part: it seals, commits, runs timers, dispatches, and it can crash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine_content import Content, content_of, payload_of
from engine_dump import (
    Dump,
    assert_same,
    description_of,
    dump_engine,
    dump_model,
    model_from,
    trimmed,
)
from engine_store import Store
from engine_witness import Witness
from naive_broker import NaiveBroker, Refused
from naive_entities import Described, NaiveLock, NaiveStream

from tests.support.payloads import check_payloads
from twinbus.core.descriptions import (
    QueueDescription,
    RuleDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.engine.carrying import Carrier
from twinbus.engine.consumer import Consumer, Lock
from twinbus.engine.engine import Engine
from twinbus.engine.entities import Entity, Holder
from twinbus.engine.index import GONE, LOCKED, NEVER
from twinbus.engine.message import Message, take_in
from twinbus.engine.namespace import Namespace
from twinbus.engine.sessions import Session
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Subscription

#: A stream by its entity's path and its place there.
Place = tuple[str, int]
#: How late an expired message may go after it came back from a lock.
_EXPIRY_SLACK_MS = 1_000


class Receiver(Consumer):
    def __init__(self, world: World, name: str, place: Place, peek_lock: bool) -> None:
        super().__init__(peek_lock)
        self.world = world
        self.name = name
        self.place = place
        self.credit = 0
        self.attached = True
        self.stream = world.stream(place)

    def can_take(self) -> bool:
        return self.credit > 0 and self.attached

    def deliver(
        self, seq: int, stored: bytes, enqueued_ms: int, delivery_count: int, lock: Lock | None
    ) -> None:
        self.credit -= 1
        self.world.on_delivered(self, seq, stored, enqueued_ms, delivery_count, lock)

    def detach(self, error: BusError) -> None:
        """As the server does: to the engine the link is gone at once."""
        self.attached = False
        self.world.detached.append(self.name)
        self.stream.detach(self, self.world.now_ms)

    def session_found(self, session: Session) -> None:
        model = self.world.model_stream(self.place)
        self.world.model.session_found(model, self.name, session.id)

    def session_not_found(self) -> None:
        self.world.sessions_not_found.append(self.name)

    def session_lost(self) -> None:
        self.world.sessions_lost.append(self.name)


@dataclass(eq=False)
class HeldLock:
    """A lock that somebody got, still good or not."""

    place: Place
    stream: Stream
    holder: Holder
    lock: Lock
    model_stream: NaiveStream
    model_lock: NaiveLock


@dataclass
class Sealed:
    engine: Any
    durable: Dump
    seqs: list[tuple[NaiveStream, int]]


@dataclass
class Counts:
    """How much has happened, to see that runs are not empty."""

    delivered: int = 0
    refused: int = 0
    crashes: int = 0
    carried: int = 0
    by_reason: dict[str, int] = field(default_factory=dict)


class World:
    def __init__(self, store: Store, memory_bytes_max: int, *, observing: bool = False) -> None:
        self.now_ms = 1_000_000
        self.store = store
        self.memory_bytes_max = memory_bytes_max
        self.model = NaiveBroker()
        self.model.now_ms = self.now_ms
        self.durable: Dump = {}
        self.sealed: Sealed | None = None
        self.locks: list[HeldLock] = []
        self.receivers: dict[str, Receiver] = {}
        self.counts = Counts()
        self._names = 0
        self._dice = 0
        self._late: dict[int, int] = {}
        self.witness = Witness(self) if observing else None
        self._forget_notices()
        self._open()

    def _open(self) -> None:
        observing = self.witness is not None
        self.engine = Engine(self.store, self.memory_bytes_max, self.dice, observing)
        self.engine.begin_replay(self.now_ms)
        self.store.replay(self.engine.replay)
        self.engine.finish_replay(self.now_ms)
        self.kernel = self.engine.kernel
        # The naive broker does everything that is due at once.
        self.kernel.effort_max = self.kernel.effort_left = NEVER
        self.carrier: Carrier | None = None
        if self.witness is not None:
            self.witness.begin()

    def dice(self, count: int) -> bytes:
        self._dice += 1
        return self._dice.to_bytes(count, "big")

    def _forget_notices(self) -> None:
        self.sessions_lost: list[str] = []
        self.sessions_not_found: list[str] = []
        self.detached: list[str] = []
        self.model.sessions_lost = []
        self.model.sessions_not_found = []
        self.model.detached = []

    # --- finding things ---------------------------------------------------------------

    @property
    def namespace(self) -> Namespace:
        return self.engine.namespace("test", self.now_ms)

    def entity(self, path: str) -> Entity:
        entity = self.namespace.find(path)
        assert entity is not None
        return entity

    def stream(self, place: Place) -> Stream:
        return self.entity(place[0]).stream(place[1])

    def model_stream(self, place: Place) -> NaiveStream:
        return self.model.entities[place[0]].streams[place[1]]

    def both(self, ask: Callable[[], object], expect: Callable[[], object]) -> tuple[Any, Any]:
        """Do a thing in both brokers: both give an answer, or both refuse for one reason."""
        got = wanted = refusal = expected = None
        try:
            got = ask()
        except BusError as error:
            refusal = error.kind
        try:
            wanted = expect()
        except Refused as refused:
            expected = refused.kind
        assert refusal == expected, f"engine: {refusal}, model: {expected}"
        if refusal is not None:
            self.counts.refused += 1
        return got, wanted

    # --- turns of the server ----------------------------------------------------------

    def advance(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.model.now_ms = self.now_ms

    def turn(self) -> None:
        """Run what is due, deliver what can be, and compare."""
        self.compare()
        self.model.run_timers()
        self.kernel.run_timers(self.now_ms)
        self.compare()
        self._check_expiry()
        self.kernel.dispatch_ready(self.now_ms)
        self.compare()
        self._check_idle()

    def begin_commit(self) -> None:
        assert self.sealed is None
        sealed = self.kernel.seal()
        if self.witness is not None:
            self.witness.look()
        seqs = [(stream, stream.next_seq - 1) for stream in self.model.streams()]
        self.sealed = Sealed(sealed, dump_model(self.model), seqs)
        self.store.begin_commit()

    def finish_commit(self) -> None:
        assert self.sealed is not None
        self.store.finish_commit()
        self.kernel.committed(self.sealed.engine)
        for stream, seq in self.sealed.seqs:
            stream.durable_seq = max(stream.durable_seq, seq)
        self.durable = self.sealed.durable
        self.sealed = None
        if self.carrier is not None and self.carrier.finished:
            self.store.drop_before(self.carrier.segment)
            self.carrier = None
            self.counts.carried += 1
        self._check_replay()

    def commit(self) -> None:
        if self.sealed is not None:
            self.finish_commit()
        self.begin_commit()
        self.finish_commit()
        self.turn()

    def crash(self, *, keep_in_flight: bool, revive_dropped: bool) -> None:
        """The process dies: what was not on disk is lost, and so is every lock (R7)."""
        kept = self.durable
        if self.sealed is not None and keep_in_flight:
            kept = self.sealed.durable
        self.sealed = None
        self.store = self.store.crash(keep_in_flight=keep_in_flight, revive_dropped=revive_dropped)
        self.locks = []
        self.receivers = {}
        self._late = {}
        self.model = model_from(kept)
        self.model.now_ms = self.now_ms
        self.durable = kept
        self._forget_notices()
        self._open()
        self.counts.crashes += 1
        self.turn()

    def start_carrying(self, segments: int) -> None:
        """Begin to carry what is live out of the oldest segments."""
        if self.carrier is None and len(self.store.segments()) > 1:
            oldest = self.store.segments()[0]
            segment = min(oldest + segments, self.store.current_segment)
            self.carrier = Carrier(self.engine, segment)

    def carry(self, bytes_max: int) -> None:
        if self.carrier is not None:
            self.carrier.step(bytes_max, self.now_ms)

    # --- what receivers are told ------------------------------------------------------

    def on_delivered(
        self, receiver: Receiver, seq: int, stored: bytes, enqueued_ms: int, delivery_count: int,
        lock: Lock | None,
    ) -> None:  # fmt: skip
        model = self.model_stream(receiver.place)
        message = model.find(seq)
        assert message is not None
        assert content_of(stored) == message.content
        assert (enqueued_ms, delivery_count) == (message.enqueued_ms, message.count)
        model_lock = self.model.deliver(model, receiver.name, seq, lock is not None)
        self.counts.delivered += 1
        assert receiver.peek_lock == (lock is not None)
        if lock is not None:
            assert lock.delivery_count == message.count
            if model_lock.session is None:
                assert lock.locked_until_ms == model_lock.until_ms
            self.hold(receiver.place, lock, model_lock)

    def hold(self, place: Place, lock: Lock, model_lock: NaiveLock) -> None:
        holder = self.entity(place[0])
        assert isinstance(holder, Holder)
        self.locks.append(
            HeldLock(place, self.stream(place), holder, lock, self.model_stream(place), model_lock)
        )

    # --- receivers --------------------------------------------------------------------

    def attach(self, place: Place, peek_lock: bool, credit: int) -> Receiver:
        receiver = self._receiver(place, peek_lock)
        receiver.stream.attach(receiver, self.now_ms)
        self.model.attach(self.model_stream(place), receiver.name)
        self.give_credit(receiver, credit)
        return receiver

    def _receiver(self, place: Place, peek_lock: bool) -> Receiver:
        self._names += 1
        receiver = Receiver(self, f"r{self._names}", place, peek_lock)
        self.receivers[receiver.name] = receiver
        return receiver

    def give_credit(self, receiver: Receiver, credit: int) -> None:
        receiver.credit += credit
        if receiver.credit:
            receiver.stream.want(receiver)

    def accept_session(self, place: Place, session_id: str, peek_lock: bool, credit: int) -> None:
        receiver = self._receiver(place, peek_lock)
        model = self.model_stream(place)
        got, _ = self.both(
            lambda: receiver.stream.accept_session(receiver, session_id, self.now_ms),
            lambda: self.model.accept_session(model, receiver.name, session_id),
        )
        if got is None:
            del self.receivers[receiver.name]
            return
        receiver.stream.attach(receiver, self.now_ms)
        self.model.attach(model, receiver.name)
        self.give_credit(receiver, credit)

    def seek_session(self, place: Place, wait_ms: int, peek_lock: bool, credit: int) -> None:
        receiver = self.attach(place, peek_lock, 0)
        receiver.credit = credit
        receiver.stream.seek_session(receiver, self.now_ms + wait_ms)
        self.model_stream(place).seekers[receiver.name] = self.now_ms + wait_ms

    def detach(self, receiver: Receiver) -> None:
        receiver.attached = False
        receiver.stream.detach(receiver, self.now_ms)
        if receiver.place[0] in self.model.entities:
            self.model.detach(self.model_stream(receiver.place), receiver.name)

    def connection_lost(self, receiver: Receiver) -> None:
        receiver.attached = False
        del self.receivers[receiver.name]
        stream = receiver.stream
        locks = [lock for lock in stream.locked.values() if lock.consumer is receiver]
        stream.detach(receiver, self.now_ms)
        for lock in locks:
            stream.drop_lock(lock, self.now_ms)
        entity = self.namespace.find(receiver.place[0])
        if entity is not None and entity.streams.get(receiver.place[1]) is receiver.stream:
            self.model.connection_lost(self.model_stream(receiver.place), receiver.name)

    # --- sending ----------------------------------------------------------------------

    def messages(self, batch: list[tuple[Content, int]]) -> list[Message]:
        return [take_in(payload_of(content, due_ms), _no_id) for content, due_ms in batch]

    def send(self, path: str, batch: list[tuple[Content, int]]) -> None:
        def ask() -> None:
            entity = self.entity(path)
            messages = self.messages(batch)
            for message in messages:
                entity.check(message)
            for message in messages:
                entity.publish(message, self.now_ms)

        self.both(ask, lambda: self.model.send(path, batch))

    # --- entities ---------------------------------------------------------------------

    def create(self, description: Described, rule: RuleDescription | None = None) -> None:
        namespace = self.namespace
        made: Entity
        if isinstance(description, QueueDescription):
            made = namespace.create_queue(description, self.now_ms)
        elif isinstance(description, TopicDescription):
            made = namespace.create_topic(description, self.now_ms)
        else:
            made = namespace.create_subscription(description, rule, self.now_ms)
        rules = made.rules if isinstance(made, Subscription) else {}
        for each in rules.values():
            rule = each.description
        self.model.create(description_of(made), rule)

    def update(self, path: str, description: Described) -> None:
        namespace = self.namespace
        if isinstance(description, QueueDescription):
            namespace.update_queue(description, self.now_ms)
        elif isinstance(description, TopicDescription):
            namespace.update_topic(description, self.now_ms)
        else:
            namespace.update_subscription(description, self.now_ms)
        self.model.update(path, description_of(self.entity(path)))

    def delete(self, path: str) -> None:
        self.both(lambda: self.namespace.delete(path), lambda: self.model.delete(path))

    # --- comparing --------------------------------------------------------------------

    def compare(self) -> None:
        """Both brokers hold the same, in the same state, and have told the same."""
        self._take_numbers()
        assert_same(dump_engine(self.engine, self.now_ms), dump_model(self.model))
        self._compare_locks()
        self._check_sums()
        assert sorted(self.sessions_lost) == sorted(self.model.sessions_lost)
        assert sorted(self.sessions_not_found) == sorted(self.model.sessions_not_found)
        assert sorted(self.detached) == sorted(self.model.detached)
        self._forget_notices()

    def _take_numbers(self) -> None:
        """Let the model know which expired messages went, and what number each new one got."""
        for model in list(self.model.streams()):
            stream = self.entity(model.entity.path).streams.get(model.which)
            for message in [m for m in model.messages if m.is_over(self.now_ms)]:
                if message.is_free and stream and stream.index.state(message.seq) == GONE:
                    assert model.consumers or self.detached
                    self.model.expire(model, message)
        for model in self.model.streams():
            if model.fresh:
                number_fresh(model, self.stream((model.entity.path, model.which)))

    def _compare_locks(self) -> None:
        for model in self.model.streams():
            stream = self.entity(model.entity.path).streams.get(model.which)
            held = {m.seq: m.lock for m in model.messages if m.lock is not None}
            locked = {} if stream is None else stream.locked
            assert locked.keys() == held.keys()
            for seq, lock in locked.items():
                wanted = held[seq]
                name = lock.consumer.name if isinstance(lock.consumer, Receiver) else None
                assert name == wanted.consumer
                if wanted.session is None:
                    assert lock.locked_until_ms == wanted.until_ms
            delayed = {m.seq for m in model.messages if m.delayed_until_ms}
            if stream is not None:
                table = stream.sessions
                assert (table is not None) == model.has_sessions
                states = {m.seq: stream.index.state(m.seq) for m in model.messages}
                assert {s for s in states if states[s] == LOCKED and s not in locked} == delayed
                holders = {} if table is None else table.held
                assert {
                    i: (s.holder.name, s.locked_until_ms)
                    for i, s in holders.items()
                    if isinstance(s.holder, Receiver)
                } == {
                    i: (s.holder, s.until_ms)
                    for i, s in model.sessions.items()
                    if s.holder is not None
                }

    def _check_sums(self) -> None:
        chunks = [c for s in self.engine.streams() for c in s.index.chunks.values()]
        cached = sum(len(p) for c in chunks for p in c.payloads if p is not None)
        assert self.kernel.cached_bytes == cached
        check_payloads(self.engine)
        for stream in self.engine.streams():
            index = stream.index
            assert index.live == sum(c.live for c in index.chunks.values())
            assert stream.receivers == len(stream.attached)
            held = {} if stream.sessions is None else stream.sessions.sessions
            assert {seq: session for session in held.values() for seq in session.locked} == {
                seq: lock.session for seq, lock in stream.locked.items() if lock.session is not None
            }

    def _check_expiry(self) -> None:
        """Expired messages go soon once somebody receives there (D5)."""
        late: dict[int, int] = {}
        for stream in self.model.streams():
            for m in stream.messages:
                durable = m.seq <= stream.durable_seq
                if m.is_free and m.is_over(self.now_ms) and stream.consumers and durable:
                    since_ms = late[id(m)] = self._late.get(id(m), self.now_ms)
                    assert self.now_ms - since_ms <= _EXPIRY_SLACK_MS
        self._late = late

    def _check_idle(self) -> None:
        """Nobody waits for what is there to be had, and no deadline will be missed."""
        for receiver in self.receivers.values():
            entity = self.model.entities.get(receiver.place[0])
            if not receiver.can_take() or entity is None or entity.receives_off:
                continue
            stream = entity.streams[receiver.place[1]]
            if receiver.name in stream.seekers:
                assert not stream.waiting_sessions(self.now_ms)
                continue
            session = self.model.session_of(stream, receiver.name)
            if session is not None or not stream.has_sessions:
                assert not stream.deliverable(self.now_ms, session)
        deadline_ms = self.kernel.deadline_ms()
        assert deadline_ms == 0 or deadline_ms > self.now_ms
        wanted = self.model.deadlines()
        if wanted:
            assert 0 < deadline_ms <= max(min(wanted), self.now_ms + 1)

    def _check_replay(self) -> None:
        """What was committed reads back as what it was."""
        engine = Engine(self.store, 0, self.dice)
        engine.begin_replay(self.now_ms)
        self.store.revisit(engine.replay)
        engine.finish_replay(self.now_ms)
        found = dump_engine(engine, self.now_ms)
        assert_same(found, trimmed(self.durable, self.now_ms))
        check_payloads(engine)


def _no_id() -> str:
    raise AssertionError("every message of the model has an id")


def number_fresh(model: NaiveStream, stream: Stream) -> None:
    """Find each newly placed message in the engine; give it the number that it has there.

    Those placed by one command come in its order, those that came due together in any.
    """
    fresh = model.fresh
    model.fresh = []
    assert stream.next_seq == model.next_seq + len(fresh)
    activated: list[tuple[int, int, int]] = []
    for seq in range(model.next_seq, stream.next_seq):
        rank = min(r for r, _ in fresh)
        found = stream.index.state(seq) != GONE
        content = content_of(stream.stored(seq)) if found else None
        wanted = [None if m is None else m.content for r, m in fresh if r == rank]
        assert content in wanted, f"message {seq} in {stream.path}"
        message = next(
            m for r, m in fresh if r == rank and (None if m is None else m.content) == content
        )
        fresh.remove((rank, message))
        if message is not None:
            message.seq = seq
            model.messages.append(message)
            if message.was_due is not None:
                activated.append(message.was_due)
    model.next_seq = stream.next_seq
    for source in {origin for origin, _, _ in activated}:
        due = [(due_ms, seq) for origin, due_ms, seq in activated if origin == source]
        assert due == sorted(due), "scheduled messages out of order"
