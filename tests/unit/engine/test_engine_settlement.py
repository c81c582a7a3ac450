"""What a receiver sets on a message when it settles it must fit, like what is sent (E4, R4)."""

from __future__ import annotations

import pytest

from tests.unit.engine.engine_kit import Kit, payload, present, properties_of
from twinbus.core import errors, limits
from twinbus.core.errors import BusError
from twinbus.engine.settlement import ABANDON, DEAD_LETTER, DEFER, Settlement

HALF = "x" * (limits.HEADER_BYTES_MAX // 2)


def setting(what: int, **properties: str) -> Settlement:
    wanted = Settlement(what)
    wanted.take_properties(dict(properties))
    return wanted


@pytest.mark.parametrize("what", [ABANDON, DEFER, DEAD_LETTER])
def test_e4_properties_that_are_too_large_are_refused_and_nothing_is_done(what: int) -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    (lock,) = kit.taker(queue).locks
    with pytest.raises(BusError) as refusal:
        kit.settle(queue, queue.main, lock, setting(what, a=HALF, b=HALF))
    assert refusal.value.kind is errors.MESSAGE_TOO_LARGE
    queue.main.check_lock(lock, kit.now_ms)
    assert not properties_of(queue.main.stored(lock.seq))


def test_e4_a_message_does_not_grow_beyond_it_step_by_step() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue, credit=2)
    kit.settle(queue, queue.main, taker.locks[0], setting(ABANDON, a=HALF))
    with pytest.raises(BusError):
        kit.settle(queue, queue.main, taker.locks[1], setting(ABANDON, b=HALF))
    kit.settle(queue, queue.main, taker.locks[1], setting(ABANDON, a="little", b=HALF))
    assert properties_of(queue.main.stored(1))["a"] == "little"


def test_d2_a_message_with_all_the_properties_it_may_have_can_still_die() -> None:
    kit = Kit()
    queue = kit.queue()
    full = "x" * (limits.HEADER_BYTES_MAX - 200)
    kit.send(queue, payload(properties={"a": full}))
    (lock,) = kit.taker(queue).locks
    wanted = Settlement(DEAD_LETTER)
    wanted.reason, wanted.description = "bad", "d" * 1000
    kit.settle(queue, queue.main, lock, wanted)
    assert kit.death(queue)[0] == "bad"
    assert present(queue.main) == []
