"""Latencies (L2) beside DuckDB's exact percentiles."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs import duckdb_answers, synthetic
from tests.spark.jobs.conftest import kept
from tests.spark.jobs.handmade import Capture, at
from twinbus.spark.jobs import latency
from twinbus.spark.jobs.capture_frames import read_capture
from twinbus.spark.jobs.catalogue import Tables

Clean = tuple[Path, synthetic.Story]
NAMES = [f"{name}_ms" for name in latency.PERCENTILES]


@pytest.fixture(scope="module")
def answers(spark: SparkSession, clean: Clean) -> Tables:
    rows = read_capture(spark, str(clean[0]))
    return kept(latency.report(latency.merge(latency.partial(rows))))


def test_percentiles_are_within_one_percent_of_the_exact_ones_l2(
    clean: Clean, answers: Tables
) -> None:
    found = {(row.entity, row.measure): row for row in answers["entities"].collect()}
    exact = duckdb_answers.latency(clean[0])
    assert len(exact) == 4
    for entity, count, to_delivery, to_completion in exact:
        assert found[entity, "enqueue_to_completion"].messages == count
        for measure, percentiles in (
            ("enqueue_to_delivery", to_delivery),
            ("enqueue_to_completion", to_completion),
        ):
            row = found[entity, measure]
            assert [row[name] for name in NAMES] == pytest.approx(percentiles, rel=0.01)


def test_hours_add_up_to_the_whole_l2(answers: Tables) -> None:
    hours: dict[tuple[str, str], int] = {}
    for row in answers["hours"].collect():
        key = (row.entity, row.measure)
        hours[key] = hours.get(key, 0) + row.messages
    whole = {(row.entity, row.measure): row.messages for row in answers["entities"].collect()}
    assert hours == whole
    assert len({row.hour for row in answers["hours"].collect()}) >= 4


def test_time_in_dead_letter_is_told_apart_l2(answers: Tables) -> None:
    rows = [row for row in answers["entities"].collect() if row.measure == "dead_letter"]
    assert {row.entity for row in rows} == {"orders/$DeadLetterQueue", "invoices/$DeadLetterQueue",
                                            "audit/events/$DeadLetterQueue"}  # fmt: skip
    for row in rows:
        assert row.p50_ms == pytest.approx(3_601_000, rel=0.01)


def test_lost_locks_and_redeliveries_are_counted_l2(clean: Clean, answers: Tables) -> None:
    rows = answers["locks"].collect()
    db = duckdb_answers.connect(clean[0])
    expected = db.execute("""
        select count(*) filter (op = 'delivered'),
               count(*) filter (op = 'delivered' and delivery_count > 0),
               count(*) filter (op = 'lock_expired') from journal""").fetchone()
    found = tuple(
        sum(row[name] for row in rows) for name in ("deliveries", "redeliveries", "locks_lost")
    )
    assert found == expected
    assert found[2] > 0


def test_a_dead_letter_is_counted_once_though_its_properties_changed_l2(
    spark: SparkSession, tmp_path: Path
) -> None:
    capture = Capture()
    for op, second in (("enqueued", 0), ("replaced", 10), ("replaced", 20), ("completed", 100)):
        capture.add(op, second, entity="orders/$DeadLetterQueue", stream=5, seq=1,
                    enqueued_ts=at(0))  # fmt: skip
    rows = read_capture(spark, str(capture.write(tmp_path)))
    found = latency.report(latency.merge(latency.partial(rows)))["entities"].collect()
    assert [(row.measure, row.messages, row.max_ms) for row in found] == [
        ("dead_letter", 1, 100_000)
    ]
