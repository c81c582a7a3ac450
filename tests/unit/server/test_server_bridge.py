"""Bridge and front door in memory: no socket, a clock that is set by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.amqp.amqp_client import (
    CLOSE,
    DETACH,
    DISPOSITION,
    FLOW,
    TRANSFER,
    Frame,
    accepted,
    source,
)
from tests.unit.engine.engine_kit import LOCK_MS, Kit, payload, section
from tests.unit.server.server_kit import connected
from twinbus.amqp.sections import BATCH_FORMAT
from twinbus.amqp.types import Char, Described, Symbol, UInt, ULong
from twinbus.engine.index import LOCKED
from twinbus.server.bridge import Sender
from twinbus.server.door import SESSION_FILTER

# The handle of a coordinator.
CONTROL = 1


def session(value: object) -> Described:
    """The source of a receiver that asks for a session."""
    return source("orders", None, None, None, None, None, None, {Symbol(SESSION_FILTER): value})


def test_a_receiver_that_waited_for_a_session_in_vain_is_forgotten() -> None:
    """E3 E6: else the entity would never be idle again."""
    kit = Kit()
    stream = kit.queue("orders", requires_session=True).main
    peer, bridge = connected(kit)
    waits = {Symbol("com.microsoft:timeout"): UInt(1_000)}
    peer.attach(0, receiver=True, source=session(None), properties=waits)
    assert stream.receivers == 1

    kit.engine.kernel.run_timers(kit.now_ms + 1_000)

    assert [frame.code for frame in peer.read()][-1] == DETACH
    assert stream.receivers == 0
    assert not stream.attached
    assert not bridge.receivers


def test_a_described_filter_means_the_same() -> None:
    """E6: some clients describe the filter, some do not."""
    kit = Kit()
    stream = kit.queue("orders", requires_session=True).main
    peer, _ = connected(kit)
    peer.attach(0, receiver=True, source=session(Described(Symbol(SESSION_FILTER), "s1")))
    assert stream.sessions is not None
    assert [held.id for held in stream.sessions.held.values()] == ["s1"]


def test_a_name_that_is_no_text_ends_its_own_connection_only() -> None:
    """The refusal of a link that waits is said later, in everybody's time, and repeats its name."""
    kit = Kit()
    stream = kit.queue("orders", requires_session=True).main
    peer, _ = connected(kit)
    half: Any = Char("\ud83d")
    peer.attach(0, receiver=True, name=half, source=session(None))
    assert peer.heard[-1].code == CLOSE
    assert peer.heard[-1][0].value[0] == "amqp:decode-error"
    kit.wait(120_000)
    assert stream.receivers == 0
    assert stream.sessions is not None
    peer, _ = connected(kit)
    peer.attach(0, receiver=True, source=session(half))
    assert not stream.sessions.held
    assert peer.heard[-1][2].value[0] == "amqp:not-allowed"


def drains(frames: list[Frame]) -> list[tuple[int, int]]:
    """The answers to drains: delivery count and credit of each."""
    return [(frame[5], frame[6]) for frame in frames if frame.code == FLOW and frame[8]]


@pytest.mark.parametrize("seen", [3, 1])
def test_r9_a_drain_is_answered_though_the_client_s_window_is_closed(seen: int) -> None:
    """R9: the client opens its window when it has settled what it got, and that may be what it
    drains for. Whether it has seen all of that already makes no difference: it says no more."""
    kit = Kit()
    kit.send(kit.queue(), *[payload(b"%d" % number) for number in range(5)])
    peer, bridge = connected(kit)
    peer.attach(0, receiver=True)
    peer.flow(0, 10, window=3)
    kit.settle_down()
    assert [frame.code for frame in peer.read()] == [TRANSFER] * 3

    heard = peer.flow(0, 10 - seen, seen=seen, count=seen, window=3 - seen, drain=True)

    assert drains(heard) == [(10, 0)]
    assert [frame.code for frame in heard] == [FLOW]
    peer.disposition(0, 2, settled=True, state=accepted())
    peer.flow(0, 10, seen=3, count=10, window=3)
    kit.settle_down()
    assert [frame.code for frame in peer.read()] == [TRANSFER] * 2
    assert len(bridge.receivers) == 1


