"""A message as one JSON object, and back to the bytes that were sent.

Encoded messages go in and out; no type, property or body byte is lost between them. What a
broker writes on a message by itself (sequence number, times, state) is shown and, on the way
back, left out: the next broker writes its own. See `values` for the form of single values.
"""

import base64
import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from twinbus.amqp import codec
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.types import Symbol, Timestamp, UByte, UInt
from twinbus.core.units import duration_from_iso, duration_to_iso
from twinbus.forms import values
from twinbus.forms.plain import printable
from twinbus.forms.values import Json

_HEADER, _DELIVERY, _ANNOTATIONS, _PROPERTIES, _APPLICATION = 0x70, 0x71, 0x72, 0x73, 0x74
_DATA, _SEQUENCE, _VALUE, _FOOTER = 0x75, 0x76, 0x77, 0x78

_TTL = 2
_HEADER_FIELDS: tuple[tuple[str, type], ...] = (
    ("durable", bool),
    ("priority", UByte),
    ("time_to_live", UInt),
    ("first_acquirer", bool),
    ("delivery_count", UInt),
)
# The one is written as a duration; the other begins at 0 with every broker.
_HEADER_OWN_WAY = ("time_to_live", "delivery_count")
# By the names that the SDKs use; the type is the one a field should have.
_PROPERTY_FIELDS: tuple[tuple[str, type], ...] = (
    ("message_id", str),
    ("user_id", bytes),
    ("to", str),
    ("subject", str),
    ("reply_to", str),
    ("correlation_id", str),
    ("content_type", Symbol),
    ("content_encoding", Symbol),
    ("absolute_expiry_time_utc", Timestamp),
    ("creation_time_utc", Timestamp),
    ("session_id", str),
    ("group_sequence", UInt),
    ("reply_to_session_id", str),
)
_NAMED_ANNOTATIONS: dict[str, tuple[str, type]] = {
    "x-opt-scheduled-enqueue-time": ("scheduled_enqueue_time_utc", Timestamp),
    "x-opt-partition-key": ("partition_key", str),
    "x-opt-via-partition-key": ("via_partition_key", str),
}
_STATE = "x-opt-message-state"
#: Written by a broker, for reading only.
_BROKER_ANNOTATIONS: dict[str, tuple[str, type]] = {
    "x-opt-sequence-number": ("sequence_number", int),
    "x-opt-enqueue-sequence-number": ("enqueued_sequence_number", int),
    "x-opt-enqueued-time": ("enqueued_time_utc", Timestamp),
    "x-opt-locked-until": ("locked_until_utc", Timestamp),
    "x-opt-deadletter-source": ("dead_letter_source", str),
    "x-opt-lock-token": ("lock_token", UUID),
    "x-opt-partition-id": ("partition_id", int),
}
_STATES = {0: "active", 1: "deferred", 2: "scheduled"}
_READ_ONLY = {name for name, _ in _BROKER_ANNOTATIONS.values()} | {"state", "delivery_count"}
#: Objects whose keys are the sender's own.
MAPS = ("application_properties", "annotations", "delivery_annotations", "footer")
_KNOWN = (
    {name for name, _ in (*_HEADER_FIELDS, *_PROPERTY_FIELDS)}
    | {name for name, _ in _NAMED_ANNOTATIONS.values()}
    | _READ_ONLY
    | {"body", *MAPS}
)
_IN_ONE_LINE = ("message_id", "session_id", "subject", "scheduled_enqueue_time_utc")
_BODY_CHARS_MAX = 60


class Encoded(NamedTuple):
    """A message ready to be sent, with what its batch must know."""

    payload: bytes
    session_id: str | None
    partition_key: str | None


def to_json(payload: bytes) -> dict[str, Json]:
    """Show an encoded message; leaves out what is not set. DecodeError: it cannot be shown."""
    sections, bodies = _split(payload)
    shown: dict[str, Json] = {}
    annotations: dict[object, object] = _mapping(sections.get(_ANNOTATIONS))
    delivery_annotations = _mapping(sections.get(_DELIVERY))
    _show_broker_annotations(shown, annotations)
    _show_broker_annotations(shown, delivery_annotations)
    header = _listed(sections.get(_HEADER), _HEADER_FIELDS)
    shown["delivery_count"] = int(header.pop("delivery_count", 0))
    ttl_ms = header.pop("time_to_live", None)
    shown |= {key: _field(value, dict(_HEADER_FIELDS)[key]) for key, value in header.items()}
    if ttl_ms is not None:
        shown["time_to_live"] = duration_to_iso(ttl_ms)
    kinds = dict(_PROPERTY_FIELDS)
    properties = _listed(sections.get(_PROPERTIES), _PROPERTY_FIELDS)
    shown |= {key: _field(value, kinds[key]) for key, value in properties.items()}
    for key, (name, kind) in _NAMED_ANNOTATIONS.items():
        if key in annotations:
            shown[name] = _field(annotations.pop(key), kind)
    for name, found, key_kind in (
        ("application_properties", _mapping(sections.get(_APPLICATION)), str),
        ("annotations", annotations, Symbol),
        ("delivery_annotations", delivery_annotations, Symbol),
        ("footer", _mapping(sections.get(_FOOTER)), Symbol),
    ):
        if found:
            shown[name] = _show_map(found, key_kind)
    shown["body"] = _show_body(bodies)
    return shown


