"""Reservations over the wire (L3): asked of `$management`, beside ordinary receivers."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import SessionCannotBeLockedError
from proton import Message
from proton.utils import BlockingConnection

from tests.compat.whole.kit import (
    DEAD_LETTER,
    Bus,
    assert_empty,
    bodies,
    drain,
    reason,
    receiver_of,
    send,
    take,
)
from tests.compat.whole.raw import Answer, Management

FENCED = "twinbus:epoch-fenced"


class Job:
    """A bulk reader under one name."""

    def __init__(self, connection: BlockingConnection, path: str, name: str = "job") -> None:
        self.node = Management(connection, path)
        self.name = name

    def ask(self, operation: str, **body: Any) -> Answer:
        given = {key.replace("_", "-"): value for key, value in body.items()}
        return self.node.ask(f"twinbus:{operation}", {"consumer": self.name, **given})

    def reserve(self, epoch: int, count: int = 100) -> Answer:
        return self.ask("reserve", epoch=epoch, message_count=count)

    def settle(self, epoch: int) -> int:
        return int(self.ask("settle-upto", epoch=epoch).body["message-count"])

    def read(self, first: int, last: int, **options: Any) -> list[Message]:
        answer = self.node.ask(
            "twinbus:read", {"from": first, "to": last, "byte-count": 1 << 22, **options}
        )
        found = []
        for payload in answer.body["messages"] if answer.body else []:
            message = Message()
            message.decode(payload)
            found.append(message)
        return found


def numbered(client: ServiceBusClient, queue: str, count: int) -> list[str]:
    texts = [f"m{number}" for number in range(1, count + 1)]
    send(client, queue, *texts)
    return texts


def test_l3_reserve_read_settle(bus: Bus, client: ServiceBusClient) -> None:
    """L3: a set is reserved, read without locks, and completed by its epoch."""
    queue = bus.queue()
    numbered(client, queue, 5)
    with bus.proton() as connection:
        job = Job(connection, queue)
        first = job.reserve(1, 3)
        assert first.status == 200
        assert list(first.body["ranges"]) == [1, 3]
        assert (first.body["message-count"], first.body["attempts"]) == (3, 0)
        assert first.body["byte-count"] > 0
        assert list(job.reserve(1, 100).body["ranges"]) == [1, 3]
        messages = job.read(1, 10, states=["reserved"])
        assert [m.id for m in messages] == ["m1", "m2", "m3"]
        assert [m.annotations["x-opt-sequence-number"] for m in messages] == [1, 2, 3]
        assert len(job.read(1, 10)) == 5
        assert job.read(2, 2, **{"omit-message-body": True})[0].body is None
        assert job.node.ask("twinbus:read", {"from": 9, "to": 9, "byte-count": 1}).status == 204
        assert job.settle(1) == 3
        assert job.settle(1) == 0
        assert bodies(drain(client, queue, 2)) == ["m4", "m5"]
        assert job.reserve(2).status == 204
    assert_empty(client, queue)


def test_l3_receivers_get_nothing_that_is_reserved(bus: Bus, client: ServiceBusClient) -> None:
    """L3 R1: a competing receiver gets the others; peek shows all of them as active."""
    queue = bus.queue()
    texts = numbered(client, queue, 40)
    with bus.proton() as connection, receiver_of(client, queue) as receiver:
        job = Job(connection, queue)
        assert job.reserve(1, 15).body["message-count"] == 15
        got = take(receiver, 25)
        assert bodies(got) == texts[15:]
        peeked = receiver.peek_messages(max_message_count=100, sequence_number=1)
        assert {message.state.name for message in peeked} == {"ACTIVE"}
        assert len(peeked) == 40
        answer = job.node.ask(
            "peek-message", {"from-sequence-number": 1, "message-count": 50, "state": "reserved"}
        )
        assert len(answer.body["messages"]) == 15
        for message in got:
            receiver.complete_message(message)
        answer = job.node.ask("twinbus:purge", {"state": "active"})
        assert answer.body["message-count"] == 0
        assert job.settle(1) == 15
    assert_empty(client, queue)


def test_l3_the_counts_say_active(bus: Bus, client: ServiceBusClient) -> None:
    """L3: whoever looks at the queue sees messages that are not done with."""
    queue = bus.queue()
    numbered(client, queue, 3)
    with bus.proton() as connection, bus.administration() as admin:
        Job(connection, queue).reserve(1)
        assert admin.get_queue_runtime_properties(queue).active_message_count == 3


def test_l3_epochs_are_fenced(bus: Bus, client: ServiceBusClient) -> None:
    """L3: what is settled, released or left out is refused, and the text says what to do."""
    queue = bus.queue()
    numbered(client, queue, 3)
    with bus.proton() as connection:
        job = Job(connection, queue)
        assert job.reserve(2).condition == FENCED
        job.reserve(1, 1)
        job.settle(1)
        job.reserve(2, 1)
        answer = job.reserve(1)
        assert (answer.status, answer.condition) == (410, FENCED)
        assert "twinbus reservations release" in answer.text
        assert job.ask("release").body["message-count"] == 1
        for epoch in (1, 2):
            assert job.ask("attempt", epoch=epoch, max_attempts=0).condition == FENCED
        assert job.ask("settle-upto", epoch=3).condition == FENCED
        assert job.settle(2) == 0
        assert bodies(drain(client, queue, 2)) == ["m2", "m3"]


def test_l3_a_set_that_fails_too_often_is_dead_lettered(bus: Bus, client: ServiceBusClient) -> None:
    """L3 D1: after so many attempts its messages go, with a reason; the epoch stays, empty."""
    queue = bus.queue()
    numbered(client, queue, 3)
    with bus.proton() as connection:
        job = Job(connection, queue)
        job.reserve(1, 2)
        tries = [job.ask("attempt", epoch=1, max_attempts=1).body for _ in range(3)]
        assert [(t["attempts"], t["buried"]) for t in tries] == [(1, False), (2, True), (2, True)]
        assert [list(t["ranges"]) for t in tries] == [[1, 2], [], []]
        dead = drain(client, queue, 2, sub_queue=DEAD_LETTER)
        assert bodies(dead) == ["m1", "m2"]
        assert reason(dead[0])[0] == "MaxBatchFailuresExceeded"
        assert job.settle(1) == 0
        assert list(job.reserve(2).body["ranges"]) == [3, 3]
        job.settle(2)
    assert_empty(client, queue)


def test_l3_the_list_tells_who_holds_what(bus: Bus, client: ServiceBusClient) -> None:
    """L3: those with nothing outstanding are in it as well."""
    queue = bus.queue()
    numbered(client, queue, 4)
    with bus.proton() as one, bus.proton() as two:
        job, other = Job(one, queue), Job(two, queue, "other")
        job.reserve(1, 2)
        job.settle(1)
        other.reserve(1, 1)
        other.ask("attempt", epoch=1, max_attempts=5)
        found = {r["consumer"]: r for r in job.ask("reservations").body["reservations"]}
        assert found["job"]["settled-epoch"] == 1
        assert list(found["job"]["epochs"]) == []
        (epoch,) = found["other"]["epochs"]
        assert (epoch["epoch"], epoch["message-count"], epoch["attempts"]) == (1, 1, 1)
        assert list(epoch["ranges"]) == [3, 3]
        assert epoch["reserved-at"] > 1_600_000_000_000


def test_l3_sessions_are_kept_together(bus: Bus, client: ServiceBusClient) -> None:
    """L3 E6: held sessions are left out; reserved ones are handed to nobody."""
    queue = bus.queue(requires_session=True)
    for text, session in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        send(client, queue, ServiceBusMessage(text, message_id=text, session_id=session))
    with bus.proton() as connection:
        job = Job(connection, queue)
        with client.get_queue_receiver(queue, session_id="b", max_wait_time=5) as held:
            assert list(job.reserve(1).body["ranges"]) == [1, 1, 3, 3]
            assert bodies(take(held, 1)) == ["b1"]
        with pytest.raises(SessionCannotBeLockedError):
            client.get_queue_receiver(queue, session_id="a").__enter__()
        job.ask("release")
        with client.get_queue_receiver(queue, session_id="a", max_wait_time=5) as freed:
            assert bodies(take(freed, 2)) == ["a1", "a2"]


def test_l3_bad_requests_say_what_is_wrong(bus: Bus, client: ServiceBusClient) -> None:
    """L3 S2: nothing is done, and the text names the field."""
    queue, topic = bus.queue(), bus.topic()
    numbered(client, queue, 1)
    with bus.proton() as connection:
        node = Management(connection, queue)
        good = {"consumer": "job", "epoch": 1, "message-count": 1}
        for wrong in ({"consumer": ""}, {"consumer": 5}, {"epoch": 0}, {"message-count": "x"}):
            answer = node.ask("twinbus:reserve", good | wrong)
            assert (answer.status, next(iter(wrong)) in answer.text) == (400, True)
        answer = node.ask("twinbus:read", {"from": 1, "to": 1, "byte-count": 1, "states": ["odd"]})
        assert (answer.status, "reserved" in answer.text) == (400, True)
        assert node.ask("twinbus:release", {"consumer": "nobody"}).status == 404
        assert Management(connection, topic).ask("twinbus:reserve", good).status == 400
        assert node.ask("twinbus:reserve", good).status == 200


def test_l3_reservations_outlive_kill_9(bus: Bus) -> None:
    """L3 S1: killed between reserve and settle, the set is the same; settled is settled."""
    with bus.another() as other:
        queue = other.queue()
        with other.client() as client:
            numbered(client, queue, 6)
            with other.proton() as connection:
                job = Job(connection, queue)
                job.reserve(1, 2)
                job.settle(1)
                job.reserve(2, 2)
                job.ask("attempt", epoch=2, max_attempts=9)
        other.broker.kill()
        other.broker.start()
        with other.client() as client, other.proton() as connection:
            job = Job(connection, queue)
            assert bodies(drain(client, queue, 2)) == ["m5", "m6"]
            again = job.reserve(2)
            assert (list(again.body["ranges"]), again.body["attempts"]) == ([3, 4], 1)
            assert [m.id for m in job.read(1, 9)] == ["m3", "m4"]
            assert job.settle(2) == 2
        other.broker.kill()
        other.broker.start()
        with other.client() as client, other.proton() as connection:
            assert_empty(client, queue)
            assert Job(connection, queue).reserve(2).condition == FENCED
