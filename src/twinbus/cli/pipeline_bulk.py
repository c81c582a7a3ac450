"""`twinbus pipeline resubmit`, `syphon`, `export` and `load`: work in bulk, on Spark.

Options go in, counts come out; the work is done by `twinbus.spark.bulk`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.cli.commands import (
    BacklogQueues,
    Entity,
    Json,
    PairCa,
    Primary,
    Secondary,
    command,
    declare,
)
from twinbus.cli.failures import FAILURE, USAGE, CommandError
from twinbus.cli.pipeline_spark import CODES, ENGINE, Engine, Steps, need_spark, spark
from twinbus.cli.printer import Printer
from twinbus.cli.remote import CA_VARIABLE, Remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.spark.bulk.rounds import Tally
    from twinbus.spark.bulk.transform import Transformation

app = typer.Typer()


@command(app, "resubmit", engine=ENGINE)
def resubmit(
    remote: Remote,
    printer: Printer,
    engine: Engine,
    entity: Entity,
    to: Annotated[
        str | None, typer.Option(help="Where to send them; without it, where each died.")
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            help="An SQL expression over a message's columns: a condition, the new body, or a"
            " struct of new columns. Null and false leave a message where it is."
        ),
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="The same as a Python function, module:function.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Only those that meet this SQL condition.")
    ] = None,
) -> None:
    """Send dead letters again, repaired. Killed and run again, it goes on where it was."""
    if sql is not None and python is not None:
        raise CommandError("give --sql or --python, not both", USAGE)
    need_spark()
    from twinbus.spark.bulk import resubmit as bulk

    work = bulk.Work(remote.connection, bulk.dead_letter_path(entity), to)
    with _named_errors():
        change = _transformation(sql, python)
    with _session("resubmit", remote, engine) as (session, steps):
        tally = bulk.run(session, work, change, where, _telling(steps))
    _print(printer, tally, f"resubmitted from {work.source}")


@declare(app, "syphon", {"engine": ENGINE})
def syphon(
    engine: Engine,
    primary: Primary,
    secondary: Secondary,
    backlog_queues: BacklogQueues = 10,
    ca: PairCa = None,
    json_output: Json = False,
) -> None:
    """Drain all backlog queues to where their messages belong in the primary, in parallel."""
    need_spark()
    from twinbus.pairing.failures import BY_CONDITION, OnSyphon
    from twinbus.pairing.names import backlog_queue_name
    from twinbus.pairing.rewrite import restore
    from twinbus.spark.bulk import syphon as bulk

    for_good = frozenset(
        condition
        for condition, verdict in BY_CONDITION.items()
        if verdict.on_syphon is OnSyphon.DEAD_LETTER
    )
    work = bulk.Work(primary, secondary, restore, for_good)
    host = Remote(primary).host
    queues = [backlog_queue_name(host, index) for index in range(backlog_queues)]
    with _session("syphon", Remote(secondary, ca=ca), engine) as (session, steps):
        tally = bulk.run(session, work, queues, _telling(steps))
    _print(Printer(json_output), tally, "moved to the primary")


@command(app, "export", engine=ENGINE)
def export(
    remote: Remote,
    printer: Printer,
    engine: Engine,
    entity: Entity,
    to: Annotated[str, typer.Option(help="A directory that does not exist yet.")],
) -> None:
    """Write an entity's messages as Parquet; they stay where they are."""
    need_spark()
    from twinbus.spark.bulk import export as bulk

    with _session("export", remote, engine) as (session, steps), steps(f"Exporting {entity}"):
        count = bulk.run(session, remote.connection, entity, to)
    printer.result({"exported": count, "directory": to}, f"{count} messages are in {to}.")


@command(app, "load", engine=ENGINE)
def load(
    remote: Remote,
    printer: Printer,
    engine: Engine,
    directory: Annotated[str, typer.Argument(help="Parquet files, as `export` writes them.")],
    to: Annotated[str, typer.Option(help="The queue or topic to send to.")],
) -> None:
    """Send the messages of Parquet files to a queue or topic."""
    need_spark()
    from twinbus.spark.bulk import load as bulk

    with _session("load", remote, engine) as (session, steps), steps(f"Sending to {to}"):
        count = bulk.run(session, directory, remote.connection, to, printer.aside)
    printer.result({"loaded": count, "entity": to}, f"{count} messages sent to {to}.")


def _transformation(sql: str | None, python: str | None) -> Transformation:
    from twinbus.spark.bulk import transform

    if sql is not None:
        return transform.by_sql(sql)
    if python is None:
        return transform.unchanged
    # A module beside the user, as `python -m` would find it.
    sys.path.insert(0, os.getcwd())
    return transform.by_function(python)


def _telling(steps: Steps) -> Any:
    def tell(tally: Tally) -> None:
        counts = ", ".join(f"{number:,} {fate}" for fate, number in sorted(tally.counts.items()))
        steps.say(f"  round {tally.rounds}: {counts.replace('_', '-')}")

    return tell


def _print(printer: Printer, tally: Tally, what: str) -> None:
    fates = {fate: tally.counts[fate] for fate in ("sent", "returned", "dead_lettered")}
    sentence = f"{fates['sent']:,} {what}; {fates['returned']:,} left where they were"
    if fates["dead_lettered"]:
        sentence += f", {fates['dead_lettered']:,} dead-lettered"
    lines = [sentence]
    for reason, number in sorted(tally.reasons.items()):
        example = f" ({tally.examples[reason]})" if reason in tally.examples else ""
        lines.append(f"  {number:,} because of {reason}{example}")
    lines[-1] += "."
    printer.result({**fates, "reasons": dict(tally.reasons)}, *lines)


@contextmanager
def _session(name: str, remote: Remote, engine: Engine) -> Iterator[tuple[SparkSession, Steps]]:
    """Spark, with the broker's authority known to this process and to Spark's workers."""
    if remote.trusted is not None:
        os.environ[CA_VARIABLE] = os.path.abspath(remote.trusted)
    steps = Steps()
    with _named_errors(), spark(name, engine, steps) as session:
        yield session, steps


@contextmanager
def _named_errors() -> Iterator[None]:
    """Turn what a broker or a transformation says into a command's errors."""
    from twinbus.client import ClientError, Refused
    from twinbus.spark.bulk.rounds import NotThisBrokerError
    from twinbus.spark.bulk.transform import TransformError

    try:
        yield
    except Refused as refused:
        raise CommandError(str(refused), CODES.get(refused.condition, FAILURE)) from refused
    except TransformError as error:
        raise CommandError(str(error), USAGE) from error
    except (ClientError, NotThisBrokerError, ValueError) as error:
        raise CommandError(str(error)) from error
