"""`twinbus pipeline`: reports from what brokers captured, and work in bulk, on Spark.

Options go in; the work is done by `twinbus.spark`. Nothing here imports it until a command
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from twinbus.cli import pipeline_bulk
from twinbus.cli.failures import one_line_errors

app = typer.Typer(
    no_args_is_help=True, help="Reports from what brokers captured, and work in bulk, on Spark."
)
app.registered_commands += pipeline_bulk.app.registered_commands

Capture = Annotated[
    list[str],
    typer.Option("--capture", help="A directory that a broker captures to; again for more."),
]
Out = Annotated[Path, typer.Option("--out", help="Where tables and pages are written.")]
Follow = Annotated[
    bool, typer.Option("--follow", help="Go on while the broker runs; end it with Ctrl-C.")
]
Master = Annotated[
    str | None, typer.Option(help="A Spark cluster; without it, this machine.", metavar="URL")
]
Connect = Annotated[
    str | None, typer.Option("--remote", help="A Spark Connect server.", metavar="URL")
]
Memory = Annotated[str, typer.Option(help="Memory of the Java process on this machine.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

_OUT = Path("twinbus-reports")


@app.command()
def cost(
    capture: Capture,
    tariff: Annotated[
        Path | None, typer.Option(help="Prices (TOML); without it, Azure's public Standard ones.")
    ] = None,
    backlog_queues: Annotated[
        int, typer.Option(min=1, help="Backlog queues that an idle syphon is predicted to poll.")
    ] = 10,
    poll: Annotated[float, typer.Option(min=0.001, help="Seconds of one such poll.")] = 900.0,
    out: Out = _OUT,
    follow: Follow = False,
    master: Master = None,
    remote: Connect = None,
    memory: Memory = "2g",
    json_output: Json = False,
) -> None:
    """What was done and what it costs, by entity, client, kind and day (C1 to C3)."""
    settings = {"tariff": tariff, "backlog_queues": backlog_queues, "poll_seconds": poll}
    _run("cost", capture, out, follow, (master, remote, memory), json_output, settings=settings)


@app.command("dead-letters")
def dead_letters(
    capture: Capture,
    out: Out = _OUT,
    follow: Follow = False,
    master: Master = None,
    remote: Connect = None,
    memory: Memory = "2g",
    json_output: Json = False,
) -> None:
    """What died, why, how long ago, and what to do next."""
    _run("dead-letters", capture, out, follow, (master, remote, memory), json_output)


@app.command()
def failovers(
    capture: Capture,
    events: Annotated[
        list[str],
        typer.Option(
            "--events", help="A file of a pair's events, a directory or a pattern; again for more."
        ),
    ],
    out: Out = _OUT,
    follow: Follow = False,
    master: Master = None,
    remote: Connect = None,
    memory: Memory = "2g",
    json_output: Json = False,
) -> None:
    """Every outage of every entity: failure, failover, pings, recovery, and the way back."""
    _run("failovers", capture, out, follow, (master, remote, memory), json_output, events)


@app.command()
def latency(
    capture: Capture,
    out: Out = _OUT,
    follow: Follow = False,
    master: Master = None,
    remote: Connect = None,
    memory: Memory = "2g",
    json_output: Json = False,
) -> None:
    """How long messages waited, by entity and hour; lost locks and redeliveries."""
    _run("latency", capture, out, follow, (master, remote, memory), json_output)


@app.command()
def audit(
    capture: Capture,
    out: Out = _OUT,
    follow: Follow = False,
    master: Master = None,
    remote: Connect = None,
    memory: Memory = "2g",
    json_output: Json = False,
) -> None:
    """Prove that no message was lost, invented or ended twice. Exits with 1 if one was."""
    _run("audit", capture, out, follow, (master, remote, memory), json_output)


def _run(
    job: str,
    captures: list[str],
    out: Path,
    follow: bool,
    engine: tuple[str | None, str | None, str],
    json_output: bool,
    events: Sequence[str] = (),
    settings: dict[str, Any] | None = None,
) -> None:
    from twinbus.cli.pipeline_jobs import Order, run
    from twinbus.cli.pipeline_spark import Engine

    with one_line_errors():
        given = settings or {}
        order = Order(job, tuple(captures), tuple(events), out, follow, json_output, given)
        code = run(order, Engine(*engine))
    if code:
        raise typer.Exit(code)
