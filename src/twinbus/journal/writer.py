"""Puts sealed batches on disk, one after the other, and keeps room for the next ones.

A sealed batch goes in; when `write` returns it is durable, or the writer has failed. Segments
are rolled, recycled and dropped here as well. It runs on the worker's thread; the caller's
thread reads only `room` and `failed`, each replaced as a whole.

Room is reserved before it is needed: a segment is allocated with some headroom beyond its
nominal size, for the batch that crosses it, and one spare segment is always kept ahead. So a
full disk shows as a spare that cannot be had, while there is still room, and not as a failed write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from .batch import OFFSET_MASK, RECORD_BYTES_MAX, make_header
from .disk import Disk
from .scan import segment_numbers, segment_path

SPARE_SUFFIX = ".spare"
# Dropped segments become spares: on ext4 a write of 4 KB and its sync took 80 µs over blocks once
# written, 120 µs over freshly allocated ones, 140 µs at the end of a growing file. More than two
# spares would only hold disk space.
SPARES_MAX = 2
# Below this a copy into one buffer is cheaper than more pieces; above, the copy would double
# the memory of a large message and hold the interpreter for long.
LARGE_PIECE_BYTES = 256 << 10


class SealedBatch(NamedTuple):
    """Records on their way to the disk; parts are length word, head and body of each."""

    location: int
    length: int
    first_lsn: int
    lsn_count: int
    record_count: int
    time_ms: int
    parts: Sequence[bytes]


class Room(NamedTuple):
    """What is reserved beyond the last batch written, and whether no spare segment is."""

    left_bytes: int
    is_short: bool


def gather(parts: Sequence[bytes], length: int) -> list[bytes]:
    """Join small neighbours; leave large parts as they are."""
    if length < LARGE_PIECE_BYTES * 4:
        return [b"".join(parts)]
    pieces: list[bytes] = []
    run: list[bytes] = []
    for part in parts:
        if len(part) < LARGE_PIECE_BYTES:
            run.append(part)
            continue
        pieces += (b"".join(run), part)
        run = []
    pieces.append(b"".join(run))
    return pieces


class Writer:
    """The segment being written and the spares behind it."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        # The headroom takes a batch begun just below the nominal size.
        self._allocated_bytes = segment_bytes + segment_bytes // 8
        self._handle = -1
        self._segment = 0
        self._position = 0  # the end of the last batch
        self._end = 0  # the end of what is allocated
        self._previous = 0
        self._spares: list[tuple[Path, int]] = []
        self.room = Room(0, True)
        self.failed: Exception | None = None

    def resume(self, location: int, previous: int, *, is_new: bool) -> None:
        """Go on at `location`, after the batch whose checksum is `previous`."""
        self._previous = previous
        self._adopt_spares()
        if is_new:
            self._roll(location >> 32)
        else:
            self._open(location >> 32)
            self._refill()
        self._position = location & OFFSET_MASK
        self.prepare()
        self._publish()

    def write(self, batch: SealedBatch) -> None:
        """Make `batch` durable, or fail for good.

        A failed sync is never tried again: the kernel may have marked the pages clean when it
        reported the error, so that a second sync would succeed without their ever reaching the
        disk. What of the batch is on disk is unknown until the next recovery reads it, so
        nothing may be written after it either.
        """
        if self.failed is not None:
            return
        try:
            self._write(batch)
        except Exception as error:
            self.failed = error

    def _write(self, batch: SealedBatch) -> None:
        segment, offset = batch.location >> 32, batch.location & OFFSET_MASK
        if segment != self._segment:
            self._roll(segment)
            self.prepare()
        # Also bounds every record, whose length word has one bit for something else.
        if batch.length > RECORD_BYTES_MAX:
            raise ValueError(f"a batch of {batch.length} bytes is too large")
        if offset + batch.length > self._end:
            self._extend(offset + batch.length)
        pieces = gather(batch.parts, batch.length)
        header, crc = make_header(
            pieces,
            location=batch.location,
            length=batch.length,
            previous=self._previous,
            first_lsn=batch.first_lsn,
            lsn_count=batch.lsn_count,
            record_count=batch.record_count,
            time_ms=batch.time_ms,
        )
        self._disk.write(self._handle, [header, *pieces], offset)
        self._disk.sync(self._handle)
        self._previous = crc
        self._position = offset + batch.length
        self._publish()

    def prepare(self) -> None:
        """Keep one spare segment ahead, if the disk has room for it."""
        if self._spares or self.failed is not None:
            return
        path = self._new_spare_path()
        try:
            handle = self._disk.open(path, create=True)
            try:
                self._disk.allocate(handle, self._allocated_bytes)
            finally:
                self._disk.close(handle)
        except OSError:
            # No room, for now. Whoever watches the room sees it in time; the error itself
            # comes back with the write that needs the blocks.
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
        else:
            self._spares.append((path, self._allocated_bytes))
            self._publish()

    def drop_before(self, segment: int) -> None:
        """Remove the segments older than `segment`, or keep them as spares."""
        if self.failed is not None:
            return
        try:
            for number in segment_numbers(self._disk.names(self._directory)):
                if number < segment:
                    self._drop(number)
        except Exception as error:
            self.failed = error
        self._publish()

    def close(self) -> None:
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1

    def _drop(self, number: int) -> None:
        path = segment_path(self._directory, number)
        if len(self._spares) < SPARES_MAX and (size := self._reusable_bytes(path)):
            spare = self._new_spare_path()
            self._disk.rename(path, spare)
            self._spares.append((spare, size))
        else:
            self._disk.unlink(path)
        # One at a time: a power cut that undid an older removal, but not a newer one, would
        # leave a hole, and a hole is damage.
        self._disk.sync_directory(self._directory)

    def _new_spare_path(self) -> Path:
        taken = {path for path, _ in self._spares}
        paths = (self._directory / f"{number}{SPARE_SUFFIX}" for number in count(1))
        return next(path for path in paths if path not in taken)

    def _adopt_spares(self) -> None:
        for name in sorted(self._disk.names(self._directory)):
            if not name.endswith(SPARE_SUFFIX):
                continue
            path = self._directory / name
            if len(self._spares) < SPARES_MAX and (size := self._reusable_bytes(path)):
                self._spares.append((path, size))
            else:
                self._disk.unlink(path)

    def _reusable_bytes(self, path: Path) -> int:
        """Return the size of a file that can be a spare, or 0 if it is too small or too large."""
        handle = self._disk.open(path)
        try:
            size = self._disk.size(handle)
        finally:
            self._disk.close(handle)
        return size if self._allocated_bytes <= size < 2 * self._allocated_bytes else 0

    def _roll(self, segment: int) -> None:
        path = segment_path(self._directory, segment)
        if not self._spares:
            self.prepare()
        if self._spares:
            self._disk.rename(self._spares.pop(0)[0], path)
        else:
            self._disk.close(self._disk.open(path, create=True))
        self._disk.sync_directory(self._directory)
        self._open(segment)

    def _open(self, segment: int) -> None:
        self.close()
        self._handle = self._disk.open(segment_path(self._directory, segment))
        self._segment = segment
        self._position = 0
        self._end = self._disk.size(self._handle)

    def _refill(self) -> None:
        """Reserve again what recovery cut off, if the disk has room for it."""
        with contextlib.suppress(OSError):
            self._disk.allocate(self._handle, self._allocated_bytes)
        self._end = self._disk.size(self._handle)

    def _extend(self, end: int) -> None:
        """Reserve blocks for a batch that goes beyond what its segment has.

        The spares stand in for them where the disk has no others.
        """
        while True:
            try:
                self._disk.allocate(self._handle, end)
                break
            except OSError:
                if not self._spares:
                    raise
                self._disk.unlink(self._spares.pop()[0])
        self._end = end

    def _publish(self) -> None:
        left = sum(size for _, size in self._spares)
        # Beyond its nominal size no batch is begun, though one may end there.
        left += max(0, min(self._end, self._segment_bytes) - self._position)
        self.room = Room(left, not self._spares)