def test_r9_a_drain_is_answered_after_what_is_half_sent() -> None:
    kit = Kit()
    kit.send(kit.queue(), payload(b"x" * 1_500), payload())
    kit.queue("other")
    peer, _ = connected(kit)
    peer.server.remote_max_frame_size = 1_000
    peer.attach(0, receiver=True)
    peer.attach(1, receiver=True, name="other", source=source("other"))
    peer.flow(0, 10, window=1)
    kit.settle_down()
    assert [frame.code for frame in peer.read()] == [TRANSFER]

    assert drains(peer.flow(0, 10, seen=1, window=0, drain=True)) == []
    # The window takes the rest and no more, and comes with another link's credit.
    heard = peer.flow(1, 1, seen=1, window=1)
    assert [frame.code for frame in heard] == [TRANSFER, FLOW]
    assert drains(heard) == [(10, 0)]


class Work:
    """A client with a sender to the queue `q` and an open transaction."""

    def __init__(self, kit: Kit) -> None:
        self.peer, self.bridge = connected(kit)
        self._number = -1
        self.peer.attach(0, receiver=False)
        coordinator = Described(ULong(0x30), [None])
        self.peer.attach(CONTROL, receiver=False, name="control", target=coordinator)
        self.declare()

    def declare(self, handle: int = CONTROL) -> bytes:
        self._transfer(handle, section(0x77, Described(ULong(0x31), [None])))
        self.txn_id = list(self.bridge.transactions.open)[-1]
        return self.txn_id

    def send(self, body: bytes, **options: Any) -> str:
        """Send in the transaction; give what a refusal says."""
        within = Described(ULong(0x34), [self.txn_id, None])
        return refusal_in(self._transfer(0, body, state=within, **options))

    def end(self, *, fails: bool = False) -> str:
        discharge = Described(ULong(0x32), [self.txn_id, fails])
        return refusal_in(self._transfer(CONTROL, section(0x77, discharge)))

    def _transfer(self, handle: int, body: bytes, **options: Any) -> list[Frame]:
        self._number += 1
        return self.peer.transfer(handle, self._number, body, **options)


def refusal_in(frames: list[Frame]) -> str:
    for frame in frames:
        if frame.code == DISPOSITION and frame.fields[4].descriptor == 0x25:
            return str(frame.fields[4].value[0].value[1])
    return ""


def test_e10_uncommitted_messages_weigh_a_bounded_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E10: over all open transactions of a connection; what has ended counts no more."""
    kit = Kit()
    queue = kit.queue()
    work = Work(kit)
    one = payload(b"x" * 1_000)
    monkeypatch.setattr("twinbus.core.limits.TRANSACTION_BYTES_MAX", 3 * len(one))
    assert [work.send(one), work.send(one)] == ["", ""]
    work.declare()
    assert work.send(one) == ""
    assert "bytes together" in work.send(one)
    assert work.end() == ""
    work.declare()
    assert work.send(one) == ""
    assert work.end(fails=True) == ""
    work.declare()
    assert work.send(one) == ""
    assert work.end() == ""
    assert len(kit.bodies(queue)) == 2
    work.peer.server.abort()
    assert work.bridge.transactions.wire_bytes == 0


def test_e10_s6_a_batch_in_a_transaction_is_refused_whole() -> None:
    kit = Kit()
    queue = kit.queue()
    work = Work(kit)
    parts = [section(0x75, payload(b"%d" % n)) for n in range(101)]
    assert "100 messages" in work.send(b"".join(parts), message_format=BATCH_FORMAT)
    assert work.send(b"".join(parts[:100]), message_format=BATCH_FORMAT) == ""
    assert work.end() == ""
    assert len(kit.bodies(queue)) == 100


def test_s6_a_batch_of_too_many_messages_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may be a few bytes, and all are placed in one go, once for each subscription."""
    monkeypatch.setattr("twinbus.core.limits.BATCH_MESSAGES_MAX", 3)
    kit = Kit()
    queue = kit.queue()
    peer, bridge = connected(kit)
    peer.attach(0, receiver=False)
    part = section(0x75, payload(b"x"))
    heard = peer.transfer(0, 0, part * 4, message_format=BATCH_FORMAT)
    assert "3 messages at most" in refusal_in(heard)
    assert kit.bodies(queue) == []
    peer.transfer(0, 1, part * 3, message_format=BATCH_FORMAT)
    assert len(kit.bodies(queue)) == 3
    bridge.hub.replies.release()
    assert refusal_in(peer.read()) == ""


