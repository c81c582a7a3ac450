"""The audit (L2) of what a live broker did, with broker and capture killed on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.capture.test_capture_live import CONFIG, run_with_kills
from tests.spark.conftest import FORM
from tests.spark.jobs import duckdb_answers
from tests.support.broker import Broker
from twinbus.spark.jobs.capture_frames import read_capture
from twinbus.spark.jobs.catalogue import run


@pytest.mark.slow
def test_a_broker_that_was_killed_is_clean_l2(spark: SparkSession, tmp_path: Path) -> None:
    root, config = tmp_path / "capture", tmp_path / "broker.toml"
    config.write_text(CONFIG.format(root=root))
    options = ("--admin-port", "off", "--config", str(config))
    broker = Broker(tmp_path / "broker", {}, FORM, options)
    try:
        run_with_kills(broker, root, kills=4, seed=3)
    finally:
        broker.kill()
    answer = run("audit", read_capture(spark, str(root)))
    assert answer["violations"].collect() == []
    verdict = answer["verdict"].collect()[0]
    assert verdict.verdict == "clean"
    assert verdict.accepted > 50
    assert verdict.ended > 0
    # The orderly stop took a census last of all: nothing rests on the journal's word.
    assert (verdict.after_census, verdict.undecided, verdict.before_capture) == (0, 0, 0)
    assert verdict.present == verdict.accepted - verdict.ended
    assert duckdb_answers.audit(root) == set()
