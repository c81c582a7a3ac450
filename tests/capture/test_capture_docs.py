"""docs/capture.md: what it says of the files is so, and its queries run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.capture.journals import STREAM, WrittenJournal
from twinbus.capture import schema
from twinbus.capture.capturer import Capturer, Settings
from twinbus.capture.files import held, list_files
from twinbus.engine import records

TEXT = (Path(__file__).parents[2] / "docs" / "capture.md").read_text()
COMPLETENESS, COST = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    written = WrittenJournal(tmp_path / "journal")
    written.begin()
    for _ in range(3):
        written.place(20)
    written.commit(records.settled(STREAM, 1, 30, records.COMPLETED))
    written.close()
    root = tmp_path / "capture"
    with held(root):
        capturer = Capturer(Settings(written.directory, root, "node", roll_rows=20))
        capturer.drain()
        capturer.close()
    return root


def ask(query: str, root: Path) -> list[Any]:
    return duckdb.sql(query.replace("capture/", f"{root}/")).fetchall()


def test_l1_completeness_is_told_from_lsns_alone(root: Path) -> None:
    assert ask(COMPLETENESS, root) == [(True, True, True)]
    files = list_files(root)
    whole = files[1].path.read_bytes()
    files[1].path.unlink()
    assert ask(COMPLETENESS, root) == [(False, True, True)]
    for name in ("a", "b"):
        (files[1].path.parent / f"{name}.parquet").write_bytes(whole)
    assert ask(COMPLETENESS, root)[0][1] is False


def test_l1_a_missing_part_is_told_as_well(root: Path) -> None:
    last = list_files(root)[-1].path
    table = pq.ParquetFile(last).read()
    assert table.num_rows > 25
    for place in (0, 20):
        pq.write_table(table.filter(pc.not_equal(table["part"], place)), last)
        assert ask(COMPLETENESS, root) == [(True, True, False)]


def test_every_column_and_every_op_is_described() -> None:
    described = set(re.findall(r"`(\w+)`", TEXT))
    assert set(schema.SCHEMA.names) <= described
    ops = (
        *schema.ACCEPTED, *schema.TERMINAL, *schema.CHANGED, *schema.OTHER_FACTS,
        *schema.OPERATIONS, *schema.OTHER_OBSERVATIONS,
    )  # fmt: skip
    assert set(ops) <= described


def test_the_other_query_runs(root: Path) -> None:
    assert ask(COST, root) == []
