"""What streams do unasked goes in bits: no batch is too large, nobody waits for it.

The messages here have 400 KB: three of them are more than one batch may have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from engine_kit import LOCK_MS, Kit, payload

from twinbus.core.names import DEAD_LETTER_STREAM, TRANSFER_STREAM
from twinbus.engine import reserving
from twinbus.engine.entities import Holder, Queue
from twinbus.engine.shifting import shift

SIZE = 400_000
A_BATCH = 3
TTL_MS = 1_000


def large(number: int, **settings: object) -> bytes:
    return payload(b"%d " % number + bytes(SIZE), **settings)  # type: ignore[arg-type]


def numbers(kit: Kit, holder: Holder, which: int = 0) -> list[int]:
    return [int(body.split()[0]) for body in kit.bodies(holder, which)]


def large_queue(kit: Kit, name: str = "q", **settings: object) -> Queue:
    return kit.queue(name, max_message_size_in_kilobytes=1024, **settings)


def filled(kit: Kit, count: int, name: str = "q", **settings: object) -> Queue:
    queue = large_queue(kit, name, **settings)
    for number in range(count):
        kit.send(queue, large(number))
    return queue


def batches(kit: Kit, goes_on: Callable[[], bool]) -> int:
    """Turn until it is over; tell how many batches that took. None may be large."""
    count = 0
    while goes_on():
        written = len(kit.log.records)
        kit.settle_down()
        batch_bytes = sum(len(record) for _, record in kit.log.records[written:])
        assert batch_bytes < (A_BATCH + 1) * SIZE
        count += 1
        assert count < 100, "it does not go on"
    return count


EXPIRING = {
    "default_message_time_to_live_ms": TTL_MS,
    "dead_lettering_on_message_expiration": True,
}


def test_d5_a_mass_of_expired_messages_is_dead_lettered_batch_by_batch() -> None:
    kit = Kit(0)
    queue = filled(kit, 10, **EXPIRING)
    kit.now_ms += TTL_MS
    taker = kit.taker(queue, credit=10)
    assert len(numbers(kit, queue, DEAD_LETTER_STREAM)) == A_BATCH
    assert batches(kit, lambda: queue.main.index.live > 0) == 3
    assert numbers(kit, queue, DEAD_LETTER_STREAM) == list(range(10))
    assert taker.bodies == []


def test_d5_r9_what_has_expired_is_not_delivered_while_it_waits_to_go() -> None:
    kit = Kit(0)
    queue = filled(kit, 10, **EXPIRING)
    kit.now_ms += TTL_MS
    kit.send(queue, payload(b"alive"))
    taker = kit.taker(queue, credit=10)
    # It does not wait for those before it to be gone.
    assert taker.bodies == [b"alive"]
    batches(kit, lambda: queue.main.index.live > 1)
    assert taker.bodies == [b"alive"]
    assert numbers(kit, queue, DEAD_LETTER_STREAM) == list(range(10))


def test_d5_messages_that_are_only_dropped_go_by_the_thousand() -> None:
    kit = Kit(0)
    queue = kit.queue(default_message_time_to_live_ms=TTL_MS)
    for _ in range(20):
        kit.send(queue, *[payload(b"x")] * 1_000)
    kit.now_ms += TTL_MS
    taker = kit.taker(queue, credit=1)
    assert 10_000 < queue.main.index.live < 15_000
    assert batches(kit, lambda: queue.main.index.live > 0) == 2
    assert taker.bodies == []


def test_d5_a_search_past_many_expired_messages_goes_on_in_the_next_batch() -> None:
    kit = Kit(0)
    queue = kit.queue(default_message_time_to_live_ms=TTL_MS)
    for _ in range(45):
        kit.send(queue, *[payload(b"x")] * 1_000)
    kit.now_ms += TTL_MS
    kit.send(queue, payload(b"alive"))
    taker = kit.taker(queue, credit=1)
    assert taker.bodies == []
    batches(kit, lambda: not taker.bodies)
    assert taker.bodies == [b"alive"]


@pytest.mark.parametrize("seeks", [False, True])
def test_d5_e6_the_expired_messages_of_a_session_go_before_the_others_come(seeks: bool) -> None:
    kit = Kit(0)
    queue = large_queue(kit, requires_session=True, **EXPIRING)
    for number in range(10):
        kit.send(queue, large(number, session_id="s"))
    kit.now_ms += TTL_MS
    kit.send(queue, payload(b"alive", session_id="s"))
    if seeks:
        taker = kit.taker(queue, credit=0)
        taker.credit = 10
        queue.main.seek_session(taker, kit.now_ms + 10_000)
    else:
        taker = kit.session_taker(queue, "s", credit=10)
    batches(kit, lambda: queue.main.index.live > 1)
    if seeks:
        assert taker.found == "s"
        queue.main.want(taker)
    kit.settle_down()
    assert taker.bodies == [b"alive"]
    assert numbers(kit, queue, DEAD_LETTER_STREAM) == list(range(10))


def test_d5_those_met_by_a_reservation_go_as_well() -> None:
    kit = Kit(0)
    queue = filled(kit, 10, **EXPIRING)
    kit.now_ms += TTL_MS
    kit.send(queue, payload(b"alive"))
    found = reserving.reserve(queue, queue.main, "job", 1, 100, kit.now_ms)
    assert found is not None
    assert found.ranges == [11, 11]
    batches(kit, lambda: queue.main.index.live > 1)
    assert numbers(kit, queue, DEAD_LETTER_STREAM) == list(range(10))


def test_d5_a_message_that_was_passed_over_has_time_again_when_the_clock_is_set_back() -> None:
    kit = Kit(0)
    queue = filled(kit, 10, **EXPIRING)
    kit.now_ms += TTL_MS
    taker = kit.taker(queue, credit=10)
    gone = len(numbers(kit, queue, DEAD_LETTER_STREAM))
    kit.now_ms -= TTL_MS
    shift(kit.engine, -TTL_MS, kit.now_ms)
    taker.ask(0)
    assert [int(body.split()[0]) for body in taker.bodies] == list(range(gone, 10))


def test_d5_streams_take_turns() -> None:
    kit = Kit(0)
    queues = [filled(kit, 12, name, **EXPIRING) for name in "abc"]
    kit.now_ms += TTL_MS
    for queue in queues:
        queue.main.attach(kit.taker(queue, credit=0), kit.now_ms)
    for _ in range(3):
        kit.settle_down()
    gone = [len(numbers(kit, queue, DEAD_LETTER_STREAM)) for queue in queues]
    assert min(gone) >= A_BATCH
    batches(kit, lambda: any(queue.main.index.live for queue in queues))


def test_e9_what_waits_is_forwarded_batch_by_batch_and_new_messages_behind_it() -> None:
    kit = Kit(0)
    queue = filled(kit, 10)
    target = large_queue(kit, "target")
    kit.namespace.update_queue(replace(queue.description, forward_to="target"), kit.now_ms)
    kit.send(queue, large(10))
    assert len(numbers(kit, target)) == A_BATCH
    batches(kit, lambda: queue.main.index.live > 0)
    assert numbers(kit, target) == list(range(11))
    kit.send(queue, large(11))
    assert numbers(kit, target)[-1] == 11
    assert queue.main.index.live == 0


def test_e9_forwarding_does_not_write_the_payload_again() -> None:
    kit = Kit(0)
    queue = filled(kit, 10)
    target = large_queue(kit, "target")
    written = len(kit.log.records)
    kit.namespace.update_queue(replace(queue.description, forward_to="target"), kit.now_ms)
    batches(kit, lambda: queue.main.index.live > 0)
    assert sum(len(record) for _, record in kit.log.records[written:]) < SIZE
    kit.restart()
    target = kit.namespace.queue("target")
    assert numbers(kit, target) == list(range(10))


def test_e9_forwarding_goes_on_after_a_restart() -> None:
    kit = Kit(0)
    queue = filled(kit, 10)
    large_queue(kit, "target")
    kit.namespace.update_queue(replace(queue.description, forward_to="target"), kit.now_ms)
    kit.settle_down()
    kit.restart()
    queue, target = kit.namespace.queue("q"), kit.namespace.queue("target")
    kit.send(queue, large(10))
    batches(kit, lambda: queue.main.index.live > 0)
    assert numbers(kit, target) == list(range(11))


def test_e9_forwarding_that_is_switched_off_leaves_the_rest_here() -> None:
    kit = Kit(0)
    queue = filled(kit, 10)
    target = large_queue(kit, "target")
    kit.namespace.update_queue(replace(queue.description, forward_to="target"), kit.now_ms)
    kit.settle_down()
    kit.namespace.update_queue(replace(queue.description, forward_to=None), kit.now_ms)
    for _ in range(5):
        kit.settle_down()
    taker = kit.taker(queue, credit=20)
    moved = numbers(kit, target)
    assert moved == list(range(len(moved)))
    assert [int(body.split()[0]) for body in taker.bodies] == list(range(len(moved), 10))


def test_e9_d8_a_circle_ends_although_messages_wait_in_it() -> None:
    kit = Kit(0)
    first, second = filled(kit, 10, "a"), filled(kit, 10, "b")
    for queue, other in ((first, "b"), (second, "a")):
        kit.namespace.update_queue(replace(queue.description, forward_to=other), kit.now_ms)
    batches(kit, lambda: first.main.index.live + second.main.index.live > 0)
    dead = sum(len(numbers(kit, queue, TRANSFER_STREAM)) for queue in (first, second))
    assert dead == 20


def test_e5_a_mass_of_messages_due_at_one_moment_is_activated_batch_by_batch() -> None:
    kit = Kit(0)
    queue = large_queue(kit)
    due_ms = kit.now_ms + 1_000
    for number in range(10):
        kit.send(queue, large(number, due_ms=due_ms))
    taker = kit.taker(queue, credit=20)
    kit.now_ms = due_ms
    assert batches(kit, lambda: len(taker.bodies) < 10) == 4
    assert [int(body.split()[0]) for body in taker.bodies] == list(range(10))


def test_e5_a_topic_with_many_subscriptions_gets_fewer_at_a_time() -> None:
    kit = Kit(0)
    topic = kit.topic()
    for number in range(100):
        kit.subscription(f"s{number}")
    kit.send(topic, *[payload(due_ms=kit.now_ms + 1_000) for _ in range(100)])
    kit.now_ms += 1_000
    kit.settle_down()
    assert 80 < topic.main.index.live < 100
    batches(kit, lambda: topic.main.index.live > 0)
    assert len(kit.bodies(kit.namespace.subscription("t", "s99"))) == 100


@pytest.mark.parametrize("how", ["runs out", "is dropped"])
def test_d3_what_was_delivered_too_often_is_buried_batch_by_batch(how: str) -> None:
    kit = Kit(0)
    queue = filled(kit, 10, max_delivery_count=1)
    taker = kit.taker(queue, credit=10)
    if how == "runs out":
        kit.now_ms += LOCK_MS
    else:
        queue.main.detach(taker, kit.now_ms)
        for lock in taker.locks:
            queue.main.drop_lock(lock, kit.now_ms)
    again = kit.taker(queue, credit=10)
    batches(kit, lambda: queue.main.index.live > 0)
    assert again.bodies == []
    assert numbers(kit, queue, DEAD_LETTER_STREAM) == list(range(10))


def test_r10_what_waits_to_be_buried_is_still_there_after_a_restart() -> None:
    kit = Kit(0)
    queue = filled(kit, 10, max_delivery_count=1)
    kit.taker(queue, credit=10)
    kit.wait(LOCK_MS)
    assert 0 < queue.main.index.live < 10
    kit.restart()
    queue = kit.namespace.queue("q")
    dead = numbers(kit, queue, DEAD_LETTER_STREAM)
    taker = kit.taker(queue, credit=10)
    assert dead + [int(body.split()[0]) for body in taker.bodies] == list(range(10))


def test_a_deleted_entity_does_nothing_more() -> None:
    kit = Kit(0)
    queue = filled(kit, 10, **EXPIRING)
    kit.now_ms += TTL_MS
    kit.taker(queue, credit=10)
    kit.namespace.delete("q")
    written = len(kit.log.records)
    for _ in range(5):
        kit.settle_down()
    assert len(kit.log.records) == written
    assert (kit.engine.kernel.live_bytes, kit.engine.kernel.cached_bytes) == (0, 0)
