"""The facts that the journal keeps: what each looks like as bytes, and how it is read back.

Facts, not commands: replaying them needs no decision, so an old journal needs no old logic.
A fact says how things are afterwards; the last fact about a message wins, so that a
repeated one (a copy carried forward by compaction) does no harm.
"""

from struct import Struct, pack, unpack
from typing import Final, Protocol

# The first byte of every record.
PLACED: Final = 1
SETTLED: Final = 2
CHANGED: Final = 3
ENTITY_PUT: Final = 4
ENTITY_REMOVED: Final = 5
SESSION_STATE_SET: Final = 6
REMEMBERED: Final = 7
SEQUENCE_REACHED: Final = 8
# What happened without changing anything: see observations.py.
OBSERVED: Final = 9
RESERVED: Final = 10
RESERVATION_SETTLED: Final = 11
RESERVATION_RELEASED: Final = 12
RESERVATION_ATTEMPTED: Final = 13

KINDS: Final = range(PLACED, RESERVATION_ATTEMPTED + 1)

# How a message left its stream.
COMPLETED: Final = 1
RECEIVED_AND_DELETED: Final = 2
EXPIRED: Final = 3
DEAD_LETTERED: Final = 4
FORWARDED: Final = 5
CANCELLED: Final = 6
PURGED: Final = 7
ACTIVATED: Final = 8

# kind, stream, sequence number, enqueued, expires (0: never), state, delivery count,
# due (scheduled), location of a shared payload (0: the payload follows), payload size,
# length of the session id (NO_SESSION: none).
PLACED_HEAD: Final = Struct(">BIQqqBIqQIH")
PLACED_HEAD_SIZE: Final = 56
NO_SESSION: Final = 0xFFFF
# A bit of the state: the record gives a message that is there another payload.
REPLACED: Final = 0x80
# kind, stream, first sequence number, count, how; while things are observed there follow, for
# each message, when it was enqueued, when it was first delivered (0: not known), both i64, and
# its size, u32: three columns, little-endian.
_SETTLED: Final = Struct(">BIQIB")
# kind, stream, sequence number, state, delivery count
_CHANGED: Final = Struct(">BIQBI")
# kind, entity, kind of entity
_ENTITY_PUT: Final = Struct(">BIB")
_ENTITY_REMOVED: Final = Struct(">BI")
# kind, stream, whether there is a state, when, length of the session id
_SESSION_STATE: Final = Struct(">BIBqH")
# kind, stream, when
_REMEMBERED: Final = Struct(">BIq")
# kind, stream, next sequence number
_SEQUENCE: Final = Struct(">BIQ")
# kind, stream, epoch, when, attempts so far, length of the consumer's name; then the name, then
# the ranges: first and last sequence number of each, little-endian u64. No range: the epoch's
# messages went to the dead-letter queue.
_RESERVED: Final = Struct(">BIQqIH")
# Settled or released is everything up to an epoch: kind, stream, epoch, length of the consumer's
# name; then the name, then, of what was released, the ranges as above.
_RESERVATION_ENDED: Final = Struct(">BIQH")
# kind, stream, epoch, attempts so far, whether its messages went to the dead-letter queue;
# then the consumer's name.
_RESERVATION_ATTEMPTED: Final = Struct(">BIQIB")


class Log(Protocol):
    """Where facts go. `append` gives the place of the record's first byte."""

    def append(self, head: bytes, body: bytes = b"") -> int: ...

    def append_carried(self, head: bytes, body: bytes = b"") -> int: ...

    def read(self, location: int, length: int) -> bytes: ...


class UnknownKindError(Exception):
    """A record of a kind that this version does not have; the text names the record."""

    def __init__(self, kind: int, location: int) -> None:
        super().__init__(
            f"segment {location >> 32}: the record of kind {kind} at offset {location & 0xFFFFFFFF}"
        )


def settled(stream: int, first: int, count: int, how: int) -> bytes:
    """The head of the record; its columns are the body."""
    return _SETTLED.pack(SETTLED, stream, first, count, how)


def changed(stream: int, seq: int, state: int, delivery_count: int) -> bytes:
    return _CHANGED.pack(CHANGED, stream, seq, state, delivery_count)


def entity_put(entity: int, entity_kind: int, body: bytes) -> bytes:
    return _ENTITY_PUT.pack(ENTITY_PUT, entity, entity_kind) + body


def entity_removed(entity: int) -> bytes:
    return _ENTITY_REMOVED.pack(ENTITY_REMOVED, entity)


def session_state_set(stream: int, session_id: bytes, state: bytes | None, at_ms: int) -> bytes:
    head = _SESSION_STATE.pack(SESSION_STATE_SET, stream, state is not None, at_ms, len(session_id))
    return head + session_id + (state or b"")


def remembered(stream: int, at_ms: int, message_id: bytes) -> bytes:
    return _REMEMBERED.pack(REMEMBERED, stream, at_ms) + message_id


def sequence_reached(stream: int, next_seq: int) -> bytes:
    return _SEQUENCE.pack(SEQUENCE_REACHED, stream, next_seq)


