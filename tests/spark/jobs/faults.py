"""Ways to spoil a made-up capture, each in one place and with what the audit must say.

Enters: the directory of a capture that is clean. Leaves: the same with one fault, and the
violation that names it. All but the fault itself stays right: records are numbered anew, and
files are called after what they hold.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.spark.jobs.synthetic import write
from twinbus.capture.schema import SCHEMA


class Violation(NamedTuple):
    kind: str
    entity: str | None
    seq: int | None
    # The LSN that the report must name, or the first of them.
    lsn: int


Fault = Callable[[Path], Violation]


def lost_message(root: Path) -> Violation:
    """A completion never was: the message is neither ended nor there."""
    path, table, rows = _completions(root, file=1)
    victim = rows[len(rows) // 2]
    seq, entity = table["seq"][victim].as_py(), table["entity"][victim].as_py()
    write(_renumbered(_without(table, [victim]), table["lsn"][victim].as_py()), path)
    return Violation("lost", entity, seq, _lsn_of(root, "enqueued", entity, seq))


def invented_message(root: Path) -> Violation:
    """A completion of a message that nobody sent."""
    return _extra_completion(root, seq=10**9, kind="invented")


def double_completion(root: Path) -> Violation:
    """A message that was completed in an earlier file is completed again."""
    _, table, rows = _completions(root, file=0)
    entity = table["entity"][rows[3]].as_py()
    return _extra_completion(root, table["seq"][rows[3]].as_py(), "settled_twice", entity)


def missing_file(root: Path) -> Violation:
    path = files(root)[1]
    first = pq.read_table(path, columns=["lsn"])["lsn"][0].as_py()
    path.unlink()
    return Violation("missing_file", None, None, first)


def duplicated_file(root: Path) -> Violation:
    path = files(root)[1]
    copy = root / "date=2031-01-01" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    first = pq.read_table(path, columns=["lsn"])["lsn"][0].as_py()
    return Violation("duplicated_file", None, None, first)


def gap_in_lsns(root: Path) -> Violation:
    """A record is missing in the middle of a file: here one that brought a message."""
    path = files(root)[1]
    table = pq.read_table(path, schema=SCHEMA)
    lsns = table["lsn"].to_numpy()
    enqueued = np.flatnonzero(pc.equal(table["op"].cast(pa.string()), "enqueued").to_numpy())
    lsn = int(lsns[enqueued[len(enqueued) // 2]])
    write(table.filter(pa.array(lsns != lsn)), path)
    return Violation("lsn_gap", None, None, lsn)


def missing_part(root: Path) -> Violation:
    """One row of a record of many is missing."""
    path, table, rows = _completions(root, file=1)
    write(_without(table, [rows[1]]), path)
    return Violation("lsn_gap", None, None, table["lsn"][rows[1]].as_py())


def wrong_name(root: Path) -> Violation:
    """A file says that it holds one LSN more than it does."""
    path = files(root)[-1]
    lsns = pq.read_table(path, columns=["lsn"])["lsn"].to_numpy()
    node = path.name.rsplit("-", 2)[0]
    path.rename(path.with_name(f"{node}-{lsns[0]:020}-{lsns[-1] + 1:020}.parquet"))
    return Violation("name_differs", None, None, int(lsns[0]))


def accepted_twice(root: Path) -> Violation:
    """The number of a message that is there is given to another."""
    path = files(root)[1]
    table = pq.read_table(path, schema=SCHEMA)
    op = table["op"].cast(pa.string())
    row = int(np.flatnonzero(pc.equal(op, "heartbeat").to_numpy())[0])
    early = pq.read_table(files(root)[0], schema=SCHEMA)
    source = int(np.flatnonzero(pc.equal(early["op"].cast(pa.string()), "enqueued").to_numpy())[5])
    again = early.slice(source, 1).to_pylist()[0]
    kept = table.slice(row, 1).to_pylist()[0]
    again |= {name: kept[name] for name in ("lsn", "part", "parts", "ts")}
    middle = pa.Table.from_pylist([again], schema=SCHEMA)
    write(pa.concat_tables([table.slice(0, row), middle, table.slice(row + 1)]), path)
    first = early["lsn"][source].as_py()
    return Violation("accepted_twice", again["entity"], again["seq"], first)


def ended_yet_present(root: Path) -> Violation:
    """The last census holds a message that was completed long before."""
    _, early, rows = _completions(root, file=0)
    seq, entity = early["seq"][rows[3]].as_py(), early["entity"][rows[3]].as_py()
    path = files(root)[-1]
    table = pq.read_table(path, schema=SCHEMA)
    is_census = pc.equal(table["op"].cast(pa.string()), "present")
    is_mine = pc.and_(is_census, pc.equal(table["entity"].cast(pa.string()), entity))
    row = int(np.flatnonzero(pc.fill_null(is_mine, False).to_numpy())[-1])
    more = table.slice(row, 1).to_pylist()[0] | {"seq": seq, "count": 1}
    extra = pa.Table.from_pylist([more], schema=SCHEMA)
    spoilt = pa.concat_tables([table.slice(0, row), extra, table.slice(row)])
    write(_renumbered(spoilt, more["lsn"]), path)
    return Violation("still_present", entity, seq, _lsn_of(root, "enqueued", entity, seq))


FAULTS: tuple[Fault, ...] = (
    lost_message,
    invented_message,
    double_completion,
    missing_file,
    duplicated_file,
    gap_in_lsns,
    missing_part,
    wrong_name,
    accepted_twice,
    ended_yet_present,
)


def files(root: Path) -> list[Path]:
    """In order of LSNs."""
    return sorted(root.rglob("*.parquet"), key=lambda path: path.name)


def _completions(root: Path, file: int) -> tuple[Path, pa.Table, list[int]]:
    """A file, its rows, and which of them are those of a record with many completions."""
    path = files(root)[file]
    table = pq.read_table(path, schema=SCHEMA)
    is_one = pc.equal(table["op"].cast(pa.string()), "completed")
    many = pc.and_(is_one, pc.greater(table["parts"], 20))
    lsns = table["lsn"].to_numpy()
    chosen = lsns[np.flatnonzero(many.to_numpy())[0]]
    return path, table, np.flatnonzero(many.to_numpy() & (lsns == chosen)).tolist()


def _extra_completion(root: Path, seq: int, kind: str, entity: str = "") -> Violation:
    path, table, rows = _completions(root, file=1)
    entity = entity or table["entity"][rows[0]].as_py()
    lsns = table["lsn"].to_numpy()
    is_mine = pc.and_(
        pc.equal(table["entity"].cast(pa.string()), entity),
        pc.and_(pc.equal(table["op"].cast(pa.string()), "completed"),
                pc.greater(table["parts"], 20)),
    )  # fmt: skip
    row = int(np.flatnonzero(pc.fill_null(is_mine, False).to_numpy())[0])
    extra = table.slice(row, 1).to_pylist()[0] | {"seq": seq}
    more = pa.Table.from_pylist([extra], schema=SCHEMA)
    spoilt = pa.concat_tables([table.slice(0, row), more, table.slice(row)])
    write(_renumbered(spoilt, int(lsns[row])), path)
    return Violation(kind, entity, seq, int(lsns[row]))


def _without(table: pa.Table, rows: list[int]) -> pa.Table:
    keep = np.ones(table.num_rows, dtype=bool)
    keep[rows] = False
    return table.filter(pa.array(keep))


def _renumbered(table: pa.Table, lsn: int) -> pa.Table:
    """The parts of one record counted anew."""
    mine = table["lsn"].to_numpy() == lsn
    part, parts = table["part"].to_numpy().copy(), table["parts"].to_numpy().copy()
    part[mine], parts[mine] = np.arange(mine.sum()), mine.sum()
    table = table.set_column(1, SCHEMA.field("part"), pa.array(part, pa.int32()))
    return table.set_column(2, SCHEMA.field("parts"), pa.array(parts, pa.int32()))


def _lsn_of(root: Path, op: str, entity: str, seq: int) -> int:
    for path in files(root):
        table = pq.read_table(path, schema=SCHEMA)
        same = pc.and_(
            pc.and_(pc.equal(table["op"].cast(pa.string()), op), pc.equal(table["seq"], seq)),
            pc.equal(table["entity"].cast(pa.string()), entity),
        )
        rows = np.flatnonzero(pc.fill_null(same, False).to_numpy())
        if len(rows):
            return int(table["lsn"][int(rows[0])].as_py())
    raise LookupError(f"no {op} of {seq} in {entity}")
