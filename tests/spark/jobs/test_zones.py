"""Days and hours are those of UTC (L2), whatever zone the session's owner works in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs.handmade import Capture, at
from twinbus.spark.jobs.capture_frames import read_capture
from twinbus.spark.jobs.catalogue import run

pytestmark = pytest.mark.slow

GRAVE = "orders/$DeadLetterQueue"
ZONE = "spark.sql.session.timeZone"
# Before noon: half past midnight, which is the day before in New York, and 6:00 in Kolkata.
EARLY = -11.5 * 3600
FIRST, SECOND = date(2026, 3, 1), date(2026, 3, 2)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One letter of the first day is gone the day after; one is still there."""
    capture = Capture()
    capture.add("sent", EARLY, entity="orders", stream=4, size=1, units=1)
    for seq in (1, 2):
        capture.add("enqueued", EARLY, entity=GRAVE, stream=5, seq=seq)
    capture.add("completed", EARLY + 86_400, entity=GRAVE, stream=5, seq=1, enqueued_ts=at(EARLY))
    return capture.write(tmp_path_factory.mktemp("zones"))


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zoned(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, request.param)
    yield spark
    spark.conf.set(ZONE, str(before))


def table(session: SparkSession, job: str, name: str, root: Path) -> list[dict[str, Any]]:
    # Through Arrow, because there a time has its zone.
    rows = run(job, read_capture(session, str(root)))[name].toArrow().to_pylist()
    return list(rows)


def test_days_are_utc_days_l2(zoned: SparkSession, root: Path) -> None:
    assert [row["day"] for row in table(zoned, "cost", "days", root)] == [FIRST]
    trend = table(zoned, "dead-letters", "trend", root)
    assert [(row["day"], row["arrived"], row["resolved"]) for row in trend] == [
        (FIRST, 2, 0),
        (SECOND, 0, 1),
    ]


def test_hours_are_utc_hours_l2(zoned: SparkSession, root: Path) -> None:
    hours = [row["hour"].astimezone(UTC) for row in table(zoned, "latency", "hours", root)]
    assert hours == [datetime(2026, 3, 2, tzinfo=UTC)]


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python's own zone, which is not the session's."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_an_age_is_right_in_the_hour_that_comes_twice_l2(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Twenty minutes, in the first of two hours from 2 to 3 o'clock."""
    begin = (datetime(2026, 10, 25, 0, 10, tzinfo=UTC) - at(0)).total_seconds()
    capture = Capture()
    capture.add("enqueued", begin, entity=GRAVE, stream=5, seq=1)
    capture.add("heartbeat", begin + 20 * 60)
    ages = table(spark, "dead-letters", "ages", capture.write(tmp_path))
    assert [row["age"] for row in ages] == ["under 1 hour"]
