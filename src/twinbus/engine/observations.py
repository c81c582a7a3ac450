"""What changed nothing but costs money or tells a story, as the journal keeps it.

Facts say how things are; observations say what happened: who sent, who received, which lock
ran out. They share the journal and its LSNs with the facts, packed per burst: neighbours
that were handed to the same client in one batch are one record. Replay takes from them only
when a message was first delivered.
"""

import sys
from array import array
from struct import Struct
from typing import Final

from twinbus.engine.records import OBSERVED

# What was observed. The numbers are in journals on disk: never reuse one.
SENT: Final = 1
PINGED: Final = 2
DELIVERED: Final = 3
RECEIVED_NOTHING: Final = 4
SETTLED: Final = 5
MANAGED: Final = 6
PEEKED: Final = 7
LOCK_RENEWED: Final = 8
LOCK_EXPIRED: Final = 9
DUPLICATE_DROPPED: Final = 10
FILTER_FAILED: Final = 11
PRESENT: Final = 12
HEARTBEAT: Final = 13
STARTED: Final = 14

# kind of record, what, stream, first sequence number (0: none), how many, delivery count,
# bytes, billable units, length of the client's name; then the name, then what is particular:
# DELIVERED has the size of each message (little-endian u32), PRESENT the runs of what is in
# the stream (first number u64, count u32), the others a text or nothing.
_OBSERVED: Final = Struct(">BBIQIIQIH")
_RUN: Final = Struct(">QI")


def observed(
    what: int, stream: int, first: int = 0, count: int = 1, delivery_count: int = 0,
    size: int = 0, units: int = 0, client: bytes = b"", rest: bytes = b"",
) -> bytes:  # fmt: skip
    """Write one observation down; `units` is what is charged for it (C1)."""
    head = _OBSERVED.pack(
        OBSERVED, what, stream, first, count, delivery_count, size, units, len(client)
    )
    return head + client + rest


def little_endian(values: "array[int]") -> bytes:
    """The bytes of an array as the journal keeps them, whatever the machine."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def packed_runs(runs: list[tuple[int, int]]) -> bytes:
    """The rest of PRESENT, from (first sequence number, count) of each run."""
    return b"".join([_RUN.pack(first, count) for first, count in runs])


class Observation:
    """One observation, read back."""

    def __init__(self, record: bytes) -> None:
        fields = _OBSERVED.unpack_from(record)
        self.what: int = fields[1]
        self.stream: int = fields[2]
        self.first: int = fields[3]
        self.count: int = fields[4]
        self.delivery_count: int = fields[5]
        self.bytes: int = fields[6]
        self.units: int = fields[7]
        start = _OBSERVED.size
        end: int = start + fields[8]
        self.client: str = record[start:end].decode()
        self.rest: bytes = record[end:]

    def runs(self) -> list[tuple[int, int]]:
        """Of PRESENT: (first sequence number, count) of each run of messages."""
        return [(first, count) for first, count in _RUN.iter_unpack(self.rest)]
