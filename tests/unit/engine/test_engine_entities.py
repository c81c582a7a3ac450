"""Entities of a namespace: names, settings, quotas, idleness (E1, E2, E3, E11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from engine_kit import Kit, Taker, payload, refusal, section

from twinbus.amqp.types import Symbol
from twinbus.core import errors
from twinbus.core.descriptions import AuthorizationRule, RuleDescription
from twinbus.core.errors import BusError
from twinbus.core.units import MINUTE_MS
from twinbus.engine import reserving
from twinbus.engine.consumer import Attachment
from twinbus.engine.message import take_in
from twinbus.engine.settlement import PLAIN_COMPLETE

IDLE_MS = 5 * MINUTE_MS


class SendingLink(Attachment):
    def __init__(self) -> None:
        self.error: BusError | None = None

    def detach(self, error: BusError) -> None:
        self.error = error


def test_e1_names_keep_their_case_and_are_compared_without() -> None:
    kit = Kit()
    kit.queue("Orders/New")
    assert kit.namespace.queue("orders/NEW").path == "Orders/New"
    error = refusal(lambda: kit.queue("ORDERS/new"))
    assert error.kind is errors.ALREADY_EXISTS


def test_e1_queues_and_topics_share_their_names() -> None:
    kit = Kit()
    kit.queue("a")
    kit.topic("b")
    assert refusal(lambda: kit.topic("A")).kind is errors.ALREADY_EXISTS
    assert refusal(lambda: kit.queue("B")).kind is errors.ALREADY_EXISTS


def test_e1_bad_names_are_refused() -> None:
    kit = Kit()
    for name in ("", "a" * 261, "/a", "a b", "a/$DeadLetterQueue", "t/Subscriptions/s"):
        assert refusal(lambda bad=name: kit.queue(bad)).kind is errors.ARGUMENT_ERROR
    kit.topic()
    for name in ("", "s" * 51, "a/b"):
        assert refusal(lambda bad=name: kit.subscription(bad)).kind is errors.ARGUMENT_ERROR


def test_e1_what_is_not_there_is_not_found() -> None:
    kit = Kit()
    kit.topic()
    namespace = kit.namespace
    for ask in (
        lambda: namespace.queue("x"),
        lambda: namespace.topic("x"),
        lambda: namespace.subscription("t", "x"),
        lambda: namespace.delete("x"),
        lambda: kit.subscription(topic="x"),
    ):
        assert refusal(ask).kind is errors.NOT_FOUND
    assert namespace.find("x/Subscriptions/s") is None


def test_e2_paths_of_subscriptions_and_sub_queues() -> None:
    kit = Kit()
    kit.topic("Prices")
    subscription = kit.subscription("Eu", topic="prices")
    assert subscription.path == "Prices/Subscriptions/Eu"
    for path in ("prices/subscriptions/EU", "Prices/Subscription/eu"):
        assert kit.namespace.find(path) is subscription
    assert subscription.stream(1).path == "Prices/Subscriptions/Eu/$DeadLetterQueue"
    assert subscription.stream(2).path == "Prices/Subscriptions/Eu/$Transfer/$DeadLetterQueue"


def test_e3_descriptions_survive_a_restart() -> None:
    kit = Kit()
    rule = AuthorizationRule("send", ["Send"], "k1", "k2")
    queue = kit.queue(
        "Q",
        lock_duration_ms=60_000,
        max_delivery_count=3,
        requires_duplicate_detection=True,
        user_metadata="mine",
        authorization_rules=[rule],
    )
    topic = kit.topic(max_size_in_megabytes=5)
    subscription = kit.subscription(requires_session=True)
    kit.restart()
    assert kit.namespace.queue("q").description == queue.description
    assert kit.namespace.topic("t").description == topic.description
    assert kit.namespace.subscription("t", "s").description == subscription.description
    assert kit.namespace.queue("q").number == queue.number


def test_e3_an_update_keeps_what_cannot_change() -> None:
    kit = Kit()
    queue = kit.queue("Q")
    kit.now_ms += 5
    kit.namespace.update_queue(replace(queue.description, name="q", user_metadata="x"), kit.now_ms)
    assert queue.description.name == "Q"
    assert queue.description.updated_ms == queue.description.created_ms + 5
    for change in ({"requires_session": True}, {"requires_duplicate_detection": True}):
        changed = replace(queue.description, **change)
        error = refusal(lambda new=changed: kit.namespace.update_queue(new, kit.now_ms))
        assert error.kind is errors.NOT_ALLOWED


def test_e3_a_bad_setting_changes_nothing() -> None:
    kit = Kit()
    queue = kit.queue()
    before = queue.description
    bad = replace(before, lock_duration_ms=1)
    error = refusal(lambda: kit.namespace.update_queue(bad, kit.now_ms))
    assert error.kind is errors.ARGUMENT_ERROR
    assert queue.description is before


def test_e3_topics_and_subscriptions_are_updated_too() -> None:
    kit = Kit()
    topic = kit.topic()
    subscription = kit.subscription()
    kit.namespace.update_topic(
        replace(topic.description, default_message_time_to_live_ms=1_000), kit.now_ms
    )
    kit.namespace.update_subscription(
        replace(subscription.description, max_delivery_count=1), kit.now_ms
    )
    kit.send(topic, payload())
    assert subscription.main.expires_ms(1) == kit.now_ms + 1_000
    assert subscription.main.max_delivery_count == 1


def test_e3_disabling_tells_those_who_are_attached() -> None:
    kit = Kit()
    queue = kit.queue()
    sender, receiver = SendingLink(), kit.taker(queue)
    queue.senders[sender] = None
    kit.namespace.update_queue(replace(queue.description, status="Disabled"), kit.now_ms)
    for error in (sender.error, receiver.detached):
        assert error is not None
        assert error.kind is errors.ENTITY_DISABLED


# --- deleting ----------------------------------------------------------------------------


def test_e1_what_is_deleted_is_gone_with_all_that_is_in_it() -> None:
    kit = Kit()
    queue = kit.queue()
    sender, receiver = SendingLink(), kit.taker(queue, credit=0)
    queue.senders[sender] = None
    kit.send(queue, payload())
    kit.namespace.delete("Q")
    assert sender.error is not None
    assert receiver.detached is not None
    assert receiver.detached.kind is errors.NOT_FOUND
    kernel = kit.engine.kernel
    assert (kernel.live_bytes, kernel.cached_bytes) == (0, 0)
    assert refusal(lambda: queue.check(take_in(payload(), str))).kind is errors.NOT_FOUND
    kit.restart()
    assert kit.namespace.find("q") is None
    assert kit.bodies(kit.queue()) == []


def test_e1_a_topic_takes_its_subscriptions_with_it() -> None:
    kit = Kit()
    kit.topic()
    subscription = kit.subscription()
    receiver = kit.taker(subscription)
    kit.namespace.delete("t")
    assert receiver.detached is not None
    kit.restart()
    kit.topic()
    assert kit.namespace.topic("t").subscriptions == {}


def test_e1_an_entity_made_anew_begins_anew() -> None:
    kit = Kit()
    queue = kit.queue(requires_duplicate_detection=True)
    kit.send(queue, payload(message_id="x"))
    kit.namespace.delete("q")
    kit.restart()
    queue = kit.queue(requires_duplicate_detection=True)
    kit.send(queue, payload(b"again", message_id="x"))
    assert kit.bodies(queue) == [b"again"]
    assert queue.main.next_seq == 2
    kit.restart()
    assert kit.bodies(kit.namespace.queue("q")) == [b"again"]


# --- limits ------------------------------------------------------------------------------


def test_e4_a_message_may_be_as_large_as_the_entity_says() -> None:
    kit = Kit()
    small, large = kit.queue("small"), kit.queue("large", max_message_size_in_kilobytes=1024)
    message = payload(b"x" * 256 * 1024)
    assert refusal(lambda: kit.send(small, message)).kind is errors.MESSAGE_TOO_LARGE
    kit.send(large, message)
    assert len(kit.bodies(large)) == 1


def test_e4_properties_have_a_limit_of_their_own() -> None:
    kit = Kit()
    queue = kit.queue()
    message = payload(properties={"a": "x" * 64 * 1024})
    assert refusal(lambda: kit.send(queue, message)).kind is errors.MESSAGE_TOO_LARGE


def test_e11_a_full_queue_refuses_sends_and_keeps_what_it_has() -> None:
    kit = Kit(memory_bytes_max=0)
    queue = kit.queue(max_size_in_megabytes=1)
    for _ in range(5):
        kit.send(queue, payload(b"x" * 250_000))
    assert refusal(lambda: kit.send(queue, payload())).kind is errors.QUOTA_EXCEEDED
    assert len(kit.bodies(queue)) == 5
    kit.taker(queue, credit=2, peek_lock=False)
    kit.send(queue, payload())
    kit.restart()
    queue = kit.namespace.queue("q")
    assert queue.size_bytes() == sum(s.index.bytes for s in queue.streams.values())
    assert queue.size_bytes() == kit.engine.kernel.live_bytes


def test_s6_a_batch_is_checked_whole_before_any_of_it_is_placed() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    batch = [payload(session_id="s"), payload()]
    assert refusal(lambda: kit.send(queue, *batch)).kind is errors.NOT_ALLOWED
    assert kit.bodies(queue) == []


def test_e1_a_topic_has_a_bounded_number_of_rules_and_subscriptions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twinbus.core.limits.SUBSCRIPTIONS_MAX", 1)
    kit = Kit()
    kit.topic()
    kit.subscription("one")
    assert refusal(lambda: kit.subscription("two")).kind is errors.QUOTA_EXCEEDED


# --- AutoDeleteOnIdle --------------------------------------------------------------------


def test_e3_an_idle_queue_deletes_itself() -> None:
    kit = Kit()
    kit.queue(auto_delete_on_idle_ms=IDLE_MS)
    kit.wait(IDLE_MS - 1)
    assert kit.namespace.find("q") is not None
    kit.wait(1)
    assert kit.namespace.find("q") is None
    kit.restart()
    assert kit.namespace.find("q") is None


def test_e3_sends_and_receivers_keep_a_queue_alive() -> None:
    kit = Kit()
    queue = kit.queue(auto_delete_on_idle_ms=IDLE_MS)
    kit.wait(IDLE_MS - 1)
    kit.send(queue, payload())
    kit.wait(IDLE_MS - 1)
    taker: Taker = kit.taker(queue, credit=0)
    kit.wait(3 * IDLE_MS)
    assert kit.namespace.find("q") is queue
    queue.main.detach(taker, kit.now_ms)
    kit.wait(IDLE_MS)
    assert kit.namespace.find("q") is None


def every_minute(kit: Kit, passed_ms: int, do: Callable[[], object]) -> None:
    for _ in range(passed_ms // MINUTE_MS):
        do()
        kit.wait(MINUTE_MS)


def gone_after_idling(kit: Kit, path: str) -> bool:
    """Tell whether an entity stays for as long as it may be idle, and then goes."""
    kit.wait(IDLE_MS - 1)
    assert kit.namespace.find(path) is not None
    kit.wait(1)
    return kit.namespace.find(path) is None


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_e3_a_scheduled_message_keeps_an_entity_until_it_is_due(kind: str) -> None:
    kit = Kit()
    settings = {"auto_delete_on_idle_ms": IDLE_MS}
    entity = kit.queue("e", **settings) if kind == "queue" else kit.topic("e", **settings)
    kit.send(entity, payload(due_ms=kit.now_ms + 12 * IDLE_MS - 1))
    kit.wait(12 * IDLE_MS - 2)
    assert kit.namespace.find("e") is entity
    kit.wait(1)
    assert gone_after_idling(kit, "e")


def test_e3_a_cancelled_message_keeps_nothing() -> None:
    kit = Kit()
    queue = kit.queue(auto_delete_on_idle_ms=IDLE_MS)
    kit.send(queue, payload(due_ms=kit.now_ms + 12 * IDLE_MS))
    queue.main.cancel([1])
    assert gone_after_idling(kit, "q")


def test_e3_l3_a_reservation_keeps_a_queue_until_it_is_settled() -> None:
    kit = Kit()
    queue = kit.queue(auto_delete_on_idle_ms=IDLE_MS)
    kit.send(queue, payload())
    reserving.reserve(queue, queue.main, "job", 1, 1, kit.now_ms)
    kit.wait(3 * IDLE_MS)
    assert reserving.settle_upto(queue.main, "job", 1) == 1
    assert gone_after_idling(kit, "q")


def test_e3_e9_what_forwards_is_in_use() -> None:
    kit = Kit()
    topic, target = kit.topic(), kit.queue("target")
    kit.subscription(auto_delete_on_idle_ms=IDLE_MS, forward_to="target")
    every_minute(kit, 3 * IDLE_MS, lambda: kit.send(topic, payload()))
    assert len(kit.bodies(target)) == 3 * IDLE_MS // MINUTE_MS
    kit.wait(3 * IDLE_MS)
    subscription = kit.namespace.subscription("t", "s")
    stays = replace(subscription.description, forward_to=None)
    kit.namespace.update_subscription(stays, kit.now_ms)
    assert gone_after_idling(kit, "t/Subscriptions/s")


def test_e3_e9_a_target_is_used_by_what_is_forwarded_to_it() -> None:
    kit = Kit()
    target = kit.queue("target", auto_delete_on_idle_ms=IDLE_MS)
    source = kit.queue("source", forward_to="target")
    every_minute(kit, 3 * IDLE_MS, lambda: kit.send(source, payload()))
    assert len(kit.bodies(target)) == 3 * IDLE_MS // MINUTE_MS
    kit.send(source, payload())
    assert gone_after_idling(kit, "target")


def test_e3_d7_a_target_is_used_by_dead_letters() -> None:
    kit = Kit()
    kit.queue("graves", auto_delete_on_idle_ms=IDLE_MS)
    kit.topic()
    kit.subscription(requires_session=True, forward_dead_lettered_messages_to="graves")
    topic = kit.namespace.topic("t")
    every_minute(kit, 3 * IDLE_MS, lambda: kit.send(topic, payload()))
    assert kit.namespace.find("graves") is not None


def test_e3_a_receiver_that_leaves_has_used_the_queue() -> None:
    kit = Kit()
    queue = kit.queue(auto_delete_on_idle_ms=IDLE_MS)
    kit.send(queue, payload(), payload())
    taker = kit.taker(queue, credit=0)
    kit.wait(IDLE_MS)
    kit.wait(IDLE_MS - 2_000)
    taker.ask()
    kit.settle(queue, queue.main, taker.locks[0], PLAIN_COMPLETE)
    queue.main.detach(taker, kit.now_ms)
    assert gone_after_idling(kit, "q")


def test_e3_a_receiver_of_dead_letters_counts_as_well() -> None:
    kit = Kit()
    queue = kit.queue(auto_delete_on_idle_ms=IDLE_MS)
    taker = kit.taker(queue, 1, credit=0)
    kit.wait(IDLE_MS)
    kit.wait(IDLE_MS - 2_000)
    taker.stream.detach(taker, kit.now_ms)
    assert gone_after_idling(kit, "q")


def test_e3_a_topic_is_used_through_its_subscriptions() -> None:
    kit = Kit()
    kit.topic(auto_delete_on_idle_ms=IDLE_MS)
    subscription = kit.subscription()
    taker = kit.taker(subscription, credit=0)
    kit.wait(3 * IDLE_MS - 1)
    assert taker.detached is None
    subscription.main.detach(taker, kit.now_ms)
    kit.wait(MINUTE_MS)
    kit.namespace.create_rule(subscription, RuleDescription("new"), kit.now_ms)
    kit.namespace.delete("t/Subscriptions/s")
    assert gone_after_idling(kit, "t")


def test_e3_a_new_rule_is_use() -> None:
    kit = Kit()
    kit.topic()
    subscription = kit.subscription(auto_delete_on_idle_ms=IDLE_MS)
    kit.wait(IDLE_MS - 1)
    kit.namespace.create_rule(subscription, RuleDescription("new"), kit.now_ms)
    assert gone_after_idling(kit, "t/Subscriptions/s")


def test_e3_a_subscription_that_nobody_receives_from_goes() -> None:
    """What comes to it is no use of it: temporary subscriptions would stay for good."""
    kit = Kit()
    topic = kit.topic()
    kit.subscription(auto_delete_on_idle_ms=IDLE_MS)
    every_minute(kit, IDLE_MS, lambda: kit.send(topic, payload()))
    assert kit.namespace.find("t/Subscriptions/s") is None


def test_e3_idleness_begins_anew_with_a_restart_and_can_be_switched_off() -> None:
    kit = Kit()
    kit.queue(auto_delete_on_idle_ms=IDLE_MS)
    kit.wait(IDLE_MS - 1)
    kit.restart()
    kit.wait(IDLE_MS - 1)
    queue = kit.namespace.queue("q")
    forever = replace(queue.description, auto_delete_on_idle_ms=2**62)
    kit.namespace.update_queue(forever, kit.now_ms)
    kit.wait(3 * IDLE_MS)
    assert kit.namespace.find("q") is queue


def test_p10_a_ping_is_taken_and_seen_by_nobody() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    fields = ["id", *[None] * 5, Symbol("application/vnd.ms-servicebus-ping")]
    message = take_in(section(0x73, fields) + section(0x75, b""), str)
    assert message.is_ping
    queue.check(message)
    assert queue.publish(message, kit.now_ms) == 0
    assert kit.bodies(queue) == []
    assert queue.meter.pings == queue.meter.sends == 1
