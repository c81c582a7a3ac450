"""Auto-forwarding and what becomes of what cannot be forwarded (E9, D7, D8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_kit import LOCK_MS, Kit, payload, properties_of, refusal

from twinbus.amqp.types import Char
from twinbus.core import errors
from twinbus.core.descriptions import RuleDescription
from twinbus.core.limits import MESSAGE_BYTES_MAX
from twinbus.engine import returning, settlement
from twinbus.engine.entities import Holder, Queue
from twinbus.engine.settlement import Settlement

TRANSFER = 2


def chain(kit: Kit, length: int) -> list[Queue]:
    """Queues of which each forwards to the next; the last one forwards to nobody."""
    queues = [kit.queue(f"q{length}")]
    for n in range(length - 1, 0, -1):
        queues.insert(0, kit.queue(f"q{n}", forward_to=f"q{n + 1}"))
    return queues


def test_e9_a_message_is_moved_to_the_target() -> None:
    kit = Kit()
    source, target = chain(kit, 2)
    kit.send(source, payload())
    assert kit.bodies(source) == []
    assert kit.bodies(target) == [b"body"]


def test_e9_four_forwards_are_allowed() -> None:
    kit = Kit()
    queues = chain(kit, 5)
    kit.send(queues[0], payload())
    assert kit.bodies(queues[-1]) == [b"body"]


def test_e9_d8_the_fifth_forward_is_one_too_many() -> None:
    kit = Kit()
    queues = chain(kit, 6)
    kit.send(queues[0], payload())
    assert kit.bodies(queues[-1]) == []
    assert kit.bodies(queues[4], TRANSFER) == [b"body"]
    reason, description, source = kit.death(queues[4], TRANSFER)
    assert reason == "MaxTransferHopCountExceeded"
    assert "it is 4" in str(description)
    assert source == "q5"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("deleted", "MessagingEntityNotFound"),
        ("disabled", "MessagingEntityDisabled"),
        ("full", "QuotaExceeded"),
    ],
)
def test_d8_what_cannot_be_forwarded_waits_in_the_transfer_queue(fault: str, reason: str) -> None:
    kit = Kit()
    target = kit.queue("target", max_size_in_megabytes=1)
    source = kit.queue("source", forward_to="target")
    if fault == "deleted":
        kit.namespace.delete("target")
    elif fault == "disabled":
        kit.namespace.update_queue(replace(target.description, status="Disabled"), kit.now_ms)
    else:
        for _ in range(5):
            kit.send(target, payload(b"x" * 250_000))
    kit.send(source, payload())
    assert kit.bodies(source, TRANSFER) == [b"body"]
    assert kit.death(source, TRANSFER)[0] == reason
    # It can be received from there, as from any dead-letter queue (D1).
    assert kit.taker(source, TRANSFER, peek_lock=False).bodies == [b"body"]


def test_e9_queue_to_topic_to_queue() -> None:
    kit = Kit()
    end = kit.queue("end")
    kit.topic()
    subscription = kit.subscription(forward_to="end")
    source = kit.queue("source", forward_to="t")
    kit.send(source, payload())
    assert kit.bodies(end) == [b"body"]
    assert kit.bodies(subscription) == []


def test_e9_what_waited_is_forwarded_when_forwarding_is_switched_on() -> None:
    kit = Kit()
    kit.queue("target")
    source = kit.queue("source")
    kit.send(source, payload(b"a"), payload(b"b"))
    waiting = kit.taker(source)
    change = replace(source.description, forward_to="target")
    kit.namespace.update_queue(change, kit.now_ms)
    assert waiting.detached is not None
    assert waiting.detached.kind is errors.ENTITY_DISABLED
    assert kit.bodies(kit.namespace.queue("target")) == [b"a", b"b"]


def test_e9_what_is_no_longer_deferred_is_forwarded() -> None:
    kit = Kit()
    kit.queue("target")
    source = kit.queue("source")
    kit.send(source, payload(b"a"), payload(b"b"))
    taker = kit.taker(source, credit=2)
    for lock in taker.locks:
        kit.settle(source, source.main, lock, Settlement(settlement.DEFER))
    change = replace(source.description, forward_to="target")
    kit.namespace.update_queue(change, kit.now_ms)
    returning.undefer(source, source.main, [2, 1], kit.now_ms)
    assert kit.bodies(source) == []
    assert kit.bodies(kit.namespace.queue("target")) == [b"a", b"b"]


def test_e9_scheduled_messages_are_forwarded_when_they_are_due() -> None:
    kit = Kit()
    source, target = chain(kit, 2)
    kit.send(source, payload(due_ms=kit.now_ms + 1_000))
    assert kit.bodies(target) == []
    kit.wait(1_000)
    assert kit.bodies(target) == [b"body"]


@pytest.mark.parametrize("how", ["at once", "when it is due"])
def test_e9_a_session_id_that_is_half_a_character_stops_no_forwarding(how: str) -> None:
    """It is no text, and could not be written: what comes due would stop the broker each time."""
    kit = Kit(observing=True)
    target = kit.queue("target", requires_session=True)
    source = kit.queue("source", forward_to="target")
    due_ms = kit.now_ms + 1_000 if how == "when it is due" else None
    kit.send(source, payload(session_id=Char("\ud800"), due_ms=due_ms))
    kit.wait(1_000)
    assert kit.bodies(target) == []
    assert kit.bodies(source, TRANSFER) == [b"body"]


def test_e7_e9_an_id_that_is_half_a_character_is_known_again_when_it_is_forwarded() -> None:
    kit = Kit(observing=True)
    target = kit.queue("target", requires_duplicate_detection=True)
    source = kit.queue("source", forward_to="target")
    for _ in range(2):
        kit.send(source, payload(message_id=Char("\ud800"), due_ms=kit.now_ms + 1_000))
    kit.wait(1_000)
    assert kit.bodies(target) == [b"body"]


@pytest.mark.parametrize("how", ["at once", "when it is due", "after waiting", "when dead"])
def test_e9_d7_a_message_of_the_largest_size_is_handed_on(how: str) -> None:
    """What the broker keeps with it, or adds when it dies, is not held against it."""
    kit = Kit()
    target = kit.queue("target")
    queue = kit.queue("q", max_delivery_count=1)

    def settings(**changes: Any) -> None:
        kit.namespace.update_queue(replace(queue.description, **changes), kit.now_ms)

    if how == "when dead":
        settings(forward_dead_lettered_messages_to="target")
    elif how != "after waiting":
        settings(forward_to="target")
    kit.send(queue, largest(due_ms=kit.now_ms + 1_000 if how == "when it is due" else None))
    if how == "when it is due":
        kit.wait(1_000)
    elif how == "after waiting":
        settings(forward_to="target")
    elif how == "when dead":
        kit.taker(queue)
        kit.wait(LOCK_MS)
    kit.settle_down()
    assert len(kit.bodies(target)) == 1


def largest(**given: Any) -> bytes:
    """A message that is as large as one may be."""
    made = payload(b"x" * 1000, **given)
    made = payload(b"x" * (1000 + MESSAGE_BYTES_MAX - len(made)), **given)
    assert len(made) == MESSAGE_BYTES_MAX
    return made


def test_e9_forwarding_needs_a_target_that_is_there() -> None:
    kit = Kit()
    missing = refusal(lambda: kit.queue("q", forward_to="nowhere"))
    assert missing.kind is errors.ARGUMENT_ERROR
    itself = refusal(lambda: kit.queue("q", forward_to="Q"))
    assert itself.kind is errors.ARGUMENT_ERROR
    kit.queue("sink")
    sessions = refusal(lambda: kit.queue("q", forward_to="sink", requires_session=True))
    assert sessions.kind is errors.ARGUMENT_ERROR


def test_e9_the_target_may_be_given_as_an_address() -> None:
    kit = Kit()
    kit.queue("target")
    source = kit.queue("source", forward_to="sb://host.example/target")
    assert source.description.forward_to == "target"


def test_e9_the_shortest_life_of_the_chain_counts() -> None:
    kit = Kit()
    target = kit.queue("target", default_message_time_to_live_ms=5_000)
    source = kit.queue("source", default_message_time_to_live_ms=2_000, forward_to="target")
    kit.send(source, payload(), payload(ttl_ms=1_000))
    assert target.main.expires_ms(1) == kit.now_ms + 2_000
    assert target.main.expires_ms(2) == kit.now_ms + 1_000


def test_d7_dead_letters_are_forwarded() -> None:
    kit = Kit()
    graves = kit.queue("graves")
    source = kit.queue("source", max_delivery_count=1, forward_dead_lettered_messages_to="graves")
    kit.send(source, payload(ttl_ms=60_000))
    kit.taker(source)
    kit.wait(LOCK_MS)
    assert kit.bodies(source, 1) == []
    taker = kit.taker(graves)
    given = properties_of(taker.stored[0])
    assert given["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert taker.counts == [0]


def test_d7_d8_a_dead_letter_that_cannot_be_forwarded_is_kept() -> None:
    kit = Kit()
    kit.queue("graves")
    source = kit.queue("source", max_delivery_count=1, forward_dead_lettered_messages_to="graves")
    kit.namespace.delete("graves")
    kit.send(source, payload())
    kit.taker(source)
    kit.wait(LOCK_MS)
    assert kit.bodies(source, TRANSFER) == [b"body"]
    assert kit.death(source, TRANSFER)[0] == "MessagingEntityNotFound"


@pytest.mark.parametrize(
    ("settings", "properties"),
    [
        ({"requires_session": True}, {}),
        ({"rule": RuleDescription("fails", "sql", "1 / n = 1")}, {"n": 0}),
        ({"rule": RuleDescription("big", action="SET b = a; SET c = a")}, {"a": "x" * 30_000}),
    ],
    ids=["no session id", "a filter that fails", "properties too large"],
)
@pytest.mark.parametrize(
    ("length", "resting"),
    [(0, "t/Subscriptions/s"), (1, "t/Subscriptions/s"), (2, "q1")],
    ids=["at once", "over a queue", "over two queues"],
)
def test_d7_d3_dead_letters_do_not_go_round_in_circles(
    settings: dict[str, Any], properties: dict[str, object], length: int, resting: str
) -> None:
    """What kills a message when a topic gets it kills it again when its dead letter comes back."""
    kit = Kit()
    topic = kit.topic()
    back = "t"
    for n in range(length):
        kit.queue(f"q{n}", forward_to=back)
        back = f"q{n}"
    kit.subscription(forward_dead_lettered_messages_to=back, **settings)
    kit.send(topic, payload(b"body", properties=properties))
    kit.restart()
    # Four forwards on, it rests where the fifth would have begun.
    holder = kit.namespace.find(resting)
    assert isinstance(holder, Holder)
    assert kit.bodies(holder, TRANSFER) == [b"body"]
    assert kit.death(holder, TRANSFER)[0] == "MaxTransferHopCountExceeded"
    subscription = kit.namespace.subscription("t", "s")
    assert (kit.bodies(subscription), kit.bodies(subscription, 1)) == ([], [])


def test_d7_the_forwards_before_a_death_count() -> None:
    """Each forward is one hop, that of a live message or that of its dead letter."""
    kit = Kit()
    first, *_, last = chain(kit, 3)
    kit.topic()
    kit.namespace.update_queue(replace(last.description, forward_to="t"), kit.now_ms)
    graves = kit.queue("graves")
    kit.subscription(requires_session=True, forward_dead_lettered_messages_to="graves")
    kit.send(first, payload(b"four"))
    assert kit.bodies(graves) == [b"four"]
    kit.queue("q0", forward_to="q1")
    kit.send(kit.namespace.queue("q0"), payload(b"five"))
    assert kit.bodies(graves) == [b"four"]
    assert kit.bodies(kit.namespace.subscription("t", "s"), TRANSFER) == [b"five"]


def test_e9_forwarding_is_one_step_in_the_journal() -> None:
    """After a crash a message is in the source or in the target, and in one of them."""
    kit = Kit()
    source = kit.queue("source")
    kit.queue("target")
    kit.send(source, payload())
    kit.namespace.update_queue(replace(source.description, forward_to="target"), kit.now_ms)
    kit.settle_down()
    kit.restart()
    assert kit.bodies(kit.namespace.queue("source")) == []
    assert kit.bodies(kit.namespace.queue("target")) == [b"body"]