def sequence_number(payload: bytes) -> int:
    """The number that a broker shows with a message, whatever else in it is beyond reading."""
    position = 0
    while position < len(payload):
        code, at = codec.decode(payload, position + 1)
        if code == _ANNOTATIONS:
            for key, raw in codec.map_pairs(payload, at):
                number = codec.decode_whole(raw) if key == "x-opt-sequence-number" else None
                if isinstance(number, int):
                    return int(number)
        position = codec.skip(payload, at)
    raise ValueError("the message has no sequence number")


def from_json(given: Mapping[str, Json]) -> Encoded:
    """Encode a message; ValueError says what cannot be read."""
    try:
        return _encode(given)
    except (struct.error, TypeError, OverflowError) as error:
        raise ValueError(f"a value does not fit its type: {error}") from error


def _encode(given: Mapping[str, Json]) -> Encoded:
    unknown = set(given) - _KNOWN
    if unknown:
        raise ValueError(
            f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(sorted(_KNOWN))}"
        )
    header = [
        None if name in _HEADER_OWN_WAY else _unfield(given.get(name), kind)
        for name, kind in _HEADER_FIELDS
    ]
    if given.get("time_to_live") is not None:
        header[_TTL] = UInt(_duration_ms(given["time_to_live"]))
    properties = [_unfield(given.get(name), kind) for name, kind in _PROPERTY_FIELDS]
    annotations = _read_map(given.get("annotations"), Symbol)
    for key, (name, kind) in _NAMED_ANNOTATIONS.items():
        if given.get(name) is not None:
            annotations[Symbol(key)] = _unfield(given[name], kind)
    payload = b"".join(
        (
            _list_section(_HEADER, header),
            _map_section(_DELIVERY, _read_map(given.get("delivery_annotations"), Symbol)),
            _map_section(_ANNOTATIONS, annotations),
            _list_section(_PROPERTIES, properties),
            _map_section(_APPLICATION, _read_map(given.get("application_properties"), str)),
            _read_body(given.get("body", "")),
            _map_section(_FOOTER, _read_map(given.get("footer"), Symbol)),
        )
    )
    return Encoded(payload, _text(given.get("session_id")), _text(given.get("partition_key")))


def dead_letter_reason(shown: Mapping[str, Json]) -> str | None:
    properties = shown.get("application_properties")
    reason = properties.get("DeadLetterReason") if isinstance(properties, dict) else None
    return reason if isinstance(reason, str) else None


def one_line(shown: Mapping[str, Json]) -> str:
    """A message for people: number, time, state, some properties, its body's beginning.

    Of one that cannot be read: its number, and why (`unreadable`).
    """
    number = str(shown.get("sequence_number", ""))
    if "unreadable" in shown:
        return printable(f"{number}  cannot be read: {shown['unreadable']}")
    parts = [number, str(shown.get("enqueued_time_utc", "")), str(shown.get("state", "active"))]
    parts += [f"{name}={shown[name]}" for name in _IN_ONE_LINE if shown.get(name) is not None]
    reason = dead_letter_reason(shown)
    if reason is not None:
        parts.append(f"reason={reason}")
    body = shown["body"]
    text = " ".join((body if isinstance(body, str) else json.dumps(body)).split())
    if len(text) > _BODY_CHARS_MAX:
        text = text[: _BODY_CHARS_MAX - 1] + "…"
    return printable("  ".join([*parts, text]))


# --- showing --------------------------------------------------------------------------


def _split(payload: bytes) -> tuple[dict[int, object], list[tuple[int, object]]]:
    sections: dict[int, object] = {}
    bodies: list[tuple[int, object]] = []
    position = 0
    while position < len(payload):
        code, at = codec.decode(payload, position + 1)
        value, position = codec.decode(payload, at)
        if not isinstance(code, int):
            raise DecodeError("a section whose name is no number", at)
        if code not in (_DATA, _SEQUENCE, _VALUE):
            sections[int(code)] = value
            continue
        # Brokers need not look into bodies; what has no form here must not get lost unseen.
        if code == _DATA and not isinstance(value, bytes):
            raise DecodeError("a data section that is not binary", at)
        if bodies and (code == _VALUE or code != bodies[0][0]):
            raise DecodeError("a body of sections that do not go together", at)
        bodies.append((int(code), value))
    return sections, bodies


