"""Settlements within transactions, on the wire: what is answered, and what a rollback leaves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.amqp.amqp_client import DETACH, DISPOSITION, END, TRANSFER, Frame, accepted
from tests.unit.engine.engine_kit import Kit, payload
from tests.unit.server.test_server_bridge import CONTROL, Work, refusal_in
from twinbus.amqp.types import Described, UInt, ULong
from twinbus.core.names import DEAD_LETTER_STREAM
from twinbus.server.replies import Replies

RELEASED = Described(ULong(0x26), [])
REJECTED = Described(ULong(0x25), [])
RECEIVER = 2


class Settling(Work):
    """A client that works in transactions and holds the messages of the queue `q`."""

    def __init__(self, kit: Kit, count: int = 1) -> None:
        self.kit = kit
        self.queue = kit.queue(lock_duration_ms=60_000)
        kit.send(self.queue, *[payload(b"%d" % number) for number in range(count)])
        super().__init__(kit)
        self.peer.attach(RECEIVER, receiver=True, name="receiver")
        self.peer.flow(RECEIVER, 10)
        assert self.delivered() == list(range(count))

    def delivered(self) -> list[int]:
        """The numbers of the deliveries that came."""
        self.kit.settle_down()
        return [frame[1] for frame in self.heard() if frame.code == TRANSFER]

    def heard(self) -> list[Frame]:
        """What came, once everything is on disk."""
        hub = self.bridge.hub
        replies, hub.replies = hub.replies, Replies()
        replies.release()
        return self.peer.read()

    def settle(self, state: object, delivery: int = 0, *, settled: bool = False) -> list[Frame]:
        heard = self.peer.disposition(delivery, None, settled=settled, state=state)
        return [frame for frame in heard + self.heard() if frame.code == DISPOSITION]

    def settle_within(self, outcome: object = None, delivery: int = 0, **more: Any) -> list[Frame]:
        return self.settle(self.within(outcome), delivery, **more)

    def within(self, outcome: object = None) -> Described:
        return Described(ULong(0x34), [self.txn_id, outcome or accepted()])

    @property
    def open_deliveries(self) -> list[int]:
        return list(self.peer.server.sessions[0].owners)


def answers(frames: list[Frame]) -> list[tuple[int, int, bool, Any]]:
    """First, last, settled and state of what the broker says of its own deliveries."""
    own = [frame for frame in frames if frame.code == DISPOSITION and not frame[0]]
    return [(frame[1], frame[2], frame[3], frame[4]) for frame in own]


def test_e10_r5_a_settlement_is_answered_at_once_and_settled_with_the_commit() -> None:
    work = Settling(Kit(), 3)
    for number in range(3):
        state = work.within()
        assert answers(work.settle_within(delivery=number)) == [(number, number, False, state)]
    assert len(work.kit.bodies(work.queue)) == 3

    assert work.end() == ""
    assert answers(work.heard()) == [(0, 2, True, state)]
    assert work.kit.bodies(work.queue) == []
    assert work.open_deliveries == []
    assert not work.bridge.transactions.settling


def test_e10_r5_after_a_rollback_a_message_is_completed_and_that_is_answered() -> None:
    work = Settling(Kit())
    work.settle_within()
    assert work.end(fails=True) == ""
    assert work.kit.bodies(work.queue) == [b"0"]

    assert answers(work.settle(accepted())) == [(0, 0, True, accepted())]
    assert work.kit.bodies(work.queue) == []


def test_e10_r4_after_a_rollback_a_released_message_comes_again() -> None:
    """E10 R4: as proton's own transaction does it."""
    work = Settling(Kit())
    work.settle_within()
    work.end(fails=True)
    assert answers(work.settle(RELEASED, settled=True)) == []
    assert work.delivered() == [1]


def test_e10_after_a_rollback_a_message_is_settled_in_another_transaction() -> None:
    work = Settling(Kit())
    work.settle_within()
    work.end(fails=True)
    work.declare()
    assert answers(work.settle_within()) == [(0, 0, False, work.within())]
    assert work.end() == ""
    assert answers(work.heard()) == [(0, 0, True, work.within())]
    assert work.kit.bodies(work.queue) == []


def test_e10_r5_a_commit_that_fails_leaves_the_others_to_be_settled() -> None:
    work = Settling(Kit(), 2)
    for number in range(2):
        work.settle_within(delivery=number)
    (lost, _) = work.queue.main.locked.values()
    work.queue.main.release(lost, work.kit.now_ms)
    assert "lock" in work.end()
    assert answers(work.heard()) == []

    assert "lock" in refusal_in(work.settle(accepted(), 0))
    assert answers(work.settle(accepted(), 1)) == [(1, 1, True, accepted())]
    assert work.kit.bodies(work.queue) == [b"0"]


