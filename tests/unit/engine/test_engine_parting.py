"""Settling a reservation with some messages set apart (L4): they return, or die, in one step.

Whoever is told so does not see them again, whatever happens to the broker.
"""

from __future__ import annotations

import pytest
from engine_kit import Kit, payload, present, refusal

from twinbus.core import errors
from twinbus.engine import parting, reserving
from twinbus.engine.entities import Holder, Queue
from twinbus.engine.kernel import ASKED_EFFORT_MAX
from twinbus.engine.stream import Stream
from twinbus.engine.upkeep import BURY_EFFORT


def filled(kit: Kit, count: int) -> Queue:
    queue = kit.queue()
    kit.send(queue, *[payload(b"%d" % number) for number in range(1, count + 1)])
    return queue


def reserved(kit: Kit, count: int, of: int = 0) -> Queue:
    """A queue of so many messages, the first of which, or all, are set aside for good."""
    queue = filled(kit, of or count)
    reserving.reserve(queue, queue.main, "job", 1, count, kit.now_ms)
    kit.settle_down()
    return queue


def settle(
    kit: Kit,
    holder: Holder,
    epoch: int,
    returned: list[int],
    dead: dict[int, tuple[str, str]] | None = None,
    stream: Stream | None = None,
) -> int:
    where = stream or holder.main
    parting.part(holder, where, "job", epoch, returned, dead or {}, kit.now_ms)
    count = reserving.settle_upto(where, "job", epoch)
    kit.settle_down()
    return count


def test_l4_the_rest_is_completed_and_those_apart_return_or_die() -> None:
    kit = Kit()
    queue = filled(kit, 6)
    reserving.reserve(queue, queue.main, "job", 1, 5, kit.now_ms)
    assert settle(kit, queue, 1, [2, 5], {3: ("why", "because")}) == 2
    assert present(queue.main) == [2, 5, 6]
    assert len(present(queue.stream(1))) == 1
    assert kit.taker(queue, credit=10).seqs == [2, 5, 6]


def test_l4_it_is_the_same_after_a_restart() -> None:
    kit = Kit()
    queue = filled(kit, 4)
    reserving.reserve(queue, queue.main, "job", 1, 4, kit.now_ms)
    settle(kit, queue, 1, [2], {4: ("why", "because")})
    kit.restart()
    again = kit.namespace.queue("q")
    assert present(again.main) == [2]
    assert len(present(again.stream(1))) == 1
    assert kit.taker(again, credit=10).seqs == [2]


def test_l4_a_second_time_nothing_happens() -> None:
    kit = Kit()
    queue = filled(kit, 3)
    reserving.reserve(queue, queue.main, "job", 1, 2, kit.now_ms)
    assert settle(kit, queue, 1, [2]) == 1
    assert settle(kit, queue, 1, [2, 3], {2: ("why", "because")}) == 0
    assert present(queue.main) == [2, 3]
    assert present(queue.stream(1)) == []


def test_l4_numbers_of_other_epochs_and_of_nothing_are_passed_over() -> None:
    kit = Kit()
    queue = filled(kit, 6)
    reserving.reserve(queue, queue.main, "job", 1, 2, kit.now_ms)
    reserving.reserve(queue, queue.main, "job", 2, 2, kit.now_ms)
    assert settle(kit, queue, 1, [1, 3, 5, 99]) == 1
    assert present(queue.main) == [1, 3, 4, 5, 6]
    assert settle(kit, queue, 2, [], {3: ("why", "because")}) == 1
    assert present(queue.main) == [1, 5, 6]


def test_l4_nothing_dies_in_a_dead_letter_queue() -> None:
    kit = Kit()
    queue = filled(kit, 1)
    queue.dead_letter(queue.main, 1, "why", "because", 0, kit.now_ms)
    kit.settle_down()
    dead = queue.stream(1)
    reserving.reserve(queue, dead, "job", 1, 1, kit.now_ms)
    error = refusal(lambda: settle(kit, queue, 1, [], {1: ("why", "again")}, dead))
    assert error.kind is errors.NOT_ALLOWED
    assert settle(kit, queue, 1, [1], None, dead) == 0
    assert present(dead) == [1]


def test_l4_a_run_can_pass_over_what_it_gave_back() -> None:
    kit = Kit()
    queue = filled(kit, 4)
    reserving.reserve(queue, queue.main, "job", 1, 2, kit.now_ms)
    settle(kit, queue, 1, [1])
    found = reserving.reserve(queue, queue.main, "job", 2, 10, kit.now_ms, 3)
    assert found is not None
    assert found.ranges == [3, 4]
    # Others still find what is before that number.
    kit.settle_down()
    assert kit.taker(queue, credit=10).seqs == [1]


