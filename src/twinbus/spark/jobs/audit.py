"""The audit (L2): every accepted message ended exactly once or is still there, and nothing of
the journal is missing.

Two proofs. First, of each node: the LSNs of its files follow each other without gap or
double, part by part, and are those that the names of the files claim. Then, of each message
(node, stream, sequence number): it was accepted once, or was in the first census where the
capture begins later; it ended at most once; it did not end without having been accepted; and
the last census holds exactly those that had been accepted and not ended by then. What happened
after that census is taken at the journal's word, and the report says how much that is.

A journal that lacks LSNs proves nothing about the messages in them: such messages are counted
as undecided, and the missing LSNs are the violation.
"""

from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from twinbus.capture import schema
from twinbus.spark.jobs import audit_judging, audit_reading
from twinbus.spark.jobs.audit_survey import SURVEYED, Range, Survey, survey
from twinbus.spark.jobs.capture_frames import FILE, keep, node_of, shaped

# A partial: the findings of `audit_reading`, and kind `total`: so many rows of an op in a
# stream; kind `cover`: LSNs that are there; kind `fault` (named by op): what is wrong with files.
_PARTIAL: Final = (
    f"node string, {audit_reading.FINDINGS}, namespace string, entity string, op string, "
    "text string"
)
_COLUMNS: Final = dict(column.split() for column in _PARTIAL.split(", "))
_DEAD_LETTER: Final = "/$deadletterqueue"
# What the report says it looked at, and the violations that each look may find.
_CHECKS: Final = {
    "no LSN is missing": ("missing_file", "lsn_gap"),
    "no LSN comes twice": ("duplicated_file", "duplicated_lsn"),
    "files hold what their names say": ("name_differs",),
    "every message was accepted once": ("accepted_twice",),
    "no message ended more than once": ("settled_twice",),
    "no message ended or is there without having been accepted": ("invented",),
    "every accepted message ended or is there": ("lost",),
    "no ended message is still there": ("still_present",),
}


def partial(rows: DataFrame) -> DataFrame:
    read = arrow_table(
        audit_reading.Reader,
        audit_reading.FINDINGS,
        rows.select(
            FILE, "lsn", "part", "parts", F.unix_micros("ts").alias("ts"), _code().alias("code"),
            F.coalesce("stream", F.lit(-1)).alias("stream"),
            F.coalesce("seq", F.lit(-1)).alias("seq"), "count",
        ),
    )  # fmt: skip
    groups = rows.where("stream is not null").groupBy(FILE, "stream", "namespace", "entity", "op")
    totals = groups.agg(F.count("*").alias("rows")).withColumn("kind", F.lit("total"))
    both = read.unionByName(totals, allowMissingColumns=True)
    return _shaped(both.withColumn("node", node_of(F.col(FILE))))


def merge(partials: DataFrame) -> DataFrame:
    # Read twice below; it is small, and dear to make.
    partials = keep(partials)
    surveys = survey(partials.where(F.col("kind").isin(*SURVEYED)).collect())
    copies = sorted({file for s in surveys.values() for file in s.copies})
    once = partials.where(F.col(FILE).isNull() | ~F.col(FILE).isin(copies))
    heads = partials.sparkSession.createDataFrame(_heads(surveys), _PARTIAL)
    totals = once.where("kind = 'total'").groupBy("node", "stream", "namespace", "entity", "op")
    few = _per_stream(audit_judging.Folder, audit_judging.FOLDED, _ranges(once, surveys), surveys)
    summed = totals.agg(F.sum("rows").alias("rows")).withColumn("kind", F.lit("total"))
    return heads.unionByName(_shaped(few)).unionByName(_shaped(summed))