class Placed:
    """A PLACED record, read back."""

    def __init__(self, record: bytes, location: int) -> None:
        fields = PLACED_HEAD.unpack_from(record)
        self.stream: int = fields[1]
        self.seq: int = fields[2]
        self.enqueued_ms: int = fields[3]
        self.expires_ms: int = fields[4]
        self.state: int = fields[5] & ~REPLACED
        #: The message was there already: only its payload is new.
        self.replaced = bool(fields[5] & REPLACED)
        self.delivery_count: int = fields[6]
        self.due_ms: int = fields[7]
        #: Where the payload was written before; 0 when it is in this record.
        self.shared: int = fields[8]
        self.size: int = fields[9]
        length: int = fields[10]
        self.session_id: str | None = None
        start = PLACED_HEAD_SIZE
        if length != NO_SESSION:
            self.session_id = record[start : start + length].decode()
            start += length
        self.payload_location: int = self.shared if self.shared else location + start


def read_settled(record: bytes) -> tuple[int, int, int, int]:
    """Give (stream, first, count, how)."""
    _, stream, first, count, how = _SETTLED.unpack_from(record)
    return stream, first, count, how


def read_settled_columns(record: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Give enqueued and first delivered times (i64) and sizes (u32), little-endian; None where
    nothing was observed."""
    start: int = _SETTLED.size
    if len(record) == start:
        return None
    count = (len(record) - start) // 20
    middle = start + 8 * count
    end = middle + 8 * count
    return record[start:middle], record[middle:end], record[end:]


def read_changed(record: bytes) -> tuple[int, int, int, int]:
    """Give (stream, sequence number, state, delivery count)."""
    _, stream, seq, state, delivery_count = _CHANGED.unpack(record)
    return stream, seq, state, delivery_count


def read_entity_put(record: bytes) -> tuple[int, int, bytes]:
    """Give (entity, kind of entity, description)."""
    _, entity, entity_kind = _ENTITY_PUT.unpack_from(record)
    return entity, entity_kind, record[_ENTITY_PUT.size :]


def read_entity_removed(record: bytes) -> int:
    _, entity = _ENTITY_REMOVED.unpack(record)
    return int(entity)


def read_session_state(record: bytes) -> tuple[int, str, bytes | None, int]:
    """Give (stream, session id, state, when)."""
    _, stream, present, at_ms, length = _SESSION_STATE.unpack_from(record)
    start: int = _SESSION_STATE.size
    session_id = record[start : start + length].decode()
    return stream, session_id, record[start + length :] if present else None, at_ms


def read_remembered(record: bytes) -> tuple[int, int, bytes]:
    """Give (stream, when, message id)."""
    _, stream, at_ms = _REMEMBERED.unpack_from(record)
    return stream, at_ms, record[_REMEMBERED.size :]


def read_sequence(record: bytes) -> tuple[int, int]:
    """Give (stream, next sequence number)."""
    _, stream, next_seq = _SEQUENCE.unpack(record)
    return stream, next_seq


def reserved(
    stream: int, consumer: str, epoch: int, at_ms: int, attempts: int, ranges: list[int]
) -> bytes:
    name = consumer.encode()
    head = _RESERVED.pack(RESERVED, stream, epoch, at_ms, attempts, len(name))
    return head + name + _packed(ranges)


def reservation_settled(stream: int, consumer: str, epoch: int) -> bytes:
    return _reservation_ended(RESERVATION_SETTLED, stream, consumer, epoch, [])


def reservation_released(stream: int, consumer: str, epoch: int, ranges: list[int]) -> bytes:
    return _reservation_ended(RESERVATION_RELEASED, stream, consumer, epoch, ranges)


def _reservation_ended(
    kind: int, stream: int, consumer: str, epoch: int, ranges: list[int]
) -> bytes:
    name = consumer.encode()
    return _RESERVATION_ENDED.pack(kind, stream, epoch, len(name)) + name + _packed(ranges)


def reservation_attempted(
    stream: int, consumer: str, epoch: int, attempts: int, buried: bool
) -> bytes:
    head = _RESERVATION_ATTEMPTED.pack(RESERVATION_ATTEMPTED, stream, epoch, attempts, buried)
    return head + consumer.encode()


def _packed(ranges: list[int]) -> bytes:
    return pack(f"<{len(ranges)}Q", *ranges)


def _unpacked(raw: bytes) -> list[int]:
    return list(unpack(f"<{len(raw) // 8}Q", raw))


def read_reserved(record: bytes) -> tuple[int, str, int, int, int, list[int]]:
    """Give (stream, consumer, epoch, when, attempts, ranges as first, last, first, last …)."""
    _, stream, epoch, at_ms, attempts, length = _RESERVED.unpack_from(record)
    start: int = _RESERVED.size
    end: int = start + length
    return stream, record[start:end].decode(), epoch, at_ms, attempts, _unpacked(record[end:])


def read_reservation_ended(record: bytes) -> tuple[int, str, int, list[int]]:
    """Of RESERVATION_SETTLED and RESERVATION_RELEASED: (stream, consumer, epoch, ranges)."""
    _, stream, epoch, length = _RESERVATION_ENDED.unpack_from(record)
    start: int = _RESERVATION_ENDED.size
    end: int = start + length
    return stream, record[start:end].decode(), epoch, _unpacked(record[end:])


def read_reservation_attempted(record: bytes) -> tuple[int, str, int, int, bool]:
    """Give (stream, consumer, epoch, attempts, buried)."""
    _, stream, epoch, attempts, buried = _RESERVATION_ATTEMPTED.unpack_from(record)
    return stream, record[_RESERVATION_ATTEMPTED.size :].decode(), epoch, attempts, bool(buried)
