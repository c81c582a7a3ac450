"""L1: a reader beside the writer sees whole batches only, and takes no race for damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from journal_disks import MemoryDisk

from twinbus.journal import Journal, read_segments
from twinbus.journal.batch import HEADER_BYTES

DIRECTORY = Path("journal")
SEGMENT_BYTES = 1000


class SlowDisk(MemoryDisk):
    """A disk on which the writer goes on in the middle of the reader's read."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] | None = None
        self.split = 0

    def read(self, handle: int, length: int, offset: int) -> bytes:
        data = super().read(handle, length, offset)
        if self.meanwhile is not None and length > HEADER_BYTES:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            data = data[: self.split] + super().read(handle, length, offset)[self.split :]
        return data


def start() -> tuple[SlowDisk, Journal, Callable[[int], None]]:
    disk = SlowDisk()
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=SEGMENT_BYTES)
    journal.replay(lambda *_: None)

    def commit(count: int) -> None:
        for _ in range(count):
            journal.append(b"%d " % journal.next_lsn * 20)
            journal.commit_now(journal.next_lsn)

    return disk, journal, commit


def read_lsns(disk: SlowDisk) -> list[int]:
    return [lsn for lsn, *_ in read_segments(DIRECTORY, disk=disk)]


def test_two_batches_written_during_one_read_are_no_damage() -> None:
    """The first is seen as it was before, the second as it is after: the view is torn."""
    disk, journal, commit = start()
    commit(2)
    ((_, disk.split),) = journal.segments()
    disk.split += 10
    disk.meanwhile = lambda: commit(2)
    assert read_lsns(disk) == [1, 2]
    assert read_lsns(disk) == [1, 2, 3, 4]


def test_a_segment_recycled_during_its_read_is_passed_over() -> None:
    disk, journal, commit = start()
    commit(30)

    def recycle() -> None:
        journal.drop_before(3)
        commit(40)

    entries = list(read_segments(DIRECTORY, disk=disk))
    oldest = min(lsn for lsn, location, *_ in entries if location >> 32 == 3)
    disk.split = 300
    disk.meanwhile = recycle
    found = read_lsns(disk)
    assert found == list(range(oldest, found[-1] + 1))
    assert found[-1] >= 30
    assert read_lsns(disk) == list(range(oldest, 71))
