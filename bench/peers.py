"""Measures every peer that this machine has, in turns, so that noise hits all alike.

Enters: how many messages and runs. Leaves: samples (peer, size, mode → messages/s and CPU
per message). It starts each peer afresh for each run and never two at once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial

from bench import limit, processes, rabbitmq, twinbus
from bench.clients import Client, Endpoint, Work

SIZES = (1024, 200)
MODES = ("send", "receive", "both", "lone")
WARM_UP = 2000
# One awaited send at a time is bound by the disk's latency: fewer tell as much.
LONE_SHARE = 50
APPEND = "raw append"


@dataclass(frozen=True)
class Sample:
    """One phase of one run: what a message cost."""

    peer: str
    size_bytes: int
    mode: str
    messages_per_second: float
    cpu_us: float
    acknowledged_p50_ms: float = 0.0
    acknowledged_p99_ms: float = 0.0


@dataclass(frozen=True)
class Peer:
    name: str
    running: Callable[[], AbstractContextManager[Endpoint]]


def peers_present(forms: list[str]) -> list[Peer]:
    found = [Peer(f"twinbus {form}", partial(twinbus.running, form)) for form in forms]
    if rabbitmq.is_installed():
        found += [
            Peer(f"rabbitmq {kind}", partial(rabbitmq.running, kind))
            for kind in ("classic", "quorum")
        ]
    return found


def measure(client: Client, peer: Peer, count: int) -> Iterable[Sample]:
    """One run of one peer: every size and mode, the queue empty before and after each."""
    with peer.running() as endpoint:
        for mode in ("send", "receive"):
            client.run(endpoint, Work(mode, WARM_UP, SIZES[0]))
        for size_bytes in SIZES:
            for mode in MODES:
                yield phase(client, peer.name, endpoint, mode, count, size_bytes)
            lone = Work("receive", count // LONE_SHARE, size_bytes)
            client.run(endpoint, lone)


def measure_append(count: int) -> Iterable[Sample]:
    for size_bytes in SIZES:
        for mode in ("send", "lone"):
            work = _work(mode, count, size_bytes)
            seconds, cpu = limit.append(work)
            yield Sample(APPEND, size_bytes, mode, work.count / seconds, cpu / work.count * 1e6)


def _work(mode: str, count: int, size_bytes: int) -> Work:
    if mode == "lone":
        return Work(mode, count // LONE_SHARE, size_bytes, window=1)
    return Work(mode, count, size_bytes)


def phase(
    client: Client, name: str, endpoint: Endpoint, mode: str, count: int, size_bytes: int
) -> Sample:
    """Do one piece of work, and see what it cost the broker."""
    work = _work(mode, count, size_bytes)
    before = processes.cpu_seconds(endpoint.pid)
    done = client.run(endpoint, work)
    # What the broker still does for these messages (confirms to disk, sweeping) is theirs.
    time.sleep(0.2)
    cpu = processes.cpu_seconds(endpoint.pid) - before
    return Sample(
        name,
        size_bytes,
        mode,
        done.count / done.seconds,
        cpu / done.count * 1e6,
        done.acknowledged_ms.get("p50", 0.0),
        done.acknowledged_ms.get("p99", 0.0),
    )


def medians(samples: list[Sample]) -> list[Sample]:
    """One sample per peer, size and mode: the median of each figure over the runs."""
    groups: dict[tuple[str, int, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.peer, sample.size_bytes, sample.mode), []).append(sample)
    figures = ("messages_per_second", "cpu_us", "acknowledged_p50_ms", "acknowledged_p99_ms")
    return [
        Sample(
            *key, *(statistics.median(asdict(one)[figure] for one in group) for figure in figures)
        )
        for key, group in groups.items()
    ]
