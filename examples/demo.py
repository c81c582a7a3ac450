"""An outage, seen live: two brokers, a sender, a receiver, and the primary killed in between.

    python examples/demo.py [--rate 50] [--outage 8]

It starts the primary and the secondary as two processes, pairs them, sends at a steady rate,
kills the primary, restarts it and lets the syphon drain the backlog. At the end a table says
what was sent and what arrived. With the `spark` extra both brokers capture their journals and
the pair keeps a file of events, and three reports follow: the timeline of the failover, what
everything cost, and the audit, which proves that nothing was lost.
"""

import argparse
import asyncio
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusError
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from twinbus.pairing import (
    PairedServiceBusClient,
    PairingError,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.pairing.event_file import EventFile
from twinbus.pairing.events import (
    EntityFailedOver,
    EntityRecovered,
    Event,
    MessagesBacklogged,
    MessageSyphoned,
    PingSent,
)

KEY = "ZGVtby1rZXktb25seS1mb3ItdGhlLWRlbW8tMzItYnk="
QUEUE = "orders"
BACKLOG_QUEUES = 2
REPORTS = ("failovers", "cost", "audit")


class BrokerProcess:
    """One broker in a process of its own, on a directory that outlives it."""

    def __init__(
        self, directory: Path, queues: tuple[str, ...] = (), captures: bool = False
    ) -> None:
        self._directory = directory
        self._ports = ("0", "0")
        self._captures = captures
        directory.mkdir(parents=True)
        declared = "".join(f"[namespaces.{directory.name}.queues.{name}]\n" for name in queues)
        self._config = directory / "twinbus.toml"
        self._config.write_text(f"[namespaces.{directory.name}]\n{declared}")
        self.start()

    def start(self) -> None:
        amqp, admin = self._ports
        command = [sys.executable, "-m", "twinbus", "serve", "--json"]
        command += ["--data-dir", str(self._directory / "data"), "--amqp-port", amqp]
        command += ["--amqps-port", "off", "--admin-port", admin, "--config", str(self._config)]
        if self._captures:
            command += ["--capture", str(self.capture)]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"TWINBUS_SAS_KEY": KEY},
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"The broker did not start; see {self._directory / 'log'}")
        ports = json.loads(line)["ports"]
        # The same ports after a restart: clients come back to where they were.
        self._ports = (str(ports["amqp"]), str(ports["admin"]))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    @property
    def capture(self) -> Path:
        return self._directory / "capture"

    @property
    def connection_string(self) -> str:
        return f"{self._endpoint(self._ports[0])};UseDevelopmentEmulator=true"

    def administration(self) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            self._endpoint(self._ports[1]),
            connection_verify=str(self._directory / "data" / "tls" / "ca.pem"),
        )

    @staticmethod
    def _endpoint(port: str) -> str:
        return (
            f"Endpoint=sb://localhost:{port};"
            f"SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={KEY}"
        )


