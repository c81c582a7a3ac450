"""The audit's first half: what a stretch of a capture says, boiled down to ranges.

Enters: rows of capture files in the order they have in the file. Leaves: a handful of
findings for each stretch: which LSNs it holds and which are missing or double, and per stream
which ranges of sequence numbers were accepted, ended, both, or present in a census. Where all
is well neighbours behave alike, and a million rows become a few ranges. It must not judge:
whether a range is right is known only when all stretches are together.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# What the `code` column says a row is, for the audit.
OTHER, ACCEPTED, ENDED, PRESENT, REMOVED = range(5)

# Rows of findings, by `kind`:
# stretch  LSNs lsn_lo to lsn_hi are there, beginning with part_lo, ending with part_hi of parts
# gap      LSNs lsn_lo to lsn_hi, or parts of that one, are missing inside a stretch
# double   LSNs lsn_lo to lsn_hi come more than once inside a stretch
# run      messages lo to hi of a stream were accepted and ended so many times each
# present  messages lo to hi of a stream are in the census of that time
# census   a census of that time was written from lsn_lo to lsn_hi
# removed  the stream's entity was removed
FINDINGS: Final = (
    "kind string, file string, stream long, lo long, hi long, accepted int, ended int, "
    "lsn_lo long, lsn_hi long, part_lo int, part_hi int, parts int, census long, rows long"
)
_NAMES: Final = [column.split()[0] for column in FINDINGS.split(", ")]
_STRINGS: Final = ("kind", "file")
_INTS: Final = ("accepted", "ended", "part_lo", "part_hi", "parts")
# Rows of one stretch at most: bounds the memory of a worker.
_STRETCH_MAX: Final = 1 << 20
_NONE: Final = -1

Ints = npt.NDArray[np.int64]
Columns = dict[str, Ints]


class Reader:
    """A table function: rows of a partition in, findings out."""

    def __init__(self) -> None:
        self._file = ""
        self._pieces: list[Columns] = []
        self._rows = 0

    def eval(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
        files = rows.column("file").dictionary_encode()
        codes = files.indices.to_numpy()
        columns = {
            name: rows.column(name).to_numpy(zero_copy_only=False).astype(np.int64)
            for name in ("lsn", "part", "parts", "ts", "code", "stream", "seq", "count")
        }
        edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, end in pairwise(edges):
            if start == end:
                continue
            file = files.dictionary[int(codes[start])].as_py()
            if file != self._file or self._rows + end - start > _STRETCH_MAX:
                yield from self.terminate()
                self._file = file
            self._pieces.append({name: column[start:end] for name, column in columns.items()})
            self._rows += end - start

    def terminate(self) -> Iterator[pa.Table]:
        if self._pieces:
            pieces = self._pieces
            whole = {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}
            self._pieces, self._rows = [], 0
            yield _table(self._file, findings(whole))


def findings(rows: Columns) -> Iterator[dict[str, Any]]:
    """All that a stretch says, as columns of findings (numbers stand for all of a block)."""
    doubles, rows = _straightened(rows)
    yield from doubles
    yield from _gaps(rows)
    yield {
        "kind": "stretch",
        "lsn_lo": rows["lsn"][0],
        "part_lo": rows["part"][0],
        "lsn_hi": rows["lsn"][-1],
        "part_hi": rows["part"][-1],
        "parts": rows["parts"][-1],
        "rows": len(rows["lsn"]),
    }
    removed = rows["code"] == REMOVED
    if removed.any():
        lsns = rows["lsn"][removed]
        yield {"kind": "removed", "stream": rows["stream"][removed], "lsn_lo": lsns, "lsn_hi": lsns}
    starts = _census_starts(rows)
    yield from _censuses(rows, starts)
    yield from _runs(rows, starts)


def _straightened(rows: Columns) -> tuple[list[dict[str, Any]], Columns]:
    """The rows in order and each once, and what was double."""
    lsn, part = rows["lsn"], rows["part"]
    ahead = np.diff(lsn)
    if ((ahead > 0) | ((ahead == 0) & (np.diff(part) > 0))).all():
        return [], rows
    order = np.lexsort((part, lsn))
    rows = {name: column[order] for name, column in rows.items()}
    lsn, part = rows["lsn"], rows["part"]
    double = np.r_[False, (np.diff(lsn) == 0) & (np.diff(part) == 0)]
    found = [
        {"kind": "double", "lsn_lo": first, "lsn_hi": last}
        for first, last in _ranges(np.unique(lsn[double]))
    ]
    return found, {name: column[~double] for name, column in rows.items()}


def _gaps(rows: Columns) -> Iterator[dict[str, Any]]:
    lsn, part, parts = rows["lsn"], rows["part"], rows["parts"]
    ends = part[:-1] + 1 == parts[:-1]
    ahead = np.diff(lsn)
    follows = ((ahead == 0) & (np.diff(part) == 1)) | ((ahead == 1) & ends & (part[1:] == 0))
    for at in np.flatnonzero(~follows).tolist():
        last, following = int(lsn[at]), int(lsn[at + 1])
        first_missing = last + 1 if ends[at] else last
        last_missing = following - 1 if part[at + 1] == 0 else following
        yield {"kind": "gap", "lsn_lo": first_missing, "lsn_hi": max(first_missing, last_missing)}


def _census_starts(rows: Columns) -> npt.NDArray[np.bool_]:
    """Where a census begins: its records lie side by side and have one time."""
    present = rows["code"] == PRESENT
    anew = np.r_[True, ~present[:-1] | (np.diff(rows["ts"]) != 0)]
    return np.asarray(present & anew)


def _censuses(rows: Columns, starts: npt.NDArray[np.bool_]) -> Iterator[dict[str, Any]]:
    present = rows["code"] == PRESENT
    if not present.any():
        return
    times, lsns = rows["ts"][present], rows["lsn"][present]
    firsts = np.flatnonzero(starts[present])
    lasts = np.r_[firsts[1:], len(lsns)] - 1
    yield {
        "kind": "census", "census": times[firsts], "lsn_lo": lsns[firsts], "lsn_hi": lsns[lasts],
    }  # fmt: skip
    some = present & (rows["count"] > 0)
    if some.any():
        yield {
            "kind": "present", "census": rows["ts"][some], "stream": rows["stream"][some],
            "lo": rows["seq"][some], "hi": rows["seq"][some] + rows["count"][some] - 1,
            "lsn_lo": rows["lsn"][some], "lsn_hi": rows["lsn"][some],
        }  # fmt: skip


def _runs(rows: Columns, starts: npt.NDArray[np.bool_]) -> Iterator[dict[str, Any]]:
    """Ranges of messages with the same story, none across a census: so that it is known of
    each range whether it came before or after."""
    code = rows["code"]
    mask = ((code == ACCEPTED) | (code == ENDED)) & (rows["seq"] != _NONE)
    if not mask.any():
        return
    era = np.cumsum(starts)[mask]
    stream, seq, lsn = rows["stream"][mask], rows["seq"][mask], rows["lsn"][mask]
    order = np.lexsort((seq, stream, era))
    era, stream, seq, lsn = era[order], stream[order], seq[order], lsn[order]
    accepts = (code[mask][order] == ACCEPTED).astype(np.int64)
    same = (np.diff(era) == 0) & (np.diff(stream) == 0)
    # First by message…
    at = np.flatnonzero(np.r_[True, ~(same & (np.diff(seq) == 0))])
    accepted = np.add.reduceat(accepts, at)
    ended = np.add.reduceat(1 - accepts, at)
    low, high = np.minimum.reduceat(lsn, at), np.maximum.reduceat(lsn, at)
    era, stream, seq = era[at], stream[at], seq[at]
    # … then neighbours that are alike. What came twice stands alone, with its own LSNs.
    alike = (
        (np.diff(era) == 0) & (np.diff(stream) == 0) & (np.diff(seq) == 1)
        & (np.diff(accepted) == 0) & (np.diff(ended) == 0)
        & (accepted[1:] <= 1) & (ended[1:] <= 1)
    )  # fmt: skip
    at = np.flatnonzero(np.r_[True, ~alike])
    last = np.r_[at[1:], len(seq)] - 1
    yield {
        "kind": "run", "stream": stream[at], "lo": seq[at], "hi": seq[last],
        "accepted": accepted[at], "ended": ended[at],
        "lsn_lo": np.minimum.reduceat(low, at), "lsn_hi": np.maximum.reduceat(high, at),
    }  # fmt: skip


def _ranges(numbers: Ints) -> list[tuple[int, int]]:
    """Sorted, distinct numbers as (first, last) of each unbroken range."""
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.r_[0, breaks + 1]]
    lasts = numbers[np.r_[breaks, len(numbers) - 1]]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _table(file: str, blocks: Iterator[dict[str, Any]]) -> pa.Table:
    return pa.concat_tables([_block_table(file, block) for block in blocks])


def _block_table(file: str, block: dict[str, Any]) -> pa.Table:
    length = max(np.size(value) for value in block.values())
    arrays = []
    for name in _NAMES:
        value = file if name == "file" else block.get(name)
        kind = pa.string() if name in _STRINGS else pa.int32() if name in _INTS else pa.int64()
        if value is None:
            arrays.append(pa.nulls(length, kind))
        elif name in _STRINGS:
            arrays.append(pa.array([value] * length, kind))
        else:
            arrays.append(pa.array(np.broadcast_to(value, (length,)), kind))
    return pa.table(arrays, names=_NAMES)
