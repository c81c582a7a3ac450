"""What a live broker writes down of its clients: read from its journal, told by the SDK's calls."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from struct import unpack

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.management import (
    ServiceBusAdministrationClient,
    SqlRuleFilter,
)

from tests.compat import test_kill
from tests.support.broker import KEY, KEY_NAME, Broker
from tests.support.raw_amqp import RawReceiver
from twinbus.core import names
from twinbus.engine import observations, records
from twinbus.engine.observations import Observation
from twinbus.journal import read_segments
from twinbus.pairing.rewrite import ping

FORM = os.environ.get("TWINBUS_FORM")
MODULE = "tests.support.observing_broker"
QUEUES: dict[str, dict[str, object]] = {
    "q": {"LockDuration": "PT5M"},
    "unique": {"RequiresDuplicateDetection": True},
    "brief": {"LockDuration": "PT5S"},
    "idle": {},
}
WHAT = {
    value: name
    for name, value in vars(observations).items()
    if name.isupper() and isinstance(value, int) and name != "OBSERVED"
}


@pytest.fixture
def observing(tmp_path: Path) -> Iterator[Broker]:
    options = ("--admin-port", "0")
    with Broker(tmp_path, QUEUES, FORM, options, module=MODULE) as live:
        yield live
    print(live.log)


class Told:
    """A journal's observations, by kind and entity; and how its messages came and went."""

    def __init__(self, broker: Broker) -> None:
        self.observations: list[tuple[str, Observation]] = []
        #: Enqueued and first delivered time, and size, of each message that left.
        self.settled: list[tuple[int, int, int]] = []
        self.placed = 0
        entities: dict[int, str] = {0: ""}
        for _, _, _, record in read_segments(broker.directory / "data" / "journal"):
            if record[0] == records.ENTITY_PUT:
                number, _, body = records.read_entity_put(record)
                given = json.loads(body)["description"]
                path = given["name"]
                if "topic" in given:
                    path = names.subscription_path(given["topic"], path)
                entities[number] = path
            elif record[0] == records.OBSERVED:
                seen = Observation(record)
                path = names.Address(entities[seen.stream >> 2], seen.stream & 3).path
                self.observations.append((path, seen))
            elif record[0] == records.PLACED:
                self.placed += 1
            elif record[0] == records.SETTLED:
                self._take_settled(record)

    def _take_settled(self, record: bytes) -> None:
        _, _, count, _ = records.read_settled(record)
        columns = records.read_settled_columns(record)
        assert columns is not None
        forms = (f"<{count}q", f"<{count}q", f"<{count}I")
        enqueued, delivered, sizes = (
            unpack(form, column) for form, column in zip(forms, columns, strict=True)
        )
        self.settled += zip(enqueued, delivered, sizes, strict=True)

    def counts(self, *entities: str) -> dict[str, dict[str, int]]:
        """How much of each kind, by entity; the broker's own kinds left out."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for path, seen in self.observations:
            path = path.casefold()
            if path in entities and seen.what != observations.PRESENT:
                found[path][WHAT[seen.what]] += seen.count
        return {path: dict(counted) for path, counted in found.items()}

    def of(self, what: int) -> list[Observation]:
        return [seen for _, seen in self.observations if seen.what == what]


def administration(broker: Broker) -> ServiceBusAdministrationClient:
    text = (
        f"Endpoint=sb://localhost:{broker.ready['ports']['admin']};"
        f"SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"
    )
    ca = str(broker.directory / "data" / "tls" / "ca.pem")
    return ServiceBusAdministrationClient.from_connection_string(text, connection_verify=ca)


def client_of(broker: Broker) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.connection_string)


def test_c1_l1_every_call_of_the_sdk_is_observed_once(observing: Broker) -> None:
    """C1: each kind of operation, with its number, on its entity and sub-queue."""
    with administration(observing) as admin:
        admin.create_topic("events")
        admin.create_subscription(
            "events", "picky", dead_lettering_on_filter_evaluation_exceptions=False
        )
        admin.create_rule("events", "picky", "broken", filter=SqlRuleFilter("10 / n > 1"))
    with client_of(observing) as client, client.get_queue_receiver("brief") as slow:
        send_everything(client)
        assert len(slow.receive_messages(1)) == 1
        began = time.monotonic()
        receive_everything(client)
        # The lock runs out while its receiver is still there.
        time.sleep(max(0.0, 5.5 - (time.monotonic() - began)))
    observing.terminate()
    told = Told(observing)
    wanted = {
        "q": {
            "SENT": 8, "PINGED": 1, "DELIVERED": 7, "SETTLED": 5, "PEEKED": 2, "LOCK_RENEWED": 1,
            "MANAGED": 3,
        },
        "q/$deadletterqueue": {"DELIVERED": 1, "SETTLED": 1},
        "unique": {"SENT": 2, "DUPLICATE_DROPPED": 1},
        "brief": {"SENT": 1, "DELIVERED": 1, "LOCK_EXPIRED": 1},
        "idle": {"RECEIVED_NOTHING": 2},
        "events": {"SENT": 1},
        "events/subscriptions/picky": {"FILTER_FAILED": 1},
    }  # fmt: skip
    assert told.counts(*wanted) == wanted
    operations = [seen for _, seen in told.observations if seen.units]
    assert all(seen.client for seen in operations)
    (started,) = told.of(observations.STARTED)
    assert started.stream == 0
    assert told.of(observations.HEARTBEAT)


def send_everything(client: ServiceBusClient) -> None:
    with client.get_queue_sender("q") as sender:
        for number in range(3):
            sender.send_messages(ServiceBusMessage(b"x", message_id=f"single-{number}"))
        sender.send_messages([ServiceBusMessage(b"x") for _ in range(4)])
        sender.send_messages(ping(None))
        due = datetime.now(UTC) + timedelta(hours=1)
        (number,) = sender.schedule_messages(ServiceBusMessage(b"later"), due)
        sender.cancel_scheduled_messages(number)
    with client.get_queue_sender("unique") as sender:
        for _ in range(2):
            sender.send_messages(ServiceBusMessage(b"x", message_id="same"))
    with client.get_queue_sender("brief") as sender:
        sender.send_messages(ServiceBusMessage(b"x"))
    with client.get_topic_sender("events") as sender:
        sender.send_messages(ServiceBusMessage(b"x", application_properties={"n": 0}))


def receive_everything(client: ServiceBusClient) -> None:
    with client.get_queue_receiver("q") as receiver:
        got = receiver.receive_messages(5)
        while len(got) < 5:
            got += receiver.receive_messages(5 - len(got))
        receiver.renew_message_lock(got[0])
        receiver.complete_message(got[0])
        receiver.complete_message(got[1])
        receiver.abandon_message(got[2])
        receiver.dead_letter_message(got[3], reason="tested")
        receiver.defer_message(got[4])
        number = got[4].sequence_number
        assert number is not None
        (again,) = receiver.receive_deferred_messages(number)
        assert again.message_id == got[4].message_id
        receiver.peek_messages(3)
        receiver.peek_messages(3)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver("q", receive_mode=mode) as receiver:
        assert len(receiver.receive_messages(2)) == 2
    dead = ServiceBusSubQueue.DEAD_LETTER
    with client.get_queue_receiver("q", sub_queue=dead) as receiver:
        (letter,) = receiver.receive_messages(1)
        receiver.complete_message(letter)
    with client.get_queue_receiver("idle") as receiver:
        for _ in range(2):
            assert receiver.receive_messages(1, max_wait_time=0.3) == []


def test_c1_l1_what_was_answered_is_metered_whatever_kill_9_takes(
    observing: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: facts and what is charged for them are in one batch, so both are there or neither."""
    monkeypatch.setattr(test_kill, "MESSAGES", 8_000)
    dice = random.Random(5)
    answered = settled = 0
    for number in range(3):
        sender = test_kill.send_until_killed(observing, f"round-{number}", dice)
        answered += len(sender.acknowledged)
        observing.start()
        receiver = RawReceiver(observing.amqp_port, "q")
        settled += len(receiver.drain())
        observing.kill()
        receiver.close()
        observing.start()
    told = Told(observing)
    assert answered > 0
    counts = told.counts("q")["q"]
    assert told.placed == counts["SENT"] >= answered
    assert len(told.settled) == counts["SETTLED"] == settled
    assert len(told.of(observations.STARTED)) == 7


