"""The bytes of a batch: how records become one checked unit, and back.

A batch is a header and its records, each a length word and its bytes. It is valid as a whole
or not at all: the checksum covers everything after itself. The header says where the batch was
written (a recycled file still holds batches of its former life, and a message may hold a copy
of a journal), which LSNs it gave out, and the checksum of the batch before it, so that a batch
lost, swapped or left over from another time breaks the chain even where it is sound in itself.

A location is a segment's number << 32 | an offset in its file.

What a later format must keep, so that a version which does not know it refuses it and does not
take it for a torn tail: the magic with a higher digit, then checksum, length, previous checksum
and location where they are, and what the checksum covers. The magic alone would not do: it may
stand in a message, and a recycled file has the bytes of old messages everywhere.

Pure functions over bytes; no file is touched here.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAGIC = b"TWJ1"
# magic, crc, length, previous crc, location, first LSN, LSN count, record count, time in ms
_HEADER = struct.Struct("<4sIIIQQIIQ")
HEADER_BYTES = _HEADER.size
# Later formats have even numbers: no single bit that turns makes one of them of this one.
_LATER_MAGIC = re.compile(rb"TWJ[2468]")
# magic, crc, length, previous crc, location
_LATER_HEADER = struct.Struct("<4sIIIQ")
_CHECKED_FROM = 8  # the checksum covers what follows it
_WORD = struct.Struct("<I")
WORD_BYTES = _WORD.size
pack_word = _WORD.pack

# The top bit of a record's length word: a copy made by compaction, which takes no LSN. In the
# word rather than in the header, so that copies and facts share a batch and become true together.
CARRIED = 1 << 31
RECORD_BYTES_MAX = CARRIED - 1
OFFSET_MASK = (1 << 32) - 1

Entry = tuple[int, int, int, bytes]
"""LSN (0 for a carried record), location, time in ms, record."""


class Batch(NamedTuple):
    """What a header says."""

    location: int
    length: int
    crc: int
    previous: int
    first_lsn: int
    lsn_count: int
    record_count: int
    time_ms: int

    @property
    def offset(self) -> int:
        return self.location & OFFSET_MASK

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def next_lsn(self) -> int:
        return self.first_lsn + self.lsn_count


def make_header(
    pieces: Sequence[bytes],
    *,
    location: int,
    length: int,
    previous: int,
    first_lsn: int,
    lsn_count: int,
    record_count: int,
    time_ms: int,
) -> tuple[bytes, int]:
    """Return the header that makes `pieces` a batch, and its checksum."""
    rest = _HEADER.pack(
        MAGIC, 0, length, previous, location, first_lsn, lsn_count, record_count, time_ms
    )[_CHECKED_FROM:]
    crc = zlib.crc32(rest)
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return MAGIC + _WORD.pack(crc) + rest, crc


def parse(data: bytes, offset: int, location: int) -> Batch | None:
    """Return the header at `offset` if it was written at `location`; nothing else is checked."""
    if offset + HEADER_BYTES > len(data) or not data.startswith(MAGIC, offset):
        return None
    _, crc, length, previous, written_at, first_lsn, lsns, records, time_ms = _HEADER.unpack_from(
        data, offset
    )
    if written_at != location or length < HEADER_BYTES:
        return None
    return Batch(location, length, crc, previous, first_lsn, lsns, records, time_ms)


def is_whole(data: bytes, offset: int, batch: Batch) -> bool:
    """Tell whether the bytes of the batch at `offset` are all there and as they were written."""
    return _is_whole(data, offset, batch.length, batch.crc)


def _is_whole(data: bytes, offset: int, length: int, crc: int) -> bool:
    end = offset + length
    if end > len(data):
        return False
    return zlib.crc32(memoryview(data)[offset + _CHECKED_FROM : end]) == crc


def entries(data: bytes, batch: Batch, start: int | None = None) -> Iterator[Entry]:
    """Yield the records of a whole batch that begins at `start` of `data`.

    Without `start`, `data` is the batch's segment.
    """
    lsn = batch.first_lsn
    time_ms = batch.time_ms
    if start is None:
        start = batch.offset
    position = start + HEADER_BYTES
    base = batch.location - start
    read_word = _WORD.unpack_from
    for _ in range(batch.record_count):
        (length,) = read_word(data, position)
        position += WORD_BYTES
        if length & CARRIED:
            length &= RECORD_BYTES_MAX
            yield 0, base + position, time_ms, data[position : position + length]
        else:
            yield lsn, base + position, time_ms, data[position : position + length]
            lsn += 1
        position += length


def find_later(data: bytes, start: int, segment: int, next_lsn: int) -> Batch | None:
    """Find a whole batch at or after `start` that was written when `next_lsn` was due, or later."""
    position = data.find(MAGIC, start)
    while position >= 0:
        batch = parse(data, position, segment << 32 | position)
        if batch is not None and batch.first_lsn >= next_lsn and is_whole(data, position, batch):
            return batch
        position = data.find(MAGIC, position + 1)
    return None


def find_newer(data: bytes, start: int, segment: int) -> int | None:
    """Find a whole batch of a later format at or after `start`; return its offset."""
    for found in _LATER_MAGIC.finditer(data, start):
        offset = found.start()
        if offset + _LATER_HEADER.size <= len(data):
            _, crc, length, _, written_at = _LATER_HEADER.unpack_from(data, offset)
            is_here = written_at == segment << 32 | offset and length >= _LATER_HEADER.size
            if is_here and _is_whole(data, offset, length, crc):
                return offset
    return None
