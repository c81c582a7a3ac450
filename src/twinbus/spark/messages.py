"""Messages between their wire form and Arrow columns, both ways.

Encoded AMQP messages, as a broker shows them, go in and a record batch of `schema.ARROW`
comes out; columns go in and encoded messages come out. What the broker's own heads look like
is known here, so that the common message costs no general decoding. Durability, priority,
content encoding, annotations of other clients and footers have no column and are left out;
ids that are not text become text, several data sections one body, and none an empty one.

A broker takes in what it need not read. One such message must not hold up all others: what is
no UTF-8 in a text is replaced (U+FFFD), and what is no value is given as its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from twinbus.amqp.codec import NULL, decode, decode_whole, encode, encode_map, map_pairs, skip
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.performatives import descriptor_at
from twinbus.amqp.sections import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)
from twinbus.amqp.types import Symbol, Timestamp
from twinbus.spark.property_values import encode_text, to_text
from twinbus.spark.schema import ARROW

_STATES: Final[dict[object, str]] = {0: "active", 1: "deferred", 2: "scheduled"}
_BODY_TYPES: Final = {DATA: "data", AMQP_VALUE: "value", AMQP_SEQUENCE: "sequence"}
_PROPERTY_COUNT: Final = 13
_OMITTED: Final = "omitted-message-body-size"
_TTL_MS_MAX: Final = 0xFFFFFFFF
_INT_MAX: Final = 0x7FFFFFFF
# The first and the last moment that Python, and so a user's function, can express.
_EARLIEST_MS: Final = -62_135_596_800_000
_LATEST_MS: Final = 253_402_300_799_999

# What follows the header of a message that has no annotations but the broker's.
_PLAIN_HEAD: Final = (
    b"\x00\x53\x71\xc1\x01\x00\x00\x53\x72\xc1\x3f\x04\xa3\x15x-opt-sequence-number\x81"
)
_PLAIN_TIME: Final = b"\xa3\x13x-opt-enqueued-time\x83"
_PLAIN_NUMBERS: Final = struct.Struct(f">Q{len(_PLAIN_TIME)}sq")
_U32: Final = struct.Struct(">I")
# Headers repeat endlessly: the time to live that each one means.
_CACHE_MAX: Final = 1024
_ttl_of_header: dict[bytes, int | None] = {}


class RowError(ValueError):
    """A row that cannot be made into a message; `row` counts within the batch."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


# ---------------------------------------------------------------------------------------
# Wire to columns


class _Maps:
    """A column of maps, gathered flat: Arrow takes that far faster than dictionaries."""

    def __init__(self) -> None:
        self.offsets: list[int | None] = []
        self.keys: list[str] = []
        self.values: list[str | None] = []

    def array(self, arrow: Any) -> Any:
        if self.offsets.count(None) == len(self.offsets):
            return pa.nulls(len(self.offsets), arrow)
        offsets = pa.array([*self.offsets, len(self.keys)], pa.int32())
        keys, values = _array(self.keys, pa.string()), _array(self.values, pa.string())
        return pa.MapArray.from_arrays(offsets, keys, values)


def to_batch(payloads: Sequence[bytes], *, include_body: bool = True) -> Any:
    """A record batch with one row for each encoded message, with null bodies on request."""
    texts, types = _Maps(), _Maps()
    rows = []
    for number, payload in enumerate(payloads):
        try:
            rows.append(_row(payload, texts, types))
        except (DecodeError, IndexError, UnicodeDecodeError, struct.error) as why:
            seq = _annotations_of(payload).get("x-opt-sequence-number")
            which = f"with sequence number {seq}" if seq else f"{number} of this read"
            raise ValueError(f"the message {which} is no AMQP message: {why}") from why
    columns = list(zip(*rows, strict=True)) or [()] * (len(ARROW) - 2)
    arrays = []
    for name, arrow in zip(ARROW.names, ARROW.types, strict=True):
        if name == "application_properties":
            arrays.append(texts.array(arrow))
        elif name == "application_property_types":
            arrays.append(types.array(arrow))
        else:
            column = columns.pop(0)
            wanted = include_body or not name.startswith("body")
            arrays.append(_array(column, arrow) if wanted else pa.nulls(len(column), arrow))
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)


