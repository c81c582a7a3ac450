"""The engine against a naive second broker, in virtual time, with crashes (SPEC sections 1–4).

Hypothesis chooses what is sent, received, settled, changed and lost, and when; `World` compares
the two brokers after every step. See its checks for what must hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

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
    precondition,
    rule,
    run_state_machine_as_test,
)
from naive_broker import MAIN, NaiveStream, Refused

from twinbus.core import errors
from twinbus.core.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.engine import settlement
from twinbus.engine.entities import Holder, Subscription
from twinbus.engine.settlement import Settlement
from twinbus.engine.transactions import Transaction

T = TypeVar("T")
picks = st.integers(0, 1 << 16)
edges_ms = st.sampled_from([1, 999, 1_000, 1_001, 4_999, 5_000, 5_001, 19_999, 20_000])
sessions = st.sampled_from(["s0", "s1", "s2"])
credits = st.integers(0, 4)
ttls_ms = st.sampled_from([None, None, None, 1, 1_000, 5_000, 5_001])
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


class EngineMachine(RuleBasedStateMachine):
    make_store: type[Store] = ListStore

    @initialize(
        layout=st.sampled_from(sorted(LAYOUTS)),
        memory_bytes_max=st.sampled_from([0, 300, 1 << 30]),
    )
    def begin(self, layout: str, memory_bytes_max: int) -> None:
        self.world = World(self.make_store(), memory_bytes_max)
        self.layout: list[Made] = LAYOUTS[layout]
        self.holds_back = False
        self.sent = 0
        self.transaction: Transaction | None = None
        self.tx_sends: list[tuple[str, Content]] = []
        self.tx_locks: list[tuple[HeldLock, int]] = []
        for description, rule_name in self.layout:
            self.world.create(description, RULES[rule_name].description if rule_name else None)
        self.world.commit()

    # --- helpers ----------------------------------------------------------------------

    def end(self) -> None:
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

    def places(self) -> list[Place]:
        """What can be received from."""
        return [
            (path, stream.which)
            for path, entity in self.world.model.entities.items()
            for stream in entity.streams
            if not entity.is_topic
            and not entity.receives_off
            and (stream.which != MAIN or entity.forward_to is None)
        ]

    def plain_places(self) -> list[Place]:
        return [p for p in self.places() if not self.world.model_stream(p).has_sessions]

    def session_places(self) -> list[Place]:
        return [p for p in self.places() if self.world.model_stream(p).has_sessions]

    def holders(self) -> list[Place]:
        """Every stream that messages can be in, open to receivers or not."""
        return [
            (path, stream.which)
            for path, entity in self.world.model.entities.items()
            for stream in entity.streams
            if not entity.is_topic
        ]

    def content(
        self, id_pick: int, session: str | None, ttl_ms: int | None, given: dict[str, object]
    ) -> Content:
        self.sent += 1
        message_id = f"id-{id_pick}" if id_pick < 4 else f"own-{self.sent}"
        big = self.world.model.entities.get("small") is not None
        body = b"m%d" % self.sent + (b"." * 250 * 1024 if big else b"")
        return Content(body, message_id, session, ttl_ms, dict(given))

    # --- sending ----------------------------------------------------------------------

    @precondition(lambda self: self.targets())
    @rule(
        pick=picks, ids=st.lists(st.integers(0, 8), min_size=1, max_size=3),
        session=sessions | st.none(), ttl_ms=ttls_ms, given=properties,
    )  # fmt: skip
    def send(
        self, pick: int, ids: list[int], session: str | None, ttl_ms: int | None,
        given: dict[str, object],
    ) -> None:  # fmt: skip
        batch = [(self.content(i, session, ttl_ms, given), 0) for i in ids]
        self.world.send(pick_one(self.targets(), pick), batch)
        self.end()

    @precondition(lambda self: self.targets())
    @rule(
        pick=picks, session=sessions | st.none(), ttl_ms=ttls_ms, given=properties, wait_ms=edges_ms
    )
    def schedule(
        self, pick: int, session: str | None, ttl_ms: int | None, given: dict[str, object],
        wait_ms: int,
    ) -> None:  # fmt: skip
        content = self.content(8, session, ttl_ms, given)
        path = pick_one(self.targets(), pick)
        self.world.send(path, [(content, self.world.now_ms + wait_ms)])
        self.end()

    @precondition(lambda self: self.targets())
    @rule(pick=picks, which=picks, wrong=st.booleans())
    def cancel(self, pick: int, which: int, wrong: bool) -> None:
        world = self.world
        place = (pick_one(self.targets(), pick), MAIN)
        model = world.model_stream(place)
        seqs = [m.seq for m in model.messages if (m.state == "scheduled") != wrong]
        chosen = [pick_one(seqs, which)] if seqs else [999]
        world.both(
            lambda: world.stream(place).cancel(chosen),
            lambda: world.model.cancel(model, chosen),
        )
        self.end()

    # --- receivers --------------------------------------------------------------------

    @precondition(lambda self: self.plain_places() and len(self.world.receivers) < 8)
    @rule(pick=picks, peek_lock=st.sampled_from([True, True, True, False]), credit=credits)
    def attach(self, pick: int, peek_lock: bool, credit: int) -> None:
        self.world.attach(pick_one(self.plain_places(), pick), peek_lock, credit)
        self.end()

    @precondition(lambda self: self.session_places() and len(self.world.receivers) < 8)
    @rule(pick=picks, session=sessions, credit=credits, peek_lock=st.booleans())
    def accept_session(self, pick: int, session: str, credit: int, peek_lock: bool) -> None:
        place = pick_one(self.session_places(), pick)
        self.world.accept_session(place, session, peek_lock, credit)
        self.end()

    @precondition(lambda self: self.session_places() and len(self.world.receivers) < 8)
    @rule(pick=picks, wait_ms=edges_ms, credit=credits)
    def seek_session(self, pick: int, wait_ms: int, credit: int) -> None:
        place = pick_one(self.session_places(), pick)
        self.world.seek_session(place, wait_ms, True, credit)
        self.end()

    def attached(self) -> list[Receiver]:
        return [r for r in self.world.receivers.values() if r.attached]

    @precondition(lambda self: self.attached())
    @rule(pick=picks, credit=st.integers(1, 4))
    def give_credit(self, pick: int, credit: int) -> None:
        self.world.give_credit(pick_one(self.attached(), pick), credit)
        self.end()

    @precondition(lambda self: self.attached())
    @rule(pick=picks)
    def detach(self, pick: int) -> None:
        self.world.detach(pick_one(self.attached(), pick))
        self.end()

    @precondition(lambda self: self.world.receivers)
    @rule(pick=picks)
    def lose_connection(self, pick: int) -> None:
        self.world.connection_lost(pick_one(list(self.world.receivers.values()), pick))
        self.end()

    # --- settling ---------------------------------------------------------------------

    def _settle(self, held: HeldLock, wanted: Settlement) -> None:
        world = self.world
        world.both(
            lambda: wanted.apply(held.holder, held.stream, held.lock, world.now_ms),
            lambda: self._expect(held, wanted),
        )
        if len(world.locks) > 20:
            del world.locks[0]

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

    @precondition(lambda self: self.world.locks)
    @rule(pick=picks)
    def complete(self, pick: int) -> None:
        self._settle(pick_one(self.world.locks, pick), settlement.PLAIN_COMPLETE)
        self.end()

    @precondition(lambda self: self.world.locks)
    @rule(
        pick=picks, what=st.integers(settlement.ABANDON, settlement.RELEASE),
        with_properties=st.booleans(), delay_ms=st.sampled_from([0, 0, 1, 1_000, 5_000]),
    )  # fmt: skip
    def settle(self, pick: int, what: int, with_properties: bool, delay_ms: int) -> None:
        wanted = self.wanted(what, with_properties, delay_ms)
        self._settle(pick_one(self.world.locks, pick), wanted)
        self.end()

    @precondition(lambda self: self.world.locks)
    @rule(pick=picks)
    def renew(self, pick: int) -> None:
        world = self.world
        held = pick_one(world.locks, pick)
        by_token = held.stream.locked.get(held.lock.seq)
        assert by_token is not held.lock or held.stream.lock_by_low(held.lock.low) is held.lock
        world.both(
            lambda: held.stream.renew(held.lock, world.now_ms),
            lambda: world.model.renew(held.model_stream, held.model_lock),
        )
        self.end()

    # --- by sequence number -----------------------------------------------------------

    @precondition(lambda self: self.holders())
    @rule(pick=picks, which=picks, session=sessions | st.none(), wrong=st.booleans())
    def fetch_deferred(self, pick: int, which: int, session: str | None, wrong: bool) -> None:
        world = self.world
        places = [p for p in self.holders() if _deferred(world.model_stream(p))] or self.holders()
        place = pick_one(places, pick)
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

    @precondition(lambda self: self.holders())
    @rule(pick=picks, which=picks)
    def undefer(self, pick: int, which: int) -> None:
        world = self.world
        places = [p for p in self.holders() if _deferred(world.model_stream(p))] or self.holders()
        place = pick_one(places, pick)
        model, stream = world.model_stream(place), world.stream(place)
        seq = pick_one(_deferred(model) or [999], which)

        def ask() -> None:
            stream.check_deferred(seq)
            stream.undefer(seq)

        world.both(ask, lambda: world.model.undefer(model, seq))
        self.end()

    @precondition(lambda self: self.holders())
    @rule(pick=picks, from_seq=st.integers(0, 12), count_max=st.integers(1, 5))
    def peek(self, pick: int, from_seq: int, count_max: int) -> None:
        world = self.world
        place = pick_one(self.holders(), pick)
        found = world.stream(place).browse(from_seq, count_max, None, bytes((1, 2, 3, 4, 5)))
        assert found == world.model.browse(world.model_stream(place), from_seq, count_max)

    @precondition(lambda self: self.holders())
    @rule(pick=picks, count=st.integers(1, 3))
    def resubmit(self, pick: int, count: int) -> None:
        world = self.world
        places = [p for p in self.holders() if p[1] != MAIN and world.model_stream(p).messages]
        place = pick_one(places or self.holders(), pick)
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

    @precondition(lambda self: self.session_places())
    @rule(pick=picks, session=sessions, state=st.sampled_from([None, b"", b"half way"]))
    def set_session_state(self, pick: int, session: str, state: bytes | None) -> None:
        world = self.world
        place = pick_one(self.session_places(), pick)
        world.both(
            lambda: world.stream(place).set_session_state(session, state, world.now_ms),
            lambda: world.model.set_session_state(world.model_stream(place), session, state),
        )
        self.end()

    @precondition(lambda self: self.session_places())
    @rule(pick=picks, session=sessions)
    def renew_session(self, pick: int, session: str) -> None:
        world = self.world
        place = pick_one(self.session_places(), pick)
        got, expected = world.both(
            lambda: world.stream(place).renew_session(session, world.now_ms),
            lambda: world.model.renew_session(world.model_stream(place), session),
        )
        assert got == expected
        self.end()

    # --- transactions -----------------------------------------------------------------

    @precondition(lambda self: self.targets())
    @rule(pick=picks, session=sessions | st.none(), ttl_ms=ttls_ms)
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

    @precondition(lambda self: self.world.locks)
    @rule(pick=picks, what=st.integers(settlement.COMPLETE, settlement.RELEASE))
    def settle_in_transaction(self, pick: int, what: int) -> None:
        world = self.world
        transaction = self.transaction = self.transaction or Transaction()
        held = pick_one(world.locks, pick)
        wanted = self.wanted(what, True, 0)

        def expect() -> None:
            world.model.held(held.model_stream, held.model_lock)
            twice = any(known.model_lock is held.model_lock for known, _ in self.tx_locks)
            if twice or (what == settlement.DEAD_LETTER and held.model_stream.which != MAIN):
                raise Refused(errors.NOT_ALLOWED)
            self.tx_locks.append((held, wanted))

        world.both(
            lambda: transaction.settle(
                held.holder, held.stream, held.lock, wanted, world.now_ms
            ),
            expect,
        )
        self.end()

    @precondition(lambda self: self.transaction is not None)
    @rule()
    def commit_transaction(self) -> None:
        world = self.world
        transaction, sends, locks = self.transaction, self.tx_sends, self.tx_locks
        assert transaction is not None
        self.transaction, self.tx_sends, self.tx_locks = None, [], []

        def expect() -> None:
            for entity, content in sends:
                world.model.check(entity, content)
            for held, _ in locks:
                world.model.held(held.model_stream, held.model_lock)
            for entity, content in sends:
                world.model.publish(entity, content, 0)
            for held, wanted in locks:
                self._expect(held, wanted)

        world.both(lambda: transaction.commit(world.now_ms), expect)
        self.end()

    @precondition(lambda self: self.transaction is not None)
    @rule()
    def roll_back(self) -> None:
        self.transaction, self.tx_sends, self.tx_locks = None, [], []
        self.end()

    # --- entities ---------------------------------------------------------------------

    @rule(pick=picks, change=changes)
    def update(self, pick: int, change: dict[str, object]) -> None:
        world = self.world
        paths = list(world.model.entities)
        if not paths:
            return
        path = pick_one(paths, pick)
        old = world.model.entities[path].description
        if not all(hasattr(old, name) for name in change) or path == "sink":
            return
        if change.get("forward_to") and (
            "sink" not in paths or getattr(old, "requires_session", False)
        ):
            return
        for name in ("forward_to", "forward_dead_lettered_messages_to"):
            target = getattr(old, name, None)
            if target is not None and target not in paths and not change.get(name):
                change = {**change, name: None}
        world.update(path, replace(old, **change))
        self.end()

    @precondition(lambda self: self.world.model.entities)
    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        self.world.delete(pick_one(list(self.world.model.entities), pick))
        self.end()

    @rule()
    def create_missing(self) -> None:
        world = self.world
        for description, rule_name in self.layout:
            path = _path(description)
            if path in world.model.entities:
                continue
            topic = getattr(description, "topic", None)
            wants = [
                getattr(description, "forward_to", None),
                getattr(description, "forward_dead_lettered_messages_to", None),
                topic,
            ]
            if all(target is None or target in world.model.entities for target in wants):
                rule_wanted = RULES[rule_name].description if rule_name else None
                world.create(description, rule_wanted)
        self.end()

    @rule(pick=picks, name=st.sampled_from(sorted(RULES)), removes=st.booleans())
    def change_rules(self, pick: int, name: str, removes: bool) -> None:
        world = self.world
        paths = [path for path, e in world.model.entities.items() if e.rules]
        if not paths:
            return
        path = pick_one(paths, pick)
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

    @rule(passed_ms=edges_ms)
    def advance(self, passed_ms: int) -> None:
        self.world.advance(passed_ms)
        self.end()

    @rule(passed_ms=edges_ms)
    def advance_before_timers(self, passed_ms: int) -> None:
        """Time passes, and a command comes before the server has looked at the clock."""
        self.world.advance(passed_ms)

    @rule()
    def hold_back_commits(self) -> None:
        self.holds_back = True

    @rule()
    def commit(self) -> None:
        self.holds_back = False
        self.end()

    @precondition(
        lambda self: self.holds_back and self.world.sealed is None and self.world.store.overlaps
    )
    @rule()
    def begin_commit(self) -> None:
        self.world.begin_commit()

    @precondition(lambda self: self.world.sealed is not None)
    @rule()
    def finish_commit(self) -> None:
        self.world.finish_commit()
        self.world.turn()

    @rule(keep_in_flight=st.booleans(), revive_dropped=st.booleans())
    def crash(self, keep_in_flight: bool, revive_dropped: bool) -> None:
        self.world.crash(keep_in_flight=keep_in_flight, revive_dropped=revive_dropped)
        self.transaction, self.tx_sends, self.tx_locks = None, [], []
        self.end()

    @rule(segments=st.integers(1, 3), bytes_max=st.sampled_from([1, 400, 1 << 20]))
    def compact(self, segments: int, bytes_max: int) -> None:
        self.world.start_carrying(segments)
        self.world.carry(bytes_max)
        self.end()


def _deferred(stream: NaiveStream) -> list[int]:
    return [m.seq for m in stream.messages if m.state == "deferred"]


def _path(description: QueueDescription | TopicDescription | SubscriptionDescription) -> str:
    if isinstance(description, SubscriptionDescription):
        return f"{description.topic}/Subscriptions/{description.name}"
    return description.name


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
