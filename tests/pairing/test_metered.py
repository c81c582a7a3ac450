"""What the broker counts of a pair: pings that nobody ever receives, and an idle syphon's calls."""

import os
import re
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusSubQueue

from tests.pairing.live import Side, wait_until
from twinbus.pairing.names import backlog_queue_name
from twinbus.pairing.rewrite import ping
from twinbus.pairing.sync import Syphon

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

POLL_S = 2


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path, os.environ.get("TWINBUS_FORM"))
    yield side
    side.close()


def metered(side: Side, metric: str) -> dict[str, float]:
    """A counter of `/metrics`, by entity."""
    port = side.broker.ready["ports"]["admin"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    pattern = rf'^twinbus_{metric}_total{{entity="([^"]*)",namespace="[^"]*"}} (\S+)$'
    return {entity: float(value) for entity, value in re.findall(pattern, text, re.MULTILINE)}


def test_p10_a_ping_is_delivered_by_no_road_and_is_metered(side: Side) -> None:
    """P10: queue, session queue, topic, forwarding, and each of their dead-letter queues."""
    admin = side.admin
    admin.create_queue("plain", dead_lettering_on_message_expiration=True)
    admin.create_queue("target")
    admin.create_queue("forwards", forward_to="target")
    admin.create_queue("sessions", requires_session=True)
    admin.create_topic("events")
    admin.create_subscription("events", "all")
    sent_to = ("plain", "forwards", "sessions", "events")
    with side.client() as client:
        for name in sent_to:
            with client.get_queue_sender(name) as sender:
                sender.send_messages(ping("some session"))
        time.sleep(1.2)  # its time to live passes: it must not turn up as a dead letter either
        for name in ("plain", "target"):
            _assert_empty(client, name)
        with client.get_subscription_receiver("events", "all") as receiver:
            assert receiver.peek_messages(5) == []
            assert receiver.receive_messages(5, max_wait_time=0.5) == []
        with client.get_queue_receiver("sessions", session_id="some session") as receiver:
            assert receiver.receive_messages(5, max_wait_time=0.5) == []
    for queue in ("plain", "target", "forwards", "sessions"):
        assert side.total(queue) == 0
    assert {name: metered(side, "pings")[name] for name in sent_to} == dict.fromkeys(sent_to, 1)
    assert {name: metered(side, "messages_in")[name] for name in sent_to} == dict.fromkeys(
        sent_to, 1
    )


def _assert_empty(client: ServiceBusClient, queue: str) -> None:
    for sub_queue in (
        None,
        ServiceBusSubQueue.DEAD_LETTER,
        ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
    ):
        with client.get_queue_receiver(queue, sub_queue=sub_queue) as receiver:
            assert receiver.peek_messages(5) == []
            assert receiver.receive_messages(5, max_wait_time=0.5) == []


def test_p11_c3_the_broker_counts_an_idle_syphons_calls(side: Side) -> None:
    """P11: 10 queues and a poll of 15 minutes make 40 calls an hour; here a poll takes 2 s."""
    queues = [backlog_queue_name("localhost", index) for index in range(10)]
    for queue in queues:
        side.admin.create_queue(queue)

    def calls() -> float:
        return sum(metered(side, "receive_calls")[queue] for queue in queues)

    text = side.connection_string()
    with Syphon.from_connection_strings(text, text, syphon_poll=timedelta(seconds=POLL_S)):
        wait_until(lambda: calls() >= 10)
        before, began = calls(), time.monotonic()
        wait_until(lambda: calls() - before >= 40, 30)
        took = time.monotonic() - began
    # Forty calls are four polls of ten queues, whatever a poll lasts.
    assert 3.5 * POLL_S <= took <= 6 * POLL_S
