"""The audit (L2) finds each fault that was planted, and nothing else; DuckDB agrees."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs import duckdb_answers, faults, synthetic
from tests.spark.jobs.conftest import kept
from twinbus.spark.jobs.capture_frames import read_capture
from twinbus.spark.jobs.catalogue import Tables, run


@pytest.fixture(scope="module")
def spoilt(
    clean: tuple[Path, synthetic.Story], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, faults.Violation]]:
    """One capture for each fault."""
    roots = {}
    for fault in faults.FAULTS:
        root = tmp_path_factory.mktemp("spoilt") / fault.__name__
        shutil.copytree(clean[0], root)
        roots[fault.__name__] = (root, fault(root))
    return roots


@pytest.fixture(scope="module")
def answers(
    spark: SparkSession,
    clean: tuple[Path, synthetic.Story],
    spoilt: dict[str, tuple[Path, faults.Violation]],
) -> Tables:
    """One audit of all of them: a root is a node of its own."""
    roots = [str(clean[0]), *(str(root) for root, _ in spoilt.values())]
    return kept(run("audit", read_capture(spark, *roots)))


def test_clean_is_clean_l2(
    spark: SparkSession, clean: tuple[Path, synthetic.Story], answers: Tables
) -> None:
    root, story = clean
    assert [r for r in answers["violations"].collect() if r.node.startswith(f"{root}/")] == []
    verdict = run("audit", read_capture(spark, str(root)))["verdict"].collect()[0]
    assert verdict.verdict == "clean"
    assert verdict.rows == story.rows
    assert verdict.files == len(story.files)
    assert verdict.present == sum(len(seqs) for seqs in story.present.values())
    assert verdict.accepted - verdict.ended == verdict.present
    assert verdict.undecided == 0
    assert duckdb_answers.audit(root) == set()


@pytest.mark.parametrize("fault", [fault.__name__ for fault in faults.FAULTS])
def test_a_planted_fault_is_named_and_nothing_else_l2(
    fault: str, spoilt: dict[str, tuple[Path, faults.Violation]], answers: Tables
) -> None:
    root, planted = spoilt[fault]
    found = [r for r in answers["violations"].collect() if r.node.startswith(f"{root}/")]
    assert [(r.kind, r.entity, r.seq) for r in found] == [planted[:3]]
    first, _, last = found[0].lsns.partition(",")[0].partition(" to ")
    assert int(first) <= planted.lsn <= int(last or first)


def test_the_verdict_counts_them_l2(answers: Tables) -> None:
    verdict = answers["verdict"].collect()[0]
    assert verdict.verdict == f"{len(faults.FAULTS)} violations"
    checks = {row.check: row.violations for row in answers["checks"].collect()}
    assert sum(checks.values()) == len(faults.FAULTS)
    assert min(checks.values()) >= 1


@pytest.mark.parametrize("fault", [fault.__name__ for fault in faults.FAULTS])
def test_duckdb_gives_the_same_answer_l2(
    fault: str, spoilt: dict[str, tuple[Path, faults.Violation]]
) -> None:
    root, planted = spoilt[fault]
    same = {"missing_file": "missing", "lsn_gap": "missing", "duplicated_file": "double"}
    expected = {(same.get(planted.kind, planted.kind), planted.entity, planted.seq)}
    # Only the audit knows what names of files promise.
    assert duckdb_answers.audit(root) == (set() if planted.kind == "name_differs" else expected)


def test_nothing_is_not_called_clean_l2(spark: SparkSession, tmp_path: Path) -> None:
    verdict = run("audit", read_capture(spark, str(tmp_path)))["verdict"].collect()[0]
    assert (verdict.verdict, verdict.rows) == ("nothing captured", 0)


def test_a_capture_that_begins_later_rests_on_its_first_census_l2(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Retention removed the first files: what came before is known by the census."""
    story = synthetic.generate(
        tmp_path, 400_000, rows_per_file=100_000, burst=200, files_left_out=1
    )
    assert len(story.files) >= 3
    answer = run("audit", read_capture(spark, str(tmp_path)))
    assert answer["violations"].collect() == []
    verdict = answer["verdict"].collect()[0]
    assert verdict.verdict == "clean"
    assert verdict.before_capture > 0
