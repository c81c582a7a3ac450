"""L1: a follower of the journal is given everything once, and nothing that could vanish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.capture.journals import WrittenJournal, placed
from tests.store.journal_disks import MemoryDisk, Operation, WatchedDisk, power_cut
from twinbus.journal import Journal, JournalDamaged, RealDisk, tail
from twinbus.journal.batch import HEADER_BYTES, entries
from twinbus.journal.tail import JournalGap, Tail, last_batch, oldest_lsn, reached_lsn

SEGMENT_BYTES = 4096


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenJournal]:
    journal = WrittenJournal(tmp_path / "journal", SEGMENT_BYTES)
    yield journal
    journal.close()


def read_all(follower: Tail) -> list[int]:
    lsns = []
    while found := follower.read():
        for data, start, batch in found:
            lsns += [lsn for lsn, *_ in entries(data, batch, start) if lsn]
    return lsns


def test_l1_the_last_batch_is_held_back_until_another_follows(written: WrittenJournal) -> None:
    follower = Tail(written.directory, 1)
    assert read_all(follower) == []
    written.place(3)
    assert read_all(follower) == []
    written.place(2)
    assert read_all(follower) == [1, 2, 3]
    assert read_all(follower) == []
    written.close()
    assert read_all(follower) == [4, 5]


def test_l1_a_follower_goes_on_over_many_segments(written: WrittenJournal) -> None:
    follower = Tail(written.directory, 1)
    lsns: list[int] = []
    for count in range(1, 80):
        written.place(count % 7 + 1, 100 * (count % 5))
        if count % 3 == 0:
            lsns += read_all(follower)
    written.close()
    lsns += read_all(follower)
    assert lsns == list(range(1, written.last_lsn + 1))
    assert len(list(written.directory.glob("*.seg"))) > 3


def test_l1_a_follower_begins_anywhere(written: WrittenJournal) -> None:
    for _ in range(60):
        written.place(2, 200)
    written.close()
    for first in range(1, written.last_lsn + 1, 2):
        assert read_all(Tail(written.directory, first)) == list(range(first, written.last_lsn + 1))
    assert read_all(Tail(written.directory, written.last_lsn + 1)) == []


def test_a_batch_longer_than_a_block_is_read(
    written: WrittenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "READ_BYTES", 512)
    for count in (1, 20, 1, 30, 2):
        written.place(count, 100)
    written.close()
    assert read_all(Tail(written.directory, 1)) == list(range(1, 55))


def test_a_closed_journal_that_goes_on_is_followed(written: WrittenJournal) -> None:
    follower = Tail(written.directory, 1)
    written.place(2)
    written.close()
    assert read_all(follower) == [1, 2]
    again = WrittenJournal(written.directory, SEGMENT_BYTES)
    again.place(3)
    again.place(1)
    assert read_all(follower) == [3, 4, 5]
    again.close()
    assert read_all(follower) == [6]


def test_dropped_records_are_a_gap_with_its_lsns(written: WrittenJournal) -> None:
    slow = Tail(written.directory, 1)
    for _ in range(100):
        written.place(1, 300)
    assert slow.read()
    reached = slow.next_lsn
    for _ in range(100):
        written.place(1, 300)
    oldest = written.journal.segments()[-2][0]
    written.journal.drop_before(oldest)
    for _ in range(100):
        written.place(1, 300)  # over the bytes of the dropped ones
    first = oldest_lsn(written.directory)
    assert reached < first
    with pytest.raises(JournalGap) as from_the_start:
        Tail(written.directory, 1).read()
    assert (from_the_start.value.first_lsn, from_the_start.value.last_lsn) == (1, first - 1)
    with pytest.raises(JournalGap) as on_the_way:
        read_all(slow)
    assert (on_the_way.value.first_lsn, on_the_way.value.last_lsn) == (slow.next_lsn, first - 1)
    assert read_all(Tail(written.directory, first))[0] == first


def fill_segment(written: WrittenJournal, *, copies: bool) -> None:
    """Write until the next batch goes to another segment; compaction's copies take no LSN."""
    segment = written.journal.current_segment
    while written.journal.current_segment == segment:
        if copies:
            written.commit(carried=(placed(1, written.now_ms, 300),))
        else:
            written.place(1, 300)


