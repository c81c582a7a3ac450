"""What all streams share: timers, who is ready, the memory budget, runs of settlements."""

from __future__ import annotations

import struct

import pytest
from engine_kit import LOCK_MS, Kit, ListLog, payload

from twinbus.core.units import DAY_MS
from twinbus.engine import records
from twinbus.engine.engine import Engine
from twinbus.engine.kernel import Kernel, Wakeable
from twinbus.engine.settlement import PLAIN_COMPLETE


class Sleeper(Wakeable):
    def __init__(self) -> None:
        super().__init__()
        self.rings: list[int] = []
        self.dispatched = 0

    def on_timer(self, now_ms: int) -> None:
        self.rings.append(now_ms)

    def dispatch(self, now_ms: int) -> None:
        self.dispatched += 1


class Numbered(Wakeable):
    """Says which one rang."""

    def __init__(self, number: int, rung: list[int]) -> None:
        super().__init__()
        self._number = number
        self._rung = rung

    def on_timer(self, now_ms: int) -> None:
        self._rung.append(self._number)


def make_kernel() -> Kernel:
    return Kernel(ListLog(), 0, lambda count: bytes(count))


def test_timers_ring_once_at_the_earliest_time_asked_for() -> None:
    kernel, sleeper = make_kernel(), Sleeper()
    kernel.call_at(50, sleeper)
    kernel.call_at(20, sleeper)
    kernel.call_at(90, sleeper)
    assert kernel.deadline_ms() == 20
    kernel.run_timers(19)
    assert sleeper.rings == []
    kernel.run_timers(20)
    kernel.run_timers(99)
    assert sleeper.rings == [20]
    assert kernel.deadline_ms() == 0


def test_timers_that_were_set_anew_are_swept() -> None:
    """Each waits for a day far ahead, and over and over for something near before it."""

    def run() -> tuple[list[int], list[int]]:
        kernel = make_kernel()
        rung: list[int] = []
        sleepers = [Numbered(number, rung) for number in range(40)]
        for now_ms in range(1, 300):
            for sleeper in sleepers[now_ms % 3 :: 3]:
                kernel.call_at(now_ms, sleeper)
                kernel.call_at(now_ms, sleeper)
            kernel.run_timers(now_ms)
            for sleeper in sleepers:
                kernel.call_at(1_000_000, sleeper)
            assert len(kernel._timers) <= 2 * 40 + 1
            kernel.run_timers(now_ms)
            assert kernel.deadline_ms() == 1_000_000
        near = list(rung)
        rung.clear()
        kernel.run_timers(1_000_000)
        assert kernel.deadline_ms() == 0
        return near, rung

    near, far = run()
    assert near == [n for now_ms in range(1, 300) for n in range(now_ms % 3, 40, 3)]
    assert sorted(far) == [*range(40)]
    # The simulation relies on it.
    assert run() == (near, far)


def test_d5_a_queue_with_a_time_to_live_keeps_no_timer_for_each_message() -> None:
    kit = Kit()
    queue = kit.queue(default_message_time_to_live_ms=14 * DAY_MS)
    taker = kit.taker(queue, credit=1_000)
    for _ in range(500):
        kit.send(queue, payload())
        queue.main.complete(taker.locks.pop(), kit.now_ms)
        kit.wait(LOCK_MS)
    assert queue.main.index.live == 0
    assert len(kit.engine.kernel._timers) < 100
    kit.send(queue, payload(ttl_ms=1_000))
    queue.main.abandon(taker.locks.pop(), kit.now_ms, None, DAY_MS)
    kit.wait(DAY_MS)
    assert queue.main.index.live == 0


def test_whoever_is_ready_is_dispatched_once() -> None:
    kernel, sleeper = make_kernel(), Sleeper()
    kernel.wake(sleeper)
    kernel.wake(sleeper)
    kernel.dispatch_ready(0)
    assert sleeper.dispatched == 1
    kernel.dispatch_ready(0)
    assert sleeper.dispatched == 1


def test_settlements_of_neighbours_share_one_record() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, *[payload() for _ in range(6)])
    taker = kit.taker(queue, credit=6)
    written = len(kit.log.records)
    for at in (0, 1, 2, 4, 5, 3):
        queue.main.complete(taker.locks[at], kit.now_ms)
    assert kit.engine.kernel.has_runs
    kit.engine.kernel.seal()
    found = [records.read_settled(record) for _, record in kit.log.records[written:]]
    assert [(first, count) for _, first, count, _ in found] == [(1, 3), (5, 2), (4, 1)]
    assert not kit.engine.kernel.has_runs
    kit.restart()
    assert kit.bodies(kit.namespace.queue("q")) == []


def test_payloads_stay_in_memory_while_the_budget_lasts() -> None:
    kit = Kit(memory_bytes_max=400)
    queue = kit.queue()
    kit.send(queue, *[payload(b"%d" % n + b"x" * 100) for n in range(5)])
    kernel = kit.engine.kernel
    assert 0 < kernel.cached_bytes <= 400
    assert kernel.live_bytes == queue.size_bytes() > 400
    assert [body[:1] for body in kit.bodies(queue)] == [b"0", b"1", b"2", b"3", b"4"]
    taker = kit.taker(queue, credit=5)
    for lock in taker.locks:
        kit.settle(queue, queue.main, lock, PLAIN_COMPLETE)
    assert (kernel.cached_bytes, kernel.live_bytes) == (0, 0)


def test_a_record_from_the_future_stops_the_start() -> None:
    engine = Engine(ListLog(), 0, lambda count: bytes(count))
    with pytest.raises(records.UnknownKindError, match="segment 3: the record of kind 238 at"):
        engine.replay(1, 3 << 32 | 52, 0, b"\xee")


def test_every_kind_of_record_is_known() -> None:
    engine = Engine(ListLog(), 0, lambda count: bytes(count))
    for kind in range(256):
        try:
            engine.replay(1, 1, 0, bytes((kind,)))
        except records.UnknownKindError:
            assert kind not in records.KINDS
        except (struct.error, IndexError):
            assert kind in records.KINDS  # too short for its kind
        else:
            assert kind in records.KINDS


def test_namespaces_are_apart_and_compared_without_case() -> None:
    kit = Kit()
    other = kit.engine.namespace("Other", kit.now_ms)
    kit.queue()
    assert other.find("q") is None
    assert kit.engine.namespace("OTHER", kit.now_ms) is other