def report(merged: DataFrame) -> dict[str, DataFrame]:
    merged = keep(merged)
    spark = merged.sparkSession
    surveys = survey(merged.where(F.col("kind").isin(*SURVEYED)).collect())
    ranges = _ranges(merged, surveys)
    verdicts = keep(_per_stream(audit_judging.Judge, audit_judging.VERDICTS, ranges, surveys))
    totals = merged.where("kind = 'total'")
    violations = _violations(spark, surveys, verdicts, totals)
    counts = {
        row["kind"]: row["n"]
        for row in verdicts.groupBy("kind").agg(F.sum("count").alias("n")).collect()
    }
    found = {row["kind"]: row["count"] for row in violations.groupBy("kind").count().collect()}
    return {
        "verdict": _verdict(spark, surveys, counts, found, totals),
        "checks": _checks(spark, found),
        "violations": violations,
        "entities": _entities(totals),
        "moves": _moves(totals),
    }


def arrow_table(handler: type, schema_ddl: str, rows: Any) -> DataFrame:
    """`rows` through a table function that takes and gives Arrow tables: in Spark's own
    partitions, or in those that a `TableArg` asks for."""
    table = rows.asTable() if isinstance(rows, DataFrame) else rows
    function: Any = F.arrow_udtf(handler, returnType=schema_ddl)
    answer: DataFrame = function(table)
    return answer


def _code() -> Column:
    op = F.col("op")
    return (
        F.when(op.isin(*schema.ACCEPTED), audit_reading.ACCEPTED)
        .when(op.isin(*schema.TERMINAL), audit_reading.ENDED)
        .when(op == "present", audit_reading.PRESENT)
        .when(op == "entity_removed", audit_reading.REMOVED)
        .otherwise(audit_reading.OTHER)
    )


def _shaped(rows: DataFrame) -> DataFrame:
    return shaped(rows, _COLUMNS)


def _ranges(rows: DataFrame, surveys: dict[str, Survey]) -> DataFrame:
    """What happened to messages, and the two censuses of each node that count."""
    counting = [
        (F.col("node") == node) & (F.col("census") == census.time)
        for node, seen in surveys.items()
        for census in {seen.first_census, seen.last_census}
        if census
    ]
    is_counting = F.lit(False)
    for condition in counting:
        is_counting = is_counting | condition
    return rows.where((F.col("kind") == "run") | ((F.col("kind") == "present") & is_counting))


def _per_stream(
    handler: type[Any], schema_ddl: str, ranges: DataFrame, surveys: dict[str, Survey]
) -> DataFrame:
    known = type(handler.__name__, (handler,), {"surveys": surveys})
    columns = [column.split()[0] for column in audit_judging.FOLDED.split(", ")]
    by_stream = ranges.select(*columns).asTable().partitionBy("node", "stream")
    return arrow_table(known, schema_ddl, by_stream)


def _heads(surveys: dict[str, Survey]) -> list[tuple[Any, ...]]:
    """Surveys as rows of a partial, from which they can be made again."""
    rows: list[dict[str, Any]] = []
    for node, seen in surveys.items():
        for number, cover in enumerate(seen.covers):
            files, count = (seen.files, seen.rows) if number == 0 else (0, 0)
            row = {"kind": "cover", "parts": files, "rows": count}
            rows.append({"node": node, **row, **_lsns(cover)})
        for fault in seen.faults:
            row = {"kind": "fault", "op": fault.kind, "text": fault.text}
            rows.append({"node": node, **row, **_lsns(fault.lsns)})
        for census in {seen.first_census, seen.last_census} - {None}:
            if census:
                row = {"kind": "census", "census": census.time}
                rows.append({"node": node, **row, **_lsns(census.lsns)})
        for entity, lsn in seen.removed.items():
            row = {"kind": "removed", "stream": entity << 2}
            rows.append({"node": node, **row, **_lsns(Range(lsn, lsn))})
    return [tuple(row.get(name) for name in _COLUMNS) for row in rows]


def _lsns(lsns: Range) -> dict[str, int]:
    return {"lsn_lo": lsns.lo, "lsn_hi": lsns.hi}