class Story:
    """What has happened so far, and how it looks."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.phase = "starting"
        self.sent: set[str] = set()
        self.failed = 0
        self.arrived: Counter[str] = Counter()
        self.backlogged = 0
        self.syphoned = 0
        self.pings = 0
        self.longest_send_s = 0.0
        self.lines: list[str] = []

    def tell(self, event: Event) -> None:
        if isinstance(event, MessagesBacklogged):
            self.backlogged += event.count
        elif isinstance(event, MessageSyphoned):
            self.syphoned += 1
        elif isinstance(event, PingSent):
            self.pings += 1
        elif isinstance(event, EntityFailedOver):
            self.say("failed over: sends go to the backlog")
        elif isinstance(event, EntityRecovered):
            self.say(f"recovered after {event.failed_over_ms / 1000:.1f} s: back on the primary")

    def say(self, text: str) -> None:
        self.lines.append(f"{time.monotonic() - self.began:6.1f} s  {text}")

    def view(self) -> Group:
        table = Table(title=f"Paired namespaces: {self.phase}")
        for heading in ("sent", "arrived", "sent to the backlog", "syphoned", "pings"):
            table.add_column(heading, justify="right")
        numbers = (len(self.sent), len(self.arrived), self.backlogged, self.syphoned, self.pings)
        table.add_row(*map(str, numbers))
        return Group(table, Text("\n".join(self.lines)))

    def report(self) -> Table:
        lost = len(self.sent - self.arrived.keys())
        table = Table("", "", title="In the end", show_header=False)
        table.add_row("sent", str(len(self.sent)))
        table.add_row("sends that failed", str(self.failed))
        table.add_row("arrived", str(len(self.arrived)))
        table.add_row("duplicates", str(self.arrived.total() - len(self.arrived)))
        table.add_row("lost", str(lost), style="bold green" if lost == 0 else "bold red")
        table.add_row("longest gap a sender saw", f"{self.longest_send_s:.2f} s")
        return table


async def send(
    client: PairedServiceBusClient, story: Story, rate: float, stop: asyncio.Event
) -> None:
    """Send at a steady rate; what fails is sent again, as an application would."""
    number = 0
    async with client.get_queue_sender(QUEUE) as sender:
        while not stop.is_set():
            message = ServiceBusMessage(f"order {number}", message_id=f"order-{number}")
            began = time.monotonic()
            try:
                await sender.send_messages(message)
            except (ServiceBusError, PairingError):
                story.failed += 1
            else:
                story.sent.add(f"order-{number}")
                number += 1
            took = time.monotonic() - began
            story.longest_send_s = max(story.longest_send_s, took)
            await asyncio.sleep(max(0.0, 1 / rate - took))


async def receive(primary: BrokerProcess, story: Story, stop: asyncio.Event) -> None:
    """Take what arrives in the primary; a receiver has to live with an outage (P13)."""
    while not stop.is_set():
        client = ServiceBusClient.from_connection_string(primary.connection_string, retry_total=0)
        try:
            async with client, client.get_queue_receiver(QUEUE) as receiver:
                while not stop.is_set():
                    for message in await receiver.receive_messages(50, max_wait_time=1):
                        # Counted before it is completed: a broker that is killed may have
                        # completed a message without having been able to say so.
                        story.arrived[str(message.message_id)] += 1
                        await receiver.complete_message(message)
        except ServiceBusError:
            await asyncio.sleep(0.5)


async def draw(live: Live, story: Story) -> None:
    while True:
        live.update(story.view())
        await asyncio.sleep(0.1)


async def play(
    primary: BrokerProcess, client: PairedServiceBusClient, story: Story, args: Any
) -> None:
    """The plot: quiet, an outage, the way back, and the end when everything has arrived."""
    stop_sending, stop_receiving = asyncio.Event(), asyncio.Event()
    sending = asyncio.create_task(send(client, story, args.rate, stop_sending))
    receiving = asyncio.create_task(receive(primary, story, stop_receiving))
    story.phase = "healthy"
    story.say("sending to the primary")
    await asyncio.sleep(args.quiet)
    primary.kill()
    story.phase = "the primary is down"
    story.say("the primary was killed")
    await asyncio.sleep(args.outage)
    await asyncio.to_thread(primary.start)
    story.phase = "the primary is back"
    story.say("the primary is up again")
    await asyncio.sleep(args.quiet)
    stop_sending.set()
    await sending
    story.phase = "draining"
    give_up = time.monotonic() + 60
    while story.sent - story.arrived.keys() and time.monotonic() < give_up:
        await asyncio.sleep(0.2)
    stop_receiving.set()
    await receiving
    story.phase = "done"


async def run(args: Any, directory: Path, console: Console) -> Story:
    console.print("Starting two brokers ...")
    captures = can_report()
    primary = BrokerProcess(directory / "primary", (QUEUE,), captures)
    secondary = BrokerProcess(directory / "secondary", (), captures)
    events = EventFile(directory / "events.jsonl", pair="demo", client="demo")
    story = Story()

    def on_event(event: Event) -> None:
        story.tell(event)
        events(event)

    try:
        options = SendAvailabilityPairedNamespaceOptions(
            secondary=secondary.connection_string,
            administration=secondary.administration(),
            backlog_queue_count=BACKLOG_QUEUES,
            failover_interval=timedelta(0),
            ping_primary_interval=timedelta(seconds=1),
            enable_syphon=True,
            syphon_retry_interval=timedelta(seconds=1),
        )
        client = PairedServiceBusClient(primary.connection_string, options, on_event=on_event)
        with Live(story.view(), console=console) as live:
            async with client:
                drawing = asyncio.create_task(draw(live, story))
                await play(primary, client, story, args)
                drawing.cancel()
            live.update(story.view())
        return story
    finally:
        events.close()
        primary.stop()
        secondary.stop()


def can_report() -> bool:
    return all(importlib.util.find_spec(name) for name in ("pyarrow", "pyspark"))


def report(directory: Path, out: Path, console: Console) -> bool:
    """The reports, each in the terminal and as a page; tells whether the audit is clean."""
    from twinbus.spark.report import making, terminal
    from twinbus.spark.session import session

    with console.status("Starting Spark ..."):
        spark = session("twinbus demo", short=True)
    captures = [str(directory / name / "capture") for name in ("primary", "secondary")]
    events = [str(directory / "events.jsonl")]
    sources = making.Sources(captures, events, backlog_queues=BACKLOG_QUEUES)
    clean = True
    try:
        for job in REPORTS:
            with console.status(f"Computing {job} ..."):
                found = making.write(job, making.compute(spark, job, sources), out)
            console.rule(job)
            for part in terminal.render(job, found, console.width):
                console.print(part)
                console.print()
            clean = clean and making.is_clean(job, found)
    finally:
        spark.stop()
    for job in REPORTS:
        console.print(f"The page: {making.page(job, out)}", soft_wrap=True)
    return clean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, default=50, help="messages a second")
    parser.add_argument("--quiet", type=float, default=4, help="seconds before and after")
    parser.add_argument("--outage", type=float, default=8, help="seconds the primary is down")
    parser.add_argument("--out", type=Path, help="where the reports go; else a new directory")
    args = parser.parse_args()
    console = Console()
    # The picture tells it all; log lines would tear it apart.
    logging.disable()
    directory = Path(tempfile.mkdtemp(prefix="twinbus-demo-"))
    try:
        story = asyncio.run(run(args, directory, console))
        console.print(story.report())
        clean = True
        if can_report():
            out = args.out or Path(tempfile.mkdtemp(prefix="twinbus-reports-"))
            clean = report(directory, out, console)
        else:
            console.out("For the timeline, the cost and the audit: pip install 'twinbus[spark]'")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if story.sent - story.arrived.keys() or not clean else 0


if __name__ == "__main__":
    sys.exit(main())
