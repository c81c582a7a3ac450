"""One simulated machine: a drive, and on it the real broker with the real front door.

It is started, killed, cut off from power and started again by the world. Wires are made
here; every part between a wire and the drive is the product's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tests.sim.drive import Drive, SimWorker, flip_bit, misdirect
from tests.sim.loop import Call, VirtualLoop
from tests.sim.network import Offsets, Wire
from tests.store.journal_disks import Files, MemoryDisk
from twinbus.core.descriptions import LISTEN, MANAGE, SEND, AuthorizationRule
from twinbus.engine.engine import Engine
from twinbus.engine.index import ACTIVE, DEFERRED, DEFERRED_LOCKED, GONE, LOCKED, RESERVED
from twinbus.engine.kernel import ASKED_EFFORT_MAX
from twinbus.engine.message import Message
from twinbus.engine.namespace import Namespace
from twinbus.engine.stream import Stream
from twinbus.engine.upkeep import BURY_EFFORT
from twinbus.journal import Journal, JournalDamaged
from twinbus.server.authorization import Guard
from twinbus.server.broker import Broker
from twinbus.server.door import FrontDoor
from twinbus.server.listener import AmqpListener
from twinbus.server.lobby import Lobby

SEGMENT_BYTES = 12 << 10
JOURNAL = Path("journal")
#: How far a machine's clock may be off; less than any window of duplicate detection.
_CLOCK_OFFSETS_MS = (-60_000, -5_000, 0, 5_000, 60_000)
POLICY, KEY = "root", "key"

#: Stream path and sequence number: state, delivery count and message id.
Live = dict[tuple[str, int], tuple[int, int, str]]


class Node:
    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        name: str,
        make: Callable[[Namespace, int], None],
        ended: Callable[[str], None],
    ) -> None:
        """`ended` hears of each end of the process."""
        self._loop = loop
        self._random = random
        self.name = name
        self._make = make
        self._ended = ended
        self.drive = Drive(random)
        self.memory_bytes_max = random.choice((0, 2 << 10, 1 << 30))
        self.wires: list[Wire] = []
        self._wires_total = 0
        self.is_up = False
        self.starts_total = 0
        self._clock = Offsets()

    # --- the process ------------------------------------------------------------------

    def start(self) -> None:
        # Somebody may have set the clock meanwhile.
        if self.starts_total and self._random.random() < 0.15:
            self._clock = self._clock.set(self._random.choice(_CLOCK_OFFSETS_MS))
        journal = Journal.open(JOURNAL, disk=self.drive.disk, segment_bytes=SEGMENT_BYTES)
        self._worker = SimWorker(self._loop, self.drive)
        # Without `notify` a job tells who waits as it ends; here it ends when the disk has
        # taken its virtual time.
        journal._worker = self._worker  # type: ignore[assignment]
        self.broker = Broker(
            journal,
            self.memory_bytes_max,
            _Part(self, self._loop),  # type: ignore[arg-type]
            self._now_ms,
            self._random.randbytes,
            # Some machines observe; which is drawn with the rest.
            observing=self.memory_bytes_max == 0,
        )
        now_ms = self.broker.begin_turn()
        self._namespace = self.broker.engine.namespace(self.name, now_ms)
        self._make(self._namespace, now_ms)
        root = AuthorizationRule(POLICY, [MANAGE, SEND, LISTEN], KEY, "")
        self._guard = Guard(self._namespace, [root], checks=True)
        self._door = FrontDoor(self, self._call_later)
        self._listener = AmqpListener(self.broker, self._door, Lobby(self._now_ms))
        self.is_up = True
        self.starts_total += 1

    def _now_ms(self) -> int:
        """The time as this machine has it."""
        return self._loop.now_ms() + self._clock.now_ms

    def resolve(self, host: str | None) -> tuple[Namespace, Guard]:
        return self._namespace, self._guard

    def all(self) -> list[tuple[Namespace, Guard]]:
        return [(self._namespace, self._guard)]

    def _call_later(self, delay_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        broker = self.broker

        def run() -> None:
            if self.is_up and self.broker is broker:
                broker.begin_turn()
                call()

        return self._loop.call_later(delay_ms / 1000, run).cancel

    def kill(self) -> None:
        """Kill -9: the operating system lives on, and with it what was written."""
        self._end()
        self.drive.end_process(self._worker)

    def cut_power(self) -> None:
        self._end()
        self.drive.cut_power(self._worker)

    def _end(self) -> None:
        self.is_up = False
        self._ended(self.name)
        wires, self.wires = self.wires, []
        for wire in wires:
            wire.drop_broker()

    def connect(self) -> Wire:
        """A new connection, or a refusal while the process is down."""
        if not self.is_up:
            raise ConnectionRefusedError(self.name)
        self._wires_total += 1
        name = f"{self.name}-{self._wires_total}"
        self.wires = [wire for wire in self.wires if not wire.broker_end_closed]
        wire = Wire(self._loop, self._random, name, self._listener.make_protocol(), self._clock)
        self.wires.append(wire)
        return wire

    @property
    def is_quiet(self) -> bool:
        """Nothing waits for the disk."""
        journal = self.broker.journal
        return not (journal.in_flight or journal.pending_count or self.broker.kernel.has_runs)

    def change_queue(self, name: str, **changes: Any) -> None:
        now_ms = self.broker.begin_turn()
        old = self._namespace.queue(name).description
        self._namespace.update_queue(replace(old, **changes), now_ms)

    # --- what it holds ----------------------------------------------------------------

    def _stream(self, path: str) -> Stream:
        (stream,) = [each for each in self.broker.engine.streams() if each.path == path]
        return stream

    def mid(self, path: str, seq: int) -> str:
        """The id of one message."""
        return _mid(self._stream(path), seq)

    def has(self, path: str, seq: int) -> bool:
        return self._stream(path).index.state(seq) != GONE

    def reserved_and_gone(self) -> Iterator[str]:
        """What an epoch says is set aside for it, and is not."""
        for stream in self.broker.engine.streams():
            reservers = stream.reservations.reservers if stream.reservations else {}
            for reserver in reservers.values():
                for reservation in reserver.outstanding():
                    for seq in reservation.seqs():
                        if stream.index.state(seq) != RESERVED:
                            yield f"{seq} of epoch {reservation.epoch} in {stream.path}"

    def tire(self, deaths: int) -> None:
        """Leave room in the batch at hand for so many deaths that somebody asks for."""
        self.broker.kernel.effort_left = deaths * BURY_EFFORT - ASKED_EFFORT_MAX - 1

    def unfinished(self) -> Iterator[str]:
        """Messages that somebody should still receive: all but dead and deferred ones."""
        for stream in self.broker.engine.streams():
            seq = 0 if "$" in stream.path else stream.index.next_present(1)
            while seq:
                if stream.index.state(seq) not in (DEFERRED, DEFERRED_LOCKED):
                    yield f"{_mid(stream, seq)} in {stream.path}"
                seq = stream.index.next_present(seq + 1)

    def live(self) -> Live:
        return live_of(self.broker.engine)

    def replayed(self) -> Live:
        """What a broker would hold that read this one's journal now."""
        return replay(self.drive.contents(), self._now_ms())

    def damage_goes_unnoticed(self) -> str | None:
        """Damage a copy of the disk; say what was done if a start would neither fail nor be right.

        Only batches that others follow are damaged: the last one cannot be told from one that
        the power cut in half.
        """
        files = self.drive.contents()
        truth = replay(files, self._now_ms())
        for damage in (flip_bit, misdirect):
            damaged = damage(files, self._random)
            if damaged is None:
                continue
            try:
                found = replay(damaged, self._now_ms())
            except JournalDamaged:
                continue
            if found != truth:
                return damage.__name__
        return None


