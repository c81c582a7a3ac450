"""Values are counted before they are built, those in arrays and descriptors as well."""

from __future__ import annotations

import pytest

from twinbus.amqp.codec import NESTING_MAX, decode_whole, encode
from twinbus.amqp.counting import check_values
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.types import AmqpArray, Described, Symbol, UInt, ULong

LONG = "x" * 300

CASES: list[tuple[object, int]] = [
    (None, 1),
    (LONG, 1),
    ([], 1),
    ([[], [], []], 4),
    ([[[]]], 3),
    ([None] * 300, 301),
    ({"a": [1, 2], "b": {}}, 7),
    (Described(ULong(5), [1, 2]), 5),
    (AmqpArray([1, 2, 3], 0x81), 4),
    (AmqpArray([1] * 300, 0x81), 301),
    (AmqpArray(["a", LONG], 0xA1), 3),
    (AmqpArray([None] * 4, 0x40), 5),
    (AmqpArray([UInt(1)], 0x70, Described(ULong(1), [2, 3])), 7),
    (AmqpArray([[1, 2], [], [[]]], 0xC0), 7),
    (AmqpArray([{"a": [1]}], 0xC1), 5),
    (AmqpArray([AmqpArray([1, 2], 0x81), AmqpArray([[]] * 4, 0x45)], 0xE0), 9),
    ([AmqpArray([[]] * 4, 0x45)] * 50, 251),
    ([Symbol("a"), AmqpArray([], 0x81), "b"], 4),
]


@pytest.mark.parametrize(("value", "count"), CASES)
def test_as_many_as_there_are_and_no_more(value: object, count: int) -> None:
    raw = encode(value)
    # Among others, so that the bytes are always worth counting.
    raw = encode([None] * 1000)[:-1000] + b"\x40" * 999 + raw
    check_values(raw, 1000 + count)
    with pytest.raises(DecodeError, match=f"more than {999 + count} values"):
        check_values(raw, 999 + count)


def test_narrow_arrays_in_arrays_are_the_tightest() -> None:
    """What is not counted because it is short has no more values than that."""
    inner = b"\x02\x04\x45"
    raw = bytes((0xE0, 2 + len(inner) * 80, 80, 0xE0)) + inner * 80
    assert decode_whole(raw) == [[[]] * 4] * 80
    check_values(raw, 401)
    with pytest.raises(DecodeError):
        check_values(raw, 400)
    assert len(raw) * 2 >= 401


@pytest.mark.parametrize(
    "raw",
    [
        b"\xd0\x00\x00\xff\xff\x00\x00\x00\x05\x40",
        b"\xf0\x00\x00\x00\x09\x7f\xff\xff\xff\x40\x40\x40\x40\x40",
        b"\xe0\x02\xff\x45",
        b"\xe0\x05\x02\xd0\x00\x00\x00",
        b"\xe0\x01\x01",
        b"\xe0\x03\x01\x00\xa1",
        b"\xa1\xff",
        b"\x00",
        b"\x3f",
        b"\xe0\x03\x01\xe0" * 3,
    ],
)
def test_what_is_malformed_is_left_to_the_decoder(raw: bytes) -> None:
    check_values(raw, 6)
    with pytest.raises(DecodeError):
        decode_whole(raw)


def test_arrays_in_arrays_leave_no_stack_to_exhaust() -> None:
    array: object = AmqpArray([], 0x81)
    for _ in range(NESTING_MAX * 3):
        array = AmqpArray([array], 0xF0)
    raw = encode(array)
    check_values(raw, len(raw))
    check_values(raw, NESTING_MAX * 2)


def test_counting_ends_at_the_limit() -> None:
    raw = encode([[]] * 100_000)
    with pytest.raises(DecodeError):
        check_values(raw, 10)
