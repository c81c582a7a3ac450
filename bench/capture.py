"""Capture: how fast a journal becomes Parquet, and how much room that takes.

Enters: a number of messages. Leaves: rows a second, microseconds of CPU per row and megabytes
per million rows, for a journal as a busy broker writes it: each message is enqueued, delivered
and completed, and what clients asked for is tallied.
"""

from __future__ import annotations

import random
import tempfile
import time
import uuid
from array import array
from pathlib import Path

from bench.report import Budget
from tests.capture.journals import STREAM, WrittenJournal
from twinbus.capture.capturer import Capturer, Settings
from twinbus.capture.files import held, list_files
from twinbus.engine import observations, records
from twinbus.engine.observations import observed

BURST = 50
BODY = bytes(1024)
ROWS_PER_SECOND_MIN = 100_000
MEGABYTES_MAX = 40.0


def run(count: int) -> list[Budget]:
    with tempfile.TemporaryDirectory(prefix="bench-capture-") as directory:
        journal = WrittenJournal(Path(directory) / "journal")
        journal.begin()
        _fill(journal, count)
        journal.close()
        root = Path(directory) / "root"
        with held(root):
            capturer = Capturer(Settings(journal.directory, root, "bench"))
            began, cpu = time.perf_counter(), time.process_time()
            capturer.drain()
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            capturer.close()
        size = sum(file.path.stat().st_size for file in list_files(root))
    rows = count * 3
    rate, megabytes = rows / seconds, size / rows
    return [
        Budget("rows a second", rate, ROWS_PER_SECOND_MIN, rate > ROWS_PER_SECOND_MIN),
        Budget("µs of CPU per row", cpu / rows * 1e6, 10.0, cpu / rows < 10e-6),
        Budget("MB per million rows", megabytes, MEGABYTES_MAX, megabytes < MEGABYTES_MAX),
    ]


def _fill(journal: WrittenJournal, count: int) -> None:
    """Bursts of messages, as a pipelined client makes them."""
    dice = random.Random(1)
    client = b"bench"
    for first in range(1, count + 1, BURST):
        now_ms = journal.now_ms
        enqueued = [now_ms - dice.randrange(20) for _ in range(BURST)]
        sizes = array("I", [1100] * BURST)
        columns = array("q", enqueued).tobytes() + array("q", [now_ms] * BURST).tobytes()
        journal.commit(
            *(_placed(first + place, enqueued[place], dice) for place in range(BURST)),
            observed(observations.SENT, STREAM, 0, BURST, 0, 55_000, BURST, client),
            observed(
                observations.DELIVERED, STREAM, first, BURST, 0, 55_000, BURST, client,
                sizes.tobytes(),
            ),
            records.settled(STREAM, first, BURST, records.COMPLETED) + columns + sizes.tobytes(),
            observed(observations.SETTLED, STREAM, 0, BURST, 0, 0, BURST, client),
        )  # fmt: skip


def _placed(seq: int, enqueued_ms: int, dice: random.Random) -> bytes:
    message_id = str(uuid.UUID(int=dice.getrandbits(128))).encode()
    properties = b"\x00\x53\x73\xc0\x27\x01\xa1\x24" + message_id
    stored = (
        b"\xff\xff\xff\xff\x00\xff" + bytes(12) + properties + b"\x00\x53\x75\xb0\0\0\4\0" + BODY
    )
    head = records.PLACED_HEAD.pack(
        records.PLACED, STREAM, seq, enqueued_ms, 0, 1, 0, 0, 0, len(stored), records.NO_SESSION
    )
    return head + stored