def _array(column: Sequence[Any], arrow: Any) -> Any:
    try:
        return pa.array(column, arrow)
    except UnicodeEncodeError:
        # A char may be half of a pair of UTF-16, which is no text by itself.
        return pa.array([v and v.encode(errors="replace").decode() for v in column], arrow)


def _row(payload: bytes, texts: _Maps, types: _Maps) -> tuple[object, ...]:
    """All columns of one message but the two maps, which go to `texts` and `types`."""
    size = len(payload)
    pos = 0
    ttl_ms: int | None = None
    delivery_count = 0
    annotations: dict[object, object] = {}
    seq: object = None
    enqueued_ms: object = None
    fields: list[Any] = _NO_FIELDS
    pairs: dict[str, object] | None = None
    body: bytes | None = None
    body_type: str | None = None
    while pos < size:
        code, at, end = _section(payload, pos)
        if DATA <= code <= AMQP_VALUE:
            if code == DATA:
                at += 2 if payload[at] == 0xA0 else 5
            body = payload[at:end] if body is None else body + payload[at:end]
            body_type = _BODY_TYPES[code]
        elif code == PROPERTIES:
            fields = _fields(payload, at, end)
        elif code == APPLICATION_PROPERTIES:
            pairs = _pairs(payload, at, end)
        elif code == HEADER:
            ttl_ms, delivery_count = _header(payload, pos, at, end)
            if payload.startswith(_PLAIN_HEAD, end):
                start = end + len(_PLAIN_HEAD)
                seq, name, enqueued_ms = _PLAIN_NUMBERS.unpack_from(payload, start)
                if name == _PLAIN_TIME:
                    end = start + _PLAIN_NUMBERS.size
        elif code in (MESSAGE_ANNOTATIONS, DELIVERY_ANNOTATIONS):
            annotations |= _annotations(payload, at)
        pos = end
    if body is None and _OMITTED not in annotations:
        body, body_type = b"", "data"
    partition_key = scheduled = source = None
    state = "active"
    if annotations:
        seq = annotations.get("x-opt-sequence-number", seq)
        enqueued_ms = annotations.get("x-opt-enqueued-time", enqueued_ms)
        partition_key = _text(annotations.get("x-opt-partition-key"))
        scheduled = _microseconds(annotations.get("x-opt-scheduled-enqueue-time"))
        source = _text(annotations.get("x-opt-deadletter-source"))
        state = _STATES.get(annotations.get("x-opt-message-state"), state)
        if body is None:
            # Of a body that is there it is a stranger's word.
            size += max(0, min(_number(annotations.get(_OMITTED)) or 0, _INT_MAX - size))
    reason, description = _keep_pairs(pairs, texts, types)
    return (
        seq, _microseconds(enqueued_ms), state, fields[0], fields[10], partition_key, fields[3],
        fields[6], fields[5], fields[2], fields[4], fields[12], ttl_ms, scheduled,
        delivery_count, source, reason, description, body, body_type, size,
    )  # fmt: skip


def _annotations(payload: bytes, at: int) -> dict[object, object]:
    """What they say under names; a stranger's key may be anything, even a list."""
    pairs = map_pairs(payload, at)
    return {key: _decoded(raw, 0)[0] for key, raw in pairs if isinstance(key, str)}


_NO_FIELDS: Final[list[Any]] = [None] * _PROPERTY_COUNT


def _section(payload: bytes, pos: int) -> tuple[int, int, int]:
    """Code of the section at `pos`, where its value starts, and where it ends."""
    if payload[pos + 1] == 0x53:
        code, at = payload[pos + 2], pos + 3
    else:
        code, at = descriptor_at(payload, pos)
    width = payload[at] >> 4
    if width == 0xB or width == 0xD:
        end = at + 5 + _U32.unpack_from(payload, at + 1)[0]
    elif width == 0xA or width == 0xC:
        end = at + 2 + payload[at + 1]
    else:
        end = skip(payload, at)
    if end > len(payload):
        raise DecodeError("section longer than the message", pos)
    return code, at, end


