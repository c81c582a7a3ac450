"""The append-only store of opaque records: the one truth of the broker.

Records go in through `append`; they are durable, all of a batch or none, when `commit` says so;
after a restart `replay` gives them back in order. Every fact takes the next LSN. A location,
known at once, finds a record again without its staying in memory.

The journal does not know what a record means, owns no timer and no event loop, and acknowledges
nothing before the disk has. All methods belong to one thread, the caller's; the disk's work is
done on another, and comes back through `notify`.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from .batch import CARRIED, HEADER_BYTES, OFFSET_MASK, WORD_BYTES, pack_word
from .disk import Disk, RealDisk
from .errors import JournalDamaged, JournalFailed
from .readback import ReadBack
from .recovery import Visit, recover
from .worker import Worker
from .writer import SealedBatch, Writer

SEGMENT_BYTES = 64 << 20
# How often a full disk is asked again whether it has room.
_RETRY_S = 1.0

Done = Callable[[Exception | None], None]
Notify = Callable[[Callable[[], None]], object]


class Journal:
    """One directory of segments, held by this process."""

    # The pending batch: its records' parts (length word, head, body), where it starts, where the
    # next record's length word goes. Set by replay; an append before that has nowhere to go.
    _parts: list[bytes]
    _start: int
    _next: int

    def __init__(
        self, directory: Path, disk: Disk, segment_bytes: int, notify: Notify | None, lock: int
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._notify = notify
        self._lock: int | None = lock
        self._writer = Writer(disk, directory, segment_bytes)
        self._worker = Worker(has_thread=notify is not None)
        self._readback = ReadBack(disk, directory)
        self._given_up: Exception | None = None
        self._carried = 0
        self._first_lsn = 1
        self._in_flight: tuple[SealedBatch, Done] | None = None
        self._written: deque[Exception | None] = deque()
        self._is_ready = False
        self._is_marked = False
        self._time_ms = 0
        self._asked_for_room_s = 0.0

    @staticmethod
    def open(
        directory: Path,
        *,
        disk: Disk | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        notify: Notify | None = None,
    ) -> Journal:
        """Take hold of `directory`, made if it is not there; `replay` must follow.

        `notify` hands a callable to the caller's thread, as an event loop's
        call_soon_threadsafe does. Without it there is no other thread: a commit is durable, and
        its `done` called, before it returns.
        """
        disk = RealDisk() if disk is None else disk
        disk.make_directory(directory)
        lock = disk.lock(directory / "lock")
        return Journal(directory, disk, segment_bytes, notify, lock)

    def replay(self, visit: Visit) -> None:
        """Visit every record (LSN, location, time in ms, bytes), then be ready to append.

        Carried records come with LSN 0. Called once, after `open`.
        """
        found = recover(self._disk, self._directory, self._readback, visit)
        self._first_lsn = found.next_lsn
        self._time_ms = found.time_ms
        self._is_marked = found.is_marked
        self._writer.resume(found.location, found.crc, is_new=found.is_new)
        self._begin(found.location)
        self._is_ready = True

    def append(self, head: bytes, body: bytes = b"") -> int:
        """Add a fact, head and body together; return its location."""
        length = len(head) + len(body)
        location = self._next + WORD_BYTES
        self._parts += (pack_word(length), head, body)
        self._next = location + length
        return location

    def append_carried(self, head: bytes, body: bytes = b"") -> int:
        """Add a copy of a record that is still needed; it takes no LSN. Return its location."""
        length = len(head) + len(body)
        location = self._next + WORD_BYTES
        self._parts += (pack_word(length | CARRIED), head, body)
        self._next = location + length
        self._carried += 1
        return location

    @property
    def next_lsn(self) -> int:
        """The LSN that the next fact will take."""
        return self._first_lsn + self.pending_count - self._carried

    @property
    def pending_count(self) -> int:
        """Records appended and not yet committed."""
        return len(self._parts) // 3

    @property
    def pending_bytes(self) -> int:
        """What those records will take on disk."""
        return self._next - self._start - HEADER_BYTES

    @property
    def in_flight(self) -> bool:
        """Whether a commit is under way."""
        return self._in_flight is not None

    @property
    def failed(self) -> Exception | None:
        """The error after which nothing is accepted any more."""
        return self._writer.failed or self._given_up

    @property
    def current_segment(self) -> int:
        """The segment that the pending batch goes to."""
        return self._start >> 32

    def commit(self, time_ms: int, done: Done) -> None:
        """Make everything pending durable as one batch, then call `done`, with the error if any.

        Not while a commit is in flight: what is appended meanwhile gathers for the next one.
        """
        if self._in_flight is not None:
            raise RuntimeError("a commit is in flight")
        self._refuse_if_failed()
        if not self._parts:
            done(None)
            return
        batch = self._seal(time_ms)
        self._in_flight = batch, done
        self._worker.submit(partial(self._write, batch))

    def commit_now(self, time_ms: int) -> None:
        """Make everything pending durable before returning: for start-up, shutdown and tests."""
        self._await_flight()
        self.commit(time_ms, lambda error: None)
        self._await_flight()
        self._refuse_if_failed()

    def read(self, location: int, length: int) -> bytes:
        """Return `length` bytes from `location`, all in one record; on disk they are verified.

        What cannot be read fails the journal: whoever asked may be in the middle of a change,
        and half of it must not be committed.
        """
        if length == 0:
            return b""
        if location >= self._start:
            return _read_parts(self._parts, self._start, location, length)
        if self._in_flight is not None:
            batch = self._in_flight[0]
            if location >= batch.location:
                return _read_parts(batch.parts, batch.location, location, length)
        try:
            return self._readback.read(location, length)
        except (OSError, JournalDamaged) as error:
            self.give_up(error)
            raise JournalFailed(f"segment {location >> 32} cannot be read: {error}") from error

    def give_up(self, error: Exception) -> None:
        """Accept nothing any more, as after a failed write; what is pending is never committed."""
        self._given_up = error

    def segments(self) -> list[tuple[int, int]]:
        """Return each segment's number and the bytes of its batches, oldest first."""
        return self._readback.sizes()

    def last_lsn(self, segment: int) -> int:
        """Return the last LSN in a segment or, where it has only copies, the one before it."""
        return self._readback.last_lsn(segment)

    def drop_before(self, segment: int) -> None:
        """Give up the segments older than `segment`, whose live records have been carried.

        Only ever the oldest ones, so that a record outlives whatever it makes void. The newest
        batch stays in any case: it is what the LSNs go on from. After a crash a segment may
        turn up again.
        """
        self._refuse_if_failed()
        sizes = self._readback.sizes()
        if not sizes:
            return
        segment = min(segment, sizes[-1][0])
        self._readback.forget_before(segment)
        self._worker.submit(partial(self._writer.drop_before, segment))

    def has_reserve(self) -> bool:
        """Tell whether a whole segment is in reserve, beyond the one being written.

        Without it nothing new should be taken in: what is left is for what makes room.
        """
        is_short = self._writer.room.is_short
        if is_short:
            self._ask_for_room()
        return not is_short

    def space_left(self) -> int:
        """Return how many bytes can surely still be written, beyond what is pending."""
        room = self._writer.room
        unwritten = self._next - self._start
        if self._in_flight is not None:
            unwritten += self._in_flight[0].length
        return max(0, room.left_bytes - unwritten)

    def close(self) -> None:
        """Finish what is in flight, mark the end, let the directory go.

        What is pending was never acknowledged and is given up.
        """
        if self._lock is None:
            return
        self._await_flight()
        if self._is_ready and not self._is_marked:
            self._worker.submit(partial(self._writer.write, self._closing_mark()))
        self._worker.stop()
        self._writer.close()
        self._disk.close(self._lock)
        self._lock = None

    def _begin(self, location: int) -> None:
        """Begin the next batch at `location`, or in the next segment if this one is full.

        Decided here and not when the batch is sealed, because its records' locations are given
        out before that. So a segment may exceed its nominal size by one batch.
        """
        if location & OFFSET_MASK >= self._segment_bytes:
            location = ((location >> 32) + 1) << 32
        self._parts = []
        self._carried = 0
        self._start = location
        self._next = location + HEADER_BYTES

    def _seal(self, time_ms: int) -> SealedBatch:
        """Close the pending batch and begin the next one behind it."""
        length = self._next - self._start
        count = self.pending_count
        batch = SealedBatch(
            self._start, length, self._first_lsn, count - self._carried, count, time_ms, self._parts
        )
        self._first_lsn += batch.lsn_count
        self._readback.add(batch.location, length, self._first_lsn)
        self._time_ms = time_ms
        self._is_marked = False
        self._begin(batch.location + length)
        return batch

    def _closing_mark(self) -> SealedBatch:
        """Return the empty batch that tells a whole journal from one cut short."""
        return SealedBatch(self._start, HEADER_BYTES, self._first_lsn, 0, 0, self._time_ms, ())

    def _write(self, batch: SealedBatch) -> None:
        """Run on the worker's thread: write, and say so on the caller's."""
        self._writer.write(batch)
        self._written.append(self._writer.failed)
        if self._notify is None:
            self._deliver()
            return
        # An event loop that is already closed refuses; `close` then delivers.
        with contextlib.suppress(RuntimeError):
            self._notify(self._deliver)

    def _deliver(self) -> None:
        """Run on the caller's thread: tell who waits for a batch that it is written."""
        while self._written:
            error = self._written.popleft()
            assert self._in_flight is not None
            done = self._in_flight[1]
            self._in_flight = None
            done(error)

    def _await_flight(self) -> None:
        """Wait for what is in flight, and for what its `done` commits in turn."""
        while self._in_flight is not None:
            self._worker.drain()
            self._deliver()

    def _refuse_if_failed(self) -> None:
        if self.failed is not None:
            raise JournalFailed(
                f"the journal in {self._directory} failed earlier: {self.failed}"
            ) from self.failed

    def _ask_for_room(self) -> None:
        """Let the worker try again to reserve a spare segment, but not all the time."""
        now_s = time.monotonic()
        if now_s - self._asked_for_room_s >= _RETRY_S:
            self._asked_for_room_s = now_s
            self._worker.submit(self._writer.prepare)


def _read_parts(parts: Sequence[bytes], start: int, location: int, length: int) -> bytes:
    """Find a record that is still in memory; `parts` is the batch that starts at `start`."""
    position = start + HEADER_BYTES
    for index in range(1, len(parts), 3):
        head, body = parts[index], parts[index + 1]
        position += WORD_BYTES
        size = len(head) + len(body)
        if position <= location < position + size:
            return (head + body)[location - position : location - position + length]
        position += size
    raise LookupError(f"no record at offset {location & OFFSET_MASK} of segment {location >> 32}")
