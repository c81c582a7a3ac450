"""Follows a journal that another process writes, and gives out only what cannot vanish.

A directory and an LSN go in; durable batches come out, in order and without a hole, or an error.
Nothing is written, no lock is taken, and nothing is read twice but the last batch.

One batch is in flight at a time, and the next is written only when the one before it is durable.
So a batch is durable when another follows it, if only the empty mark of an orderly close. The
last batch may be whole in the page cache and still be lost in a power cut: it is held back.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, NoReturn

from .batch import HEADER_BYTES, OFFSET_MASK, Batch, is_whole, parse
from .disk import Disk, RealDisk
from .errors import JournalDamaged, JournalError
from .scan import segment_numbers, segment_path

# Large enough that a reader far behind spends its time on records, not on system calls.
READ_BYTES = 4 << 20


class JournalGap(JournalError):
    """Records that were asked for are no longer in the journal."""

    def __init__(self, directory: Path, first_lsn: int, last_lsn: int) -> None:
        self.first_lsn = first_lsn
        self.last_lsn = last_lsn
        super().__init__(
            f"LSNs {first_lsn} to {last_lsn} are missing: the journal in {directory} has dropped"
            " the segments that held them"
        )


class _DroppedError(Exception):
    """The segment being read is gone, and what follows it may be gone as well."""


class Found(NamedTuple):
    """A durable batch; its bytes are in `data` from `start` on."""

    data: bytes
    start: int
    batch: Batch


class Tail:
    """One reader's place in a journal."""

    def __init__(self, directory: Path, from_lsn: int, *, disk: Disk | None = None) -> None:
        """Begin at the batch that holds `from_lsn`; JournalGap says that it is gone.

        A journal that has not come as far is waited for.
        """
        self._disk = RealDisk() if disk is None else disk
        self._directory = directory
        self._handle: int | None = None
        self._segment = 0
        self._offset = 0
        # What the next batch must join on to; no checksum is known before the first batch.
        self._crc: int | None = None
        self.next_lsn = from_lsn

    def read(self) -> list[Found]:
        """Return the durable batches that follow, some megabytes of them; none for now if empty."""
        begun_at = self.next_lsn
        while self._handle is not None or self._begin():
            found: list[Found] = []
            try:
                # Each turn either reads something, moves to the next segment or finds the end.
                while not found and self._has_successor():
                    found = self._read_block()
            except _DroppedError:
                # What was left in it may have been compaction's copies, which have no LSN. The
                # next LSN is looked for as at the beginning: there, or it is a gap.
                self.close()
                self._crc = None
                self.next_lsn = begun_at
            else:
                return found
        return []

    def pending(self) -> Batch | None:
        """Return what is written after the durable batches that were read, if anything."""
        return None if self._handle is None else self._header(self._offset)

    def payload(self, location: int, length: int) -> bytes | None:
        """Return bytes of a record written before, None if its segment has been dropped."""
        segment = location >> 32
        try:
            handle = self._disk.open(segment_path(self._directory, segment))
        except FileNotFoundError:
            return None
        try:
            data = self._disk.read(handle, length, location & OFFSET_MASK)
        finally:
            self._disk.close(handle)
        # A dropped segment loses its name before its bytes are written over.
        return data if segment in self._segments() else None

    def close(self) -> None:
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None

    # --- where to begin ---------------------------------------------------------------

    def _segments(self) -> list[int]:
        try:
            return segment_numbers(self._disk.names(self._directory))
        except FileNotFoundError:
            return []

    def _begin(self) -> bool:
        """Open the segment that holds the LSN asked for; tell whether there is one."""
        oldest: Batch | None = None
        for segment in reversed(self._segments()):
            if not self._open(segment):
                break
            first = self._header(0)
            if first is not None:
                oldest = first
                if first.first_lsn <= self.next_lsn:
                    return True
        self.close()
        if oldest is not None:
            raise JournalGap(self._directory, self.next_lsn, oldest.first_lsn - 1)
        return False

    def _open(self, segment: int) -> bool:
        try:
            handle = self._disk.open(segment_path(self._directory, segment))
        except FileNotFoundError:
            return False
        self.close()
        self._handle = handle
        self._segment = segment
        self._offset = 0
        return True

    # --- going on ---------------------------------------------------------------------

    def _bytes(self, length: int, offset: int) -> bytes:
        assert self._handle is not None
        return self._disk.read(self._handle, length, offset)

    def _header(self, offset: int) -> Batch | None:
        """Return what is written as a header at `offset` of the segment, if anything."""
        return parse(self._bytes(HEADER_BYTES, offset), 0, self._segment << 32 | offset)

    def _has_successor(self) -> bool:
        """Tell whether the next batch is durable; go to the next segment where this one ends."""
        batch = self._header(self._offset)
        if batch is None:
            return self._next_segment()
        if self._header(batch.end) is not None:
            return True
        # The next batch may be the last of its segment.
        if self._first_of(self._segment + 1) is not None:
            return True
        self._check_dropped()
        return False

    def _next_segment(self) -> bool:
        following = self._first_of(self._segment + 1)
        if following is None:
            self._check_dropped()
            return False
        if self._header(self._offset) is not None:
            return True  # written since we looked
        self._check_joins(following)
        self._open(self._segment + 1)
        return self._has_successor()

    def _first_of(self, segment: int) -> Batch | None:
        try:
            handle = self._disk.open(segment_path(self._directory, segment))
        except FileNotFoundError:
            return None
        try:
            return parse(self._disk.read(handle, HEADER_BYTES, 0), 0, segment << 32)
        finally:
            self._disk.close(handle)

    def _read_block(self) -> list[Found]:
        """Return the durable batches of one block; the first is known to be durable."""
        data = self._bytes(READ_BYTES, self._offset)
        batch = parse(data, 0, self._segment << 32 | self._offset)
        if batch is not None and batch.length > READ_BYTES:
            data = self._bytes(batch.length + HEADER_BYTES, self._offset)
        found: list[Found] = []
        position = 0
        while batch is not None and is_whole(data, position, batch):
            following = parse(data, position + batch.length, self._segment << 32 | batch.end)
            if following is None and position:
                break  # the block's last batch: it is looked at again with what follows it
            self._check_joins(batch)
            self._crc = batch.crc
            if batch.next_lsn > self.next_lsn:
                self.next_lsn = batch.next_lsn
                found.append(Found(data, position, batch))
            position += batch.length
            batch = following
        if position == 0:
            self._refuse(self._offset, "a damaged batch")
        self._offset += position
        return found

    def _check_joins(self, batch: Batch) -> None:
        if self._crc is not None and batch.previous != self._crc:
            self._refuse(batch.offset, "a batch is missing before the one")

    def _refuse(self, offset: int, what: str) -> NoReturn:
        self._check_dropped()
        path = segment_path(self._directory, self._segment)
        raise JournalDamaged(path, offset, self.next_lsn, None, what)

    def _check_dropped(self) -> None:
        segments = self._segments()
        if segments and self._segment not in segments:
            raise _DroppedError


def oldest_lsn(directory: Path, *, disk: Disk | None = None) -> int:
    """Return the first LSN that a journal still has; 1 if it has nothing yet."""
    tail = Tail(directory, 0, disk=disk)
    try:
        tail.read()
    except JournalGap as gap:
        return gap.last_lsn + 1
    finally:
        tail.close()
    return 1


def reached_lsn(directory: Path, lsn: int, *, disk: Disk | None = None) -> int:
    """Return `lsn` if a journal has come that far, durable or not, and its last LSN otherwise."""
    tail = Tail(directory, lsn, disk=disk)
    try:
        if tail.read():
            return lsn
        last = tail.pending()
        return 0 if last is None else min(lsn, last.next_lsn - 1)
    finally:
        tail.close()


def last_batch(directory: Path, from_lsn: int, *, disk: Disk | None = None) -> Batch | None:
    """Return the last batch, durable or not, of those from `from_lsn` on."""
    tail = Tail(directory, from_lsn, disk=disk)
    last: Batch | None = None
    try:
        while found := tail.read():
            last = found[-1].batch
        return tail.pending() or last
    finally:
        tail.close()
