"""Ids of duplicate detection on their way from the journal, before their entity is made (E7).

A journal may hold many millions of them, most of them too old to count. So they are kept packed,
and what has grown too old by then is dropped while the rest is still being read.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

# when, location, length of the id
_HEAD: Final = Struct("<qQI")


class RememberedIds:
    """The ids of one stream, in the order of the journal."""

    def __init__(self) -> None:
        self._packed = bytearray()

    def add(self, at_ms: int, message_id: bytes, location: int) -> None:
        self._packed += _HEAD.pack(at_ms, location, len(message_id)) + message_id

    def drop_until(self, until_ms: int) -> None:
        """Drop from the front what was seen at `until_ms` or before.

        Copies carried by compaction are older than what lies before them, and wait for it.
        """
        packed = self._packed
        at = 0
        while at < len(packed):
            at_ms, _, length = _HEAD.unpack_from(packed, at)
            if at_ms > until_ms:
                break
            at += _HEAD.size + length
        if at:
            del packed[:at]

    def __iter__(self) -> Iterator[tuple[int, bytes, int]]:
        """When each was seen, the id, where that is written."""
        packed = self._packed
        at = 0
        while at < len(packed):
            at_ms, location, length = _HEAD.unpack_from(packed, at)
            at += _HEAD.size
            yield at_ms, bytes(packed[at : at + length]), location
            at += length