class _Part:
    """The loop as one process sees it: what a dead process had asked for does not happen."""

    def __init__(self, node: Node, loop: VirtualLoop) -> None:
        self._node = node
        self._loop = loop
        self._life = node.starts_total + 1

    def _is_alive(self) -> bool:
        return self._node.is_up and self._node.starts_total == self._life

    def call_soon(self, call: Callable[[], None]) -> Call:
        return self._loop.call_soon(self._run, call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Call:
        return self._loop.call_later(delay_s, self._run, call)

    def _run(self, call: Callable[[], None]) -> None:
        if self._is_alive():
            call()


def replay(files: Files, now_ms: int) -> Live:
    journal = Journal.open(JOURNAL, disk=MemoryDisk(files), segment_bytes=SEGMENT_BYTES)
    engine = Engine(journal, 0, bytes)
    engine.begin_replay(now_ms)
    journal.replay(engine.replay)
    engine.finish_replay(now_ms)
    return live_of(engine)


def live_of(engine: Engine) -> Live:
    """Every message that exists; locks are volatile, so a locked one counts as not locked."""
    found: Live = {}
    for stream in engine.streams():
        seq = stream.index.next_present(1)
        while seq:
            state = stream.index.state(seq)
            state = {LOCKED: ACTIVE, DEFERRED_LOCKED: DEFERRED}.get(state, state)
            found[stream.path, seq] = state, stream.counts.get(seq, 0), _mid(stream, seq)
            seq = stream.index.next_present(seq + 1)
    return found


def _mid(stream: Stream, seq: int) -> str:
    return str(Message(stream.stored(seq)).properties()[0])
