"""The idle broker: how fast it starts, what it costs while nobody asks for anything."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from bench import processes, twinbus
from bench.report import Budget
from tests.support.broker import Broker

STARTS = 3
WATCHED_SECONDS = 10.0
START_SECONDS_MAX = 1.0
CPU_PERCENT_MAX = 1.0


def run(form: str) -> list[Budget]:
    with tempfile.TemporaryDirectory(prefix="bench-idle-") as directory:
        live = twinbus.broker(form, Path(directory))
        seconds = statistics.median(_start_seconds(live) for _ in range(STARTS))
        with live:
            time.sleep(1.0)  # what the start left to do is not idleness
            before = processes.cpu_seconds(live.pid)
            time.sleep(WATCHED_SECONDS)
            percent = (processes.cpu_seconds(live.pid) - before) / WATCHED_SECONDS * 100
    started = seconds < START_SECONDS_MAX
    return [
        Budget(f"{form}, seconds to start", seconds, START_SECONDS_MAX, started),
        Budget(f"{form}, % CPU idle", percent, CPU_PERCENT_MAX, percent < CPU_PERCENT_MAX),
    ]


def _start_seconds(live: Broker) -> float:
    with live:
        return live.start_seconds
