"""L3: driver, JVM and workers killed at every point of a batch, the broker killed, a receiver
that competes: restarted from the checkpoint nothing is lost, and nothing comes twice to a
target with duplicate detection.

One driver runs both modes, each on queues of its own, and is killed where one of them comes
to a chosen point; the other one is then wherever it happens to be. The longer form kills each
mode at each point, and at random.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.conftest import FORM
from tests.spark.queues import peeked_ids
from tests.spark.streams.ledger import Competitor, check
from tests.spark.streams.points import POINTS
from tests.spark.streams.run import BATCH, MODES, Run, queues
from tests.support.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker", queues(), FORM) as live:
        yield live
    print(live.log)


def competing(stack: ExitStack, run: Run) -> dict[str, Competitor]:
    run.send()
    found = {mode: stack.enter_context(Competitor(run.broker, mode)) for mode in MODES}
    for competitor in found.values():
        competitor.wait_for_one()
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_l3_killed_in_planning_in_the_sink_and_around_commit(
    broker: Broker, tmp_path: Path
) -> None:
    """The normal form: three kills, and a receiver that takes messages of the source as well."""
    run = Run(broker, tmp_path)
    with ExitStack() as stack:
        competitors = competing(stack, run)
        for point in ("reserve:set_aside", "defer:sent", "reserve:settled"):
            run.send()
            assert run.go(point) == -signal.SIGKILL, f"never came to {point}:\n{run.said}"
        run.finish(competitors)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_l3_killed_at_every_point(broker: Broker, tmp_path: Path, mode: str) -> None:
    run = Run(broker, tmp_path, (mode,))
    for point in POINTS:
        run.send()
        chosen = f"{mode}:{point}"
        assert run.go(chosen) == -signal.SIGKILL, f"never came to {chosen}:\n{run.said}"
    run.finish()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_l3_killed_at_random_with_the_broker(broker: Broker, tmp_path: Path) -> None:
    dice = random.Random(5)
    run = Run(broker, tmp_path)
    with ExitStack() as stack:
        competitors = competing(stack, run)
        for turn in range(8):
            run.send()
            run.go_once(kill_after_s=dice.uniform(8, 25))
            if turn % 2:
                broker.kill()
                broker.start()
        run.finish(competitors)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["broker", "workers"])
def test_l3_killed_under_a_running_query(
    spark: SparkSession, broker: Broker, tmp_path: Path, victim: str
) -> None:
    """The query waits until the broker is back, or fails and is begun again."""
    run = Run(broker, tmp_path, ("reserve",))
    run.send(10 * BATCH)
    (copy,) = run.copies
    with Competitor(broker, "reserve") as competitor:
        for wanted in (1, 5 * BATCH):
            query = copy.start(spark)
            while query.isActive and _copied(broker) < wanted:
                time.sleep(0.02)
            if victim == "broker":
                broker.kill()
                broker.start()
            else:
                _kill_workers()
            with suppress(StreamingQueryException):
                query.awaitTermination()
        copy.start(spark).awaitTermination()
    check(run.sent["reserve"], peeked_ids(broker, "reserve-copy"), competitor)
    assert peeked_ids(broker, "reserve") == []


def _copied(broker: Broker) -> int:
    return len(peeked_ids(broker, "reserve-copy"))


def _kill_workers() -> None:
    """SIGKILL for the Python workers that run tasks of this process's session."""
    running = {pid: (parent, line) for pid, parent, line in _processes()}
    for pid, (parent, line) in running.items():
        # Workers are forks of a daemon, which is a child of the JVM, which is ours.
        if line.endswith(b"pyspark.daemon\0pyspark.worker\0") and running[parent][1] == line:
            java = running[running[parent][0]][0]
            if java == os.getpid():
                os.kill(pid, signal.SIGKILL)


def _processes() -> Iterator[tuple[int, int, bytes]]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit():
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry.name), int(fields[1]), (entry / "cmdline").read_bytes()
