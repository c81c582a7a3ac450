"""The engine against a naive second broker, in virtual time, with crashes (SPEC sections 1–4).

Hypothesis chooses what is sent, received, settled, changed and lost, and when; `World` compares
the two brokers after every step. See its checks for what must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
from engine_content import RULES, Content
from engine_layouts import LAYOUTS, Made
from engine_store import JournalStore, ListStore, Store
from engine_world import HeldLock, Place, Receiver, World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from naive_broker import MAIN, NaiveEntity, Refused

from twinbus.core import errors
from twinbus.core.descriptions import SubscriptionDescription
from twinbus.engine import settlement
from twinbus.engine.entities import Holder, Subscription
from twinbus.engine.settlement import Settlement
from twinbus.engine.transactions import Transaction

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., None])
picks = st.integers(0, 1 << 16)
# Durations of locks, delays and lives, and the moments around them.
edges_ms = st.sampled_from([1, 1, 1, 1, 999, 1_000, 1_001, 4_998, 4_999, 5_000, 5_001, 20_000])
sessions = st.sampled_from(["s0", "s1", "s2"])
credits = st.sampled_from([0, 1, 2, 3, 5])
delays_ms = st.sampled_from([0, 0, 0, 1, 1_000, 5_000])
ttls_ms = st.sampled_from([None] * 8 + [1, 1_000, 5_000, 5_001])
properties = st.fixed_dictionaries(
    {},
    optional={
        "color": st.sampled_from(["red", "blue"]),
        "n": st.sampled_from([0, 1, 5]),
    },
)
changes = st.sampled_from(
    [
        {"lock_duration_ms": 5_000},
        {"lock_duration_ms": 7_000},
        {"max_delivery_count": 1},
        {"max_delivery_count": 3},
        {"default_message_time_to_live_ms": 2_000},
        {"dead_lettering_on_message_expiration": True},
        {"status": "Disabled"},
        {"status": "SendDisabled"},
        {"status": "ReceiveDisabled"},
        {"status": "Active"},
        {"status": "Active"},
        {"forward_to": "sink"},
        {"forward_to": None},
    ]
)


def pick_one(choices: Sequence[T], pick: int) -> T:
    return choices[pick % len(choices)]


def operation(
    weight: int,
    when: Callable[[EngineMachine], object] = lambda machine: True,
    **arguments: st.SearchStrategy[Any],
) -> Callable[[F], F]:
    """Mark a method as a step that can be taken `when` that makes sense."""

    def mark(method: F) -> F:
        OPERATIONS[method.__name__] = Operation(weight, when, arguments)
        return method

    return mark


@dataclass(frozen=True)
class Operation:
    weight: int
    when: Callable[[EngineMachine], object]
    arguments: dict[str, st.SearchStrategy[Any]]


OPERATIONS: dict[str, Operation] = {}


class EngineMachine(RuleBasedStateMachine):
    """One rule, so that the choice among the operations is ours: those which lead somewhere
    must be frequent, those which destroy everything rare."""

    make_store: type[Store] = ListStore

    @initialize(
        layout=st.sampled_from(sorted(LAYOUTS)),
        memory_bytes_max=st.sampled_from([0, 300, 1 << 30]),
    )
    def begin(self, layout: str, memory_bytes_max: int) -> None:
        self.world = World(self.make_store(), memory_bytes_max)
        self.layout: list[Made] = LAYOUTS[layout]
        #: Messages are so large that they fill a queue. Nothing is scheduled then: whether
        #: what expires at that moment makes room before or after is nobody's promise.
        self.is_big = layout == "full"
        self.holds_back = False
        self.sent = 0
        self.since_upheaval = 0
        self.transaction: Transaction | None = None
        self.forget_transaction()
        for description, rule_name in self.layout:
            self.world.create(description, RULES[rule_name].description if rule_name else None)
        self.world.commit()

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        able = [name for name, o in OPERATIONS.items() for _ in range(o.weight) if o.when(self)]
        name = data.draw(st.sampled_from(able), label="operation")
        arguments = OPERATIONS[name].arguments
        given = {key: data.draw(arguments[key], label=key) for key in arguments}
        getattr(self, name)(**given)

    # --- helpers ----------------------------------------------------------------------

    def end(self) -> None:
        self.since_upheaval += 1
        self.world.turn()
        if not self.holds_back:
            self.world.commit()

    def targets(self) -> list[str]:
        """What can be sent to."""
        return [
            path
            for path, entity in self.world.model.entities.items()
            if not isinstance(entity.description, SubscriptionDescription)
        ]

    def awaited_targets(self) -> list[str]:
        """Every other time: where somebody waits for messages."""
        awaited = {r.place[0] for r in self.attached() if r.credit}
        return [path for path in self.targets() if path in awaited and self.sent % 2]

    def places(self, *, open_only: bool = True) -> list[Place]:
        """What can be received from; or else everything that messages can be in."""
        return [
            (path, stream.which)
            for path, entity in self.world.model.entities.items()
            for stream in entity.streams
            if not open_only
            or not (
                entity.is_topic
                or entity.receives_off
                or (stream.which == MAIN and entity.forward_to is not None)
            )
        ]

    def plain_places(self) -> list[Place]:
        return [p for p in self.places() if not self.world.model_stream(p).has_sessions]

    def session_places(self) -> list[Place]:
        return [p for p in self.places() if self.world.model_stream(p).has_sessions]

    def content(
        self, id_pick: int, session: str | None, ttl_ms: int | None, given: dict[str, object]
    ) -> Content:
        self.sent += 1
        message_id = f"id-{id_pick}" if id_pick < 4 else f"own-{self.sent}"
        body = b"m%d" % self.sent + (b"." * 250 * 1024 if self.is_big else b"")
        return Content(body, message_id, session, ttl_ms, dict(given))

    # --- sending ----------------------------------------------------------------------

    @operation(
        10,
        lambda m: m.targets(),
        pick=picks,
        ids=st.lists(st.integers(0, 8), min_size=1, max_size=3),
        session=sessions | st.none(),
        ttl_ms=ttls_ms,
        given=properties,
    )
    def send(
        self, pick: int, ids: list[int], session: str | None, ttl_ms: int | None,
        given: dict[str, object],
    ) -> None:  # fmt: skip
        batch = [(self.content(i, session, ttl_ms, given), 0) for i in ids]
        self.world.send(pick_one(self.awaited_targets() or self.targets(), pick), batch)
        self.end()

    @operation(
        2,
        lambda m: m.targets() and not m.is_big,
        pick=picks,
        session=sessions | st.none(),
        ttl_ms=ttls_ms,
        given=properties,
        wait_ms=edges_ms,
    )
    def schedule(
        self, pick: int, session: str | None, ttl_ms: int | None, given: dict[str, object],
        wait_ms: int,
    ) -> None:  # fmt: skip
        content = self.content(8, session, ttl_ms, given)
        path = pick_one(self.targets(), pick)
        self.world.send(path, [(content, self.world.now_ms + wait_ms)])
        self.end()

    # --- receiving --------------------------------------------------------------------

    @operation(
        5,
        lambda m: m.plain_places() and len(m.world.receivers) < 10,
        pick=picks,
        peek_lock=st.sampled_from([True, True, True, False]),
        credit=credits,
    )
    def attach(self, pick: int, peek_lock: bool, credit: int) -> None:
        places = self.plain_places()
        now_ms = self.world.now_ms
        fruitful = [p for p in places if self.world.model_stream(p).deliverable(now_ms)]
        self.world.attach(pick_one(fruitful or places, pick), peek_lock, credit)
        self.end()

    @operation(
        4,
        lambda m: m.session_places() and len(m.world.receivers) < 10,
        pick=picks,
        session=sessions,
        credit=credits,
        peek_lock=st.booleans(),
    )
    def accept_session(self, pick: int, session: str, credit: int, peek_lock: bool) -> None:
        place = pick_one(self.session_places(), pick)
        self.world.accept_session(place, session, peek_lock, credit)
        self.end()

    @operation(
        2,
        lambda m: m.session_places() and len(m.world.receivers) < 10,
        pick=picks,
        wait_ms=edges_ms,
        credit=credits,
    )
    def seek_session(self, pick: int, wait_ms: int, credit: int) -> None:
        place = pick_one(self.session_places(), pick)
        self.world.seek_session(place, wait_ms, True, credit)
        self.end()

    def attached(self) -> list[Receiver]:
        return [r for r in self.world.receivers.values() if r.attached]

    @operation(
        5,
        lambda m: m.attached(),
        pick=picks,
        credit=st.integers(1, 4),
    )
    def give_credit(self, pick: int, credit: int) -> None:
        self.world.give_credit(pick_one(self.attached(), pick), credit)
        self.end()

    @operation(
        2,
        lambda m: m.world.receivers,
        pick=picks,
        loses_connection=st.booleans(),
    )
    def leave(self, pick: int, loses_connection: bool) -> None:
        if loses_connection:
            self.world.connection_lost(pick_one(list(self.world.receivers.values()), pick))
        elif self.attached():
            self.world.detach(pick_one(self.attached(), pick))
        self.end()

    # --- settling ---------------------------------------------------------------------

    def live_locks(self) -> list[HeldLock]:
        return [held for held in self.world.locks if held.stream.holds(held.lock)]

    def _settle(self, held: HeldLock, wanted: Settlement) -> None:
        world = self.world
        world.both(
            lambda: wanted.apply(held.holder, held.stream, held.lock, world.now_ms),
            lambda: self._expect(held, wanted),
        )
        del world.locks[:-20]

    def _expect(self, held: HeldLock, wanted: Settlement) -> None:
        model = self.world.model
        stream, lock = held.model_stream, held.model_lock
        given = {str(k): v for k, v in wanted.properties.items()}
        if wanted.what == settlement.COMPLETE:
            model.complete(stream, lock)
        elif wanted.what == settlement.RELEASE:
            model.release(stream, lock)
        elif wanted.what == settlement.ABANDON:
            model.abandon(stream, lock, given, wanted.delay_ms)
        elif wanted.what == settlement.DEFER:
            model.defer(stream, lock, given)
        else:
            model.dead_letter(stream, lock, wanted.reason, wanted.description, given)

    def wanted(self, what: int, with_properties: bool, delay_ms: int) -> Settlement:
        wanted = Settlement(what)
        if with_properties:
            wanted.properties = {"attempt": self.sent, "color": "blue"}
        if what == settlement.ABANDON:
            wanted.delay_ms = delay_ms
        if what == settlement.DEAD_LETTER:
            wanted.reason, wanted.description = "broken", "beyond repair"
        return wanted

    @operation(
        4,
        lambda m: m.live_locks(),
        pick=picks,
    )
    def complete(self, pick: int) -> None:
        self._settle(pick_one(self.live_locks(), pick), settlement.PLAIN_COMPLETE)
        self.end()

    @operation(
        4,
        lambda m: m.live_locks(),
        pick=picks,
        with_properties=st.booleans(),
        delay_ms=delays_ms,
    )
    def abandon(self, pick: int, with_properties: bool, delay_ms: int) -> None:
        wanted = self.wanted(settlement.ABANDON, with_properties, delay_ms)
        self._settle(pick_one(self.live_locks(), pick), wanted)
        self.end()

    @operation(
        4,
        lambda m: m.live_locks(),
        pick=picks,
        what=st.integers(settlement.DEFER, settlement.RELEASE),
        with_properties=st.booleans(),
    )
    def settle(self, pick: int, what: int, with_properties: bool) -> None:
        wanted = self.wanted(what, with_properties, 0)
        self._settle(pick_one(self.live_locks(), pick), wanted)
        self.end()

    @operation(
        1,
        lambda m: len(m.world.locks) > len(m.live_locks()),
        pick=picks,
        what=st.integers(settlement.COMPLETE, settlement.RELEASE),
    )
    def settle_late(self, pick: int, what: int) -> None:
        lost = [held for held in self.world.locks if not held.stream.holds(held.lock)]
        self._settle(pick_one(lost, pick), self.wanted(what, False, 0))
        self.end()

    @operation(
        1,
        lambda m: m.live_locks(),
        pick=picks,
    )
    def renew(self, pick: int) -> None:
        world = self.world
        held = pick_one(self.live_locks(), pick)
        assert held.stream.lock_by_low(held.lock.low) is held.lock
        world.both(
            lambda: held.stream.renew(held.lock, world.now_ms),
            lambda: world.model.renew(held.model_stream, held.model_lock),
        )
        self.end()

    # --- by sequence number -----------------------------------------------------------

    def places_with(self, state: str) -> list[Place]:
        return [
            place
            for place in self.places(open_only=False)
            if any(m.state == state for m in self.world.model_stream(place).messages)
        ]

    @operation(
        3,
        lambda m: m.places_with("deferred"),
        pick=picks,
        which=picks,
        session=sessions | st.none(),
        wrong=st.booleans(),
    )
    def fetch_deferred(self, pick: int, which: int, session: str | None, wrong: bool) -> None:
        world = self.world
        place = pick_one(self.places_with("deferred"), pick)
        model, stream = world.model_stream(place), world.stream(place)
        if not model.has_sessions:
            session = None
        seqs = [m.seq for m in model.messages if (m.state == "deferred") != wrong] or [999]
        chosen = [pick_one(seqs, which)]

        def ask() -> object:
            held = None if session is None else stream.check_session(session, world.now_ms)
            consumer = held.holder if held is not None else None
            assert consumer is None or isinstance(consumer, Receiver)
            return stream.fetch_deferred(chosen, held, consumer, world.now_ms)

        locks, model_locks = world.both(
            ask, lambda: world.model.fetch_deferred(model, chosen, session)
        )
        for lock, model_lock in zip(locks or [], model_locks or [], strict=True):
            world.hold(place, lock, model_lock)
        self.end()

    @operation(
        1,
        lambda m: m.places_with("deferred"),
        pick=picks,
        which=picks,
    )
    def undefer(self, pick: int, which: int) -> None:
        world = self.world
        place = pick_one(self.places_with("deferred"), pick)
        model, stream = world.model_stream(place), world.stream(place)
        seq = pick_one([m.seq for m in model.messages if m.state == "deferred"], which)

        def ask() -> None:
            stream.check_deferred(seq)
            stream.undefer(seq)

        world.both(ask, lambda: world.model.undefer(model, seq))
        self.end()

    @operation(
        1,
        lambda m: m.places_with("scheduled"),
        pick=picks,
        which=picks,
        wrong=st.booleans(),
    )
    def cancel(self, pick: int, which: int, wrong: bool) -> None:
        world = self.world
        place = pick_one(self.places_with("scheduled"), pick)
        model = world.model_stream(place)
        seqs = [m.seq for m in model.messages if (m.state == "scheduled") != wrong]
        chosen = [pick_one(seqs, which)] if seqs else [999]
        world.both(
            lambda: world.stream(place).cancel(chosen),
            lambda: world.model.cancel(model, chosen),
        )
        self.end()

    @operation(
        1,
        lambda m: m.places_with("active"),
        pick=picks,
        from_seq=st.integers(0, 12),
        count_max=st.integers(1, 5),
    )
    def peek(self, pick: int, from_seq: int, count_max: int) -> None:
        world = self.world
        place = pick_one(self.places_with("active"), pick)
        found = world.stream(place).browse(from_seq, count_max, None, bytes((1, 2, 3, 4, 5)))
        assert found == world.model.browse(world.model_stream(place), from_seq, count_max)

    @operation(
        2,
        lambda m: any(which != MAIN for _, which in m.places_with("active")),
        pick=picks,
        count=st.integers(1, 3),
    )
    def resubmit(self, pick: int, count: int) -> None:
        world = self.world
        place = pick_one([p for p in self.places_with("active") if p[1] != MAIN], pick)
        model, holder = world.model_stream(place), world.entity(place[0])
        assert isinstance(holder, Holder)
        seqs = [m.seq for m in model.messages[:count]]
        got, expected = world.both(
            lambda: holder.resubmit(world.stream(place), seqs, world.now_ms),
            lambda: world.model.resubmit(model, seqs),
        )
        assert got == expected
        self.end()

    # --- sessions ---------------------------------------------------------------------

    def held_sessions(self) -> list[tuple[Place, str]]:
        return [
            (place, session_id)
            for place in self.session_places()
            for session_id, session in self.world.model_stream(place).sessions.items()
            if session.holder is not None
        ]

    @operation(
        1,
        lambda m: m.held_sessions(),
        pick=picks,
        state=st.sampled_from([None, b"", b"half way"]),
    )
    def set_session_state(self, pick: int, state: bytes | None) -> None:
        world = self.world
        place, session = pick_one(self.held_sessions(), pick)
        world.both(
            lambda: world.stream(place).set_session_state(session, state, world.now_ms),
            lambda: world.model.set_session_state(world.model_stream(place), session, state),
        )
        self.end()

    @operation(
        1,
        lambda m: m.held_sessions(),
        pick=picks,
    )
    def renew_session(self, pick: int) -> None:
        world = self.world
        place, session = pick_one(self.held_sessions(), pick)
        got, expected = world.both(
            lambda: world.stream(place).renew_session(session, world.now_ms),
            lambda: world.model.renew_session(world.model_stream(place), session),
        )
        assert got == expected
        self.end()

    # --- transactions -----------------------------------------------------------------

    @operation(
        2,
        lambda m: m.targets() and m.live_locks(),
        pick=picks,
        session=sessions | st.none(),
        ttl_ms=ttls_ms,
    )
    def send_in_transaction(self, pick: int, session: str | None, ttl_ms: int | None) -> None:
        world = self.world
        transaction = self.transaction = self.transaction or Transaction()
        path = pick_one(self.targets(), pick)
        content = self.content(8, session, ttl_ms, {})
        entity, model = world.entity(path), world.model.entities[path]
        message = world.messages([(content, 0)])[0]

        def expect() -> None:
            world.model.check(model, content)
            self.tx_sends.append((model, content))

        world.both(lambda: transaction.send(entity, message), expect)
        self.end()

    @operation(
        3,
        lambda m: m.live_locks(),
        pick=picks,
        what=st.integers(settlement.COMPLETE, settlement.RELEASE),
    )
    def settle_in_transaction(self, pick: int, what: int) -> None:
        world = self.world
        transaction = self.transaction = self.transaction or Transaction()
        held = pick_one(self.live_locks(), pick)
        wanted = self.wanted(what, True, 0)

        def expect() -> None:
            world.model.held(held.model_stream, held.model_lock)
            twice = any(known.model_lock is held.model_lock for known, _ in self.tx_locks)
            if twice or (what == settlement.DEAD_LETTER and held.model_stream.which != MAIN):
                raise Refused(errors.NOT_ALLOWED)
            self.tx_locks.append((held, wanted))

        world.both(
            lambda: transaction.settle(held.holder, held.stream, held.lock, wanted, world.now_ms),
            expect,
        )
        self.end()

    @operation(
        3,
        lambda m: m.transaction is not None,
        rolls_back=st.sampled_from([False, False, True]),
    )
    def end_transaction(self, rolls_back: bool) -> None:
        world = self.world
        transaction, sends, locks = self.transaction, self.tx_sends, self.tx_locks
        assert transaction is not None
        self.forget_transaction()

        def expect() -> None:
            for entity, content in sends:
                world.model.check(entity, content)
            for held, _ in locks:
                world.model.held(held.model_stream, held.model_lock)
            for entity, content in sends:
                world.model.publish(entity, content, 0)
            for held, wanted in locks:
                self._expect(held, wanted)

        if not rolls_back:
            world.both(lambda: transaction.commit(world.now_ms), expect)
        self.end()

    def forget_transaction(self) -> None:
        self.transaction = None
        self.tx_sends: list[tuple[NaiveEntity, Content]] = []
        self.tx_locks: list[tuple[HeldLock, Settlement]] = []

    # --- entities ---------------------------------------------------------------------

    @operation(
        2,
        lambda m: m.since_upheaval > 3 and m.world.model.entities,
        pick=picks,
        change=changes,
    )
    def update(self, pick: int, change: dict[str, object]) -> None:
        world = self.world
        paths = list(world.model.entities)
        path = pick_one(paths, pick)
        old = world.model.entities[path].description
        forwards = change.get("forward_to") is not None
        if forwards and (path == "sink" or "sink" not in paths or _has_sessions(old)):
            return
        if not all(hasattr(old, name) for name in change):
            return
        self.since_upheaval = 0
        for name in ("forward_to", "forward_dead_lettered_messages_to"):
            target = getattr(old, name, None)
            if target is not None and target not in paths and not change.get(name):
                change = {**change, name: None}
        world.update(path, replace(old, **change))  # type: ignore[arg-type]
        self.end()

    @operation(
        1,
        lambda m: m.since_upheaval > 6,
        pick=picks,
    )
    def delete(self, pick: int) -> None:
        self.since_upheaval = 0
        if self.world.model.entities:
            self.world.delete(pick_one(list(self.world.model.entities), pick))
        self.end()

    @operation(
        2,
        lambda m: m.missing(),
        pick=picks,
    )
    def create(self, pick: int) -> None:
        description, rule_name = pick_one(self.missing(), pick)
        self.world.create(description, RULES[rule_name].description if rule_name else None)
        self.end()

    def missing(self) -> list[Made]:
        """What was deleted and can be made again."""
        known = self.world.model.entities
        wants = ("topic", "forward_to", "forward_dead_lettered_messages_to")
        return [
            made
            for made in self.layout
            if NaiveEntity(made[0]).path not in known
            and all(getattr(made[0], name, None) in (None, *known) for name in wants)
        ]

    @operation(
        1,
        lambda m: any(e.rules for e in m.world.model.entities.values()),
        pick=picks,
        name=st.sampled_from(sorted(RULES)),
        removes=st.booleans(),
    )
    def change_rules(self, pick: int, name: str, removes: bool) -> None:
        world = self.world
        path = pick_one([path for path, e in world.model.entities.items() if e.rules], pick)
        subscription, model = world.entity(path), world.model.entities[path]
        assert isinstance(subscription, Subscription)
        if removes and len(model.rules) > 1 and name in model.rules:
            world.namespace.delete_rule(subscription, name)
            del model.rules[name]
        elif name not in model.rules:
            world.namespace.create_rule(subscription, RULES[name].description, world.now_ms)
            model.rules[name] = replace(RULES[name].description, created_ms=world.now_ms)
        self.end()

    # --- time, disk and crashes -------------------------------------------------------

    @operation(6, passed_ms=edges_ms)
    def advance(self, passed_ms: int) -> None:
        self.world.advance(passed_ms)
        self.end()

    @operation(
        2,
        lambda m: m.live_locks(),
        passed_ms=edges_ms,
    )
    def advance_before_timers(self, passed_ms: int) -> None:
        """Time passes, and a command comes before the server has looked at the clock."""
        self.world.advance(passed_ms)

    @operation(1, holds_back=st.booleans())
    def change_pace(self, holds_back: bool) -> None:
        """Commit after each step, or let what is not durable gather."""
        self.holds_back = holds_back
        self.end()

    @operation(
        4,
        lambda m: m.holds_back and m.world.store.overlaps,
    )
    def go_on_committing(self) -> None:
        """A commit begins, or ends while the next one gathers."""
        if self.world.sealed is None:
            self.world.begin_commit()
        else:
            self.world.finish_commit()
        self.world.turn()

    @operation(
        1,
        lambda m: m.since_upheaval > 6,
        keep_in_flight=st.booleans(),
        revive_dropped=st.booleans(),
    )
    def crash(self, keep_in_flight: bool, revive_dropped: bool) -> None:
        self.since_upheaval = 0
        self.world.crash(keep_in_flight=keep_in_flight, revive_dropped=revive_dropped)
        self.forget_transaction()
        self.end()

    @operation(
        2,
        lambda m: len(m.world.store.segments()) > 1 and m.world.sealed is None,
        segments=st.integers(1, 3),
        bytes_max=st.sampled_from([1, 400, 1 << 20]),
    )
    def compact(self, segments: int, bytes_max: int) -> None:
        self.world.start_carrying(segments)
        self.world.carry(bytes_max)
        self.end()


def _has_sessions(description: object) -> bool:
    return bool(getattr(description, "requires_session", False))


class JournalMachine(EngineMachine):
    """The same on the real journal."""

    make_store = JournalStore


def run(machine: type[EngineMachine], steps: int) -> None:
    step_count = 50
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=steps // step_count,
            stateful_step_count=step_count,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_engine_does_what_the_naive_broker_does() -> None:
    run(EngineMachine, 4_000)


def test_engine_does_the_same_on_the_real_journal() -> None:
    run(JournalMachine, 1_000)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_engine_does_what_the_naive_broker_does_for_long() -> None:
    run(EngineMachine, 100_000)
