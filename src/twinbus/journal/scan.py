"""Walks segments from the oldest byte to the last whole batch, and judges how they end.

A directory goes in; whole batches come out, in order, or JournalDamaged, or JournalNewer. Nothing
is written.

What an ending means. One batch is in flight at a time, and the next is written only when the
one before it is durable. So a batch that is not whole is a torn tail, never acknowledged, only
if nothing follows it: no whole batch later in its segment, no later segment. Otherwise it is
damage. Two things cannot be told from a torn tail after a crash: damage to the very last
acknowledged batch, and the loss of the last segment as a whole. After an orderly close the last
batch is an empty closing mark, and only that mark is exposed. The loss of the oldest segments
looks like their being dropped.

A whole batch of a later format, in its place, was acknowledged by a later version. A torn write
of this version cannot leave one, and one of that version does not: what it leaves may be cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .batch import HEADER_BYTES, Batch, Entry, entries, find_later, find_newer, is_whole, parse
from .disk import Disk, RealDisk
from .errors import JournalDamaged, JournalNewer

SEGMENT_SUFFIX = ".seg"


@dataclass(slots=True)
class Chain:
    """What the next batch must join on to; a crc of None says that nothing is known yet."""

    crc: int | None = None
    next_lsn: int = 1


def segment_path(directory: Path, segment: int) -> Path:
    return directory / f"{segment:010}{SEGMENT_SUFFIX}"


def segment_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the segments among `names`, oldest first."""
    stems = (name.removesuffix(SEGMENT_SUFFIX) for name in names if name.endswith(SEGMENT_SUFFIX))
    return sorted(int(stem) for stem in stems if len(stem) == 10 and stem.isdecimal())


def walk(
    disk: Disk, directory: Path, segments: list[int], chain: Chain, *, is_live: bool
) -> Iterator[tuple[bytes, Batch]]:
    """Yield every whole batch with the bytes of its segment, and move `chain` along.

    In a live directory the writer may drop the oldest segments meanwhile, and the last one may
    be caught in the middle of a write; neither is damage there.
    """
    if segments[:1] == [1]:
        chain.crc = 0  # the first batch ever follows no other
    expected: int | None = None
    newer: JournalNewer | None = None
    for segment in segments:
        data = _read_segment(disk, directory, segment, is_live=is_live)
        if data is None:
            chain.crc = expected = None
            continue
        path = segment_path(directory, segment)
        if expected is not None and segment != expected:
            first = parse(data, 0, segment << 32)
            last_lsn = None if first is None else first.first_lsn - 1
            missing = segment_path(directory, expected)
            raise JournalDamaged(missing, 0, chain.next_lsn, last_lsn, "the segment is missing")
        offset = 0
        for batch in _scan(data, path, segment, chain):
            yield data, batch
            offset = batch.end
        is_last = segment == segments[-1]
        if not (is_live and is_last):
            found = _judge_end(data, path, segment, chain, offset, is_last=is_last)
            newer = newer or found
        expected = segment + 1
    # Not before the end: with a batch of this version behind it, it is a turned bit in the magic.
    if newer is not None:
        raise newer


def _read_segment(disk: Disk, directory: Path, segment: int, *, is_live: bool) -> bytes | None:
    """Return the bytes of a segment, or None if it was dropped before they were all read."""
    try:
        data = _read_file(disk, segment_path(directory, segment))
    except FileNotFoundError:
        if is_live:
            return None
        raise
    # A dropped segment loses its name before its bytes are written over: a name that is still
    # there vouches for what was read.
    if is_live and segment not in segment_numbers(disk.names(directory)):
        return None
    return data


def _read_file(disk: Disk, path: Path, length: int | None = None) -> bytes:
    handle = disk.open(path)
    try:
        return disk.read(handle, disk.size(handle) if length is None else length, 0)
    finally:
        disk.close(handle)


def _scan(data: bytes, path: Path, segment: int, chain: Chain) -> Iterator[Batch]:
    """Yield the whole batches from the start of one segment on."""
    offset = 0
    base = segment << 32
    while (batch := parse(data, offset, base | offset)) and is_whole(data, offset, batch):
        joins = batch.previous == chain.crc and batch.first_lsn == chain.next_lsn
        if not joins and chain.crc is not None:
            last_lsn = batch.first_lsn - 1 if batch.first_lsn > chain.next_lsn else None
            what = "a batch is missing before the one"
            raise JournalDamaged(path, offset, chain.next_lsn, last_lsn, what)
        chain.crc = batch.crc
        chain.next_lsn = batch.next_lsn
        yield batch
        offset = batch.end


def _judge_end(
    data: bytes, path: Path, segment: int, chain: Chain, offset: int, *, is_last: bool
) -> JournalNewer | None:
    """Raise JournalDamaged unless the segment may end at `offset`, or a later version went on."""
    # A header's length is not believed here: were it damaged, it would hide what follows it.
    later = find_later(data, offset + 1, segment, chain.next_lsn)
    if later is not None:
        last_lsn = max(later.first_lsn - 1, chain.next_lsn)
        raise JournalDamaged(path, offset, chain.next_lsn, last_lsn, "a damaged batch")
    newer = find_newer(data, offset, segment)
    if newer is not None:
        return JournalNewer(f"{path}: the batch at offset {newer}")
    # A later segment, or older ones dropped, say that this one held batches; a header in the
    # place of the next batch, with a later segment, that it was durable.
    began = offset > 0 or (is_last and chain.crc is not None)
    if not began or (not is_last and parse(data, offset, segment << 32 | offset)):
        raise JournalDamaged(path, offset, chain.next_lsn, None, "a damaged batch")
    return None


def read_segments(
    directory: Path, from_lsn: int = 0, *, disk: Disk | None = None
) -> Iterator[Entry]:
    """Yield the records from `from_lsn` on, up to the last whole batch, and change nothing.

    The directory may be in use: a batch still being written is not seen, but one that is whole
    and not yet durable is; who must not see it stops at the LSN that was acknowledged. Carried
    records come with LSN 0, if a fact in their batch is asked for. Records dropped are not
    there: the first LSN tells.
    """
    disk = RealDisk() if disk is None else disk
    segments = _segments_from(disk, directory, from_lsn)
    for data, batch in walk(disk, directory, segments, Chain(), is_live=True):
        if batch.next_lsn > from_lsn:
            for entry in entries(data, batch):
                if entry[0] == 0 or entry[0] >= from_lsn:
                    yield entry


def _segments_from(disk: Disk, directory: Path, from_lsn: int) -> list[int]:
    """Return the segments that can hold `from_lsn` or later ones; a look at the headers tells."""
    segments = segment_numbers(disk.names(directory))
    for index in reversed(range(len(segments))):
        try:
            data = _read_file(disk, segment_path(directory, segments[index]), HEADER_BYTES)
        except FileNotFoundError:
            return segments[index + 1 :]
        first = parse(data, 0, segments[index] << 32)
        if first is not None and first.first_lsn <= from_lsn:
            return segments[index:]
    return segments
