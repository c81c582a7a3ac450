"""L1 against a live broker: everything it does is captured once, whoever is killed meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver

from tests.capture.captured import assert_complete, read_rows
from tests.capture.naive import expand
from tests.support.broker import PROJECT, Broker, form_environment
from twinbus.capture.files import held, list_files
from twinbus.client import Client
from twinbus.journal.tail import last_batch

FORM = os.environ.get("TWINBUS_FORM")
CONFIG = """
[capture]
directory = "{root}"
roll_seconds = 0.3

[namespaces.shop.queues.orders]
max_delivery_count = 3
[namespaces.shop.queues.once]
requires_duplicate_detection = true
[namespaces.shop.queues.carts]
requires_session = true
[namespaces.shop.topics.news.subscriptions.all]
[namespaces.shop.topics.news.subscriptions.some.rules.big]
filter = "sql"
expression = "size > 5"
"""


class Workload:
    """A client that uses everything a little, and takes every failure for a broker's death."""

    def __init__(self, connection_string: str, seed: int) -> None:
        self._connection_string = connection_string
        self._random = Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0

    def __enter__(self) -> Workload:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def await_rounds(self, count: int, seconds_max: float = 90.0) -> None:
        """Wait until it has done a little of everything, however slow the machine is."""
        deadline = time.monotonic() + seconds_max
        while self.rounds < count:
            assert time.monotonic() < deadline, f"only {self.rounds} rounds"
            time.sleep(0.05)

    def _run(self) -> None:
        while not self._stopping.is_set():
            # Whatever the SDK makes of a killed broker: the next round tries again.
            with contextlib.suppress(Exception):
                client = ServiceBusClient.from_connection_string(
                    self._connection_string, retry_total=0
                )
                with client:
                    while not self._stopping.is_set():
                        self._round(client)
                        self.rounds += 1
            time.sleep(0.05)

    def _round(self, client: ServiceBusClient) -> None:
        random = self._random
        with client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(random.randbytes(50)) for _ in range(20)])
            for seconds in (0.2, 3600.0):
                sender.schedule_messages(ServiceBusMessage("later"), _soon(seconds))
        with client.get_queue_sender("once") as sender:
            sender.send_messages(
                [ServiceBusMessage("x", message_id=str(random.randrange(30))) for _ in range(5)]
            )
        with client.get_queue_sender("carts") as sender:
            sender.send_messages(ServiceBusMessage("x", session_id=str(random.randrange(3))))
        with client.get_topic_sender("news") as sender:
            sizes = [ServiceBusMessage("x", application_properties={"size": n}) for n in (1, 9)]
            sender.send_messages(sizes)
        self._reserve()
        with client.get_queue_receiver("orders") as receiver:
            receiver.peek_messages(3)
            self._receive(receiver)
        with client.get_subscription_receiver("news", "some") as receiver:
            self._receive(receiver)

    def _reserve(self) -> None:
        """As a Spark query does: set a batch aside, begin it, then be done with it or stop."""
        consumer = self._random.randbytes(4).hex()
        epoch = {"consumer": consumer, "epoch": 1}
        with Client.connect(self._connection_string) as own:
            own.request("once", "twinbus:reserve", epoch | {"message-count": 4})
            own.request("once", "twinbus:attempt", epoch | {"max-attempts": 3})
            if self._random.random() < 0.5:
                own.request("once", "twinbus:settle-upto", epoch)
            else:
                own.request("once", "twinbus:release", {"consumer": consumer})

    def _receive(self, receiver: ServiceBusReceiver) -> None:
        for message in receiver.receive_messages(15, max_wait_time=0.2):
            choice = self._random.random()
            if choice < 0.6:
                receiver.complete_message(message)
            elif choice < 0.75:
                receiver.abandon_message(message)
            elif choice < 0.9:
                receiver.dead_letter_message(message, reason="tired", error_description="of it")
            else:
                receiver.defer_message(message)


def _soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "capture"


@pytest.fixture
def broker(tmp_path: Path, root: Path) -> Iterator[Broker]:
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG.format(root=root))
    options = ("--admin-port", "off", "--config", str(config))
    live = Broker(tmp_path / "broker", {}, FORM, options)
    yield live
    live.kill()


def journal_of(broker: Broker) -> Path:
    return broker.directory / "data" / "journal"


def last_lsn(broker: Broker) -> int:
    batch = last_batch(journal_of(broker), 1)
    assert batch is not None
    return batch.next_lsn - 1