def _header(payload: bytes, pos: int, at: int, end: int) -> tuple[int | None, int]:
    """Time to live and delivery count."""
    key = payload[pos : end - 4]
    if key in _ttl_of_header:
        return _ttl_of_header[key], _U32.unpack_from(payload, end - 4)[0]
    value = decode_whole(payload[at:end])
    fields = value if isinstance(value, list) else []
    ttl_ms = _number(fields[2]) if len(fields) > 2 else None
    count = (_number(fields[4]) if len(fields) > 4 else None) or 0
    # Only headers that end in a count of four bytes: their key says everything but the count.
    if key.endswith(b"\x70") and payload[end - 4 : end] == _U32.pack(count):
        if len(_ttl_of_header) >= _CACHE_MAX:
            _ttl_of_header.clear()
        _ttl_of_header[key] = ttl_ms
    return ttl_ms, count


def _elements(payload: bytes, at: int) -> tuple[int, int]:
    """Count and first element of the list or map at `at`."""
    width = payload[at] >> 4
    if width == 0xC:
        return payload[at + 2], at + 3
    if width == 0xD:
        return _U32.unpack_from(payload, at + 5)[0], at + 9
    return 0, at + 1


def _fields(payload: bytes, at: int, end: int) -> list[Any]:
    """The thirteen properties as text; what is not given is None."""
    count, pos = _elements(payload, at)
    found: list[Any] = []
    for _ in range(min(count, _PROPERTY_COUNT)):
        if pos >= end:
            break
        code = payload[pos]
        if code == 0xA1 or code == 0xA3:
            start = pos + 2
            pos = start + payload[pos + 1]
            found.append(payload[start:pos].decode(errors="replace"))
        elif code == 0x40:
            pos += 1
            found.append(None)
        else:
            try:
                value, pos = _decoded(payload, pos)
            except DecodeError:
                # No list: what comes after it cannot be told apart.
                break
            found.append(_text(value))
    if pos > end:
        # The last one reaches into what follows.
        found.pop()
    return found + _NO_FIELDS[len(found) :]


def _pairs(payload: bytes, at: int, end: int) -> dict[str, object]:
    """Names and values of the application properties. What is there twice is so by mistake, and
    a map that has it twice could not be sent again: the last one counts, as with other readers."""
    count, pos = _elements(payload, at)
    found: dict[str, object] = {}
    for _ in range(count >> 1):
        key, pos = _value(payload, pos)
        found[str(key)], pos = _value(payload, pos)
    if pos > end:
        raise DecodeError("application properties longer than their section", at)
    return found


def _value(payload: bytes, pos: int) -> tuple[object, int]:
    if payload[pos] == 0xA1:
        start = pos + 2
        end = start + payload[pos + 1]
        return payload[start:end].decode(errors="replace"), end
    return _decoded(payload, pos)


def _decoded(payload: bytes, pos: int) -> tuple[object, int]:
    """A value, as far as it can be read, and where it ends."""
    try:
        return decode(payload, pos)
    except DecodeError:
        end = skip(payload, pos)
    code = payload[pos]
    if code in (0xA1, 0xA3, 0xB1, 0xB3):
        return payload[pos + (2 if code < 0xB0 else 5) : end].decode(errors="replace"), end
    return payload[pos:end], end


def _keep_pairs(
    pairs: dict[str, object] | None, texts: _Maps, types: _Maps
) -> tuple[str | None, str | None]:
    """Put application properties into their columns; give the two that tell of a death."""
    if not pairs:
        texts.offsets.append(None)
        types.offsets.append(None)
        return None, None
    texts.offsets.append(len(texts.keys))
    typed = len(types.keys)
    reason = description = None
    for name, value in pairs.items():
        texts.keys.append(name)
        if type(value) is str:
            texts.values.append(value)
        else:
            text, type_name = to_text(value)
            texts.values.append(text)
            types.keys.append(name)
            types.values.append(type_name)
        if name == "DeadLetterReason":
            reason = _text(value)
        elif name == "DeadLetterErrorDescription":
            description = _text(value)
    types.offsets.append(typed if len(types.keys) > typed else None)
    return reason, description


def _text(value: object) -> str | None:
    if value is None or type(value) is str:
        return value
    return str(value) if isinstance(value, str) else to_text(value)[0]


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int) else None


