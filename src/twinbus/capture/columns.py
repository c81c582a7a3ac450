"""Puts rows of many shapes together as columns of the schema.

Pieces go in: some columns of some rows each, as numpy arrays, scalars or lists of texts. Out
comes one Arrow record batch, in the order of the journal. What a piece does not say is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from twinbus.capture.names import Names
from twinbus.capture.schema import (
    ACCEPTED,
    CHANGED,
    OPERATIONS,
    OTHER_FACTS,
    OTHER_OBSERVATIONS,
    SCHEMA,
    TERMINAL,
)

OPS = (*ACCEPTED, *TERMINAL, *CHANGED, *OTHER_FACTS, *OPERATIONS, *OTHER_OBSERVATIONS)
OP = {name: index for index, name in enumerate(OPS)}

# Below zero means null: none of these columns has such values.
NULL = -1
# The columns that are integers here, and what a piece that does not mention one has there.
DEFAULTS = {
    "lsn": NULL, "part": 0, "parts": 1, "ts": NULL, "op": NULL, "stream": NULL, "seq": NULL,
    "count": 1, "size": NULL, "units": NULL, "delivery_count": NULL, "enqueued_ts": NULL,
    "first_delivered_ts": NULL, "consumer": NULL, "epoch": NULL,
}  # fmt: skip
_TEXTS = ("message_id", "session_id", "reason", "description", "correlation")
_TIMES = ("ts", "enqueued_ts", "first_delivered_ts")

Integers = npt.NDArray[np.int64]
Piece = dict[str, Any]
"""Columns by name: integers (times in ms), one for all rows or an array; lists of texts."""


def to_record_batch(pieces: Sequence[Piece], names: Names, consumers: Sequence[str]) -> Any:
    """Give the rows of all pieces as one pyarrow.RecordBatch, by LSN and part."""
    lengths = [len(piece["lsn"]) for piece in pieces]
    numbers = {
        name: np.concatenate(
            [
                np.broadcast_to(np.asarray(piece.get(name, default), np.int64), length)
                for piece, length in zip(pieces, lengths, strict=True)
            ]
        )
        for name, default in DEFAULTS.items()
    }
    order = np.lexsort((numbers["part"], numbers["lsn"]))
    columns: dict[str, Any] = {}
    for name, values in numbers.items():
        columns[name] = _integers(values[order], name)
    for name in _TEXTS:
        columns[name] = _texts(pieces, lengths, name, order)
    columns["op"] = pa.DictionaryArray.from_arrays(columns["op"], pa.array(OPS, pa.string()))
    columns["consumer"] = pa.DictionaryArray.from_arrays(
        columns["consumer"], pa.array(consumers, pa.string())
    )
    columns |= _named(numbers["stream"][order], names)
    return pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _integers(values: Integers, name: str) -> Any:
    mask = values < 0 if (values < 0).any() else None
    if name in _TIMES:
        return pa.array(values * 1000, pa.int64(), mask=mask).cast(SCHEMA.field(name).type)
    if name in ("op", "consumer"):
        return pa.array(values, pa.int32(), mask=mask)
    return pa.array(values, SCHEMA.field(name).type, mask=mask)


def _texts(pieces: Sequence[Piece], lengths: list[int], name: str, order: Integers) -> Any:
    if all(name not in piece for piece in pieces):
        return pa.nulls(len(order), pa.string())
    parts = [
        pa.array(piece[name], pa.string()) if name in piece else pa.nulls(length, pa.string())
        for piece, length in zip(pieces, lengths, strict=True)
    ]
    return pa.concat_arrays(parts).take(pa.array(order))


def _named(streams: Integers, names: Names) -> dict[str, Any]:
    """Give the columns `namespace` and `entity`."""
    unique, places = np.unique(streams, return_inverse=True)
    found = [names.of(int(stream)) if stream >= 0 else (None, None) for stream in unique]
    columns: dict[str, Any] = {}
    for name, texts in zip(("namespace", "entity"), zip(*found, strict=True), strict=True):
        known = {text: place for place, text in enumerate(dict.fromkeys(filter(None, texts)))}
        lookup = np.array([known.get(text, NULL) for text in texts], np.int64)
        indices = _integers(lookup[places], "op")
        columns[name] = pa.DictionaryArray.from_arrays(indices, pa.array(known, pa.string()))
    return columns


def spread(lsns: Integers, counts: Integers) -> Piece:
    """Give LSN, part and parts of records that stand for `counts` rows each."""
    starts = np.cumsum(counts) - counts
    total = int(counts.sum())
    return {
        "lsn": np.repeat(lsns, counts),
        "part": np.arange(total, dtype=np.int64) - np.repeat(starts, counts),
        "parts": np.repeat(counts, counts),
    }
