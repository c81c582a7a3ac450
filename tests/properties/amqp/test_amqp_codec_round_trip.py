"""Any value: encoded and decoded it is the same value of the same type."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.codec import (
    ZERO_WIDTH_COUNT_MAX,
    decode,
    decode_whole,
    encode,
    encode_map,
    map_pairs,
    skip,
)
from twinbus.amqp.counting import check_values
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.types import (
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


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def single(value: float) -> Float32:
    return Float32(struct.unpack(">f", struct.pack(">f", value))[0])


text = st.text(max_size=300)
symbols = st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol)

# Each with the constructor under which it may stand in an array.
scalars: dict[int, st.SearchStrategy[Any]] = {
    0x40: st.none(),
    0x56: st.booleans(),
    0x50: unsigned(8).map(UByte),
    0x60: unsigned(16).map(UShort),
    0x70: unsigned(32).map(UInt),
    0x80: unsigned(64).map(ULong),
    0x51: signed(8).map(Byte),
    0x61: signed(16).map(Short),
    0x71: signed(32).map(Int),
    0x81: signed(64),
    0x72: st.floats(width=32).map(single),
    0x82: st.floats(),
    0x73: st.characters(exclude_categories=[]).map(Char),
    0x74: st.binary(min_size=4, max_size=4).map(Decimal32),
    0x84: st.binary(min_size=8, max_size=8).map(Decimal64),
    0x94: st.binary(min_size=16, max_size=16).map(Decimal128),
    0x83: signed(64).map(Timestamp),
    0x98: st.uuids(),
    0xB0: st.binary(max_size=300),
    0xB1: text,
    0xB3: symbols,
}

arrays = st.one_of(
    [
        st.lists(strategy, max_size=ZERO_WIDTH_COUNT_MAX if code < 0x50 else 20).map(
            lambda items, code=code: AmqpArray(items, code)
        )
        for code, strategy in scalars.items()
    ]
)
keys = st.one_of(text, symbols)


def compounds(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=8),
        st.dictionaries(keys, inner, max_size=8),
        st.builds(Described, st.one_of(symbols, unsigned(64).map(ULong)), inner),
        st.lists(st.lists(inner, max_size=3), max_size=3).map(lambda v: AmqpArray(v, 0xD0)),
        st.lists(st.dictionaries(keys, inner, max_size=3), max_size=3).map(
            lambda v: AmqpArray(v, 0xD1)
        ),
    )


values = st.recursive(st.one_of(*scalars.values(), arrays), compounds, max_leaves=20)


def same(a: object, b: object) -> bool:
    """Equal, of equal types, all the way down; a NaN equals itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Described) and isinstance(b, Described):
        return same(a.descriptor, b.descriptor) and same(a.value, b.value)
    if isinstance(a, AmqpArray) and isinstance(b, AmqpArray) and a.code != b.code:
        return False
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    return repr(a) == repr(b)


@given(values)
def test_round_trip(value: object) -> None:
    data = encode(value)
    again = decode_whole(data)
    assert same(again, value)
    assert encode(again) == data
    assert skip(data + b"\x40", 0) == len(data)


def count_of(value: object) -> int:
    """A value and all that is in it."""
    if isinstance(value, Described):
        return 1 + count_of(value.descriptor) + count_of(value.value)
    if isinstance(value, dict):
        return 1 + sum(count_of(k) + count_of(v) for k, v in value.items())
    if isinstance(value, list):
        return 1 + sum(map(count_of, value))
    return 1


@given(values)
def test_values_are_counted_without_building_them(value: object) -> None:
    data = encode(value)
    count = count_of(value)
    check_values(data, count)
    with pytest.raises(DecodeError):
        check_values(data, count - 1)


@given(st.dictionaries(keys, values, max_size=8))
def test_a_map_taken_apart_and_put_together_is_the_same(pairs: dict[object, object]) -> None:
    data = encode(pairs)
    assert encode_map(map_pairs(data, 0)) == data


@given(values, st.data())
def test_what_is_cut_short_is_refused(value: object, draw: st.DataObject) -> None:
    data = encode(value)
    cut = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(DecodeError) as caught:
        decode(data[:cut])
    assert 0 <= caught.value.position <= cut


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        value, end = decode(data)
    except DecodeError:
        return
    assert 0 < end <= len(data)
    assert same(decode_whole(encode(value)), value)


@given(values, st.data())
def test_mutated_values_decode_or_are_refused(value: object, draw: st.DataObject) -> None:
    data = bytearray(encode(value))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    for read in (decode, skip, map_pairs):
        try:
            read(bytes(data), 0)
        except DecodeError:
            continue


def test_uuids_are_the_standard_ones() -> None:
    assert decode_whole(encode(uuid.UUID(int=1))) == uuid.UUID(int=1)
