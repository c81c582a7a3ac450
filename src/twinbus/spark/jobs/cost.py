"""What operations cost (C1–C3), by namespace, entity, client, kind and day.

Enters: capture rows. Leaves: the operations priced by a tariff; what messages that went
through a backlog queue cost in each of their four steps (C2); and the receive calls that an
idle syphon makes, predicted and measured (C3).
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from twinbus.capture.schema import OPERATIONS
from twinbus.spark.jobs.capture_frames import FILE, day_of, keep, node_of
from twinbus.spark.tariff import Tariff, load_tariff

# SPEC P11: one long poll of 15 minutes after the other, on each of 10 backlog queues.
BACKLOG_QUEUES: Final = 10
POLL_SECONDS: Final = 900
UNIT_BYTES: Final = 65_536
_SECONDS_A_DAY: Final = 86_400

_KEYS: Final = ("namespace", "entity", "client", "kind", "day")
# Ends of backlog messages: each stands for the two steps that the message took at home.
_HOME: Final = "completed"
# They move the clock even where nobody asks for anything.
_SIGNS_OF_LIFE: Final = ("heartbeat", "started")
# Entities that have days of their own; the rest is one.
LARGEST: Final = 7
OTHERS: Final = "others"


def partial(rows: DataFrame) -> DataFrame:
    is_asked = F.col("op").isin(*OPERATIONS, *_SIGNS_OF_LIFE)
    counted = rows.where(is_asked | ((F.col("op") == _HOME) & _is_backlog()))
    units = F.when(F.col("op") == _HOME, _units(F.col("size"))).otherwise(F.col("units"))
    named = counted.select(
        FILE, "namespace", "entity", F.col("consumer").alias("client"), F.col("op").alias("kind"),
        day_of(F.col("ts")).alias("day"), F.col("count").cast("long").alias("operations"),
        units.cast("long").alias("units"), F.col("size").alias("bytes"),
        F.col("ts").alias("first"), F.col("ts").alias("last"),
    )  # fmt: skip
    return _summed(named, FILE).withColumn("node", node_of(F.col(FILE))).drop(FILE)


def merge(partials: DataFrame) -> DataFrame:
    return _summed(partials, "node")


def _summed(rows: DataFrame, origin: str) -> DataFrame:
    return rows.groupBy(origin, *_KEYS).agg(
        F.sum("operations").alias("operations"),
        F.coalesce(F.sum("units"), F.lit(0)).alias("units"),
        F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )


def report(
    merged: DataFrame,
    tariff: Tariff | None = None,
    queues: int = BACKLOG_QUEUES,
    poll_seconds: float = POLL_SECONDS,
) -> dict[str, DataFrame]:
    """`queues` and `poll_seconds` are what the prediction of idle calls assumes."""
    merged = keep(merged)
    tariff = tariff or load_tariff()
    asked = merged.where(F.col("kind").isin(*OPERATIONS))
    priced = asked.withColumn("price", _price(tariff, F.col("kind"), F.col("units")))
    priced = priced.withColumn("currency", F.lit(tariff.currency))
    sums = [F.sum(name).alias(name) for name in ("operations", "units", "bytes", "price")]
    return {
        "operations": priced.groupBy(*_KEYS, "currency").agg(*sums)
        .select(*_KEYS, "operations", "units", "bytes", "price", "currency").orderBy(*_KEYS),
        "totals": priced.groupBy("kind", "currency").agg(*sums)
        .select("kind", "operations", "units", "bytes", "price", "currency").orderBy("kind"),
        "entities": priced.groupBy("namespace", "entity", "kind", "currency").agg(*sums)
        .select("namespace", "entity", "kind", "operations", "units", "bytes", "price", "currency")
        .orderBy("namespace", "entity", "kind"),
        "days": priced.groupBy("day", "kind", "currency").agg(*sums)
        .select("day", "kind", "operations", "units", "price", "currency").orderBy("day", "kind"),
        "entity_days": _entity_days(asked),
        "syphoned": _syphoned(merged, tariff),
        "idle": _idle(merged, tariff, queues, poll_seconds),
    }  # fmt: skip


def _is_backlog() -> Column:
    return F.lower("entity").rlike("^[^/]+/x-servicebus-transfer/[0-9]+$")


def _units(size: Column) -> Column:
    return F.greatest(F.lit(1), F.ceil(size / F.lit(UNIT_BYTES)))


def _price(tariff: Tariff, kind: Column, units: Column) -> Column:
    prices = F.lit(0.0)
    for name, price in tariff.per_million.items():
        prices = F.when(kind == name, F.lit(price)).otherwise(prices)
    return units * prices / F.lit(1_000_000.0)


def _entity_days(asked: DataFrame) -> DataFrame:
    """The units of the largest entities by day, and those of all others together: few rows,
    however many entities there are."""
    units = asked.groupBy("entity").agg(F.sum("units").alias("units"))
    largest = units.orderBy(F.desc("units"), "entity").limit(LARGEST)
    large = largest.select(F.col("entity").alias("name"), F.lit(True).alias("is_large"))
    told = asked.join(F.broadcast(large), F.col("entity").eqNullSafe(F.col("name")), "left")
    name = F.when(F.col("is_large"), F.col("entity")).otherwise(F.lit(OTHERS)).alias("entity")
    summed = told.groupBy("day", name).agg(F.sum("units").alias("units"))
    return summed.orderBy("day", F.desc("units"), "entity")


def _syphoned(merged: DataFrame, tariff: Tariff) -> DataFrame:
    """The four charges of a message that went through the backlog (C2). The two in the backlog
    are measured; the two at home follow from P11: what was completed in the backlog was sent
    home once, and is received there once."""
    steps = (
        (1, "send to the backlog", "sent", "sent", "measured"),
        (2, "receive from the backlog", "delivered", "delivered", "measured"),
        (3, "send to the primary", _HOME, "sent", "follows from completions"),
        (4, "receive from the primary", _HOME, "delivered", "follows from completions"),
    )
    rows = merged.where(_is_backlog()).withColumn("primary", F.split("entity", "/").getItem(0))
    tables = []
    for number, step, kind, charged_as, basis in steps:
        found = rows.where(F.col("kind") == kind).groupBy("namespace", "primary")
        summed = found.agg(F.sum("operations").alias("messages"), F.sum("units").alias("units"))
        tables.append(
            summed.select(
                "namespace", "primary", F.lit(number).alias("number"), F.lit(step).alias("step"),
                "messages", "units",
                _price(tariff, F.lit(charged_as), F.col("units")).alias("price"),
                F.lit(tariff.currency).alias("currency"), F.lit(basis).alias("basis"),
            )
        )  # fmt: skip
    whole = tables[0]
    for table in tables[1:]:
        whole = whole.unionByName(table)
    return whole.orderBy("namespace", "primary", "number")


def _idle(merged: DataFrame, tariff: Tariff, queues: int, poll_seconds: float) -> DataFrame:
    """Receive calls that found nothing in backlog queues, by day, beside the number that
    one idle syphon makes in the time that the capture saw of that day (C3). That is the time of
    the broker that has the queues: another may have been captured for longer."""
    days = merged.groupBy("node", "day").agg(
        F.min("first").alias("first"), F.max("last").alias("last")
    )
    seconds = F.unix_micros("last") - F.unix_micros("first")
    seen = days.select("node", "day", (seconds / 1_000_000).alias("seconds"))
    # A day in the middle of a capture was seen whole.
    edge = days.groupBy("node").agg(F.min("day").alias("begin"), F.max("day").alias("end"))
    inside = (F.col("day") > F.col("begin")) & (F.col("day") < F.col("end"))
    seen = seen.join(edge, "node").select(
        "node", "day",
        F.when(inside, float(_SECONDS_A_DAY)).otherwise(F.col("seconds")).alias("seconds"),
    )  # fmt: skip
    is_idle = F.col("kind") == "received_nothing"
    found = (
        merged.where(_is_backlog())
        .groupBy("node", "day", "namespace")
        .agg(
            F.sum(F.when(is_idle, F.col("operations")).otherwise(0)).alias("measured"),
            F.sum(F.when(is_idle, F.col("units")).otherwise(0)).alias("units"),
            F.collect_set("entity").alias("entities"),
        )
    )
    # A namespace whose capture began anew elsewhere was seen by two nodes, and is one row.
    whole = found.join(seen, ["node", "day"]).groupBy("day", "namespace").agg(
        *(F.sum(name).alias(name) for name in ("measured", "units", "seconds")),
        F.size(F.array_distinct(F.flatten(F.collect_list("entities")))).alias("queues_seen"),
    )  # fmt: skip
    predicted = F.col("seconds") / F.lit(float(poll_seconds)) * F.lit(queues)
    return whole.select(
        "day", "namespace", "queues_seen", F.lit(queues).alias("queues"),
        F.lit(float(poll_seconds)).alias("poll_seconds"), F.col("seconds").alias("seconds_seen"),
        predicted.alias("predicted"), "measured",
        _price(tariff, F.lit("received_nothing"), F.col("units")).alias("price"),
        F.lit(tariff.currency).alias("currency"),
    ).orderBy("day", "namespace")  # fmt: skip
