"""L4: what is exported and loaded again is the same messages."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.spark.bulk_kit import contents, send
from tests.support.broker import Broker
from twinbus.cli.main import app
from twinbus.spark import schema
from twinbus.spark.bulk import export, load

EVERYTHING: list[dict[str, Any]] = [
    {
        "message_id": "all",
        "session_id": "s",
        "partition_key": "s",
        "subject": "of interest",
        "content_type": "application/json",
        "correlation_id": "c",
        "to": "somebody",
        "reply_to": "me",
        "reply_to_session_id": "r",
        "time_to_live_ms": 3_600_000,
        "application_properties": [
            ("text", "ü"), ("long", "-7"), ("double", "2.5"), ("boolean", "true"),
            ("timestamp", "2026-03-01T12:00:00.000Z"),
        ],
        "application_property_types": [
            ("long", "long"), ("double", "double"), ("boolean", "boolean"),
            ("timestamp", "timestamp"),
        ],
        "body": b"\x00\xff{}",
    },
    {"message_id": "little", "body": b""},
    {"message_id": "later", "body": b"x", "scheduled_ts": datetime(2090, 1, 1, tzinfo=UTC)},
]  # fmt: skip


def settable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in schema.READ_ONLY} for row in rows]


@pytest.mark.slow
def test_l4_export_and_load_lose_nothing(
    spark: SparkSession, broker: Broker, pool: Any, queue: str, tmp_path: Path
) -> None:
    send(broker.connection_string, queue, EVERYTHING)
    directory = str(tmp_path / "messages")
    assert export.run(spark, broker.connection_string, queue, directory) == 3
    before = contents(broker.connection_string, queue)
    assert [row["message_id"] for row in before] == ["all", "little", "later"]
    target = pool.take()
    assert load.run(spark, directory, broker.connection_string, target) == 3
    after = contents(broker.connection_string, target)

    def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(settable(rows), key=lambda row: str(row["message_id"]))

    assert by_id(after) == by_id(before)
    assert before[0]["time_to_live_ms"] == 3_600_000
    assert dict(before[0]["application_property_types"])["long"] == "long"
    assert before[2]["scheduled_ts"] == datetime(2090, 1, 1, tzinfo=UTC)


def test_l4_load_leaves_out_what_no_message_has_and_says_so(
    spark: SparkSession,
    broker: Broker,
    queue: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = {"customer": [7], "body": ["hello"], "delivery_count": [3], "subject": ["s"]}
    pq.write_table(pa.table(rows), tmp_path / "part.parquet")
    assert load.run(spark, str(tmp_path), broker.connection_string, queue) == 1
    (row,) = contents(broker.connection_string, queue)
    assert (row["body"], row["subject"]) == (b"hello", "s")
    assert [line for line in caplog.messages if "Left out" in line] == [
        "Left out, because no message has such columns: customer"
    ]


@pytest.mark.slow
def test_l4_a_queue_that_is_not_there_is_not_found(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands, with the session of the tests: of what Spark says they tell the reason."""
    monkeypatch.setattr("twinbus.spark.session.session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    pq.write_table(pa.table({"body": ["hello"]}), tmp_path / "part.parquet")
    for given in (
        ["export", "nope", "--to", str(tmp_path / "nope")],
        ["load", str(tmp_path), "--to", "nope"],
    ):
        ended = CliRunner().invoke(
            app, ["pipeline", *given, "--connection", broker.connection_string]
        )
        assert ended.exit_code == 3, ended.stderr
        assert "/nope' could not be found" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_l4_an_export_writes_over_nothing(
    spark: SparkSession, broker: Broker, queue: str, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="exist"):
        export.run(spark, broker.connection_string, queue, str(tmp_path))
