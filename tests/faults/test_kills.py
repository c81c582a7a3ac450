"""Goal: whenever the broker is killed, nothing acknowledged is lost and nothing settled returns.

Method: official SDK clients use queues in every way; `kill -9` at a random moment; the broker
starts again on the same data and the clients go on. One run is one kill. Ledgers say where each
message may be: an operation without an answer leaves two places, an answered one leaves one.

Receive-and-delete is judged by R1: a message is settled when it is put on the wire. After a
crash it may come again; it may be missing only if a receiver had asked for it on a connection
that broke, so no more are missing than all of those had credit for.

TWINBUS_KILLS sets the number of runs of the long form, TWINBUS_KILLS_SEED the dice.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import FORM
from tests.faults.crew import KINDS, QUEUES, Crew
from tests.support.broker import Broker

# The SDK leaves the socket of a connection that broke under it to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KILLS = 12
KILLS_LONG = int(os.environ.get("TWINBUS_KILLS", "500"))
# How many runs between two comparisons of everything.
_CHAPTER = 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, QUEUES, FORM) as live:
        yield live


def one_run(crew: Crew, dice: random.Random) -> bool:
    """Kill the broker in the middle of everything; tell whether that cut anything off."""
    before = crew.cut_off.total()
    # Clients take their time to connect: each kind in turn is in full swing.
    crew.wait_for(dice.choice(KINDS), dice.randrange(1, 4))
    time.sleep(dice.uniform(0, 0.02))
    crew.crash()
    return crew.cut_off.total() > before


def kill_runs(broker: Broker, runs: int) -> None:
    seed = int(os.environ.get("TWINBUS_KILLS_SEED", random.randrange(2**32)))
    print(f"TWINBUS_KILLS_SEED={seed}")
    dice = random.Random(seed)
    crew = Crew(broker, seed)
    cut = 0
    for first in range(0, runs, _CHAPTER):
        count = min(_CHAPTER, runs - first)
        crew.start()
        try:
            cut += sum(one_run(crew, dice) for _ in range(count))
        finally:
            crew.stop()
        print(f"{first + count} kills, {cut} in the middle of something")
        print(f"answered: {dict(crew.answered)}\ncut off: {dict(crew.cut_off)}")
        print(f"lost on the wire of receive-and-delete: {crew.check()}")
    crew.empty()
    assert cut > runs * 0.8, f"only {cut} of {runs} kills hit anything"


def test_kill_9_loses_nothing_acknowledged_and_returns_nothing_settled_S1_R4_R10(
    broker: Broker,
) -> None:
    kill_runs(broker, KILLS)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_500_times_kill_9_S1_R4_R10(broker: Broker) -> None:
    kill_runs(broker, KILLS_LONG)
