"""Dead letters to triage (L2)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs import synthetic
from tests.spark.jobs.conftest import kept
from tests.spark.jobs.handmade import Capture
from twinbus.spark.jobs import dead_letters
from twinbus.spark.jobs.capture_frames import read_capture
from twinbus.spark.jobs.catalogue import Tables

Clean = tuple[Path, synthetic.Story]
GRAVE = "orders/$DeadLetterQueue"


def job(spark: SparkSession, *roots: Path) -> Tables:
    rows = read_capture(spark, *(str(root) for root in roots))
    return dead_letters.report(dead_letters.merge(dead_letters.partial(rows)))


@pytest.fixture(scope="module")
def answers(spark: SparkSession, clean: Clean) -> Tables:
    return kept(job(spark, clean[0]))


def test_what_is_open_and_what_is_resolved_add_up_l2(clean: Clean, answers: Tables) -> None:
    groups = answers["groups"].collect()
    story = clean[1]
    there = sum(len(seqs) for stream, seqs in story.present.items() if stream & 1)
    assert sum(row.open for row in groups) == there
    assert sum(row.open + row.resolved for row in groups) == story.dead_lettered
    assert {row.reason for row in groups} == {reason for reason, _ in synthetic.DEATHS}


def test_trend_and_ages_tell_the_same_numbers_l2(clean: Clean, answers: Tables) -> None:
    trend, groups = answers["trend"].collect(), answers["groups"].collect()
    assert sum(row.arrived for row in trend) == clean[1].dead_lettered
    assert sum(row.resolved for row in trend) == sum(row.resolved for row in groups)
    assert len({row.day for row in trend}) == 2
    ages = Counter[str]()
    for row in answers["ages"].collect():
        ages[row.age] += row.open
    assert set(ages) == {"under 1 hour", "under 1 day"}
    assert ages.total() == sum(row.open for row in groups)


def test_samples_are_the_newest_of_a_group_l2(answers: Tables) -> None:
    groups = {(row.entity, row.reason): row for row in answers["groups"].collect()}
    samples = answers["samples"].collect()
    for row in samples:
        assert row.rank <= dead_letters.SAMPLES
        assert row.message_id.endswith(f"-{row.seq}")
        if row.rank == 1:
            assert row.arrived == groups[row.entity, row.reason].newest
    assert {(row.entity, row.reason) for row in samples} == set(groups)


def test_errors_of_a_family_are_one_group_l2(spark: SparkSession, tmp_path: Path) -> None:
    capture = Capture()
    texts = (
        "Order 17 of 'ACME' failed at 10:04:05 (0xdeadBEEF)",
        "Order 2048 of 'Miller & Sons' failed at 23:59:59 (0x00)",
        "No table 3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "No table 6fa459ea-ee8a-3ca4-894e-db77e160355e",
        # As long as properties can be: it took a deeper stack than Java has.
        "Too long: " + "1." * 30_000,
    )
    for seq, text in enumerate(texts, start=1):
        capture.add("enqueued", second=seq, entity=GRAVE, stream=5, seq=seq, message_id=f"m{seq}",
                    reason="bad", description=text, correlation="orders")  # fmt: skip
    capture.write(tmp_path)
    groups = job(spark, tmp_path)["groups"].collect()
    assert sorted((row.family, row.open) for row in groups) == [
        ("No table ‹id›", 2),
        ("Order ‹n› of '…' failed at ‹n› (‹hex›)", 2),
        ("Too long: ‹n›.", 1),
    ]


def test_each_reason_has_its_advice_and_a_removed_queue_leaves_nothing_open_l2(
    spark: SparkSession, tmp_path: Path
) -> None:
    capture = Capture()
    said = {
        "TTLExpiredException": "not received in time",
        "MaxDeliveryCountExceeded": "Receivers took them and failed",
        "HeaderSizeExceeded": "Move data from properties",
        "Session id is null": "without a session id",
        "MaxBatchFailuresExceeded": "A stream's batch",
        "strange": "Read the samples' descriptions",
    }
    for seq, reason in enumerate(said, start=1):
        capture.add("enqueued", second=seq, entity=GRAVE, stream=5, seq=seq, reason=reason)
    capture.add("enqueued", second=9, entity="q/$Transfer/$DeadLetterQueue", stream=10, seq=1,
                reason="strange")  # fmt: skip
    capture.add("enqueued", second=10, entity="gone/$DeadLetterQueue", stream=13, seq=1)
    capture.add("entity_removed", second=40, stream=12)
    capture.add("heartbeat", second=50)
    capture.write(tmp_path)
    groups = {(row.entity, row.reason): row for row in job(spark, tmp_path)["groups"].collect()}
    for reason, words in said.items():
        assert words in groups[GRAVE, reason].advice
    assert "could not be forwarded" in groups["q/$Transfer/$DeadLetterQueue", "strange"].advice
    gone = groups["gone/$DeadLetterQueue", "(none given)"]
    assert (gone.open, gone.resolved, gone.mean_seconds_to_resolve) == (0, 1, 30.0)
