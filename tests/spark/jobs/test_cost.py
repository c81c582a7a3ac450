"""What operations cost (C1–C3), beside DuckDB's counts and P11's figures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs import duckdb_answers, faults, synthetic
from tests.spark.jobs.conftest import kept
from tests.spark.jobs.handmade import Capture
from twinbus.spark.jobs import cost
from twinbus.spark.jobs.capture_frames import read_capture
from twinbus.spark.jobs.catalogue import Tables, run
from twinbus.spark.report import making
from twinbus.spark.tariff import Tariff, TariffError, load_tariff

Clean = tuple[Path, synthetic.Story]


@pytest.fixture(scope="module")
def answers(spark: SparkSession, clean: Clean) -> Tables:
    return kept(cost.report(cost.merge(cost.partial(read_capture(spark, str(clean[0]))))))


def test_every_operation_is_counted_as_duckdb_counts_it_c1(clean: Clean, answers: Tables) -> None:
    columns = ("namespace", "entity", "client", "kind", "day", "operations", "units", "bytes")
    found = sorted(tuple(row[name] for name in columns) for row in answers["operations"].collect())
    assert found == duckdb_answers.cost(clean[0])


def test_the_tariff_prices_units_c1(answers: Tables, clean: Clean) -> None:
    by_kind = {row.kind: row for row in answers["totals"].collect()}
    assert by_kind["sent"].operations == clean[1].sent + clean[1].backlogged
    assert by_kind["sent"].price == pytest.approx(by_kind["sent"].units * 0.80 / 1_000_000)
    assert by_kind["settled"].units > 0
    assert by_kind["settled"].price == 0
    assert {row.currency for row in by_kind.values()} == {"USD"}


def test_a_syphoned_message_is_charged_four_times_c2(answers: Tables, clean: Clean) -> None:
    steps = answers["syphoned"].collect()
    assert [row.step for row in steps] == [
        "send to the backlog", "receive from the backlog", "send to the primary",
        "receive from the primary",
    ]  # fmt: skip
    there = clean[1].backlogged
    home = there - len(clean[1].present[16])
    assert [row.messages for row in steps] == [there, there, home, home]
    assert [row.price for row in steps] == pytest.approx(
        [n * 0.8e-6 for n in (there, there, home, home)]
    )


def test_idle_calls_are_predicted_by_p11_c3(spark: SparkSession, clean: Clean) -> None:
    """10 queues and 15 minutes make 40 calls an hour, 960 a day."""
    merged = cost.merge(cost.partial(read_capture(spark, str(clean[0]))))
    rows = cost.report(merged)["idle"].collect()
    for row in rows:
        assert row.predicted == pytest.approx(row.seconds_seen / 3600 * 40)
    bursts = clean[1].backlogged // 20
    assert sum(row.measured for row in rows) == bursts
    other = cost.report(merged, queues=2, poll_seconds=60)["idle"].collect()
    assert other[0].predicted == pytest.approx(other[0].seconds_seen / 60 * 2)


def test_idle_calls_are_those_of_the_time_that_their_broker_was_captured_c1_c3(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An hour of the secondary, in two captures, within ten days of the primary."""
    roots = [tmp_path / name for name in ("first", "then", "primary")]
    for number, root in enumerate(roots[:2]):
        secondary = Capture("secondary")
        for minute, queue in ((0, 0), (30, number)):
            secondary.add(
                "received_nothing", number * 7200 + minute * 60, stream=8, size=0, units=1,
                entity=f"primary/x-servicebus-transfer/{queue}", consumer="syphon",
            )  # fmt: skip
        secondary.write(root)
    primary = Capture("primary")
    for day in (-5, 5):
        primary.add("heartbeat", day * 86_400)
    primary.write(roots[2])
    tables = run("cost", read_capture(spark, *map(str, roots)))
    (row,) = tables["idle"].collect()
    assert (row.namespace, row.seconds_seen, row.predicted) == ("secondary", 3600, 40)
    assert (row.measured, row.queues_seen) == (4, 2)
    assert row.price == pytest.approx(4 * 0.8e-6)
    # In all other tables it is one broker's.
    assert [row.operations for row in tables["operations"].collect()] == [3, 1]


@pytest.mark.slow
def test_what_is_shown_of_many_clients_is_the_whole_sum_c1(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows by client than a report shows; sums by entity and day have them all."""
    monkeypatch.setattr(making, "ROWS_MAX", 40)
    capture = Capture()
    for number in range(120):
        entity = f"q{number % 10}"
        capture.add("sent", number, entity=entity, stream=4, size=1, units=1 + (number % 10 == 9),
                    consumer=f"c{number}")  # fmt: skip
    sources = making.Sources([str(capture.write(tmp_path / "capture"))])
    found = making.write("cost", making.compute(spark, "cost", sources), tmp_path / "out")
    assert (len(found["operations"]), found["operations"].total) == (40, 120)
    assert [(row["entity"], row["operations"]) for row in found["entities"]] == [
        (f"q{number}", 12) for number in range(10)
    ]
    assert [(row["entity"], row["units"]) for row in found["entity_days"]] == [
        ("others", 36), ("q9", 24), *((f"q{number}", 12) for number in range(6)),
    ]  # fmt: skip
    assert sum(row["units"] for row in found["days"]) == 132


def test_a_second_reading_sees_what_came_since_l2(
    spark: SparkSession, clean: Clean, tmp_path: Path
) -> None:
    files = faults.files(clean[0])
    counts = []
    for file in files[:2]:
        (tmp_path / "date=2026-01-01").mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / "date=2026-01-01")
        totals = run("cost", read_capture(spark, str(tmp_path)))["totals"]
        counts.append(sum(row.operations for row in totals.collect()))
    assert 0 < counts[0] < counts[1]


def test_a_tariff_of_ones_own_c1(tmp_path: Path) -> None:
    path = tmp_path / "tariff.toml"
    path.write_text('currency = "EUR"\n[per_million]\nsent = 2\n')
    assert load_tariff(path) == Tariff("EUR", {"sent": 2.0})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("currency = ", "is not TOML"),
        ("[per_million]\nsent = 1", "`currency` must be a text"),
        ('currency = "EUR"', "a table `per_million`"),
        ('currency = "EUR"\n[per_million]\nsend = 1', "`send` is no kind of operation; use sent,"),
        ('currency = "EUR"\n[per_million]\nsent = -1', "the price of `sent` must be a number"),
        ('currency = "EUR"\nrate = 1\n[per_million]', "`rate` is unknown"),
    ],
)
def test_a_tariff_that_cannot_be_used_is_refused_c1(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tariff.toml"
    path.write_text(text)
    with pytest.raises(TariffError, match=said):
        load_tariff(path)


def test_a_tariff_that_is_not_there_is_named_c1(tmp_path: Path) -> None:
    with pytest.raises(TariffError, match=r"none\.toml cannot be read: No such file"):
        load_tariff(tmp_path / "none.toml")
