"""Group commit through the worker's thread: order, gathering, and the ends of a journal's life."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from twinbus.journal import Journal, RealDisk


class GatedDisk(RealDisk):
    """A disk whose syncs wait until they are let through."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.synced = 0

    def sync(self, handle: int) -> None:
        assert self.gate.wait(10)
        super().sync(handle)
        self.synced += 1


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
def notified() -> SimpleQueue[Callable[[], None]]:
    return SimpleQueue()


@pytest.fixture
def journal(
    tmp_path: Path, disk: GatedDisk, notified: SimpleQueue[Callable[[], None]]
) -> Iterator[Journal]:
    journal = Journal.open(tmp_path, disk=disk, segment_bytes=1 << 16, notify=notified.put)
    journal.replay(lambda *_: None)
    yield journal
    disk.gate.set()
    journal.close()


def test_s1_nothing_is_acknowledged_before_the_sync(
    journal: Journal, disk: GatedDisk, notified: SimpleQueue[Callable[[], None]]
) -> None:
    answers: list[Exception | None] = []
    disk.gate.clear()
    journal.append(b"one")
    journal.commit(1, answers.append)
    assert journal.in_flight
    assert notified.empty()
    disk.gate.set()
    delivery = notified.get(timeout=10)
    assert answers == []
    delivery()
    assert answers == [None]
    assert not journal.in_flight


def test_what_comes_while_a_commit_is_in_flight_shares_the_next(
    journal: Journal, disk: GatedDisk, notified: SimpleQueue[Callable[[], None]]
) -> None:
    disk.gate.clear()
    first = journal.append(b"first")
    journal.commit(1, lambda error: None)
    later = [journal.append(b"later %d" % number) for number in range(50)]
    assert journal.pending_count == 50
    with pytest.raises(RuntimeError, match="in flight"):
        journal.commit(2, lambda error: None)
    assert journal.read(first, 5) == b"first"
    disk.gate.set()
    notified.get(timeout=10)()
    before = disk.synced
    journal.commit_now(2)
    assert disk.synced == before + 1
    assert [journal.read(location, 7) for location in later[:10]] == [
        b"later %d" % number for number in range(10)
    ]


def test_done_may_commit_what_gathered(
    journal: Journal, disk: GatedDisk, notified: SimpleQueue[Callable[[], None]]
) -> None:
    order: list[int] = []

    def done(error: Exception | None) -> None:
        assert error is None
        order.append(len(order))
        if journal.pending_count:
            journal.commit(len(order), done)

    disk.gate.clear()
    journal.append(b"first")
    journal.commit(0, done)
    journal.append(b"second")
    disk.gate.set()
    journal.commit_now(9)
    assert order == [0, 1]
    # What the worker had announced meanwhile has been delivered: nothing happens twice.
    while not notified.empty():
        notified.get()()
    assert order == [0, 1]


async def test_an_event_loop_gets_its_answers_in_order(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    journal = Journal.open(tmp_path, notify=loop.call_soon_threadsafe)
    journal.replay(lambda *_: None)
    finished = loop.create_future()
    answered: list[int] = []

    def commit() -> None:
        lsn = journal.next_lsn - 1
        journal.commit(lsn, lambda error: done(lsn, error))

    def done(lsn: int, error: Exception | None) -> None:
        assert error is None
        answered.append(lsn)
        if lsn == 100:
            finished.set_result(None)
            return
        journal.append(b"more")
        commit()

    journal.append(b"first")
    commit()
    await asyncio.wait_for(finished, 10)
    journal.close()
    assert answered == list(range(1, 101))


def test_closing_after_the_loop_has_ended_still_answers(tmp_path: Path) -> None:
    def refuse(callback: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    journal = Journal.open(tmp_path, notify=refuse)
    journal.replay(lambda *_: None)
    answers: list[Exception | None] = []
    journal.append(b"last")
    journal.commit(1, answers.append)
    journal.close()
    assert answers == [None]


def test_a_journal_may_be_closed_twice_and_before_replay(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.close()
    journal.close()
    again = Journal.open(tmp_path)
    again.replay(lambda *_: None)
    again.close()


def test_opening_and_closing_an_idle_journal_adds_nothing(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.replay(lambda *_: None)
    journal.append(b"x")
    journal.commit_now(1)
    sizes = []
    for _ in range(3):
        journal.close()
        journal = Journal.open(tmp_path)
        journal.replay(lambda *_: None)
        sizes.append(journal.segments())
    journal.close()
    assert sizes[0] == sizes[1] == sizes[2]


def test_the_batches_read_last_are_kept_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CountingDisk(RealDisk):
        reads = 0

        def read(self, handle: int, length: int, offset: int) -> bytes:
            self.reads += 1
            return super().read(handle, length, offset)

    monkeypatch.setattr("twinbus.journal.readback.CACHE_BYTES", 5000)
    disk = CountingDisk()
    journal = Journal.open(tmp_path, disk=disk)
    journal.replay(lambda *_: None)
    locations = []
    for number in range(4):
        locations += [journal.append(b"x" * 1000), journal.append(b"y" * 1000)]
        journal.commit_now(number)
    disk.reads = 0
    for location in locations[:4] * 3:
        journal.read(location, 1000)
    assert disk.reads == 2
    for location in locations:
        journal.read(location, 1000)
    assert disk.reads == 4
    journal.read(locations[0], 1000)
    assert disk.reads == 5
    journal.close()
