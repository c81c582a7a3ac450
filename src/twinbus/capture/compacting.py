"""Merges the small files of a capture into large ones, under another root.

Another root, because a stream that reads the first one would take rows in new files for new
rows. The target's names say how far an earlier run came, so a run that was killed is simply run
again. Nothing is removed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twinbus.capture.files import (
    CaptureError,
    CaptureFile,
    captured_lsn,
    held,
    list_files,
    write_file,
)

MERGED_ROWS = 1_000_000
# Files are rolled a little late: two of them, each a bit more than half of it, still go together.
_SLACK = 1.25


def compact(
    root: Path,
    to: Path,
    *,
    accept_gap: bool = False,
    rows_max: int = MERGED_ROWS,
    on_written: Callable[[CaptureFile], None] = lambda file: None,
) -> list[CaptureFile]:
    """Merge what `to` does not have yet; give the files written."""
    _need_apart(root.resolve(), to.resolve())
    written: list[CaptureFile] = []
    with held(to):
        files = _new_files(root, to, accept_gap=accept_gap)
        for group, tables in _groups(files, rows_max):
            table = pa.concat_tables(tables)
            first, last = group[0], group[-1]
            merged = write_file(to, table, first.node, first.first_lsn, last.last_lsn)
            on_written(merged)
            written.append(merged)
    return written


def _need_apart(root: Path, to: Path) -> None:
    """Readers take all files below a root: neither may see the other's rows."""
    if to.is_relative_to(root) or root.is_relative_to(to):
        raise CaptureError(
            "the merged files need a root of their own: name a directory that is not in"
            f" {root} and does not hold it"
        )


def _new_files(root: Path, to: Path, *, accept_gap: bool) -> list[CaptureFile]:
    """The files behind what was merged earlier."""
    files = list_files(root)
    if not files:
        raise CaptureError(f"{root} holds no captured files")
    nodes = sorted({file.node for file in [*files, *list_files(to)]})
    if len(nodes) > 1:
        raise CaptureError(f"files of several nodes cannot be merged: {', '.join(nodes)}")
    done = captured_lsn(to)
    fresh = [file for file in files if file.last_lsn > done]
    for file in fresh:
        if file.first_lsn <= done:
            raise CaptureError(
                f"{file.path} begins at LSN {file.first_lsn}, but everything up to {done} has"
                " been taken already: a file was copied or renamed"
            )
        if done and file.first_lsn > done + 1 and not accept_gap:
            raise CaptureError(
                f"LSNs {done + 1} to {file.first_lsn - 1} are missing before {file.path}: the"
                " files that held them were removed before they were merged. Say --accept-gap"
                " to go on without them."
            )
        done = file.last_lsn
    return fresh


def _groups(
    files: list[CaptureFile], rows_max: int
) -> Iterator[tuple[list[CaptureFile], list[Any]]]:
    """Yield neighbours of one day without a gap, with their tables, about `rows_max` rows."""
    group: list[CaptureFile] = []
    tables: list[Any] = []
    rows = 0
    for file in files:
        table = pq.ParquetFile(file.path).read()
        joins = group and file.day == group[-1].day and file.first_lsn == group[-1].last_lsn + 1
        if group and (not joins or rows + table.num_rows > rows_max * _SLACK):
            yield group, tables
            group, tables, rows = [], [], 0
        group.append(file)
        tables.append(table)
        rows += table.num_rows
    if group:
        yield group, tables