def _microseconds(value_ms: object) -> int | None:
    if not isinstance(value_ms, int):
        return None
    return max(_EARLIEST_MS, min(value_ms, _LATEST_MS)) * 1000


def _annotations_of(payload: bytes) -> dict[object, object]:
    """The message annotations of what may be no message at all."""
    try:
        start = payload.index(b"\x00\x53\x72") + 3
        return _annotations(payload, start)
    except (ValueError, IndexError):
        return {}


# ---------------------------------------------------------------------------------------
# Columns to wire

# Which property stands where in its section, and the constructor of its short form: strings,
# but for the content type, which is a symbol.
_PLACES: Final[tuple[tuple[str | None, int], ...]] = (
    ("message_id", 0xA1), (None, 0), ("to", 0xA1), ("subject", 0xA1), ("reply_to", 0xA1),
    ("correlation_id", 0xA1), ("content_type", 0xA3), (None, 0), (None, 0), (None, 0),
    ("session_id", 0xA1), (None, 0), ("reply_to_session_id", 0xA1),
)  # fmt: skip
_PARTITION_KEY: Final = Symbol("x-opt-partition-key")
_SCHEDULED: Final = Symbol("x-opt-scheduled-enqueue-time")
_RESUBMISSION: Final = Symbol("x-opt-resubmission")


def to_messages(batch: Any, make_id: Callable[[int], str]) -> list[bytes]:
    """Encode each row. Columns that are missing or null are left out of the message, but for
    the id: `make_id` gives one for the row of that number. RowError says what is wrong."""
    messages: list[bytes] = []
    for message in to_messages_or_errors(batch, make_id):
        if isinstance(message, RowError):
            raise message
        messages.append(message)
    return messages


def to_messages_or_errors(
    batch: Any, make_id: Callable[[int], str], resubmissions: list[str] | None = None
) -> Iterator[bytes | RowError]:
    """The same, with what is wrong with a row in its place.

    `resubmissions` tells of each row which dead letter it was: a broker that knows its id of
    old does not take it for a duplicate then.
    """
    columns = _Columns(batch, resubmissions)
    ids = columns.texts.get("message_id") or [None] * batch.num_rows
    columns.texts["message_id"] = [
        make_id(row) if given is None else given for row, given in enumerate(ids)
    ]
    places = [(columns.texts.get(name or ""), code) for name, code in _PLACES]
    while places[-1][0] is None:
        places.pop()
    for row in range(batch.num_rows):
        try:
            message = (
                columns.front(row)
                + _encode_fields(places, row)
                + columns.properties(row)
                + columns.body(row)
            )
        except (ValueError, struct.error) as why:
            yield RowError(row, str(why))
        else:
            yield message


def _encode_fields(places: list[tuple[list[str | None] | None, int]], row: int) -> bytes:
    parts = []
    last = 0
    for column, code in places:
        value = None if column is None else column[row]
        if value is None:
            parts.append(NULL)
        else:
            parts.append(_encode_text(code, value))
            last = len(parts)
    raw = b"".join(parts[:last])
    if len(raw) < 255:
        return b"\x00\x53\x73\xc0" + bytes((len(raw) + 1, last)) + raw
    return b"\x00\x53\x73\xd0" + _U32.pack(len(raw) + 4) + _U32.pack(last) + raw


def _encode_text(code: int, value: str) -> bytes:
    raw = value.encode()
    if len(raw) < 256:
        return bytes((code, len(raw))) + raw
    return bytes((code + 0x10,)) + _U32.pack(len(raw)) + raw


