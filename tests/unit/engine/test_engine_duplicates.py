"""Duplicate detection (E7)."""

from __future__ import annotations

from engine_kit import Kit, payload

from twinbus.core.units import MINUTE_MS
from twinbus.engine.duplicates import DuplicateHistory
from twinbus.engine.entities import Queue

WINDOW_MS = 10 * MINUTE_MS


def dup_queue(kit: Kit, **settings: object) -> Queue:
    return kit.queue(requires_duplicate_detection=True, **settings)


def test_e7_a_duplicate_is_accepted_and_dropped() -> None:
    kit = Kit()
    queue = dup_queue(kit)
    kit.send(queue, payload(b"1", message_id="x"))
    kit.send(queue, payload(b"2", message_id="x"), payload(b"3", message_id="y"))
    assert kit.bodies(queue) == [b"1", b"3"]


def test_e7_a_completed_message_still_counts() -> None:
    kit = Kit()
    queue = dup_queue(kit)
    kit.send(queue, payload(message_id="x"))
    kit.taker(queue, peek_lock=False)
    kit.send(queue, payload(message_id="x"))
    assert kit.bodies(queue) == []


def test_e7_the_window_ends() -> None:
    kit = Kit()
    queue = dup_queue(kit)
    kit.send(queue, payload(b"1", message_id="x"))
    kit.wait(WINDOW_MS - 1)
    kit.send(queue, payload(b"2", message_id="x"))
    kit.wait(1)
    kit.send(queue, payload(b"3", message_id="x"))
    assert kit.bodies(queue) == [b"1", b"3"]


def test_e7_the_history_survives_a_restart() -> None:
    kit = Kit()
    queue = dup_queue(kit)
    kit.send(queue, payload(message_id="x"))
    kit.wait(WINDOW_MS // 2)
    kit.restart()
    queue = kit.namespace.queue("q")
    kit.send(queue, payload(message_id="x"))
    assert len(kit.bodies(queue)) == 1
    kit.wait(WINDOW_MS // 2)
    kit.send(queue, payload(message_id="x"))
    assert len(kit.bodies(queue)) == 2


def test_e7_duplicates_within_one_batch() -> None:
    kit = Kit()
    queue = dup_queue(kit)
    kit.send(queue, payload(b"1", message_id="x"), payload(b"2", message_id="x"))
    assert kit.bodies(queue) == [b"1"]


def test_e7_ids_of_different_types_are_different() -> None:
    kit = Kit()
    queue = dup_queue(kit)
    kit.send(queue, payload(message_id="1"), payload(message_id=b"1"))
    assert len(kit.bodies(queue)) == 2


def test_e7_a_topic_detects_duplicates_before_it_fans_out() -> None:
    kit = Kit()
    topic = kit.topic(requires_duplicate_detection=True)
    subscription = kit.subscription()
    kit.send(topic, payload(message_id="x"), payload(message_id="x"))
    assert len(kit.bodies(subscription)) == 1


def test_e7_scheduled_messages_are_seen_when_they_are_sent() -> None:
    kit = Kit()
    queue = dup_queue(kit)
    kit.send(queue, payload(b"1", message_id="x", due_ms=kit.now_ms + 1_000))
    kit.send(queue, payload(b"2", message_id="x"))
    kit.wait(1_000)
    assert kit.bodies(queue) == [b"1"]


def test_e7_without_detection_nothing_is_remembered() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(message_id="x"), payload(message_id="x"))
    assert len(kit.bodies(queue)) == 2
    assert queue.history is None


def test_e7_old_ids_are_forgotten_a_few_at_a_time() -> None:
    kit = Kit()
    history = DuplicateHistory(1_000)
    for n in range(10):
        history.remember(b"%d" % n, 0, kit.log, 4)
    assert len(history.ids) == 10
    for n in range(3):
        history.remember(b"new %d" % n, 1_000, kit.log, 4)
    assert len(history.ids) == 10 - 2 * 3 + 3
