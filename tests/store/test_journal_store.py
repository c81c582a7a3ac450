"""One suite, every store: what goes into a journal comes out of it, on each kind of disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from journal_disks import MemoryDisk

from twinbus.journal import Disk, Journal, JournalDamaged, JournalLocked, RealDisk, read_segments

SEGMENT_BYTES = 4096
Record = tuple[int, int, int, bytes]


class Store:
    """A journal that can be reopened, with or without a thread of its own."""

    def __init__(self, disk: Disk, directory: Path, *, has_thread: bool) -> None:
        self.disk = disk
        self.directory = directory
        self.notified: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.has_thread = has_thread
        self.seen: list[Record] = []
        self.open()

    def open(self) -> None:
        self.seen = []
        notify = self.notified.put if self.has_thread else None
        self.journal = Journal.open(
            self.directory, disk=self.disk, segment_bytes=SEGMENT_BYTES, notify=notify
        )
        self.journal.replay(lambda *record: self.seen.append(record))

    def reopen(self) -> Journal:
        self.journal.close()
        self.open()
        return self.journal

    def commit(self, time_ms: int) -> list[Exception | None]:
        """Commit, and return what `done` was called with once it has been."""
        answers: list[Exception | None] = []
        self.journal.commit(time_ms, answers.append)
        while not answers:
            self.notified.get(timeout=10)()
        return answers

    def fill(self, batches: int, size: int = 300) -> list[Record]:
        """Commit batches of three records; return them as replay will give them."""
        made: list[Record] = []
        for number in range(batches):
            for _ in range(3):
                lsn = self.journal.next_lsn
                head, body = b"%d:" % lsn, bytes([lsn % 256]) * size
                made.append((lsn, self.journal.append(head, body), number, head + body))
            assert self.commit(number) == [None]
        return made


@pytest.fixture(params=["memory", "memory with thread", "real", "real with thread"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    disk: Disk = MemoryDisk() if "memory" in request.param else RealDisk()
    store = Store(disk, tmp_path / "journal", has_thread="thread" in request.param)
    yield store
    store.journal.close()


def test_a_new_journal_is_empty(store: Store) -> None:
    assert store.seen == []
    assert store.journal.next_lsn == 1
    assert store.journal.segments() == []
    assert (store.journal.pending_count, store.journal.pending_bytes) == (0, 0)


def test_s1_what_was_committed_is_replayed_in_order(store: Store) -> None:
    made = store.fill(batches=10)
    store.reopen()
    assert store.seen == made
    more = store.fill(batches=10)
    store.reopen()
    assert store.seen == made + more
    assert store.journal.next_lsn == 61


def test_what_was_not_committed_is_not_replayed(store: Store) -> None:
    made = store.fill(batches=2)
    store.journal.append(b"pending")
    assert store.journal.pending_count == 1
    assert store.journal.next_lsn == 8
    store.reopen()
    assert store.seen == made
    assert store.journal.next_lsn == 7


def test_an_empty_commit_writes_nothing(store: Store) -> None:
    assert store.commit(5) == [None]
    assert store.journal.segments() == []


def test_carried_records_take_no_lsn_and_share_a_batch_with_facts(store: Store) -> None:
    journal = store.journal
    wanted = [
        (1, journal.append(b"a"), 7, b"a"),
        (0, journal.append_carried(b"copy", b" of x"), 7, b"copy of x"),
        (2, journal.append(b"b", b""), 7, b"b"),
        (0, journal.append_carried(b""), 7, b""),
    ]
    journal.commit_now(7)
    journal.append_carried(b"alone")
    journal.commit_now(8)
    assert journal.next_lsn == 3
    store.reopen()
    assert store.seen[:4] == wanted
    assert [(lsn, record) for lsn, _, _, record in store.seen[4:]] == [(0, b"alone")]
    assert store.journal.next_lsn == 3


def test_segments_roll_between_batches_only(store: Store) -> None:
    store.fill(batches=20)
    segments = store.journal.segments()
    assert [number for number, _ in segments] == list(range(1, len(segments) + 1))
    assert len(segments) >= 4
    assert all(size >= SEGMENT_BYTES for _, size in segments[:-1])
    full = len(segments) - 1
    assert store.reopen().segments()[:full] == segments[:full]


def test_records_are_read_back_pending_in_flight_and_from_disk(store: Store) -> None:
    made = store.fill(batches=20)
    journal = store.journal
    pending = journal.append(b"head", b"and body")
    assert journal.read(pending, 12) == b"headand body"
    journal.commit(1, lambda error: None)
    later = journal.append(b"later")
    assert journal.read(pending, 12) == b"headand body"
    assert journal.read(later, 5) == b"later"
    journal.commit_now(2)
    for _ in range(2):
        for _, location, _, record in [*made, (0, pending, 0, b"headand body")]:
            assert journal.read(location, len(record)) == record
            assert journal.read(location + 2, len(record) - 3) == record[2:-1]
        journal = store.reopen()


def test_a_location_without_a_record_is_refused(store: Store) -> None:
    store.fill(batches=1)
    for location in (9 << 32, 1 << 32 | 100_000, store.journal.append(b"x") + 50):
        with pytest.raises(LookupError):
            store.journal.read(location, 1)


def test_a_record_larger_than_a_segment_is_kept(store: Store) -> None:
    made = store.fill(batches=2, size=3 << 20)
    small = store.fill(batches=2)
    store.reopen()
    assert store.seen == made + small
    for _, location, _, record in made:
        assert store.journal.read(location, len(record)) == record


def test_dropped_segments_are_gone_and_lsns_go_on(store: Store) -> None:
    made = store.fill(batches=20)
    oldest = store.journal.segments()[2][0]
    store.journal.drop_before(oldest)
    assert store.journal.segments()[0][0] == oldest
    with pytest.raises(LookupError):
        store.journal.read(made[0][1], 1)
    store.reopen()
    assert store.seen == [record for record in made if record[1] >> 32 >= oldest]
    assert store.journal.next_lsn == 61


def test_the_newest_batch_outlives_any_drop(store: Store) -> None:
    store.fill(batches=20)
    while store.journal.current_segment == store.journal.segments()[-1][0]:
        store.fill(batches=1)
    store.journal.drop_before(1000)
    assert len(store.journal.segments()) == 1
    lsn = store.journal.next_lsn
    store.reopen()
    assert store.journal.next_lsn == lsn


def test_recycled_segments_bring_nothing_back(store: Store) -> None:
    kept: list[Record] = []
    for _ in range(12):
        kept += store.fill(batches=4)
        oldest = store.journal.current_segment - 1
        store.journal.drop_before(oldest)
    store.reopen()
    assert store.seen == [record for record in kept if record[1] >> 32 >= oldest]
    names = store.disk.names(store.directory)
    assert sum(name.endswith(".spare") for name in names) == 2


def test_reading_beside_the_writer_stops_at_the_last_whole_batch(store: Store) -> None:
    made = store.fill(batches=20)
    store.journal.append(b"pending")
    assert list(read_segments(store.directory, disk=store.disk)) == made
    assert list(read_segments(store.directory, 31, disk=store.disk)) == made[30:]
    assert list(read_segments(store.directory, 61, disk=store.disk)) == []
    store.journal.close()
    assert list(read_segments(store.directory, 59, disk=store.disk)) == made[58:]


def test_reading_goes_on_behind_segments_dropped_meanwhile(store: Store) -> None:
    made = store.fill(batches=20)
    reading = read_segments(store.directory, disk=store.disk)
    assert next(reading) == made[0]
    oldest = store.journal.segments()[-2][0]
    store.journal.drop_before(oldest)
    store.journal.commit_now(0)
    store.reopen()
    rest = list(reading)
    first = [record for record in made[1:] if record[1] >> 32 == 1]
    assert rest == first + [record for record in made if record[1] >> 32 >= oldest]


def test_a_second_opening_is_refused_while_the_first_holds(store: Store) -> None:
    with pytest.raises(JournalLocked, match=r"in use by another broker \(process \d+\)"):
        Journal.open(store.directory, disk=store.disk)
    store.reopen()


def test_a_missing_segment_is_damage(store: Store) -> None:
    made = store.fill(batches=20)
    store.journal.close()
    store.disk.unlink(store.directory / "0000000003.seg")
    lost = [lsn for lsn, location, _, _ in made if location >> 32 == 3]
    with pytest.raises(JournalDamaged, match=r"0000000003\.seg: the segment is missing") as caught:
        store.open()
    assert (caught.value.first_lsn, caught.value.last_lsn) == (lost[0], lost[-1])
    store.journal.close()
