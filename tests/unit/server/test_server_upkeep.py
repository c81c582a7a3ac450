"""What the broker does by itself, turn by turn: what is due, and compaction."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.sim.loop import VirtualLoop
from tests.store.journal_disks import MemoryDisk
from tests.unit.engine.engine_kit import payload
from twinbus.core.descriptions import QueueDescription
from twinbus.engine.entities import Queue
from twinbus.engine.message import take_in
from twinbus.journal import Journal
from twinbus.server import broker as broker_module
from twinbus.server.broker import Broker


class Machine:
    """A broker in virtual time, on a disk in memory, with one queue."""

    def __init__(self, segment_bytes: int, **settings: object) -> None:
        self.loop = VirtualLoop()
        journal = Journal.open(Path("journal"), disk=MemoryDisk(), segment_bytes=segment_bytes)
        self.broker = Broker(journal, 1 << 20, self.loop, self.loop.now_ms, bytes)
        now_ms = self.broker.begin_turn()
        description = QueueDescription("q", **settings)  # type: ignore[arg-type]
        namespace = self.broker.engine.namespace("n", now_ms)
        self.queue: Queue = namespace.create_queue(description, now_ms)
        self.run(0.01)

    def run(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def send(self, *payloads: bytes) -> None:
        now_ms = self.broker.begin_turn()
        for one in payloads:
            self.queue.publish(take_in(one, str), now_ms)
        self.run(0.01)

    def close(self) -> None:
        self.broker.close()
        self.loop.close()


@pytest.fixture(autouse=True)
def small_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    # With segments as small as these the disk would count as full.
    monkeypatch.setattr(broker_module, "_SPACE_RESERVE_BYTES", 0)


def test_e5_what_is_due_goes_on_batch_by_batch_while_nothing_else_happens() -> None:
    machine = Machine(1 << 20)
    due_ms = machine.loop.now_ms() + 1_000
    machine.send(*[payload(b"%d" % n, due_ms=due_ms) for n in range(3_000)])
    commits = machine.broker.commits_total
    machine.run(1)
    assert len(machine.queue.main.due) == 0
    assert machine.queue.main.durable_seq == 6_000
    assert machine.broker.commits_total - commits >= 3
    machine.close()