class _Columns:
    """The columns of one batch as Python lists, and the sections that each row makes."""

    def __init__(self, batch: Any, resubmissions: list[str] | None) -> None:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        names = [name for name, _ in _PLACES if name] + ["partition_key", "body_type"]
        self.texts: dict[str, list[str | None]] = {
            name: columns[name].to_pylist() for name in names if name in columns
        }
        self._bodies: list[bytes | str | None] = columns["body"].to_pylist()
        self._ttls = self._numbers(columns.get("time_to_live_ms"))
        self._scheduled = self._numbers(columns.get("scheduled_ts"))
        self._properties = _FlatMaps(columns.get("application_properties"))
        self._types = _FlatMaps(columns.get("application_property_types"))
        self._keys = self.texts.get("partition_key")
        self._body_types = self.texts.get("body_type")
        self._resubmissions = resubmissions

    @staticmethod
    def _numbers(column: Any) -> list[int | None] | None:
        if column is None or column.null_count == len(column):
            return None
        numbers: list[int | None] = column.cast(pa.int64()).to_pylist()
        return numbers

    def front(self, row: int) -> bytes:
        """Header and annotations, if the row has any use for them."""
        front = b""
        ttl_ms = self._ttls[row] if self._ttls else None
        if ttl_ms is not None:
            if ttl_ms <= 0:
                raise ValueError(f"time_to_live_ms is {ttl_ms}: it must be more than 0, or null")
            ttl = _U32.pack(min(ttl_ms, _TTL_MS_MAX))
            front = b"\x00\x53\x70\xc0\x08\x03\x40\x40\x70" + ttl
        pairs: list[tuple[object, bytes]] = []
        if self._keys and self._keys[row] is not None:
            pairs.append((_PARTITION_KEY, encode(self._keys[row])))
        scheduled_us = self._scheduled[row] if self._scheduled else None
        if scheduled_us is not None:
            pairs.append((_SCHEDULED, encode(Timestamp(scheduled_us // 1000))))
        if self._resubmissions is not None:
            pairs.append((_RESUBMISSION, encode(self._resubmissions[row])))
        return front + b"\x00\x53\x72" + encode_map(pairs) if pairs else front

    def properties(self, row: int) -> bytes:
        """The section of application properties; none for a map that is null or empty."""
        given = self._properties.pairs(row)
        if not given:
            return b""
        types = dict(self._types.pairs(row))
        parts = []
        for name, text in given:
            parts.append(_encode_text(0xA1, name))
            type_name = types.get(name)
            if type_name is None and text is not None:
                parts.append(_encode_text(0xA1, text))
                continue
            try:
                parts.append(encode_text(text, type_name or "null"))
            except ValueError as why:
                raise ValueError(f"application property '{name}': {why}") from None
        raw = b"".join(parts)
        count = len(parts)
        if len(raw) < 255 and count < 256:
            return b"\x00\x53\x74\xc1" + bytes((len(raw) + 1, count)) + raw
        return b"\x00\x53\x74\xd1" + _U32.pack(len(raw) + 4) + _U32.pack(count) + raw

    def body(self, row: int) -> bytes:
        given = self._bodies[row]
        if given is None:
            raise ValueError("body is null: a message has one, if only an empty one")
        raw = given.encode() if isinstance(given, str) else given
        kind = self._body_types[row] if self._body_types else None
        if kind is None or kind == "data":
            return b"\x00\x53\x75\xb0" + _U32.pack(len(raw)) + raw
        if kind == "value" and _ends(raw) == [len(raw)]:
            return b"\x00\x53\x77" + raw
        if kind == "sequence" and raw:
            parts, start = [], 0
            for end in _ends(raw):
                if raw[start] not in b"\x45\xc0\xd0":
                    raise ValueError("body is no AMQP sequence: it must be encoded lists")
                parts.append(b"\x00\x53\x76" + raw[start:end])
                start = end
            return b"".join(parts)
        if kind in ("value", "sequence"):
            raise ValueError(f"body is no AMQP {kind}: it must be the encoding of one")
        raise ValueError(f"body_type is '{kind}': it must be data, value or sequence")


def _ends(raw: bytes) -> list[int]:
    """Where each of the encoded values ends."""
    ends = []
    pos = 0
    while pos < len(raw):
        pos = skip(raw, pos)
        ends.append(pos)
    return ends


class _FlatMaps:
    """A column of maps, read flat."""

    def __init__(self, column: Any) -> None:
        self._offsets: list[int] | None = None
        if column is None or column.null_count == len(column):
            return
        self._offsets = column.offsets.to_pylist()
        self._valid = column.is_valid().to_pylist()
        self._pairs = list(zip(column.keys.to_pylist(), column.items.to_pylist(), strict=True))

    def pairs(self, row: int) -> list[tuple[str, str | None]]:
        if self._offsets is None or not self._valid[row]:
            return []
        return self._pairs[self._offsets[row] : self._offsets[row + 1]]
