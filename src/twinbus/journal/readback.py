"""Finds a record on disk again, and hands it out only when its batch's checksum holds.

Where each sealed batch lies goes in; a location goes in; the record's bytes come out. It keeps
four bytes for each batch, and the batches read last, up to a bound.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path

from .batch import OFFSET_MASK, is_whole, parse
from .disk import Disk
from .errors import JournalDamaged
from .scan import segment_path

# Enough that readers of several queues in one stretch of the journal do not evict each other.
# The batch read last is kept whatever its size: a batch of 100 MB may hold small records, too.
CACHE_BYTES = 16 << 20


class ReadBack:
    """The batches on disk, by segment, and the last few of them in memory."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._starts: dict[int, array[int]] = {}
        self._ends: dict[int, int] = {}
        self._next_lsns: dict[int, int] = {}
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._cached_bytes = 0

    def add(self, location: int, length: int, next_lsn: int) -> None:
        """Take note of a batch; batches come in the order of their locations."""
        segment, offset = location >> 32, location & OFFSET_MASK
        starts = self._starts.get(segment)
        if starts is None:
            starts = self._starts[segment] = array("I")
        starts.append(offset)
        self._ends[segment] = offset + length
        self._next_lsns[segment] = next_lsn

    def sizes(self) -> list[tuple[int, int]]:
        """Return each segment's number and the bytes of its batches, oldest first."""
        return list(self._ends.items())

    def last_lsn(self, segment: int) -> int:
        """Return the last LSN that a segment holds, or one before it if it holds none."""
        return self._next_lsns[segment] - 1

    def forget_before(self, segment: int) -> None:
        for number in [number for number in self._ends if number < segment]:
            del self._starts[number], self._ends[number], self._next_lsns[number]
        for location in [location for location in self._cache if location >> 32 < segment]:
            self._cached_bytes -= len(self._cache.pop(location))

    def read(self, location: int, length: int) -> bytes:
        segment, offset = location >> 32, location & OFFSET_MASK
        starts = self._starts.get(segment)
        if starts is None or offset + length > self._ends[segment]:
            raise LookupError(f"no record at offset {offset} of segment {segment}")
        following = bisect_right(starts, offset)
        start = starts[following - 1]
        end = starts[following] if following < len(starts) else self._ends[segment]
        data = self._batch(segment, start, end)
        return data[offset - start : offset - start + length]

    def _batch(self, segment: int, start: int, end: int) -> bytes:
        key = segment << 32 | start
        data = self._cache.get(key)
        if data is not None:
            self._cache.move_to_end(key)
            return data
        data = self._load(segment, start, end)
        self._cache[key] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])
        return data

    def _load(self, segment: int, start: int, end: int) -> bytes:
        path = segment_path(self._directory, segment)
        handle = self._disk.open(path)
        try:
            data = self._disk.read(handle, end - start, start)
        finally:
            self._disk.close(handle)
        batch = parse(data, 0, segment << 32 | start)
        if batch is None or not is_whole(data, 0, batch):
            first = 0 if batch is None else batch.first_lsn
            raise JournalDamaged(path, start, first, None, "a batch that was sound earlier")
        return data