def test_l4_a_full_disk_lets_nothing_die_and_the_rest_waits_for_it() -> None:
    kit = Kit()
    queue = reserved(kit, 4)
    kit.engine.kernel.set_full(True)
    error = refusal(lambda: settle(kit, queue, 1, [1], {2: ("why", "because")}))
    assert error.kind is errors.SERVER_BUSY
    assert outstanding(queue.main) == [1, 4]
    kit.restart()
    queue = kit.namespace.queue("q")
    assert outstanding(queue.main) == [1, 4]
    assert settle(kit, queue, 1, [1], {2: ("why", "because")}) == 2
    assert (present(queue.main), len(present(queue.stream(1)))) == ([1], 1)


def test_l4_what_needs_no_room_goes_on_when_the_disk_is_full() -> None:
    kit = Kit()
    queue = reserved(kit, 4)
    kit.engine.kernel.set_full(True)
    # A number that is in no epoch, as in a request that is repeated.
    assert settle(kit, queue, 1, [1], {9: ("why", "because")}) == 3


@pytest.mark.parametrize("with_crash", [False, True])
def test_l4_more_than_a_batch_can_take_dies_request_by_request(with_crash: bool) -> None:
    kit = Kit()
    queue = reserved(kit, 6, 7)
    dead = dict.fromkeys((2, 3, 5), ("why", "because"))

    leave_room_for(kit, queue, 2)
    error = refusal(lambda: settle(kit, queue, 1, [1], dead))
    assert error.kind is errors.SERVER_BUSY
    assert "1 messages are still to be dead-lettered" in error.text
    kit.settle_down()
    if with_crash:
        kit.restart()
        queue = kit.namespace.queue("q")
    assert outstanding(queue.main) == [1, 1, 4, 6]
    assert kit.taker(queue, credit=10).seqs == [7]

    assert settle(kit, queue, 1, [1], dead) == 2
    assert present(queue.main) == [1, 7]
    assert len(present(queue.stream(1))) == 3


@pytest.mark.parametrize("requires_session", [False, True])
def test_l4_of_two_epochs_the_second_may_be_more_than_a_batch_can_take(
    requires_session: bool,
) -> None:
    """The first was done then, but is not settled: what died of it must not come back."""
    kit = Kit()
    queue = kit.queue(requires_session=requires_session)
    kit.send(queue, *[payload(b"%d" % number, session_id=str(number)) for number in range(1, 7)])
    for epoch in (1, 2):
        reserving.reserve(queue, queue.main, "job", epoch, 3, kit.now_ms)
    kit.settle_down()
    dead = dict.fromkeys((2, 5), ("why", "because"))

    leave_room_for(kit, queue, 1)
    error = refusal(lambda: settle(kit, queue, 2, [], dead))
    assert error.kind is errors.SERVER_BUSY
    kit.settle_down()
    kit.restart()
    queue = kit.namespace.queue("q")
    assert outstanding(queue.main, 1) == [1, 1, 3, 3]
    assert outstanding(queue.main, 2) == [4, 6]

    assert settle(kit, queue, 2, [], dead) == 4
    assert present(queue.main) == []
    assert len(present(queue.stream(1))) == 2


@pytest.mark.parametrize("with_crash", [False, True])
def test_l3_an_epoch_that_is_given_up_dies_request_by_request(with_crash: bool) -> None:
    kit = Kit()
    queue = reserved(kit, 4)
    reserving.attempt(queue, queue.main, "job", 1, 1, kit.now_ms)
    kit.settle_down()

    leave_room_for(kit, queue, 3)
    error = refusal(lambda: reserving.attempt(queue, queue.main, "job", 1, 1, kit.now_ms))
    assert error.kind is errors.SERVER_BUSY
    kit.settle_down()
    if with_crash:
        kit.restart()
        queue = kit.namespace.queue("q")
    assert outstanding(queue.main) == [4, 4]

    found = reserving.attempt(queue, queue.main, "job", 1, 1, kit.now_ms)
    assert (found.attempts, found.is_buried) == (2, True)
    kit.settle_down()
    assert present(queue.main) == []
    assert len(present(queue.stream(1))) == 4


def test_l3_a_full_disk_does_not_give_an_epoch_up() -> None:
    kit = Kit()
    queue = reserved(kit, 2)
    reserving.attempt(queue, queue.main, "job", 1, 1, kit.now_ms)
    kit.engine.kernel.set_full(True)
    error = refusal(lambda: reserving.attempt(queue, queue.main, "job", 1, 1, kit.now_ms))
    assert error.kind is errors.SERVER_BUSY
    assert outstanding(queue.main) == [1, 2]


def outstanding(stream: Stream, epoch: int = 1) -> list[int]:
    assert stream.reservations is not None
    return stream.reservations.reservers["job"].epochs[epoch].ranges


def leave_room_for(kit: Kit, queue: Queue, count: int) -> None:
    """Let others have asked for so much in this batch that it takes so few more dead letters."""
    letter_effort = BURY_EFFORT + queue.main.size(1)
    kit.engine.kernel.effort_left = (count - 1) * letter_effort - ASKED_EFFORT_MAX
