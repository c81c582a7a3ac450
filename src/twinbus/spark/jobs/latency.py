"""How long messages took, and what went wrong on the way, by entity and hour.

Enters: capture rows; those that end a message carry its times, so nothing is joined. Leaves:
percentiles of the time from enqueueing to first delivery, to completion and spent in
dead-letter queues, and the numbers of redeliveries and lost locks.

Times are counted in buckets that grow by 2 %, and a percentile is given as the middle of its
bucket: never more than 1 % off, and exact to the millisecond below 50 ms. Buckets add up,
which percentiles do not.
"""

import math
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from twinbus.capture.schema import TERMINAL
from twinbus.spark.jobs.capture_frames import hour_of, keep

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
# What is measured.
TO_DELIVERY, TO_COMPLETION, IN_DEAD_LETTER = (
    "enqueue_to_delivery", "enqueue_to_completion", "dead_letter",
)  # fmt: skip
# Each bucket reaches from g^n to g^(n+1); its middle is then 1 % from either end at most.
_GROWTH: Final = 1.02
_EXACT_MS: Final = 50
_GRAVE: Final = "%/$deadletterqueue"
_DONE: Final = ("completed", "deleted")

_KEYS: Final = ("namespace", "entity", "hour", "measure", "bucket")


def partial(rows: DataFrame) -> DataFrame:
    hour = hour_of(F.col("ts")).alias("hour")
    ends = rows.where(F.col("enqueued_ts").isNotNull() & F.col("op").isin(*TERMINAL))
    born, first, end = (_ms(F.col(name)) for name in ("enqueued_ts", "first_delivered_ts", "ts"))
    whole = F.when(F.lower("entity").like(_GRAVE), F.lit(IN_DEAD_LETTER)).when(
        F.col("op").isin(*_DONE), F.lit(TO_COMPLETION)
    )
    # Both measures of a message in one pass: counted by both buckets, then told apart.
    pairs = (
        ends.select(
            "namespace", "entity", hour, whole.alias("whole"),
            _elapsed(born, first).alias("first_ms"), _elapsed(born, end).alias("whole_ms"),
        )
        .groupBy("namespace", "entity", "hour", "whole",
                 _bucket(F.col("first_ms")).alias("first_bucket"),
                 _bucket(F.col("whole_ms")).alias("whole_bucket"))
        .agg(F.count("*").alias("number"), F.sum("first_ms").alias("first_sum"),
             F.max("first_ms").alias("first_max"), F.sum("whole_ms").alias("whole_sum"),
             F.max("whole_ms").alias("whole_max"))
    )  # fmt: skip
    times = pairs.select("namespace", "entity", "hour", "number", F.explode(F.array(
        F.struct(F.lit(TO_DELIVERY).alias("measure"), F.col("first_bucket").alias("bucket"),
                 F.col("first_sum").alias("sum_ms"), F.col("first_max").alias("max_ms")),
        F.struct(F.col("whole").alias("measure"), F.col("whole_bucket").alias("bucket"),
                 F.col("whole_sum").alias("sum_ms"), F.col("whole_max").alias("max_ms")),
    )).alias("time")).select("namespace", "entity", "hour", "number", "time.*")  # fmt: skip
    known = times.where("measure is not null and bucket is not null")
    return merge(known.unionByName(_mishaps(rows, hour), allowMissingColumns=True))


def merge(partials: DataFrame) -> DataFrame:
    return partials.groupBy(*_KEYS).agg(
        F.sum("number").alias("number"),
        F.sum("sum_ms").alias("sum_ms"),
        F.max("max_ms").alias("max_ms"),
    )


def report(merged: DataFrame) -> dict[str, DataFrame]:
    merged = keep(merged)
    times = merged.where(F.col("bucket").isNotNull())
    return {
        "hours": _percentiles(times, ["namespace", "entity", "measure", "hour"]),
        "entities": _percentiles(times, ["namespace", "entity", "measure"]),
        "locks": _locks(merged),
    }


def _mishaps(rows: DataFrame, hour: Column) -> DataFrame:
    """Deliveries, those that were not the first of their message, and locks that ran out."""
    is_again = (F.col("op") == "delivered") & (F.col("delivery_count") > 0)
    counted = rows.where(F.col("op").isin("delivered", "lock_expired"))
    measure = F.when(is_again, "redelivered").otherwise(F.col("op")).alias("measure")
    return counted.groupBy("namespace", "entity", hour, measure).agg(F.sum("count").alias("number"))


def _ms(time: Column) -> Column:
    return F.unix_millis(time)


def _elapsed(since: Column, until: Column) -> Column:
    """Unknown where one of them is; never negative, though a clock may have been set back."""
    return F.when(until < since, F.lit(0).cast("long")).otherwise(until - since)


def _bucket(ms: Column) -> Column:
    """Small times are their own bucket; the others go by their logarithm."""
    scaled = F.floor(F.log(ms / F.lit(float(_EXACT_MS))) / F.lit(math.log(_GROWTH)))
    wide = (scaled + F.lit(_EXACT_MS)).cast("int")
    return F.when(ms < _EXACT_MS, ms.cast("int")).otherwise(wide)


def _middle(bucket: Column) -> Column:
    """The time that stands for a bucket, equally far from both its ends in proportion."""
    lower = F.lit(float(_EXACT_MS)) * F.pow(F.lit(_GROWTH), bucket - F.lit(_EXACT_MS))
    middle = lower * F.lit(2 * _GROWTH / (1 + _GROWTH))
    return F.when(bucket < _EXACT_MS, bucket.cast("double")).otherwise(middle)


def _percentiles(times: DataFrame, keys: list[str]) -> DataFrame:
    buckets = times.groupBy(*keys, "bucket").agg(
        F.sum("number").alias("number"), F.sum("sum_ms").alias("sum_ms"),
        F.max("max_ms").alias("max_ms"),
    )  # fmt: skip
    upto = Window.partitionBy(*keys).orderBy("bucket")
    running = buckets.select(
        "*", F.sum("number").over(upto).alias("upto"),
        F.sum("number").over(Window.partitionBy(*keys)).alias("messages"),
    )  # fmt: skip

    def percentile(share: float) -> Column:
        # The smallest time that at least this share of the messages did not exceed.
        is_there = F.col("upto") >= F.ceil(F.col("messages") * F.lit(share))
        return F.least(_middle(F.min(F.when(is_there, F.col("bucket")))), F.max("max_ms"))

    return (
        running.groupBy(*keys, "messages")
        .agg(
            (F.sum("sum_ms") / F.sum("number")).alias("mean_ms"),
            *(percentile(share).alias(f"{name}_ms") for name, share in PERCENTILES.items()),
            F.max("max_ms").alias("max_ms"),
        )
        .orderBy(*keys)
    )


def _locks(merged: DataFrame) -> DataFrame:
    def number(*measures: str) -> Column:
        return F.sum(F.when(F.col("measure").isin(*measures), F.col("number")).otherwise(0))

    deliveries = number("delivered", "redelivered")
    return (
        merged.where(F.col("bucket").isNull())
        .groupBy("namespace", "entity", "hour")
        .agg(
            deliveries.alias("deliveries"),
            number("redelivered").alias("redeliveries"),
            number("lock_expired").alias("locks_lost"),
        )
        .withColumn("locks_lost_share", F.try_divide("locks_lost", "deliveries"))
        .orderBy("namespace", "entity", "hour")
    )
