"""The timeline of every outage of every entity of paired namespaces.

Enters: captures of the primary and the secondary, and the events that the pairing library
wrote. The events tell when an outage was noticed, when failover engaged and when it was over;
the captures tell when sends last succeeded, what went into the backlog and when it was empty
again. Leaves: the outages, their steps with messages and seconds, and the backlog over time.

A backlog queue's name begins with its primary, and several primaries may share a secondary (P8).
Which one a pair means is known by the queues that its events name.

The backlog is counted by the second, arrivals before departures: its high-water mark is never
too low, and exact while nothing drains.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from twinbus.spark.jobs.capture_frames import keep, shaped
from twinbus.spark.jobs.failover_events import TOLD, Outage, outages
from twinbus.spark.jobs.message_pairs import ARRIVAL, END, KEYS, REMOVED, halves, joined

_EVENTS: Final = (
    "ts timestamp, pair string, client string, event string, path string, error string, "
    "queue string, count long, failed_over_ms long"
)
_OUTAGES: Final = (
    "pair string, path string, number int, state string, clients int, not_back int, "
    "error string, last_success timestamp, suspected timestamp, engaged timestamp, "
    "cleared timestamp, recovered timestamp, drained timestamp, pings int, pings_failed int, "
    "first_ping timestamp, last_ping timestamp, backlogged long, returned long, "
    "dead_lettered long, discarded long, left long, high_water long, high_water_at timestamp"
)
_STEPS: Final = (
    "pair string, path string, number int, position int, step string, at timestamp, "
    "seconds double, messages long"
)
# A partial: sends by the second (kind sent, pinged), messages in backlog queues that lack a
# half (kind message), and those that are whole as a curve by the second (kind curve).
_COLUMNS: Final = {
    **dict.fromkeys(("kind", "primary", *KEYS, *ARRIVAL, *END), "string"),
    "stream": "long", "seq": "long", "arrived": "timestamp", "ended": "timestamp",
    "second": "timestamp", "first": "timestamp", "last": "timestamp", "came": "long",
    "went": "long", "died": "long", "discarded": "long",
}  # fmt: skip
_COUNTS: Final = ("came", "went", "died", "discarded")
_SUMMED: Final = ("first", "last", *_COUNTS)
# How a message leaves a backlog queue without being anywhere else.
_DISCARDED: Final = ("expired", "purged", "cancelled", REMOVED)


def read_events(spark: SparkSession, *paths: str) -> DataFrame:
    """The pairing library's event files (JSON lines), or directories of them."""
    if not paths:
        return spark.createDataFrame([], _EVENTS)
    return spark.read.schema(_EVENTS).json(list(paths))


def partial(rows: DataFrame) -> DataFrame:
    is_backlog = F.lower("entity").rlike("^[^/]+/x-servicebus-transfer/[0-9]+$")
    sends = rows.where(F.col("op").isin("sent", "pinged") & ~is_backlog).groupBy(
        F.col("op").alias("kind"), "namespace", "entity", _second("ts").alias("second")
    )
    sent = sends.agg(
        F.min("ts").alias("first"), F.max("ts").alias("last"), F.sum("count").alias("came")
    )
    messages = halves(rows, is_backlog).withColumn("kind", F.lit("message"))
    return _shaped(sent).unionByName(_shaped(messages))


def merge(partials: DataFrame) -> DataFrame:
    # Read twice below; it is a small part of the capture.
    partials = keep(partials)
    is_message = F.col("kind") == "message"
    messages = joined(partials.where(is_message)).withColumn("kind", F.lit("message"))
    is_whole = F.col("arrived").isNotNull() & F.col("ended").isNotNull() & F.col("seq").isNotNull()
    messages = messages.withColumn("is_whole", is_whole)
    halves_left = _shaped(messages.where(~F.col("is_whole")))
    curve = _curve(messages.where("is_whole"))
    whole = partials.where(~is_message).unionByName(halves_left).unionByName(curve)
    keys = [name for name in _COLUMNS if name not in _SUMMED]
    return _shaped(
        whole.groupBy(*keys).agg(
            F.min("first").alias("first"), F.max("last").alias("last"),
            *(F.sum(name).alias(name) for name in _COUNTS),
        )
    )  # fmt: skip


def report(merged: DataFrame, events: DataFrame | None = None) -> dict[str, DataFrame]:
    """Without events the tables of outages are empty; the backlog is told all the same."""
    merged = keep(merged)
    spark = merged.sparkSession
    backlog = keep(_backlog(merged))
    told = events.where(F.col("event").isin(*TOLD)).collect() if events is not None else []
    found = outages(row.asDict() | {"ts": _utc(row["ts"])} for row in told)
    named = _primaries(events) if events is not None else {}
    successes = _last_successes(merged, found, named)
    curves = _curves(backlog, found)
    rows = [
        _row(number, outage, successes.get(index), _curve_of(outage, curves, named))
        for index, (number, outage) in enumerate(_numbered(found))
    ]
    steps = [step for row in rows for step in _steps(row)]
    names = [column.split()[0] for column in _OUTAGES.split(", ")]
    return {
        "outages": spark.createDataFrame([tuple(row[n] for n in names) for row in rows], _OUTAGES),
        "steps": spark.createDataFrame(steps, _STEPS),
        "backlog": backlog.orderBy("namespace", "primary", "path", "second"),
    }


