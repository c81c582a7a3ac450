"""A message for the backlog, and back (P8, P9).

`to_backlog` takes what the application wants to send and gives what to send instead: session,
time to live, schedule and destination as application properties, the originals cleared. It
works on the SDK's message objects, where the types are still those the application chose.

`restore` takes the bytes of a message received from a backlog queue and gives the bytes to
send to the primary. It works on bytes because the SDK's decoder forgets types (a string and
a binary both become `bytes`, a timestamp and a long both `int`); what it does not need to
change it copies untouched, so that what arrives equals what was sent.

Neither sends anything, and neither changes the message it is given.
"""

import itertools
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from twinbus.amqp import codec
from twinbus.amqp.types import Symbol, Timestamp, UInt
from twinbus.core.units import ms_from_datetime
from twinbus.pairing import sdk

PATH = "x-ms-path"
SESSION_ID = "x-ms-sessionid"
TIME_TO_LIVE = "x-ms-timetolive"
SCHEDULED_ENQUEUE_TIME = "x-ms-scheduledenqueuetimeutc"
ALIASES = (PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_ENQUEUE_TIME)

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"

_SCHEDULED_ANNOTATION = "x-opt-scheduled-enqueue-time"
_PARTITION_ANNOTATION = "x-opt-partition-key"
# What the backlog's broker wrote on the message; the primary's broker writes its own.
_BROKER_ANNOTATIONS = frozenset(
    (
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-lock-token",
        "x-opt-message-state",
        "x-opt-partition-id",
    )
)

# Message sections (AMQP 1.0 §3.2) and the fields that are changed in two of them.
_HEADER, _DELIVERY, _ANNOTATIONS, _PROPERTIES, _APPLICATION = 0x70, 0x71, 0x72, 0x73, 0x74
_HEADER_TTL, _HEADER_DELIVERY_COUNT = 2, 4
_EXPIRY, _CREATION, _GROUP_ID = 8, 9, 10
# What a header's time to live (an AMQP uint) and a timestamp (a long) can hold.
_TTL_MS_MAX, _LONG_MAX = 2**32 - 1, 2**63 - 1
# The latest expiry that clients can express; the SDK holds its sum to it as well.
_EXPIRY_MS_MAX = 253_402_243_199_000

AnyMessage = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]


class NotRestorableError(ValueError):
    """A message in a backlog queue that the syphon can never bring home (P11)."""

    #: What to dead-letter it under.
    reason: ClassVar[str]


class MissingPathError(NotRestorableError):
    """It does not say where it belongs."""

    reason = "MissingPath"


class UnreadablePropertyError(NotRestorableError):
    """Its session, time to live or schedule has a value that no sender of ours writes."""

    reason = "UnreadableProperty"


@dataclass(frozen=True, slots=True)
class Restored:
    """A message as its sender meant it: where to, and the bytes to send there."""

    path: str
    payload: bytes
    session_id: str | None
    partition_key: str | None


def annotated(message: AnyMessage) -> AmqpAnnotatedMessage:
    """The AMQP form of any message that the SDK's senders take."""
    if isinstance(message, AmqpAnnotatedMessage):
        return message
    if isinstance(message, ServiceBusMessage):
        return message.raw_amqp_message
    return ServiceBusMessage(**message).raw_amqp_message


def to_backlog(
    message: AmqpAnnotatedMessage,
    path: str,
    now_ms: int,
    schedule_time: datetime | None = None,
) -> AmqpAnnotatedMessage:
    """Rewrite a message for `path` so that any backlog queue takes and keeps it."""
    copy = _copy(message)
    aliases = dict(copy.application_properties or {})
    taken = [name for name in ALIASES if name in aliases or name.encode() in aliases]
    if taken:
        raise ValueError(
            f"The message has an application property named {taken[0]}; "
            "that name belongs to paired namespaces."
        )
    aliases[PATH] = path
    annotations = dict(copy.annotations or {})
    own_time = _take(annotations, _SCHEDULED_ANNOTATION)
    scheduled = own_time if schedule_time is None else schedule_time
    if scheduled is not None:
        # An AMQP timestamp is the type of the annotation itself, and a date to every client.
        aliases[SCHEDULED_ENQUEUE_TIME] = sdk.amqp_timestamp(_milliseconds(scheduled))
    if copy.header is not None and copy.header.time_to_live is not None:
        if copy.header.time_to_live > _TTL_MS_MAX:
            # The primary cannot take it either; said now, while the application listens.
            raise ValueError(
                f"The time to live is {copy.header.time_to_live} ms; a message can carry at most "
                f"{_TTL_MS_MAX} ms (49.7 days)."
            )
        # Milliseconds as an AMQP long: every client reads it, and it holds what an int
        # cannot (a time to live may have 32 bits without sign). .NET's own TimeSpan type
        # would be readable in .NET only.
        aliases[TIME_TO_LIVE] = sdk.amqp_long(copy.header.time_to_live)
        if copy.properties is not None and copy.header.time_to_live:
            # The expiry is the time to live in another form. It comes back as creation
            # time plus time to live, as the SDK would have counted it at this moment. For a
            # time to live of zero the SDK counts none.
            copy.properties.creation_time = now_ms
            copy.properties.absolute_expiry_time = None
        copy.header.time_to_live = None
    if copy.properties is not None and copy.properties.group_id is not None:
        aliases[SESSION_ID] = _text(copy.properties.group_id)
        copy.properties.group_id = None
    copy.annotations = annotations
    copy.application_properties = aliases
    return copy


