"""The same questions put to DuckDB: plain SQL over the same files, no code of the jobs.

Used to check Spark's answers. Simple rather than fast: every message is a row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

ENDS = (
    "('completed', 'deleted', 'expired', 'dead_lettered', 'forwarded', 'cancelled', 'purged', "
    "'activated')"
)


def connect(root: Path) -> duckdb.DuckDBPyConnection:
    db = duckdb.connect()
    db.execute("set timezone = 'UTC'")
    db.execute(
        f"create view journal as select * from read_parquet('{root}/*/*.parquet', "
        "hive_partitioning = false, filename = true)"
    )
    return db


def audit(root: Path) -> set[tuple[str, str | None, int | None]]:
    """Violations as (kind, entity, sequence number); with LSNs missing or double only those."""
    db = connect(root)
    found: set[tuple[str, str | None, int | None]] = set()
    double = "select 1 from journal group by lsn, part having count(*) > 1 limit 1"
    if db.execute(double).fetchall():
        found.add(("double", None, None))
    missing = """
        select count(distinct (lsn, part)) from journal
        having count(distinct (lsn, part)) != (
            select sum(parts) from (select lsn, max(parts) parts from journal group by lsn))
        or max(lsn) - min(lsn) + 1 != count(distinct lsn)"""
    if db.execute(missing).fetchall():
        found.add(("missing", None, None))
    if found:
        return found
    return _of_messages(db)


def _of_messages(db: duckdb.DuckDBPyConnection) -> set[tuple[str, str | None, int | None]]:
    db.execute(f"""
        create table census as
        with last as (select max(ts) as newest from journal where op = 'present')
        select any_value(entity) entity, stream, m.seq, min(lsn) lsn
        from (select j.entity, j.stream, j.lsn, unnest(generate_series(j.seq, j.seq + j.count - 1))
                     seq
              from journal j, last where op = 'present' and ts = last.newest and count > 0) m
        group by stream, m.seq;
        create table message as
        select stream, seq, any_value(entity) entity,
               count(*) filter (op in ('enqueued', 'scheduled')) accepted,
               count(*) filter (op in {ENDS}) ended
        from journal where op in ('enqueued', 'scheduled') or op in {ENDS} group by stream, seq;
    """)
    return set(
        db.execute("""
        select kind, entity, seq from (
            select entity, seq, unnest([
                case when accepted > 1 then 'accepted_twice' end,
                case when ended > 1 then 'settled_twice' end,
                case when accepted = 0 then 'invented' end,
                case when accepted > 0 and ended = 0 and there is null then 'lost' end,
                case when ended > 0 and there is not null then 'still_present' end]) kind
            from (select coalesce(m.entity, c.entity) entity, coalesce(m.seq, c.seq) seq,
                         coalesce(accepted, 0) accepted, coalesce(ended, 0) ended, c.seq there
                  from message m full join census c using (stream, seq)))
        where kind is not null""").fetchall()
    )


def cost(root: Path) -> list[tuple[Any, ...]]:
    return (
        connect(root)
        .execute("""
        select namespace, entity, consumer, op, cast(ts as date), sum(count), sum(units),
               coalesce(sum(size), 0)
        from journal where op in ('sent', 'pinged', 'delivered', 'received_nothing', 'settled',
                                  'managed', 'peeked', 'lock_renewed')
        group by all order by all""")
        .fetchall()
    )


def latency(root: Path) -> list[tuple[Any, ...]]:
    """Exact percentiles in milliseconds, by entity: to first delivery, to completion."""
    quantiles = "[0.5, 0.9, 0.95, 0.99, 0.999]"
    return (
        connect(root)
        .execute(f"""
        select entity, count(*),
               quantile_disc(epoch_ms(first_delivered_ts) - epoch_ms(enqueued_ts), {quantiles}),
               quantile_disc(epoch_ms(ts) - epoch_ms(enqueued_ts), {quantiles})
        from journal where op = 'completed' and entity not like '%$DeadLetterQueue'
        group by entity order by entity""")
        .fetchall()
    )
