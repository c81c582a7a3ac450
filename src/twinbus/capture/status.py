"""How far a capture has come, and how far the journal is ahead of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from twinbus.capture.files import CaptureError, list_files, missing_lsns, read_sidecar
from twinbus.journal.tail import JournalGap, last_batch


def status(root: Path) -> dict[str, Any]:
    """What there is, for people and programs; lags are None where the journal cannot be read."""
    files = list_files(root)
    if not files:
        raise CaptureError(f"{root} holds no captured files")
    last = files[-1]
    newest_ms = _newest_ms(last.path)
    sidecar = read_sidecar(root)
    lag_lsns, lag_seconds = None, None
    if sidecar is not None:
        lag_lsns, lag_seconds = _lag(Path(sidecar.journal), last.last_lsn, newest_ms)
    return {
        "node": last.node,
        "first_lsn": files[0].first_lsn,
        "last_lsn": last.last_lsn,
        "missing_lsns": [list(gap) for gap in missing_lsns(files)],
        "files": len(files),
        "rows": sum(pq.read_metadata(file.path).num_rows for file in files),
        "bytes": sum(file.path.stat().st_size for file in files),
        "lag_lsns": lag_lsns,
        "lag_seconds": lag_seconds,
    }


def _newest_ms(path: Path) -> int:
    rows = pq.ParquetFile(path).read(columns=["ts"])
    return int(rows["ts"][-1].cast("int64").as_py()) // 1000


def _lag(journal: Path, last_lsn: int, newest_ms: int) -> tuple[int | None, float | None]:
    """How many LSNs, and seconds between the newest records here and there, are to come."""
    try:
        batch = last_batch(journal, last_lsn)
    except JournalGap as gap:
        batch = last_batch(journal, gap.last_lsn + 1)
    if batch is None:
        return None, None
    behind = batch.next_lsn - 1 - last_lsn
    return behind, max(0, batch.time_ms - newest_ms) / 1000 if behind else 0.0