def _utc(time: datetime) -> datetime:
    """What Spark gives is local time without a zone."""
    return time.astimezone(UTC)


def _second(name: str) -> Column:
    return F.date_trunc("second", name)


def _shaped(rows: DataFrame) -> DataFrame:
    return shaped(rows, _COLUMNS)


def _primary() -> Column:
    return F.lower(F.split("entity", "/").getItem(0)).alias("primary")


def _primaries(events: DataFrame) -> dict[str, set[str]]:
    """The primaries of each pair: one, unless pairs were given the same name."""
    queues = events.where("queue like '%/%'").select("pair", "queue").distinct().collect()
    named: dict[str, set[str]] = {}
    for row in queues:
        named.setdefault(row["pair"] or "", set()).add(row["queue"].split("/")[0].lower())
    return named


def _curve(messages: DataFrame) -> DataFrame:
    """Each message as a coming and a going."""
    zero, one = F.lit(0), F.lit(1)
    died = F.when(F.col("how") == "dead_lettered", one).otherwise(zero)
    discarded = F.when(F.col("how").isin(*_DISCARDED), one).otherwise(zero)
    moves = F.array(
        F.struct(F.col("arrived").alias("at"), one.alias("came"), zero.alias("went"),
                 zero.alias("died"), zero.alias("discarded")),
        F.struct(F.col("ended").alias("at"), zero.alias("came"), one.alias("went"),
                 died.alias("died"), discarded.alias("discarded")),
    )  # fmt: skip
    exploded = messages.select(
        F.lit("curve").alias("kind"), "namespace", _primary(), "correlation",
        F.explode(moves).alias("move"),
    )  # fmt: skip
    at = F.col("move.at")
    return _shaped(
        exploded.select(
            "kind", "namespace", "primary", "correlation",
            F.date_trunc("second", at).alias("second"), at.alias("first"), at.alias("last"),
            *(f"move.{name}" for name in _COUNTS),
        )
    )  # fmt: skip


def _backlog(merged: DataFrame) -> DataFrame:
    """Of each entity of each primary: what waited for it in the backlog, second by second."""
    waiting = merged.where("kind = 'message' and arrived is not null").select(
        "namespace", _primary(), "correlation", _second("arrived").alias("second"),
        F.col("arrived").alias("last"), F.lit(1).cast("long").alias("came"),
        *(F.lit(0).cast("long").alias(name) for name in _COUNTS[1:]),
    )  # fmt: skip
    known = merged.where("kind = 'curve'").select(*waiting.columns)
    path = F.coalesce("correlation", F.lit("(not said)")).alias("path")
    moves = known.unionByName(waiting).groupBy("namespace", "primary", path, "second").agg(
        *(F.sum(name).alias(name) for name in _COUNTS), F.max("last").alias("last"),
    )  # fmt: skip
    so_far = Window.partitionBy("namespace", "primary", "path").orderBy("second")
    depth = F.sum(F.col("came") - F.col("went")).over(so_far)
    return moves.withColumn("depth", depth).withColumn("peak", F.col("depth") + F.col("went"))


def _last_successes(
    merged: DataFrame, found: list[Outage], named: dict[str, set[str]]
) -> dict[int, datetime]:
    """Of each outage: the last send to the entity before it. A namespace that holds backlog
    queues is a secondary; its own entities do not count, unless it is the only one. Where one
    goes by the name of the pair's primary, only that one counts."""
    if not found:
        return {}
    spark = merged.sparkSession
    sends = merged.where("kind = 'sent'").select("namespace", "entity", "first", "last")
    everywhere = _namespaces(sends)
    homes = everywhere - _namespaces(merged.where("kind in ('curve', 'message')")) or everywhere
    asked = [
        (index, home, outage.path, outage.suspected)
        for index, outage in enumerate(found)
        for home in ({h for h in homes if h.lower() in named.get(outage.pair, ())} or homes)
    ]
    wanted = spark.createDataFrame(
        asked, "number int, home string, path string, suspected timestamp"
    )
    before = F.when(F.col("last") <= F.col("suspected"), F.col("last")).when(
        F.col("first") <= F.col("suspected"), F.col("first")
    )
    is_same = (F.lower("path") == F.lower("entity")) & (F.col("home") == F.col("namespace"))
    joined_sends = sends.join(F.broadcast(wanted), is_same)
    best = joined_sends.groupBy("number").agg(F.max(before).alias("at"))
    return {row["number"]: _utc(row["at"]) for row in best.collect() if row["at"]}


