"""Reads what an observing engine writes down, batch by batch, and holds it against the model.

Every census must list what the model holds, every delivery be told once, and what leaves carry
the time at which it came (L1).
"""

from __future__ import annotations

from struct import unpack
from typing import TYPE_CHECKING

from engine_store import ListStore

from twinbus.engine import observations, records
from twinbus.engine.census import take_census
from twinbus.engine.observations import Observation
from twinbus.engine.records import Placed

if TYPE_CHECKING:
    from engine_world import World


class Witness:
    def __init__(self, world: World) -> None:
        self._world = world
        self._delivered = 0
        #: When each message came, by stream and sequence number.
        self._enqueued: dict[tuple[int, int], int] = {}

    def begin(self) -> None:
        """A new process: deliveries of which nothing was written are forgotten with the old."""
        self._delivered = self._world.counts.delivered

    def look(self) -> None:
        """Let the engine write down what it saw and what is there; look at the batch."""
        engine = self._world.engine
        assert engine.kernel.observer is not None
        engine.kernel.observer.write()
        take_census(engine)
        store = self._world.store
        assert isinstance(store, ListStore)
        batch = [record for _, record in store.pending]
        for record in batch:
            if record[0] == records.PLACED:
                placed = Placed(record, 0)
                self._enqueued[placed.stream, placed.seq] = placed.enqueued_ms
            elif record[0] == records.SETTLED:
                self._check_settled(record)
        seen = [Observation(record) for record in batch if record[0] == records.OBSERVED]
        self._check_deliveries(seen)
        self._check_census([each for each in seen if each.what == observations.PRESENT])

    def _check_settled(self, record: bytes) -> None:
        stream, first, count, _ = records.read_settled(record)
        columns = records.read_settled_columns(record)
        assert columns is not None
        enqueued = unpack(f"<{count}q", columns[0])
        assert [self._enqueued[stream, first + at] for at in range(count)] == list(enqueued)
        assert all(size > 0 for size in unpack(f"<{count}I", columns[2]))
        now_ms = self._world.now_ms
        assert all(0 <= at_ms <= now_ms for at_ms in unpack(f"<{count}q", columns[1]))

    def _check_deliveries(self, seen: list[Observation]) -> None:
        told = sum(each.count for each in seen if each.what == observations.DELIVERED)
        total = self._world.counts.delivered
        assert told == total - self._delivered
        self._delivered = total

    def _check_census(self, seen: list[Observation]) -> None:
        listed: dict[int, list[int]] = {}
        for each in seen:
            seqs = [seq for first, count in each.runs() for seq in range(first, first + count)]
            listed.setdefault(each.stream, []).extend(seqs)
            assert each.count == len(listed[each.stream])
        engine, model = self._world.engine, self._world.model
        assert listed.keys() == {stream.number for stream in engine.streams()}
        for wanted in model.streams():
            number = self._world.entity(wanted.entity.path).number << 2 | wanted.which
            there = sorted(message.seq for message in wanted.messages)
            assert listed.get(number, []) == there, f"census of {wanted.entity.path}"
