"""The deep queue: millions of waiting messages, their memory, their speed, their restart.

Enters: how many messages. Leaves: met or not met for memory, send rate and restart time.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import track

from bench import processes, twinbus
from bench.clients import Client, Work
from bench.report import Budget

SIZE_BYTES = 1024
STEPS = 20
# The first and the last few steps stand for the empty and the full queue.
STEPS_COMPARED = 3
RESIDENT_GIB_MAX = 2.0
RATE_SHARE_MIN = 2 / 3
RESTART_SECONDS_MAX = 60.0


def run(console: Console, client: Client, form: str, count: int) -> list[Budget]:
    step = count // STEPS
    rates: list[float] = []
    costs_us: list[float] = []
    resident_max = 0
    with tempfile.TemporaryDirectory(prefix="bench-deep-") as directory:
        live = twinbus.broker(form, Path(directory))
        live.start_seconds_max = 10 * RESTART_SECONDS_MAX
        with live:
            for _ in track(range(STEPS), f"{count:,} messages into {form}", console=console):
                before = processes.cpu_seconds(live.pid)
                done = client.run(twinbus.endpoint(live), Work("send", step, SIZE_BYTES))
                rates.append(done.count / done.seconds)
                costs_us.append((processes.cpu_seconds(live.pid) - before) / step * 1e6)
                resident_max = max(resident_max, processes.resident_bytes(live.pid))
            # A crash, not a farewell: nothing can have been tidied up for the restart.
            live.kill()
            live.start()
            restart_seconds = live.start_seconds
            resident_max = max(resident_max, processes.resident_bytes(live.pid))
            client.run(twinbus.endpoint(live), Work("receive", step, SIZE_BYTES))
    return _verdicts(form, rates, costs_us, resident_max, restart_seconds)


def _verdicts(
    form: str,
    rates: list[float],
    costs_us: list[float],
    resident_max: int,
    restart_seconds: float,
) -> list[Budget]:
    gib = resident_max / 2**30
    empty, full = _ends(rates)
    empty_us, full_us = _ends(costs_us)
    share = full / empty
    # A busy machine spoils rates more than costs: both are told, the rate is judged.
    sends = (
        f"{form}, sends/s, full queue over empty ({full:,.0f} over {empty:,.0f}; "
        f"{full_us:.1f} µs CPU against {empty_us:.1f})"
    )
    restarted = restart_seconds < RESTART_SECONDS_MAX
    return [
        Budget(f"{form}, GiB resident", gib, RESIDENT_GIB_MAX, gib < RESIDENT_GIB_MAX),
        Budget(sends, share, RATE_SHARE_MIN, share >= RATE_SHARE_MIN),
        Budget(f"{form}, s to restart killed", restart_seconds, RESTART_SECONDS_MAX, restarted),
    ]


def _ends(figures: list[float]) -> tuple[float, float]:
    return (
        statistics.median(figures[:STEPS_COMPARED]),
        statistics.median(figures[-STEPS_COMPARED:]),
    )
