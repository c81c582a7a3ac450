"""Decimals of 4, 8 and 16 bytes, read and written; the bytes are those of IEEE 754-2008."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp import decimals
from twinbus.amqp.types import Decimal32, Decimal64, Decimal128

ONE = "30400000000000000000000000000001"
LARGEST = "5fffed09bead87c0378d8e63ffffffff"


@pytest.mark.parametrize(
    ("raw", "number"),
    [
        (ONE, "1"),
        ("b0400000000000000000000000000001", "-1"),
        ("303e0000000000000000000000000001", "0.1"),
        ("303c00000000000000000000000004e2", "12.50"),
        ("30400000000000000000000000000000", "0"),
        (LARGEST, "9.999999999999999999999999999999999E+6144"),
        ("0c3c00000000000000000000000004e2", "12.50"),
    ],
    ids=["one", "negative", "tenth", "cents", "zero", "largest", "as Azure writes it"],
)
def test_sixteen_bytes(raw: str, number: str) -> None:
    found = decimals.read(Decimal128(bytes.fromhex(raw)))
    assert str(found) == str(Decimal(number))


@pytest.mark.parametrize(
    ("raw", "number"), [("32800001", "1"), ("b2800001", "-1"), ("6cb8967f", "9999999")]
)
def test_four_bytes(raw: str, number: str) -> None:
    assert decimals.read(Decimal32(bytes.fromhex(raw))) == Decimal(number)


@pytest.mark.parametrize(
    ("raw", "number"),
    [("31c0000000000001", "1"), ("31800000000004e2", "12.50"), ("6c7386f26fc0ffff", "9" * 16)],
)
def test_eight_bytes(raw: str, number: str) -> None:
    assert decimals.read(Decimal64(bytes.fromhex(raw))) == Decimal(number)


@pytest.mark.parametrize("first", [0x78, 0xF8, 0x7C])
def test_what_is_no_number(first: int) -> None:
    assert decimals.read(Decimal128(bytes([first]) + bytes(15))) is None


@given(st.binary(min_size=16, max_size=16))
def test_strangers_bytes_do_no_harm(raw: bytes) -> None:
    found = decimals.read(Decimal128(raw))
    if found is not None:
        assert decimals.write(found) is not None


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=4, min_value=-(10**20), max_value=10**20
    )
)
def test_what_is_written_is_read_again(number: Decimal) -> None:
    raw = decimals.write(number)
    assert raw is not None
    assert decimals.read(raw) == number
    azure = Decimal128(bytes([decimals.as_azure_has_it(raw[0])]) + raw[1:])
    assert azure != raw
    assert decimals.read(azure) == number


def test_what_sixteen_bytes_cannot_hold() -> None:
    assert decimals.write(Decimal("NaN")) is None
    assert decimals.write(Decimal("-Infinity")) is None
    assert decimals.write(Decimal("1E+7000")) is None
    third = decimals.write(Decimal(1) / Decimal(3))
    assert third is not None
    assert decimals.read(third) == Decimal(1) / Decimal(3)
