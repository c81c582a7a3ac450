"""Dead letters to triage: where they are, why, since when, and what to do about them.

Enters: capture rows. Leaves: groups by entity, reason and family of errors, with how many are
still there (open) and how many left the dead-letter queue (resolved) and after how long; ages,
the trend by day, samples. The newest time in the
capture counts as now.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from twinbus.spark.jobs.capture_frames import day_of, keep, shaped
from twinbus.spark.jobs.message_pairs import ARRIVAL, END, KEYS, halves, joined

SAMPLES: Final = 5
_SUFFIX: Final = "/$deadletterqueue"
_TRANSFER: Final = "/$transfer"
_GROUP: Final = ("namespace", "entity", "reason", "family")
# Ages at which a group's next column begins, in seconds.
_AGES: Final = (("1 hour", 3600), ("1 day", 86_400), ("7 days", 604_800), ("30 days", 2_592_000))

# Of the error's text, what differs from message to message.
_VARIABLE: Final = (
    (r"'[^']*'|\"[^\"]*\"|`[^`]*`", "'…'"),
    (r"(?i)\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", "‹id›"),
    (r"(?i)\b0x[0-9a-f]+\b|\b(?=[a-f]*[0-9])[0-9a-f]{8,}\b", "‹hex›"),
    # Java's stack grows with each turn of a repeated group, and ends in a text that is long.
    (r"\d(?:[\d.,:]*\d)?", "‹n›"),
)
_ADVICE: Final = {
    "TTLExpiredException": "They were not received in time. Look for stopped or slow receivers; "
    "lengthen the time to live if late messages are still of use, or purge them if not.",
    "MaxDeliveryCountExceeded": "Receivers took them and failed, over and over. Look at the "
    "receivers' logs for these message ids, mend the cause, then resubmit.",
    "HeaderSizeExceeded": "Their properties are larger than the limit. Move data from "
    "properties into the body at the sender; resubmit with fewer properties.",
    "Session id is null": "They came without a session id to an entity that requires one. "
    "Set it at the sender; resubmit with a session id.",
    "MaxBatchFailuresExceeded": "A stream's batch with these messages failed too often. Find the "
    "message that the query cannot process, mend the query, then resubmit.",
    "MaxTransferHopCountExceeded": "They were forwarded too often, which means in a circle. "
    "Straighten the forwarding, then resubmit.",
    "FilterEvaluationException": "A rule's filter failed on them. Mend the rule or the property "
    "that it reads, then resubmit.",
}
_TRANSFER_ADVICE: Final = (
    "They could not be forwarded. See that the target exists, takes messages and is not full; "
    "then resubmit from the transfer dead-letter queue."
)
_GENERAL_ADVICE: Final = (
    "The application sent them here, or a cause that is not known to this report. Read the "
    "samples' descriptions, mend the cause, then resubmit; purge what nobody needs."
)

# A partial holds letters as pairs that may lack a half, resolved ones as sums (`number`), and
# the newest time seen (`how` is clock).
_CLOCK: Final = "clock"
_COLUMNS: Final = {
    **dict.fromkeys((*KEYS, *ARRIVAL, *END, *_GROUP), "string"),
    "stream": "long", "seq": "long", "arrived": "timestamp", "ended": "timestamp",
    "arrived_day": "date", "ended_day": "date", "number": "long", "seconds": "double",
    "seconds_max": "double",
}  # fmt: skip
_SUMMED: Final = ("number", "seconds", "seconds_max", "ended")


def partial(rows: DataFrame) -> DataFrame:
    letters = halves(rows, F.lower("entity").endswith(_SUFFIX))
    # A heartbeat comes every few seconds, whatever else happens.
    beats = rows.where(F.col("op") == "heartbeat").groupBy().agg(F.max("ts").alias("ended"))
    clock = beats.withColumn("how", F.lit(_CLOCK))
    return _shaped(letters.unionByName(clock, allowMissingColumns=True))


def merge(partials: DataFrame) -> DataFrame:
    # Read twice below; it is a small part of the capture.
    partials = keep(partials)
    is_letter = F.col("number").isNull() & ~F.col("how").eqNullSafe(_CLOCK)
    letters = _shaped(joined(partials.where(is_letter)))
    whole = _resolved(letters).unionByName(partials.where(~is_letter))
    keys = [name for name in _COLUMNS if name not in _SUMMED]
    return _shaped(
        whole.groupBy(*keys).agg(
            F.sum("number").alias("number"), F.sum("seconds").alias("seconds"),
            F.max("seconds_max").alias("seconds_max"), F.max("ended").alias("ended"),
        )
    )  # fmt: skip


def _resolved(letters: DataFrame) -> DataFrame:
    """Letters with both halves as sums of one; the others as they are."""
    done = F.col("arrived").isNotNull() & F.col("ended").isNotNull() & F.col("seq").isNotNull()
    seconds = F.greatest(F.lit(0.0), _seconds("ended") - _seconds("arrived"))
    of_sums = {
        "namespace": F.col("namespace"), "entity": F.col("entity"), "how": F.col("how"),
        "reason": _reason(), "family": _family(), "arrived_day": day_of(F.col("arrived")),
        "ended_day": day_of(F.col("ended")), "number": F.lit(1), "seconds": seconds,
        "seconds_max": seconds,
    }  # fmt: skip
    nothing = F.lit(None)
    return _shaped(
        letters.select(
            *(
                F.when(done, of_sums.get(name, nothing)).otherwise(F.col(name)).alias(name)
                for name in _COLUMNS
            )
        )
    )


def report(merged: DataFrame) -> dict[str, DataFrame]:
    merged = keep(merged)
    # As a number: what Python has for a time is two moments in the hour that a clock set back
    # goes through twice.
    newest = merged.agg(F.max(F.unix_micros(F.greatest("ended", "arrived")))).first()
    now = F.timestamp_micros(F.lit(newest[0] if newest else None).cast("long"))
    is_open = F.col("arrived").isNotNull() & F.col("ended").isNull()
    letters = merged.where(is_open).select(
        *KEYS, "namespace", "entity", _reason().alias("reason"), _family().alias("family"),
        "message_id", "description", "correlation", "arrived",
    )  # fmt: skip
    resolved = merged.where("number is not null")
    return {
        "groups": _groups(letters, resolved),
        "ages": _ages(letters, now),
        "trend": _trend(letters, resolved),
        "samples": _samples(letters),
    }


def _shaped(rows: DataFrame) -> DataFrame:
    return shaped(rows, _COLUMNS)


def _seconds(name: str) -> Column:
    return F.col(name).cast("double")


def _reason() -> Column:
    return F.coalesce(F.col("reason"), F.lit("(none given)"))


def _family() -> Column:
    """The description without what differs from message to message."""
    text = F.coalesce(F.col("description"), F.lit(""))
    for pattern, stand_in in _VARIABLE:
        text = F.regexp_replace(text, pattern, stand_in)
    return F.substring(text, 1, 200)


def _advice() -> Column:
    advice = F.when(F.lower("entity").contains(_TRANSFER), F.lit(_TRANSFER_ADVICE))
    for reason, text in _ADVICE.items():
        advice = advice.when(F.lower("reason") == reason.lower(), F.lit(text))
    is_filter = F.lower("reason").contains("filter")
    return advice.when(is_filter, F.lit(_ADVICE["FilterEvaluationException"])).otherwise(
        F.lit(_GENERAL_ADVICE)
    )


def _groups(letters: DataFrame, resolved: DataFrame) -> DataFrame:
    still = letters.groupBy(*_GROUP).agg(
        F.count("*").alias("open"), F.min("arrived").alias("oldest"),
        F.max("arrived").alias("newest"),
    )  # fmt: skip
    gone = resolved.groupBy(*_GROUP).agg(
        F.sum("number").alias("resolved"),
        (F.sum("seconds") / F.sum("number")).alias("mean_seconds"),
        F.max("seconds_max").alias("max_seconds"),
    )
    both = still.unionByName(gone, allowMissingColumns=True).groupBy(*_GROUP).agg(
        F.coalesce(F.sum("open"), F.lit(0)).alias("open"),
        F.coalesce(F.sum("resolved"), F.lit(0)).alias("resolved"),
        F.min("oldest").alias("oldest"), F.max("newest").alias("newest"),
        F.max("mean_seconds").alias("mean_seconds_to_resolve"),
        F.max("max_seconds").alias("max_seconds_to_resolve"),
    )  # fmt: skip
    return both.withColumn("advice", _advice()).orderBy(F.desc("open"), *_GROUP)


def _ages(letters: DataFrame, now: Column) -> DataFrame:
    seconds = now.cast("double") - _seconds("arrived")
    age, rank = F.lit(f"over {_AGES[-1][0]}"), F.lit(len(_AGES))
    for number, (name, limit) in reversed(list(enumerate(_AGES))):
        age = F.when(seconds < limit, F.lit(f"under {name}")).otherwise(age)
        rank = F.when(seconds < limit, F.lit(number)).otherwise(rank)
    rows = letters.withColumn("age", age).withColumn("rank", rank)
    grouped = rows.groupBy("namespace", "entity", "reason", "age", "rank")
    counted = grouped.agg(F.count("*").alias("open"))
    return counted.orderBy("namespace", "entity", "reason", "rank")


def _trend(letters: DataFrame, resolved: DataFrame) -> DataFrame:
    """What arrived and what left, by day."""
    zero = F.lit(0).cast("long")
    one, number = F.lit(1).cast("long"), F.col("number")

    def moves(rows: DataFrame, day: Column, arrived: Column, gone: Column) -> DataFrame:
        named = day.alias("day"), arrived.alias("arrived"), gone.alias("resolved")
        return rows.select("namespace", "entity", "reason", *named)

    still = moves(letters, day_of(F.col("arrived")), one, zero)
    came = moves(resolved, F.col("arrived_day"), number, zero)
    left = moves(resolved, F.col("ended_day"), zero, number)
    whole = still.unionByName(came).unionByName(left)
    return whole.groupBy("day", "namespace", "entity", "reason").agg(
        F.sum("arrived").alias("arrived"), F.sum("resolved").alias("resolved")
    ).orderBy("day", "namespace", "entity", "reason")  # fmt: skip


def _samples(letters: DataFrame) -> DataFrame:
    """The newest few of each group."""
    newest = Window.partitionBy(*_GROUP).orderBy(F.desc("arrived"), F.desc("seq"))
    ranked = letters.withColumn("rank", F.row_number().over(newest)).where(F.col("rank") <= SAMPLES)
    return ranked.select(
        *_GROUP, "rank", "message_id", "seq", "arrived", "description", "correlation"
    ).orderBy(*_GROUP, "rank")  # fmt: skip
