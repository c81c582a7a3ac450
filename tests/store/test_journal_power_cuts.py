"""Power cuts: what was acknowledged before one is there after it, in order, and nothing is damaged.

A run over a real directory is recorded, operation by operation. The directory is then rebuilt as
a cut between any two operations could have left it (see `journal_disks.power_cut`), opened, and
compared with what had been acknowledged by then. The run goes on in the rebuilt directory, and
is cut again, so that recovery is cut short as well.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from journal_disks import Files, MemoryDisk, Operation, WatchedDisk, power_cut

from twinbus.journal import Disk, Journal, JournalFailed, RealDisk, read_segments

SEGMENT_BYTES = 4096
Fact = tuple[int, bytes]


@dataclass
class History:
    """What a run did, with the place in the log at which each thing was true."""

    facts: list[Fact] = field(default_factory=list)
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    kept_from: list[tuple[int, int]] = field(default_factory=list)

    def at(self, place: int) -> tuple[int, int]:
        """Return the first LSN that must still be there and the last that must be."""
        last = max((lsn for when, lsn in self.acknowledged if when <= place), default=0)
        first = max((lsn for when, lsn in self.kept_from if when <= place), default=1)
        return first, last


def run(disk: WatchedDisk, directory: Path, random: Random, recovered: list[Fact]) -> History:
    """Append, commit, drop and close at random; `recovered` is what the journal must hold."""
    history = History(list(recovered))
    if recovered:
        history.acknowledged.append((0, recovered[-1][0]))
        history.kept_from.append((0, recovered[0][0]))
    starts = dict[int, int]()
    journal = Journal.open(directory, disk=disk, segment_bytes=SEGMENT_BYTES)

    def visit(lsn: int, location: int, time_ms: int, record: bytes) -> None:
        starts.setdefault(location >> 32, lsn)

    journal.replay(visit)
    for time_ms in range(random.randint(1, 25)):
        for _ in range(random.randint(1, 6)):
            lsn = journal.next_lsn
            record = b"%d." % lsn + random.randbytes(random.choice([0, 10, 400, 1500]))
            starts.setdefault(journal.append(record) >> 32, lsn)
            history.facts.append((lsn, record))
        journal.commit_now(time_ms)
        history.acknowledged.append((len(disk.log), journal.next_lsn - 1))
        if random.random() < 0.2:
            oldest = random.choice(journal.segments())[0]
            # From the call on any part of it may have happened.
            history.kept_from.append((len(disk.log), starts[oldest]))
            journal.drop_before(oldest)
    if random.random() < 0.5:
        journal.close()
    return history


def check(found: list[Fact], history: History, place: int) -> None:
    first, last = history.at(place)
    lsns = [lsn for lsn, _ in found]
    assert lsns == list(range(lsns[0], lsns[-1] + 1)) if lsns else last == 0
    if last:
        assert lsns[0] <= first
        assert lsns[-1] >= last
    facts = dict(history.facts)
    assert all(facts[lsn] == record for lsn, record in found)


def read_facts(disk: Disk, directory: Path) -> list[Fact]:
    """Open as a broker would; compare with what a reader beside it sees before and after."""
    before = [(lsn, record) for lsn, _, _, record in read_segments(directory, disk=disk)]
    found: list[Fact] = []
    journal = Journal.open(directory, disk=disk, segment_bytes=SEGMENT_BYTES)
    journal.replay(lambda lsn, _, __, record: found.append((lsn, record)))
    journal.close()
    after = [(lsn, record) for lsn, _, _, record in read_segments(directory, disk=disk)]
    assert before == found == after
    return found


def write_files(directory: Path, files: Files) -> None:
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)


@pytest.mark.parametrize("seed", range(20))
def test_s1_nothing_acknowledged_is_lost_on_a_real_disk(seed: int, tmp_path: Path) -> None:
    """Sixty cuts and more: three for each of twenty runs, the later ones in what was rebuilt."""
    random = Random(seed)
    files: Files = {}
    recovered: list[Fact] = []
    for generation in range(3):
        directory = tmp_path / f"run{generation}"
        write_files(directory, files)
        disk = WatchedDisk(RealDisk(), before=files)
        history = run(disk, directory, random, recovered)
        place = random.randint(0, len(disk.log))
        files = power_cut(disk, place, random)
        write_files(tmp_path / f"cut{generation}", files)
        recovered = read_facts(RealDisk(), tmp_path / f"cut{generation}")
        check(recovered, history, place)


@pytest.mark.parametrize("seed", range(60))
def test_s1_nothing_acknowledged_is_lost_in_memory(seed: int) -> None:
    """The same without files, so that many more places are tried: each a run, cut and cut again."""
    random = Random(1000 + seed)
    directory = Path("journal")
    files: Files = {}
    recovered: list[Fact] = []
    for _ in range(6):
        disk = WatchedDisk(MemoryDisk(files), before=files)
        history = run(disk, directory, random, recovered)
        for place in random.sample(range(len(disk.log) + 1), k=min(10, len(disk.log))):
            files = power_cut(disk, place, random)
            recovered = read_facts(MemoryDisk(files), directory)
            check(recovered, history, place)


def test_every_place_of_one_run_survives_a_cut() -> None:
    random = Random(7)
    disk = WatchedDisk(MemoryDisk())
    history = run(disk, Path("journal"), random, [])
    for place in range(len(disk.log) + 1):
        for _ in range(5):
            files = power_cut(disk, place, random)
            check(read_facts(MemoryDisk(files), Path("journal")), history, place)


class Killed(BaseException):
    """The process ends here; what it wrote stays in the page cache."""


@pytest.mark.parametrize("what", ["write", "sync", "failed sync", "sync directory"])
@pytest.mark.parametrize("seed", range(10))
def test_what_a_restart_found_survives_a_later_cut(what: str, seed: int) -> None:
    """A batch may be whole in the page cache only; once replayed, it must be durable."""
    random = Random(seed)
    directory = Path("journal")
    memory = MemoryDisk()
    disk = WatchedDisk(memory)
    history = run(disk, directory, random, [])
    memory.kill_holders()

    def refuse(place: int, operation: Operation) -> None:
        if operation.kind == "sync" and what == "failed sync":
            raise OSError(errno.EIO, "the medium is failing")
        if operation.kind == what:
            raise Killed

    journal = Journal.open(directory, disk=disk, segment_bytes=SEGMENT_BYTES)
    journal.replay(lambda *_: None)

    def send_for_ever() -> None:
        while True:
            history.facts.append((journal.next_lsn, random.randbytes(1000)))
            journal.append(history.facts[-1][1])
            journal.commit_now(1)
            history.acknowledged.append((len(disk.log), journal.next_lsn - 1))

    disk.refuse = refuse
    with pytest.raises((Killed, JournalFailed)):
        send_for_ever()
    disk.refuse = lambda place, operation: None
    memory.kill_holders()

    found: list[Fact] = []
    journal = Journal.open(directory, disk=disk, segment_bytes=SEGMENT_BYTES)
    journal.replay(lambda lsn, _, __, record: found.append((lsn, record)))
    assert (history.facts[-1] in found) == ("sync" in what and "directory" not in what)
    history.facts = [*found, (journal.next_lsn, b"after the restart")]
    journal.append(b"after the restart")
    journal.commit_now(2)
    history.acknowledged.append((len(disk.log), journal.next_lsn - 1))
    for _ in range(5):
        files = power_cut(disk, len(disk.log), random)
        check(read_facts(MemoryDisk(files), directory), history, len(disk.log))
