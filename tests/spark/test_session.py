"""L5: one call gives a session that is fit, and leaves one that is there alone."""

from __future__ import annotations

from pyspark.sql import SparkSession

from twinbus.spark.session import session


def test_l5_a_session_that_runs_is_used_as_it_is(spark: SparkSession) -> None:
    # Python may give another object for it: a stream that ran has made its own active.
    used = session("another", "local[1]", memory="9g")
    assert used.sparkContext is spark.sparkContext


def test_l5_a_local_session_stays_on_this_machine_and_within_its_memory(
    spark: SparkSession,
) -> None:
    conf = spark.conf
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.driver.memory") == "1g"
    assert conf.get("spark.ui.enabled") == "false"
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert "TieredStopAtLevel=1" in str(conf.get("spark.driver.extraJavaOptions"))
