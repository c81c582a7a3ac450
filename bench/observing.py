"""What observing costs the path of a message: the base benchmark with it off and on, in turns.

Enters: a client and how much work. Leaves: CPU per message of both, and their ratio against
its budget (L1). The two brokers live side by side and work one at a time, so that whatever
else the machine does hits both alike. What reads the journal is not counted: it is a process
of its own.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from bench import peers, twinbus
from bench.clients import Client, Work
from bench.report import Budget
from tests.support.broker import Broker

ROUNDS = 9
RATIO_MAX = 1.05
SIZE_BYTES = 1024
# The same broker, told to observe although nobody captures.
OBSERVING = "tests.support.observing_broker"


def run(client: Client, form: str, count: int) -> tuple[str, Budget]:
    """Send, receive and settle; give what was measured, and the verdict."""
    with tempfile.TemporaryDirectory(prefix="bench-observing-") as directory:
        off = twinbus.broker(form, Path(directory) / "off")
        on = twinbus.broker(form, Path(directory) / "on")
        on.module = OBSERVING
        with off, on:
            for live in (off, on):
                client.run(twinbus.endpoint(live), Work("both", peers.WARM_UP, SIZE_BYTES))
            rounds = [
                (_cpu_us(client, off, count), _cpu_us(client, on, count)) for _ in range(ROUNDS)
            ]
    off_us = statistics.median(before for before, _ in rounds)
    on_us = statistics.median(after for _, after in rounds)
    ratio = on_us / off_us
    told = f"{form}: {off_us:.2f} µs CPU per message without observing, {on_us:.2f} with"
    return told, Budget(f"{form}, observing ÷ not", ratio, RATIO_MAX, ratio <= RATIO_MAX)


def _cpu_us(client: Client, live: Broker, count: int) -> float:
    return peers.phase(client, "", twinbus.endpoint(live), "both", count, SIZE_BYTES).cpu_us
