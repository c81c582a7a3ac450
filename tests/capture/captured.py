"""Reads a capture back, as any reader of Parquet would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twinbus.capture.files import CaptureFile, list_files


def read_table(root: Path) -> Any:
    return pa.concat_tables([pq.ParquetFile(file.path).read() for file in list_files(root)])


def read_rows(root: Path) -> list[dict[str, Any]]:
    """Every row in the order of the files, without the columns that are null."""
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in read_table(root).to_pylist()
    ]


def lsns_of(file: CaptureFile) -> list[int]:
    """The LSNs in a file, each once."""
    column = pq.ParquetFile(file.path).read(columns=["lsn"])["lsn"]
    return sorted(set(column.to_pylist()))


def assert_complete(root: Path, first_lsn: int, last_lsn: int) -> None:
    """From LSNs alone: nothing is missing, nothing comes twice, names tell the truth."""
    files = list_files(root)
    assert [file.first_lsn for file in files] == [
        first_lsn,
        *(file.last_lsn + 1 for file in files[:-1]),
    ]
    assert files[-1].last_lsn == last_lsn
    for file in files:
        assert lsns_of(file) == list(range(file.first_lsn, file.last_lsn + 1))
    keys = [(row["lsn"], row["part"], row["parts"]) for row in read_rows(root)]
    for before, after in zip([None, *keys], keys, strict=False):
        if before is None or before[1] + 1 == before[2]:
            assert after[1] == 0
        else:
            assert after == (before[0], before[1] + 1, before[2])
