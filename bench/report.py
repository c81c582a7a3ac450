"""Prints medians as tables, ratios and budgets; writes them as JSON.

Samples go in, text comes out. It must not measure.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.peers import APPEND, MODES, SIZES, Sample

CLASSIC = "rabbitmq classic"
BUDGET_US = {"twinbus compiled": 12.0, "twinbus interpreted": 20.0}
BUDGET_RATIO = 10.0
TITLES = {
    "send": "send",
    "receive": "receive+settle",
    "both": "both",
    "lone": "one awaited",
}

Medians = dict[tuple[str, int, str], Sample]


@dataclass(frozen=True)
class Budget:
    """A line of the budget: what was asked, what was measured."""

    what: str
    measured: float
    bound: float
    met: bool

    def __str__(self) -> str:
        verdict = "[green]met[/]" if self.met else "[red]not met[/]"
        return f"{self.what}: {self.measured:.2f} (budget {self.bound:.3g}): {verdict}"


def by_key(samples: list[Sample]) -> Medians:
    return {(s.peer, s.size_bytes, s.mode): s for s in samples}


def limit_of(medians: Medians, size_bytes: int, mode: str) -> Sample | None:
    """The raw append that bounds a mode; a receive writes no message bytes."""
    if mode == "receive":
        return None
    return medians.get((APPEND, size_bytes, "lone" if mode == "lone" else "send"))


def table(medians: Medians, size_bytes: int) -> Table:
    """messages/s and broker CPU per message, against RabbitMQ classic and the raw append."""
    shown = Table(title=f"{size_bytes} bytes, durable: messages/s, broker CPU per message")
    shown.add_column("peer", no_wrap=True)
    for mode in MODES:
        shown.add_column(TITLES[mode], justify="right", no_wrap=True)
    for peer in dict.fromkeys(peer for peer, _, _ in medians):
        cells = [_cell(medians, peer, size_bytes, mode) for mode in MODES]
        shown.add_row(peer.replace(" ", "\n"), *cells, end_section=True)
    return shown


def _cell(medians: Medians, peer: str, size_bytes: int, mode: str) -> str:
    sample = medians.get((peer, size_bytes, mode))
    if sample is None:
        return ""
    lines = [f"{sample.messages_per_second:,.0f}/s", f"{sample.cpu_us:.1f} µs CPU"]
    classic = medians.get((CLASSIC, size_bytes, mode))
    if classic and peer.startswith("twinbus"):
        lines.append(f"{sample.messages_per_second / classic.messages_per_second:.1f}× rate")
        lines.append(f"CPU ÷ {_ratio(classic, sample):.1f}")
    limit = limit_of(medians, size_bytes, mode)
    if limit and peer != APPEND:
        share = sample.messages_per_second / limit.messages_per_second
        lines.append(f"{share:.2f}× append")
    if sample.acknowledged_p50_ms and mode == "lone":
        lines.append(f"p50 {sample.acknowledged_p50_ms:.2f} ms")
    return "\n".join(lines)


def _ratio(classic: Sample, ours: Sample) -> float:
    return classic.cpu_us / ours.cpu_us


def budgets(medians: Medians) -> list[Budget]:
    """The budget for send and receive together at 1 KB, the case that a queue lives in."""
    lines: list[Budget] = []
    classic = medians.get((CLASSIC, SIZES[0], "both"))
    for peer, bound_us in BUDGET_US.items():
        ours = medians.get((peer, SIZES[0], "both"))
        if ours is None:
            continue
        what = f"{peer}, both, 1 KB"
        lines.append(
            Budget(f"{what}, µs CPU per message", ours.cpu_us, bound_us, ours.cpu_us <= bound_us)
        )
        if classic and peer == "twinbus compiled":
            times = _ratio(classic, ours)
            cpu = f"{what}, RabbitMQ classic's CPU ÷ ours"
            lines.append(Budget(cpu, times, BUDGET_RATIO, times >= BUDGET_RATIO))
    return lines


def show(console: Console, samples: list[Sample]) -> None:
    medians = by_key(samples)
    for size_bytes in SIZES:
        console.print(table(medians, size_bytes))
    for budget in budgets(medians):
        console.print(str(budget))


def write_json(path: Path, samples: list[Sample], load: float) -> None:
    told = {
        "load_before": load,
        "medians": [asdict(sample) for sample in samples],
        "budgets": [asdict(budget) for budget in budgets(by_key(samples))],
    }
    path.write_text(json.dumps(told, indent=2) + "\n")