@pytest.mark.parametrize("last_are_copies", [False, True])
@pytest.mark.parametrize("segments_read", [0, 1, 2])
def test_l1_a_follower_outlives_the_segments_that_held_only_copies(
    written: WrittenJournal, segments_read: int, last_are_copies: bool
) -> None:
    """Its own segment goes, and so does the next, and no record with them: the next one is found
    further on. It stands before the last batch, which is held back, behind it, or in a segment of
    copies."""
    follower = Tail(written.directory, 1)
    written.place(2)
    if last_are_copies:
        written.place(1)
    else:
        fill_segment(written, copies=False)
        written.commit(carried=(placed(1, written.now_ms),))
    fill_segment(written, copies=True)
    lsns: list[int] = []
    while follower.next_lsn <= written.last_lsn:
        for data, start, batch in follower.read():
            lsns += [lsn for lsn, *_ in entries(data, batch, start) if lsn]
    for _ in range(segments_read):
        lsns += read_all(follower)
        fill_segment(written, copies=True)
    fill_segment(written, copies=True)
    written.place(2)
    written.journal.drop_before(written.journal.current_segment)
    for _ in range(100):
        written.place(1, 300)  # over the bytes of the dropped ones
    lsns += read_all(follower)
    written.close()
    assert lsns + read_all(follower) == list(range(1, written.last_lsn + 1))


def test_a_batch_held_back_is_a_gap_when_it_is_dropped(written: WrittenJournal) -> None:
    follower = Tail(written.directory, 1)
    fill_segment(written, copies=False)
    last = written.last_lsn
    assert read_all(follower) == list(range(1, last))
    for _ in range(2):
        fill_segment(written, copies=True)
    written.place()
    written.journal.drop_before(written.journal.current_segment)
    with pytest.raises(JournalGap) as gap:
        read_all(follower)
    assert (gap.value.first_lsn, gap.value.last_lsn) == (last, last)


def test_damage_in_the_middle_is_named(written: WrittenJournal) -> None:
    for _ in range(6):
        written.place(2)
    written.close()
    path = written.directory / "0000000001.seg"
    data = bytearray(path.read_bytes())
    third = last_batch_offsets(written)[2]
    data[third + HEADER_BYTES + 10] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match="LSN 5"):
        read_all(Tail(written.directory, 1))


def last_batch_offsets(written: WrittenJournal) -> list[int]:
    return [found.batch.offset for found in Tail(written.directory, 1).read()]


def test_the_last_batch_is_known_before_it_is_durable(written: WrittenJournal) -> None:
    assert last_batch(written.directory, 1) is None
    written.place(4)
    last = last_batch(written.directory, 1)
    assert last is not None
    assert last.next_lsn == 5
    assert [reached_lsn(written.directory, lsn) for lsn in (1, 4, 5, 9)] == [1, 4, 4, 4]


@pytest.mark.parametrize("seed", range(6))
def test_l1_what_a_follower_was_given_survives_every_power_cut(seed: int, tmp_path: Path) -> None:
    """At every operation of the writer: what had been read by then is there after a cut."""
    random = Random(seed)
    directory = tmp_path / "journal"
    given: list[int] = []
    follower = Tail(directory, 1)

    def look(place: int, operation: Operation) -> None:
        # The files are as the writer sees them, synced or not.
        read_all(follower)
        given.extend([follower.next_lsn - 1] * (place + 1 - len(given)))

    disk = WatchedDisk(RealDisk(), refuse=look)
    for _ in range(3):
        journal = Journal.open(directory, disk=disk, segment_bytes=SEGMENT_BYTES)
        journal.replay(lambda *_: None)
        for time_ms in range(random.randint(3, 25)):
            for _ in range(random.randint(1, 5)):
                journal.append(b"\x09" + random.randbytes(random.choice([0, 30, 900])))
            journal.commit_now(time_ms)
        journal.close()
    assert given[-1] > 0
    for place in range(1, len(given)):
        files = power_cut(disk, place, random)
        after = Journal.open(directory, disk=MemoryDisk(files), segment_bytes=SEGMENT_BYTES)
        after.replay(lambda *_: None)
        assert after.next_lsn - 1 >= given[place]
