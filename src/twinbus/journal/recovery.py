"""Brings a directory back to the state that was acknowledged, and tells where to go on.

A held directory goes in; its records are visited; out comes the end of the journal. The only
thing changed on disk is the tail of the last segment, which nobody was told about.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .batch import OFFSET_MASK, Batch, entries
from .disk import Disk
from .readback import ReadBack
from .scan import Chain, segment_numbers, segment_path, walk

Visit = Callable[[int, int, int, bytes], None]


class Recovered(NamedTuple):
    """Where the journal ends, and what its last batch was."""

    location: int
    next_lsn: int
    crc: int
    time_ms: int
    is_new: bool
    is_marked: bool


def recover(disk: Disk, directory: Path, readback: ReadBack, visit: Visit) -> Recovered:
    """Visit every record of every whole batch, and cut off what follows the last one."""
    segments = segment_numbers(disk.names(directory))
    chain = Chain()
    last: Batch | None = None
    for data, batch in walk(disk, directory, segments, chain, is_live=False):
        readback.add(batch.location, batch.length, batch.next_lsn)
        for entry in entries(data, batch):
            visit(*entry)
        last = batch
    location = segments[-1] << 32 if segments else 1 << 32
    if last is not None:
        # An empty segment may follow: the one that the next batch was about to go to.
        location = max(location, last.location + last.length)
    if segments:
        _cut_tail(disk, directory, location, last)
    return Recovered(
        location,
        chain.next_lsn,
        chain.crc or 0,
        0 if last is None else last.time_ms,
        not segments,
        last is not None and last.record_count == 0,
    )


def _cut_tail(disk: Disk, directory: Path, location: int, last: Batch | None) -> None:
    """Remove what follows the last whole batch, and make that batch durable.

    Cutting the file, rather than writing over it, leaves no old byte that a shorter batch could
    bring back. The last batch is written once more because it may be whole in the page cache
    only: the process that wrote it may have been killed before the sync, or have died of a sync
    that failed, after which the kernel takes the page for clean and would not write it again.
    A batch in an older segment needs no such care: this segment came after its sync.
    """
    segment, end = location >> 32, location & OFFSET_MASK
    handle = disk.open(segment_path(directory, segment))
    try:
        disk.truncate(handle, end)
        if last is not None and end:
            disk.write(handle, [disk.read(handle, last.length, last.offset)], last.offset)
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.sync_directory(directory)
