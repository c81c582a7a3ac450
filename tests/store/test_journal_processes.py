"""Real processes: one directory has one holder, and a killed one leaves what it acknowledged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from twinbus.journal import Journal, JournalLocked, read_segments

# Commits for ever, through the worker's thread, and says so after each acknowledgement.
BROKER = """
import sys
from pathlib import Path
from queue import SimpleQueue
from twinbus.journal import Journal

notified = SimpleQueue()
journal = Journal.open(Path(sys.argv[1]), segment_bytes=64 << 10, notify=notified.put)
journal.replay(lambda *_: None)
def acknowledged(error):
    assert error is None
    print(lsn, flush=True)
while True:
    for _ in range(7):
        lsn = journal.next_lsn
        journal.append(b"%d " % lsn, b"x" * 500)
    journal.commit(lsn, acknowledged)
    notified.get()()
    journal.drop_before(journal.current_segment - 3)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal"


@pytest.fixture
def broker(directory: Path) -> Iterator[subprocess.Popen[str]]:
    with start(directory) as process:
        yield process
        process.kill()


def start(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BROKER, str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def last_line(process: subprocess.Popen[str], lines: int) -> int:
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(lines)][-1]


def test_a_second_process_is_refused_and_told_who_holds_the_directory(
    broker: subprocess.Popen[str], directory: Path
) -> None:
    last_line(broker, 1)
    with pytest.raises(JournalLocked, match=rf"in use by another broker \(process {broker.pid}\)"):
        Journal.open(directory)


def test_s1_a_killed_process_leaves_all_that_it_acknowledged(directory: Path) -> None:
    for lines in (1, 40, 400):
        with start(directory) as process:
            acknowledged = last_line(process, lines)
            os.kill(process.pid, signal.SIGKILL)
            assert process.stdout is not None
            # What was printed before the kill, in whole lines.
            rest = process.stdout.read().rpartition("\n")[0].split()
            acknowledged = int(rest[-1]) if rest else acknowledged
        found: list[tuple[int, bytes]] = []
        journal = Journal.open(directory, segment_bytes=64 << 10)
        journal.replay(lambda lsn, _, __, record: found.append((lsn, record)))  # noqa: B023
        journal.close()
        assert found[-1][0] >= acknowledged
        assert found[-1][0] % 7 == 0
        first = found[0][0]
        assert found == [(lsn, b"%d " % lsn + b"x" * 500) for lsn in range(first, found[-1][0] + 1)]
    assert first > 1


def test_l1_a_reader_beside_a_busy_writer_sees_every_record_in_order(
    broker: subprocess.Popen[str], directory: Path
) -> None:
    """The writer rolls, drops and recycles meanwhile."""
    last_line(broker, 10)
    assert broker.stdout is not None
    pump = threading.Thread(target=broker.stdout.read)
    pump.start()
    seen = 0
    while seen < 3000:
        lsns = [lsn for lsn, *_ in read_segments(directory, seen + 1)]
        assert lsns == sorted(set(lsns))
        seen = max(lsns, default=seen)
    assert len(list(directory.glob("*.seg"))) < 10
    broker.kill()
    pump.join()