def added_bytes(message: AmqpAnnotatedMessage) -> int:
    """About how much longer a rewritten message is than the original (P9)."""
    names = [name for name in ALIASES if name in (message.application_properties or {})]
    values = [(message.application_properties or {})[name] for name in names]
    return sum(len(name) + 2 for name in names) + sum(
        len(value.encode()) + 2 if isinstance(value, str) else 9 for value in values
    )


def ping(session_id: str) -> ServiceBusMessage:
    """The message that asks whether an entity is back (P10)."""
    return ServiceBusMessage(
        b"",
        content_type=PING_CONTENT_TYPE,
        time_to_live=timedelta(seconds=1),
        session_id=session_id,
    )


def restore(payload: bytes) -> Restored:
    """Undo `to_backlog` on a message as it came from a backlog queue.

    Raises a `NotRestorableError`, or a `DecodeError` if these are not the bytes of a message.
    """
    sections, body = _split(payload)
    aliases, properties = _take_aliases(sections.get(_APPLICATION))
    if not isinstance(aliases.get(PATH), str):
        raise MissingPathError(f"the message has no {PATH}")
    ttl = _whole_number(aliases, TIME_TO_LIVE, 0, _TTL_MS_MAX)
    scheduled = _whole_number(aliases, SCHEDULED_ENQUEUE_TIME, -_LONG_MAX - 1, _LONG_MAX)
    session_id = aliases.get(SESSION_ID)
    if not isinstance(session_id, str | None):
        raise UnreadablePropertyError(f"{SESSION_ID} is {session_id!r}, which is no text")
    annotations = _map_without(sections.get(_ANNOTATIONS), _BROKER_ANNOTATIONS)
    if scheduled is not None:
        annotations.append((Symbol(_SCHEDULED_ANNOTATION), codec.encode(Timestamp(scheduled))))
    parts = [
        _described(_HEADER, _restored_header(sections.get(_HEADER), ttl)),
        _described(_DELIVERY, _map(_map_without(sections.get(_DELIVERY), _BROKER_ANNOTATIONS))),
        _described(_ANNOTATIONS, _map(annotations)),
        _described(_PROPERTIES, _restored_properties(sections.get(_PROPERTIES), ttl, session_id)),
        _described(_APPLICATION, _map(properties)),
        body,
    ]
    partition = [raw for key, raw in annotations if key == _PARTITION_ANNOTATION]
    partition_key = codec.decode_whole(partition[0]) if partition else None
    return Restored(
        aliases[PATH],
        b"".join(parts),
        session_id,
        partition_key if isinstance(partition_key, str) else None,
    )


def backlog_session(properties: Mapping[Any, Any] | None) -> tuple[str, str] | None:
    """Path and session of a peeked backlog message, if it has both (session order)."""
    found = [(properties or {}).get(name.encode()) for name in (PATH, SESSION_ID)]
    if None in found:
        return None
    return _text(found[0]), _text(found[1])


def aliased_session(message: AmqpAnnotatedMessage) -> str | None:
    """The session of a message that `to_backlog` has rewritten."""
    return (message.application_properties or {}).get(SESSION_ID)


def session_of(message: AnyMessage) -> str | None:
    """The session of a message that the application wants to send."""
    properties = annotated(message).properties
    if properties is None or properties.group_id is None:
        return None
    return _text(properties.group_id)


