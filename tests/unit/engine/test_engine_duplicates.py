"""Duplicate detection (E7)."""

from __future__ import annotations

from dataclasses import replace

from engine_kit import Kit, payload, section

from twinbus.amqp.types import Symbol
from twinbus.core.units import MINUTE_MS
from twinbus.engine.duplicates import DuplicateHistory
from twinbus.engine.entities import Queue
from twinbus.engine.returning import resubmit

WINDOW_MS = 10 * MINUTE_MS
TRANSFER = 2


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


def test_e7_e9_a_forwarded_message_counts_like_a_sent_one() -> None:
    kit = Kit()
    target = dup_queue(kit)
    source = kit.queue("source", forward_to="q")
    kit.send(source, payload(b"1", message_id="x"), payload(b"2", message_id="x"))
    kit.send(target, payload(b"3", message_id="x"), payload(b"4", message_id="y"))
    kit.send(source, payload(b"5", message_id="y"))
    assert kit.bodies(target) == [b"1", b"4"]
    kit.restart()
    kit.send(kit.namespace.queue("source"), payload(b"6", message_id="x"))
    assert kit.bodies(kit.namespace.queue("q")) == [b"1", b"4"]
    kit.wait(WINDOW_MS)
    kit.send(kit.namespace.queue("source"), payload(b"7", message_id="x"))
    assert kit.bodies(kit.namespace.queue("q")) == [b"1", b"4", b"7"]
    assert kit.bodies(kit.namespace.queue("source"), TRANSFER) == []


def test_e7_e9_what_reaches_a_target_by_two_ways_is_there_once() -> None:
    kit = Kit()
    target = dup_queue(kit)
    topic = kit.topic()
    kit.subscription("one", forward_to="q")
    kit.subscription("other", forward_to="q")
    kit.send(topic, payload(message_id="x"))
    assert len(kit.bodies(target)) == 1


def test_e7_e9_what_waited_and_what_was_scheduled() -> None:
    """Detected when they come to the target, not when they were sent to the source."""
    kit = Kit()
    target, source = dup_queue(kit), kit.queue("source")
    kit.send(source, payload(b"1", message_id="x"), payload(b"2", message_id="x"))
    kit.send(source, payload(b"3", message_id="x", due_ms=kit.now_ms + 1_000))
    kit.namespace.update_queue(replace(source.description, forward_to="q"), kit.now_ms)
    kit.wait(1_000)
    assert kit.bodies(target) == [b"1"]
    assert kit.bodies(source) == []


def test_e7_d7_a_dead_letter_is_never_a_duplicate() -> None:
    """It is the last copy of its message: nor does it keep out what is sent later."""
    kit = Kit()
    topic, graves = kit.topic(), dup_queue(kit)
    kit.queue("way", forward_to="q")
    kit.subscription("one", requires_session=True, forward_dead_lettered_messages_to="q")
    kit.subscription("two", requires_session=True, forward_dead_lettered_messages_to="way")
    kit.send(topic, payload(b"dead", message_id="x"))
    kit.send(graves, payload(b"sent", message_id="x"))
    kit.send(topic, payload(b"dead too", message_id="x"))
    expected = [b"dead", b"dead", b"sent", b"dead too", b"dead too"]
    assert kit.bodies(graves) == expected


def again(body: bytes, mark: str) -> bytes:
    """A dead letter whose id is x, sent again."""
    return section(0x72, {Symbol("x-opt-resubmission"): mark}) + payload(body, message_id="x")


def test_e7_a_dead_letter_sent_again_is_a_duplicate_of_itself_only() -> None:
    kit = Kit()
    queue = dup_queue(kit)
    way = kit.queue("way", forward_to="q")
    kit.send(queue, payload(b"1", message_id="x"))
    kit.send(queue, again(b"2", "one"), again(b"3", "one"), payload(b"4", message_id="x"))
    kit.send(way, again(b"5", "one"), again(b"6", "another"))
    assert kit.bodies(queue) == [b"1", b"2", b"6"]
    kit.restart()
    kit.send(kit.namespace.queue("q"), again(b"7", "one"), again(b"8", "a third"))
    assert kit.bodies(kit.namespace.queue("q")) == [b"1", b"2", b"6", b"8"]


