"""A capture written row by row, for stories too particular to make up in bulk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from tests.spark.jobs.synthetic import write
from twinbus.capture.schema import SCHEMA

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


class Capture:
    """Rows of one node, each a record of its own."""

    def __init__(self, namespace: str = "primary", node: str = "node") -> None:
        self._namespace, self._node = namespace, node
        self._rows: list[dict[str, object]] = []

    def add(self, op: str, second: float, **columns: object) -> None:
        row = dict.fromkeys(SCHEMA.names) | {
            "lsn": len(self._rows) + 1, "part": 0, "parts": 1, "ts": at(second), "op": op,
            "count": 1, "namespace": self._namespace, **columns,
        }  # fmt: skip
        self._rows.append(row)

    def write(self, root: Path) -> Path:
        name = f"{self._node}-{1:020}-{len(self._rows):020}.parquet"
        table = pa.Table.from_pylist(self._rows, schema=SCHEMA)
        write(table, root / "date=2026-03-01" / name)
        return root
