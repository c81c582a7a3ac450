"""Prints the soak: minutes, totals, the overload, and the summary for the docs.

Enters: what was gathered. Leaves: text. It must not measure or judge.
"""

from __future__ import annotations

from itertools import pairwise

from rich.console import Console

from bench.soak.minutes import ACCEPTED, ANSWERED, RECEIVED, SIDE_ANSWERED, SIDE_RECEIVED, Span
from bench.soak.watch import Sample

SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


def milliseconds(span: Span, kind: str, share: float) -> str:
    found = span.latencies[kind].percentile_ms(share)
    return "–" if found != found else f"{found:.1f}" if found < 100 else f"{found:.0f}"


def figures(span: Span, kind: str) -> str:
    """p50 / p99 / p99.9 / max, in milliseconds."""
    return " / ".join(milliseconds(span, kind, share) for share in SHARES.values())


def cores(samples: list[Sample]) -> float:
    """How much of a core the broker used, over the lives that the samples show."""
    used = seconds = 0.0
    for before, after in pairwise(samples):
        if before.life == after.life:
            used += after.cpu_s - before.cpu_s
            seconds += after.at_s - before.at_s
    return used / seconds if seconds else 0.0


class MinuteTable:
    """One line for each minute, printed as it ends: a long run can be followed."""

    TITLES = (
        f"{'minute':>6}  {'fault':<28} {'msg/s':>7} {'sent→received ms':>31} "
        f"{'sent→answered ms':>31} {'MB':>5} {'disk MB':>7} {'files':>5} {'cores':>9}"
    )

    def __init__(self, console: Console) -> None:
        self._console = console
        self._number = 0
        console.print("latencies are p50 / p99 / p99.9 / max")
        console.print(self.TITLES, highlight=False, soft_wrap=True)

    def line(self, span: Span, samples: list[Sample]) -> None:
        self._number += 1
        last = samples[-1] if samples else None
        generator = span.generator_cpu_s / span.seconds
        self._console.print(
            f"{self._number:>6}  {span.name:<28} {span.per_second:>7.0f} "
            f"{figures(span, RECEIVED):>31} {figures(span, ANSWERED):>31} "
            f"{last.resident_bytes / 1e6 if last else 0:>5.0f} "
            f"{last.disk_bytes / 1e6 if last else 0:>7.0f} {last.descriptors if last else 0:>5} "
            f"{cores(samples):>4.2f}+{generator:.2f}",
            highlight=False,
            soft_wrap=True,
        )


def total_lines(spans: list[Span]) -> list[str]:
    head = "all minutes, against the time a message was meant to be sent, ms:"
    return [head] + [
        f"  {span.name}: received {figures(span, RECEIVED)}, answered {figures(span, ANSWERED)}"
        for span in spans
    ]


def overload_lines(span: Span, limit: float, offered: float) -> list[str]:
    return [
        f"offered {offered:.0f}/s, twice the limit: {span.acknowledged / span.seconds:.0f}/s"
        f" accepted, {span.per_second:.0f}/s delivered"
        f" ({span.per_second / limit:.0%} of the limit), {span.busy} refused as busy",
        f"an accepted send was answered in {figures(span, ACCEPTED)} ms",
        f"the client on the side was answered in {figures(span, SIDE_ANSWERED)} ms,"
        f" received in {figures(span, SIDE_RECEIVED)} ms",
    ]


def summary(rows: list[tuple[str, str]]) -> str:
    """A Markdown table."""
    lines = ["| what | measured |", "| --- | --- |"]
    return "\n".join(lines + [f"| {what} | {measured} |" for what, measured in rows])
