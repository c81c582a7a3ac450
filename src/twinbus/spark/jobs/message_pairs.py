"""Messages whose arrival and end are joined, across any number of partials.

Enters: the rows of a few streams (dead-letter or backlog queues: a small part of a capture).
Leaves: one row a message, with what its arrival said and what its end said, as far as either
is known yet. The pairs may be merged again; a pair with both halves is done.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from twinbus.capture.schema import ACCEPTED, TERMINAL
from twinbus.spark.jobs.capture_frames import FILE, node_of

KEYS: Final = ("node", "stream", "seq")
# What a message's arrival says, and what its end says.
ARRIVAL: Final = (
    "namespace", "entity", "arrived", "message_id", "reason", "description", "correlation",
)  # fmt: skip
END: Final = ("ended", "how")
REMOVED: Final = "entity_removed"


def halves(rows: DataFrame, where: Column) -> DataFrame:
    """Arrivals and ends in the streams that `where` picks, as pairs with one half each; and
    the removal of an entity (`seq` null), which ends whatever is in its streams."""
    is_arrival = F.col("op").isin(*ACCEPTED)
    is_end = F.col("op").isin(*TERMINAL) & F.col("seq").isNotNull()
    is_removal = F.col("op") == REMOVED
    kept = rows.where(((is_arrival | is_end) & where) | is_removal)
    said = [F.when(is_arrival, F.col("ts" if name == "arrived" else name)) for name in ARRIVAL]
    return kept.select(
        node_of(F.col(FILE)).alias("node"), "stream",
        F.when(~is_removal, F.col("seq")).alias("seq"),
        *(value.alias(name) for value, name in zip(said, ARRIVAL, strict=True)),
        F.when(~is_arrival, F.col("ts")).alias("ended"),
        F.when(~is_arrival, F.col("op")).alias("how"),
    )  # fmt: skip


def joined(pairs: DataFrame) -> DataFrame:
    """One row a message; a removed entity ends what is left in its streams."""
    # The streams of an entity share all but the last two bits. One shuffle serves both steps.
    placed = pairs.withColumn("place", F.shiftright("stream", 2)).repartition("node", "place")
    merged = placed.groupBy("node", "place", "stream", "seq").agg(
        *(F.first(name, ignorenulls=True).alias(name) for name in (*ARRIVAL, *END))
    )
    removal = F.when(F.col("how") == REMOVED, F.col("ended"))
    removed = F.min(removal).over(Window.partitionBy("node", "place"))
    is_left = F.col("ended").isNull() & F.col("removed").isNotNull()
    return merged.withColumn("removed", removed).select(
        *KEYS, *ARRIVAL, F.coalesce("ended", "removed").alias("ended"),
        F.when(is_left, F.lit(REMOVED)).otherwise(F.col("how")).alias("how"),
    )  # fmt: skip