@pytest.mark.parametrize("repeats", [True, False])
def test_e10_a_client_may_forget_what_it_settled_in_a_transaction(repeats: bool) -> None:
    """E10: with the state that it gave, or with none, which else would mean released."""
    work = Settling(Kit())
    work.settle_within()
    assert answers(work.settle(work.within() if repeats else None, settled=True)) == []
    assert work.open_deliveries == []
    assert work.end() == ""
    assert answers(work.heard()) == []
    assert work.kit.bodies(work.queue) == []


def test_e10_r5_what_an_open_transaction_settles_nothing_else_does() -> None:
    work = Settling(Kit(), 2)
    for number in range(2):
        work.settle_within(delivery=number)
    first = work.txn_id
    assert "open transaction" in refusal_in(work.settle(RELEASED, 0))
    work.declare()
    assert "another transaction" in refusal_in(work.settle_within(RELEASED, 1))
    work.txn_id = first
    assert work.end() == ""
    assert work.kit.bodies(work.queue) == []


def test_e10_a_commit_is_refused_for_a_settlement_that_nobody_heard_of() -> None:
    """E10 R5: the message comes again, so what is sent because of it must not be."""
    work = Settling(Kit())
    (lost,) = work.queue.main.locked.values()
    work.queue.main.release(lost, work.kit.now_ms)
    work.send(payload(b"sent"))
    work.settle_within(settled=True)
    assert "lock" in work.end()
    assert work.kit.bodies(work.queue) == [b"0"]


def test_e10_r7_a_link_that_ends_leaves_its_locks_to_transaction_and_connection() -> None:
    work = Settling(Kit(), 2)
    for number in range(2):
        work.settle_within(delivery=number)
    work.peer.send(DETACH, [UInt(RECEIVER), True])
    assert work.open_deliveries == []
    assert len(work.bridge.held) == 2
    assert work.end() == ""
    assert answers(work.heard()) == []
    assert work.kit.bodies(work.queue) == []


def test_e10_r7_locks_of_a_transaction_end_with_the_connection() -> None:
    work = Settling(Kit(), 2)
    work.settle_within()
    work.settle_within(delivery=1, settled=True)
    work.peer.server.abort()
    assert not work.bridge.transactions.settling
    assert not work.queue.main.locked


def test_e10_dead_letters_of_transactions_weigh_a_bounded_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E10: they are written with the commit, like what is sent."""
    work = Settling(Kit(), 5)
    size = work.queue.main.size(1)
    monkeypatch.setattr("twinbus.core.limits.TRANSACTION_BYTES_MAX", 2 * size)
    for number in range(2):
        assert refusal_in(work.settle_within(REJECTED, number)) == ""
    assert "bytes together" in refusal_in(work.settle_within(REJECTED, 2))
    assert "bytes together" in work.send(payload(b"sent"))
    # To complete takes no room.
    assert refusal_in(work.settle_within(accepted(), 3)) == ""
    assert work.end() == ""
    assert work.bridge.transactions.wire_bytes == 0

    work.declare()
    assert refusal_in(work.settle_within(REJECTED, 4)) == ""
    assert work.end(fails=True) == ""
    assert work.bridge.transactions.wire_bytes == 0
    work.kit.settle_down()
    assert work.kit.bodies(work.queue) == [b"2", b"4"]
    assert work.kit.bodies(work.queue, DEAD_LETTER_STREAM) == [b"0", b"1"]


@pytest.mark.parametrize("closed", [True, False])
def test_e10_what_a_coordinator_leaves_open_is_rolled_back(closed: bool) -> None:
    """E10: another coordinator's is not, and what was settled can be settled again."""
    work = Settling(Kit())
    coordinator = Described(ULong(0x30), [None])
    work.peer.attach(3, receiver=False, name="other", target=coordinator)
    other = work.declare(3)
    work.declare()
    work.send(payload(b"sent"))
    work.settle_within()

    work.peer.send(DETACH, [UInt(CONTROL), closed])

    assert list(work.bridge.transactions.open) == [other]
    assert work.bridge.transactions.wire_bytes == 0
    work.peer.attach(CONTROL, receiver=False, name="control again", target=coordinator)
    assert "no such open transaction" in work.end()
    assert answers(work.settle(accepted())) == [(0, 0, True, accepted())]
    assert work.kit.bodies(work.queue) == []


def test_e10_what_the_coordinators_of_an_ended_session_leave_open_is_rolled_back() -> None:
    work = Settling(Kit())
    work.send(payload(b"sent"))
    work.peer.send(END, [])
    assert not work.bridge.transactions.open
