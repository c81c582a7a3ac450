"""A payload that several messages use is in the journal once, and counts once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_kit import Kit, payload, present

from tests.support.payloads import check_payloads
from twinbus.core.descriptions import RuleDescription
from twinbus.engine import records
from twinbus.engine import stored as form
from twinbus.engine.carrying import Carrier
from twinbus.engine.entities import Holder
from twinbus.engine.settlement import PLAIN_COMPLETE
from twinbus.engine.topics import Subscription

BODY = b"x" * 1_000
NAMES = "abcde"


def fanned_out(count: int = 1) -> tuple[Kit, list[Subscription]]:
    """Messages that five subscriptions share, none of them in memory."""
    kit = Kit(memory_bytes_max=0)
    topic = kit.topic()
    subscriptions = [kit.subscription(name) for name in NAMES]
    kit.send(topic, *[payload(BODY) for _ in range(count)])
    return kit, subscriptions


def live(kit: Kit) -> int:
    """How many such payloads the journal must keep, to the nearest."""
    check_payloads(kit.engine)
    return round(kit.engine.kernel.live_bytes / len(BODY))


def complete(kit: Kit, holder: Holder) -> None:
    taker = kit.taker(holder)
    kit.settle(holder, holder.main, taker.locks[0], PLAIN_COMPLETE)
    holder.main.detach(taker, kit.now_ms)


def fill_segment(kit: Kit) -> None:
    segment = kit.log.records[-1][0] >> 32
    while kit.log.records[-1][0] >> 32 == segment:
        kit.log.append(records.sequence_reached(4, 1))


def begin_carrying(kit: Kit) -> Carrier:
    fill_segment(kit)
    return Carrier(kit.engine, kit.log.records[-1][0] >> 32)


def finish(kit: Kit, carrier: Carrier) -> None:
    while not carrier.finished:
        carrier.step(1, kit.now_ms)
        check_payloads(kit.engine)
    kit.settle_down()
    kit.log.drop_before(carrier.segment)


@pytest.mark.parametrize("where", ["topic", "subscriptions"])
def test_e8_copies_with_another_time_to_live_are_written_once(where: str) -> None:
    """Each of them alone could be more than a batch holds: a large message, many subscriptions."""
    kit = Kit(memory_bytes_max=0)
    limited = {"default_message_time_to_live_ms": 60_000}
    topic = kit.topic(**limited if where == "topic" else {})
    given = limited if where == "subscriptions" else {}
    subscriptions = [kit.subscription(name, **given) for name in "abcd"]
    subscriptions += [kit.subscription("longer"), kit.subscription("shorter")]
    for name, ttl_ms in (("longer", 90_000), ("shorter", 30_000)):
        description = kit.namespace.subscription("t", name).description
        changed = replace(description, default_message_time_to_live_ms=ttl_ms)
        kit.namespace.update_subscription(changed, kit.now_ms)
    written = len(kit.log.records)
    kit.send(topic, payload(BODY))
    payloads = {"topic": 2, "subscriptions": 3}[where]
    assert sum(len(record) > len(BODY) for _, record in kit.log.records[written:]) == payloads
    assert live(kit) == payloads
    kit.restart()
    assert live(kit) == payloads
    shown = []
    for name in ("a", "d", "longer", "shorter"):
        stored = kit.taker(kit.namespace.subscription("t", name)).stored[0]
        shown.append(form.ttl_of(stored))
    longer_ms = {"topic": 60_000, "subscriptions": 90_000}[where]
    assert shown == [60_000, 60_000, longer_ms, 30_000]
    for subscription in list(kit.namespace.topic("t").subscriptions.values()):
        kit.namespace.delete(subscription.path)
    assert (live(kit), kit.engine.kernel.live_bytes) == (0, 0)


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1], "cbead"])
def test_e8_copies_count_once_until_the_last_is_gone(order: str) -> None:
    kit, subscriptions = fanned_out()
    assert kit.engine.kept_bytes() < 2 * len(BODY)
    for name in order:
        assert live(kit) == 1
        complete(kit, subscriptions[NAMES.index(name)])
    assert (live(kit), kit.engine.kernel.live_bytes) == (0, 0)


def test_e8_the_size_of_a_topic_is_that_of_all_copies() -> None:
    kit, subscriptions = fanned_out()
    topic = kit.namespace.topic("t")
    assert topic.size_bytes() == 5 * subscriptions[0].bytes_used > 5 * len(BODY)
    complete(kit, subscriptions[0])
    assert topic.size_bytes() == 4 * subscriptions[1].bytes_used
    assert subscriptions[0].bytes_used == 0


@pytest.mark.parametrize("gone", ["", "a", "e", "abcd", "bcde"])
def test_copies_count_once_after_a_start(gone: str) -> None:
    kit, subscriptions = fanned_out(3)
    for name in gone:
        complete(kit, subscriptions[NAMES.index(name)])
    kept = kit.engine.kernel.live_bytes
    kit.restart()
    assert (live(kit), kit.engine.kernel.live_bytes) == (3, kept)
    for name in NAMES:
        subscription = kit.namespace.subscription("t", name)
        for _ in present(subscription.main):
            complete(kit, subscription)
    assert (live(kit), kit.engine.kernel.live_bytes) == (0, 0)


def test_copies_of_a_removed_entity_count_no_more() -> None:
    kit, subscriptions = fanned_out(2)
    for subscription in subscriptions:
        assert live(kit) == 2
        kit.namespace.delete(subscription.path)
    assert (live(kit), kit.engine.kernel.live_bytes) == (0, 0)


def test_copies_that_leave_as_neighbours_count_no_more() -> None:
    kit, subscriptions = fanned_out(600)
    for subscription in subscriptions:
        assert live(kit) > 590
        subscription.main.remove_range(1, 600, records.PURGED)
    assert (live(kit), kit.engine.kernel.live_bytes) == (0, 0)


def test_a_copy_that_is_changed_has_a_payload_of_its_own() -> None:
    kit, subscriptions = fanned_out()
    for number, subscription in enumerate(subscriptions):
        assert live(kit) == number + 1
        subscription.main.replace(1, subscription.main.stored(1) + b"changed")
        kit.settle_down()
    assert live(kit) == 5
    kit.restart()
    assert live(kit) == 5


def test_copies_with_an_action_count_each_and_others_once() -> None:
    kit = Kit(memory_bytes_max=0)
    topic = kit.topic()
    for name in "ab":
        kit.subscription(name)
        action = RuleDescription("rule", action="SET changed = 1")
        kit.subscription(f"{name}-changed", rule=action)
    kit.send(topic, payload(BODY))
    assert live(kit) == 3


def test_e9_copies_that_are_handed_on_count_once() -> None:
    """One is alone with its payload when it goes on, or others stay behind with it."""
    kit, subscriptions = fanned_out(2)
    target = kit.queue("target")
    for subscription in subscriptions:
        description = replace(subscription.description, forward_to="target")
        kit.namespace.update_subscription(description, kit.now_ms)
        kit.settle_down()
        assert live(kit) == 2
    assert len(kit.bodies(target)) == 10
    kit.restart()
    assert live(kit) == 2
    target = kit.namespace.queue("target")
    target.main.remove_range(1, 10, records.PURGED)
    assert (live(kit), kit.engine.kernel.live_bytes) == (0, 0)


def test_e9_what_is_handed_on_and_not_placed_counts_no_more() -> None:
    kit = Kit(memory_bytes_max=0)
    source = kit.queue("source")
    kit.queue("target", requires_duplicate_detection=True)
    kit.send(source, payload(BODY), payload(BODY))
    kit.namespace.update_queue(replace(source.description, forward_to="target"), kit.now_ms)
    kit.settle_down()
    assert kit.bodies(kit.namespace.queue("target")) == [BODY]
    assert live(kit) == 1


@pytest.mark.parametrize("settings", [{}, {"default_message_time_to_live_ms": 60_000}])
def test_e5_a_message_that_comes_due_counts_once(settings: dict[str, int]) -> None:
    """Also where it is written anew, since its time to live is said in it."""
    kit = Kit(memory_bytes_max=0)
    queue = kit.queue(**settings)
    kit.send(queue, payload(BODY, due_ms=kit.now_ms + 1_000))
    assert live(kit) == 1
    kit.wait(1_000)
    assert live(kit) == 1
    kit.restart()
    assert live(kit) == 1
    complete(kit, kit.namespace.queue("q"))
    assert (live(kit), kit.engine.kernel.live_bytes) == (0, 0)


def test_nothing_is_noted_of_messages_that_share_nothing() -> None:
    kit = Kit()
    queue, topic = kit.queue(), kit.topic()
    subscription = kit.subscription()
    kit.send(queue, payload(BODY))
    kit.send(topic, payload(BODY), payload(BODY, due_ms=kit.now_ms + 1_000))
    kit.wait(1_000)
    assert len(present(subscription.main)) == 2
    assert not queue.main.is_sharing
    assert kit.engine.kernel.sharers == {}
    kit.restart()
    assert kit.engine.kernel.sharers == {}


def test_copies_that_were_carried_count_once() -> None:
    kit, subscriptions = fanned_out(3)
    kept = kit.engine.kernel.live_bytes
    finish(kit, begin_carrying(kit))
    assert (live(kit), kit.engine.kernel.live_bytes) == (3, kept)
    kit.restart()
    assert (live(kit), kit.engine.kernel.live_bytes) == (3, kept)
    for subscription in subscriptions:
        kit.namespace.delete(subscription.path)
    assert (live(kit), kit.engine.kernel.live_bytes) == (0, 0)


@pytest.mark.parametrize("carried", range(6))
@pytest.mark.parametrize("gone", ["a", "c", "e", "ab", "bd", "abd", "bcde", "abcde"])
def test_copies_that_go_while_others_are_carried_count_no_more(gone: str, carried: int) -> None:
    """Whichever of them: what is left can be read, and counts as often as it is written."""
    kit, subscriptions = fanned_out()
    carrier = begin_carrying(kit)
    old = subscriptions[0].main.location(1)
    while sum(s.main.location(1) != old for s in subscriptions) < carried:
        carrier.step(1, kit.now_ms)
    for name in gone:
        complete(kit, subscriptions[NAMES.index(name)])
        check_payloads(kit.engine)
    finish(kit, carrier)
    kit.restart()
    check_payloads(kit.engine)
    for name in NAMES:
        subscription = kit.namespace.subscription("t", name)
        assert kit.bodies(subscription) == ([] if name in gone else [BODY])
        kit.namespace.delete(subscription.path)
    assert (live(kit), kit.engine.kernel.live_bytes) == (0, 0)


def test_a_copy_that_is_changed_after_it_was_carried_is_not_taken_for_the_others() -> None:
    kit, subscriptions = fanned_out()
    carrier = begin_carrying(kit)
    first = subscriptions[0]
    place = first.main.location(1)
    while first.main.location(1) == place:
        carrier.step(1, kit.now_ms)
    first.main.replace(1, first.main.stored(1) + b"changed")
    finish(kit, carrier)
    kit.restart()
    assert kit.bodies(kit.namespace.subscription("t", "b")) == [BODY]
    assert live(kit) == 2
