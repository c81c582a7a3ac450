"""The audit's parts without Spark: where a capture is cut must not matter (L2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.spark.jobs import faults, synthetic
from twinbus.capture.schema import ACCEPTED, SCHEMA, TERMINAL
from twinbus.spark.jobs import audit_reading
from twinbus.spark.jobs.audit_judging import Runs, Stream, Verdict, folded
from twinbus.spark.jobs.audit_survey import SURVEYED, Survey, survey

Clean = tuple[Path, synthetic.Story]
NODE = "node"
RUNS = pa.schema(
    [(n, pa.int64()) for n in ("lo", "hi", "accepted", "ended", "lsn_lo", "lsn_hi", "census")]
)
WRONG = ("lost", "invented", "settled_twice", "accepted_twice", "still_present")


def batch_of(path: Path) -> pa.RecordBatch:
    """A file as the audit hands it to its reader."""
    table = pq.read_table(path, schema=SCHEMA)
    op = table["op"].cast(pa.string())
    code = np.select(
        [pc.is_in(op, pa.array(names)).to_numpy() for names in (ACCEPTED, TERMINAL, ["present"])],
        [audit_reading.ACCEPTED, audit_reading.ENDED, audit_reading.PRESENT],
        audit_reading.OTHER,
    )
    columns = {name: table[name].fill_null(-1).combine_chunks()
               for name in ("lsn", "part", "parts", "stream", "seq", "count")}  # fmt: skip
    columns["ts"] = table["ts"].cast(pa.int64()).combine_chunks()
    columns["code"] = pa.array(code)
    columns["file"] = pa.array([str(path)] * table.num_rows)
    return pa.RecordBatch.from_pydict(columns)


def findings(paths: list[Path], random: Random, cuts: int) -> list[dict[str, Any]]:
    """What readers say of the files, each cut anywhere: in records and in censuses too."""
    found: list[dict[str, Any]] = []
    for path in paths:
        batch = batch_of(path)
        edges = sorted(
            {0, batch.num_rows, *(random.randrange(batch.num_rows) for _ in range(cuts))}
        )
        for start, end in pairwise(edges):
            reader = audit_reading.Reader()
            for table in _all(reader, batch.slice(start, end - start)):
                found += [row | {"node": NODE, "op": None} for row in table.to_pylist()]
    return found


def _all(reader: audit_reading.Reader, batch: pa.RecordBatch) -> Iterator[pa.Table]:
    yield from reader.eval(batch)
    yield from reader.terminate()


def judged(rows: list[dict[str, Any]], fold: bool) -> tuple[Survey, list[Verdict]]:
    seen = survey(row for row in rows if row["kind"] in SURVEYED)[NODE]
    ends = {census.time for census in (seen.first_census, seen.last_census) if census}
    streams: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["file"] in seen.copies:
            continue
        if row["kind"] == "run" or (row["kind"] == "present" and row["census"] in ends):
            streams.setdefault(row["stream"], []).append(row)
    verdicts: list[Verdict] = []
    for stream, mine in streams.items():
        runs = Runs.from_table(pa.Table.from_pylist(mine, schema=RUNS))
        if fold:
            few = folded(runs, seen)
            assert len(few.lo) <= len(runs.lo)
            runs = few
        verdicts += [v for v in Stream(runs, seen, stream).verdicts() if v.number]
    return seen, verdicts


@pytest.mark.parametrize("cuts", [0, 1, 7])
@pytest.mark.parametrize("fold", [False, True])
def test_a_clean_capture_is_clean_however_it_is_cut_l2(clean: Clean, cuts: int, fold: bool) -> None:
    rows = findings(clean[1].files, Random(cuts), cuts)
    seen, verdicts = judged(rows, fold)
    assert seen.all_faults() == []
    assert seen.rows == clean[1].rows
    assert Counter(v.kind for v in verdicts).keys() == {"present"}
    present = sum(len(seqs) for seqs in clean[1].present.values())
    assert sum(v.number for v in verdicts) == present


@pytest.mark.parametrize("cuts", [0, 5])
@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_however_the_capture_is_cut_l2(
    clean: Clean, tmp_path: Path, fault: faults.Fault, cuts: int
) -> None:
    root = tmp_path / "capture"
    for file in clean[1].files:
        table = pq.read_table(file, schema=SCHEMA)
        synthetic.write(table, root / file.parent.name / file.name)
    planted = fault(root)
    rows = findings(faults.files(root), Random(cuts), cuts)
    for fold in (False, True):
        seen, verdicts = judged(rows, fold)
        wrong = [(v.kind, v.seq) for v in verdicts if v.kind in WRONG]
        of_files = [(fault.kind, None) for fault in seen.all_faults()]
        assert [*of_files, *wrong] == [(planted.kind, planted.seq)]


@pytest.mark.parametrize("cuts", [0, 3])
def test_rows_that_come_twice_in_a_file_are_told_l2(
    clean: Clean, tmp_path: Path, cuts: int
) -> None:
    path = tmp_path / clean[1].files[0].name
    table = pq.read_table(clean[1].files[0], schema=SCHEMA)
    again = pa.concat_tables([table.slice(0, 5000), table.slice(4000, 1000), table.slice(5000)])
    synthetic.write(again, path)
    seen, verdicts = judged(findings([path], Random(1), cuts), fold=False)
    assert {fault.kind for fault in seen.all_faults()} == {"duplicated_lsn"}
    assert {v.kind for v in verdicts} <= {"present", "after_census", "undecided"}


def test_two_files_that_overlap_are_told_l2(clean: Clean, tmp_path: Path) -> None:
    """Neither is a copy of the other: what both hold is named, and no message is accused."""
    first, second = (pq.read_table(file, schema=SCHEMA) for file in clean[1].files[:2])
    longer = pa.concat_tables([first.slice(first.num_rows - 3000), second])
    lsns = longer["lsn"].to_numpy()
    longer = longer.filter(pa.array(lsns > lsns[0]))
    name = f"{synthetic.NODE}-{lsns[0] + 1:020}-{lsns[-1]:020}.parquet"
    synthetic.write(longer, tmp_path / name)
    synthetic.write(first, tmp_path / clean[1].files[0].name)
    seen, verdicts = judged(findings(sorted(tmp_path.iterdir()), Random(0), 0), fold=False)
    assert [fault.kind for fault in seen.all_faults()] == ["duplicated_lsn"]
    assert {v.kind for v in verdicts} <= {"present", "after_census", "undecided"}