@pytest.mark.parametrize(
    ("body", "why"), [(b"no message", "no AMQP message"), (bytes(2_000), "exceeds the limit")]
)
def test_e10_s5_a_commit_is_refused_for_a_send_that_nobody_heard_of(body: bytes, why: str) -> None:
    """E10: whoever settles in advance learns of the refusal with the commit, which does nothing."""
    kit = Kit()
    queue = kit.queue()
    work = Work(kit)
    (sender,) = queue.senders
    assert isinstance(sender, Sender)
    sender.link.max_message_size = 1_000
    assert work.send(payload(), settled=True) == ""
    assert work.send(body, settled=True) == ""
    assert why in work.end()
    assert kit.bodies(queue) == []
    work.declare()
    # Here the sender is told, and may commit the rest.
    assert work.send(payload()) == ""
    assert why in work.send(body)
    assert work.end() == ""
    assert len(kit.bodies(queue)) == 1


def test_e10_half_of_a_character_leaves_no_half_of_a_transaction() -> None:
    """E10 R4: a reason that cannot be written would be met in the middle of the commit."""
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"old"))
    work = Work(kit)
    work.peer.attach(2, receiver=True, name="receiver")
    work.peer.flow(2, 1)
    kit.settle_down()
    assert work.send(payload(b"new")) == ""
    info = {Symbol("DeadLetterReason"): Char("\ud83d"), Char("\ud83d"): True}
    rejected = Described(ULong(0x25), [Described(ULong(0x1D), [Symbol("x"), None, info])])
    within = Described(ULong(0x34), [work.txn_id, rejected])
    work.peer.disposition(0, None, settled=False, state=within)
    assert work.end() == ""
    assert kit.bodies(queue) == [b"new"]
    assert kit.death(queue)[0] == "\ufffd"


def test_a_small_frame_cannot_ask_for_a_batch_without_end() -> None:
    """A range of dead letters is a few bytes; each is written anew. The rest is refused."""
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, *[payload(b"x") for _ in range(3)])
    peer, _ = connected(kit)
    peer.attach(0, receiver=True)
    peer.flow(0, 3)
    kit.settle_down()
    peer.read()
    # As after many large ones.
    kit.engine.kernel.effort_left = -(64 << 20)
    peer.disposition(0, 2, settled=False, state=Described(ULong(0x25), [None]))
    assert queue.main.index.live == 2
    assert queue.main.count_state(LOCKED) == 2
    kit.settle_down()
    kit.wait(LOCK_MS)
    assert kit.bodies(queue) == [b"x", b"x"]


def test_r7_many_locks_of_links_that_are_over_are_seldom_looked_through() -> None:
    """A range of settlements that are refused adds to them one by one."""
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, *[payload(b"")] * 10_100)
    locks = kit.taker(queue, credit=10_100).locks
    _, bridge = connected(kit)
    bridge.hold(queue.main, [*locks[:10_000]])
    looks = 0
    for lock in locks[10_000:]:
        before = bridge.held
        bridge.hold(queue.main, [lock])
        looks += bridge.held is not before
    assert looks == 1
    assert len(bridge.held) == 10_100
