"""Torn tails are cut off; anything else that is not as it was written is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_disks import Files, MemoryDisk

from twinbus.journal import Journal, JournalDamaged, JournalFailed

DIRECTORY = Path("journal")
FIRST = "0000000001.seg"
HEADER_BYTES = 48


def make(
    batches: list[list[bytes]], *, segment_bytes: int = 1 << 16, is_closed: bool = False
) -> Files:
    """Return the files of a journal that holds these batches, each record its own fact."""
    disk = MemoryDisk()
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=segment_bytes)
    journal.replay(lambda *_: None)
    for time_ms, records in enumerate(batches):
        for record in records:
            journal.append(record)
        journal.commit_now(time_ms)
    if is_closed:
        journal.close()
    return disk.contents()


def replay(files: Files, *, disk: MemoryDisk | None = None) -> list[bytes]:
    journal = Journal.open(DIRECTORY, disk=disk or MemoryDisk(files), segment_bytes=1 << 16)
    found: list[bytes] = []
    try:
        journal.replay(lambda lsn, _, __, record: found.append(record))
    finally:
        journal.close()
    return found


def batch_bytes(records: list[bytes]) -> int:
    return HEADER_BYTES + sum(4 + len(record) for record in records)


BATCHES = [[b"one", b"two"], [b"three"], [b"four" * 20, b"", b"five"], [b"six"]]
ENDS = [sum(batch_bytes(records) for records in BATCHES[:count]) for count in range(5)]


def test_a_file_cut_at_any_byte_gives_the_whole_batches_before_the_cut() -> None:
    files = make(BATCHES)
    for cut in range(ENDS[-1] + 1):
        whole = sum(end <= cut for end in ENDS) - 1
        wanted = [record for records in BATCHES[:whole] for record in records]
        assert replay(files | {FIRST: files[FIRST][:cut]}) == wanted
        zeroed = files[FIRST][:cut] + bytes(len(files[FIRST]) - cut)
        # The last byte of a batch may be zero itself: then nothing was lost.
        if files[FIRST][cut : ENDS[min(whole + 1, 4)]].strip(b"\0"):
            assert replay(files | {FIRST: zeroed}) == wanted


def test_bytes_behind_a_torn_tail_are_gone_for_good() -> None:
    """What a cut-off batch left behind cannot come back behind a shorter one."""
    files = make(BATCHES)
    torn = bytearray(files[FIRST])
    torn[ENDS[3] + 20] ^= 1
    torn[ENDS[4] + 700 : ENDS[4] + 705] = b"later"
    disk = MemoryDisk(files | {FIRST: bytes(torn)})
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=1 << 16)
    journal.replay(lambda *_: None)
    assert not disk.contents()[FIRST][ENDS[3] :].strip(b"\0")
    assert journal.next_lsn == 7
    assert len(disk.contents()[FIRST]) == len(files[FIRST])


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_bit_flipped_in_an_acknowledged_batch_is_refused(is_closed: bool) -> None:
    """After an orderly close no batch is exposed; after a crash the last one is, and is cut."""
    files = make(BATCHES, is_closed=is_closed)
    exposed_from = ENDS[4] if is_closed else ENDS[3]
    for position in range(exposed_from):
        flipped = bytearray(files[FIRST])
        flipped[position] ^= 1 << position % 8
        with pytest.raises(JournalDamaged) as caught:
            replay(files | {FIRST: bytes(flipped)})
        batch = sum(end <= position for end in ENDS) - 1
        assert caught.value.path.name == FIRST
        assert caught.value.offset == ENDS[batch]
        lsn = sum(map(len, BATCHES[:batch])) + 1
        assert (caught.value.first_lsn, caught.value.last_lsn) == (
            lsn,
            lsn + len(BATCHES[batch]) - 1,
        )
        assert "Restore this file" in str(caught.value)


def test_a_damaged_journal_is_left_as_it_is() -> None:
    files = make(BATCHES, is_closed=True)
    flipped = bytearray(files[FIRST])
    flipped[ENDS[1] + 5] ^= 1
    damaged = files | {FIRST: bytes(flipped)}
    disk = MemoryDisk(damaged)
    with pytest.raises(JournalDamaged):
        replay(damaged, disk=disk)
    assert disk.contents() == damaged


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_damage_to_an_older_segment_passes(data: st.DataObject) -> None:
    """Also where the last batch of an older segment is wiped out: the chain tells."""
    records = [[bytes([number]) * 300] for number in range(12)]
    files = make(records, segment_bytes=1000)
    names = sorted(name for name in files if name.endswith(".seg"))
    name = data.draw(st.sampled_from(names[:-1]))
    used = len(files[name].rstrip(b"\0"))
    start = data.draw(st.integers(0, used - 1))
    end = data.draw(st.integers(start + 1, len(files[name])))
    filler = data.draw(st.sampled_from([b"\0", b"\xff", b"TWJ1", b"TWJ2"]))
    spoilt = bytearray(files[name])
    spoilt[start:end] = (filler * (end - start))[: end - start]
    if bytes(spoilt) == files[name]:
        return
    if spoilt[:used] == files[name][:used]:
        assert replay(files | {name: bytes(spoilt)}) == [record for (record,) in records]
        return
    with pytest.raises(JournalDamaged):
        replay(files | {name: bytes(spoilt)})


def test_a_lost_batch_of_carried_records_is_noticed() -> None:
    """It takes no LSN, so that the LSNs alone would not tell."""
    disk = MemoryDisk()
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=200)
    journal.replay(lambda *_: None)
    journal.append(b"x" * 100)
    journal.commit_now(1)
    journal.append_carried(b"y" * 100)
    journal.commit_now(2)
    journal.append(b"z" * 100)
    journal.commit_now(3)
    files = disk.contents()
    wiped = files[FIRST][: HEADER_BYTES + 104].ljust(len(files[FIRST]), b"\0")
    with pytest.raises(JournalDamaged, match=r"0000000002\.seg: a batch is missing before"):
        replay(files | {FIRST: wiped})


def test_a_copy_of_the_journal_inside_a_torn_message_is_no_damage() -> None:
    """A message may hold a segment of another journal: in its place it proves nothing."""
    foreign = make([[b"%d" % number] for number in range(30)])[FIRST][:2000]
    files = make([[b"first"], [foreign]])
    torn = bytearray(files[FIRST])
    torn[batch_bytes([b"first"]) + 8] ^= 1
    assert replay(files | {FIRST: bytes(torn)}) == [b"first"]


def test_a_journal_whose_only_segment_lost_its_start_is_refused() -> None:
    """Older segments were dropped, so that a batch had been there."""
    disk = MemoryDisk()
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=200)
    journal.replay(lambda *_: None)
    for number in range(5):
        journal.append(bytes([number]) * 200)
        journal.commit_now(number)
    journal.drop_before(journal.current_segment)
    files = disk.contents()
    (name,) = [name for name in files if name.endswith(".seg")]
    with pytest.raises(JournalDamaged):
        replay(files | {name: b"\0" + files[name][1:]})


def test_s1_after_a_record_that_cannot_be_read_nothing_is_committed() -> None:
    """A batch went bad since it was written. Whoever asked for it may have done half of something
    by then."""
    disk = MemoryDisk()
    journal = Journal.open(DIRECTORY, disk=disk)
    journal.replay(lambda *_: None)
    location = journal.append(b"sound")
    journal.commit_now(1)
    mend = disk.rot(b"sound")
    journal.append(b"half")
    with pytest.raises(JournalFailed, match="sound earlier"):
        journal.read(location, 5)
    assert isinstance(journal.failed, JournalDamaged)
    for commit in (lambda: journal.commit(2, lambda error: None), lambda: journal.commit_now(2)):
        with pytest.raises(JournalFailed, match="failed earlier"):
            commit()
    journal.close()
    mend()
    assert replay(disk.contents()) == [b"sound"]