def kill_capture(root: Path) -> None:
    """End the capturing process as a crash would; its process id is in its lock file."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        os.kill(int((root / "_lock").read_text()), signal.SIGKILL)


def await_files(root: Path, count: int, seconds_max: float = 30.0) -> None:
    deadline = time.monotonic() + seconds_max
    while len(list_files(root)) < count:
        assert time.monotonic() < deadline, "nothing is captured"
        time.sleep(0.05)


def run_with_kills(broker: Broker, root: Path, kills: int, seed: int) -> None:
    random = Random(seed)
    broker.start()
    with Workload(broker.connection_string, seed) as workload:
        for number in range(kills):
            await_files(root, number // 2 + 1)
            time.sleep(random.uniform(0.0, 0.7))
            if number % 3 == 2:
                broker.kill()
                broker.start()
            else:
                kill_capture(root)
        workload.await_rounds(3)
    assert broker.terminate() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "seed"), [(6, 1), pytest.param(60, 2, marks=pytest.mark.long)])
def test_l1_nothing_is_lost_or_repeated_whoever_is_killed(
    kills: int, seed: int, broker: Broker, root: Path
) -> None:
    """After the orderly stop all of the journal is there, and equals what it says."""
    run_with_kills(broker, root, kills, seed)
    assert_complete(root, 1, last_lsn(broker))
    rows = read_rows(root)
    assert rows == expand(journal_of(broker))
    ops = Counter(row["op"] for row in rows)
    expected = {
        "enqueued", "scheduled", "activated", "completed", "dead_lettered", "deferred",
        "requeued", "sent", "delivered", "settled", "managed", "peeked", "present", "started",
        "remembered", "duplicate_dropped", "sequence_reached", "entity_put", "reserved",
        "reservation_attempted",
    }  # fmt: skip
    assert expected <= set(ops)
    assert {row["entity"] for row in rows if row["op"] == "enqueued"} >= {
        "orders", "orders/$DeadLetterQueue", "once", "carts", "news/Subscriptions/all",
        "news/Subscriptions/some",
    }  # fmt: skip


def test_l1_a_capture_follows_while_the_broker_runs(broker: Broker, root: Path) -> None:
    broker.start()
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("x", message_id="seen"))
        deadline = time.monotonic() + 30
        while "seen" not in [row.get("message_id") for row in read_or_none(root)]:
            assert time.monotonic() < deadline
            # A durable batch is one that another follows.
            sender.send_messages(ServiceBusMessage("y"))
            time.sleep(0.1)
    broker.kill()
    # The capturing process does not outlive its broker: the root is free again.
    with held(root, wait_s=30):
        pass


def read_or_none(root: Path) -> list[dict[str, Any]]:
    return read_rows(root) if list_files(root) else []


def ask(broker: Broker, path: str) -> str:
    url = f"http://127.0.0.1:{broker.ready['ports']['admin']}{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.status == 200
        text: str = answer.read().decode()
        return text


def test_l1_a_capture_that_cannot_go_on_shows_where_people_look(broker: Broker, root: Path) -> None:
    """The broker serves, so its health is 200 all the while; with room the warning ends."""
    root.write_text("a file where the directory should be")
    broker.options = (*broker.options[2:], "--admin-port", "0")
    broker.start()
    deadline = time.monotonic() + 60
    while "warning" not in (health := json.loads(ask(broker, "/health"))):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert health["status"] == "healthy"
    assert "capture has failed" in health["warning"]
    metrics = ask(broker, "/metrics")
    assert "\ntwinbus_capture_up 0.0\n" in metrics
    lag = re.search(r"^twinbus_capture_lag_lsns (\S+)$", metrics, re.MULTILINE)
    assert lag is not None
    assert float(lag[1]) > 0
    root.unlink()
    while "\ntwinbus_capture_up 1.0\n" not in ask(broker, "/metrics"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert json.loads(ask(broker, "/health")) == {"status": "healthy"}


# --- the commands ---------------------------------------------------------------------


def twinbus(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "twinbus", "capture", *map(str, arguments)]
    return subprocess.run(
        command, env=form_environment(FORM), cwd=PROJECT, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


def test_the_commands_capture_merge_and_tell(tmp_path: Path) -> None:
    """A broker that never captured: what its journal has can still be had."""
    with Broker(tmp_path / "broker", {"orders": {}}, FORM) as broker:
        client = ServiceBusClient.from_connection_string(broker.connection_string)
        with client, client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage("x") for _ in range(10)])
    data, root, merged = tmp_path / "broker" / "data", tmp_path / "root", tmp_path / "merged"
    answer = twinbus("run", data, root, "--once")
    assert answer.returncode == 0, answer.stderr
    last = last_lsn(broker)
    assert_complete(root, 1, last)
    assert read_rows(root) == expand(data / "journal")
    answer = twinbus("compact", root, merged, "--json")
    assert json.loads(answer.stdout) == {"files": 1, "last_lsn": last}
    answer = twinbus("status", merged, "--json")
    found = json.loads(answer.stdout)
    assert (found["first_lsn"], found["last_lsn"], found["missing_lsns"]) == (1, last, [])


def test_commands_say_what_is_wrong(tmp_path: Path) -> None:
    answer = twinbus("run", tmp_path, tmp_path / "root", "--once")
    assert answer.returncode == 1
    assert "no data directory" in answer.stderr
    answer = twinbus("status", tmp_path)
    assert answer.returncode == 1
    assert "holds no captured files" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_without_pyarrow_the_way_out_is_told(tmp_path: Path) -> None:
    """Only the libraries are hidden; the command is the real one."""
    code = (
        "import importlib.util as u, sys; found = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'pyarrow' else found(name, *a);"
        "from twinbus.cli.main import app; app(sys.argv[1:])"
    )
    for arguments in (
        ("capture", "status", str(tmp_path)),
        ("serve", "--data-dir", str(tmp_path / "data"), "--capture", str(tmp_path / "root")),
    ):
        answer = subprocess.run(
            [sys.executable, "-c", code, *arguments], env=form_environment(FORM), cwd=PROJECT,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert answer.returncode == 1
        assert 'pip install "twinbus[capture]"' in answer.stderr
