"""Reading and writing performatives."""

from __future__ import annotations

import pytest

from twinbus.amqp.codec import NULL, decode_whole, encode
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.performatives import (
    TRANSFER_BYTES,
    Fields,
    attach_frame,
    begin_frame,
    close_frame,
    descriptor_at,
    detach_frame,
    disposition,
    end_frame,
    link_flow,
    open_frame,
    read_disposition,
    read_flow,
    read_transfer,
    session_flow,
    transfer_continuation,
    transfer_first,
    transfer_single,
)
from twinbus.amqp.types import Described, Symbol, UByte, UInt, ULong, UShort


def body(frame: bytes) -> tuple[int, Described]:
    """Channel and performative of a frame that has no payload."""
    assert int.from_bytes(frame[:4], "big") == len(frame)
    assert frame[4:6] == b"\x02\x00"
    assert frame[8:10] == b"\x00\x53", "only smallulong descriptors"
    value = decode_whole(frame[8:])
    assert isinstance(value, Described)
    return int.from_bytes(frame[6:8], "big"), value


@pytest.mark.parametrize("spelling", [ULong(0x14), Symbol("amqp:transfer:list")])
def test_descriptors_in_every_spelling(spelling: object) -> None:
    data = b"\x00" + encode(spelling) + b"\x45"
    assert descriptor_at(data, 0) == (0x14, len(data) - 1)
    wide = b"\x00\x80" + (0x14).to_bytes(8, "big") + b"\x45"
    assert descriptor_at(wide, 0) == (0x14, 10)


def test_descriptors_that_are_none() -> None:
    assert descriptor_at(b"\x00" + encode(Symbol("no:such")) + b"\x45", 0)[0] == -1
    for wrong in (b"", b"\x45", b"\x00\xa1\x01a\x45", b"\x00"):
        with pytest.raises(DecodeError):
            descriptor_at(wrong, 0)


def test_fields_left_out_read_as_absent() -> None:
    data = encode(["name", None, UInt(3), True, b"bin", {"k": 1}, -4])
    fields = Fields(data, 0, len(data))
    assert fields.count() == 7
    assert (fields.text(0), fields.text(1), fields.text(9)) == ("name", None, None)
    assert (fields.number(2, 0), fields.number(1, 8), fields.number(9, 9)) == (3, 8, 9)
    assert (fields.boolean(3, False), fields.boolean(1, True)) == (True, True)
    assert (fields.binary(4), fields.binary(1)) == (b"bin", None)
    assert (fields.mapping(5), fields.mapping(9)) == ({"k": 1}, {})
    assert fields.integer(6) == -4
    assert (fields.raw(2), fields.raw(9)) == (b"\x52\x03", NULL)
    assert fields.value(9) is None


def test_fields_of_the_wrong_type() -> None:
    data = encode(["name", -1])
    fields = Fields(data, 0, len(data))
    for read in (fields.binary, fields.mapping, fields.integer):
        with pytest.raises(DecodeError):
            read(0)
    for index in (0, 1):
        with pytest.raises(DecodeError):
            fields.number(index, 0)
    with pytest.raises(DecodeError):
        fields.boolean(0, False)
    with pytest.raises(DecodeError):
        fields.text(1)


def test_fields_stay_within_their_frame() -> None:
    data = encode(["name"])
    with pytest.raises(DecodeError):
        Fields(data + b"more", 0, len(data) - 1)


def transfer(fields: list[object], payload: bytes = b"") -> tuple[object, ...]:
    data = encode(fields) + payload
    return read_transfer(data, 0, len(data))


def test_transfer_with_all_fields() -> None:
    state = Described(ULong(0x34), [b"txn", None])
    fields = [UInt(300), UInt(7), b"tag", UInt(9), True, True, UByte(1), state, True, True, True]
    read = transfer(fields, b"payload")
    assert read[:7] == (300, 7, b"tag", 9, True, True, True)
    assert encode(fields)[read[7] :].startswith(encode(state))  # type: ignore[misc]
    assert read[8] == len(encode(fields))


def test_transfer_with_few_fields() -> None:
    assert transfer([UInt(0)])[:8] == (0, -1, b"", -1, False, False, False, -1)
    assert transfer([UInt(5), None, None, None, None, True])[:6] == (5, -1, b"", -1, False, True)


