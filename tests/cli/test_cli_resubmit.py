"""Bulk resubmit, killed in the middle and run again: each message once, none left behind."""

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient

from tests.cli.command_line import Warm, command_line
from tests.support.broker import Broker

QUEUE = "orders"
MakeBroker = Callable[..., Broker]


def held(broker: Broker, state: str) -> int:
    """How many messages the queue holds in a state, by the broker's own metrics."""
    url = f"http://localhost:{broker.ready['ports']['admin']}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    wanted = f'twinbus_messages{{entity="{QUEUE}",namespace="sbemulatorns",state="{state}"}} '
    (line,) = (line for line in lines if line.startswith(wanted))
    return int(float(line.removeprefix(wanted)))


def kill_messages(broker: Broker, count: int) -> None:
    """Let every message die: one delivery is allowed, and the connection is lost with it."""
    while held(broker, "dead_letter") < count:
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            client.get_queue_receiver(QUEUE).receive_messages(5000, max_wait_time=5)


def resubmit_killed_in_the_middle(
    make_broker: MakeBroker, warm: Warm, file: Path, count: int
) -> None:
    broker = make_broker({QUEUE: {"LockDuration": "PT5M", "MaxDeliveryCount": 1}})
    run = command_line(broker, warm)
    lines = (json.dumps({"message_id": str(n), "body": f"body {n}"}) for n in range(count))
    run("send", QUEUE, "--lines", "-", stdin="\n".join(lines))
    kill_messages(broker, count)
    assert held(broker, "active") == 0

    command = run.start("dead-letter", "resubmit", QUEUE)
    deadline = time.monotonic() + 60
    while held(broker, "active") < count // 10:
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline
    command.kill()
    command.communicate()
    # The broker goes the same way, so that what it answered must be on disk.
    left = held(broker, "dead_letter")
    broker.kill()
    broker.start()
    assert 0 < left < count, "it was not killed in the middle"
    assert held(broker, "dead_letter") == left
    assert held(broker, "active") == count - left

    again = run("dead-letter", "resubmit", QUEUE, "--json").json
    assert again == {"resubmitted": left, "atomic": True}
    assert held(broker, "dead_letter") == 0
    run("export", QUEUE, str(file))
    found = Counter(json.loads(line)["message_id"] for line in file.read_text().splitlines())
    assert found == Counter(str(n) for n in range(count))


@pytest.mark.slow
def test_resubmit_killed_in_the_middle(make_broker: MakeBroker, warm: Warm, tmp_path: Path) -> None:
    resubmit_killed_in_the_middle(make_broker, warm, tmp_path / "all.jsonl", 5_000)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_resubmit_of_a_hundred_thousand_killed_in_the_middle(
    make_broker: MakeBroker, warm: Warm, tmp_path: Path
) -> None:
    resubmit_killed_in_the_middle(make_broker, warm, tmp_path / "all.jsonl", 100_000)
