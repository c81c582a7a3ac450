"""One ordered stream of messages with its receivers: a queue, a subscription, or a sub-queue
of one.

The rules of receiving and settling (R1–R10) live here, on top of what is in the stream
(`shelf.py`). A message whose record is not on disk yet (`seq > durable_seq`) is seen by
nobody.
"""

from collections import deque
from heapq import heappop, heappush
from typing import Final

from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.engine import observations, records
from twinbus.engine.consumer import TOKEN_SEQ_BITS, Attachment, Consumer, Lock
from twinbus.engine.index import (
    ACTIVE,
    CHUNK_BITS,
    CHUNK_MASK,
    DEFERRED,
    DEFERRED_LOCKED,
    LOCKED,
    NEVER,
)
from twinbus.engine.kernel import Kernel
from twinbus.engine.metering import UNIT_BYTES, extra_units
from twinbus.engine.sessions import Session, SessionTable
from twinbus.engine.upkeep import Owner, Upkeep

# How many messages a receiver gets before the next in line has its turn.
_BURST: Final = 64
# How many expired messages a search for one to deliver goes past at once: 10 ms.
_PASSES_MAX: Final = 20_000
# When to look again at an expired message that could not be dropped yet.
_LOOK_AGAIN_MS: Final = 1_000


class Stream(Upkeep):
    def __init__(self, kernel: Kernel, owner: Owner, number: int, path: str) -> None:
        super().__init__(kernel, owner, number, path)
        # Settings, from the entity's description.
        self.lock_duration_ms = 30_000
        self.max_delivery_count = 10
        #: False in the dead-letter queues: time to live and delivery limits stop there (D1).
        self.is_main = True
        self.receive_disabled = False

        #: No active message lies before it, those aside that have expired.
        self.cursor = 1
        #: Locked messages, soonest to expire first: all locks of a stream last equally long.
        self.locked: dict[int, Lock] = {}
        #: Abandoned with a delay: held back from everyone until then.
        self.delayed: list[tuple[int, int]] = []
        self.attached: dict[Attachment, None] = {}
        self.line: deque[Consumer] = deque()
        #: Receivers that wait for any session, with the time at which they give up.
        self.seekers: dict[Consumer, int] = {}
        self.token_high = kernel.dice(8)
        self._lock_number = 0
        #: A search stopped at what has expired and is not gone yet.
        self.is_stalled = False
        #: Counted since start.
        self.locks_lost_total = 0

    # --- receivers --------------------------------------------------------------------

    def attach(self, consumer: Consumer, now_ms: int) -> None:
        self.attached[consumer] = None
        self.receivers += 1
        # Expired messages move or go once there is someone to receive (D5).
        expires_ms = self.index.expires_min
        if expires_ms != NEVER:
            self.kernel.call_at(max(expires_ms, now_ms), self)

    def detach(self, consumer: Consumer, now_ms: int) -> None:
        """A receiver leaves; it keeps no session, but its message locks run on."""
        if consumer in self.attached:
            del self.attached[consumer]
            self.receivers -= 1
            self.account.accessed_ms = now_ms
        self.seekers.pop(consumer, None)
        if consumer.in_line:
            self.line.remove(consumer)
            consumer.in_line = False
        if consumer.session is not None:
            self.release_session(consumer, now_ms, failed=False)

    def holds(self, lock: Lock) -> bool:
        """Tell whether a lock has neither been settled nor lost."""
        return self.locked.get(lock.seq) is lock

    def drop_lock(self, lock: Lock, now_ms: int) -> None:
        """The receiver's connection is gone, and with it its locks (R7)."""
        if self.holds(lock):
            self._give_back(lock, lock.delivery_count + 1, now_ms)

    def want(self, consumer: Consumer) -> None:
        """The receiver has credit: stand it in line."""
        session = consumer.session
        table = self.sessions
        if session is not None and table is not None:
            table.restless[session.id] = session
        elif table is None and not consumer.in_line:
            consumer.in_line = True
            self.line.append(consumer)
        self.kernel.wake(self)

    def dispatch(self, now_ms: int) -> None:
        if self.receive_disabled:
            return
        if self.sessions is not None:
            self._dispatch_sessions(now_ms)
            return
        line = self.line
        while line:
            consumer = line[0]
            taken = 0
            while consumer.can_take():
                seq = self._next_active(now_ms)
                if seq == 0:
                    return
                self._hand_over(consumer, seq, now_ms)
                taken += 1
                if taken == _BURST:
                    line.rotate(-1)
                    break
            else:
                # It may have left the line already, should its connection have broken.
                if consumer.in_line:
                    consumer.in_line = False
                    line.remove(consumer)

    def _next_active(self, now_ms: int) -> int:
        """The first message that can be delivered, 0 when there is none."""
        for _ in range(_PASSES_MAX):
            seq = self.index.find_state(ACTIVE, self.cursor, self.durable_seq)
            if seq == 0:
                self.cursor = self.durable_seq + 1
                return 0
            self.cursor = seq + 1
            if self.index.expires_min > now_ms or not self.expire_if_due(seq, now_ms):
                return seq
        self.is_stalled = True
        self.kernel.put_off(self)
        return 0

    def _hand_over(self, consumer: Consumer, seq: int, now_ms: int) -> None:
        chunk = self.index.chunks[seq >> CHUNK_BITS]
        offset = seq & CHUNK_MASK
        stored = chunk.payloads[offset]
        if stored is None:
            stored = self.kernel.log.read(chunk.locations[offset], chunk.sizes[offset])
        enqueued_ms = chunk.enqueued[offset]
        delivery_count = self.counts.get(seq, 0) if self.counts else 0
        meter = self.account.meter
        size = len(stored)
        meter.deliveries += 1
        meter.delivery_bytes += size
        if size > UNIT_BYTES:
            meter.delivery_extra_units += extra_units(size)
        observer = self.kernel.observer
        if observer is not None:
            consumer.note_delivery(observer, self.number, chunk, seq, delivery_count, now_ms)
        if consumer.peek_lock:
            lock = self._lock(seq, delivery_count, consumer, consumer.session, False, now_ms)
            consumer.deliver(seq, stored, enqueued_ms, delivery_count, lock)
        else:
            self.remove(seq, records.RECEIVED_AND_DELETED)
            consumer.deliver(seq, stored, enqueued_ms, delivery_count, None)

    def _lock(
        self, seq: int, delivery_count: int, consumer: Consumer | None, session: Session | None,
        deferred: bool, now_ms: int,
    ) -> Lock:  # fmt: skip
        self._lock_number += 1
        until_ms = now_ms + self.lock_duration_ms
        lock = Lock(seq, self._lock_number, until_ms, delivery_count, consumer, session, deferred)
        self.index.set_state(seq, DEFERRED_LOCKED if deferred else LOCKED)
        self.locked[seq] = lock
        if session is not None:
            session.locked[seq] = None
            lock.locked_until_ms = session.locked_until_ms
        elif not self.timer_ms or until_ms < self.timer_ms:
            self.kernel.call_at(until_ms, self)
        return lock

    # --- settlement -------------------------------------------------------------------

    def lock_by_low(self, low: int) -> Lock:
        """Find a lock by the low half of its token."""
        for high in range(self.next_seq >> TOKEN_SEQ_BITS, -1, -1):
            lock = self.locked.get(high << TOKEN_SEQ_BITS | low >> 24)
            if lock is not None and lock.low == low:
                return lock
        raise self.lock_lost(None)

    def lock_lost(self, lock: Lock | None) -> BusError:
        self.locks_lost_total += 1
        if self.sessions is not None:
            return BusError(
                errors.SESSION_LOCK_LOST,
                "The session lock has expired on the MessageSession. Accept a new MessageSession.",
            )
        return BusError(
            errors.MESSAGE_LOCK_LOST,
            "The lock supplied is invalid. Either the lock expired, or the message has already"
            " been removed from the queue.",
        )

    def check_lock(self, lock: Lock, now_ms: int) -> None:
        """Refuse a settlement whose lock is over: the message must not be touched (R5).

        The boundary instant counts as over, so that a renewal and an expiry due at the same
        millisecond can never both win.
        """
        if self.locked.get(lock.seq) is not lock:
            raise self.lock_lost(lock)
        session = lock.session
        if session is None:
            if now_ms >= lock.locked_until_ms:
                raise self.lock_lost(lock)
        elif session.holder is not lock.consumer or now_ms >= session.locked_until_ms:
            raise self.lock_lost(lock)

    def complete(self, lock: Lock, now_ms: int) -> None:
        self.check_lock(lock, now_ms)
        self._unlock(lock)
        self.remove(lock.seq, records.COMPLETED)

    def abandon(self, lock: Lock, now_ms: int, stored: bytes | None, delay_ms: int = 0) -> None:
        """Give a message back at once, or after a delay (R3, R4).

        A session waits with it: its order goes before (E6).
        """
        self.check_lock(lock, now_ms)
        if stored is not None:
            self.replace(lock.seq, stored)
        delivery_count = lock.delivery_count + 1
        if delay_ms > 0 and not lock.deferred and not self._is_spent(delivery_count):
            self._unlock(lock)
            self._note_attempt(lock.seq, delivery_count, ACTIVE)
            if lock.session is not None:
                lock.session.delayed.add(lock.seq)
            heappush(self.delayed, (now_ms + delay_ms, lock.seq))
            self.kernel.call_at(now_ms + delay_ms, self)
        else:
            self._give_back(lock, delivery_count, now_ms)

    def release(self, lock: Lock, now_ms: int) -> None:
        """Give a message back as if it had never been delivered."""
        self.check_lock(lock, now_ms)
        self._give_back(lock, lock.delivery_count, now_ms)

    def defer(self, lock: Lock, now_ms: int, stored: bytes | None) -> None:
        self.check_lock(lock, now_ms)
        if stored is not None:
            self.replace(lock.seq, stored)
        self._unlock(lock)
        self._note_attempt(lock.seq, lock.delivery_count + 1, DEFERRED)
        self.index.set_state(lock.seq, DEFERRED)

    def unlock_for_move(self, lock: Lock, now_ms: int) -> None:
        """Let go of a locked message that is about to leave for another stream."""
        self.check_lock(lock, now_ms)
        self._unlock(lock)

    def _unlock(self, lock: Lock) -> None:
        del self.locked[lock.seq]
        if lock.session is not None:
            del lock.session.locked[lock.seq]

    def renew(self, lock: Lock, now_ms: int) -> int:
        """Prolong a lock by LockDuration (R6); give its new end."""
        self.check_lock(lock, now_ms)
        if lock.session is None:
            lock.locked_until_ms = now_ms + self.lock_duration_ms
            # Taken out and put back, so that the order stays the order of expiry.
            del self.locked[lock.seq]
            self.locked[lock.seq] = lock
        return lock.locked_until_ms

    def _is_spent(self, delivery_count: int) -> bool:
        """Tell whether a message was delivered as often as it may be (D3)."""
        return self.is_main and delivery_count >= self.max_delivery_count

    def _give_back(self, lock: Lock, delivery_count: int, now_ms: int) -> None:
        """Return a locked message to its own place, or bury it at its limit (R3, D3)."""
        seq = lock.seq
        self._unlock(lock)
        if lock.deferred:
            self.index.set_state(seq, DEFERRED)
            if delivery_count != lock.delivery_count:
                self._note_attempt(seq, delivery_count, DEFERRED)
            return
        if self._is_spent(delivery_count):
            text = f"Message could not be consumed after {delivery_count} delivery attempts."
            self.let_die(seq, "MaxDeliveryCountExceeded", text, delivery_count, now_ms)
            return
        if delivery_count != lock.delivery_count:
            self._note_attempt(seq, delivery_count, ACTIVE)
        self.make_available(seq)

    def make_available(self, seq: int) -> None:
        """Let a message be delivered (again), from its own place."""
        self.index.set_state(seq, ACTIVE)
        if self.sessions is not None:
            session = self.sessions.of_message.get(seq)
            if session is not None:
                self.sessions.offer(session, seq)
        elif seq < self.cursor:
            self.cursor = seq
        self.kernel.wake(self)

    def drop_locks(self, now_ms: int) -> None:
        """Every lock is void, as after a change to the entity (R7), and every delay over."""
        if self.sessions is not None:
            for session in list(self.sessions.held.values()):
                self._lose_session(session, now_ms, failed=False)
        for lock in list(self.locked.values()):
            self._give_back(lock, lock.delivery_count, now_ms)
        self._end_delays(NEVER)

    # --- deferred, scheduled, browsing ------------------------------------------------

    def fetch_deferred(
        self, seqs: list[int], session: Session | None, consumer: Consumer | None, now_ms: int
    ) -> list[Lock]:
        """Lock deferred messages by number, all or none (E5)."""
        if self.sessions is not None and session is None:
            # Such a lock would belong to nobody, and so would never end.
            raise self.lock_lost(None)
        for seq in seqs:
            self.check_deferred(seq)
            if session is not None and self.session_id(seq) != session.id:
                raise BusError(
                    errors.MESSAGE_NOT_FOUND,
                    f"The deferred message {seq} does not belong to session '{session.id}'.",
                )
        return [
            self._lock(seq, self.counts.get(seq, 0), consumer, session, True, now_ms)
            for seq in seqs
        ]

    def undefer(self, seq: int) -> None:
        """Make a deferred message active again, in its own place."""
        self._note_attempt(seq, self.counts.get(seq, 0), ACTIVE)
        self.restore(seq)

    def restore(self, seq: int) -> None:
        """Let a message that was put aside be delivered, and expire, again."""
        expires_ms = self.expires_ms(seq)
        if expires_ms:
            self.index.note_expiry(seq, expires_ms)
            if self.receivers:
                self.kernel.call_at(expires_ms, self)
        self.make_available(seq)

    # --- sessions ---------------------------------------------------------------------

    def accept_session(self, consumer: Consumer, session_id: str, now_ms: int) -> Session:
        """Hand a named session to a receiver, even an empty one (E6)."""
        table = self.sessions
        assert table is not None
        session = table.get(session_id)
        if session.holder is not None and now_ms < session.locked_until_ms:
            raise BusError(
                errors.SESSION_CANNOT_BE_LOCKED,
                f"The requested session '{session_id}' cannot be accepted. It may be locked by"
                " another receiver.",
            )
        if session.holder is not None:
            self._lose_session(session, now_ms, failed=True)
            # An empty one is forgotten when nobody holds it.
            session = table.get(session_id)
        self._seat(session, consumer, now_ms)
        return session

    def seek_session(self, consumer: Consumer, deadline_ms: int) -> None:
        """Let a receiver wait for the next session that has something for it."""
        self.seekers[consumer] = deadline_ms
        self.kernel.call_at(deadline_ms, self)
        self.kernel.wake(self)

    def _seat(self, session: Session, consumer: Consumer, now_ms: int) -> None:
        table = self.sessions
        assert table is not None
        until_ms = now_ms + self.lock_duration_ms
        table.hold(session, consumer, until_ms)
        consumer.session = session
        table.restless[session.id] = session
        self.kernel.call_at(until_ms, self)

    def check_session(self, session_id: str, now_ms: int) -> Session:
        """Give a session that a receiver holds; refuse one that none does."""
        table = self.sessions
        session = table.sessions.get(session_id) if table is not None else None
        # Whoever has reserved its messages is no receiver, and keeps it for as long as it likes.
        is_held = session is not None and isinstance(session.holder, Consumer)
        if session is None or not is_held or now_ms >= session.locked_until_ms:
            raise self.lock_lost(None)
        return session

    def renew_session(self, session_id: str, now_ms: int) -> int:
        session = self.check_session(session_id, now_ms)
        table = self.sessions
        assert table is not None
        table.hold(session, session.holder, now_ms + self.lock_duration_ms)
        return session.locked_until_ms

    def set_session_state(self, session_id: str, state: bytes | None, now_ms: int) -> None:
        session = self.check_session(session_id, now_ms)
        record = records.session_state_set(self.number, session_id.encode(), state, now_ms)
        table = self.sessions
        assert table is not None
        table.set_state(session, state, now_ms, self.kernel.log.append(record))

    def release_session(self, consumer: Consumer, now_ms: int, failed: bool) -> None:
        """Free a session; what its holder had not settled is available at once.

        A lock that ran out counts as a failed delivery, a receiver that leaves does not.
        """
        session = consumer.session
        table = self.sessions
        consumer.session = None
        if session is None or table is None or session.holder is not consumer:
            return
        for lock in [self.locked[seq] for seq in session.locked]:
            self._give_back(lock, lock.delivery_count + (1 if failed else 0), now_ms)
        table.release(session)
        self.kernel.wake(self)

    def _lose_session(self, session: Session, now_ms: int, failed: bool) -> None:
        consumer = session.holder
        assert isinstance(consumer, Consumer)
        self.release_session(consumer, now_ms, failed)
        self.locks_lost_total += 1
        if failed:
            self._observe_expiry(0, 0, consumer, session.id)
        consumer.session_lost()

    def _dispatch_sessions(self, now_ms: int) -> None:
        table = self.sessions
        assert table is not None
        self.is_stalled = False
        if self.seekers and table.free:
            self._seat_seekers(table, now_ms)
        restless = table.restless
        table.restless = {}
        for session in restless.values():
            consumer = session.holder
            if isinstance(consumer, Consumer):
                self._serve_session(session, consumer, now_ms)

    def _seat_seekers(self, table: SessionTable, now_ms: int) -> None:
        for session in list(table.free.values()):
            if not self.seekers or self.is_stalled:
                return
            if self._first_of(session, now_ms) == 0:
                continue
            consumer = next(iter(self.seekers))
            del self.seekers[consumer]
            self._seat(session, consumer, now_ms)
            consumer.session_found(session)

    def _first_of(self, session: Session, now_ms: int) -> int:
        """The first message of a session that can be delivered now, 0 when there is none."""
        while True:
            seq = session.first()
            if seq == 0 or seq > self.durable_seq or session.is_held_up(seq):
                return 0
            if self.index.state(seq) == ACTIVE:
                if not self.expire_if_due(seq, now_ms):
                    return seq
                if self.index.state(seq) == ACTIVE:
                    # It could not go yet, and the others wait behind it.
                    self.is_stalled = True
                    return 0
            # Settled or moved while it waited: what is left in the heap is stale.
            if session.first() == seq:
                session.pop()

    def _serve_session(self, session: Session, consumer: Consumer, now_ms: int) -> None:
        while consumer.can_take():
            seq = self._first_of(session, now_ms)
            if seq == 0:
                if session.waiting and self.sessions is not None:
                    self.sessions.restless[session.id] = session
                return
            session.pop()
            self._hand_over(consumer, seq, now_ms)

    def close(self) -> None:
        if self.sessions is not None:
            for session in self.sessions.held.values():
                session.locked.clear()
        super().close()
        self.locked = {}
        self.delayed = []
        for consumer in self.line:
            consumer.in_line = False
        self.line.clear()
        self.seekers = {}
        self.attached = {}

    # --- timers -----------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> None:
        if self.sessions is None:
            self._expire_locks(now_ms)
        else:
            self._expire_sessions(now_ms)
        self._end_delays(now_ms)
        self.tend(now_ms)
        if self.is_stalled:
            self.is_stalled = False
            self.kernel.wake(self)
        self._set_timer(now_ms)

    def _end_delays(self, until_ms: int) -> None:
        while self.delayed and self.delayed[0][0] <= until_ms:
            seq = heappop(self.delayed)[1]
            if self.index.state(seq) == LOCKED and seq not in self.locked:
                if self.sessions is not None:
                    self.sessions.of_message[seq].delayed.discard(seq)
                self.make_available(seq)

    def _expire_locks(self, now_ms: int) -> None:
        expired: list[Lock] = []
        for lock in self.locked.values():
            if lock.locked_until_ms > now_ms:
                break
            expired.append(lock)
        for lock in expired:
            self.locks_lost_total += 1
            self._observe_expiry(lock.seq, lock.delivery_count, lock.consumer)
            self._give_back(lock, lock.delivery_count + 1, now_ms)

    def _observe_expiry(
        self, seq: int, delivery_count: int, consumer: Consumer | None, session_id: str = ""
    ) -> None:
        """A lock on a message, or on a session as a whole, ran out."""
        observer = self.kernel.observer
        if observer is not None:
            client = "" if consumer is None else consumer.client
            what = observations.LOCK_EXPIRED
            observer.tell(what, self.number, seq, delivery_count, client, session_id)

    def _expire_sessions(self, now_ms: int) -> None:
        table = self.sessions
        assert table is not None
        for session in list(table.held.values()):
            if session.locked_until_ms > now_ms:
                break
            self._lose_session(session, now_ms, failed=True)
        if any(deadline_ms <= now_ms for deadline_ms in self.seekers.values()):
            # What is free is theirs, however short they wait (R9).
            self._seat_seekers(table, now_ms)
            self.kernel.wake(self)
        for consumer, deadline_ms in list(self.seekers.items()):
            if deadline_ms <= now_ms:
                del self.seekers[consumer]
                consumer.session_not_found()

    def _set_timer(self, now_ms: int) -> None:
        earliest: int = NEVER
        if self.sessions is not None:
            for session in self.sessions.held.values():
                earliest = session.locked_until_ms
                break
            for deadline_ms in self.seekers.values():
                earliest = min(earliest, deadline_ms)
        else:
            for lock in self.locked.values():
                earliest = lock.locked_until_ms
                break
        if self.delayed:
            earliest = min(earliest, self.delayed[0][0])
        if self.scheduled and self.scheduled[0][0] > now_ms:
            # What is due and still here waits for its turn.
            earliest = min(earliest, self.scheduled[0][0])
        if self.receivers:
            expires_ms = self.index.expires_min
            # What is over and still here is locked, or not on disk yet.
            earliest = min(earliest, expires_ms if expires_ms > now_ms else now_ms + _LOOK_AGAIN_MS)
        if earliest != NEVER:
            self.kernel.call_at(max(earliest, now_ms + 1), self)
