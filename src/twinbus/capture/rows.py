"""Makes rows of the journal's records: one for each thing that happened to a message.

Durable batches go in, one record batch of the schema comes out. Records that stand for many
messages are kept as bytes and become rows all at once, without an object for each. It reads no
file itself: `payload` fetches what a record only points at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from twinbus.amqp import codec
from twinbus.amqp.errors import DecodeError
from twinbus.capture import payload as reading
from twinbus.capture.columns import DEFAULTS, NULL, OP, Integers, Piece, spread, to_record_batch
from twinbus.capture.names import Names
from twinbus.engine import observations, records
from twinbus.engine.index import DEFERRED, SCHEDULED
from twinbus.engine.metering import UNIT_BYTES
from twinbus.engine.observations import Observation
from twinbus.journal.batch import OFFSET_MASK, entries
from twinbus.journal.tail import Found

Payload = Callable[[int, int], bytes | None]
"""(location, length) → the bytes there, None if they are gone."""

_PLACED = np.dtype(
    [
        ("kind", "u1"), ("stream", ">u4"), ("seq", ">u8"), ("enqueued", ">i8"),
        ("expires", ">i8"), ("state", "u1"), ("delivery_count", ">u4"), ("due", ">i8"),
        ("shared", ">u8"), ("size", ">u4"), ("session", ">u2"),
    ]
)  # fmt: skip
_SETTLED = np.dtype(
    [("kind", "u1"), ("stream", ">u4"), ("first", ">u8"), ("count", ">u4"), ("how", "u1")]
)
_RUN = np.dtype([("first", ">u8"), ("count", ">u4")])
_SESSION_AT = records.PLACED_HEAD_SIZE - 2
_SHARED_AT = 42
_NOT_SHARED = bytes(8)
_NO_SESSION = records.NO_SESSION.to_bytes(2, "big")

_HOW = {
    records.COMPLETED: "completed",
    records.RECEIVED_AND_DELETED: "deleted",
    records.EXPIRED: "expired",
    records.DEAD_LETTERED: "dead_lettered",
    records.FORWARDED: "forwarded",
    records.CANCELLED: "cancelled",
    records.PURGED: "purged",
    records.ACTIVATED: "activated",
}
_WHAT = {
    observations.SENT: "sent",
    observations.PINGED: "pinged",
    observations.DELIVERED: "delivered",
    observations.RECEIVED_NOTHING: "received_nothing",
    observations.SETTLED: "settled",
    observations.MANAGED: "managed",
    observations.PEEKED: "peeked",
    observations.LOCK_RENEWED: "lock_renewed",
    observations.LOCK_EXPIRED: "lock_expired",
    observations.DUPLICATE_DROPPED: "duplicate_dropped",
    observations.FILTER_FAILED: "filter_failed",
    observations.PRESENT: "present",
    observations.HEARTBEAT: "heartbeat",
    observations.STARTED: "started",
}
_METERED = frozenset(
    (
        observations.SENT, observations.PINGED, observations.RECEIVED_NOTHING,
        observations.SETTLED, observations.MANAGED, observations.PEEKED,
        observations.LOCK_RENEWED,
    )
)  # fmt: skip


class UnknownRecordError(Exception):
    """The journal was written by a newer version."""

    def __init__(self, lsn: int, what: str) -> None:
        super().__init__(
            f"record {lsn} {what}, which this version does not know: the journal was written by"
            " a newer Twinbus. Capture it with that version."
        )


class Rows:
    """Records gathered, not yet rows."""

    def __init__(self, names: Names, payload: Payload) -> None:
        self._names = names
        self._payload = payload
        self._takers: dict[int, Callable[[int, int, bytes], None]] = {
            records.SETTLED: self._take_settled,
            records.CHANGED: self._take_changed,
            records.ENTITY_PUT: self._take_entity_put,
            records.ENTITY_REMOVED: self._take_entity_removed,
            records.SESSION_STATE_SET: self._take_session_state,
            records.REMEMBERED: self._take_remembered,
            records.SEQUENCE_REACHED: self._take_sequence,
            records.OBSERVED: self._take_observed,
            records.RESERVED: self._take_reserved,
            records.RESERVATION_SETTLED: self._take_reservation_ended,
            records.RESERVATION_RELEASED: self._take_reservation_ended,
            records.RESERVATION_ATTEMPTED: self._take_attempted,
        }
        self._clear()

    def _clear(self) -> None:
        #: How many rows there will be, and how many of them are not heartbeats.
        self.count = 0
        self.telling = 0
        self._placed: list[tuple[int, int, bytes]] = []
        self._placed_texts: list[tuple[str | None, ...]] = []
        self._settled: list[tuple[int, int, bytes]] = []
        self._delivered: list[tuple[int, int, Observation]] = []
        self._singles: list[Piece] = []
        self._pieces: list[Piece] = []
        self._consumers: dict[str, int] = {}

    def add(self, found: Found) -> None:
        """Take in a durable batch."""
        data, start, batch = found
        takers = self._takers
        for lsn, _, time_ms, record in entries(data, batch, start):
            kind = record[0]
            if lsn == 0:
                # A copy carried forward tells nothing new, but perhaps a name not heard before.
                if kind == records.ENTITY_PUT:
                    self._names.put(record)
            elif kind == records.PLACED:
                self._take_placed(lsn, time_ms, record, found)
            else:
                take = takers.get(kind)
                if take is None:
                    raise UnknownRecordError(lsn, f"is of kind {kind}")
                take(lsn, time_ms, record)

    def take(self) -> Any:
        """Give everything as one pyarrow.RecordBatch by LSN and part, and begin anew."""
        pieces = self._pieces
        if self._placed:
            pieces.append(self._placed_rows())
        if self._settled:
            pieces.append(self._settled_rows())
        if self._delivered:
            pieces.append(self._delivered_rows())
        if self._singles:
            pieces.append(_joined(self._singles))
        batch = to_record_batch(pieces, self._names, list(self._consumers))
        self._clear()
        return batch

    def _single(self, lsn: int, time_ms: int, op: str, **columns: object) -> None:
        """A record that is one row."""
        self.count += 1
        self.telling += op != "heartbeat"
        self._singles.append({"lsn": lsn, "ts": time_ms, "op": OP[op], **columns})

    def _consumer(self, name: str) -> int:
        return self._consumers.setdefault(name, len(self._consumers)) if name else NULL

    # --- facts about messages ---------------------------------------------------------

    def _take_placed(self, lsn: int, time_ms: int, record: bytes, found: Found) -> None:
        self.count += 1
        self.telling += 1
        start = records.PLACED_HEAD_SIZE
        self._placed.append((lsn, time_ms, record[:start]))
        session: str | None = None
        if record[_SESSION_AT:start] != _NO_SESSION:
            end = start + int.from_bytes(record[_SESSION_AT:start], "big")
            session = record[start:end].decode()
            start = end
        if record[_SHARED_AT : _SHARED_AT + 8] == _NOT_SHARED:
            stored: bytes | None = record[start:]
        else:
            stored = self._shared(record, found)
        if stored is None:
            self._placed_texts.append((None, session, None, None, None))
            return
        message_id = reading.message_id(stored)
        stream = int.from_bytes(record[1:5], "big")
        if stream & 3:
            story = reading.dead_letter_story(stored)
        elif self._names.is_backlog(stream):
            story = reading.backlog_story(stored)
        else:
            self._placed_texts.append((message_id, session, None, None, None))
            return
        self._placed_texts.append((message_id, session or story.session_id, *story[1:]))

    def _shared(self, record: bytes, found: Found) -> bytes | None:
        """The payload that a record points at: in its own batch mostly, else in an older one."""
        location = int.from_bytes(record[_SHARED_AT : _SHARED_AT + 8], "big")
        size = int.from_bytes(record[_SHARED_AT + 8 : _SHARED_AT + 12], "big")
        batch = found.batch
        if batch.location <= location < batch.location + batch.length:
            at = found.start + (location & OFFSET_MASK) - batch.offset
            return found.data[at : at + size]
        return self._payload(location, size)

    def _placed_rows(self) -> Piece:
        heads = np.frombuffer(b"".join([head for _, _, head in self._placed]), _PLACED)
        state = heads["state"]
        op = np.where(state & 0x7F == SCHEDULED, OP["scheduled"], OP["enqueued"])
        texts = list(zip(*self._placed_texts, strict=True))
        return {
            "lsn": np.array([lsn for lsn, _, _ in self._placed], np.int64),
            "ts": np.array([time_ms for _, time_ms, _ in self._placed], np.int64),
            "op": np.where(state & records.REPLACED, OP["replaced"], op),
            "stream": heads["stream"],
            "seq": heads["seq"],
            "size": heads["size"],
            "delivery_count": heads["delivery_count"],
            "enqueued_ts": heads["enqueued"],
            "message_id": texts[0],
            "session_id": texts[1],
            "reason": texts[2],
            "description": texts[3],
            "correlation": texts[4],
        }

    def _take_settled(self, lsn: int, time_ms: int, record: bytes) -> None:
        _, _, count, how = records.read_settled(record)
        if how not in _HOW:
            raise UnknownRecordError(lsn, f"says that messages left in the way {how}")
        self.count += count
        self.telling += count
        self._settled.append((lsn, time_ms, record))

    def _settled_rows(self) -> Piece:
        size = _SETTLED.itemsize
        heads = np.frombuffer(b"".join([record[:size] for _, _, record in self._settled]), _SETTLED)
        counts = heads["count"].astype(np.int64)
        rows = spread(np.array([lsn for lsn, _, _ in self._settled], np.int64), counts)
        ops = np.full(max(_HOW) + 1, NULL)
        for how, op in _HOW.items():
            ops[how] = OP[op]
        # Where nothing was observed there are no columns; all of theirs are unknown.
        unknown = (b"", b"", b"")
        columns = [
            records.read_settled_columns(record) or unknown for _, _, record in self._settled
        ]
        seen = np.repeat(np.array([column is not unknown for column in columns]), counts)

        def known(which: int, kind: str) -> Integers:
            values = np.full(len(seen), NULL, np.int64)
            values[seen] = np.frombuffer(b"".join([column[which] for column in columns]), kind)
            return values

        first_delivered = known(1, "<i8")
        first_delivered[first_delivered == 0] = NULL
        return rows | {
            "ts": np.repeat(np.array([time_ms for _, time_ms, _ in self._settled]), counts),
            "op": np.repeat(ops[heads["how"]], counts),
            "stream": np.repeat(heads["stream"], counts),
            "seq": np.repeat(heads["first"].astype(np.int64), counts) + rows["part"],
            "enqueued_ts": known(0, "<i8"),
            "first_delivered_ts": first_delivered,
            "size": known(2, "<u4"),
        }

    def _take_changed(self, lsn: int, time_ms: int, record: bytes) -> None:
        stream, seq, state, delivery_count = records.read_changed(record)
        op = "deferred" if state == DEFERRED else "requeued"
        self._single(lsn, time_ms, op, stream=stream, seq=seq, delivery_count=delivery_count)

    # --- other facts ------------------------------------------------------------------

    def _take_entity_put(self, lsn: int, time_ms: int, record: bytes) -> None:
        self._names.put(record)
        number = records.read_entity_put(record)[0]
        self._single(lsn, time_ms, "entity_put", stream=number << 2)

    def _take_entity_removed(self, lsn: int, time_ms: int, record: bytes) -> None:
        stream = records.read_entity_removed(record) << 2
        self._single(lsn, time_ms, "entity_removed", stream=stream)

    def _take_session_state(self, lsn: int, time_ms: int, record: bytes) -> None:
        stream, session_id, state, _ = records.read_session_state(record)
        size = NULL if state is None else len(state)
        self._single(
            lsn, time_ms, "session_state_set", stream=stream, session_id=session_id, size=size
        )

    def _take_remembered(self, lsn: int, time_ms: int, record: bytes) -> None:
        stream, _, encoded = records.read_remembered(record)
        try:
            message_id = reading.id_text(codec.decode_whole(encoded))
        except DecodeError:
            message_id = None
        self._single(lsn, time_ms, "remembered", stream=stream, message_id=message_id)

    def _take_sequence(self, lsn: int, time_ms: int, record: bytes) -> None:
        stream, next_seq = records.read_sequence(record)
        self._single(lsn, time_ms, "sequence_reached", stream=stream, seq=next_seq - 1)

    # --- reservations -----------------------------------------------------------------

    def _take_reserved(self, lsn: int, time_ms: int, record: bytes) -> None:
        stream, consumer, epoch, _, _, ranges = records.read_reserved(record)
        self._reservation(lsn, time_ms, "reserved", stream, consumer, epoch, ranges)

    def _take_reservation_ended(self, lsn: int, time_ms: int, record: bytes) -> None:
        stream, consumer, epoch, ranges = records.read_reservation_ended(record)
        if record[0] == records.RESERVATION_RELEASED:
            self._reservation(lsn, time_ms, "released", stream, consumer, epoch, ranges)
            return
        # That its messages are completed is told by records of their own.
        who = self._consumer(consumer)
        self._single(lsn, time_ms, "reservation_settled", stream=stream, consumer=who, epoch=epoch)

    def _reservation(
        self, lsn: int, time_ms: int, op: str, stream: int, consumer: str, epoch: int,
        ranges: list[int],
    ) -> None:  # fmt: skip
        """A row for each message of a reservation; one that counts none if there are none."""
        who = self._consumer(consumer)
        if not ranges:
            self._single(lsn, time_ms, op, stream=stream, consumer=who, epoch=epoch, count=0)
            return
        bounds = np.array(ranges, np.int64)
        counts = bounds[1::2] - bounds[::2] + 1
        total = int(counts.sum())
        within = spread(bounds[::2], counts)
        self.count += total
        self.telling += total
        rows = spread(np.array([lsn], np.int64), np.array([total], np.int64))
        rows |= {"ts": time_ms, "op": OP[op], "stream": stream, "consumer": who, "epoch": epoch}
        self._pieces.append(rows | {"seq": within["lsn"] + within["part"]})

    def _take_attempted(self, lsn: int, time_ms: int, record: bytes) -> None:
        stream, consumer, epoch, attempts, buried = records.read_reservation_attempted(record)
        self._single(
            lsn, time_ms, "reservation_attempted", stream=stream,
            consumer=self._consumer(consumer), epoch=epoch, delivery_count=attempts,
            reason="MaxBatchFailuresExceeded" if buried else None,
        )  # fmt: skip

    # --- observations -----------------------------------------------------------------

    def _take_observed(self, lsn: int, time_ms: int, record: bytes) -> None:
        seen = Observation(record)
        op = _WHAT.get(seen.what)
        if op is None:
            raise UnknownRecordError(lsn, f"is an observation of kind {seen.what}")
        if seen.what == observations.DELIVERED:
            self.count += seen.count
            self.telling += seen.count
            self._delivered.append((lsn, time_ms, seen))
        elif seen.what == observations.PRESENT:
            self._take_present(lsn, time_ms, seen)
        elif seen.what in (observations.HEARTBEAT, observations.STARTED):
            self._single(lsn, time_ms, op)
        else:
            self._take_tally(lsn, time_ms, op, seen)

    def _take_tally(self, lsn: int, time_ms: int, op: str, seen: Observation) -> None:
        columns: dict[str, object] = {
            "stream": seen.stream or NULL,
            "seq": seen.first or NULL,
            "count": seen.count,
            "consumer": self._consumer(seen.client),
        }
        text = seen.rest.decode("utf-8", "replace")[: reading.CHARS_MAX] or None
        if seen.what in _METERED:
            columns |= {"size": seen.bytes, "units": seen.units}
        elif seen.what == observations.LOCK_EXPIRED:
            # On a message, or on a session as a whole.
            columns |= {"session_id": text, "delivery_count": seen.delivery_count}
        elif seen.what == observations.DUPLICATE_DROPPED:
            columns["message_id"] = text
        elif text is not None:
            columns["reason"], _, columns["description"] = text.partition(": ")
        self._single(lsn, time_ms, op, **columns)

    def _take_present(self, lsn: int, time_ms: int, seen: Observation) -> None:
        runs = np.frombuffer(seen.rest, _RUN)
        if not len(runs):
            self._single(lsn, time_ms, "present", stream=seen.stream, count=0)
            return
        self.count += len(runs)
        self.telling += len(runs)
        rows = spread(np.array([lsn], np.int64), np.array([len(runs)], np.int64))
        rows |= {"ts": time_ms, "op": OP["present"], "stream": seen.stream}
        self._pieces.append(rows | {"seq": runs["first"], "count": runs["count"]})

    def _delivered_rows(self) -> Piece:
        seen = [seen for _, _, seen in self._delivered]
        counts = np.array([one.count for one in seen], np.int64)

        def each(values: list[int]) -> Integers:
            return np.repeat(np.array(values, np.int64), counts)

        rows = spread(np.array([lsn for lsn, _, _ in self._delivered], np.int64), counts)
        sizes = np.frombuffer(b"".join([one.rest for one in seen]), "<u4").astype(np.int64)
        return rows | {
            "ts": each([time_ms for _, time_ms, _ in self._delivered]),
            "op": OP["delivered"],
            "stream": each([one.stream for one in seen]),
            "seq": each([one.first for one in seen]) + rows["part"],
            "size": sizes,
            "units": np.maximum(1, -(-sizes // UNIT_BYTES)),
            "delivery_count": each([one.delivery_count for one in seen]),
            "consumer": each([self._consumer(one.client) for one in seen]),
        }


def _joined(singles: list[Piece]) -> Piece:
    """Many rows of one record each as one piece; a text that a row does not have is None."""
    present = dict.fromkeys(name for row in singles for name in row)
    joined: Piece = {}
    for name in present:
        missing = DEFAULTS.get(name)
        values = [row.get(name, missing) for row in singles]
        joined[name] = values if missing is None else np.array(values, np.int64)
    return joined
