"""What arrives equals what was sent (P8): the SDK encodes, a backlog broker adds its marks,
`restore` undoes, and the result is compared type by type with the direct send."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.amqp import codec
from twinbus.amqp.types import Described, Symbol, Timestamp, UInt
from twinbus.pairing import rewrite, sdk

NOW_MS = 1_700_000_000_000
SCHEDULE = datetime(2031, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
ULONG_HEADER, ULONG_DELIVERY, ULONG_ANNOTATIONS = 0x70, 0x71, 0x72
ULONG_PROPERTIES, ULONG_APPLICATION = 0x73, 0x74


def encoded(message: AmqpAnnotatedMessage) -> bytes:
    """The bytes that the SDK would send."""
    output = bytearray()
    encode_payload(output, PyamqpTransport.to_outgoing_amqp_message(message))
    return bytes(output)


def sections(payload: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    position = 0
    while position < len(payload):
        section, position = codec.decode(payload, position)
        assert isinstance(section, Described)
        assert isinstance(section.descriptor, int)
        found.setdefault(int(section.descriptor), []).append(section.value)
    return found


def typed(value: Any) -> Any:
    """A value with its types made visible to ==, since UInt(1) == 1 == True."""
    if isinstance(value, list):
        return [type(value).__name__, *map(typed, value)]
    if isinstance(value, dict):
        return {(type(k).__name__, k): typed(v) for k, v in value.items()}
    if isinstance(value, Described):
        return ("described", typed(value.descriptor), typed(value.value))
    return (type(value).__name__, repr(value))


def meaning(payload: bytes, times_too: bool = True) -> dict[int, Any]:
    """A message to compare by: nulls at the end of a list and empty sections mean nothing."""
    result: dict[int, Any] = {}
    for code, values in sections(payload).items():
        value = values if code >= 0x75 else values[0]
        if code == ULONG_PROPERTIES:
            value = list(value)
            if not times_too:
                value[8:10] = [None] * len(value[8:10])
        if code in (ULONG_HEADER, ULONG_PROPERTIES):
            while value and value[-1] is None:
                value.pop()
        if value or code >= 0x75:
            result[code] = typed(value)
    return result


def through_a_broker(payload: bytes) -> bytes:
    """What a backlog queue's receiver gets: the message with the broker's marks on it."""
    found = sections(payload)
    header = [*found.get(ULONG_HEADER, [[]])[0], None, None, None, None, None][:4]
    found[ULONG_HEADER] = [[*header, UInt(3)]]
    delivery = found.setdefault(ULONG_DELIVERY, [{}])[0]
    delivery[Symbol("x-opt-lock-token")] = uuid.uuid4()
    marks = found.setdefault(ULONG_ANNOTATIONS, [{}])[0]
    marks[Symbol("x-opt-sequence-number")] = 17
    marks[Symbol("x-opt-enqueued-time")] = Timestamp(NOW_MS)
    marks[Symbol("x-opt-locked-until")] = Timestamp(NOW_MS + 60_000)
    return b"".join(
        bytes((0, 0x53, code)) + codec.encode(value)
        for code, values in sorted(found.items())
        for value in values
    )


def round_trip(message: AmqpAnnotatedMessage, schedule: datetime | None = None) -> bytes:
    rewritten = rewrite.to_backlog(message, "orders", NOW_MS, schedule)
    restored = rewrite.restore(through_a_broker(encoded(rewritten)))
    assert restored.path == "orders"
    return restored.payload


simple = st.one_of(
    st.text(max_size=20),
    st.binary(max_size=20),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(allow_nan=False),
    st.uuids(),
    st.none(),
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2100, 1, 1)),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: {"TYPE": "LONG", "VALUE": n}),
    st.integers(0, 2**64 - 1).map(lambda n: {"TYPE": "ULONG", "VALUE": n}),
    st.integers(0, 255).map(lambda n: {"TYPE": "UBYTE", "VALUE": n}),
    st.integers(-(2**15), 2**15 - 1).map(lambda n: {"TYPE": "SHORT", "VALUE": n}),
    st.floats(width=32, allow_nan=False).map(lambda f: {"TYPE": "FLOAT", "VALUE": f}),
    st.binary(max_size=9).map(lambda b: {"TYPE": "BINARY", "VALUE": b}),
    st.just({"TYPE": "SYMBOL", "VALUE": "a-symbol"}),
)
properties_ = st.dictionaries(
    # Hypothesis reads the sources for constants to try, and some of them are refused.
    st.text(min_size=1, max_size=12).filter(lambda name: name not in rewrite.ALIASES),
    # The SDK itself turns plain bytes in application properties into text.
    simple.filter(lambda v: not isinstance(v, bytes)),
    max_size=6,
)
nested = st.recursive(
    simple.filter(lambda v: not isinstance(v, dict)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
bodies = st.one_of(
    st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(lambda b: {"data_body": b}),
    nested.map(lambda b: {"value_body": b}),
    st.lists(st.lists(nested, max_size=3), min_size=1, max_size=3).map(
        lambda b: {"sequence_body": b}
    ),
)
ids = st.one_of(
    st.text(min_size=1, max_size=20),
    st.binary(min_size=1, max_size=20),
    st.uuids(),
    st.integers(0, 2**64 - 1),
)
messages = st.builds(
    lambda body, **fields: AmqpAnnotatedMessage(**body, **fields),
    bodies,
    application_properties=properties_,
    header=st.fixed_dictionaries(
        {},
        optional={
            "time_to_live": st.integers(0, 2**32 - 1),
            "durable": st.booleans(),
            "priority": st.integers(0, 255),
        },
    ),
    properties=st.fixed_dictionaries(
        {},
        optional={
            "message_id": ids,
            "correlation_id": ids,
            "user_id": st.binary(max_size=5),
            "subject": st.text(max_size=9),
            "to": st.text(max_size=9),
            "reply_to": st.text(max_size=9),
            "content_type": st.just("text/plain"),
            "group_id": st.text(max_size=128),
            "group_sequence": st.integers(1, 9),
            "reply_to_group_id": st.text(max_size=9),
        },
    ),
    annotations=st.fixed_dictionaries(
        {},
        optional={
            "x-opt-scheduled-enqueue-time": st.just(SCHEDULE),
            b"x-opt-partition-key": st.just("north"),
            "x-mine": simple.filter(lambda v: not isinstance(v, dict)),
        },
    ),
    delivery_annotations=st.dictionaries(st.just("x-hop"), st.integers(0, 9)),
    footer=st.none(),
)


@settings(max_examples=300, deadline=None)
@given(messages)
def test_p8_every_property_and_body_comes_back_as_it_was(message: AmqpAnnotatedMessage) -> None:
    assert meaning(round_trip(message), times_too=False) == meaning(
        encoded(message), times_too=False
    )


@settings(max_examples=100, deadline=None)
@given(messages)
def test_p8_the_originals_are_cleared_and_the_aliases_set(message: AmqpAnnotatedMessage) -> None:
    rewritten = rewrite.to_backlog(message, "orders", NOW_MS)
    aliases = rewritten.application_properties or {}
    assert aliases[rewrite.PATH] == "orders"
    ttl = message.header.time_to_live if message.header else None
    assert (rewrite.TIME_TO_LIVE in aliases) is (ttl is not None)
    session = message.properties.group_id if message.properties else None
    assert aliases.get(rewrite.SESSION_ID) == session
    if rewritten.header:
        assert rewritten.header.time_to_live is None
    if rewritten.properties:
        assert rewritten.properties.group_id is None
        assert not ttl or rewritten.properties.absolute_expiry_time is None
    assert "x-opt-scheduled-enqueue-time" not in (rewritten.annotations or {})


def test_p8_the_application_keeps_its_message_unchanged() -> None:
    message = ServiceBusMessage(
        "body",
        application_properties={"a": 1},
        session_id="s",
        time_to_live=timedelta(hours=1),
        scheduled_enqueue_time_utc=SCHEDULE,
    )
    before = encoded(message.raw_amqp_message)
    rewrite.to_backlog(message.raw_amqp_message, "orders", NOW_MS)
    assert meaning(encoded(message.raw_amqp_message)) == meaning(before)


def test_p8_alias_types_that_every_client_reads() -> None:
    message = ServiceBusMessage(
        "body", time_to_live=timedelta(days=49), scheduled_enqueue_time_utc=SCHEDULE
    )
    payload = encoded(rewrite.to_backlog(message.raw_amqp_message, "orders", NOW_MS))
    aliases = sections(payload)[ULONG_APPLICATION][0]
    assert type(aliases[rewrite.TIME_TO_LIVE]) is int
    assert aliases[rewrite.TIME_TO_LIVE] == timedelta(days=49) // timedelta(milliseconds=1)
    assert type(aliases[rewrite.SCHEDULED_ENQUEUE_TIME]) is Timestamp
    assert aliases[rewrite.SCHEDULED_ENQUEUE_TIME] == SCHEDULE.timestamp() * 1000
    assert type(aliases[rewrite.PATH]) is str


def test_p8_the_expiry_comes_back_with_the_time_to_live() -> None:
    message = ServiceBusMessage("body", time_to_live=timedelta(hours=1))
    properties = sections(round_trip(message.raw_amqp_message))[ULONG_PROPERTIES][0]
    assert properties[8] == NOW_MS + 3_600_000
    assert properties[9] == NOW_MS


def test_p8_a_time_to_live_below_a_second_does_not_end_in_the_backlog() -> None:
    """The SDK cuts it to zero, and a broker takes that as it is: over at once."""
    message = ServiceBusMessage("body", time_to_live=timedelta(milliseconds=500))
    rewritten = rewrite.to_backlog(message.raw_amqp_message, "orders", NOW_MS)
    assert ULONG_HEADER not in sections(encoded(rewritten))
    (header,) = sections(round_trip(message.raw_amqp_message))[ULONG_HEADER]
    assert header[2] == UInt(0)


def test_p8_a_schedule_call_becomes_the_scheduled_time() -> None:
    # The SDK's own schedule call has left its mark on the message when that call failed.
    message = ServiceBusMessage("body", scheduled_enqueue_time_utc=SCHEDULE)
    rewritten = rewrite.to_backlog(message.raw_amqp_message, "orders", NOW_MS, SCHEDULE)
    assert not rewritten.annotations
    annotations = sections(round_trip(message.raw_amqp_message, SCHEDULE))[ULONG_ANNOTATIONS][0]
    scheduled = annotations["x-opt-scheduled-enqueue-time"]
    assert type(scheduled) is Timestamp
    assert scheduled == SCHEDULE.timestamp() * 1000


def test_p8_a_name_of_ours_in_the_application_properties_is_refused() -> None:
    message = ServiceBusMessage("body", application_properties={b"x-ms-path": "elsewhere"})
    with pytest.raises(ValueError, match="x-ms-path"):
        rewrite.to_backlog(message.raw_amqp_message, "orders", NOW_MS)


def test_p8_a_time_to_live_that_cannot_come_back_is_refused() -> None:
    seconds_max = 2**32 // 1000
    longest = ServiceBusMessage("body", time_to_live=timedelta(seconds=seconds_max))
    rewrite.to_backlog(longest.raw_amqp_message, "orders", NOW_MS)
    longer = ServiceBusMessage("body", time_to_live=timedelta(seconds=seconds_max + 1))
    with pytest.raises(ValueError, match=r"49\.7 days"):
        rewrite.to_backlog(longer.raw_amqp_message, "orders", NOW_MS)


def test_p8_all_forms_of_message_that_the_sdk_takes() -> None:
    forms: list[Any] = [
        ServiceBusMessage("body"),
        AmqpAnnotatedMessage(data_body=b"body"),
        {"body": "body"},
    ]
    for form in forms:
        assert sections(round_trip(rewrite.annotated(form)))[0x75] == [b"body"]
    batch = ServiceBusMessageBatch()
    for form in forms:
        batch.add_message(form)
    assert len(sdk.messages_of(batch)) == len(forms)


def test_p11_a_message_without_path_is_told_apart() -> None:
    with pytest.raises(rewrite.MissingPathError):
        rewrite.restore(through_a_broker(encoded(ServiceBusMessage("x").raw_amqp_message)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (rewrite.TIME_TO_LIVE, "00:05:00"),
        (rewrite.TIME_TO_LIVE, 2**32),
        (rewrite.TIME_TO_LIVE, -1),
        (rewrite.TIME_TO_LIVE, float("inf")),
        # How .NET writes a TimeSpan.
        (rewrite.TIME_TO_LIVE, Described(Symbol("com.microsoft:timespan"), 3_000_000_000)),
        (rewrite.SCHEDULED_ENQUEUE_TIME, "2030-01-01"),
        (rewrite.SCHEDULED_ENQUEUE_TIME, 1e30),
        (rewrite.SESSION_ID, 7),
    ],
)
def test_p11_an_alias_that_cannot_be_read_is_told_apart(name: str, value: object) -> None:
    properties = codec.encode_map([("x-ms-path", codec.encode("q")), (name, codec.encode(value))])
    with pytest.raises(rewrite.UnreadablePropertyError, match=name):
        rewrite.restore(b"\x00\x53\x74" + properties + b"\x00\x53\x75\xa0\x01x")


def test_p10_a_ping() -> None:
    found = sections(encoded(rewrite.ping("a-session").raw_amqp_message))
    assert found[ULONG_HEADER][0][2] == 1_000
    assert found[ULONG_PROPERTIES][0][6] == "application/vnd.ms-servicebus-ping"
    assert found[ULONG_PROPERTIES][0][10] == "a-session"
    assert found[0x75] == [b""]
