"""The codec against bytes written by hand from the AMQP 1.0 type chapter."""

from __future__ import annotations

import struct
import uuid

import pytest

from twinbus.amqp.codec import (
    NESTING_MAX,
    ZERO_WIDTH_COUNT_MAX,
    decode,
    decode_whole,
    encode,
    encode_list,
    encode_map,
    list_starts,
    map_pairs,
    skip,
)
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.types import (
    ARRAY_OF_SYMBOL,
    ARRAY_OF_UUID,
    AmqpArray,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

# Value, its bytes as we write them, other spellings that we read.
SPELLINGS: list[tuple[object, str, list[str]]] = [
    (None, "40", []),
    (True, "41", ["5601"]),
    (False, "42", ["5600"]),
    (UByte(200), "50c8", []),
    (UShort(0x1234), "601234", []),
    (UInt(0), "43", ["5200", "7000000000"]),
    (UInt(255), "52ff", ["70000000ff"]),
    (UInt(256), "7000000100", []),
    (ULong(0), "44", ["5300", "800000000000000000"]),
    (ULong(255), "53ff", ["8000000000000000ff"]),
    (ULong(1 << 63), "808000000000000000", []),
    (Byte(-1), "51ff", []),
    (Short(-2), "61fffe", []),
    (Int(-128), "5480", ["71ffffff80"]),
    (Int(1000), "71000003e8", []),
    (-1, "81ffffffffffffffff", ["55ff"]),
    (1 << 40, "810000010000000000", []),
    (Float32(1.5), "723fc00000", []),
    (1.5, "823ff8000000000000", []),
    (Char("é"), "73000000e9", []),
    (Decimal32(b"abcd"), "7461626364", []),
    (Decimal64(b"abcdefgh"), "846162636465666768", []),
    (Decimal128(b"0123456789abcdef"), "9430313233343536373839616263646566", []),
    (Timestamp(-5), "83fffffffffffffffb", []),
    (UUID, "9800112233445566778899aabbccddeeff", []),
    (b"\x00\x01", "a0020001", ["b0000000020001"]),
    ("é", "a102c3a9", ["b100000002c3a9"]),
    (Symbol("ab"), "a3026162", ["b3000000026162"]),
    ([], "45", ["c00100", "d00000000400000000"]),
    ([None, UInt(1)], "c00402405201", ["d0000000070000000240" + "5201"]),
    ({}, "c10100", ["d10000000400000000"]),
    ({Symbol("a"): True}, "c10502a3016141", ["d10000000800000002a3016141"]),
    (Described(ULong(0x24), []), "00532445", ["0080000000000000002445"]),
    (AmqpArray([UUID], ARRAY_OF_UUID), "e0120198" + UUID.hex, []),
    (AmqpArray([Symbol("a")], ARRAY_OF_SYMBOL), "e00701b30000000161", ["e00401a30161"]),
    (AmqpArray([None, None], 0x40), "e0020240", []),
    (AmqpArray([[], []], 0x45), "e0020245", []),
    (AmqpArray([Int(1), Int(2)], 0x54), "e00402540102", ["f00000000700000002540102"]),
    (AmqpArray([Int(7)], 0x54, Symbol("x")), "e0070100a301785407", []),
]


def same(a: object, b: object) -> bool:
    return type(a) is type(b) and repr(a) == repr(b)


@pytest.mark.parametrize(("value", "written", "_others"), SPELLINGS)
def test_values_are_written_in_their_shortest_form(
    value: object, written: str, _others: list[str]
) -> None:
    assert encode(value).hex() == written


@pytest.mark.parametrize(("value", "written", "others"), SPELLINGS)
def test_every_spelling_is_read_with_its_type(
    value: object, written: str, others: list[str]
) -> None:
    for spelling in [written, *others]:
        assert same(decode_whole(bytes.fromhex(spelling)), value), spelling
        assert skip(bytes.fromhex(spelling) + b"rest", 0) == len(spelling) // 2


def test_wide_forms() -> None:
    for value in (b"x" * 300, "y" * 300, Symbol("z" * 300), [None] * 300, {"k": "v" * 300}):
        data = encode(value)
        assert data[0] & 0xF0 in (0xB0, 0xD0)
        assert same(decode_whole(data), value)


def test_array_of_each_kind_round_trips() -> None:
    arrays = [
        AmqpArray([Symbol("a" * 300), Symbol("b")], 0xA3),
        AmqpArray(["a", "b"], 0xA1),
        AmqpArray([b"a"], 0xB0),
        AmqpArray([[1], [2, 3]], 0xC0),
        AmqpArray([{"a": 1}], 0xC1),
        AmqpArray([AmqpArray([1], 0x81), AmqpArray([], 0x81)], 0xE0),
        AmqpArray([AmqpArray(["x" * 300], 0xB1)], 0xF0),
        AmqpArray([True, False], 0x56),
        AmqpArray([Char("a")], 0x73),
        AmqpArray([1.5], 0x82),
        AmqpArray([Timestamp(i) for i in range(300)], 0x83),
    ]
    for array in arrays:
        assert same(decode_whole(encode(array)), array)


def test_array_keeps_element_type_and_descriptor() -> None:
    array = decode_whole(encode(AmqpArray([Int(7)], 0x54, ULong(9))))
    assert isinstance(array, AmqpArray)
    assert (array.code, array.descriptor) == (0x54, 9)


def test_described_values_compare_by_content() -> None:
    assert Described(ULong(1), [2]) == Described(ULong(1), [2])
    assert Described(ULong(1), [2]) != Described(ULong(1), [3])
    assert Described(ULong(1), [2]) != [2]


@pytest.mark.parametrize("value", [object(), AmqpArray([1], 0xFE), (1, 2)])
def test_what_has_no_amqp_type_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        encode(value)


@pytest.mark.parametrize(
    "value", [UByte(256), UInt(-1), UInt(1 << 32), ULong(1 << 64), 1 << 63, Int(1 << 31)]
)
def test_numbers_out_of_range_are_refused(value: object) -> None:
    with pytest.raises((struct.error, ValueError)):
        encode(value)


@pytest.mark.parametrize("value", [Decimal32(b"abc"), Decimal64(b"abc"), Decimal128(b"abc")])
def test_decimals_of_the_wrong_width_are_refused(value: object) -> None:
    with pytest.raises(ValueError):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [
        "",  # nothing
        "7000",  # cut in a number
        "a0",  # no size
        "a00561",  # shorter than its size
        "b00000",  # cut in a wide size
        "b0ffffffff",  # size beyond the bytes
        "1f",  # no such width
        "46",  # no such constant
        "5f00",  # no such type
        "c1020140",  # a key without value
        "c10402404041",  # more bytes than elements: sizes differ
        "c10502c0010040",  # list as a key
        "c00105",  # more elements than bytes
        "c000",  # compound without count
        "d000000000",  # wide compound without count
        "d000000004ffffffff",  # a count of billions
        "e00101",  # array without constructor
        "e0020100",  # described array without descriptor
        "e003010000",  # descriptor of an array cut short
        "e00300a30040",  # bytes after an array's elements
        "e002104000",  # bytes after the array
        "f000000005ffffffff40",  # billions of elements without width
        "f000000005ffffffff81",  # billions of elements
        "a101ff",  # no UTF-8
        "5602",  # neither true nor false
        "7300110000",  # no such character
        "00",  # descriptor missing
        "0053",  # descriptor cut short
        "005324",  # described value missing
    ],
)
def test_hostile_bytes_are_refused(data: str) -> None:
    with pytest.raises(DecodeError):
        decode_whole(bytes.fromhex(data))