def test_l1_the_first_delivery_is_remembered_over_kill_9(observing: Broker) -> None:
    with (
        client_of(observing) as client,
        client.get_queue_sender("q") as sender,
        client.get_queue_receiver("q") as receiver,
    ):
        sender.send_messages(ServiceBusMessage(b"x" * 100))
        began_ms = time.time_ns() // 1_000_000
        (message,) = receiver.receive_messages(1)
        # The delivery is written with the next commit.
        sender.send_messages(ServiceBusMessage(b"y"))
        observing.kill()
    killed_ms = time.time_ns() // 1_000_000
    observing.start()
    with client_of(observing) as client, client.get_queue_receiver("q") as receiver:
        (again,) = receiver.receive_messages(1)
        assert again.message_id == message.message_id
        receiver.complete_message(again)
    observing.terminate()
    ((enqueued_ms, delivered_ms, size),) = Told(observing).settled
    assert enqueued_ms <= began_ms <= delivered_ms <= killed_ms
    assert size > 100


def test_l1_a_broker_that_is_not_captured_observes_nothing(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, QUEUES, FORM) as broker,
        client_of(broker) as client,
        client.get_queue_sender("q") as sender,
        client.get_queue_receiver("q") as receiver,
    ):
        sender.send_messages(ServiceBusMessage(b"x"))
        receiver.complete_message(receiver.receive_messages(1)[0])
        assert receiver.peek_messages() == []
    entries = list(read_segments(tmp_path / "data" / "journal"))
    assert not [record for _, _, _, record in entries if record[0] == records.OBSERVED]
    (settled,) = [record for _, _, _, record in entries if record[0] == records.SETTLED]
    assert records.read_settled_columns(settled) is None