def _namespaces(rows: DataFrame) -> set[str]:
    named = rows.where("namespace is not null").select("namespace").distinct()
    return {row["namespace"] for row in named.collect()}


def _curves(backlog: DataFrame, found: list[Outage]) -> dict[str, list[Any]]:
    """The backlogs of the entities that had outages, by path, in order of time."""
    paths = sorted({outage.path for outage in found})
    mine = backlog.where(F.col("path").isin(*paths)).orderBy("second")
    curves: dict[str, list[Any]] = {}
    for row in mine.collect() if paths else []:
        point = row.asDict() | {name: _utc(row[name]) for name in ("second", "last")}
        curves.setdefault(row["path"], []).append(point)
    return curves


def _curve_of(
    outage: Outage, curves: dict[str, list[Any]], named: dict[str, set[str]]
) -> list[Any]:
    """What waited for the entity of the outage's own pair. A pair whose events name no queue,
    because its client was killed too soon, has what no other pair can claim."""
    own = named.get(outage.pair)
    others = set().union(*named.values())
    points = [
        point
        for point in curves.get(outage.path, [])
        if (point["primary"] in own if own else point["primary"] not in others)
    ]
    whole, depth = [], 0
    for second, same in groupby(points, itemgetter("second")):
        rows = list(same)
        counts = {name: sum(row[name] for row in rows) for name in _COUNTS}
        depth += counts["came"] - counts["went"]
        whole.append({
            "second": second, "last": max(row["last"] for row in rows), **counts,
            "depth": depth, "peak": depth + counts["went"],
        })  # fmt: skip
    return whole


def _numbered(found: list[Outage]) -> Iterator[tuple[int, Outage]]:
    counts: dict[tuple[str, str], int] = {}
    for outage in found:
        key = (outage.pair, outage.path)
        counts[key] = counts.get(key, 0) + 1
        yield counts[key], outage


def _row(
    number: int, outage: Outage, last_success: datetime | None, curve: list[Any]
) -> dict[str, Any]:
    begin = outage.suspected.replace(microsecond=0)
    mine = [
        row for row in curve
        if row["second"] >= begin and (outage.until is None or row["second"] < outage.until)
    ]  # fmt: skip
    top = max(mine, key=lambda row: row["peak"], default=None)
    came, went, died, discarded = (sum(row[name] for row in mine) for name in _COUNTS)
    left = mine[-1]["depth"] if mine else 0
    gone = [row["last"] for row in mine if row["went"]]
    # A backlog that was thrown away is empty, and nothing to be glad of.
    drained = max(gone) if gone and left == 0 and not discarded else None
    times = [at for at, _ in outage.pings]
    return {
        "pair": outage.pair, "path": outage.path, "number": number,
        "state": _state(outage, bool(mine), left, discarded), "clients": len(outage.clients),
        "not_back": len(outage.not_back), "error": outage.error,
        "last_success": last_success, "suspected": outage.suspected,
        "engaged": outage.engaged, "cleared": outage.cleared, "recovered": outage.recovered,
        "drained": drained, "pings": len(times),
        "pings_failed": sum(not answered for _, answered in outage.pings),
        "first_ping": min(times, default=None), "last_ping": max(times, default=None),
        "backlogged": came, "returned": went - died - discarded, "dead_lettered": died,
        "discarded": discarded, "left": left, "high_water": top["peak"] if top else 0,
        "high_water_at": top["second"] if top else None,
    }  # fmt: skip


def _state(outage: Outage, has_backlog: bool, left: int, discarded: int) -> str:
    if outage.engaged is None:
        return "cleared" if outage.cleared else "suspected"
    if outage.over is None:
        return "failed over"
    if not has_backlog:
        return "recovered"
    if left:
        return "draining"
    return "discarded" if discarded else "drained"


def _steps(row: dict[str, Any]) -> list[tuple[Any, ...]]:
    """An outage's steps in order, each with the seconds since the one before it and the
    messages that it is about."""
    named = (
        ("last success", row["last_success"], None),
        ("first failure", row["suspected"], None),
        ("engaged", row["engaged"], row["backlogged"]),
        ("cleared", row["cleared"], None),
        ("first ping", row["first_ping"], None),
        ("last ping", row["last_ping"], row["pings"]),
        ("recovered", row["recovered"], None),
        ("high water", row["high_water_at"], row["high_water"]),
        ("drained", row["drained"], row["returned"]),
    )
    steps: list[tuple[Any, ...]] = []
    known = sorted((at, place, step, n) for place, (step, at, n) in enumerate(named) if at)
    for position, (at, _, step, messages) in enumerate(known):
        seconds = (at - known[position - 1][0]).total_seconds() if position else None
        steps.append(
            (row["pair"], row["path"], row["number"], position, step, at, seconds, messages)
        )
    return steps
