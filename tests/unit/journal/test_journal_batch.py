"""The bytes of a batch, pinned: journals written today must still open tomorrow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinbus.journal.batch import (
    CARRIED,
    HEADER_BYTES,
    entries,
    find_later,
    is_whole,
    make_header,
    pack_word,
    parse,
)
from twinbus.journal.writer import LARGE_PIECE_BYTES, gather

GOLDEN = bytes.fromhex(
    "54574a31"  # TWJ1
    "effe563e"  # crc32 of all that follows
    "3d000000"  # length 61
    "efbeadde"  # crc of the batch before
    "0000000007000000"  # location: segment 7, offset 0
    "2a00000000000000"  # first LSN 42
    "01000000"  # one LSN
    "02000000"  # two records
    "00b092e48b010000"  # time
    "03000000616263"  # a fact: abc
    "020000807879"  # a carried record: xy
)


def encode(records: list[tuple[bool, bytes]], location: int, first_lsn: int) -> bytes:
    parts: list[bytes] = []
    for is_carried, record in records:
        parts += (pack_word(len(record) | (CARRIED if is_carried else 0)), record)
    header, _ = make_header(
        parts,
        location=location,
        length=HEADER_BYTES + sum(map(len, parts)),
        previous=0xDEADBEEF,
        first_lsn=first_lsn,
        lsn_count=sum(not is_carried for is_carried, _ in records),
        record_count=len(records),
        time_ms=1_700_346_900_480,
    )
    return b"".join([header, *parts])


def test_the_format_is_what_it_was() -> None:
    data = encode([(False, b"abc"), (True, b"xy")], 7 << 32, 42)
    assert data.hex() == GOLDEN.hex()
    batch = parse(GOLDEN, 0, 7 << 32)
    assert batch is not None
    assert is_whole(GOLDEN, 0, batch)
    assert batch.next_lsn == 43
    base = 7 << 32
    assert list(entries(GOLDEN, batch)) == [
        (42, base | 52, batch.time_ms, b"abc"),
        (0, base | 59, batch.time_ms, b"xy"),
    ]


@given(
    records=st.lists(st.tuples(st.booleans(), st.binary(max_size=50)), max_size=20),
    padding=st.binary(max_size=60),
    first_lsn=st.integers(1, 2**63),
)
def test_what_is_encoded_is_found_and_decoded(
    records: list[tuple[bool, bytes]], padding: bytes, first_lsn: int
) -> None:
    offset = len(padding)
    data = padding + encode(records, 3 << 32 | offset, first_lsn) + padding
    batch = find_later(data, 0, 3, first_lsn)
    assert batch is not None
    assert batch.offset == offset
    found = list(entries(data, batch))
    assert [(lsn == 0, record) for lsn, _, _, record in found] == records
    for _, location, _, record in found:
        start = location - (3 << 32)
        assert data[start : start + len(record)] == record
    assert [lsn for lsn, *_ in found if lsn] == list(range(first_lsn, batch.next_lsn))


@given(position=st.integers(0, len(GOLDEN) - 1), bit=st.integers(0, 7))
def test_every_flipped_bit_is_noticed(position: int, bit: int) -> None:
    flipped = bytearray(GOLDEN)
    flipped[position] ^= 1 << bit
    batch = parse(bytes(flipped), 0, 7 << 32)
    assert batch is None or not is_whole(bytes(flipped), 0, batch)


def test_a_batch_counts_only_where_and_when_it_was_written() -> None:
    assert parse(GOLDEN, 0, 8 << 32) is None
    assert parse(b"x" + GOLDEN, 1, 7 << 32 | 1) is None
    assert find_later(GOLDEN, 0, 7, 42) is not None
    assert find_later(GOLDEN, 0, 7, 43) is None


def test_large_parts_are_not_copied() -> None:
    large = bytes(LARGE_PIECE_BYTES * 4)
    pieces = gather([b"a", b"b", large, b"c", b"d"], len(large) + 4)
    assert pieces == [b"ab", large, b"cd"]
    assert pieces[1] is large
    assert gather([b"a", b"b"], 2) == [b"ab"]
