"""A broker whose journal failed answers every request with a clear error, and stays there (S2)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from tests.sim.node import replay
from tests.store.journal_disks import MemoryDisk, Operation, WatchedDisk
from tests.unit.amqp.amqp_client import (
    ATTACH,
    DETACH,
    DISPOSITION,
    TRANSFER,
    Frame,
    accepted,
    source,
    target,
)
from tests.unit.engine.engine_kit import payload
from tests.unit.server.server_kit import Machine, join
from twinbus.amqp.exchange import decode_exchange, encode_exchange
from twinbus.amqp.properties import Properties
from twinbus.amqp.types import ARRAY_OF_LONG, AmqpArray, Described, Int, Symbol, ULong
from twinbus.core.descriptions import QueueDescription
from twinbus.core.errors import BusError
from twinbus.engine import records
from twinbus.engine.kernel import Wakeable
from twinbus.engine.message import take_in
from twinbus.engine.namespace import Namespace
from twinbus.engine.stream import Stream
from twinbus.server.administration import NamespaceAdministration
from twinbus.server.authorization import Guard

CLEAR = "cannot use its disk"
PEEK: tuple[str, dict[str, object]] = (
    "peek-message",
    {"from-sequence-number": 1, "message-count": Int(10)},
)
SENDER, RECEIVER, ASK, ANSWERS, COORDINATOR = range(5)


class Rig(Machine):
    """A broker on a disk that breaks when told to, and one client with its links open."""

    def __init__(self) -> None:
        self.files = MemoryDisk()
        self.disk = WatchedDisk(self.files)
        # No message stays in memory: all of them are read from the journal.
        super().__init__(self.disk, memory_bytes=0)
        now_ms = self.broker.begin_turn()
        self.namespace: Namespace = self.broker.engine.namespace("n", now_ms)
        queue = QueueDescription("q", max_delivery_count=1)
        self.queue = self.namespace.create_queue(queue, now_ms)
        self.peer, self.bridge = join(self.broker.hub, self.namespace)
        for body in (b"one", b"two"):
            self.queue.publish(take_in(payload(body), str), now_ms)
        self.peer.attach(SENDER, receiver=False, name="s")
        self.peer.attach(RECEIVER, receiver=True, name="r")
        self.peer.attach(ASK, receiver=False, name="a", target=target("q/$management"))
        node = source("q/$management")
        self.peer.attach(ANSWERS, receiver=True, name="b", source=node, target=target("b"))
        coordinator = Described(ULong(0x30), [])
        self.peer.attach(COORDINATOR, receiver=False, name="c", target=coordinator)
        self.peer.flow(ANSWERS, 100)
        self.turn(lambda: self.peer.flow(RECEIVER, 1))

    def turn(self, what: Callable[[], object] = lambda: None) -> list[Frame]:
        """Do something, and give what the client has heard by the end of the turn."""
        before = len(self.peer.heard)
        self.broker.begin_turn()
        what()
        self.run()
        self.peer.read()
        return self.peer.heard[before:]

    def break_disk(self, carried: int = 2) -> list[Frame]:
        """Fail the write of a batch to which a message is just being carried."""
        self.disk.refuse = _broken
        return self.turn(lambda: self.queue.main.carry(carried, {}))

    def rot(self, content: bytes) -> Callable[[], None]:
        """Turn a bit on the disk, with nothing of it in memory."""
        self.broker.journal._readback._cache.clear()
        return self.files.rot(content)

    def ask(self, operation: str, body: dict[str, object]) -> list[Frame]:
        properties = Properties()
        properties.message_id = "m"
        properties.reply_to = "b"
        request = encode_exchange(properties, {"operation": operation}, body)
        return self.turn(lambda: self.peer.transfer(ASK, 7, request, settled=True))


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def the_error(frames: list[Frame], code: int, index: int) -> str:
    """The text of the one error in the frames of a kind."""
    (frame,) = [frame for frame in frames if frame.code == code]
    error = frame[index].value[0] if code == DISPOSITION else frame[index]
    assert error.value[0] == "amqp:internal-error"
    assert "TrackingId" in error.value[1]
    return str(error.value[1])


def test_s2_receivers_that_wait_are_told(rig: Rig) -> None:
    assert [frame.code for frame in rig.peer.heard].count(TRANSFER) == 1
    assert CLEAR in the_error(rig.break_disk(), DETACH, 2)


def test_s1_a_send_is_refused(rig: Rig) -> None:
    rig.break_disk()
    frames = rig.turn(lambda: rig.peer.transfer(SENDER, 0, payload(b"x")))
    assert CLEAR in the_error(frames, DISPOSITION, 4)


@pytest.mark.parametrize(
    "state",
    [
        accepted(),
        Described(ULong(0x27), [True, False, {Symbol("k"): Int(1)}]),
        Described(ULong(0x25), []),
    ],
    ids=["complete", "abandon", "dead-letter"],
)
def test_r5_a_settlement_is_refused(rig: Rig, state: Described) -> None:
    rig.disk.refuse = _broken
    frames = rig.turn(lambda: rig.peer.disposition(0, 0, settled=False, state=state))
    assert CLEAR in the_error(frames, DISPOSITION, 4)
    assert CLEAR in the_error(frames, DETACH, 2)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        PEEK,
        ("schedule-message", {"messages": []}),
        ("cancel-scheduled-message", {"sequence-numbers": AmqpArray([1], ARRAY_OF_LONG)}),
        ("renew-lock", {"lock-tokens": []}),
        ("get-message-sessions", {}),
        ("twinbus:purge", {}),
    ],
)
def test_s2_a_request_is_refused(rig: Rig, operation: str, body: dict[str, object]) -> None:
    """Even a peek: what was being carried is nowhere, neither in memory nor surely on disk."""
    rig.break_disk()
    for _ in range(2):
        (answer,) = [frame for frame in rig.ask(operation, body) if frame.code == TRANSFER]
        _, headers, _ = decode_exchange(answer.payload)
        assert headers["statusCode"] == 500
        assert CLEAR in str(headers["statusDescription"])
    assert not rig.peer.server.finished


def test_s2_a_new_receiver_is_refused(rig: Rig) -> None:
    rig.break_disk()
    frames = rig.turn(lambda: rig.peer.attach(9, receiver=True, name="late"))
    assert [frame.code for frame in frames] == [ATTACH, DETACH]
    assert CLEAR in the_error(frames, DETACH, 2)


def test_s2_a_transaction_is_refused(rig: Rig) -> None:
    declare = b"\x00\x53\x77\x00\x53\x31\xc0\x01\x00"
    (declared,) = rig.turn(lambda: rig.peer.transfer(COORDINATOR, 0, declare))
    txn_id = declared[4].value[0]
    rig.break_disk()
    discharge = b"\x00\x53\x77\x00\x53\x32\xc0\x14\x02\xa0\x10" + txn_id + b"\x42"
    frames = rig.turn(lambda: rig.peer.transfer(COORDINATOR, 1, discharge))
    assert CLEAR in the_error(frames, DISPOSITION, 4)


def test_s2_a_change_of_entities_is_refused(rig: Rig) -> None:
    rig.break_disk()
    guard = Guard(rig.namespace, [], checks=False)
    admin = NamespaceAdministration(rig.broker, rig.namespace, guard)
    with pytest.raises(BusError, match=CLEAR):
        rig.loop.run_until_complete(admin.delete("q"))
    with pytest.raises(BusError, match=CLEAR):
        rig.loop.run_until_complete(rig.broker.durable())


def test_s2_a_client_that_leaves_does_no_harm(rig: Rig) -> None:
    """Its lock was the last attempt: the message would be moved, and cannot be read."""
    rig.break_disk(carried=1)
    rig.turn(rig.peer.server.abort)
    assert rig.broker.why_refusing() is not None


def test_s2_time_that_passes_does_no_harm(rig: Rig) -> None:
    """Locks end after a minute; nothing is done about it, and nothing turns in circles."""
    rig.break_disk()
    rig.run(600)
    (answer,) = [frame for frame in rig.ask(*PEEK) if frame.code == TRANSFER]
    assert CLEAR in str(decode_exchange(answer.payload)[1]["statusDescription"])


def test_s2_a_segment_that_cannot_be_removed_is_a_failure_too(rig: Rig) -> None:
    """No commit tells of it: the broker must see it by itself."""
    for _ in range(20):
        rig.turn(lambda: rig.queue.publish(take_in(payload(b"x" * 1000), str), 0))
    rig.disk.refuse = _broken
    rig.broker.journal.drop_before(rig.broker.journal.current_segment)
    beyond = {**PEEK[1], "from-sequence-number": 1000}
    (answer,) = [frame for frame in rig.ask(PEEK[0], beyond) if frame.code == TRANSFER]
    assert CLEAR in str(decode_exchange(answer.payload)[1]["statusDescription"])


def test_s2_a_message_that_has_rotted_is_a_failure_too(rig: Rig) -> None:
    """It is neither skipped nor dropped: whoever waits is told, and nothing more is accepted."""
    rig.rot(b"two")
    frames = rig.turn(lambda: rig.peer.flow(RECEIVER, 1, count=1))
    assert CLEAR in the_error(frames, DETACH, 2)
    assert "sound earlier" in the_error(frames, DETACH, 2)
    frames = rig.turn(lambda: rig.peer.transfer(SENDER, 0, payload(b"x")))
    assert CLEAR in the_error(frames, DISPOSITION, 4)


def test_r5_half_of_a_change_is_not_kept(rig: Rig) -> None:
    """The lock's end was the last attempt: the message would be moved, and cannot be read."""
    before = replay(rig.files.contents(), 0)
    mend = rig.rot(b"one")
    rig.run(61)
    assert rig.broker.why_refusing() is not None
    mend()
    assert len(before) == 2
    assert replay(rig.files.contents(), 0) == before


