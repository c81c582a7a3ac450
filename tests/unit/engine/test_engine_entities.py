"""Entities of a namespace: names, settings, quotas, idleness (E1, E2, E3, E11)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_kit import Kit, Taker, payload, refusal, section

from twinbus.amqp.types import Symbol
from twinbus.core import errors
from twinbus.core.descriptions import AuthorizationRule
from twinbus.core.errors import BusError
from twinbus.core.units import MINUTE_MS
from twinbus.engine.consumer import Attachment
from twinbus.engine.message import take_in

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