def _violations(
    spark: SparkSession, surveys: dict[str, Survey], verdicts: DataFrame, totals: DataFrame
) -> DataFrame:
    """Each violation with the name of its entity."""
    faults = [
        (node, None, fault.kind, None, fault.lsns.hi - fault.lsns.lo + 1, str(fault.lsns),
         fault.text)
        for node, seen in surveys.items()
        for fault in seen.all_faults()
    ]  # fmt: skip
    of_files = spark.createDataFrame(faults, audit_judging.VERDICTS)
    of_messages = verdicts.where(~F.col("kind").isin(*audit_judging.COUNTED))
    names = totals.groupBy("node", "stream").agg(
        F.min("namespace").alias("namespace"), F.min("entity").alias("entity")
    )
    both = of_files.unionByName(of_messages).join(names, ["node", "stream"], "left")
    return both.select(
        "kind", "node", "namespace", "entity", "stream", "seq", "count", "lsns", "text"
    ).orderBy("kind", "node", "stream", "seq", "lsns")


def _verdict(
    spark: SparkSession,
    surveys: dict[str, Survey],
    counts: dict[str, int],
    found: dict[str, int],
    totals: DataFrame,
) -> DataFrame:
    """One row: the answer, and how much of it was proved."""
    number = sum(found.values())
    by_op = {row["op"]: row["n"] for row in totals.groupBy("op").agg(
        F.sum("rows").alias("n")).collect()}  # fmt: skip
    word = "clean" if number == 0 else f"{number} violation{'s' if number > 1 else ''}"
    rows = sum(seen.rows for seen in surveys.values())
    if not rows:
        word = "nothing captured"
    columns = {
        "verdict": word,
        "violations": number,
        "nodes": len(surveys),
        "files": sum(seen.files for seen in surveys.values()),
        "rows": rows,
        "accepted": sum(by_op.get(op, 0) for op in schema.ACCEPTED),
        "ended": sum(by_op.get(op, 0) for op in schema.TERMINAL),
        **{kind: counts.get(kind, 0) for kind in audit_judging.COUNTED},
    }
    ddl = ", ".join(f"{name} {'string' if name == 'verdict' else 'long'}" for name in columns)
    return spark.createDataFrame([tuple(columns.values())], ddl)


def _checks(spark: SparkSession, found: dict[str, int]) -> DataFrame:
    rows = [(text, sum(found.get(kind, 0) for kind in kinds)) for text, kinds in _CHECKS.items()]
    return spark.createDataFrame(rows, "check string, violations long")


def _entities(totals: DataFrame) -> DataFrame:
    """What came and how it ended, by entity."""

    def number(*ops: str) -> Column:
        return F.sum(F.when(F.col("op").isin(*ops), F.col("rows")).otherwise(0))

    return (
        totals.groupBy("node", "namespace", "entity")
        .agg(
            number(*schema.ACCEPTED).alias("accepted"),
            *(number(op).alias(op) for op in schema.TERMINAL),
        )
        .orderBy("namespace", "entity", "node")
    )


def _moves(totals: DataFrame) -> DataFrame:
    """How many left each entity for its dead-letter queue, and how many arrived there. For
    information: copies that a failed filter made arrive without having left."""
    entity = F.lower("entity")
    is_grave = entity.endswith(_DEAD_LETTER)
    home = F.when(is_grave, F.expr(f"left(entity, length(entity) - {len(_DEAD_LETTER)})"))
    left = F.when(~is_grave & (F.col("op") == "dead_lettered"), F.col("rows")).otherwise(0)
    arrived = F.when(is_grave & F.col("op").isin(*schema.ACCEPTED), F.col("rows")).otherwise(0)
    return (
        totals.where("entity is not null")
        .groupBy("node", "namespace", F.coalesce(home, F.col("entity")).alias("entity"))
        .agg(F.sum(left).alias("left"), F.sum(arrived).alias("arrived"))
        .where("left > 0 or arrived > 0")
        .orderBy("namespace", "entity", "node")
    )