def test_transfer_in_wide_spellings() -> None:
    wide = b"\x70\x00\x00\x00\x05\x70\x00\x00\x01\x00\xb0\x00\x00\x00\x01t\x43\x56\x01\x56\x00"
    data = b"\xd0" + (len(wide) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x06" + wide
    assert read_transfer(data, 0, len(data))[:6] == (5, 256, b"t", 0, True, False)


@pytest.mark.parametrize(
    "data",
    [
        "",  # nothing
        "45",  # no handle
        "c0020140",  # a null handle
        "c1020143",  # not a list
        "c0020145",  # handle is not a number
        "c0050143",  # list longer than the frame
        "c003034343",  # more fields than bytes
        "c0020270",  # cut in the handle
        "c004034343a105",  # tag is not binary
        "c005034343a0ff",  # tag longer than the frame
        "c00605434340435000",  # settled is not a boolean
        "c00105",  # count beyond the list
        "c000",  # list without count
        "d0000000",  # cut in the size
    ],
)
def test_hostile_transfers_are_refused(data: str) -> None:
    raw = bytes.fromhex(data)
    with pytest.raises(DecodeError):
        read_transfer(raw, 0, len(raw))


def test_a_list_cannot_borrow_from_the_next_frame() -> None:
    """Fields that run past the list's own end are refused even if bytes follow."""
    raw = bytes.fromhex("c002017000000000")
    with pytest.raises(DecodeError):
        read_transfer(raw, 0, len(raw))
    with pytest.raises(DecodeError):
        read_disposition(bytes.fromhex("c0030241" + "7000000000"), 0, 8)
    with pytest.raises(DecodeError):
        read_flow(bytes.fromhex("c0030240" + "7000000000"), 0, 8)


def test_disposition() -> None:
    def read(fields: list[object]) -> tuple[object, ...]:
        data = encode(fields)
        return read_disposition(data, 0, len(data))

    state = Described(ULong(0x24), [])
    assert read([True, UInt(1)])[:4] == (True, 1, 1, False)
    assert read([True, UInt(1), None, True])[:4] == (True, 1, 1, True)
    whole = read([False, UInt(1), UInt(9), True, state, True])
    assert whole[:4] == (False, 1, 9, True)
    assert whole[5] - whole[4] == 4  # type: ignore[operator]
    for wrong in ([], [True], [True, None], [UInt(1), UInt(1)]):
        with pytest.raises(DecodeError):
            read(wrong)
    with pytest.raises(DecodeError):
        read_disposition(b"\xc0", 0, 1)


def test_flow() -> None:
    def read(fields: list[object]) -> tuple[object, ...]:
        data = encode(fields)
        return read_flow(data, 0, len(data))

    assert read([None, UInt(9), UInt(0), UInt(5)]) == (-1, 9, -1, -1, -1, False, False)
    fields = [UInt(1), UInt(2), UInt(3), UInt(4), UInt(5), UInt(6), UInt(7), UInt(8), True, True]
    assert read([*fields, {}]) == (1, 2, 5, 6, 7, True, True)
    for wrong in ([], [UInt(1)], [True, UInt(1)]):
        with pytest.raises(DecodeError):
            read(wrong)
    with pytest.raises(DecodeError):
        read_flow(b"\xc0", 0, 1)


def test_written_transfers_read_back() -> None:
    for tag in (b"t" * 16, b"", b"tag", b"t" * 32):
        size = TRANSFER_BYTES + len(tag)
        single = transfer_single(size, 3, 70_000, 2**32 - 1, tag, 0x80013700, True)
        channel, value = body(single)
        assert channel == 3
        assert value.value == [70_000, 2**32 - 1, tag, 0x80013700, True, False]
    first = decode_whole(transfer_first(1, 2, b"tag", 0, False))
    assert first == Described(ULong(0x14), [1, 2, b"tag", 0, False, True])
    rest = decode_whole(transfer_continuation(1, True, False))
    assert rest == Described(ULong(0x14), [1, None, None, None, True, False])


def test_written_dispositions_read_back() -> None:
    small = disposition(1, True, 5, 9, b"\x00\x53\x24\x45")
    assert body(small) == (
        1,
        Described(ULong(0x15), [True, 5, 9, True, Described(ULong(0x24), [])]),
    )
    large = disposition(0, False, 5, 5, encode("x" * 1000))
    assert body(large)[1].value == [False, 5, 5, True, "x" * 1000]


def test_written_flows_read_back() -> None:
    assert body(session_flow(2, 1, 2, 3, 4)) == (2, Described(ULong(0x13), [1, 2, 3, 4]))
    flow = link_flow(2, 1, 2, 3, 4, 5, 6, 7, True)
    assert body(flow)[1].value == [1, 2, 3, 4, 5, 6, 7, None, True]


def test_written_rare_performatives_read_back() -> None:
    opened = body(open_frame("me", 65536, 4999, 240_000))[1].value
    assert opened == ["me", None, 65536, 4999, 240_000]
    assert isinstance(opened[3], UShort)
    assert body(open_frame("me", 65536, 4999, 0))[1].value[4] is None  # type: ignore[index]
    assert body(begin_frame(7, 0, 1, 2, 3)) == (7, Described(ULong(0x11), [7, 0, 1, 2, 3]))
    attach = body(attach_frame(0, "l", 1, True, NULL + NULL, NULL, NULL, 99, {Symbol("k"): 1}))
    assert attach[1].value == [
        *["l", 1, False, None, None, None, None, None, None, 0, 99, None, None, {"k": 1}]
    ]
    attach = body(attach_frame(0, "l", 1, False, NULL + NULL, NULL, NULL, 0, None))
    assert attach[1].value == ["l", 1, True, *[None] * 11]
    assert body(detach_frame(0, 4, NULL))[1].value == [4, True, None]


def test_empty_performatives_have_the_long_list() -> None:
    """The Python SDK reads a count where the empty list has none."""
    assert end_frame(3).hex() == "0000000e02000003005317c00100"
    assert close_frame(NULL).hex() == "0000000e02000000005318c00100"
