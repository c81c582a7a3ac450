"""Logs for the engine under test, with commits that can be cut short.

Records go in; a crash gives back those whose batch was written, whole batches only. One store
keeps them in plain lists, the other is the real journal on a disk in memory. Neither knows
what a record means.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from journal_disks import MemoryDisk

from twinbus.journal import Journal, read_segments

Visit = Callable[[int, int, int, bytes], None]
_BATCH_HEADER_BYTES = 16


class Store(Protocol):
    """What the engine appends to, and what the driver does to it."""

    #: Whether things may happen between the beginning and the end of a commit.
    overlaps: bool

    def append(self, head: bytes, body: bytes = b"") -> int: ...

    def append_carried(self, head: bytes, body: bytes = b"") -> int: ...

    def read(self, location: int, length: int) -> bytes: ...

    def replay(self, visit: Visit) -> None: ...

    def revisit(self, visit: Visit) -> None:
        """Show what is written once more, to somebody else."""

    def segments(self) -> list[int]: ...

    @property
    def current_segment(self) -> int: ...

    def begin_commit(self) -> None: ...

    def finish_commit(self) -> None: ...

    def drop_before(self, segment: int) -> None: ...

    def crash(self, *, keep_in_flight: bool, revive_dropped: bool) -> Store: ...


Record = tuple[int, bytes]


class ListStore:
    """Segments are lists of batches, a batch is a list of records."""

    overlaps = True

    def __init__(
        self, batches: list[list[Record]] | None = None, *, segment_bytes: int = 1500
    ) -> None:
        self.written = batches or []
        self.dropped: list[list[Record]] = []
        self.in_flight: list[Record] | None = None
        self.pending: list[Record] = []
        self._segment_bytes = segment_bytes
        end = 1 << 32
        if self.written:
            location, record = self.written[-1][-1]
            end = location + len(record)
        self._begin(end)

    def _begin(self, location: int) -> None:
        if location & 0xFFFFFFFF >= self._segment_bytes:
            location = ((location >> 32) + 1) << 32
        self.pending = []
        self._start = location
        self._next = location + _BATCH_HEADER_BYTES

    def append(self, head: bytes, body: bytes = b"") -> int:
        location = self._next
        self.pending.append((location, head + body))
        self._next = location + len(head) + len(body)
        return location

    append_carried = append

    def read(self, location: int, length: int) -> bytes:
        for batch in (self.pending, self.in_flight or [], *reversed(self.written)):
            if batch and batch[0][0] <= location <= batch[-1][0] + len(batch[-1][1]):
                start, record = batch[bisect_right(batch, (location + 1,)) - 1]
                assert location + length <= start + len(record)
                return record[location - start : location - start + length]
        raise LookupError(f"no record at {location:#x}")

    def replay(self, visit: Visit) -> None:
        for batch in self.written:
            for location, record in batch:
                visit(0, location, 0, record)

    revisit = replay

    def segments(self) -> list[int]:
        return sorted({batch[0][0] >> 32 for batch in self.written})

    @property
    def current_segment(self) -> int:
        return self._start >> 32

    def begin_commit(self) -> None:
        assert self.in_flight is None
        if self.pending:
            self.in_flight = self.pending
            self._begin(self._next)

    def finish_commit(self) -> None:
        if self.in_flight:
            self.written.append(self.in_flight)
        self.in_flight = None

    def drop_before(self, segment: int) -> None:
        old = [batch for batch in self.written[:-1] if batch[0][0] >> 32 < segment]
        self.dropped += old
        self.written = self.written[len(old) :]

    def crash(self, *, keep_in_flight: bool, revive_dropped: bool) -> ListStore:
        """What a new process finds; a dropped segment may turn up again."""
        if keep_in_flight:
            self.finish_commit()
        revived = self.dropped if revive_dropped else []
        return ListStore(revived + self.written, segment_bytes=self._segment_bytes)


class JournalStore:
    """The real journal, on a disk in memory and without a thread."""

    overlaps = False

    _DIRECTORY = Path("journal")

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.journal = Journal.open(self._DIRECTORY, disk=self.disk, segment_bytes=4096)
        self.append = self.journal.append
        self.append_carried = self.journal.append_carried
        self.read = self.journal.read
        self.drop_before = self.journal.drop_before
        self.replay = self.journal.replay

    def revisit(self, visit: Visit) -> None:
        for entry in read_segments(self._DIRECTORY, disk=self.disk):
            visit(*entry)

    def segments(self) -> list[int]:
        return [number for number, _ in self.journal.segments()]

    @property
    def current_segment(self) -> int:
        return self.journal.current_segment

    def begin_commit(self) -> None:
        """The batch is sealed where it is written: nothing else happens in between here."""

    def finish_commit(self) -> None:
        self.journal.commit_now(0)

    def crash(self, *, keep_in_flight: bool, revive_dropped: bool) -> JournalStore:
        self.disk.kill_holders()
        return JournalStore(self.disk)