def test_the_error_says_where() -> None:
    with pytest.raises(DecodeError) as caught:
        decode(bytes.fromhex("c00402415f01"))
    assert caught.value.position == 5
    assert "byte 5" in str(caught.value)


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> bytes:
        data = b"\x40"
        for _ in range(depth):
            data = encode_list([data])
        return data

    decode_whole(nested(NESTING_MAX))
    for deep in (nested(NESTING_MAX + 1), b"\x00" * 1000 + b"\x40", b"\x00\x40" * 1000):
        with pytest.raises(DecodeError):
            decode_whole(deep)


def test_nested_arrays_are_bounded() -> None:
    array: object = AmqpArray([], 0x81)
    for _ in range(NESTING_MAX + 1):
        array = AmqpArray([array], 0xF0)
    with pytest.raises(DecodeError):
        decode_whole(encode(array))


def test_elements_without_width_are_bounded() -> None:
    few = encode(AmqpArray([None] * ZERO_WIDTH_COUNT_MAX, 0x40))
    assert decode_whole(few) == [None] * ZERO_WIDTH_COUNT_MAX
    with pytest.raises(DecodeError):
        decode_whole(encode(AmqpArray([None] * (ZERO_WIDTH_COUNT_MAX + 1), 0x40)))


def test_skip_neither_recurses_nor_runs_off() -> None:
    assert skip(b"\x00" * 5000 + b"\x40" * 5001, 0) == 10001
    with pytest.raises(DecodeError):
        skip(b"\x00" * 5000, 0)


def test_keys_made_to_have_one_hash_are_refused() -> None:
    """Else a frame of 64 KB takes a second and a half, and a stranger may send it."""
    ids = [uuid.UUID(int=number * 7**40 % 2**128) for number in range(1, 2_000)]
    many: dict[object, object] = dict.fromkeys(ids)
    assert decode_whole(encode(many)) == many
    alike = [(uuid.UUID(int=number * (2**61 - 1)), b"\x40") for number in range(1, 2_000)]
    assert len({hash(key) for key, _ in alike}) == 1
    with pytest.raises(DecodeError, match="alike"):
        decode_whole(encode_map([*alike]))


def test_map_pairs_keep_values_as_they_are() -> None:
    data = bytes.fromhex("c10b04a301615505a101625501")
    pairs = map_pairs(data, 0)
    assert pairs == [("a", b"\x55\x05"), ("b", b"\x55\x01")]
    assert [type(key) for key, _ in pairs] == [Symbol, str]
    assert encode_map(pairs) == data


def test_an_edited_map_keeps_the_other_values() -> None:
    pairs = map_pairs(encode({Symbol("a"): Int(1), Symbol("b"): UUID}), 0)
    pairs[0] = (pairs[0][0], encode("new"))
    pairs.append((Symbol("c"), encode(None)))
    assert decode_whole(encode_map(pairs)) == {"a": "new", "b": UUID, "c": None}


@pytest.mark.parametrize("data", ["", "45", "c1020140", "c10402404041", "c1020205"])
def test_map_pairs_refuse_what_is_no_map(data: str) -> None:
    with pytest.raises(DecodeError):
        map_pairs(bytes.fromhex(data), 0)


def test_list_starts() -> None:
    assert list_starts(bytes.fromhex("c0040240520199"), 0) == ([3, 4], 6)
    assert list_starts(b"\x45", 0) == ([], 1)
    for wrong in (b"", b"\xc1\x01\x00"):
        with pytest.raises(DecodeError):
            list_starts(wrong, 0)
