"""Nothing that was sent is lost when brokers are killed (P6, P7, P11, R10).

Senders in several processes, a syphon in another; the primary is killed and restarted at
random moments, the secondary once. Every send that returned success must be in the primary
at the end, and the backlog must be empty. Duplicates are allowed, and counted.
"""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.pairing.live import Side, wait_until
from twinbus.pairing.names import backlog_queue_name

# The SDK leaves the socket of a connection that broke to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PROJECT = Path(__file__).resolve().parents[2]
BACKLOG_QUEUES = 4


class Senders:
    """One process of senders."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pairing.worker"],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(orders) + "\n")
        self._process.stdin.flush()

    def wait_until_paired(self) -> None:
        """Wait for its backlog queues: what a broker that dies refuses then is never made (P1)."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "paired\n"

    def finish(self) -> dict[str, Any]:
        said, _ = self._process.communicate(timeout=60)
        answer: dict[str, Any] = json.loads(said)
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def syphon(near: Side, far: Side) -> Iterator[None]:
    command = [sys.executable, "-m", "twinbus", "syphon", "--backlog-queues", str(BACKLOG_QUEUES)]
    command += ["--retry", "1", "--primary", near.connection_string()]
    command += ["--secondary", far.connection_string()]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def torment(near: Side, far: Side, dice: random.Random, cycles: int) -> None:
    """Kill and restart the primary again and again, and the secondary once in the middle."""
    for cycle in range(cycles):
        time.sleep(dice.uniform(0.5, 2.5))
        near.broker.kill()
        time.sleep(dice.uniform(0.5, 3))
        if cycle == cycles // 2:
            far.broker.kill()
            far.broker.start()
        near.broker.start()


def run(near: Side, far: Side, processes: int, senders: int, cycles: int, pause_s: float) -> None:
    queue = near.new_queue(max_size_in_megabytes=1024)
    seed = random.randrange(2**32)
    orders = {
        "primary": near.connection_string(),
        "secondary": far.connection_string(),
        "administration": far.admin_string,
        "ca": far.ca,
        "queue": queue,
        "senders": senders,
        "backlog_queues": BACKLOG_QUEUES,
        "pause_s": pause_s,
    }
    with ExitStack() as stack:
        workers = []
        for number in range(processes):
            own = {"name": f"p{number}", "failover_s": 0 if number % 2 else 0.5}
            worker = Senders(orders | own)
            stack.callback(worker.kill)
            workers.append(worker)
        for worker in workers:
            worker.wait_until_paired()
        stack.enter_context(syphon(near, far))
        torment(near, far, random.Random(seed), cycles)
        time.sleep(2)
        answers = [worker.finish() for worker in workers]
        names = [backlog_queue_name("localhost", index) for index in range(BACKLOG_QUEUES)]
        wait_until(lambda: all(far.total(name) == 0 for name in names), 120)
    sent = [message_id for answer in answers for message_id in answer["sent"]]
    arrived = Counter(
        str(message.message_id) for message in near.receive(queue, near.count(queue), 120)
    )
    print(
        f"seed {seed}: {len(sent)} sent, {sum(answer['failures'] for answer in answers)} sends "
        f"failed, {sum(arrived.values()) - len(arrived)} duplicates, longest send "
        f"{max(answer['longest_s'] for answer in answers):.1f} s"
    )
    assert len(sent) > processes * senders
    assert set(sent) - arrived.keys() == set(), f"lost, with seed {seed}"


def test_nothing_is_lost_when_brokers_are_killed(sides: tuple[Side, Side]) -> None:
    run(*sides, processes=2, senders=4, cycles=1, pause_s=0.02)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_is_lost_in_the_long_run(sides: tuple[Side, Side]) -> None:
    run(*sides, processes=5, senders=10, cycles=10, pause_s=0.05)
