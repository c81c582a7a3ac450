"""`twinbus pipeline`: reports from what brokers captured, and work in bulk, on Spark.

Options go in; the work is done by `twinbus.spark`. Nothing here imports it until a command
runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from twinbus.cli import pipeline_bulk
from twinbus.cli.commands import REQUIRED, Json, Shared, declare
from twinbus.cli.pipeline_jobs import Order, run
from twinbus.cli.pipeline_spark import ENGINE, Engine

app = typer.Typer(
    no_args_is_help=True, help="Reports from what brokers captured, and work in bulk, on Spark."
)
app.registered_commands += pipeline_bulk.app.registered_commands

Capture = Annotated[
    list[str],
    typer.Option("--capture", help="A directory that a broker captures to; again for more."),
]


def _directory(given: object) -> Path:
    """A place for reports. A URL is found out here: as a path it would be the directory s3a:"""
    if "://" in str(given):
        raise typer.BadParameter(
            f"'{given}' is a URL: reports are written to a directory. On a cluster, give one that"
            " driver and executors share."
        )
    return Path(str(given))


Out = Annotated[
    Path,
    typer.Option(
        "--out",
        parser=_directory,
        metavar="PATH",
        help="The directory where tables and pages are written.",
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Go on while the broker runs; end it with Ctrl-C.")
]

F = TypeVar("F", bound=Callable[..., None])


def job(name: str) -> Callable[[F], F]:
    """Declare the command of a job."""
    order = Shared(
        {
            "capture": (Capture, REQUIRED),
            "out": (Out, Path("twinbus-reports")),
            "follow": (Follow, False),
            "json_output": (Json, False),
        },
        partial(Order, name),
    )
    return declare(app, name, {"order": order, "engine": ENGINE})


@job("cost")
def cost(
    order: Order,
    engine: Engine,
    tariff: Annotated[
        Path | None, typer.Option(help="Prices (TOML); without it, Azure's public Standard ones.")
    ] = None,
    backlog_queues: Annotated[
        int, typer.Option(min=1, help="Backlog queues that an idle syphon is predicted to poll.")
    ] = 10,
    poll: Annotated[float, typer.Option(min=0.001, help="Seconds of one such poll.")] = 900.0,
) -> None:
    """What was done and what it costs, by entity, client, kind and day (C1 to C3)."""
    settings = {"tariff": tariff, "backlog_queues": backlog_queues, "poll_seconds": poll}
    _run(replace(order, settings=settings), engine)


@job("dead-letters")
def dead_letters(order: Order, engine: Engine) -> None:
    """What died, why, how long ago, and what to do next."""
    _run(order, engine)


@job("failovers")
def failovers(
    order: Order,
    engine: Engine,
    events: Annotated[
        list[str],
        typer.Option(
            "--events", help="A file of a pair's events, a directory or a pattern; again for more."
        ),
    ],
) -> None:
    """Every outage of every entity: failure, failover, pings, recovery, and the way back."""
    _run(replace(order, events=events), engine)


@job("latency")
def latency(order: Order, engine: Engine) -> None:
    """How long messages waited, by entity and hour; lost locks and redeliveries."""
    _run(order, engine)


@job("audit")
def audit(order: Order, engine: Engine) -> None:
    """Prove that no message was lost, invented or ended twice. Exits with 1 if one was."""
    _run(order, engine)


def _run(order: Order, engine: Engine) -> None:
    code = run(order, engine)
    if code:
        raise typer.Exit(code)
