"""What was measured, gathered by the minute.

Enters: a report every second, and whether a fault was near. Leaves: rates and latencies of each
minute, of all of them, and of what lay outside the faults' windows. It must not measure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.soak.latencies import Latencies
from bench.soak.load import Report

RECEIVED, ANSWERED, ACCEPTED = "received", "answered", "accepted_in"
SIDE_RECEIVED, SIDE_ANSWERED = "side_received", "side_answered"
KINDS = (RECEIVED, ANSWERED, ACCEPTED, SIDE_RECEIVED, SIDE_ANSWERED)


@dataclass
class Span:
    """A stretch of time: what came in it."""

    name: str
    seconds: float = 0.0
    delivered: int = 0
    acknowledged: int = 0
    busy: int = 0
    generator_cpu_s: float = 0.0
    backlog_max: int = 0
    latencies: dict[str, Latencies] = field(
        default_factory=lambda: {kind: Latencies() for kind in KINDS}
    )

    def add(self, before: Report, after: Report) -> None:
        self.seconds += after.at_s - before.at_s
        self.delivered += after["delivered"] - before["delivered"]
        self.acknowledged += after["acknowledged"] - before["acknowledged"]
        self.busy += after["busy"] - before["busy"]
        self.generator_cpu_s += after.cpu_s - before.cpu_s
        self.backlog_max = max(self.backlog_max, after["backlog"])
        for kind in KINDS:
            self.latencies[kind].add(after.latencies[kind])

    @property
    def per_second(self) -> float:
        return self.delivered / self.seconds if self.seconds else 0.0


@dataclass
class Minutes:
    """The minutes of the soak, and their sums."""

    spans: list[Span] = field(default_factory=list)
    whole: Span = field(default_factory=lambda: Span("all"))
    quiet: Span = field(default_factory=lambda: Span("outside faults"))

    def begin(self, name: str) -> None:
        self.spans.append(Span(name))

    def add(self, before: Report, after: Report, near_fault: bool) -> None:
        self.spans[-1].add(before, after)
        self.whole.add(before, after)
        if not near_fault:
            self.quiet.add(before, after)
