"""A broker that is short of everything, and what is done to it at random.

A seed goes in; each operation is drawn from it. So little effort is allowed per batch that what
the engine does unasked takes many batches, and that requests are refused when half of them is
done. The disk is full at times, the clock is set, segments are dropped, settings change while
messages are on their way. Nothing here judges: that is for the test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.unit.engine.engine_kit import Kit, ListLog, Taker, body_of, payload, present
from twinbus.core.errors import BusError
from twinbus.core.units import UNLIMITED_MS
from twinbus.engine import parting, records, reserving, returning
from twinbus.engine.carrying import Carrier
from twinbus.engine.consumer import Lock
from twinbus.engine.entities import Entity, Holder, Queue
from twinbus.engine.index import ACTIVE, DEFERRED, SCHEDULED
from twinbus.engine.kernel import ASKED_EFFORT_MAX
from twinbus.engine.message import MESSAGE_ID, Message, take_in
from twinbus.engine.records import Placed
from twinbus.engine.reservations import Reserver
from twinbus.engine.sessions import Session
from twinbus.engine.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE, Settlement
from twinbus.engine.shifting import shift
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Subscription
from twinbus.engine.transactions import Transaction

#: What a batch allows: one thing only, one dead letter or two, a few, as much as in earnest.
EFFORTS = (1, 3_000, 9_000, 1 << 20)
#: What is left of it for requests: nothing, one message, two or three of them.
LITTLE = (-1, 0, 2_500, 5_000)
SESSIONS = ("a", "b")
CONSUMERS = ("job", "other")
SUBSCRIPTIONS = ("one", "two")
STREAMS = (0, 1, 2)
WHICH = (0, 0, 0, 1, 2)
SETTLEMENTS = (COMPLETE, ABANDON, ABANDON, ABANDON, DEFER, DEAD_LETTER, RELEASE)
CHANGES: tuple[dict[str, Any], ...] = (
    {"lock_duration_ms": 5_000},
    {"lock_duration_ms": 7_000},
    {"max_delivery_count": 1},
    {"max_delivery_count": 5},
    {"default_message_time_to_live_ms": 3_000},
    {"default_message_time_to_live_ms": UNLIMITED_MS},
    {"dead_lettering_on_message_expiration": True},
    {"dead_lettering_on_message_expiration": False},
    {"status": "ReceiveDisabled"},
    {"status": "SendDisabled"},
    {"status": "Active"},
    {"status": "Active"},
    {"forward_to": "sink"},
    {"forward_to": None},
    {"forward_to": None},
    {"forward_dead_lettered_messages_to": "sink"},
    {"forward_dead_lettered_messages_to": "s"},
    {"forward_dead_lettered_messages_to": None},
)
#: Those that leave in another way are somewhere else afterwards.
FOR_GOOD = (
    records.COMPLETED,
    records.RECEIVED_AND_DELETED,
    records.EXPIRED,
    records.CANCELLED,
    records.PURGED,
)


class Ledger:
    """What the journal tells: which messages are there, and how many copies are gone for good.

    It is read record by record as the journal grows, and so knows also what compaction drops.
    """

    def __init__(self, log: ListLog, worth: Callable[[int], int]) -> None:
        self._log = log
        self._worth = worth
        self._records_read = 0
        #: Bodies, by stream and sequence number.
        self.there: dict[tuple[int, int], bytes] = {}
        self.gone: Counter[bytes] = Counter()

    def read_on(self) -> None:
        for location, record in self._log.records[self._records_read :]:
            if record[0] == records.PLACED:
                placed = Placed(record, location)
                stored = self._log.read(placed.payload_location, placed.size)
                self.there[placed.stream, placed.seq] = body_of(stored)
            elif record[0] == records.SETTLED:
                stream, first, count, how = records.read_settled(record)
                for seq in range(first, first + count):
                    assert (stream, seq) in self.there, f"{seq} of stream {stream} left twice"
                    body = self.there.pop((stream, seq))
                    if how in FOR_GOOD:
                        self.gone[body] += self._worth(stream)
        self._records_read = len(self._log.records)

    def forget(self, streams: set[int]) -> None:
        """An entity is deleted, with all that is in these streams."""
        for stream, seq in [place for place in self.there if place[0] in streams]:
            self.gone[self.there.pop((stream, seq))] += self._worth(stream)


class Receiver(Taker):
    """A receiver that takes what its session has as soon as it found one."""

    def __init__(
        self, kit: Kit, holder: Holder, stream: Stream, credit: int, peek_lock: bool
    ) -> None:
        super().__init__(kit, stream, credit, peek_lock)
        self.holder = holder

    def session_found(self, session: Session) -> None:
        super().session_found(session)
        self.stream.want(self)


@dataclass
class Held:
    """A lock that somebody got, still good or not."""

    holder: Holder
    stream: Stream
    lock: Lock


class TightWorld:
    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        memory_bytes_max = self.dice.choice((0, 500, 1 << 20))
        self.kit = kit = Kit(memory_bytes_max, observing=self.happens(0.2))
        self.receivers: list[Receiver] = []
        #: Locks on deferred messages that were fetched by number.
        self.fetched: list[Held] = []
        self.carrier: Carrier | None = None
        #: How many copies of each message there must be, those included that are gone for good.
        self.copies: Counter[bytes] = Counter()
        #: Of the messages that the queue which detects duplicates has taken.
        self.known_ids: list[object] = []
        #: What was done, for whoever has to find out why it failed.
        self.trace: list[str] = []
        self._sent = 0
        self.transaction: Transaction | None = None
        self._forget_transaction()
        given: dict[str, Any] = {"lock_duration_ms": 5_000}
        expires = {"dead_lettering_on_message_expiration": True}
        kit.queue("sink")
        kit.queue("q", max_delivery_count=3, requires_duplicate_detection=True, **expires, **given)
        if self.happens(0.3):
            expires = {}
        kit.queue("s", max_delivery_count=2, requires_session=True, **expires, **given)
        self._topic_stream = kit.topic("t").main.number
        for name in SUBSCRIPTIONS:
            kit.subscription(name, max_delivery_count=2, **given)
        self.ledger = Ledger(kit.log, self.worth)
        self._draw_effort()

    # --- what there is ----------------------------------------------------------------

    def happens(self, chance: float) -> bool:
        return self.dice.random() < chance

    def say(self, *words: object) -> None:
        """Add to what the trace tells of this operation."""
        self.trace[-1] += "".join([f" {word}" for word in words])

    def worth(self, stream: int) -> int:
        """How many messages one in that stream stands for: a topic's fans out when it is due."""
        return len(SUBSCRIPTIONS) if stream == self._topic_stream else 1

    def holders(self) -> list[Holder]:
        namespace = self.kit.namespace
        queues: list[Holder] = [namespace.queue(name) for name in ("q", "s", "sink")]
        return queues + [namespace.subscription("t", name) for name in SUBSCRIPTIONS]

    def entities(self) -> list[Entity]:
        return [self.kit.namespace.topic("t"), *self.holders()]

    def all_streams(self) -> Iterator[tuple[Holder, Stream]]:
        for holder in self.holders():
            for which in STREAMS:
                yield holder, holder.stream(which)

    def _pick_holder(self) -> Holder:
        return self.dice.choice([*self.holders(), self.kit.namespace.queue("s")])

    def _pick_stream(self) -> tuple[Holder, Stream]:
        holder = self._pick_holder()
        return holder, holder.stream(self.dice.choice(WHICH))

    def _pick_target(self) -> Entity:
        namespace = self.kit.namespace
        return self.dice.choice([namespace.topic("t"), *map(namespace.queue, ("q", "s", "sink"))])

    def _locks(self) -> list[Held]:
        """The latest ones, mostly those that are still good."""
        locks = [Held(r.holder, r.stream, lock) for r in self.receivers for lock in r.locks]
        locks += self.fetched
        if self.happens(0.8):
            locks = [held for held in locks if held.stream.holds(held.lock)]
        return locks[-6:]

    # --- effort and disk --------------------------------------------------------------

    def _draw_effort(self) -> None:
        kernel = self.kit.engine.kernel
        kernel.effort_max = kernel.effort_left = self.dice.choice(EFFORTS)

    def _run_short(self, chance: float = 0.3) -> None:
        """Often, the requests before this one have used up nearly all that a batch may take."""
        if self.happens(chance):
            left = self.dice.choice(LITTLE)
            self.kit.engine.kernel.effort_left = left - ASKED_EFFORT_MAX
            self.say("left", left)

    def fill_disk(self) -> None:
        kernel = self.kit.engine.kernel
        kernel.set_full(self.happens(0.4) and not kernel.is_full)

    def commit(self) -> None:
        self.kit.settle_down()
        # What was delivered after the commit, and deleted with it, is told with the next one.
        self.kit.engine.kernel.write_runs()
        self.ledger.read_on()

    def compact(self) -> None:
        """Begin, or go on: others come in between."""
        log = self.kit.log
        if self.carrier is None:
            segment = log.records[-1][0] >> 32
            if segment > 1:
                before = self.dice.randint(2, segment)
                self.carrier = Carrier(self.kit.engine, before)
            return
        self.carrier.step(self.dice.choice((1, 400, 1 << 20)), self.kit.now_ms)
        if self.carrier.finished:
            self.commit()
            log.drop_before(self.carrier.segment)
            self.carrier = None

    def restart(self) -> None:
        self.kit.restart()
        self.carrier = None
        self.receivers = []
        self.fetched = []
        self._forget_transaction()
        self._draw_effort()

    # --- time -------------------------------------------------------------------------

    def advance(self) -> None:
        self.kit.now_ms += self.dice.choice((1, 500, 1_000, 2_000, 5_000))

    def set_clock(self) -> None:
        step_ms = self.dice.choice((-3_000, 3_000))
        self.kit.now_ms += step_ms
        shift(self.kit.engine, step_ms, self.kit.now_ms)

    # --- sending ----------------------------------------------------------------------

    def send(self) -> None:
        entity = self._pick_target()
        self.say(entity.path)
        for _ in range(self.dice.randint(1, 4)):
            message = self._draw_message(entity)
            try:
                entity.check(message)
            except BusError:
                continue
            entity.publish(message, self.kit.now_ms)
            self._note_sent(entity, message)

    def _draw_message(self, entity: Entity) -> Message:
        self._sent += 1
        message_id: object = str(self._sent)
        if entity.history is not None and self.known_ids and self.happens(0.2):
            message_id = self.dice.choice(self.known_ids)
        due_ms = self.kit.now_ms + 3_000
        made = payload(
            b"m%d" % self._sent,
            message_id=message_id,
            session_id=self.dice.choice(SESSIONS),
            ttl_ms=self.dice.choice((None, None, 2_000, 10_000)),
            due_ms=self.dice.choice((None, None, None, due_ms)),
        )
        return take_in(made, str)

    def _note_sent(self, entity: Entity, message: Message) -> None:
        if entity.history is not None:
            message_id = message.properties()[MESSAGE_ID]
            if message_id in self.known_ids:
                # The window is longer than a run: it is dropped.
                return
            self.known_ids.append(message_id)
        self.copies[body_of(message.stored)] += self.worth(entity.main.number)

    def transact(self) -> None:
        """Open a transaction, or commit the one that is open, all of it or nothing."""
        if self.transaction is None:
            self._open_transaction()
            return
        good = [held for held in self.tx_locks if held.stream.holds(held.lock)]
        try:
            self.transaction.commit(self.kit.now_ms)
            for entity, message in self.tx_sends:
                self._note_sent(entity, message)
        except BusError as error:
            self.say("refused:", error.kind.condition)
            assert all(held.stream.holds(held.lock) for held in good), "settled all the same"
        self._forget_transaction()

    def _open_transaction(self) -> None:
        self.transaction = Transaction()
        for _ in range(self.dice.randint(1, 2)):
            entity = self._pick_target()
            message = self._draw_message(entity)
            try:
                self.transaction.send(entity, message)
            except BusError:
                continue
            self.tx_sends.append((entity, message))
        for held in self._locks()[-2:]:
            wanted = self._draw_settlement()
            try:
                self.transaction.settle(
                    held.holder, held.stream, held.lock, wanted, self.kit.now_ms
                )
            except BusError:
                continue
            self.tx_locks.append(held)

    def _forget_transaction(self) -> None:
        self.transaction = None
        self.tx_sends: list[tuple[Entity, Message]] = []
        self.tx_locks: list[Held] = []

    # --- receiving --------------------------------------------------------------------

    def attach(self) -> None:
        holder, stream = self._pick_stream()
        if holder.receive_disabled or (stream.is_main and holder.forward_to is not None):
            return
        kit = self.kit
        credit = self.dice.randint(0, 4)
        receiver = Receiver(kit, holder, stream, credit, peek_lock=self.happens(0.85))
        if stream.sessions is not None and self.happens(0.5):
            try:
                stream.accept_session(receiver, self.dice.choice(SESSIONS), kit.now_ms)
            except BusError:
                return
        stream.attach(receiver, kit.now_ms)
        if stream.sessions is not None and receiver.session is None:
            stream.seek_session(receiver, kit.now_ms + self.dice.choice((0, 3_000)))
        else:
            stream.want(receiver)
        self.receivers.append(receiver)
        self.say(stream.path)

    def detach(self) -> None:
        """A link goes, or the whole connection, and with it the locks."""
        if not self.receivers:
            return
        receiver = self.receivers.pop(self.dice.randrange(len(self.receivers)))
        if receiver.detached is None:
            receiver.stream.detach(receiver, self.kit.now_ms)
        if self.happens(0.5):
            for lock in receiver.locks:
                receiver.stream.drop_lock(lock, self.kit.now_ms)

    def give_credit(self) -> None:
        attached = [r for r in self.receivers if r in r.stream.attached]
        if attached:
            receiver = self.dice.choice(attached)
            receiver.credit += 2
            receiver.stream.want(receiver)

    def renew(self) -> None:
        now_ms = self.kit.now_ms
        for receiver in self.receivers:
            for lock in receiver.locks:
                if self.happens(0.1):
                    try:
                        receiver.stream.renew(lock, now_ms)
                        if lock.session is not None:
                            receiver.stream.renew_session(lock.session.id, now_ms)
                    except BusError:
                        pass

    def _draw_settlement(self) -> Settlement:
        wanted = Settlement(self.dice.choice(SETTLEMENTS))
        if self.happens(0.3):
            wanted.properties["p"] = "v" * self.dice.randint(0, 50)
        if self.happens(0.3):
            wanted.delay_ms = 2_000
        return wanted

    def settle(self) -> None:
        locks = self._locks()
        if not locks:
            return
        held = self.dice.choice(locks)
        wanted = self._draw_settlement()
        self._run_short()
        self.say(held.stream.path, held.lock.seq, "outcome", wanted.what)
        now_ms = self.kit.now_ms
        try:
            wanted.check(held.stream, held.lock, now_ms)
            wanted.take_effort(held.stream, held.lock, now_ms)
            wanted.apply(held.holder, held.stream, held.lock, now_ms)
        except BusError as error:
            self.say("refused:", error.kind.condition)

    # --- deferred, dead and unwanted --------------------------------------------------

    def _deferred(self, stream: Stream) -> list[int]:
        return stream.browse(1, 100, None, bytes((DEFERRED,)))

    def fetch(self) -> None:
        holder, stream = self._pick_stream()
        deferred = self._deferred(stream)
        if not deferred:
            return
        seq = self.dice.choice(deferred)
        session, receiver = None, None
        if stream.sessions is not None:
            session = stream.sessions.of_message[seq]
            if not isinstance(session.holder, Receiver):
                return
            receiver = session.holder
        (lock,) = stream.fetch_deferred([seq], session, receiver, self.kit.now_ms)
        self.fetched.append(Held(holder, stream, lock))

    def undefer(self) -> None:
        holder, stream = self._pick_stream()
        returning.undefer(holder, stream, self._deferred(stream)[-2:], self.kit.now_ms)

    def resubmit(self) -> None:
        if self.kit.engine.kernel.is_full:
            # As the server does: messages that are written anew are refused then.
            return
        holder = self._pick_holder()
        stream = holder.stream(self.dice.choice((1, 2)))
        self._run_short()
        self.say(stream.path)
        returning.resubmit(holder, stream, present(stream)[:3], self.kit.now_ms)

    def purge(self) -> None:
        _, stream = self._pick_stream()
        state = self.dice.choice((ACTIVE, DEFERRED))
        for seq in stream.browse(1, 2, None, bytes((state,))):
            stream.remove(seq, records.PURGED)

    def cancel(self) -> None:
        entity = self.dice.choice(self.entities())
        entity.main.cancel(entity.main.browse(1, 1, None, bytes((SCHEDULED,))))

    # --- in bulk ----------------------------------------------------------------------

    def _pick_outstanding(self) -> tuple[Holder, Stream, Reserver] | None:
        """Somebody who has something set aside, if there is one."""
        found = [
            (holder, stream, reserver)
            for holder, stream in self.all_streams()
            if stream.reservations is not None
            for reserver in stream.reservations.reservers.values()
            if reserver.epochs
        ]
        if not found:
            return None
        holder, stream, reserver = self.dice.choice(found)
        self.say(stream.path, reserver.name)
        return holder, stream, reserver

    def reserve(self) -> None:
        picked = self._pick_outstanding() if self.happens(0.6) else None
        if picked is not None:
            # Faults hide in what is done to several epochs at once.
            holder, stream, reserver = picked
        else:
            holder, stream = self._pick_stream()
            name = self.dice.choice(CONSUMERS)
            table = stream.reservations
            known = None if table is None else table.reservers.get(name)
            reserver = Reserver(name) if known is None else known
            self.say(stream.path, name)
        epoch = reserver.last_epoch + 1
        self.say("epoch", epoch)
        count_max, from_seq = self.dice.randint(1, 4), self.dice.choice((1, 1, 3))
        now_ms = self.kit.now_ms
        try:
            reserving.reserve(holder, stream, reserver.name, epoch, count_max, now_ms, from_seq)
        except BusError as error:
            self.say("refused:", error.kind.condition)

    def attempt(self) -> None:
        picked = self._pick_outstanding()
        if picked is None:
            return
        holder, stream, reserver = picked
        epoch = self.dice.choice([*reserver.epochs, reserver.last_epoch + 1])
        attempts_max = self.dice.choice((0, 1))
        self._run_short()
        self.say("epoch", epoch)
        now_ms = self.kit.now_ms
        try:
            reserving.attempt(holder, stream, reserver.name, epoch, attempts_max, now_ms)
        except BusError as error:
            self.say("refused:", error.kind.condition)

    def settle_upto(self) -> None:
        """Some return, some die, the rest is done; several epochs at once."""
        picked = self._pick_outstanding()
        if picked is None:
            return
        holder, stream, reserver = picked
        epoch = reserver.last_epoch
        if self.happens(0.3):
            epoch = self.dice.choice([reserver.settled_epoch, *reserver.epochs])
        seqs = [seq for reservation in reserver.outstanding() for seq in reservation.seqs()]
        returned = [seq for seq in seqs if self.happens(0.2)]
        dead = {seq: ("unfit", "why") for seq in seqs if stream.is_main and self.happens(0.4)}
        self._run_short(0.6)
        self.say("epoch", epoch, "returned", returned, "dead", list(dead))
        now_ms = self.kit.now_ms
        try:
            parting.part(holder, stream, reserver.name, epoch, returned, dead, now_ms)
            reserving.settle_upto(stream, reserver.name, epoch)
        except BusError as error:
            self.say("refused:", error.kind.condition)

    def release(self) -> None:
        picked = self._pick_outstanding()
        if picked is not None:
            holder, stream, reserver = picked
            reserving.release(holder, stream, reserver.name, self.kit.now_ms)

    # --- settings ---------------------------------------------------------------------

    def update(self) -> None:
        holder = self._pick_holder()
        change = self.dice.choice(CHANGES)
        if isinstance(holder, Subscription) and change.get("status") == "SendDisabled":
            # It would get no copies, and how many there must be could not be told.
            return
        self.say(holder.path, change)
        try:
            self.change(holder, change)
        except BusError as error:
            self.say("refused:", error.kind.condition)

    def recreate(self) -> None:
        """Delete an entity with all that is in it, and make one like it."""
        holder = self._pick_holder()
        self.say(holder.path)
        self.commit()
        self.ledger.forget({stream.number for stream in holder.streams.values()})
        namespace, now_ms = self.kit.namespace, self.kit.now_ms
        namespace.delete(holder.path)
        if isinstance(holder, Subscription):
            namespace.create_subscription(holder.description, None, now_ms)
            return
        assert isinstance(holder, Queue)
        if holder.history is not None:
            self.known_ids = []
        namespace.create_queue(replace(holder.description, forward_to=None), now_ms)

    def change(self, holder: Holder, change: dict[str, Any]) -> None:
        namespace, now_ms = self.kit.namespace, self.kit.now_ms
        if isinstance(holder, Subscription):
            namespace.update_subscription(replace(holder.description, **change), now_ms)
        else:
            assert isinstance(holder, Queue)
            namespace.update_queue(replace(holder.description, **change), now_ms)


#: How often each is drawn: what leads somewhere is frequent, what ends everything is rare.
OPERATIONS: dict[Callable[[TightWorld], None], int] = {
    TightWorld.send: 20,
    TightWorld.transact: 8,
    TightWorld.attach: 12,
    TightWorld.detach: 6,
    TightWorld.give_credit: 10,
    TightWorld.renew: 4,
    TightWorld.settle: 24,
    TightWorld.fetch: 6,
    TightWorld.undefer: 4,
    TightWorld.resubmit: 4,
    TightWorld.purge: 1,
    TightWorld.cancel: 1,
    TightWorld.reserve: 12,
    TightWorld.attempt: 3,
    TightWorld.settle_upto: 6,
    TightWorld.release: 1,
    TightWorld.update: 4,
    TightWorld.recreate: 2,
    TightWorld.fill_disk: 4,
    TightWorld.advance: 12,
    TightWorld.set_clock: 1,
    TightWorld.compact: 8,
    TightWorld.restart: 4,
}
