"""The columns of messages as a DataFrame has them, for reading and for writing.

Names and types leave, for Spark (DDL) and for Arrow; both say the same. Nothing here
touches a message, and nothing imports Spark.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXT_MAP: Final = pa.map_(pa.string(), pa.string())

_COLUMNS: Final[tuple[tuple[str, str, Any], ...]] = (
    ("sequence_number", "bigint", pa.int64()),
    ("enqueued_ts", "timestamp", _TIME),
    ("state", "string", pa.string()),
    ("message_id", "string", pa.string()),
    ("session_id", "string", pa.string()),
    ("partition_key", "string", pa.string()),
    ("subject", "string", pa.string()),
    ("content_type", "string", pa.string()),
    ("correlation_id", "string", pa.string()),
    ("to", "string", pa.string()),
    ("reply_to", "string", pa.string()),
    ("reply_to_session_id", "string", pa.string()),
    ("time_to_live_ms", "bigint", pa.int64()),
    ("scheduled_ts", "timestamp", _TIME),
    ("delivery_count", "int", pa.int32()),
    ("dead_letter_source", "string", pa.string()),
    ("dead_letter_reason", "string", pa.string()),
    ("dead_letter_description", "string", pa.string()),
    ("application_properties", "map<string,string>", _TEXT_MAP),
    # The AMQP type of each value above that is not a string, so that nothing is lost on
    # the way back.
    ("application_property_types", "map<string,string>", _TEXT_MAP),
    ("body", "binary", pa.binary()),
    # data: the bytes of the data sections; value, sequence: the AMQP encoding of the body.
    ("body_type", "string", pa.string()),
    ("size", "int", pa.int32()),
)

#: What the broker says of a message; on the way back it decides anew, and they are not read.
READ_ONLY: Final = frozenset(
    (
        "sequence_number", "enqueued_ts", "state", "delivery_count", "dead_letter_source",
        "dead_letter_reason", "dead_letter_description", "size",
    )
)  # fmt: skip

NAMES: Final = tuple(name for name, _, _ in _COLUMNS)
#: The same as Spark writes a schema.
DDL: Final = ", ".join(f"`{name}` {ddl}" for name, ddl, _ in _COLUMNS)
DDL_TYPES: Final = {name: ddl for name, ddl, _ in _COLUMNS}
#: The same as Arrow has it, exactly: Spark refuses batches that differ in any type.
ARROW: Final = pa.schema([pa.field(name, arrow) for name, _, arrow in _COLUMNS])
