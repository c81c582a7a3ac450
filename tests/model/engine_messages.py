"""Operations on messages: sent, received, settled, found by number, in transactions."""

from __future__ import annotations

from engine_machine import (
    CREDITS,
    DELAYS_MS,
    EDGES_MS,
    EITHER,
    PICKS,
    PROPERTIES,
    SESSIONS,
    SESSIONS_OR_NONE,
    TTLS_MS,
    Machine,
    operation,
    pick_one,
)
from engine_world import HeldLock, Place, Receiver
from naive_broker import Refused
from naive_entities import MAIN

from twinbus.core import errors
from twinbus.engine import returning, settlement
from twinbus.engine.entities import Holder
from twinbus.engine.returning import resubmit
from twinbus.engine.settlement import Settlement
from twinbus.engine.transactions import Transaction


class MessageOperations(Machine):
    # --- sending ----------------------------------------------------------------------

    @operation(
        9,
        lambda m: m.targets(),
        pick=PICKS,
        ids=((8,), (8, 8), (8, 8, 8), (0,), (1,), (0, 1), (2, 2), (3, 8)),
        session=SESSIONS_OR_NONE,
        ttl_ms=TTLS_MS,
        given=PROPERTIES,
    )
    def send(
        self, pick: int, ids: tuple[int, ...], session: str | None, ttl_ms: int | None,
        given: dict[str, object],
    ) -> None:  # fmt: skip
        batch = [(self.content(i, session, ttl_ms, given), 0) for i in ids]
        self.world.send(pick_one(self.awaited_targets() or self.targets(), pick), batch)
        self.end()

    @operation(
        2,
        lambda m: m.targets() and not m.is_big,
        pick=PICKS,
        session=SESSIONS_OR_NONE,
        ttl_ms=TTLS_MS,
        given=PROPERTIES,
        wait_ms=EDGES_MS,
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
        pick=PICKS,
        peek_lock=(True, True, True, False),
        credit=CREDITS,
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
        pick=PICKS,
        session=SESSIONS,
        credit=CREDITS,
        peek_lock=EITHER,
    )
    def accept_session(self, pick: int, session: str, credit: int, peek_lock: bool) -> None:
        place = pick_one(self.session_places(), pick)
        self.world.accept_session(place, session, peek_lock, credit)
        self.end()

    @operation(
        2,
        lambda m: m.session_places() and len(m.world.receivers) < 10,
        pick=PICKS,
        wait_ms=EDGES_MS,
        credit=CREDITS,
    )
    def seek_session(self, pick: int, wait_ms: int, credit: int) -> None:
        place = pick_one(self.session_places(), pick)
        self.world.seek_session(place, wait_ms, True, credit)
        self.end()

    @operation(
        5,
        lambda m: m.attached(),
        pick=PICKS,
        credit=range(1, 5),
    )
    def give_credit(self, pick: int, credit: int) -> None:
        self.world.give_credit(pick_one(self.attached(), pick), credit)
        self.end()

    @operation(
        2,
        lambda m: m.world.receivers,
        pick=PICKS,
        loses_connection=EITHER,
    )
    def leave(self, pick: int, loses_connection: bool) -> None:
        if loses_connection:
            self.world.connection_lost(pick_one(list(self.world.receivers.values()), pick))
        elif self.attached():
            self.world.detach(pick_one(self.attached(), pick))
        self.end()

    # --- settling ---------------------------------------------------------------------

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
        pick=PICKS,
    )
    def complete(self, pick: int) -> None:
        self._settle(pick_one(self.live_locks(), pick), settlement.PLAIN_COMPLETE)
        self.end()

    @operation(
        4,
        lambda m: m.live_locks(),
        pick=PICKS,
        with_properties=EITHER,
        delay_ms=DELAYS_MS,
    )
    def abandon(self, pick: int, with_properties: bool, delay_ms: int) -> None:
        wanted = self.wanted(settlement.ABANDON, with_properties, delay_ms)
        self._settle(pick_one(self.live_locks(), pick), wanted)
        self.end()

    @operation(
        4,
        lambda m: m.live_locks(),
        pick=PICKS,
        what=range(settlement.DEFER, settlement.RELEASE + 1),
        with_properties=EITHER,
    )
    def settle(self, pick: int, what: int, with_properties: bool) -> None:
        wanted = self.wanted(what, with_properties, 0)
        self._settle(pick_one(self.live_locks(), pick), wanted)
        self.end()

    @operation(
        1,
        lambda m: len(m.world.locks) > len(m.live_locks()),
        pick=PICKS,
        what=range(settlement.COMPLETE, settlement.RELEASE + 1),
    )
    def settle_late(self, pick: int, what: int) -> None:
        lost = [held for held in self.world.locks if not held.stream.holds(held.lock)]
        self._settle(pick_one(lost, pick), self.wanted(what, False, 0))
        self.end()

    @operation(
        3,
        lambda m: m.live_locks(),
        pick=PICKS,
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

    @operation(
        4,
        lambda m: m.live_locks(),
        pick=PICKS,
        what=range(settlement.COMPLETE, settlement.RELEASE + 1),
        off_ms=(-1, 0, 1),
    )
    def settle_at_the_end(self, pick: int, what: int, off_ms: int) -> None:
        """Settle around the moment at which a lock ends, before the timers run (R5)."""
        world = self.world
        held = pick_one(self.live_locks(), pick)
        lock = held.model_lock
        end_ms = lock.until_ms
        if lock.session is not None:
            end_ms = held.model_stream.session(lock.session).until_ms
        world.advance(max(0, end_ms + off_ms - world.now_ms))
        self._settle(held, self.wanted(what, False, 0))
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
        pick=PICKS,
        which=PICKS,
        session=SESSIONS_OR_NONE,
        wrong=EITHER,
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
        pick=PICKS,
        which=PICKS,
    )
    def undefer(self, pick: int, which: int) -> None:
        world = self.world
        place = pick_one(self.places_with("deferred"), pick)
        model, holder = world.model_stream(place), world.entity(place[0])
        assert isinstance(holder, Holder)
        seq = pick_one([m.seq for m in model.messages if m.state == "deferred"], which)
        world.both(
            lambda: returning.undefer(holder, world.stream(place), [seq], world.now_ms),
            lambda: world.model.undefer(model, seq),
        )
        self.end()

    @operation(
        1,
        lambda m: m.places_with("scheduled"),
        pick=PICKS,
        which=PICKS,
        wrong=EITHER,
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
        pick=PICKS,
        from_seq=range(13),
        count_max=range(1, 6),
    )
    def peek(self, pick: int, from_seq: int, count_max: int) -> None:
        world = self.world
        place = pick_one(self.places_with("active"), pick)
        found = world.stream(place).browse(from_seq, count_max, None, bytes((1, 2, 3, 4, 5, 6)))
        assert found == world.model.browse(world.model_stream(place), from_seq, count_max)

    @operation(
        2,
        lambda m: any(which != MAIN for _, which in m.places_with("active")),
        pick=PICKS,
        count=range(1, 4),
    )
    def resubmit(self, pick: int, count: int) -> None:
        world = self.world
        place = pick_one([p for p in self.places_with("active") if p[1] != MAIN], pick)
        model, stream = world.model_stream(place), world.stream(place)
        holder = world.entity(place[0])
        assert isinstance(holder, Holder)
        seqs = [m.seq for m in model.messages[:count]]
        got, expected = world.both(
            lambda: resubmit(holder, stream, seqs, world.now_ms),
            lambda: world.model.resubmit(model, seqs, stream.number),
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
        pick=PICKS,
        state=(None, b"", b"half way"),
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
        pick=PICKS,
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
        pick=PICKS,
        session=SESSIONS_OR_NONE,
        ttl_ms=TTLS_MS,
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
        pick=PICKS,
        what=range(settlement.COMPLETE, settlement.RELEASE + 1),
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
        rolls_back=(False, False, True),
    )
    def end_transaction(self, rolls_back: bool) -> None:
        world = self.world
        transaction, sends, locks = self.transaction, self.tx_sends, self.tx_locks
        assert transaction is not None
        self.forget_transaction()

        def expect() -> None:
            for n, (entity, content) in enumerate(sends):
                before = [c for e, c in sends[:n] if e is entity and e.forward_to is None]
                world.model.check(entity, content, sum(len(c.body) for c in before))
            for held, _ in locks:
                world.model.held(held.model_stream, held.model_lock)
            for entity, content in sends:
                world.model.publish(entity, content, 0)
            for held, wanted in locks:
                self._expect(held, wanted)

        if not rolls_back:
            world.both(lambda: transaction.commit(world.now_ms), expect)
        self.end()
