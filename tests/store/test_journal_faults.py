"""Disks that are full or failing: what was acknowledged stays, and the journal says what it is."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from journal_disks import MemoryDisk, Operation, WatchedDisk

from twinbus.journal import Disk, Journal, JournalFailed

DIRECTORY = Path("journal")
SEGMENT_BYTES = 4096


def open_journal(disk: Disk, directory: Path = DIRECTORY) -> tuple[Journal, list[bytes]]:
    found: list[bytes] = []
    journal = Journal.open(directory, disk=disk, segment_bytes=SEGMENT_BYTES)
    journal.replay(lambda lsn, _, __, record: found.append(record))
    return journal, found


def work(journal: Journal, acknowledged: list[bytes], rounds: int) -> None:
    for number in range(rounds):
        record = b"%d " % number * 100
        journal.append(record)
        journal.commit_now(number)
        acknowledged.append(record)
        if number == rounds // 2:
            journal.drop_before(3)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_s1_any_one_operation_may_fail_and_nothing_acknowledged_is_lost(error: int) -> None:
    calm = WatchedDisk(MemoryDisk())
    work(open_journal(calm)[0], [], rounds=60)
    assert len(calm.log) > 120
    for place in range(len(calm.log)):

        def refuse(now: int, operation: Operation, place: int = place) -> None:
            if now == place:
                raise OSError(error, f"{operation.kind} fails")

        memory = MemoryDisk()
        acknowledged: list[bytes] = []
        try:
            journal, _ = open_journal(WatchedDisk(memory, refuse=refuse))
            work(journal, acknowledged, rounds=60)
        except (JournalFailed, OSError):
            assert len(acknowledged) < 60
        memory.kill_holders()
        again, found = open_journal(memory)
        dropped = acknowledged.index(found[0]) if acknowledged else 0
        assert dropped == 0 or len(acknowledged) > 30
        # One more may be there: the batch whose fate was unknown.
        assert found[: len(acknowledged) - dropped] == acknowledged[dropped:]
        assert len(found) <= len(acknowledged) - dropped + 1
        again.append(b"goes on")
        again.commit_now(99)


def failing_sync(place: int, operation: Operation) -> None:
    if operation.kind == "sync":
        raise OSError(errno.EIO, "the medium is failing")


def test_after_a_failed_sync_everything_is_refused_and_nothing_tried_again() -> None:
    memory = MemoryDisk(capacity_bytes=2 * SEGMENT_BYTES)
    disk = WatchedDisk(memory)
    notified: SimpleQueue[object] = SimpleQueue()
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=SEGMENT_BYTES, notify=notified.put)
    journal.replay(lambda *_: None)
    journal.append(b"sound")
    journal.commit_now(1)
    disk.refuse = failing_sync
    journal.append(b"lost")
    answers: list[Exception | None] = []
    journal.commit(2, answers.append)
    journal.append(b"gathered meanwhile")
    with pytest.raises(JournalFailed, match="medium is failing"):
        journal.commit_now(3)
    assert isinstance(answers[0], OSError)
    assert journal.failed is answers[0]
    disk.refuse = lambda place, operation: None
    changes = len(disk.log)
    with pytest.raises(JournalFailed):
        journal.commit(4, answers.append)
    with pytest.raises(JournalFailed):
        journal.commit_now(4)
    with pytest.raises(JournalFailed):
        journal.drop_before(1)
    memory.capacity_bytes *= 2
    journal.has_reserve()
    journal.close()
    assert len(disk.log) == changes
    assert len(answers) == 1


def fill_until_short(journal: Journal) -> int:
    """Send while a whole segment is in reserve, as a broker does; return how often."""
    sent = 0
    while journal.has_reserve():
        journal.append(b"message " * 50)
        journal.commit_now(sent)
        sent += 1
    return sent


def test_a_full_disk_is_known_while_small_records_still_fit() -> None:
    """E11: sends are refused in time; settlements, and then a drop, still go through."""
    disk = MemoryDisk(capacity_bytes=6 * SEGMENT_BYTES)
    journal, _ = open_journal(disk)
    sent = fill_until_short(journal)
    assert sent > 30
    settled = 0
    while journal.space_left() > 200:
        journal.append(b"settled")
        journal.commit_now(sent + settled)
        settled += 1
    assert settled > 20
    assert journal.failed is None
    assert journal.next_lsn == sent + settled + 1

    journal.drop_before(journal.segments()[2][0])
    assert journal.has_reserve()
    assert fill_until_short(journal) > 5
    journal.close()
    again, found = open_journal(disk)
    assert again.next_lsn - 1 > len(found) > 0


def test_room_made_by_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("twinbus.journal.journal.time.monotonic", lambda: now_s[0])
    disk = MemoryDisk(capacity_bytes=6 * SEGMENT_BYTES)
    journal, _ = open_journal(disk)
    fill_until_short(journal)
    now_s[0] += 1
    assert not journal.has_reserve()
    disk.capacity_bytes *= 2
    assert not journal.has_reserve(), "it was asked for a moment ago"
    now_s[0] += 1
    journal.has_reserve()
    assert journal.has_reserve()


def test_a_batch_larger_than_its_segment_may_take_the_room_of_the_spare() -> None:
    disk = MemoryDisk(capacity_bytes=3 * SEGMENT_BYTES)
    journal, _ = open_journal(disk)
    large = b"x" * (journal.space_left() - 100)
    journal.append(large)
    journal.commit_now(1)
    assert journal.space_left() == 0
    _, found = open_journal(MemoryDisk(disk.contents()))
    assert found == [large]


def test_a_batch_beyond_all_room_fails_and_leaves_what_was_there() -> None:
    disk = MemoryDisk(capacity_bytes=3 * SEGMENT_BYTES)
    journal, _ = open_journal(disk)
    journal.append(b"kept")
    journal.commit_now(1)
    journal.append(b"x" * 4 * SEGMENT_BYTES)
    with pytest.raises(JournalFailed, match="no space left"):
        journal.commit_now(2)
    _, found = open_journal(MemoryDisk(disk.contents()))
    assert found == [b"kept"]


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB, where mounting one is permitted."""
    options = ["-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_file_system_is_known_in_time(small_file_system: Path) -> None:
    directory = small_file_system / "journal"
    journal = Journal.open(directory, segment_bytes=32 << 10)
    journal.replay(lambda *_: None)
    sent = 0
    while journal.space_left() > 16 << 10:
        journal.append(b"m" * 1000)
        journal.commit_now(sent)
        sent += 1
    assert sent > 100
    for _ in range(50):
        journal.append(b"settled")
        journal.commit_now(sent)
    assert journal.failed is None
    # Beyond the reserve the write itself fails, and takes nothing with it.
    journal.append(b"m" * (200 << 10))
    with pytest.raises(JournalFailed, match="No space left"):
        journal.commit_now(sent)
    journal.close()
    found: list[bytes] = []
    journal = Journal.open(directory, segment_bytes=32 << 10)
    journal.replay(lambda lsn, _, __, record: found.append(record))
    journal.close()
    assert found == [b"m" * 1000] * sent + [b"settled"] * 50
