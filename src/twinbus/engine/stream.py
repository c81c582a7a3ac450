"""One ordered stream of messages with its receivers: a queue, a subscription, or a sub-queue
of one.

The rules of receiving and settling (R1–R10) live here. A message is placed, waits, is locked
and delivered, and is settled; every step that must survive a crash is a record. A message
whose record is not on disk yet (`seq > durable_seq`) is seen by nobody.
"""

from collections import deque
from heapq import heappop, heappush
from typing import Final

from mypy_extensions import mypyc_attr

from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.engine import records
from twinbus.engine.consumer import Attachment, Consumer, Lock
from twinbus.engine.index import (
    ACTIVE,
    CHUNK_BITS,
    CHUNK_MASK,
    DEFERRED,
    DEFERRED_LOCKED,
    GONE,
    LOCKED,
    NEVER,
    SCHEDULED,
    Index,
)
from twinbus.engine.kernel import Kernel, Wakeable
from twinbus.engine.metering import UNIT_BYTES, Meter, extra_units
from twinbus.engine.records import NO_SESSION, PLACED, PLACED_HEAD, PLACED_HEAD_SIZE
from twinbus.engine.sessions import Session, SessionTable

# How many messages a receiver gets before the next in line has its turn.
_BURST: Final = 64


@mypyc_attr(allow_interpreted_subclasses=True)
class Owner:
    """What a stream asks of the entity that it belongs to."""

    def __init__(self) -> None:
        #: Payload bytes of all messages in its streams.
        self.bytes_used = 0
        self.meter = Meter()

    def dead_letter(
        self, stream: "Stream", seq: int, reason: str, description: str, delivery_count: int,
        now_ms: int,
    ) -> None:  # fmt: skip
        """Move a message that is locked by nobody to the dead-letter queue."""
        raise NotImplementedError

    def activate(self, stream: "Stream", seq: int, now_ms: int) -> None:
        """A scheduled message is due."""
        raise NotImplementedError


