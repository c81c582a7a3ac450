"""Goal: what happens to the broker's process costs nobody an acknowledged message.

Method: official SDK clients send and receive while the process is killed or stopped; the
ledger compares what they were told with what comes out at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.faults.ledger import Traffic
from tests.support.broker import KEY, PROJECT, Broker, form_environment

# The SDK leaves the socket of a connection that broke under it to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def kill_rounds(broker: Broker, rounds: int) -> None:
    traffic = Traffic(broker, receivers=0)
    with traffic:
        for _ in range(rounds):
            traffic.wait_for(50)
            broker.kill()
            broker.start()
        traffic.wait_for(50)
    # Without a receiver no completion is in doubt: every single one must be there.
    traffic.check()


def test_kill_9_loses_nothing_acknowledged_S1(broker: Broker) -> None:
    kill_rounds(broker, 3)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_500_times_kill_9_loses_nothing_acknowledged_S1(broker: Broker) -> None:
    kill_rounds(broker, 500)


def test_kill_9_brings_nothing_settled_back_R4(broker: Broker) -> None:
    with Traffic(broker) as traffic:
        for _ in range(2):
            traffic.wait_for(50)
            broker.kill()
            broker.start()
        traffic.wait_for(50)
    assert traffic.completed
    traffic.check()


def test_a_stopped_process_goes_on_where_it_was_S1(broker: Broker) -> None:
    with Traffic(broker) as traffic:
        for seconds in (0.5, 3):
            traffic.wait_for(50)
            os.kill(broker.pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(broker.pid, signal.SIGCONT)
        traffic.wait_for(50)
    traffic.check()


def test_a_second_broker_on_the_same_directory_is_refused(broker: Broker) -> None:
    """It says why and touches nothing; the first one does not notice."""
    with Traffic(broker) as traffic:
        traffic.wait_for(20)
        command = [sys.executable, "-m", "twinbus", "serve", "--json", "--amqp-port", "0"]
        command += ["--amqps-port", "off", "--admin-port", "off"]
        command += ["--data-dir", str(broker.directory / "data")]
        environment = form_environment(broker.form) | {"TWINBUS_SAS_KEY": KEY}
        second = subprocess.run(
            command, env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=30
        )
        assert second.returncode != 0
        assert f"process {broker.pid}" in second.stderr + second.stdout
        traffic.wait_for(20)
    traffic.check()
