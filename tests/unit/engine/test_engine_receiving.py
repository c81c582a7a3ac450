"""Receiving, locks and settlement (R1–R10), on one queue."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from engine_kit import LOCK_MS, Kit, payload, properties_of, refusal

from twinbus.core import errors
from twinbus.engine import settlement
from twinbus.engine import stored as form
from twinbus.engine.settlement import PLAIN_COMPLETE, PLAIN_RELEASE, Settlement


def test_r1_receive_and_delete_removes_what_it_delivers() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"))
    taker = kit.taker(queue, credit=1, peek_lock=False)
    assert taker.bodies == [b"a"]
    assert taker.locks == []
    assert kit.bodies(queue) == [b"b"]


def test_r2_a_locked_message_is_nobody_elses() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"))
    first = kit.taker(queue)
    second = kit.taker(queue, credit=5)
    assert (first.bodies, second.bodies) == ([b"a"], [b"b"])
    assert first.locks[0].locked_until_ms == kit.now_ms + LOCK_MS


def test_r2_lock_tokens_differ_between_streams_and_deliveries() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue)
    first = taker.locks[0].low
    kit.settle(queue, queue.main, taker.locks[0], PLAIN_RELEASE)
    taker.ask()
    assert taker.locks[1].low != first
    assert queue.main.token_high != kit.queue("other").main.token_high
    assert queue.main.lock_by_low(taker.locks[1].low) is taker.locks[1]
    assert refusal(lambda: queue.main.lock_by_low(first)).kind is errors.MESSAGE_LOCK_LOST


def test_r2_r8_lock_tokens_hold_whatever_the_sequence_number() -> None:
    """A token has room for 40 bits of it."""
    kit = Kit()
    queue = kit.queue()
    stream = queue.main
    kit.send(queue, payload())
    stream.next_seq = 2**40
    kit.send(queue, payload(), payload(), payload())
    stream.next_seq = 5 * 2**40 + 1
    kit.send(queue, payload())
    taker = kit.taker(queue, credit=5)
    assert taker.seqs == [1, 2**40, 2**40 + 1, 2**40 + 2, 5 * 2**40 + 1]
    for lock, stored in zip(taker.locks, taker.stored, strict=True):
        form.locked_head(stored, lock.seq, 0, 0, stream.token_high, lock.low, lock.locked_until_ms)
        assert stream.lock_by_low(lock.low) is lock
    for lock in taker.locks:
        kit.settle(queue, stream, stream.lock_by_low(lock.low), PLAIN_COMPLETE)
        assert refusal(partial(stream.lock_by_low, lock.low)).kind is errors.MESSAGE_LOCK_LOST
    assert kit.bodies(queue) == []


def test_r2_messages_come_in_order_and_receivers_take_turns() -> None:
    kit = Kit()
    queue = kit.queue()
    first = kit.taker(queue, credit=100)
    second = kit.taker(queue, credit=100)
    kit.send(queue, *[payload(b"%d" % n) for n in range(150)])
    assert sorted(first.seqs + second.seqs) == list(range(1, 151))
    assert first.seqs == sorted(first.seqs)
    assert min(len(first.seqs), len(second.seqs)) > 0


@pytest.mark.parametrize(("passed_ms", "is_back"), [(LOCK_MS - 1, False), (LOCK_MS, True)])
def test_r3_a_lock_ends_at_its_last_millisecond(passed_ms: int, is_back: bool) -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"))
    kit.taker(queue)
    kit.wait(passed_ms)
    other = kit.taker(queue)
    assert other.bodies == ([b"a"] if is_back else [b"b"])
    assert other.counts == [1 if is_back else 0]


def test_r3_an_abandoned_message_goes_back_to_its_place() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"))
    taker = kit.taker(queue)
    kit.settle(queue, queue.main, taker.locks[0], Settlement(settlement.ABANDON))
    taker.ask(2)
    assert taker.bodies == [b"a", b"a", b"b"]
    assert taker.counts == [0, 1, 0]


def test_r4_complete_removes() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue)
    kit.settle(queue, queue.main, taker.locks[0], PLAIN_COMPLETE)
    assert kit.bodies(queue) == []


def test_r4_abandon_changes_properties() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(properties={"kept": 1, "changed": "old"}))
    taker = kit.taker(queue)
    wanted = Settlement(settlement.ABANDON)
    wanted.take_properties({"changed": "new", "added": True})
    kit.settle(queue, queue.main, taker.locks[0], wanted)
    taker.ask()
    assert properties_of(taker.stored[1]) == {"kept": 1, "changed": "new", "added": True}


def test_r4_abandon_with_a_delay_holds_the_message_back() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"))
    taker = kit.taker(queue)
    wanted = Settlement(settlement.ABANDON)
    wanted.take_properties({settlement.DELAY: 500})
    kit.settle(queue, queue.main, taker.locks[0], wanted)
    taker.ask(5)
    kit.wait(499)
    assert taker.bodies == [b"a", b"b"]
    kit.wait(1)
    assert taker.bodies == [b"a", b"b", b"a"]
    assert settlement.DELAY not in properties_of(taker.stored[2])


def test_a_released_message_was_never_delivered() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue)
    kit.settle(queue, queue.main, taker.locks[0], PLAIN_RELEASE)
    taker.ask()
    assert taker.counts == [0, 0]


@pytest.mark.parametrize(
    "what",
    [
        settlement.COMPLETE,
        settlement.ABANDON,
        settlement.DEFER,
        settlement.DEAD_LETTER,
        settlement.RELEASE,
    ],
)
def test_r5_a_late_settlement_touches_nothing(what: int) -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    late = kit.taker(queue).locks[0]
    kit.now_ms += LOCK_MS
    error = refusal(lambda: Settlement(what).apply(queue, queue.main, late, kit.now_ms))
    assert error.kind is errors.MESSAGE_LOCK_LOST
    # Nor does one that comes when the message has a new holder.
    other = kit.taker(queue)
    assert other.counts == [1]
    error = refusal(lambda: Settlement(what).apply(queue, queue.main, late, kit.now_ms))
    assert error.kind is errors.MESSAGE_LOCK_LOST
    kit.settle(queue, queue.main, other.locks[0], PLAIN_COMPLETE)


def test_r5_a_message_is_settled_once() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    lock = kit.taker(queue).locks[0]
    queue.main.complete(lock, kit.now_ms)
    error = refusal(lambda: queue.main.complete(lock, kit.now_ms))
    assert error.kind is errors.MESSAGE_LOCK_LOST


def test_r6_renewing_prolongs_by_the_lock_duration() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"))
    taker = kit.taker(queue, credit=2)
    kit.wait(LOCK_MS - 1)
    assert queue.main.renew(taker.locks[0], kit.now_ms) == kit.now_ms + LOCK_MS
    kit.wait(1)
    # The other lock ended when it had to, though it was taken after the renewed one.
    queue.main.check_lock(taker.locks[0], kit.now_ms)
    assert not queue.main.holds(taker.locks[1])
    kit.wait(LOCK_MS - 1)
    error = refusal(lambda: queue.main.renew(taker.locks[0], kit.now_ms))
    assert error.kind is errors.MESSAGE_LOCK_LOST


def test_r7_a_restart_drops_locks_and_keeps_counts() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue)
    kit.settle(queue, queue.main, taker.locks[0], Settlement(settlement.ABANDON))
    taker.ask()
    kit.restart()
    assert kit.taker(kit.namespace.queue("q")).counts == [1]


def test_r7_a_change_to_the_queue_drops_locks_without_counting() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue)
    kit.namespace.update_queue(replace(queue.description, lock_duration_ms=10_000), kit.now_ms)
    kit.settle_down()
    assert not queue.main.holds(taker.locks[0])
    other = kit.taker(queue)
    assert other.counts == [0]
    assert other.locks[0].locked_until_ms == kit.now_ms + 10_000


def test_r7_the_end_of_the_connection_drops_locks_and_counts() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue)
    queue.main.detach(taker, kit.now_ms)
    queue.main.drop_lock(taker.locks[0], kit.now_ms)
    assert kit.taker(queue).counts == [1]


def test_r8_the_end_of_a_link_alone_leaves_its_locks() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue)
    queue.main.detach(taker, kit.now_ms)
    assert kit.taker(queue).bodies == []
    kit.settle(queue, queue.main, taker.locks[0], PLAIN_COMPLETE)
    assert kit.bodies(queue) == []


def test_r9_a_receiver_that_waits_gets_what_comes_later() -> None:
    kit = Kit()
    queue = kit.queue()
    taker = kit.taker(queue)
    kit.wait(60_000)
    kit.send(queue, payload(b"late"))
    assert taker.bodies == [b"late"]


def test_s1_r10_nothing_is_delivered_before_it_is_durable() -> None:
    kit = Kit()
    queue = kit.queue()
    taker = kit.taker(queue)
    kernel = kit.engine.kernel
    queue.main.place(b"\xff\xff\xff\xff\0\xff" + bytes(12) + payload(), kit.now_ms, 0)
    kernel.dispatch_ready(kit.now_ms)
    sealed = kernel.seal()
    kernel.dispatch_ready(kit.now_ms)
    assert taker.bodies == []
    assert queue.main.browse(1, 10, None, bytes((1,))) == []
    kernel.committed(sealed)
    kernel.dispatch_ready(kit.now_ms)
    assert taker.bodies == [b"body"]


def test_r10_what_was_not_settled_comes_again_after_a_restart() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"a", message_id="one"), payload(b"b", message_id="two"))
    taker = kit.taker(queue, credit=2)
    kit.settle(queue, queue.main, taker.locks[0], PLAIN_COMPLETE)
    kit.restart()
    again = kit.taker(kit.namespace.queue("q"), credit=5)
    assert again.bodies == [b"b"]
    assert again.seqs == [2]


def test_a_queue_that_is_disabled_for_receiving_delivers_nothing() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    waiting = kit.taker(queue, credit=0)
    changed = replace(queue.description, status="ReceiveDisabled")
    kit.namespace.update_queue(changed, kit.now_ms)
    assert waiting.detached is not None
    assert refusal(queue.check_receive).kind is errors.ENTITY_DISABLED
    assert kit.taker(queue).bodies == []
