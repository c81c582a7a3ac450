"""Runs one job over captures and shows its report, in the terminal or as JSON.

An order goes in, the exit code comes out. What is computed is `twinbus.spark.jobs`' to know,
and how it looks `twinbus.spark.report`'s.
"""

from __future__ import annotations

import glob
import json
import signal
import threading
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinbus.cli.failures import FAILURE, NOT_FOUND, USAGE, CommandError
from twinbus.cli.pipeline_spark import Engine, Steps, need_spark, spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twinbus.spark.report.making import Found, Sources

# How often a stream looks for new files, and how soon it notices that it is to end.
_EVERY = "10 seconds"
_LOOK_S = 1
# About three million rows.
_SMALL_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Order:
    """What a user asked for."""

    job: str
    captures: list[str]
    out: Path
    follow: bool
    json_output: bool
    events: list[str] = field(default_factory=list)
    #: Settings that only one job has, by their names in `making.Sources`.
    settings: dict[str, Any] = field(default_factory=dict)


def run(order: Order, engine: Engine) -> int:
    """Do it; gives the exit code: 1 for an audit that is not clean, else 0."""
    need_spark()
    from twinbus.spark.jobs.follow import FollowError
    from twinbus.spark.report import making
    from twinbus.spark.tariff import TariffError

    _check(order, engine)
    sources = making.Sources(tuple(order.captures), tuple(order.events), **order.settings)
    steps = Steps()
    with spark(order.job, engine, steps, short=_is_small(order)) as session:
        try:
            if order.follow:
                return _follow(session, order, sources, steps)
            with steps("Computing"):
                tables = making.compute(session, order.job, sources)
        except (TariffError, FollowError) as error:
            raise CommandError(str(error), USAGE) from error
        with steps("Writing tables"):
            found = making.write(order.job, tables, order.out)
    return _tell(order, found)


def _check(order: Order, engine: Engine) -> None:
    if engine.remote is not None:
        if order.follow:
            raise CommandError("--follow does not go with --remote: run it where Spark runs", USAGE)
        return
    for path in (*order.captures, *order.events):
        if "://" not in path and not glob.glob(path):
            raise CommandError(
                f"there is nothing at {path}: give the directory that a broker captures to"
                " (twinbus serve --capture), and the files of a pair's events",
                NOT_FOUND,
            )


def _is_small(order: Order) -> bool:
    """Whether the capture is read before Java's better compiler would pay off."""
    files = (file for root in order.captures for file in Path(root).rglob("*.parquet"))
    return not order.follow and sum(file.stat().st_size for file in files) < _SMALL_BYTES


def _follow(session: SparkSession, order: Order, sources: Sources, steps: Steps) -> int:
    """Report after each batch of new files, until the user has seen enough."""
    from twinbus.spark.jobs.follow import follow
    from twinbus.spark.report import making

    # What was found last holds until there is more.
    code = 0 if making.was_clean(order.job, order.out) else FAILURE

    def publish(tables: dict[str, DataFrame], _: int) -> None:
        nonlocal code
        code = _tell(order, making.write(order.job, tables, order.out))

    query = follow(
        session,
        order.job,
        order.captures,
        str((order.out / order.job).absolute()),
        report=making.settings(order.job, sources),
        publish=publish,
        processingTime=_EVERY,
    )
    # An interrupt in the middle of a call to Java would break the line to it: signals only
    # say that it is to end. The next run goes on from the checkpoint.
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    steps.say("Following; end it with Ctrl-C.")
    while query.isActive and not ending.wait(_LOOK_S):
        continue
    if ending.is_set():
        query.stop()
    else:
        query.awaitTermination()
    return code


def _tell(order: Order, found: Found) -> int:
    from twinbus.spark.report import making

    page = making.page(order.job, order.out)
    if order.json_output:
        answer = {"job": order.job, "page": str(page), "tables": found}
        print(json.dumps(answer, default=_plain, ensure_ascii=False), flush=True)
    else:
        _print(order, found, page)
    return 0 if making.is_clean(order.job, found) else FAILURE


def _print(order: Order, found: Found, page: Path) -> None:
    from rich.console import Console

    from twinbus.spark.report import terminal

    console = Console(highlight=False)
    if order.follow:
        console.clear()
    for part in terminal.render(order.job, found, console.width):
        console.print(part)
        console.print()
    console.out(f"The page is {page}; the tables are beside it.", highlight=False)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value.isoformat() if isinstance(value, date) else str(value)