def test_e7_a_mark_that_is_longer_than_an_id_does_not_count() -> None:
    kit = Kit()
    queue = dup_queue(kit)
    kit.send(queue, payload(b"1", message_id="x"), again(b"2", "m" * 200))
    assert kit.bodies(queue) == [b"1"]


def test_e7_d8_what_was_refused_is_not_remembered() -> None:
    kit = Kit()
    target = dup_queue(kit)
    source = kit.queue("source", forward_to="q")
    kit.namespace.update_queue(replace(target.description, status="Disabled"), kit.now_ms)
    kit.send(source, payload(message_id="x"))
    kit.namespace.update_queue(replace(target.description, status="Active"), kit.now_ms)
    assert resubmit(source, source.stream(TRANSFER), [1], kit.now_ms) == 1
    assert len(kit.bodies(target)) == 1


def test_e7_d8_a_message_in_a_circle_is_no_duplicate_of_itself() -> None:
    """It would be gone without a trace: its forwards are counted instead."""
    kit = Kit()
    topic = kit.topic(requires_duplicate_detection=True)
    subscription = kit.subscription(forward_to="t")
    kit.send(topic, payload(b"1", message_id="x"), payload(b"2", message_id="x"))
    assert kit.bodies(subscription, TRANSFER) == [b"1"]
    queue, other = dup_queue(kit), kit.queue("other", forward_to="q")
    kit.send(queue, payload(b"3", due_ms=kit.now_ms + 1_000))
    kit.namespace.update_queue(replace(queue.description, forward_to="other"), kit.now_ms)
    kit.wait(1_000)
    assert kit.bodies(queue, TRANSFER) == [b"3"]
    assert kit.bodies(other, TRANSFER) == []


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


def test_e7_ids_come_and_go_by_the_thousand() -> None:
    kit = Kit()
    history = DuplicateHistory(1_000)
    for n in range(5_000):
        assert not history.seen(b"%d" % n, n)
        history.remember(b"%d" % n, n, kit.log, 4)
        assert history.seen(b"%d" % max(0, n - 999), n)
        assert not history.seen(b"%d" % (n - 1_000), n)
    assert len(history.ids) == 1_000
    assert history.bytes == 1_000 * (4 + 17)
    # The same ones once more: each has its latest time only.
    for n in range(4_000, 5_000):
        history.remember(b"%d" % n, n + 1_000, kit.log, 4)
    assert history.known() == {b"%d" % n: n + 1_000 for n in range(4_000, 5_000)}
    assert history.bytes == 1_000 * (4 + 17)
    history.remember(b"last", 9_000, kit.log, 4)
    while len(history.ids) > 1:
        history.remember(b"last", 9_000, kit.log, 4)
    assert history.bytes == 4 + 17


def test_e7_compaction_carries_some_ids_at_a_time() -> None:
    kit = Kit()
    history = DuplicateHistory(1_000)
    for n in range(2_000):
        history.remember(b"%d" % n, n // 2, kit.log, 4)
    limit = kit.log.records[1_500][0]
    at, written = history.carry(0, limit, 1_100, kit.log, 4)
    while at:
        before = kit.log.carried
        at, size = history.carry(at, limit, 1_100, kit.log, 4)
        written += size
        assert kit.log.carried - before <= 512
    # Of the 1,500 that were written before the place 202 count no longer.
    assert kit.log.carried == 1_500 - 202
    assert written == sum(len(record) for _, record in kit.log.records[2_000:])
    assert sorted(history.known().values()) == sorted(n // 2 for n in range(202, 2_000))
    assert history.carry(0, limit, 1_100, kit.log, 4) == (0, 0)


def test_e7_the_journal_keeps_as_much_as_is_said() -> None:
    kit = Kit()
    queue = dup_queue(kit)
    before = kit.engine.kept_bytes()
    written = sum(len(record) for _, record in kit.log.records)
    kit.send(queue, *[payload(message_id=f"number {n}") for n in range(100)])
    written = sum(len(record) + 4 for _, record in kit.log.records) - written
    kept = kit.engine.kept_bytes() - before
    assert 0.9 * written < kept <= written
    kit.restart()
    assert kit.engine.kept_bytes() == before + kept
    kit.namespace.delete("q")
    assert kit.engine.kept_bytes() == 0
