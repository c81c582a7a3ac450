"""Scheduled and deferred messages, and peeking (E5)."""

from __future__ import annotations

import pytest
from engine_kit import LOCK_MS, Kit, payload, refusal

from twinbus.core import errors
from twinbus.engine import returning, settlement
from twinbus.engine.entities import Queue
from twinbus.engine.index import ACTIVE, DEFERRED, LOCKED, SCHEDULED
from twinbus.engine.message import take_in
from twinbus.engine.settlement import PLAIN_COMPLETE, Settlement

EVERY_STATE = bytes((ACTIVE, LOCKED, DEFERRED, SCHEDULED))


def schedule(kit: Kit, queue: Queue, body: bytes, wait_ms: int) -> int:
    message = take_in(payload(body, due_ms=kit.now_ms + wait_ms), str)
    seq = queue.publish(message, kit.now_ms)
    kit.settle_down()
    return seq


def defer(kit: Kit, queue: Queue) -> int:
    taker = kit.taker(queue)
    kit.settle(queue, queue.main, taker.locks[0], Settlement(settlement.DEFER))
    queue.main.detach(taker, kit.now_ms)
    return taker.locks[0].seq


def test_e5_a_scheduled_message_is_invisible_until_it_is_due() -> None:
    kit = Kit()
    queue = kit.queue()
    taker = kit.taker(queue, credit=5)
    schedule(kit, queue, b"later", 1_000)
    kit.send(queue, payload(b"now"))
    kit.wait(999)
    assert taker.bodies == [b"now"]
    kit.wait(1)
    assert taker.bodies == [b"now", b"later"]


def test_e5_a_scheduled_message_gets_a_new_number_and_date_when_it_is_due() -> None:
    kit = Kit()
    queue = kit.queue()
    assert schedule(kit, queue, b"later", 1_000) == 1
    kit.wait(1_000)
    assert queue.main.browse(1, 9, None, EVERY_STATE) == [2]
    assert queue.main.enqueued_ms(2) == kit.now_ms


def test_e5_scheduled_messages_come_in_the_order_in_which_they_are_due() -> None:
    kit = Kit()
    queue = kit.queue()
    for body, wait_ms in ((b"c", 3_000), (b"a", 1_000), (b"b", 2_000)):
        schedule(kit, queue, body, wait_ms)
    kit.restart()
    kit.wait(5_000)
    assert kit.bodies(kit.namespace.queue("q")) == [b"a", b"b", b"c"]


def test_e5_a_time_to_live_begins_when_a_message_is_due() -> None:
    kit = Kit()
    queue = kit.queue()
    message = take_in(payload(ttl_ms=500, due_ms=kit.now_ms + 1_000), str)
    queue.publish(message, kit.now_ms)
    kit.wait(1_000)
    assert queue.main.expires_ms(2) == kit.now_ms + 500


def test_e5_what_is_scheduled_for_the_past_is_sent_at_once() -> None:
    kit = Kit()
    queue = kit.queue()
    assert schedule(kit, queue, b"past", -1) == 0
    assert kit.taker(queue).bodies == [b"past"]


def test_e5_a_message_scheduled_on_purpose_gets_a_number_even_for_the_past() -> None:
    kit = Kit()
    queue = kit.queue()
    message = take_in(payload(due_ms=kit.now_ms - 5), str)
    assert queue.publish_scheduled(message, kit.now_ms) == 1
    kit.wait(1)
    assert len(kit.taker(queue).bodies) == 1


def test_e5_a_scheduled_message_can_be_cancelled() -> None:
    kit = Kit()
    queue = kit.queue()
    seq = schedule(kit, queue, b"never", 1_000)
    queue.main.cancel([seq])
    kit.wait(1_000)
    assert kit.bodies(queue) == []
    assert refusal(lambda: queue.main.cancel([seq])).kind is errors.MESSAGE_NOT_FOUND


def test_e5_cancelling_is_all_or_nothing() -> None:
    kit = Kit()
    queue = kit.queue()
    seq = schedule(kit, queue, b"stays", 1_000)
    assert refusal(lambda: queue.main.cancel([seq, 77])).kind is errors.MESSAGE_NOT_FOUND
    assert kit.bodies(queue) == [b"stays"]


def test_e5_a_cancelled_message_stays_cancelled_after_a_restart() -> None:
    kit = Kit()
    queue = kit.queue()
    seq = schedule(kit, queue, b"never", 1_000)
    schedule(kit, queue, b"later", 1_000)
    queue.main.cancel([seq])
    kit.settle_down()
    kit.restart()
    kit.wait(1_000)
    assert kit.taker(kit.namespace.queue("q"), credit=5).bodies == [b"later"]


