"""Journals for the tests of capture: written with the real writer, on a real disk."""

from __future__ import annotations

import json
from pathlib import Path

from twinbus.engine import records
from twinbus.engine.observations import HEARTBEAT, STARTED, observed
from twinbus.journal import Journal

DAY_MS = 86_400_000
# A day like any other, at noon.
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2
QUEUE = 1
STREAM = QUEUE << 2


class WrittenJournal:
    """A journal that a test writes; every commit is a batch one second after the one before."""

    def __init__(self, directory: Path, segment_bytes: int = 64 << 20) -> None:
        self.directory = directory
        self.journal = Journal.open(directory, segment_bytes=segment_bytes)
        self.journal.replay(lambda *_: None)
        self.now_ms = NOON_MS
        self.seq = 0

    def commit(self, *facts: bytes, carried: tuple[bytes, ...] = ()) -> None:
        for record in carried:
            self.journal.append_carried(record)
        for record in facts:
            self.journal.append(record)
        self.now_ms += 1000
        self.journal.commit_now(self.now_ms)

    def begin(self) -> None:
        """What every captured journal begins with."""
        self.commit(observed(STARTED, 0), queue_put())

    def place(self, count: int = 1, size: int = 40) -> None:
        """One batch with so many messages in the queue."""
        first = self.seq + 1
        self.seq += count
        self.commit(*(placed(seq, self.now_ms, size) for seq in range(first, self.seq + 1)))

    def heartbeat(self) -> None:
        self.commit(observed(HEARTBEAT, 0))

    @property
    def last_lsn(self) -> int:
        return self.journal.next_lsn - 1

    def close(self) -> None:
        self.journal.close()


def queue_put(number: int = QUEUE, name: str = "orders") -> bytes:
    body = json.dumps({"namespace": "shop", "description": {"name": name}}).encode()
    return records.entity_put(number, 1, body)


def placed(seq: int, enqueued_ms: int, size: int = 40, stream: int = STREAM) -> bytes:
    """A message with the id m-<seq> in its stored form, padded to `size`."""
    message_id = f"m-{seq}".encode()
    fields = b"\xa1" + bytes((len(message_id),)) + message_id
    properties = b"\x00\x53\x73\xc0" + bytes((len(fields) + 1, 1)) + fields
    stored = b"\xff\xff\xff\xff\x00\xff" + bytes(12) + properties
    body = bytes(max(0, size - len(stored) - 8))
    stored += b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body
    head = records.PLACED_HEAD.pack(
        records.PLACED, stream, seq, enqueued_ms, 0, 1, 0, 0, 0, len(stored), records.NO_SESSION
    )
    return head + stored