class Stream(Wakeable):
    def __init__(self, kernel: Kernel, owner: Owner, number: int, path: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.owner = owner
        self.number = number
        self.path = path
        # Settings, from the entity's description.
        self.lock_duration_ms = 30_000
        self.max_delivery_count = 10
        self.dead_letters_expired = False
        #: False in the dead-letter queues: time to live and delivery limits stop there (D1).
        self.is_main = True
        self.receive_disabled = False

        self.index = Index()
        self.next_seq = 1
        #: The last segment in which `next_seq` can be read off a record.
        self.sequence_segment = 0
        self.durable_seq = 0
        #: No active message lies before it.
        self.cursor = 1
        #: Locked messages, soonest to expire first: all locks of a stream last equally long.
        self.locked: dict[int, Lock] = {}
        #: Delivery counts other than 0.
        self.counts: dict[int, int] = {}
        self.scheduled: list[tuple[int, int]] = []
        self.due: dict[int, int] = {}
        #: Abandoned with a delay: held back from everyone until then.
        self.delayed: list[tuple[int, int]] = []
        self.sessions: SessionTable | None = None

        self.attached: dict[Attachment, None] = {}
        self.receivers = 0
        self.line: deque[Consumer] = deque()
        #: Session streams: sessions that may have something for their holder.
        self.restless: dict[str, Session] = {}
        #: Receivers that wait for any session, with the time at which they give up.
        self.seekers: dict[Consumer, int] = {}

        self.token_high = kernel.dice(8)
        self._lock_number = 0
        self._run_first = 0
        self._run_count = 0
        self._run_how = 0
        #: Counted since start.
        self.locks_lost_total = 0

    # --- placing ----------------------------------------------------------------------

    def place(
        self,
        stored: bytes,
        now_ms: int,
        expires_ms: int,
        state: int = ACTIVE,
        delivery_count: int = 0,
        session_id: str | None = None,
        due_ms: int = 0,
        shared: int = 0,
    ) -> int:
        """Put a message at the end; give its sequence number.

        `shared` is the place in the journal of the same payload, written before.
        """
        seq = self.next_seq
        self.next_seq = seq + 1
        size = len(stored)
        kernel = self.kernel
        head = PLACED_HEAD.pack(
            PLACED, self.number, seq, now_ms, expires_ms, state, delivery_count, due_ms, shared,
            size, NO_SESSION,
        )  # fmt: skip
        if session_id is None and not shared:
            location = kernel.log.append(head, stored) + PLACED_HEAD_SIZE
        else:
            location = self._write_unlike(head, stored, session_id, shared)
        self.sequence_segment = location >> 32
        keep = kernel.cached_bytes + size <= kernel.memory_bytes_max
        if keep:
            kernel.cached_bytes += size
        kernel.live_bytes += size
        self.owner.bytes_used += size
        self.index.put(seq, state, location, size, now_ms, expires_ms, stored if keep else None)
        if not self.is_touched:
            kernel.touch(self)
        if delivery_count:
            self.counts[seq] = delivery_count
        if state == SCHEDULED:
            self._note_due(seq, due_ms)
        if self.sessions is not None and session_id is not None:
            self._note_session(seq, session_id, state)
        if expires_ms and self.receivers and state == ACTIVE:
            kernel.call_at(expires_ms, self)
        return seq

    def _write_unlike(self, head: bytes, stored: bytes, session_id: str | None, shared: int) -> int:
        """Write the record of a message with a session or a shared payload; give the place of
        the payload."""
        if session_id is not None:
            session = session_id.encode()
            head = head[:-2] + len(session).to_bytes(2, "big") + session
        location = self.kernel.log.append(head, b"" if shared else stored)
        return shared if shared else location + len(head)

    def _note_due(self, seq: int, due_ms: int) -> None:
        heappush(self.scheduled, (due_ms, seq))
        self.due[seq] = due_ms
        self.kernel.call_at(due_ms, self)

    def _note_session(self, seq: int, session_id: str, state: int) -> None:
        table = self.sessions
        assert table is not None
        session = table.add(seq, session_id)
        if state == ACTIVE:
            table.offer(session, seq)
            self.restless[session.id] = session

    def stored(self, seq: int) -> bytes:
        """The message's stored form, from memory or from the journal."""
        chunk = self.index.chunk(seq)
        assert chunk is not None
        offset = seq & CHUNK_MASK
        payload = chunk.payloads[offset]
        if payload is None:
            payload = self.kernel.log.read(chunk.locations[offset], chunk.sizes[offset])
        return payload

    def enqueued_ms(self, seq: int) -> int:
        chunk = self.index.chunk(seq)
        assert chunk is not None
        return chunk.enqueued[seq & CHUNK_MASK]

    def expires_ms(self, seq: int) -> int:
        chunk = self.index.chunk(seq)
        if chunk is None or chunk.expires is None:
            return 0
        return chunk.expires[seq & CHUNK_MASK]

    def location(self, seq: int) -> int:
        chunk = self.index.chunk(seq)
        assert chunk is not None
        return chunk.locations[seq & CHUNK_MASK]

    def session_id(self, seq: int) -> str | None:
        if self.sessions is None:
            return None
        session = self.sessions.of_message.get(seq)
        return None if session is None else session.id

    def replace(self, seq: int, stored: bytes) -> None:
        """Give a message another payload; all else stays."""
        state = self.index.state(seq)
        kept = ACTIVE if state == LOCKED else DEFERRED if state == DEFERRED_LOCKED else state
        enqueued_ms = self.enqueued_ms(seq)
        expires_ms = self.expires_ms(seq)
        head = PLACED_HEAD.pack(
            PLACED, self.number, seq, enqueued_ms, expires_ms, kept, self.counts.get(seq, 0),
            self.due.get(seq, 0), 0, len(stored), NO_SESSION,
        )  # fmt: skip
        location = self._write_unlike(head, stored, self.session_id(seq), 0)
        self._forget_payload(seq)
        before = self.index.bytes
        self.index.put(seq, state, location, len(stored), enqueued_ms, expires_ms, None)
        self.kernel.live_bytes += self.index.bytes - before
        self.owner.bytes_used += self.index.bytes - before

    def _forget_payload(self, seq: int) -> None:
        chunk = self.index.chunk(seq)
        assert chunk is not None
        payload = chunk.payloads[seq & CHUNK_MASK]
        if payload is not None:
            self.kernel.cached_bytes -= len(payload)
            chunk.payloads[seq & CHUNK_MASK] = None

    # --- commits ----------------------------------------------------------------------

    def last_seq(self) -> int:
        return self.next_seq - 1

    def on_durable(self, seq: int) -> None:
        if seq > self.durable_seq:
            self.durable_seq = seq

    def write_run(self) -> None:
        if self._run_count:
            self.kernel.log.append(
                records.settled(self.number, self._run_first, self._run_count, self._run_how)
            )
            self._run_count = 0

    def remove(self, seq: int, how: int) -> None:
        """The message leaves the stream for good.

        Neighbours that leave in the same way share one record: a run is held back until
        the batch is sealed or the run breaks.
        """
        kernel = self.kernel
        index = self.index
        before = index.bytes
        kernel.cached_bytes -= index.remove(seq)
        size = before - index.bytes
        kernel.live_bytes -= size
        self.owner.bytes_used -= size
        if self.counts:
            self.counts.pop(seq, None)
        if self.due:
            self.due.pop(seq, None)
        if self.sessions is not None:
            self.sessions.remove(seq)
        if self._run_count and how == self._run_how and seq == self._run_first + self._run_count:
            self._run_count += 1
            return
        if self._run_count:
            self.write_run()
        else:
            kernel.run_begun(self)
        self._run_first = seq
        self._run_count = 1
        self._run_how = how

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
        self.seekers.pop(consumer, None)
        if consumer.in_line:
            self.line.remove(consumer)
            consumer.in_line = False
        if consumer.session is not None:
            self.release_session(consumer, now_ms, lost=False)

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
        if session is not None:
            self.restless[session.id] = session
        elif self.sessions is None and not consumer.in_line:
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
        while True:
            seq = self.index.find_state(ACTIVE, self.cursor, self.durable_seq)
            if seq == 0:
                self.cursor = self.durable_seq + 1
                return 0
            self.cursor = seq + 1
            if self.index.expires_min > now_ms or not self._expire_if_due(seq, now_ms):
                return seq

    def _expire_if_due(self, seq: int, now_ms: int) -> bool:
        """Drop or dead-letter a message whose time is over (D5); tell whether it was."""
        expires_ms = self.expires_ms(seq)
        if not expires_ms or expires_ms > now_ms:
            return False
        if self.dead_letters_expired:
            self.owner.dead_letter(
                self, seq, "TTLExpiredException", "The message expired and was dead lettered.",
                self.counts.get(seq, 0), now_ms,
            )  # fmt: skip
        else:
            self.remove(seq, records.EXPIRED)
        return True

    def _hand_over(self, consumer: Consumer, seq: int, now_ms: int) -> None:
        chunk = self.index.chunks[seq >> CHUNK_BITS]
        offset = seq & CHUNK_MASK
        stored = chunk.payloads[offset]
        if stored is None:
            stored = self.kernel.log.read(chunk.locations[offset], chunk.sizes[offset])
        enqueued_ms = chunk.enqueued[offset]
        delivery_count = self.counts.get(seq, 0) if self.counts else 0
        meter = self.owner.meter
        size = len(stored)
        meter.deliveries += 1
        meter.delivery_bytes += size
        if size > UNIT_BYTES:
            meter.delivery_extra_units += extra_units(size)
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
        lock = Lock(
            seq, (seq << 24) | (self._lock_number & 0xFFFFFF), until_ms, delivery_count, consumer,
            session, deferred,
        )  # fmt: skip
        self.index.set_state(seq, DEFERRED_LOCKED if deferred else LOCKED)
        self.locked[seq] = lock
        if session is not None:
            lock.locked_until_ms = session.locked_until_ms
        elif not self.timer_ms or until_ms < self.timer_ms:
            self.kernel.call_at(until_ms, self)
        return lock

    # --- settlement -------------------------------------------------------------------

    def lock_by_low(self, low: int) -> Lock:
        """Find a lock by the low half of its token."""
        lock = self.locked.get(low >> 24)
        if lock is None or lock.low != low:
            raise self.lock_lost(None)
        return lock

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
        del self.locked[lock.seq]
        self.remove(lock.seq, records.COMPLETED)

    def abandon(self, lock: Lock, now_ms: int, stored: bytes | None, delay_ms: int = 0) -> None:
        """Give a message back at once, or after a delay (R3, R4)."""
        self.check_lock(lock, now_ms)
        if stored is not None:
            self.replace(lock.seq, stored)
        if delay_ms > 0 and not lock.deferred:
            del self.locked[lock.seq]
            self._note_attempt(lock.seq, lock.delivery_count + 1, ACTIVE)
            heappush(self.delayed, (now_ms + delay_ms, lock.seq))
            self.kernel.call_at(now_ms + delay_ms, self)
        else:
            self._give_back(lock, lock.delivery_count + 1, now_ms)

    def release(self, lock: Lock, now_ms: int) -> None:
        """Give a message back as if it had never been delivered."""
        if self.locked.get(lock.seq) is lock:
            self._give_back(lock, lock.delivery_count, now_ms)

    def defer(self, lock: Lock, now_ms: int, stored: bytes | None) -> None:
        self.check_lock(lock, now_ms)
        if stored is not None:
            self.replace(lock.seq, stored)
        del self.locked[lock.seq]
        self._note_attempt(lock.seq, lock.delivery_count + 1, DEFERRED)
        self.index.set_state(lock.seq, DEFERRED)

    def unlock_for_move(self, lock: Lock, now_ms: int) -> None:
        """Let go of a locked message that is about to leave for another stream."""
        self.check_lock(lock, now_ms)
        del self.locked[lock.seq]

    def renew(self, lock: Lock, now_ms: int) -> int:
        """Prolong a lock by LockDuration (R6); give its new end."""
        self.check_lock(lock, now_ms)
        if lock.session is None:
            lock.locked_until_ms = now_ms + self.lock_duration_ms
            # Taken out and put back, so that the order stays the order of expiry.
            del self.locked[lock.seq]
            self.locked[lock.seq] = lock
        return lock.locked_until_ms

    def _note_attempt(self, seq: int, delivery_count: int, state: int) -> None:
        self.counts[seq] = delivery_count
        self.kernel.log.append(records.changed(self.number, seq, state, delivery_count))

    def _give_back(self, lock: Lock, delivery_count: int, now_ms: int) -> None:
        """Return a locked message to its own place, or bury it at its limit (R3, D3)."""
        seq = lock.seq
        del self.locked[seq]
        if lock.deferred:
            self.index.set_state(seq, DEFERRED)
            if delivery_count != lock.delivery_count:
                self._note_attempt(seq, delivery_count, DEFERRED)
            return
        if self.is_main and delivery_count >= self.max_delivery_count:
            self.owner.dead_letter(
                self, seq, "MaxDeliveryCountExceeded",
                f"Message could not be consumed after {delivery_count} delivery attempts.",
                delivery_count, now_ms,
            )  # fmt: skip
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
                self.restless[session.id] = session
        elif seq < self.cursor:
            self.cursor = seq
        self.kernel.wake(self)

    def drop_locks(self, now_ms: int) -> None:
        """Every lock is void, as after a change to the entity (R7)."""
        for lock in list(self.locked.values()):
            self._give_back(lock, lock.delivery_count, now_ms)

    # --- deferred, scheduled, browsing ------------------------------------------------

    def fetch_deferred(
        self, seqs: list[int], session: Session | None, consumer: Consumer | None, now_ms: int
    ) -> list[Lock]:
        """Lock deferred messages by number, all or none (E5)."""
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

    def check_deferred(self, seq: int) -> None:
        if seq > self.durable_seq or self.index.state(seq) != DEFERRED:
            raise BusError(
                errors.MESSAGE_NOT_FOUND,
                f"There is no deferred message with sequence number {seq} in '{self.path}'.",
            )

    def undefer(self, seq: int) -> None:
        """Make a deferred message active again, in its own place."""
        self._note_attempt(seq, self.counts.get(seq, 0), ACTIVE)
        self.make_available(seq)

    def cancel(self, seqs: list[int]) -> None:
        """Cancel scheduled messages, all or none (E5)."""
        for seq in seqs:
            if self.index.state(seq) != SCHEDULED:
                raise BusError(
                    errors.MESSAGE_NOT_FOUND,
                    f"There is no scheduled message with sequence number {seq} in '{self.path}'.",
                )
        for seq in seqs:
            self.remove(seq, records.CANCELLED)

    def browse(
        self, from_seq: int, count_max: int, session_id: str | None, states: bytes
    ) -> list[int]:
        """List messages without locking them, from a sequence number on (E5)."""
        found: list[int] = []
        seq = self.index.next_present(max(from_seq, 1))
        while seq and len(found) < count_max and seq <= self.durable_seq:
            if self.index.state(seq) in states and (
                session_id is None or self.session_id(seq) == session_id
            ):
                found.append(seq)
            seq = self.index.next_present(seq + 1)
        return found

    def count_state(self, state: int) -> int:
        return sum(chunk.states.count(state) for chunk in self.index.chunks.values())

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
            self._lose_session(session, now_ms)
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
        self.restless[session.id] = session
        self.kernel.call_at(until_ms, self)

    def check_session(self, session_id: str, now_ms: int) -> Session:
        """Give a session that is held; refuse one that is not."""
        table = self.sessions
        session = table.sessions.get(session_id) if table is not None else None
        if session is None or session.holder is None or now_ms >= session.locked_until_ms:
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
        session.state_location = self.kernel.log.append(record)
        session.state = state
        session.state_set_ms = now_ms

    def release_session(self, consumer: Consumer, now_ms: int, lost: bool) -> None:
        """Free a session; what its holder had not settled is available at once.

        A lost lock counts as a failed delivery, a receiver that leaves does not.
        """
        session = consumer.session
        table = self.sessions
        consumer.session = None
        if session is None or table is None or session.holder is not consumer:
            return
        for lock in [held for held in self.locked.values() if held.session is session]:
            self._give_back(lock, lock.delivery_count + (1 if lost else 0), now_ms)
        table.release(session)
        self.kernel.wake(self)

    def _lose_session(self, session: Session, now_ms: int) -> None:
        consumer = session.holder
        assert isinstance(consumer, Consumer)
        self.release_session(consumer, now_ms, lost=True)
        self.locks_lost_total += 1
        consumer.session_lost()

    def _dispatch_sessions(self, now_ms: int) -> None:
        table = self.sessions
        assert table is not None
        if self.seekers and table.free:
            self._seat_seekers(table, now_ms)
        restless = self.restless
        self.restless = {}
        for session in restless.values():
            consumer = session.holder
            if isinstance(consumer, Consumer):
                self._serve_session(session, consumer, now_ms)

    def _seat_seekers(self, table: SessionTable, now_ms: int) -> None:
        for session in list(table.free.values()):
            if not self.seekers:
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
            if seq == 0 or seq > self.durable_seq:
                return 0
            if self.index.state(seq) == ACTIVE and not self._expire_if_due(seq, now_ms):
                return seq
            # Settled or moved while it waited: what is left in the heap is stale.
            session.pop()

    def _serve_session(self, session: Session, consumer: Consumer, now_ms: int) -> None:
        while consumer.can_take():
            seq = self._first_of(session, now_ms)
            if seq == 0:
                if session.waiting:
                    self.restless[session.id] = session
                return
            session.pop()
            self._hand_over(consumer, seq, now_ms)

    def close(self) -> None:
        """The entity is deleted: forget everything."""
        kernel = self.kernel
        for chunk in self.index.chunks.values():
            kernel.cached_bytes -= sum(len(p) for p in chunk.payloads if p is not None)
        kernel.live_bytes -= self.index.bytes
        self.owner.bytes_used -= self.index.bytes
        self.index = Index()
        self.locked = {}
        self.counts = {}
        self.scheduled = []
        self.due = {}
        self.delayed = []
        self.line.clear()
        self.restless = {}
        self.seekers = {}
        self.attached = {}
        self.receivers = 0
        self.timer_ms = 0
        self._run_count = 0
        if self.sessions is not None:
            self.sessions = SessionTable()

    # --- timers -----------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> None:
        if self.sessions is None:
            self._expire_locks(now_ms)
        else:
            self._expire_sessions(now_ms)
        while self.delayed and self.delayed[0][0] <= now_ms:
            seq = heappop(self.delayed)[1]
            if self.index.state(seq) == LOCKED and seq not in self.locked:
                self.make_available(seq)
        while self.scheduled and self.scheduled[0][0] <= now_ms:
            due_ms, seq = heappop(self.scheduled)
            if self.due.get(seq) == due_ms:
                self.owner.activate(self, seq, now_ms)
        if self.receivers:
            for seq in self.index.expired(now_ms):
                if seq <= self.durable_seq:
                    self._expire_if_due(seq, now_ms)
        self._set_timer(now_ms)

    def _expire_locks(self, now_ms: int) -> None:
        expired: list[Lock] = []
        for lock in self.locked.values():
            if lock.locked_until_ms > now_ms:
                break
            expired.append(lock)
        for lock in expired:
            self.locks_lost_total += 1
            self._give_back(lock, lock.delivery_count + 1, now_ms)

    def _expire_sessions(self, now_ms: int) -> None:
        table = self.sessions
        assert table is not None
        for session in list(table.held.values()):
            if session.locked_until_ms > now_ms:
                break
            self._lose_session(session, now_ms)
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
        if self.scheduled:
            earliest = min(earliest, self.scheduled[0][0])
        if self.receivers:
            earliest = min(earliest, self.index.expires_min)
        if earliest != NEVER:
            self.kernel.call_at(max(earliest, now_ms + 1), self)

    # --- replay and compaction --------------------------------------------------------

    def replay_placed(self, placed: records.Placed) -> None:
        if placed.seq >= self.next_seq:
            self.next_seq = placed.seq + 1
        known = self.index.state(placed.seq) != GONE
        self.index.put(
            placed.seq, placed.state, placed.payload_location, placed.size, placed.enqueued_ms,
            placed.expires_ms, None,
        )  # fmt: skip
        if placed.delivery_count:
            self.counts[placed.seq] = placed.delivery_count
        if placed.state == SCHEDULED:
            self.due[placed.seq] = placed.due_ms
        if placed.session_id is not None and self.sessions is not None and not known:
            self.sessions.add(placed.seq, placed.session_id)

    def replay_changed(self, seq: int, state: int, delivery_count: int) -> None:
        if self.index.state(seq) != GONE:
            self.index.set_state(seq, state)
            if delivery_count:
                self.counts[seq] = delivery_count

    def replay_removed(self, first: int, count: int) -> None:
        for seq in range(first, first + count):
            self.index.remove(seq)
            self.counts.pop(seq, None)
            self.due.pop(seq, None)
            if self.sessions is not None:
                self.sessions.remove(seq)
        if first + count > self.next_seq:
            self.next_seq = first + count

    def replayed(self, segment: int) -> None:
        """The journal is read to its end: everything in it is durable, nothing is locked."""
        self.durable_seq = self.next_seq - 1
        self.sequence_segment = segment
        self.kernel.live_bytes += self.index.bytes
        for seq, due_ms in self.due.items():
            heappush(self.scheduled, (due_ms, seq))
        if self.scheduled:
            self.kernel.call_at(self.scheduled[0][0], self)
        if self.sessions is not None:
            for seq, session in self.sessions.of_message.items():
                if self.index.state(seq) == ACTIVE:
                    self.sessions.offer(session, seq)

    def carry(self, seq: int, shared: dict[int, int]) -> int:
        """Write a live message anew at the journal's end; give the bytes written.

        `shared` tells where payloads that several messages share have gone.
        """
        state = self.index.state(seq)
        kept = ACTIVE if state == LOCKED else DEFERRED if state == DEFERRED_LOCKED else state
        old = self.location(seq)
        moved = shared.get(old, 0)
        session_id = self.session_id(seq)
        session = b"" if session_id is None else session_id.encode()
        stored = b"" if moved else self.stored(seq)
        chunk = self.index.chunk(seq)
        assert chunk is not None
        size = chunk.sizes[seq & CHUNK_MASK]
        head = PLACED_HEAD.pack(
            PLACED, self.number, seq, self.enqueued_ms(seq), self.expires_ms(seq), kept,
            self.counts.get(seq, 0), self.due.get(seq, 0), moved, size,
            NO_SESSION if session_id is None else len(session),
        ) + session  # fmt: skip
        location = self.kernel.log.append_carried(head, stored)
        if not moved:
            moved = shared[old] = location + len(head)
        chunk.locations[seq & CHUNK_MASK] = moved
        if moved < chunk.location_min:
            chunk.location_min = moved
        return len(head) + len(stored)