def _copy(message: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """A message that can be changed without changing the application's own."""
    body: dict[str, Any]
    if message.body_type is AmqpMessageBodyType.DATA:
        body = {"data_body": list(message.body)}
    elif message.body_type is AmqpMessageBodyType.SEQUENCE:
        body = {"sequence_body": list(message.body)}
    else:
        body = {"value_body": message.body}
    return AmqpAnnotatedMessage(
        header=message.header,
        footer=message.footer,
        properties=message.properties,
        application_properties=message.application_properties,  # type: ignore[arg-type]
        annotations=message.annotations,  # type: ignore[arg-type]
        delivery_annotations=message.delivery_annotations,  # type: ignore[arg-type]
        **body,
    )


def _take(annotations: dict[Any, Any], name: str) -> Any:
    """Remove an annotation, whichever form its key has."""
    by_text = annotations.pop(name, None)
    by_bytes = annotations.pop(name.encode(), None)
    return by_text if by_text is not None else by_bytes


def _milliseconds(moment: Any) -> int:
    return ms_from_datetime(moment) if isinstance(moment, datetime) else int(moment)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _split(payload: bytes) -> tuple[dict[int, bytes], bytes]:
    """Cut a message into the sections that may change, and the body and footer."""
    sections: dict[int, bytes] = {}
    body = bytearray()
    position = 0
    while position < len(payload):
        start = position
        position = codec.skip(payload, position)
        descriptor, value_at = codec.decode(payload, start + 1)
        if isinstance(descriptor, int) and _HEADER <= descriptor <= _APPLICATION:
            sections[descriptor] = payload[value_at:position]
        else:
            body += payload[start:position]
    return sections, bytes(body)


def _take_aliases(
    section: bytes | None,
) -> tuple[dict[str, Any], list[tuple[object, bytes]]]:
    """Part the application properties into our own, decoded, and the application's, raw."""
    aliases: dict[str, Any] = {}
    others: list[tuple[object, bytes]] = []
    for key, raw in _pairs(section):
        if key in ALIASES:
            aliases[str(key)] = codec.decode_whole(raw)
        else:
            others.append((key, raw))
    return aliases, others


def _whole_number(aliases: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = aliases.get(name)
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise UnreadablePropertyError(f"{name} is {value!r}, which is no number") from None
    if not low <= number <= high:
        raise UnreadablePropertyError(f"{name} is {number}, which is out of range")
    return number


def _map_without(section: bytes | None, unwanted: Container[object]) -> list[tuple[object, bytes]]:
    return [pair for pair in _pairs(section) if pair[0] not in unwanted]


def _pairs(section: bytes | None) -> list[tuple[object, bytes]]:
    # A section may also be null, which stands for an empty map.
    return [] if section in (None, codec.NULL) else codec.map_pairs(section, 0)


def _map(pairs: list[tuple[object, bytes]]) -> bytes | None:
    return codec.encode_map(pairs) if pairs else None


def _restored_header(section: bytes | None, ttl: int | None) -> bytes | None:
    fields = _fields(section, 5)
    fields[_HEADER_DELIVERY_COUNT] = codec.NULL
    if ttl is not None:
        fields[_HEADER_TTL] = codec.encode(UInt(ttl))
    return _list(fields)


def _restored_properties(
    section: bytes | None, ttl: int | None, session_id: str | None
) -> bytes | None:
    fields = _fields(section, 13)
    if session_id is not None:
        fields[_GROUP_ID] = codec.encode(session_id)
    creation = codec.decode_whole(fields[_CREATION])
    if ttl and isinstance(creation, int):
        expiry = min(_EXPIRY_MS_MAX, creation + ttl)
        fields[_EXPIRY] = codec.encode(Timestamp(expiry))
    return _list(fields)


def _fields(section: bytes | None, count: int) -> list[bytes]:
    """The fields of a list section, raw, filled up with nulls."""
    if section is None:
        return [codec.NULL] * count
    starts, end = codec.list_starts(section, 0)
    edges = [*starts, end]
    fields = [section[a:b] for a, b in itertools.pairwise(edges)]
    return fields + [codec.NULL] * (count - len(fields))


def _list(fields: list[bytes]) -> bytes | None:
    while fields and fields[-1] == codec.NULL:
        fields.pop()
    return codec.encode_list(fields) if fields else None


def _described(code: int, value: bytes | None) -> bytes:
    return b"" if value is None else bytes((0x00, 0x53, code)) + value
