"""The rows of a journal, worked out one by one and with nothing of the capture's own code.

Every record is read by its layout (see `engine/records.py`, `engine/observations.py`); each row
is a dictionary without the columns that are null. Slow, and plain enough to be believed.
"""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from twinbus.amqp import codec
from twinbus.journal import read_segments

Row = dict[str, Any]

HOW = {
    1: "completed", 2: "deleted", 3: "expired", 4: "dead_lettered", 5: "forwarded",
    6: "cancelled", 7: "purged", 8: "activated",
}  # fmt: skip
OBSERVED = {
    1: "sent", 2: "pinged", 3: "delivered", 4: "received_nothing", 5: "settled", 6: "managed",
    7: "peeked", 8: "lock_renewed", 9: "lock_expired", 10: "duplicate_dropped",
    11: "filter_failed", 12: "present", 13: "heartbeat", 14: "started",
}  # fmt: skip
METERED = ("sent", "pinged", "received_nothing", "settled", "managed", "peeked", "lock_renewed")
SUB_QUEUES = ("", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def expand(journal: Path, last_lsn: int | None = None) -> list[Row]:
    """The rows of every record that is in the journal, up to `last_lsn`."""
    return Expansion(journal).rows(last_lsn)


class Expansion:
    def __init__(self, journal: Path) -> None:
        self.entries = list(read_segments(journal))
        self.names: dict[int, tuple[str, str]] = {}
        self.bytes_at: dict[int, bytes] = {}
        for _, location, _, record in self.entries:
            if record[0] == 4:
                number, kind = struct.unpack_from(">IB", record, 1)
                body = json.loads(record[6:])
                path = body["description"]["name"]
                if kind == 3:
                    path = f"{body['description']['topic']}/Subscriptions/{path}"
                self.names[number] = (body["namespace"], path)
            if record[0] == 1:
                start = self._payload_start(record)
                self.bytes_at[location + start] = record[start:]

    @staticmethod
    def _payload_start(record: bytes) -> int:
        (length,) = struct.unpack_from(">H", record, 54)
        return 56 if length == 0xFFFF else 56 + int(length)

    def rows(self, last_lsn: int | None) -> list[Row]:
        rows: list[Row] = []
        for lsn, _, time_ms, record in self.entries:
            if lsn == 0 or (last_lsn is not None and lsn > last_lsn):
                continue
            made = self._expand(record)
            for part, row in enumerate(made):
                whole = {"lsn": lsn, "part": part, "parts": len(made), "ts": time_of(time_ms)}
                whole |= {"count": 1} | row
                stream = whole.get("stream")
                if stream is not None and stream >> 2 in self.names:
                    namespace, path = self.names[stream >> 2]
                    whole["namespace"] = namespace
                    whole["entity"] = path + SUB_QUEUES[stream & 3]
                rows.append({name: value for name, value in whole.items() if value is not None})
        return rows

    def _expand(self, record: bytes) -> list[Row]:
        kind = record[0]
        if kind == 1:
            return [self._placed(record)]
        if kind == 2:
            return self._settled(record)
        if kind == 3:
            stream, seq, state, count = struct.unpack(">IQBI", record[1:])
            op = "deferred" if state == 3 else "requeued"
            return [{"op": op, "stream": stream, "seq": seq, "delivery_count": count}]
        if kind in (4, 5):
            (number,) = struct.unpack_from(">I", record, 1)
            return [{"op": "entity_put" if kind == 4 else "entity_removed", "stream": number << 2}]
        if kind == 6:
            stream, present, _, length = struct.unpack_from(">IBqH", record, 1)
            rest = record[16:]
            size = len(rest) - length if present else None
            session_id = rest[:length].decode()
            return [{"op": "session_state_set", "stream": stream, "session_id": session_id,
                     "size": size}]  # fmt: skip
        if kind == 7:
            (stream,) = struct.unpack_from(">I", record, 1)
            return [{"op": "remembered", "stream": stream,
                     "message_id": str(codec.decode_whole(record[13:]))}]  # fmt: skip
        if kind == 8:
            stream, next_seq = struct.unpack(">IQ", record[1:])
            return [{"op": "sequence_reached", "stream": stream, "seq": next_seq - 1}]
        if kind == 9:
            return self._observed(record)
        return self._reservation(kind, record)

    # --- messages ---------------------------------------------------------------------

    def _placed(self, record: bytes) -> Row:
        (stream, seq, enqueued, _, state, count, _, shared, size, length) = struct.unpack_from(
            ">IQqqBIqQIH", record, 1
        )
        op = "scheduled" if state & 0x7F == 4 else "enqueued"
        row: Row = {
            "op": "replaced" if state & 0x80 else op, "stream": stream, "seq": seq, "size": size,
            "delivery_count": count, "enqueued_ts": time_of(enqueued),
        }  # fmt: skip
        if length != 0xFFFF:
            row["session_id"] = record[56 : 56 + length].decode()
        stored = self.bytes_at.get(shared) if shared else record[self._payload_start(record) :]
        if stored is None:
            return row
        annotations, properties, application = _sections(stored)
        if properties and properties[0] is not None:
            given = properties[0]
            row["message_id"] = given.hex() if isinstance(given, bytes) else str(given)
        path = self.names.get(stream >> 2, ("", ""))[1]
        if stream & 3 or "/x-servicebus-transfer/" in path:
            if len(properties) > 10 and properties[10] is not None:
                row.setdefault("session_id", properties[10])
            if stream & 3:
                row["reason"] = application.get("DeadLetterReason")
                row["description"] = application.get("DeadLetterErrorDescription")
                row["correlation"] = annotations.get("x-opt-deadletter-source")
            else:
                row["correlation"] = application.get("x-ms-path")
        return row

    @staticmethod
    def _settled(record: bytes) -> list[Row]:
        stream, first, count, how = struct.unpack_from(">IQIB", record, 1)
        tail = record[18:]
        rows: list[Row] = []
        for place in range(count):
            row: Row = {"op": HOW[how], "stream": stream, "seq": first + place}
            if tail:
                (enqueued,) = struct.unpack_from("<q", tail, 8 * place)
                (delivered,) = struct.unpack_from("<q", tail, 8 * (count + place))
                (row["size"],) = struct.unpack_from("<I", tail, 16 * count + 4 * place)
                row["enqueued_ts"] = time_of(enqueued)
                row["first_delivered_ts"] = time_of(delivered) if delivered else None
            rows.append(row)
        return rows

    # --- observations -----------------------------------------------------------------

    @staticmethod
    def _observed(record: bytes) -> list[Row]:
        what, stream, first, count, deliveries, size, units, length = struct.unpack_from(
            ">BIQIIQIH", record, 1
        )
        client = record[36 : 36 + length].decode()
        rest = record[36 + length :]
        op = OBSERVED[what]
        row: Row = {"op": op, "stream": stream or None, "consumer": client or None}
        if op == "delivered":
            sizes = struct.unpack(f"<{count}I", rest)
            return [
                row | {"seq": first + place, "size": size, "delivery_count": deliveries,
                       "units": max(1, (size + 65535) // 65536)}
                for place, size in enumerate(sizes)
            ]  # fmt: skip
        if op == "present":
            runs = list(struct.iter_unpack(">QI", rest))
            return [row | {"seq": seq, "count": n} for seq, n in runs] or [row | {"count": 0}]
        if op in ("heartbeat", "started"):
            return [{"op": op}]
        row |= {"count": count, "seq": first or None}
        if op in METERED:
            return [row | {"size": size, "units": units}]
        text = rest.decode() or None
        if op == "duplicate_dropped":
            return [row | {"message_id": text}]
        if op == "lock_expired":
            return [row | {"session_id": text, "delivery_count": deliveries}]
        assert text is not None
        return [row | dict(zip(("reason", "description"), text.split(": ", 1), strict=True))]

    @staticmethod
    def _reservation(kind: int, record: bytes) -> list[Row]:
        if kind == 13:
            stream, epoch, attempts, buried = struct.unpack_from(">IQIB", record, 1)
            return [{"op": "reservation_attempted", "stream": stream, "epoch": epoch,
                     "delivery_count": attempts, "consumer": record[18:].decode(),
                     "reason": "MaxBatchFailuresExceeded" if buried else None}]  # fmt: skip
        if kind == 10:
            stream, epoch, _, _, length = struct.unpack_from(">IQqIH", record, 1)
            start = 27
        else:
            stream, epoch, length = struct.unpack_from(">IQH", record, 1)
            start = 15
        rest = record[start + length :]
        bounds = struct.unpack(f"<{len(rest) // 8}Q", rest)
        seqs = [s for lo, hi in zip(bounds[::2], bounds[1::2], strict=True)
                for s in range(lo, hi + 1)]  # fmt: skip
        row: Row = {"stream": stream, "epoch": epoch,
                    "consumer": record[start : start + length].decode()}  # fmt: skip
        if kind == 11:
            return [row | {"op": "reservation_settled"}]
        op = "reserved" if kind == 10 else "released"
        return [row | {"op": op, "seq": seq} for seq in seqs] or [row | {"op": op, "count": 0}]


def _sections(stored: bytes) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """Annotations, properties and application properties of a stored message."""
    _, _, _, annotation_count, annotation_bytes, _, delivery_bytes = struct.unpack_from(
        ">IBBHIHI", stored
    )
    annotations = {}
    position = 18
    for _ in range(annotation_count):
        key, position = codec.decode(stored, position)
        value, position = codec.decode(stored, position)
        annotations[str(key)] = value
    position = 18 + annotation_bytes + delivery_bytes
    found: dict[int, Any] = {}
    while position < len(stored):
        code = stored[position + 2]
        value, position = codec.decode(stored, position + 3)
        found[code] = value
    application = {str(key): value for key, value in found.get(0x74, {}).items()}
    return annotations, found.get(0x73, []), application
