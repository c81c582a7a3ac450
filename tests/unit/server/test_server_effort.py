"""Frames that name everything, again and again: others are served in between, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.amqp.amqp_client import (
    ATTACH,
    DISPOSITION,
    FLOW,
    TRANSFER,
    accepted,
    attach_fields,
    performative,
    source,
    target,
)
from tests.unit.engine.engine_kit import Kit, payload, section
from tests.unit.server.server_kit import connected
from tests.unit.server.test_server_pressure import ACCEPTED, SMALL, Client, Crowded
from twinbus.amqp.connection import EFFORT_MAX
from twinbus.amqp.sections import BATCH_FORMAT
from twinbus.amqp.types import Described, UInt, ULong
from twinbus.core.descriptions import SubscriptionDescription, TopicDescription
from twinbus.engine.consumer import Lock
from twinbus.engine.message import take_in
from twinbus.engine.topics import Topic
from twinbus.server import broker as broker_module

UNSETTLED = 1_000
FRAMES = 5 * EFFORT_MAX // UNSETTLED
UNKNOWN_TRANSACTION = Described(ULong(0x34), [b"no such", accepted()])
# An answer to a flow that asks for one: it comes when all before it is dealt with.
ECHO = [UInt(0), UInt(5000), UInt(0), UInt(5000), None, None, None, None, False, True]
FLOW_ANSWER = b"\x00\x53\x13"


@pytest.fixture
def machine() -> Iterator[Crowded]:
    machine = Crowded()
    yield machine
    machine.close()


@pytest.fixture
def holder(machine: Crowded) -> Client:
    """A client with many messages in hand."""
    for _ in range(UNSETTLED):
        message = take_in(payload(b"x"), lambda: "id")
        machine.queue.publish(message, machine.broker.begin_turn())
    (client,) = machine.clients(1)
    give(machine, client, performative(ATTACH, attach_fields(1, True, "in", source=source("q"))))
    credit = [UInt(0), UInt(5000), UInt(0), UInt(5000), UInt(1), UInt(0), UInt(UNSETTLED)]
    give(machine, client, performative(FLOW, credit))
    machine.run(0.1)
    assert len(machine.queue.main.locked) == UNSETTLED
    client.heard = b""
    return client


def give(machine: Crowded, client: Client, data: bytes) -> None:
    """Hand over bytes as the loop does."""

    async def receive() -> None:
        client.receive(data)

    machine.loop.run_until_complete(receive())


def wide(state: object, first: int = 0, last: int = UNSETTLED - 1) -> bytes:
    return performative(DISPOSITION, [True, UInt(first), UInt(last), False, state])


@pytest.mark.parametrize("state", [UNKNOWN_TRANSACTION, None, accepted()])
@pytest.mark.parametrize(
    ("first", "turns_min"), [pytest.param(0, 1, id="all"), pytest.param(2**31, 4, id="none")]
)
def test_others_are_served_in_between(
    machine: Crowded, holder: Client, state: object, first: int, turns_min: int
) -> None:
    """Also where a frame names none that is there: to find that out takes as long."""
    (other,) = machine.clients(1)
    data = wide(state, first, first + UNSETTLED) * FRAMES + performative(FLOW, ECHO)

    async def serve() -> int:
        holder.receive(data)
        assert holder.paused
        other.send(SMALL)
        turns = 0
        while holder.paused:
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert machine.loop.run_until_complete(serve()) >= turns_min
    assert machine.taken == UNSETTLED + 1
    machine.run(0.1)
    assert other.heard.count(ACCEPTED) == 1
    assert FLOW_ANSWER in holder.heard


@pytest.mark.parametrize("state", [UNKNOWN_TRANSACTION, None, accepted()])
def test_what_repeats_itself_is_answered_once(
    machine: Crowded, holder: Client, state: object
) -> None:
    """A refusal, too, waits for the disk; what is said until then gets no other."""
    give(machine, holder, wide(state) * 3)
    machine.run(0.1)
    assert machine.queue.meter.settlements == UNSETTLED
    give(machine, holder, wide(state) * 3)
    machine.run(0.1)
    assert machine.queue.meter.settlements == UNSETTLED


def test_who_is_gone_is_not_gone_on_with(machine: Crowded, holder: Client) -> None:
    async def leave() -> None:
        holder.receive(wide(UNKNOWN_TRANSACTION) * FRAMES)
        assert holder.paused
        holder.lose()

    machine.loop.run_until_complete(leave())
    machine.run(0.1)
    assert machine.queue.main.locked == {}


def topic_with(machine: Crowded, subscriptions: int) -> Topic:
    now_ms = machine.broker.begin_turn()
    namespace = machine.broker.engine.namespace("n", now_ms)
    topic = namespace.create_topic(TopicDescription("t"), now_ms)
    for number in range(subscriptions):
        namespace.create_subscription(SubscriptionDescription("t", f"s{number}"), None, now_ms)
    machine.run(0.1)
    return topic


def sent(count: int, **options: Any) -> bytes:
    """Messages to the topic, from a link of its own."""
    frames = performative(ATTACH, attach_fields(7, False, "out", target=target("t")))
    fields = [UInt(7), UInt(0), b"tag", UInt(options.get("form", 0)), False, False]
    body = options.get("body", payload(b"x"))
    return frames + performative(TRANSFER, fields, payload=body) * count


@pytest.mark.parametrize("batched", [False, True])
def test_e8_others_are_served_between_the_messages_of_a_wide_topic(
    machine: Crowded, batched: bool
) -> None:
    """A frame of a hundred bytes is as many copies as there are subscriptions."""
    subscriptions, count = 100, 500
    topic = topic_with(machine, subscriptions)
    sender, other = machine.clients(2)
    data = sent(count)
    if batched:
        data = sent(5, form=BATCH_FORMAT, body=section(0x75, payload(b"x")) * (count // 5))

    async def serve() -> int:
        sender.receive(data)
        assert sender.paused
        other.send(SMALL)
        turns = 0
        while sender.paused:
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert machine.loop.run_until_complete(serve()) >= 2
    machine.run(0.1)
    assert [s.main.index.live for s in topic.subscriptions.values()] == [count] * subscriptions
    assert other.heard.count(ACCEPTED) == 1


def test_what_is_left_of_them_waits_for_the_disk(
    machine: Crowded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are little to read and much to write."""
    topic = topic_with(machine, 100)
    (sender,) = machine.clients(1)
    journal = machine.broker.journal
    with monkeypatch.context() as slow:
        slow.setattr(broker_module, "PENDING_BYTES_MAX", 64 << 10)
        # The disk is still busy with the commit before.
        slow.setattr(machine.broker, "_commit", lambda: None)
        give(machine, sender, sent(500))
        machine.run(0.1)
        assert sender.paused
        # What one turn adds, and no more.
        assert journal.pending_bytes < EFFORT_MAX * 64
    machine.broker.begin_turn()
    machine.run(0.1)
    assert {s.main.index.live for s in topic.subscriptions.values()} == {500}
    assert not sender.paused


class Counted(dict[int, Lock]):
    """Counts how often a lock is looked for."""

    looks = 0

    def get(self, seq: int, other: Any = None) -> Any:
        self.looks += 1
        return super().get(seq, other)


def test_r7_a_lock_that_outlives_its_link_does_not_look_at_all_the_others() -> None:
    """With many of them a range of settlements that are refused took minutes."""
    kit = Kit(64 << 20)
    queue = kit.queue()
    kit.send(queue, *[payload(b"x")] * 10_200)
    locks = kit.taker(queue, credit=10_200).locks
    _, bridge = connected(kit)
    bridge.hold(queue.main, [*locks[:10_000]])
    counted = queue.main.locked = Counted(queue.main.locked)
    for lock in locks[10_000:]:
        bridge.hold(queue.main, [lock])
    assert counted.looks < 2 * len(locks)
    assert len(bridge.held) == len(locks)
