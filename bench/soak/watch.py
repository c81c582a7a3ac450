"""Watches a broker's memory, descriptors and disk, and says whether they grow.

Enters: a broker that may be killed and started again. Leaves: samples, and verdicts on them. A
*life* is the time between two starts: a leak shows in a life, and what outlives one on the disk.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from bench import processes
from tests.support.broker import Broker

EVERY_S = 2.0
# A life has filled its caches by then: replay, the flood and the slow receiver lie in it.
WARM_S = 180.0
# A slope over less says nothing.
SPAN_S = 90.0
MEMORY_PERCENT_PER_MINUTE_MAX = 1.0
MEMORY_BETWEEN_LIVES_MAX = 1.10
DISK_MAX = 1.25
DESCRIPTORS_MAX = 50


@dataclass(frozen=True)
class Sample:
    at_s: float
    life: int
    resident_bytes: int
    descriptors: int
    disk_bytes: int
    cpu_s: float


class Watch:
    """A thread that looks every few seconds, while the broker runs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        pid = life = 0
        while not self._ended.wait(EVERY_S):
            process = self._broker.process
            if process is None:
                continue
            if process.pid != pid:
                pid, life = process.pid, life + 1
            try:
                self.samples.append(_look(pid, life, self._broker.directory))
            except OSError:
                continue  # it was killed while we looked

    def between(self, start_s: float, end_s: float) -> list[Sample]:
        return [sample for sample in self.samples if start_s <= sample.at_s < end_s]


def _look(pid: int, life: int, directory: Path) -> Sample:
    status = Path(f"/proc/{pid}/statm").read_text().split()
    return Sample(
        time.monotonic(),
        life,
        int(status[1]) * processes.PAGE_BYTES,
        len(os.listdir(f"/proc/{pid}/fd")),
        _disk_bytes(directory),
        processes.own_cpu_seconds(pid),
    )


def _disk_bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*.seg"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # compaction took it away
    return total


def slope_per_minute(samples: list[Sample]) -> float:
    """Bytes of memory a minute: the median of all slopes between two samples (Theil–Sen)."""
    # Every few samples suffice, and keep the pairs few.
    few = samples[:: max(1, len(samples) // 100)]
    slopes = [
        (b.resident_bytes - a.resident_bytes) / (b.at_s - a.at_s) for a, b in combinations(few, 2)
    ]
    return statistics.median(slopes) * 60


def growth(samples: list[Sample]) -> list[str]:
    """Say what grew in the second half; nothing if it was too short to tell."""
    begun, ended = samples[0].at_s, samples[-1].at_s
    second = [sample for sample in samples if sample.at_s > (begun + ended) / 2]
    first = [sample for sample in samples if sample.at_s <= (begun + ended) / 2]
    found: list[str] = []
    levels: list[float] = []
    for warm in warm_lives(samples):
        level = statistics.median(sample.resident_bytes for sample in warm)
        percent = slope_per_minute(warm) / level * 100
        levels.append(level)
        if warm[-1].at_s > second[0].at_s and percent > MEMORY_PERCENT_PER_MINUTE_MAX:
            found.append(f"memory grew by {percent:.1f} % a minute")
    if levels and levels[-1] > levels[0] * MEMORY_BETWEEN_LIVES_MAX:
        found.append(f"memory grew from {levels[0] / 1e6:.0f} to {levels[-1] / 1e6:.0f} MB")
    disk = [max(sample.disk_bytes for sample in half) for half in (first, second)]
    if levels and disk[1] > disk[0] * DISK_MAX:
        found.append(f"disk use grew from {disk[0] / 1e6:.0f} to {disk[1] / 1e6:.0f} MB")
    open_files = [max(sample.descriptors for sample in half) for half in (first, second)]
    if open_files[1] > open_files[0] + DESCRIPTORS_MAX:
        found.append(f"descriptors grew from {open_files[0]} to {open_files[1]}")
    return found


def warm_lives(samples: list[Sample]) -> list[list[Sample]]:
    """The samples of each life after its first minutes, where there are enough."""
    lives: dict[int, list[Sample]] = {}
    for sample in samples:
        lives.setdefault(sample.life, []).append(sample)
    warm = [[s for s in life if s.at_s - life[0].at_s > WARM_S] for life in lives.values()]
    return [life for life in warm if life and life[-1].at_s - life[0].at_s > SPAN_S]
