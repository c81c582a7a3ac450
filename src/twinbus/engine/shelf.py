"""What is in a stream, and how it is written down: the half that receives nothing.

Messages are placed, changed and removed; each step that must survive a crash becomes a
record. After a restart the same records fill the shelf again.
"""

from heapq import heapify, heappush
from typing import Final

from mypy_extensions import mypyc_attr

from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.engine import records
from twinbus.engine.index import (
    ACTIVE,
    CHUNK_BITS,
    CHUNK_MASK,
    DEFERRED,
    DEFERRED_LOCKED,
    GONE,
    LOCKED,
    RESERVED,
    SCHEDULED,
    Chunk,
    Index,
)
from twinbus.engine.kernel import Kernel, Wakeable
from twinbus.engine.metering import Meter
from twinbus.engine.records import NO_SESSION, PLACED, PLACED_HEAD, PLACED_HEAD_SIZE
from twinbus.engine.reservations import Reservations
from twinbus.engine.sessions import SessionTable

# Cancelled messages that may wait among the scheduled ones until they would be due.
_STALE_MAX: Final = 1_000


@mypyc_attr(allow_interpreted_subclasses=True)
class Account:
    """What an entity keeps count of over all its streams."""

    def __init__(self) -> None:
        #: Payload bytes of all messages in its streams.
        self.bytes_used = 0
        self.meter = Meter()
        #: When it was last used; while receivers are attached it is in use (E3).
        self.accessed_ms = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Shelf(Wakeable):
    def __init__(self, kernel: Kernel, account: Account, number: int, path: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.account = account
        self.number = number
        self.path = path
        self.index = Index()
        self.next_seq = 1
        #: The last segment in which `next_seq` can be read off a record; 0 when not known.
        self.sequence_segment = 0
        self.durable_seq = 0
        #: Delivery counts other than 0.
        self.counts: dict[int, int] = {}
        self.scheduled: list[tuple[int, int]] = []
        self.due: dict[int, int] = {}
        self.sessions: SessionTable | None = None
        #: What is set aside for consumers; None until somebody asks for that.
        self.reservations: Reservations | None = None
        #: Messages elsewhere may use a payload that one here uses.
        self.is_sharing = False
        #: How many receivers are attached: without one nothing expires (D5).
        self.receivers = 0
        self._run_first = 0
        self._run_count = 0
        self._run_how = 0
        #: Where the run's messages were, while things are observed: no run goes beyond it.
        self._run_chunk: Chunk | None = None

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

        `shared` is the place in the journal of the same payload, written before and still live.
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
        if shared:
            self.is_sharing = True
            kernel.share(shared)
        else:
            kernel.live_bytes += size
        self.account.bytes_used += size
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

    def lend(self, seq: int) -> int:
        """Let other messages use the payload of one that is here; give its place."""
        self.is_sharing = True
        return self.location(seq)

    def hold(self, seq: int) -> int:
        """Keep the payload of a message that leaves, to be used where it goes; give its place.

        It is kept until the kernel is told to let go of it.
        """
        location = self.lend(seq)
        self.kernel.share(location)
        return location

    def session_id(self, seq: int) -> str | None:
        if self.sessions is None:
            return None
        session = self.sessions.of_message.get(seq)
        return None if session is None else session.id

    def replace(self, seq: int, stored: bytes) -> None:
        """Give a message another payload; all else stays."""
        if self.kernel.observer is not None:
            self.kernel.observer.note_deliveries()
        state = self.index.state(seq)
        kept = ACTIVE if state == LOCKED else DEFERRED if state == DEFERRED_LOCKED else state
        enqueued_ms = self.enqueued_ms(seq)
        expires_ms = self.expires_ms(seq)
        head = PLACED_HEAD.pack(
            PLACED, self.number, seq, enqueued_ms, expires_ms, kept | records.REPLACED,
            self.counts.get(seq, 0), self.due.get(seq, 0), 0, len(stored), NO_SESSION,
        )  # fmt: skip
        location = self._write_unlike(head, stored, self.session_id(seq), 0)
        self._forget_payload(seq)
        old = self.location(seq)
        before = self.index.bytes
        self.index.put(seq, state, location, len(stored), enqueued_ms, expires_ms, None)
        growth = self.index.bytes - before
        self.kernel.live_bytes += len(stored)
        self.kernel.let_go(old, len(stored) - growth)
        self.account.bytes_used += growth

    def _note_attempt(self, seq: int, delivery_count: int, state: int) -> None:
        self.counts[seq] = delivery_count
        self.kernel.log.append(records.changed(self.number, seq, state, delivery_count))

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
            first = self._run_first
            count = self._run_count
            head = records.settled(self.number, first, count, self._run_how)
            chunk = self._run_chunk
            observer = self.kernel.observer
            if chunk is None or observer is None:
                self.kernel.log.append(head)
            else:
                observer.note_deliveries()
                self.kernel.log.append(head, chunk.columns(first & CHUNK_MASK, count))
                self._run_chunk = None
            self._run_count = 0

    def remove(self, seq: int, how: int) -> None:
        """The message leaves the stream for good.

        Neighbours that leave in the same way share one record: a run is held back until
        the batch is sealed or the run breaks.
        """
        kernel = self.kernel
        index = self.index
        self._note_removed(seq, 1, how)
        location = self.location(seq) if self.is_sharing else 0
        before = index.bytes
        kernel.cached_bytes -= index.remove(seq)
        size = before - index.bytes
        if location:
            kernel.let_go(location, size)
        else:
            kernel.live_bytes -= size
        self.account.bytes_used -= size
        if self.counts:
            self.counts.pop(seq, None)
        if self.due:
            self.due.pop(seq, None)
        if self.sessions is not None:
            self.sessions.remove(seq)

    def remove_range(self, first: int, last: int, how: int) -> None:
        """Neighbours that are all there leave for good, a chunk at a time."""
        kernel = self.kernel
        index = self.index
        while first <= last:
            end = min(last, first | CHUNK_MASK)
            self._note_removed(first, end - first + 1, how)
            if self.is_sharing:
                self._let_go(
                    index.chunks[first >> CHUNK_BITS], first & CHUNK_MASK, end & CHUNK_MASK
                )
            before = index.bytes
            kernel.cached_bytes -= index.remove_run(first, end)
            size = before - index.bytes
            if not self.is_sharing:
                kernel.live_bytes -= size
            self.account.bytes_used -= size
            if self.counts:
                for seq in range(first, end + 1):
                    self.counts.pop(seq, None)
            if self.sessions is not None:
                for seq in range(first, end + 1):
                    self.sessions.remove(seq)
            first = end + 1

    def _let_go(self, chunk: Chunk, start: int, last: int) -> None:
        """Messages of a chunk are about to go, and may leave their payloads to others."""
        for location, size in chunk.places(start, last + 1):
            self.kernel.let_go(location, size)

    def _note_removed(self, first: int, count: int, how: int) -> None:
        """Neighbours of one chunk leave: a run goes on with them, or begins."""
        if (
            self._run_count
            and how == self._run_how
            and first == self._run_first + self._run_count
            and (self._run_chunk is None or first & CHUNK_MASK)
        ):
            self._run_count += count
            return
        if self._run_count:
            self.write_run()
        else:
            self.kernel.run_begun(self)
        if self.kernel.observer is not None:
            self._run_chunk = self.index.chunk(first)
        self._run_first = first
        self._run_count = count
        self._run_how = how

    def check_deferred(self, seq: int) -> None:
        if seq > self.durable_seq or self.index.state(seq) != DEFERRED:
            raise BusError(
                errors.MESSAGE_NOT_FOUND,
                f"There is no deferred message with sequence number {seq} in '{self.path}'.",
            )

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
        if len(self.scheduled) > 2 * len(self.due) + _STALE_MAX:
            # Most are cancelled, and may not be due for years.
            self.scheduled = [(due_ms, seq) for seq, due_ms in self.due.items()]
            heapify(self.scheduled)

    def close(self) -> None:
        """The entity is deleted: forget everything."""
        kernel = self.kernel
        for chunk in self.index.chunks.values():
            kernel.cached_bytes -= sum(len(p) for p in chunk.payloads if p is not None)
            if self.is_sharing:
                self._let_go(chunk, 0, len(chunk.states) - 1)
        if not self.is_sharing:
            kernel.live_bytes -= self.index.bytes
        self.account.bytes_used -= self.index.bytes
        self.index = Index()
        self.counts = {}
        self.scheduled = []
        self.due = {}
        self.reservations = None
        self.receivers = 0
        self.timer_ms = 0
        self._run_count = 0
        if self.sessions is not None:
            self.sessions = SessionTable()

    # --- looking ----------------------------------------------------------------------

    def browse(
        self, from_seq: int, count_max: int, session_id: str | None, states: bytes
    ) -> list[int]:
        """List messages without locking them, from a sequence number on (E5)."""
        if session_id is not None:
            return self._browse_session(from_seq, count_max, session_id, states)
        found: list[int] = []
        seq = self.index.next_present(max(from_seq, 1))
        while seq and len(found) < count_max and seq <= self.durable_seq:
            if self.index.state(seq) in states:
                found.append(seq)
            seq = self.index.next_present(seq + 1)
        return found

    def _browse_session(
        self, from_seq: int, count_max: int, session_id: str, states: bytes
    ) -> list[int]:
        """It ends with the session's last message: others may be many."""
        found: list[int] = []
        table = self.sessions
        session = None if table is None else table.sessions.get(session_id)
        if table is None or session is None:
            return found
        left = session.live
        seq = self.index.next_present(max(from_seq, 1))
        while seq and left and len(found) < count_max and seq <= self.durable_seq:
            if table.of_message.get(seq) is session:
                left -= 1
                if self.index.state(seq) in states:
                    found.append(seq)
            seq = self.index.next_present(seq + 1)
        return found

    def is_reserved(self) -> bool:
        """Tell whether something is set aside for a consumer."""
        table = self.reservations
        return table is not None and any(each.epochs for each in table.reservers.values())

    def count_state(self, state: int) -> int:
        return sum(chunk.states.count(state) for chunk in self.index.chunks.values())

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

    def replay_delivered(self, first: int, count: int, time_ms: int) -> None:
        for seq in range(first, first + count):
            if self.index.state(seq) != GONE:
                offset = seq & CHUNK_MASK
                self.index.chunks[seq >> CHUNK_BITS].note_delivered(offset, offset + 1, time_ms)

    def replay_reservation(self, record: bytes, location: int) -> None:
        if self.reservations is None:
            self.reservations = Reservations()
        self.reservations.replay(record, location)

    def count_payloads(self, users: dict[int, int]) -> None:
        """The journal is read to its end: count what it must keep for the messages here.

        `users` has the places of all payloads that several messages may use, and how many were
        found that do.
        """
        kernel = self.kernel
        if not users:
            kernel.live_bytes += self.index.bytes
            return
        for chunk in self.index.chunks.values():
            for location, size in chunk.places(0, len(chunk.states)):
                count = users.get(location, -1)
                if count >= 0:
                    users[location] = count + 1
                    self.is_sharing = True
                if count <= 0:
                    kernel.live_bytes += size

    def replayed(self) -> None:
        """The journal is read to its end: everything in it is durable, nothing is locked."""
        self.durable_seq = self.next_seq - 1
        for seq, due_ms in self.due.items():
            heappush(self.scheduled, (due_ms, seq))
        if self.scheduled:
            self.kernel.call_at(self.scheduled[0][0], self)
        if self.reservations is not None:
            self.reservations.set_aside(self.index, self.sessions)
        if self.sessions is not None:
            for seq, session in self.sessions.of_message.items():
                if self.index.state(seq) == ACTIVE:
                    self.sessions.offer(session, seq)

    def carry(self, seq: int, shared: dict[int, "Carried"]) -> int:
        """Write a live message anew at the journal's end; give the bytes written.

        `shared` tells, by the old places of payloads that several messages use, where those have
        gone.
        """
        kernel = self.kernel
        state = self.index.state(seq)
        kept = DEFERRED if state == DEFERRED_LOCKED else state
        if state in (LOCKED, RESERVED):
            kept = ACTIVE
        old = self.location(seq)
        last = shared.get(old)
        moved = last.location if last is not None and last.is_there() else 0
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
        location = kernel.log.append_carried(head, stored)
        if moved:
            kernel.share(moved)
        else:
            moved = location + len(head)
            kernel.live_bytes += size
        if old in kernel.sharers:
            shared[old] = Carried(self, seq, moved)
        else:
            shared.pop(old, None)
        kernel.let_go(old, size)
        chunk.locations[seq & CHUNK_MASK] = moved
        if moved < chunk.location_min:
            chunk.location_min = moved
        return len(head) + len(stored)


class Carried:
    """The last message that was carried with a payload that others use too."""

    def __init__(self, shelf: Shelf, seq: int, location: int) -> None:
        self.shelf = shelf
        self.seq = seq
        self.location = location

    def is_there(self) -> bool:
        """Tell whether it still uses the payload, so that this is live where it was carried to.

        Else it may be that nobody does there: the next one writes it again.
        """
        shelf = self.shelf
        return shelf.index.state(self.seq) != GONE and shelf.location(self.seq) == self.location
