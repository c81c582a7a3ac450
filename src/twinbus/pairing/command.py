"""`twinbus syphon`: runs a syphon by itself, shows what it moves, and reports it at the end.

Prints; the work is `Syphon`'s. It ends with SIGINT or SIGTERM, after the messages
in hand, and goes on when either namespace goes away and comes back.
"""

import asyncio
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from twinbus.forms.plain import printable
from twinbus.pairing.events import (
    Event,
    MessageDeadLettered,
    MessageSyphoned,
    PumpFailed,
    SyphonDeferred,
)
from twinbus.pairing.syphon import Syphon

_REPORT_EVERY_S = 5.0


def syphon(
    primary: str,
    secondary: str,
    backlog_queues: int,
    poll_s: float,
    retry_s: float,
    ca_file: Path | None,
) -> None:
    """Move what the backlog queues hold to where it belongs in the primary."""
    tally = Tally(Console())
    settings: dict[str, Any] = {
        "backlog_queue_count": backlog_queues,
        "syphon_poll": timedelta(seconds=poll_s),
        "syphon_retry_interval": timedelta(seconds=retry_s),
    }
    trust: dict[str, Any] = {} if ca_file is None else {"connection_verify": str(ca_file)}
    asyncio.run(_run(primary, secondary, tally, settings, trust))
    tally.report()


async def _run(
    primary: str,
    secondary: str,
    tally: "Tally",
    settings: dict[str, Any],
    client_options: dict[str, Any],
) -> None:
    asked_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked_to_end.set)
    running = Syphon.from_connection_strings(
        primary, secondary, on_event=tally.count, client_options=client_options, **settings
    )
    async with running:
        tally.console.print("The syphon runs; end it with Ctrl-C.")
        while not asked_to_end.is_set() and not await running.wait(0):
            tally.progress()
            try:
                await asyncio.wait_for(asked_to_end.wait(), _REPORT_EVERY_S)
            except TimeoutError:
                continue


class Tally:
    """What the syphon did, by entity."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._moved: Counter[str] = Counter()
        self._waiting: dict[str, str] = {}
        self._dead: Counter[str] = Counter()
        self._said = 0

    def count(self, event: Event) -> None:
        if isinstance(event, MessageSyphoned):
            self._moved[event.path] += 1
            self._waiting.pop(event.path, None)
        elif isinstance(event, SyphonDeferred):
            if event.path not in self._waiting:
                self._say(f"{event.path} waits: {event.error}")
            self._waiting[event.path] = event.error
        elif isinstance(event, MessageDeadLettered):
            self._dead[event.reason] += 1
            self._say(f"Dead-lettered in {event.queue}: {event.reason}")
        elif isinstance(event, PumpFailed):
            self._say(f"{event.queue}: {event.error}")

    def progress(self) -> None:
        """Say how far it is, when it is further than last time."""
        moved = self._moved.total()
        if moved > self._said:
            self._said = moved
            self.console.print(f"{moved} messages moved.")

    def report(self) -> None:
        table = Table("Entity", "Moved")
        for path, number in sorted(self._moved.items()):
            table.add_row(Text(printable(path)), str(number))
        table.add_row("in all", str(self._moved.total()))
        self.console.print(table)
        for reason, number in sorted(self._dead.items()):
            self._say(f"{number} dead-lettered: {reason}")
        for path in sorted(self._waiting):
            self._say(f"{path} still waits: {self._waiting[path]}")

    def _say(self, text: str) -> None:
        """Print what others wrote: for Rich, too, it is no more than a text."""
        self.console.out(printable(text), highlight=False)
