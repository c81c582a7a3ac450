"""The clock is set: what lasts for a while lasts as long as it should, in both directions."""

from __future__ import annotations

import pytest
from engine_kit import LOCK_MS, Kit, Taker, payload, refusal

from twinbus.core import errors
from twinbus.engine.settlement import ABANDON, Settlement
from twinbus.engine.shifting import shift

HOUR_MS = 3_600_000
STEPS = pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, 24 * HOUR_MS, -1000])


def set_clock(kit: Kit, step_ms: int) -> None:
    kit.now_ms += step_ms
    shift(kit.engine, step_ms, kit.now_ms)
    kit.settle_down()


def kit_with_time() -> Kit:
    kit = Kit()
    kit.now_ms += 100 * HOUR_MS
    return kit


@STEPS
def test_R2_R3_a_lock_has_as_much_left_as_before(step_ms: int) -> None:
    kit = kit_with_time()
    queue = kit.queue(lock_duration_ms=LOCK_MS)
    kit.send(queue, payload(b"a"))
    holder, other = kit.taker(queue), kit.taker(queue)
    kit.wait(10_000)
    set_clock(kit, step_ms)
    kit.wait(LOCK_MS - 10_001)
    assert other.bodies == []
    assert holder.locks[0].locked_until_ms == kit.now_ms + 1
    kit.wait(1)
    assert other.bodies == [b"a"]


@STEPS
def test_E6_a_session_lock_has_as_much_left_as_before(step_ms: int) -> None:
    kit = kit_with_time()
    queue = kit.queue(requires_session=True, lock_duration_ms=LOCK_MS)
    kit.send(queue, payload(b"a", session_id="s"))
    holder = kit.session_taker(queue, "s")
    kit.wait(10_000)
    set_clock(kit, step_ms)
    kit.wait(LOCK_MS - 10_001)
    assert not holder.lost
    error = refusal(lambda: kit.session_taker(queue, "s"))
    assert error.kind is errors.SESSION_CANNOT_BE_LOCKED
    kit.wait(1)
    assert holder.lost
    assert kit.session_taker(queue, "s").bodies == [b"a"]


@STEPS
def test_E6_whoever_seeks_a_session_waits_as_long_as_it_asked(step_ms: int) -> None:
    kit = kit_with_time()
    queue = kit.queue(requires_session=True)
    seeker = Taker(kit, queue.main, 1, True)
    queue.main.attach(seeker, kit.now_ms)
    queue.main.seek_session(seeker, kit.now_ms + 10_000)
    set_clock(kit, step_ms)
    kit.wait(9_999)
    assert not seeker.gave_up
    kit.wait(1)
    assert seeker.gave_up


@STEPS
def test_R4_a_delay_has_as_much_left_as_before(step_ms: int) -> None:
    kit = kit_with_time()
    queue = kit.queue()
    kit.send(queue, payload(b"a"))
    taker = kit.taker(queue)
    wanted = Settlement(ABANDON)
    wanted.delay_ms = 5000
    kit.settle(queue, queue.main, taker.locks[0], wanted)
    set_clock(kit, step_ms)
    taker.ask()
    kit.wait(4999)
    assert taker.bodies == [b"a"]
    kit.wait(1)
    assert taker.bodies == [b"a", b"a"]


@STEPS
def test_E3_an_entity_is_idle_only_by_the_time_that_passed(step_ms: int) -> None:
    kit = kit_with_time()
    kit.queue(auto_delete_on_idle_ms=300_000)
    set_clock(kit, step_ms)
    kit.wait(299_999)
    assert kit.namespace.find("q") is not None
    kit.wait(1)
    assert kit.namespace.find("q") is None


@STEPS
def test_E7_an_id_is_known_for_its_window(step_ms: int) -> None:
    kit = kit_with_time()
    queue = kit.queue(
        requires_duplicate_detection=True, duplicate_detection_history_time_window_ms=60_000
    )
    kit.send(queue, payload(b"1", message_id="a"))
    set_clock(kit, step_ms)
    kit.wait(59_999)
    kit.send(queue, payload(b"2", message_id="a"))
    assert kit.bodies(queue) == [b"1"]
    kit.wait(1)
    kit.send(queue, payload(b"3", message_id="a"))
    assert kit.bodies(queue) == [b"1", b"3"]


def test_E7_a_restart_with_a_clock_that_is_behind_makes_no_window_longer() -> None:
    kit = kit_with_time()
    queue = kit.queue(
        requires_duplicate_detection=True, duplicate_detection_history_time_window_ms=60_000
    )
    kit.send(queue, payload(b"1", message_id="a"))
    kit.now_ms -= HOUR_MS
    kit.restart()
    queue = kit.namespace.queue("q")
    kit.send(queue, payload(b"2", message_id="a"))
    kit.wait(60_000)
    kit.send(queue, payload(b"3", message_id="a"))
    assert kit.bodies(queue) == [b"1", b"3"]


def test_E5_D5_moments_of_the_world_stay_where_they_are() -> None:
    """A scheduled message comes when its time has come, an expired one does not."""
    kit = kit_with_time()
    queue = kit.queue()
    kit.send(queue, payload(b"later", due_ms=kit.now_ms + HOUR_MS))
    kit.send(queue, payload(b"brief", ttl_ms=60_000))
    set_clock(kit, -HOUR_MS)
    set_clock(kit, 2 * HOUR_MS)
    assert kit.taker(queue, credit=5).bodies == [b"later"]