def _mapping(section: object) -> dict[object, object]:
    return dict(section) if isinstance(section, dict) else {}


def _listed(section: object, fields: tuple[tuple[str, type], ...]) -> dict[str, Any]:
    found = section if isinstance(section, list) else []
    pairs = zip(fields, found, strict=False)
    return {name: value for (name, _), value in pairs if value is not None}


def _show_broker_annotations(shown: dict[str, Json], annotations: dict[object, object]) -> None:
    for key, (name, kind) in _BROKER_ANNOTATIONS.items():
        if key in annotations:
            shown[name] = _field(annotations.pop(key), kind)
    if _STATE in annotations:
        number = annotations.pop(_STATE)
        shown["state"] = _STATES.get(number, number) if isinstance(number, int) else "active"


def _field(value: object, kind: type) -> Json:
    """A field's plain form if it has the type it should have, else the form with the type."""
    if type(value) is not kind or kind is bytes:
        return values.tagged(value)
    if isinstance(value, Timestamp):
        return values.time_to_json(value)
    if isinstance(value, bool | float):
        return value
    return int(value) if isinstance(value, int) else str(value)


def _show_map(found: dict[object, object], key_kind: type) -> Json:
    """An object; a list of pairs where the keys are not all of the usual type."""
    if all(type(key) is key_kind for key in found):
        return {str(key): values.to_json(value) for key, value in found.items()}
    return [[values.to_json(key), values.to_json(value)] for key, value in found.items()]


def _show_body(bodies: list[tuple[int, object]]) -> Json:
    if not bodies:
        return {"data": []}
    kind = bodies[0][0]
    if kind == _VALUE:
        return {"value": values.to_json(bodies[0][1])}
    if kind == _SEQUENCE:
        return {"sequence": [values.to_json(items) for _, items in bodies]}
    parts = [_show_data(data) for _, data in bodies]
    return parts[0] if len(parts) == 1 else {"data": parts}


def _show_data(data: object) -> Json:
    assert isinstance(data, bytes)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"binary": base64.b64encode(data).decode()}


# --- reading --------------------------------------------------------------------------


def _unfield(given: Json, kind: type) -> object:
    if isinstance(given, dict) or given is None:
        return values.from_json(given)
    if kind is Timestamp:
        return values.time_from_json(given)
    plain = {bool: bool, UByte: int, UInt: int}.get(kind, str)
    if type(given) is not plain:
        raise ValueError(f"{given!r} should be of type {plain.__name__}")
    return kind(given)


def _duration_ms(given: Json) -> int:
    if isinstance(given, str):
        return duration_from_iso(given)
    if isinstance(given, int | float) and not isinstance(given, bool):
        return round(given * 1000)
    raise ValueError(f"{given!r} is no duration: write seconds, or a text like PT30S")


def _read_map(given: Json, key_kind: type) -> dict[object, object]:
    if given is None:
        return {}
    if isinstance(given, dict):
        return {key_kind(key): values.from_json(value) for key, value in given.items()}
    if isinstance(given, list):
        return {values.from_json(key): values.from_json(value) for key, value in given}
    raise ValueError(f"{given!r} should be an object")


def _read_body(given: Json) -> bytes:
    """A text or `{"binary"}` is one data section; `{"json"}` is written out as text."""
    if isinstance(given, str):
        return _section(_DATA, codec.encode(given.encode()))
    if not isinstance(given, dict) or len(given) != 1:
        raise ValueError(
            "a body is a text, or an object with one key: binary, data, json, value or sequence"
        )
    ((kind, inside),) = given.items()
    if kind == "json":
        return _read_body(json.dumps(inside, ensure_ascii=False))
    if kind == "binary":
        return _section(_DATA, codec.encode(base64.b64decode(inside, validate=True)))
    if kind == "data":
        return b"".join(_read_body(part) for part in inside)
    if kind == "value":
        return _section(_VALUE, codec.encode(values.from_json(inside)))
    if kind == "sequence":
        return b"".join(_section(_SEQUENCE, codec.encode(values.from_json(p))) for p in inside)
    raise ValueError(f"'{kind}' is no kind of body: binary, data, json, value or sequence")


def _section(code: int, value: bytes) -> bytes:
    return bytes((0x00, 0x53, code)) + value


def _map_section(code: int, found: dict[object, object]) -> bytes:
    return _section(code, codec.encode(found)) if found else b""


def _list_section(code: int, fields: list[object]) -> bytes:
    while fields and fields[-1] is None:
        fields.pop()
    return _section(code, codec.encode(fields)) if fields else b""


def _text(given: Json) -> str | None:
    return given if isinstance(given, str) else None