def test_e5_a_topic_fans_out_when_a_message_is_due() -> None:
    kit = Kit()
    topic = kit.topic()
    subscription = kit.subscription()
    topic.publish(take_in(payload(b"x", due_ms=kit.now_ms + 1_000), str), kit.now_ms)
    kit.wait(999)
    assert kit.bodies(subscription) == []
    kit.wait(1)
    assert kit.bodies(subscription) == [b"x"]


def test_e5_a_deferred_message_comes_only_by_its_number() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"put aside"), payload(b"next"))
    seq = defer(kit, queue)
    assert kit.taker(queue, credit=5).bodies == [b"next"]
    (lock,) = queue.main.fetch_deferred([seq], None, None, kit.now_ms)
    kit.settle(queue, queue.main, lock, PLAIN_COMPLETE)
    assert kit.bodies(queue) == [b"next"]


def test_e5_deferred_messages_survive_a_restart() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    seq = defer(kit, queue)
    kit.restart()
    queue = kit.namespace.queue("q")
    assert kit.taker(queue).bodies == []
    assert len(queue.main.fetch_deferred([seq], None, None, kit.now_ms)) == 1


@pytest.mark.parametrize("how", ["abandon", "lock lapses"])
def test_e5_a_deferred_message_stays_deferred_until_it_is_settled(how: str) -> None:
    kit = Kit()
    queue = kit.queue(max_delivery_count=1)
    kit.send(queue, payload())
    seq = defer(kit, queue)
    (lock,) = queue.main.fetch_deferred([seq], None, None, kit.now_ms)
    if how == "abandon":
        kit.settle(queue, queue.main, lock, Settlement(settlement.ABANDON))
    else:
        kit.wait(LOCK_MS)
    assert queue.main.index.state(seq) == DEFERRED
    assert queue.main.counts[seq] == 2


def test_e5_a_deferred_message_does_not_expire() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(ttl_ms=1_000))
    seq = defer(kit, queue)
    kit.taker(queue, credit=0)
    kit.wait(60_000)
    assert queue.main.index.state(seq) == DEFERRED


def test_e5_fetching_is_all_or_nothing() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(), payload())
    seq = defer(kit, queue)
    ask = lambda: queue.main.fetch_deferred([seq, 2], None, None, kit.now_ms)  # noqa: E731
    assert refusal(ask).kind is errors.MESSAGE_NOT_FOUND
    assert queue.main.locked == {}


def test_e5_a_fetched_message_cannot_be_fetched_again_meanwhile() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    seq = defer(kit, queue)
    queue.main.fetch_deferred([seq], None, None, kit.now_ms)
    ask = lambda: queue.main.fetch_deferred([seq], None, None, kit.now_ms)  # noqa: E731
    assert refusal(ask).kind is errors.MESSAGE_NOT_FOUND


def test_a_deferred_message_can_be_made_active_again_in_its_place() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"))
    seq = defer(kit, queue)
    returning.undefer(queue, queue.main, [seq], kit.now_ms)
    kit.settle_down()
    assert kit.taker(queue, credit=5).bodies == [b"a", b"b"]


def test_e5_peeking_shows_every_state_and_locks_nothing() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"1"), payload(b"2"), payload(b"3"))
    defer(kit, queue)
    kit.taker(queue)
    schedule(kit, queue, b"4", 1_000)
    stream = queue.main
    assert stream.browse(0, 10, None, EVERY_STATE) == [1, 2, 3, 4]
    assert [stream.index.state(seq) for seq in (1, 2, 3, 4)] == [
        DEFERRED,
        LOCKED,
        ACTIVE,
        SCHEDULED,
    ]
    assert stream.browse(2, 2, None, EVERY_STATE) == [2, 3]
    assert stream.browse(1, 10, None, bytes((SCHEDULED,))) == [4]
    assert stream.count_state(ACTIVE) == 1
    assert kit.taker(queue).bodies == [b"3"]


def test_e5_e6_peeking_can_keep_to_one_session() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    kit.send(queue, payload(session_id="a"), payload(session_id="b"), payload(session_id="a"))
    assert queue.main.browse(1, 10, "a", EVERY_STATE) == [1, 3]


def test_e5_what_is_cancelled_does_not_stay_until_it_would_be_due() -> None:
    kit = Kit()
    queue = kit.queue()
    far_ms = kit.now_ms + 2**40
    kit.send(queue, *[payload(b"%d" % n, due_ms=kit.now_ms + 5_000 - n) for n in range(100)])
    for _ in range(20):
        kit.send(queue, *[payload(due_ms=far_ms)] * 500)
        queue.main.cancel(list(range(queue.main.next_seq - 500, queue.main.next_seq)))
        assert len(queue.main.scheduled) <= 2 * 100 + 1_500
    assert len(queue.main.due) == 100
    kit.wait(5_000)
    assert kit.bodies(queue) == [b"%d" % n for n in reversed(range(100))]