class Faulty(Wakeable):
    """Breaks off in the middle of moving a message, as a fault of ours might."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def on_timer(self, now_ms: int) -> None:
        self._stream.remove(2, records.FORWARDED)
        raise RuntimeError("a fault of the test's")

    def dispatch(self, now_ms: int) -> None:
        self.on_timer(now_ms)


@pytest.mark.parametrize("when", ["timer", "dispatch", "writing"])
def test_s2_a_fault_of_our_own_is_told_and_no_half_of_a_change_is_kept(rig: Rig, when: str) -> None:
    before = replay(rig.files.contents(), 0)
    kernel, faulty = rig.broker.kernel, Faulty(rig.queue.main)

    def plant() -> None:
        if when == "timer":
            kernel.call_at(1, faulty)
        elif when == "dispatch":
            kernel.wake(faulty)
        else:
            rig.bridge.writer = lambda: kernel.wake(faulty)
            rig.bridge.touch()

    frames = rig.turn(plant)
    assert "error of its own (RuntimeError" in the_error(frames, DETACH, 2)
    frames = rig.turn(lambda: rig.peer.transfer(SENDER, 0, payload(b"x")))
    assert "error of its own" in the_error(frames, DISPOSITION, 4)
    assert "error of its own" in str(rig.broker.why_refusing())
    rig.close()
    assert len(before) == 2
    assert replay(rig.files.contents(), 0) == before


def _broken(place: int, operation: Operation) -> None:
    raise OSError(errno.EIO, "the test's disk is broken")
