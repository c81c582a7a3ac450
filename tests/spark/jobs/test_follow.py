"""Following a capture (L2): crashes and late files change nothing about the answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.jobs import faults, synthetic
from tests.spark.jobs.handmade import Capture
from twinbus.spark.jobs.capture_frames import read_capture
from twinbus.spark.jobs.catalogue import Tables, run
from twinbus.spark.jobs.follow import FollowError, follow, write_tables

pytestmark = pytest.mark.slow

Clean = tuple[Path, synthetic.Story]


def rows_of(table: DataFrame) -> list[tuple[object, ...]]:
    """Sums of fractions depend on their order in the last digits."""
    return sorted(
        (tuple(round(v, 6) if isinstance(v, float) else v for v in row) for row in table.collect()),
        key=repr,
    )


def to_the_end(spark: SparkSession, job: str, root: Path, out: Path) -> None:
    query = follow(spark, job, [str(root)], str(out), files_per_trigger=1, availableNow=True)
    assert query.awaitTermination(200)


def stop_in_second_batch(spark: SparkSession, root: Path, out: Path) -> None:
    """An audit, one file a batch, that ends when its second batch is done and not committed."""

    def publish(tables: Tables, batch: int) -> None:
        write_tables(str(out))(tables, batch)
        if batch == 1:
            raise RuntimeError("the power went out")

    query = follow(
        spark, "audit", [str(root)], str(out), publish=publish, files_per_trigger=1,
        availableNow=True,
    )  # fmt: skip
    with pytest.raises(StreamingQueryException, match="the power went out"):
        query.awaitTermination(200)


def assert_same(spark: SparkSession, job: str, root: Path, out: Path) -> None:
    for name, table in run(job, read_capture(spark, str(root))).items():
        assert rows_of(spark.read.parquet(str(out / name))) == rows_of(table), name


@pytest.mark.parametrize(
    "job",
    [
        "dead-letters",
        pytest.param("cost", marks=pytest.mark.long),
        pytest.param("failovers", marks=pytest.mark.long),
        pytest.param("latency", marks=pytest.mark.long),
    ],
)
def test_files_one_by_one_give_the_answer_of_the_batch_l2(
    spark: SparkSession, clean: Clean, tmp_path: Path, job: str
) -> None:
    to_the_end(spark, job, clean[0], tmp_path)
    assert_same(spark, job, clean[0], tmp_path)


def test_a_crash_and_a_late_file_change_nothing_l2(
    spark: SparkSession, clean: Clean, tmp_path: Path
) -> None:
    """The audit is stopped inside a batch, then goes on; a file comes after all others."""
    root, out = tmp_path / "capture", tmp_path / "out"
    shutil.copytree(clean[0], root)
    late = faults.files(root)[1]
    aside = tmp_path / late.name
    late.rename(aside)
    stop_in_second_batch(spark, root, out)
    to_the_end(spark, "audit", root, out)
    kinds = [row.kind for row in spark.read.parquet(str(out / "violations")).collect()]
    assert kinds == ["missing_file"]

    aside.rename(late)
    to_the_end(spark, "audit", root, out)
    assert spark.read.parquet(str(out / "verdict")).collect()[0].verdict == "clean"
    assert_same(spark, "audit", root, out)


def test_what_retention_took_before_it_was_read_is_missing_and_no_end_l2(
    spark: SparkSession, clean: Clean, tmp_path: Path
) -> None:
    """A run is stopped inside a batch, and its file is gone before the next one."""
    root, out = tmp_path / "capture", tmp_path / "out"
    shutil.copytree(clean[0], root)
    stop_in_second_batch(spark, root, out)
    planned = (out / "checkpoint" / "sources" / "0" / "1").read_text()
    (taken,) = (file for file in faults.files(root) if file.name in planned)
    taken.unlink()
    to_the_end(spark, "audit", root, out)
    kinds = [row.kind for row in spark.read.parquet(str(out / "violations")).collect()]
    assert "missing_file" in kinds
    assert_same(spark, "audit", root, out)


@pytest.mark.parametrize("job", ["latency", "failovers"])
def test_a_capture_with_nothing_for_the_job_is_followed_l2(
    spark: SparkSession, tmp_path: Path, job: str
) -> None:
    """A broker was started and made a queue; the first message comes a file later."""
    root, out = tmp_path / "capture", tmp_path / "out"
    quiet, busy = Capture(node="quiet"), Capture(node="busy")
    quiet.add("started", 0)
    quiet.add("entity_put", 1, entity="orders", stream=4)
    quiet.add("heartbeat", 5)
    quiet.write(root)
    to_the_end(spark, job, root, out)
    assert_same(spark, job, root, out)
    busy.add("sent", 6, entity="orders", stream=4, size=10, units=1)
    busy.add("delivered", 7, entity="orders", stream=4, seq=1, delivery_count=0)
    busy.write(root)
    to_the_end(spark, job, root, out)
    assert_same(spark, job, root, out)


def test_a_state_goes_on_with_its_own_captures_only_l2(spark: SparkSession, tmp_path: Path) -> None:
    """Others would be added to it; other spellings and another order are no others."""
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    for root, sends in ((one, 3), (two, 4), (other, 10)):
        capture = Capture(node=root.name)
        for second in range(sends):
            capture.add("sent", second, entity="orders", stream=4, size=1, units=1)
        capture.write(root)
    (tmp_path / "link").symlink_to(one)

    def sent(*roots: Path) -> int:
        out = tmp_path / "out"
        query = follow(spark, "cost", [str(root) for root in roots], str(out), availableNow=True)
        assert query.awaitTermination(200)
        return sum(row.operations for row in spark.read.parquet(str(out / "totals")).collect())

    assert sent(one, two) == 7
    for wrong in ((one, other), (one,), (one, two, other)):
        with pytest.raises(FollowError, match=f"holds what was found in {one}, {two}"):
            sent(*wrong)
    later = Capture(node="later")
    later.add("sent", 9, entity="orders", stream=4, size=1, units=1)
    later.write(two)
    assert sent(two, tmp_path / "link", one / ".." / "one") == 8


def test_a_state_of_another_version_is_refused_l2(spark: SparkSession, tmp_path: Path) -> None:
    """What `cost` kept before it told brokers apart."""
    root, out = tmp_path / "capture", tmp_path / "out"
    capture = Capture()
    capture.add("sent", 0, entity="orders", stream=4, size=1, units=1)
    capture.write(root)
    to_the_end(spark, "cost", root, out)
    kept = spark.read.parquet(str(out / "state" / "0"))
    kept.drop("node").write.parquet(str(tmp_path / "old"))
    shutil.rmtree(out / "state" / "0")
    (tmp_path / "old").rename(out / "state" / "0")
    with pytest.raises(FollowError, match="another version of this job") as refused:
        to_the_end(spark, "cost", root, out)
    assert f"remove {out} to begin anew" in str(refused.value)


def test_a_state_that_is_not_the_checkpoints_is_refused_l2(
    spark: SparkSession, clean: Clean, tmp_path: Path
) -> None:
    root, out = tmp_path / "capture", tmp_path / "out"
    files = faults.files(clean[0])
    (root / "date=2026-01-01").mkdir(parents=True)
    for number, file in enumerate(files[:2]):
        shutil.copy(file, root / "date=2026-01-01")
        if number == 0:
            to_the_end(spark, "cost", root, out)
            shutil.copytree(out / "state" / "0", out / "old")
            other = spark.read.parquet(str(out / "old")).replace(0, 7, ["state_of_batch"])
            other.write.mode("overwrite").parquet(str(out / "state" / "0"))
    query = follow(spark, "cost", [str(root)], str(out), availableNow=True)
    with pytest.raises(StreamingQueryException, match=FollowError.__name__):
        query.awaitTermination(200)
