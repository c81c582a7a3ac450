"""A message on its way in and out again (E4): what was sent is what is delivered."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import pytest
from engine_kit import section
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp import codec, decimals
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.sections import APPLICATION_PROPERTIES, DATA, PROPERTIES
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, UByte, UInt, ULong
from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.core.units import UNLIMITED_MS
from twinbus.engine import stored as form
from twinbus.engine.message import take_in

HIGH = b"\x01\x02\x03\x04\x05\x06\x07\x08"
BODY = section(DATA, b"body")
WITH_ID = section(PROPERTIES, ["id"])

Sections = list[tuple[int, object]]


def no_id() -> str:
    raise AssertionError("the message has an id")


def sections(payload: bytes) -> Sections:
    found: Sections = []
    pos = 0
    while pos < len(payload):
        value, pos = codec.decode(payload, pos)
        assert isinstance(value, Described)
        assert isinstance(value.descriptor, int)
        found.append((int(value.descriptor), value.value))
    return found


def locked(stored: bytes, count: int = 0) -> bytes:
    """The message as a peek-lock delivery."""
    head = form.locked_head(stored, 5, 1_000, count, HIGH, 77, 31_000)
    return head + stored[form.bare_start(stored) :]


def free(stored: bytes, count: int = 0, state: int = 0) -> bytes:
    """The message as it is received and deleted, or peeked at."""
    return form.free_head(stored, 5, 1_000, count, state) + stored[form.bare_start(stored) :]


TOKEN = UUID(bytes=HIGH + (77).to_bytes(8, "big"))
LOCKED_ANNOTATIONS = {
    "x-opt-sequence-number": 5,
    "x-opt-enqueued-time": 1_000,
    "x-opt-locked-until": 31_000,
}


# --- bodies and bare messages ------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.integers(0, 2**32 - 1).map(UInt),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
bodies = (
    st.binary(max_size=400).map(lambda data: section(DATA, data))
    | st.lists(st.binary(max_size=9), min_size=2, max_size=3).map(
        lambda parts: b"".join(section(DATA, part) for part in parts)
    )
    | values.map(lambda value: section(0x77, value))
    | st.lists(values, max_size=3).map(lambda items: section(0x76, items))
)
headers = st.none() | st.builds(
    lambda durable, priority, ttl: section(0x70, [durable, priority, ttl]),
    st.sampled_from([None, True, False]),
    st.none() | st.integers(0, 254).map(UByte),
    st.none() | st.integers(1, 2**32 - 2).map(UInt),
)
keys = st.text("abc", min_size=1, max_size=5).map(Symbol)
annotation_maps = st.none() | st.dictionaries(keys, values, max_size=4)
application_properties = st.none() | st.dictionaries(st.text(max_size=5), values, max_size=4)
footers = st.none() | st.dictionaries(keys, values, max_size=2)


@given(
    headers, annotation_maps, annotation_maps, application_properties, bodies, footers,
    st.booleans(), st.booleans(), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_e4_what_was_sent_is_what_is_delivered(
    header: bytes | None, delivery: dict[Symbol, object] | None,
    annotations: dict[Symbol, object] | None, properties: dict[str, object] | None, body: bytes,
    footer: dict[Symbol, object] | None, delivery_last: bool, is_locked: bool, count: int,
) -> None:  # fmt: skip
    bare = section(PROPERTIES, ["id", None, "to"])
    if properties is not None:
        bare += section(APPLICATION_PROPERTIES, properties)
    bare += body
    if footer is not None:
        bare += section(0x78, footer)
    delivery_section = b"" if delivery is None else section(0x71, delivery)
    annotation_section = b"" if annotations is None else section(0x72, annotations)
    front = header or b""
    if delivery_last:
        payload = front + annotation_section + bare + delivery_section
    else:
        payload = front + delivery_section + annotation_section + bare
    message = take_in(payload, no_id)
    out = locked(message.stored, count) if is_locked else free(message.stored, count)

    assert out.endswith(bare)
    (_, head), (_, delivered), (_, annotated) = sections(out[: -len(bare)])
    sent = sections(header)[0][1] if header else [None, None, None]
    assert isinstance(sent, list)
    assert head == [sent[0] or None, *sent[1:], None, count]
    token = {"x-opt-lock-token": TOKEN} if is_locked else {}
    assert delivered == {**token, **(delivery or {})}
    known = dict(LOCKED_ANNOTATIONS)
    if not is_locked:
        del known["x-opt-locked-until"]
    assert annotated == {**known, **(annotations or {})}


def test_e4_types_on_the_wire_are_those_that_clients_expect() -> None:
    out = locked(take_in(WITH_ID + BODY, no_id).stored)
    (_, head), (_, delivered), (_, annotated), *_ = sections(out)
    assert isinstance(head, list)
    assert isinstance(head[4], UInt)
    assert isinstance(delivered, dict)
    assert isinstance(annotated, dict)
    assert all(isinstance(key, Symbol) for key in (*delivered, *annotated))
    assert type(annotated["x-opt-sequence-number"]) is int
    assert isinstance(annotated["x-opt-enqueued-time"], Timestamp)
    assert isinstance(annotated["x-opt-locked-until"], Timestamp)


@pytest.mark.parametrize(("state", "shown"), [(1, 1), (2, 2)])
def test_e5_a_peeked_message_says_its_state(state: int, shown: int) -> None:
    out = free(take_in(WITH_ID + BODY, no_id).stored, state=state)
    annotated = sections(out)[2][1]
    assert isinstance(annotated, dict)
    assert annotated["x-opt-message-state"] == Int(shown)
    assert isinstance(annotated["x-opt-message-state"], Int)


# --- what the broker adds or takes away --------------------------------------------------


@pytest.mark.parametrize(
    "front",
    [
        b"",
        section(PROPERTIES, []),
        section(PROPERTIES, [None, None, "to"]),
        b"\0\x53\x73\xd0\0\0\0\4\0\0\0\0",
    ],
    ids=["no properties", "empty", "null", "empty and long"],
)
def test_e4_a_message_without_id_gets_one(front: bytes) -> None:
    message = take_in(front + BODY, lambda: "fresh")
    assert message.properties()[0] == "fresh"
    assert message.stored.endswith(BODY)
    if front.endswith(b"to"):
        assert message.properties()[2] == "to"


def test_e4_what_only_the_broker_may_say_is_taken_away() -> None:
    forged = {
        Symbol("x-opt-sequence-number"): 99,
        Symbol("x-opt-deadletter-source"): "nowhere",
        Symbol("x-opt-partition-key"): "kept",
    }
    out = locked(take_in(section(0x72, forged) + WITH_ID + BODY, no_id).stored)
    annotated = sections(out)[2][1]
    assert annotated == {**LOCKED_ANNOTATIONS, "x-opt-partition-key": "kept"}


def test_e4_empty_annotations_are_as_good_as_none() -> None:
    empty = section(0x71, {}) + section(0x72, {})
    message = take_in(empty + WITH_ID + BODY, no_id)
    assert not form.has_annotations(message.stored)


def test_e5_the_scheduled_time_is_read_and_kept() -> None:
    due = section(0x72, {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5_000)})
    message = take_in(due + WITH_ID + BODY, no_id)
    assert message.scheduled_ms == 5_000
    assert form.annotation(message.stored, form.SCHEDULED_TIME) == 5_000


def test_e5_a_scheduled_time_beyond_all_calendars_is_brought_back() -> None:
    due = section(0x72, {Symbol("x-opt-scheduled-enqueue-time"): ULong(2**64 - 1)})
    assert take_in(due + WITH_ID + BODY, no_id).scheduled_ms < 2**62


@pytest.mark.parametrize(
    ("fields", "ttl_ms"),
    [
        ([], UNLIMITED_MS),
        ([True, UByte(4), None], UNLIMITED_MS),
        ([None, None, UInt(0)], UNLIMITED_MS),
        ([None, None, UInt(1)], 1),
        ([None, None, UInt(2**32 - 1)], UNLIMITED_MS),
        ([None, Int(-1), ULong(2**40)], UNLIMITED_MS),
    ],
)
def test_e4_time_to_live_in_the_header(fields: list[object], ttl_ms: int) -> None:
    assert take_in(section(0x70, fields) + WITH_ID + BODY, no_id).ttl_ms == ttl_ms


def test_e4_sizes_are_counted_as_on_the_wire() -> None:
    properties = section(APPLICATION_PROPERTIES, {"a": "b" * 300})
    annotations = section(0x72, {Symbol("x"): "y" * 300})
    payload = annotations + WITH_ID + properties + BODY
    message = take_in(payload, no_id)
    assert message.wire_bytes == len(payload)
    assert message.header_bytes == len(annotations) + len(WITH_ID) + len(properties)


# --- what cannot be read -----------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0",
        b"hello",
        section(0x70, []),
        section(0x70, "no list") + BODY,
        section(0x69, {}) + BODY,
        section(0x79, {}) + BODY,
        WITH_ID + BODY[:-1],
        section(0x72, ["no", "map", 1]) + WITH_ID + BODY,
        WITH_ID + section(APPLICATION_PROPERTIES, "no map") + BODY,
        section(PROPERTIES, "no list") + BODY,
        b"\0\x53\x73\xc0\x05\x02\xa1\x01i\x05" + BODY,
        b"\0\x53\x73\xc0\x05\x01\xa1\x01i\x40" + BODY,
        b"\0\x53\x73\xc0\x04\x02\xa1\x01i" + BODY,
        b"\0\x53\x73\xc0\x04\x01\xa1\x02i" + BODY,
    ],
)
def test_a_message_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises((DecodeError, BusError)):
        take_in(payload, lambda: "fresh")


def test_e4_properties_that_cannot_be_read_are_refused_when_they_are_needed() -> None:
    broken = b"\0\x53\x73\xc0\x04\x01\xa1\x01\xff"
    message = take_in(broken + BODY, no_id)
    with pytest.raises(BusError) as raised:
        message.session_id()
    assert raised.value.kind is errors.DECODE_ERROR
    too_many = take_in(section(PROPERTIES, ["id"] * 14) + BODY, no_id)
    with pytest.raises(BusError):
        too_many.properties()


@given(st.binary(max_size=60))
def test_strangers_bytes_are_refused_or_pass_through(noise: bytes) -> None:
    for payload in (noise, noise + BODY, b"\0\x53\x72" + noise + BODY, WITH_ID + noise):
        try:
            message = take_in(payload, lambda: "fresh")
        except (DecodeError, BusError):
            continue
        assert locked(message.stored)
        assert free(message.stored, state=1)


def test_e4_decimals_go_to_the_python_sdk_in_its_form_and_back() -> None:
    price = decimals.write(Decimal("-12.50"))
    other = section(APPLICATION_PROPERTIES, {"price": price, "n": 1, "text": "\x94\x30"})
    message = take_in(WITH_ID + other + BODY, no_id)
    bare = message.stored[form.bare_start(message.stored) :]
    shown = form.for_python_sdk(bare)
    assert shown == bare.replace(b"\x94\xb0", b"\x94\x8c")
    assert form.from_python_sdk(shown) == bare
    assert form.from_python_sdk(bare) == bare
    plain = WITH_ID + section(APPLICATION_PROPERTIES, {"n": 1}) + BODY
    assert form.for_python_sdk(plain) is plain


@pytest.mark.parametrize("noise", [b"\x94\x0c", b"\0\x53\x74\x40\x94\x0c", b"\0\x53\x74\x94\x0c"])
def test_e4_from_the_python_sdk_may_come_anything(noise: bytes) -> None:
    with pytest.raises(DecodeError):
        form.from_python_sdk(noise)


# --- editing -----------------------------------------------------------------------------


def test_d2_burying_adds_properties_and_the_source() -> None:
    message = take_in(WITH_ID + section(APPLICATION_PROPERTIES, {"a": 1}) + BODY, no_id)
    buried = message.buried("reason", "description", "Queue", {"b": True})
    pairs = buried.application_properties()
    assert {str(k): codec.decode_whole(raw) for k, raw in pairs} == {
        "a": 1,
        "b": True,
        "DeadLetterReason": "reason",
        "DeadLetterErrorDescription": "description",
    }
    assert form.annotation(buried.stored, "x-opt-deadletter-source") == "Queue"
    assert buried.stored.endswith(BODY)
    assert not form.has_annotations(message.stored)
    buried.revive(7, 3)
    assert "DeadLetterReason" not in dict(buried.application_properties())
    assert form.annotation(buried.stored, "x-opt-deadletter-source") is None
    assert form.annotation(buried.stored, "x-opt-resubmission") == "7:3"


def test_r4_merged_properties_keep_the_types_of_the_others() -> None:
    given_properties = {"n": UInt(7), "when": Timestamp(5), "s": "x"}
    message = take_in(WITH_ID + section(APPLICATION_PROPERTIES, given_properties) + BODY, no_id)
    message.merge_properties({"s": Symbol("y"), "new": None})
    pairs = {str(k): codec.decode_whole(raw) for k, raw in message.application_properties()}
    assert pairs == {"n": 7, "when": 5, "s": "y", "new": None}
    assert isinstance(pairs["n"], UInt)
    assert isinstance(pairs["when"], Timestamp)


def test_sections_are_put_in_their_order() -> None:
    message = take_in(BODY, lambda: "fresh")
    message.merge_properties({"a": 1})
    codes = [code for code, _ in sections(message.stored[form.bare_start(message.stored) :])]
    assert codes == [PROPERTIES, APPLICATION_PROPERTIES, DATA]


def test_annotations_are_set_replaced_and_removed() -> None:
    stored = take_in(section(0x71, {Symbol("d"): 1}) + WITH_ID + BODY, no_id).stored
    stored = form.with_annotation(stored, "x", codec.encode(1))
    stored = form.with_annotation(stored, "y", codec.encode(2))
    stored = form.with_annotation(stored, "x", codec.encode(3))
    assert form.annotation(stored, "x") == 3
    stored = form.without_annotation(stored, "x")
    assert form.annotation(stored, "x") is None
    (_, delivered), (_, annotated) = sections(free(stored))[1:3]
    assert delivered == {"d": 1}
    assert isinstance(annotated, dict)
    assert annotated["y"] == 2


def test_e5_a_message_can_be_peeked_at_without_its_body() -> None:
    message = take_in(WITH_ID + section(APPLICATION_PROPERTIES, {"a": 1}) + BODY, no_id)
    stored, start = form.without_body(message.stored)
    out = form.free_head(stored, 5, 1_000, 0) + stored[start:]
    found = sections(out)
    assert [code for code, _ in found] == [0x70, 0x71, 0x72, PROPERTIES, APPLICATION_PROPERTIES]
    assert found[1][1] == {"omitted-message-body-size": len(BODY)}


def test_the_header_shows_the_time_to_live_that_counts() -> None:
    message = take_in(section(0x70, [True, None, UInt(9_000)]) + WITH_ID + BODY, no_id)
    message.limit_ttl(4_000)
    assert message.ttl_ms == 4_000
    assert sections(free(message.stored))[0][1] == [True, None, 4_000, None, 0]
