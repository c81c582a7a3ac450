"""`python -m bench`: one command that measures this broker beside its peers.

Enters: the command line. Leaves: tables on the console and, on request, a JSON file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from bench import (
    clients,
    deep,
    idle,
    observing,
    own_client,
    pairing,
    peers,
    rabbitmq,
    report,
    twinbus,
)

app = typer.Typer(add_completion=False, help=__doc__)
console = Console()

COUNT = 50_000
QUICK_COUNT = 10_000
RUNS = 3
DEEP_COUNT = 5_000_000
CAPTURE_COUNT = 350_000
JOBS_SMALL, JOBS_LARGE = 1_000_000, 10_000_000
SOAK_MINUTES = 30
STREAM_COUNT, STREAM_BATCH = 300_000, 50_000
# Above this share of the cores somebody else is working on the machine.
LOAD_SHARE_MAX = 0.25


@app.callback(invoke_without_command=True)
def compare(
    context: typer.Context,
    count: Annotated[int, typer.Option(min=1000, help="messages in each phase")] = COUNT,
    runs: Annotated[int, typer.Option(help="runs; the report shows medians")] = RUNS,
    quick: Annotated[bool, typer.Option("--quick", help="one short run")] = False,
    only: Annotated[str, typer.Option(help="only peers whose name has this")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="also write it here")] = None,
) -> None:
    """Send, receive and both, this broker and RabbitMQ, beside a raw append."""
    if context.invoked_subcommand:
        return
    if quick:
        count, runs = QUICK_COUNT, 1
    client = _client()
    load = _load()
    present = [peer for peer in peers.peers_present(_forms()) if only in peer.name]
    if not rabbitmq.is_installed():
        console.print(f"RabbitMQ is not installed ({rabbitmq.INSTALL_HINT}): without it")
    samples: list[peers.Sample] = []
    for _ in track(range(runs), "runs", console=console):
        samples += peers.measure_append(count)
        for peer in present:
            samples += peers.measure(client, peer, count)
    medians = peers.medians(samples)
    report.show(console, medians)
    if json_file:
        report.write_json(json_file, medians, load)


@app.command("deep")
def deep_queue(
    count: Annotated[int, typer.Option(min=20_000, help="messages in the queue")] = DEEP_COUNT,
    only: Annotated[str, typer.Option(help="only this form")] = "",
) -> None:
    """Fill a queue with millions of messages; report memory, send rate and restart."""
    client = _client()
    _load()
    for form in _forms():
        if only in form:
            for line in deep.run(console, client, form, count):
                console.print(str(line))


@app.command("idle")
def idle_broker() -> None:
    """Report start time, and the CPU of a broker that nobody uses."""
    _load()
    for form in _forms():
        for line in idle.run(form):
            console.print(str(line))


@app.command("observing")
def observing_broker(
    count: Annotated[int, typer.Option(min=1000, help="messages in each round")] = COUNT,
) -> None:
    """Report what observing costs the path of a message."""
    client = _client()
    _load()
    # The budget is the compiled form's; without it the other one's figure says something, too.
    told, budget = observing.run(client, _forms()[0], count)
    console.print(told)
    console.print(str(budget))


@app.command("client")
def own_client_beside_sdk(
    count: Annotated[int, typer.Option(min=10_000, help="messages sent and read")] = COUNT,
    only: Annotated[str, typer.Option(help="only this form of the broker")] = "",
) -> None:
    """Report what the own client sends and reads, beside the official SDK."""
    _load()
    for form in _forms():
        if only in form:
            console.print(own_client.run(form, count))


@app.command("pairing")
def paired_namespaces() -> None:
    """Report what a paired sender costs, and sends over a slow line."""
    _load()
    for line in pairing.run():
        console.print(str(line))


@app.command("capture")
def capture_journal(
    count: Annotated[int, typer.Option(min=1000, help="messages in the journal")] = CAPTURE_COUNT,
) -> None:
    """Report how fast a journal becomes Parquet, and its size."""
    from bench import capture

    _load()
    for line in capture.run(count):
        console.print(str(line))


@app.command("stream")
def spark_stream(
    count: Annotated[int, typer.Option(min=20_000, help="messages copied")] = STREAM_COUNT,
    batch: Annotated[int, typer.Option(min=1000, help="messages in a batch")] = STREAM_BATCH,
    only: Annotated[str, typer.Option(help="only this form of the broker")] = "",
) -> None:
    """Report what a Spark stream copies from queue to queue, and what limits it."""
    from bench import stream

    _load()
    for form in _forms():
        if only in form:
            console.print(stream.run(form, count, batch))


@app.command("jobs")
def batch_jobs(
    small: Annotated[int, typer.Option(min=100_000, help="rows of the first capture")] = JOBS_SMALL,
    large: Annotated[int, typer.Option(min=100_000, help="rows of the second")] = JOBS_LARGE,
    only: Annotated[str, typer.Option(help="only jobs whose name has this")] = "",
) -> None:
    """Report the seconds of each batch job over captures, and how they grow."""
    from bench import jobs

    _load()
    console.print(f"local[2], {jobs.MEMORY} of heap")
    for line in jobs.run_all(small, large, only):
        console.print(str(line))


@app.command("soak")
def load_and_soak(
    minutes: Annotated[int, typer.Option(min=1, help="how long, a fault in each")] = SOAK_MINUTES,
    form: Annotated[str, typer.Option(help="compiled or interpreted")] = "compiled",
) -> None:
    """Load 2,000 connections and 10,000 queues through faults; exit 1 on loss or growth."""
    from bench.soak.run import run

    if form not in _forms():
        raise typer.BadParameter(f"the {form} form is not there")
    _load()
    reasons = run(console, form, minutes)
    for reason in reasons:
        console.print(f"[red]failed[/]: {reason}")
    if reasons:
        raise typer.Exit(1)
    console.print("[green]passed[/]: nothing lost, nothing settled came back, nothing grew")


def _forms() -> list[str]:
    forms = twinbus.forms_present()
    if "compiled" not in forms:
        console.print("The compiled form is not installed (pip install .): without it")
    elif twinbus.installed_is_stale():
        console.print("[red]The installed form is not made from this source[/]: pip install .")
    return forms


def _load() -> float:
    """How many processes wanted the processor in the last minute, before anything starts."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores * LOAD_SHARE_MAX:
        console.print(
            f"[red]The machine is busy (load {load:.1f} on {cores} cores)[/]: "
            "rates are not to be trusted, and CPU figures are too high"
        )
    return load


def _client() -> clients.Client:
    client = clients.find_client()
    if not client.is_fast:
        console.print(
            f"No compiled client ({clients.INSTALL_HINT}): the Python one limits the rates"
        )
    return client


app()
