"""What a later version wrote is refused and left alone; what only looks like it is not (S1).

Batches of a later format are made of ours: the digit of the magic is all that differs, and it is
not part of what the checksum covers.
"""

from __future__ import annotations

import pytest
from journal_disks import Files, MemoryDisk
from test_journal_damage import BATCHES, ENDS, FIRST, batch_bytes, make, replay

from twinbus.journal import JournalDamaged, JournalNewer

SECOND = "0000000002.seg"
# Two batches a segment.
LARGE = [[bytes([number]) * 500] for number in range(5)]


def later(data: bytes, start: int = 0) -> bytes:
    """The same bytes, as a later version would have written them from `start` on."""
    return data[:start] + data[start:].replace(b"TWJ1", b"TWJ2")


def refused(files: Files) -> str:
    """What a start says that changes nothing."""
    disk = MemoryDisk(files)
    with pytest.raises(JournalNewer, match=r"written by a newer Twinbus") as caught:
        replay(files, disk=disk)
    assert disk.contents() == files
    return str(caught.value)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("count", range(4))
def test_s1_batches_of_a_later_format_are_not_cut_off(count: int, is_closed: bool) -> None:
    files = make(BATCHES, is_closed=is_closed)
    text = refused(files | {FIRST: later(files[FIRST], ENDS[count])})
    assert f"{FIRST}: the batch at offset {ENDS[count]} " in text


def test_s1_nor_where_the_first_of_them_is_damaged() -> None:
    files = make(BATCHES)
    spoilt = bytearray(later(files[FIRST], ENDS[1]))
    spoilt[ENDS[1] + 20] ^= 1
    assert f"offset {ENDS[2]} " in refused(files | {FIRST: bytes(spoilt)})


def test_s1_nor_in_segments_of_their_own() -> None:
    files = make(LARGE, segment_bytes=1_000)
    names = sorted(name for name in files if name.endswith(".seg"))
    assert len(names) == 3
    for number, name in enumerate(names):
        written = {each: later(files[each]) for each in names[number:]}
        assert f"{name}: the batch at offset 0 " in refused(files | written)
        # The older ones may have been dropped since.
        left = {each: data for each, data in files.items() if each not in names[:number]}
        assert f"{name}: the batch at offset 0 " in refused(left | written)


def test_s1_nor_before_a_segment_that_was_only_begun() -> None:
    files = make(LARGE[:2], segment_bytes=1_000)
    start = batch_bytes(LARGE[0])
    begun = {FIRST: later(files[FIRST], start), SECOND: bytes(len(files[FIRST]))}
    assert f"{FIRST}: the batch at offset {start} " in refused(files | begun)


def test_a_torn_batch_of_a_later_format_is_cut_off() -> None:
    """It was never acknowledged, and the rest is ours."""
    files = make(BATCHES)
    for cut in range(ENDS[3], ENDS[4]):
        torn = later(files[FIRST], ENDS[3])[:cut].ljust(len(files[FIRST]), b"\0")
        assert len(replay(files | {FIRST: torn})) == 6


def test_a_message_that_speaks_of_a_later_format_does_not_keep_the_broker_from_starting() -> None:
    """Torn, or left from the former life of a recycled file, it may stand where a batch would."""
    foreign = later(make([[b"%d" % number] for number in range(30)])[FIRST][:2_000])
    for body in (b"TWJ2" * 500, foreign):
        files = make([[b"first"], [body]])
        start = batch_bytes([b"first"])
        torn = bytearray(files[FIRST])
        torn[start + 8] ^= 1
        assert replay(files | {FIRST: bytes(torn)}) == [b"first"]
        left_over = files[FIRST][:start] + body + files[FIRST][start + len(body) :]
        assert replay(files | {FIRST: left_over}) == [b"first"]


def test_a_bit_turned_in_the_last_magic_is_no_later_format() -> None:
    """Nobody can tell it from a torn tail, and so the broker starts."""
    files = make(BATCHES)
    for bit in range(32):
        turned = bytearray(files[FIRST])
        turned[ENDS[3] + bit // 8] ^= 1 << bit % 8
        assert len(replay(files | {FIRST: bytes(turned)})) == 6


def test_s1_a_bit_turned_in_the_magic_is_damage_where_our_own_batches_follow() -> None:
    files = make(LARGE, segment_bytes=1_000)
    for offset in (0, batch_bytes(LARGE[0])):
        turned = bytearray(files[FIRST])
        turned[offset + 3] ^= 8
        assert turned[offset : offset + 4] == b"TWJ9"
        with pytest.raises(JournalDamaged):
            replay(files | {FIRST: bytes(turned)})
