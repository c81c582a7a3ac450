"""The demo's story with everything measured twice: an outage of the primary, and its reports.

A pair sends, the primary is killed, the backlog takes over, the syphon brings it home. Proxies
between clients and brokers count operations by what is on the wire; the cost report must say
the same, to the operation (C1). The audit must be clean although a broker was killed, and the
timeline must tell what happened.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient
from pyspark.sql import SparkSession

from tests.spark.conftest import FORM
from tests.spark.metering_proxy import MeteringProxy
from tests.support.broker import KEY, KEY_NAME, PROJECT, Broker, form_environment
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.event_file import EventFile
from twinbus.pairing.events import (
    EntityFailedOver,
    EntityRecovered,
    Event,
    MessagesBacklogged,
    MessageSyphoned,
    PingSent,
)
from twinbus.pairing.sync import PairedServiceBusClient, Syphon
from twinbus.spark.report import making

# The SDK leaves the socket of a connection that broke to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

QUEUE = "orders"
BEFORE, DURING, AFTER = 40, 30, 20


class Side:
    """A broker that captures, seen through a proxy that counts."""

    def __init__(self, directory: Path, queues: dict[str, dict[str, object]]) -> None:
        self.capture = directory / "capture"
        capturing = ("--capture", str(self.capture))
        self.broker = Broker(directory, queues, FORM, ("--admin-port", "0", *capturing))
        self.broker.start()
        self.admin_port = self.broker.ready["ports"]["admin"]
        # A restarted broker must be found again where it was.
        self.broker.options = ("--admin-port", str(self.admin_port), *capturing)
        self.proxy = MeteringProxy(self.broker.amqp_port)

    @property
    def connection_string(self) -> str:
        direct = self.broker.connection_string
        return direct.replace(f":{self.broker.amqp_port};", f":{self.proxy.port};")

    def administration(self) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            f"Endpoint=sb://localhost:{self.admin_port};"
            f"SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}",
            connection_verify=str(self.broker.directory / "data" / "tls" / "ca.pem"),
        )

    def receive(self, count: int) -> list[str]:
        """Receive and complete so many; the receiver is closed, so that nothing stays open."""
        found: list[str] = []
        client = ServiceBusClient.from_connection_string(self.connection_string)
        with client, client.get_queue_receiver(QUEUE) as receiver:
            give_up = time.monotonic() + 60
            while len(found) < count and time.monotonic() < give_up:
                for message in receiver.receive_messages(20, max_wait_time=1):
                    if not found:
                        receiver.renew_message_lock(message)
                    receiver.complete_message(message)
                    found.append(str(message.message_id))
            receiver.peek_messages(1)
            assert receiver.receive_messages(1, max_wait_time=0.5) == []
        return found

    def kill_in_calm(self) -> None:
        """Kill it at a moment when nothing is on its way."""
        wait_until(lambda: self.proxy.meter.sends_in_flight == 0)
        self.broker.kill()

    def close(self) -> None:
        self.broker.__exit__()
        self.proxy.close()


@dataclass
class Story:
    primary: Side
    secondary: Side
    events: Path
    seen: list[Event] = field(default_factory=list)
    arrived: list[str] = field(default_factory=list)

    def count(self, kind: type) -> int:
        return sum(
            event.count if isinstance(event, MessagesBacklogged) else 1
            for event in self.seen
            if isinstance(event, kind)
        )

    def play(self) -> None:
        file = EventFile(self.events, "shop", "test")

        def on_event(event: Event) -> None:
            self.seen.append(event)
            file(event)

        options = SendAvailabilityPairedNamespaceOptions(
            secondary=self.secondary.connection_string,
            administration=self.secondary.administration(),
            backlog_queue_count=2,
            failover_interval=timedelta(0),
            ping_primary_interval=timedelta(seconds=1),
            operation_timeout=timedelta(seconds=20),
        )
        client = PairedServiceBusClient(self.primary.connection_string, options, on_event=on_event)
        with client, client.get_queue_sender(QUEUE) as sender, file:
            self._act(
                lambda name: sender.send_messages(ServiceBusMessage(b"x", message_id=name)),
                on_event,
            )

    def _act(self, send: Callable[[str], Any], on_event: Callable[[Event], None]) -> None:
        for number in range(BEFORE - 1):
            send(f"before-{number}")
        self.arrived += self.primary.receive(BEFORE - 1)
        # What was only observed, as a poll in vain, is durable with the next change.
        send(f"before-{BEFORE - 1}")
        self.primary.kill_in_calm()
        for number in range(DURING):
            send(f"during-{number}")
        self.primary.broker.start()
        wait_until(lambda: self.count(EntityRecovered) == 1)
        # Only now: messages that arrive while a pump renews its credit would make it a matter
        # of luck whether that poll was in vain, on the wire as in the broker.
        with Syphon.from_connection_strings(
            self.primary.connection_string,
            self.secondary.connection_string,
            on_event=on_event,
            administration=self.secondary.administration(),
            backlog_queue_count=2,
            syphon_poll=timedelta(seconds=2),
        ):
            wait_until(lambda: self.count(MessageSyphoned) == DURING)
            time.sleep(3)
        for number in range(AFTER):
            send(f"after-{number}")
        self.arrived += self.primary.receive(1 + DURING + AFTER)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("story")
    primary = Side(directory / "primary", {QUEUE: {"LockDuration": "PT1M"}})
    secondary = Side(directory / "secondary", {})
    try:
        told = Story(primary, secondary, directory / "events.jsonl")
        told.play()
        for side in (primary, secondary):
            side.broker.terminate(60)
        yield told
    finally:
        primary.close()
        secondary.close()


@pytest.fixture(scope="module")
def sources(story: Story) -> making.Sources:
    captures = [str(story.primary.capture), str(story.secondary.capture)]
    return making.Sources(captures, [str(story.events)])


def made(spark: SparkSession, job: str, sources: making.Sources, out: Path) -> making.Found:
    return making.write(job, making.compute(spark, job, sources), out)


def wait_until(condition: Callable[[], Any], seconds: float = 60) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.05)


def test_l2_the_story_went_as_it_should(story: Story) -> None:
    assert story.count(EntityFailedOver) == 1
    assert story.count(MessagesBacklogged) == DURING
    expected = [f"before-{n}" for n in range(BEFORE)]
    expected += [f"during-{n}" for n in range(DURING)] + [f"after-{n}" for n in range(AFTER)]
    assert sorted(story.arrived) == sorted(expected)


def test_c1_the_cost_report_is_what_was_on_the_wire(
    spark: SparkSession, story: Story, sources: making.Sources, tmp_path: Path
) -> None:
    found = made(spark, "cost", sources, tmp_path)
    reported: Counter[tuple[str, str]] = Counter()
    for row in found["operations"]:
        reported[row["entity"], row["kind"]] += row["operations"]
    counted = Counter(story.primary.proxy.counts()) + Counter(story.secondary.proxy.counts())
    assert dict(reported) == dict(counted)
    # That it is about something: the story's own figures.
    assert counted[QUEUE, "sent"] == BEFORE + DURING + AFTER
    assert counted[QUEUE, "pinged"] >= 1
    assert counted[QUEUE, "received_nothing"] >= 2
    assert (counted[QUEUE, "peeked"], counted[QUEUE, "lock_renewed"]) == (2, 2)
    backlog = [e for e in {entity for entity, _ in counted} if "x-servicebus-transfer" in e]
    assert sum(counted[entity, "sent"] for entity in backlog) == DURING
    steps = [(row["number"], row["messages"]) for row in found["syphoned"]]
    assert [number for number, _ in steps] == [1, 2, 3, 4]
    assert {messages for number, messages in steps if number in (1, 3, 4)} == {DURING}


def test_l2_the_audit_is_clean_although_a_broker_was_killed(
    spark: SparkSession, sources: making.Sources, tmp_path: Path
) -> None:
    found = made(spark, "audit", sources, tmp_path)
    assert found["violations"] == []
    assert found["verdict"][0]["verdict"] == "clean"
    assert found["verdict"][0]["accepted"] == BEFORE + 2 * DURING + AFTER
    assert making.is_clean("audit", found)
    assert '<p class="verdict good">Clean</p>' in making.page("audit", tmp_path).read_text()


def test_l2_the_timeline_tells_the_outage(
    spark: SparkSession, story: Story, sources: making.Sources, tmp_path: Path
) -> None:
    found = made(spark, "failovers", sources, tmp_path)
    (outage,) = found["outages"]
    assert (outage["pair"], outage["path"], outage["state"]) == ("shop", QUEUE, "drained")
    times = [outage[name] for name in ("last_success", "suspected", "engaged", "recovered")]
    assert times == sorted(times)
    assert outage["drained"] >= outage["engaged"]
    assert (outage["backlogged"], outage["returned"], outage["left"]) == (DURING, DURING, 0)
    assert 1 <= outage["high_water"] <= DURING
    assert outage["pings"] == story.count(PingSent)
    page = making.page("failovers", tmp_path).read_text()
    assert "<svg" in page
    assert "failed over" in page


@pytest.mark.parametrize("job", ["latency", "dead-letters"])
def test_l2_the_other_reports_are_made_of_the_same(
    spark: SparkSession, sources: making.Sources, tmp_path: Path, job: str
) -> None:
    found = made(spark, job, sources, tmp_path)
    if job == "latency":
        messages = {
            row["measure"]: row["messages"] for row in found["entities"] if row["entity"] == QUEUE
        }
        assert set(messages.values()) == {BEFORE + DURING + AFTER}
    else:
        assert found["groups"] == []
    assert making.page(job, tmp_path).read_text().startswith("<!doctype html>")


def test_l5_the_demo_itself_works_without_spark() -> None:
    """It says what to install for the reports; nothing else of it needs them."""
    program = (
        "import importlib.util as util, runpy, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'pyspark' else find(name, *more)\n"
        "sys.argv = ['demo', '--rate', '20', '--quiet', '1', '--outage', '1']\n"
        "runpy.run_path('examples/demo.py', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=form_environment(FORM), cwd=PROJECT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "twinbus[spark]" in done.stdout
