"""The columns of a capture, and the names of what happened.

Plain Parquet types that Spark, DuckDB and pandas all read: no unsigned integers, no
nanoseconds. `docs/capture.md` tells the reader what each means.
"""

from typing import Final

import pyarrow as pa

_NAME: Final = pa.dictionary(pa.int32(), pa.string())
_TIME: Final = pa.timestamp("us", tz="UTC")

SCHEMA: Final = pa.schema(
    [
        # Which record of the journal, and which of its rows: `part` counts from 0 to
        # `parts` - 1. Over a whole capture no (lsn, part) is missing and none comes twice.
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("parts", pa.int32(), nullable=False),
        pa.field("ts", _TIME, nullable=False),
        pa.field("op", _NAME, nullable=False),
        pa.field("namespace", _NAME),
        # The path, with the sub-queue: `orders/$DeadLetterQueue`.
        pa.field("entity", _NAME),
        # The journal's number for that stream: a queue made anew has another one.
        pa.field("stream", pa.int64()),
        pa.field("seq", pa.int64()),
        # How many messages or operations the row stands for.
        pa.field("count", pa.int32(), nullable=False),
        pa.field("message_id", pa.string()),
        pa.field("session_id", pa.string()),
        pa.field("size", pa.int64()),
        # Billable units of 64 KB; null where nothing is charged (C1).
        pa.field("units", pa.int32()),
        pa.field("delivery_count", pa.int32()),
        pa.field("enqueued_ts", _TIME),
        pa.field("first_delivered_ts", _TIME),
        pa.field("reason", pa.string()),
        pa.field("description", pa.string()),
        # Where a message came from: the entity it died in, or was syphoned for.
        pa.field("correlation", pa.string()),
        # The client that did it, or the consumer of a reservation.
        pa.field("consumer", _NAME),
        pa.field("epoch", pa.int64()),
    ]
)

# --- facts: they change what is there ---------------------------------------------------
# A message came to be at (stream, seq).
ACCEPTED: Final = ("enqueued", "scheduled")
# It left for good. Exactly one of these ends every message.
TERMINAL: Final = (
    "completed", "deleted", "expired", "dead_lettered", "forwarded", "cancelled", "purged",
    "activated",
)  # fmt: skip
# It is still there, in another state or with another payload.
CHANGED: Final = ("replaced", "requeued", "deferred", "reserved", "released")
OTHER_FACTS: Final = (
    "entity_put", "entity_removed", "session_state_set", "remembered", "sequence_reached",
    "reservation_settled", "reservation_attempted",
)  # fmt: skip
# --- observations -----------------------------------------------------------------------
# What clients asked for: each stands for `count` operations of `units` (C1).
OPERATIONS: Final = (
    "sent", "pinged", "delivered", "received_nothing", "settled", "managed", "peeked",
    "lock_renewed",
)  # fmt: skip
OTHER_OBSERVATIONS: Final = (
    "lock_expired", "duplicate_dropped", "filter_failed", "present", "heartbeat", "started",
)  # fmt: skip
