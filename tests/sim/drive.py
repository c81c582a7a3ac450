"""The disk of one simulated machine, and the thread that writes to it.

A journal writes through `Drive.disk`; the world tells the drive to be slow, full, to fail a
sync, or to lose its power. After a power cut only what was synced is sure to be there.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random

from tests.sim.loop import VirtualLoop
from tests.store.journal_disks import Files, MemoryDisk, Operation, WatchedDisk, power_cut
from twinbus.journal.batch import is_whole, parse
from twinbus.journal.scan import SEGMENT_SUFFIX

_PLENTY_BYTES = 1 << 40


class PowerCut(BaseException):
    """Ends the writing thread in the middle of its work; nothing in the journal may catch it."""


class Drive:
    def __init__(self, random: Random) -> None:
        self._random = random
        self.slow_until_ms = 0
        self._failing = ""
        self._is_dying = False
        self._load({})

    def _load(self, files: Files) -> None:
        self._memory = MemoryDisk(files)
        self.disk = WatchedDisk(self._memory, before=files, refuse=self._refuse)

    def _refuse(self, place: int, operation: Operation) -> None:
        if operation.kind == "sync" and self._is_dying:
            raise PowerCut
        if operation.kind == self._failing:
            self._failing = ""
            raise OSError(errno.EIO, f"the simulated disk failed to {operation.kind}")

    def sync_ms(self, now_ms: int) -> int:
        """How long the next write and its sync take."""
        return self._random.randint(200, 3000) if now_ms < self.slow_until_ms else 1

    def fail_next(self, kind: str) -> None:
        """The next operation of a kind, `write` or `sync`, fails."""
        self._failing = kind

    def fill(self) -> None:
        """Nothing more fits, from now on until `free`."""
        self._memory.capacity_bytes = sum(map(len, self._memory.files.values()))

    def free(self) -> None:
        self._memory.capacity_bytes = _PLENTY_BYTES

    def rot(self, content: bytes) -> Callable[[], None]:
        return self._memory.rot(content)

    def heal(self) -> None:
        """Nothing is wrong any more."""
        self.free()
        self.slow_until_ms = 0
        self._failing = ""

    def end_process(self, worker: SimWorker) -> None:
        """Kill -9: what was written stays, in the page cache; what was not is gone."""
        worker.die()
        self._failing = ""
        self._memory.kill_holders()

    def cut_power(self, worker: SimWorker) -> None:
        self._is_dying = True
        worker.die_writing(self._random.random() < 0.7)
        self._is_dying = False
        self.end_process(worker)
        self._load(power_cut(self.disk, len(self.disk.log), self._random))

    def contents(self) -> Files:
        return self._memory.contents()


class SimWorker:
    """The journal's thread: one job after the other, each taking the disk's time."""

    def __init__(self, loop: VirtualLoop, drive: Drive) -> None:
        self._loop = loop
        self._drive = drive
        self._jobs: deque[Callable[[], None]] = deque()
        self._is_busy = False
        self._is_dead = False

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        self._start()

    def drain(self) -> None:
        while self._jobs:
            self._jobs.popleft()()

    def stop(self) -> None:
        self.drain()

    def die(self) -> None:
        self._is_dead = True
        self._jobs.clear()

    def die_writing(self, was_at_it: bool) -> None:
        """The power goes: the job in hand may have got as far as its sync."""
        self._is_dead = True
        if self._jobs and was_at_it:
            with suppress(PowerCut):
                self._jobs.popleft()()

    def _start(self) -> None:
        if self._jobs and not self._is_busy:
            self._is_busy = True
            self._loop.call_later(self._drive.sync_ms(self._loop.now_ms()) / 1000, self._work)

    def _work(self) -> None:
        self._is_busy = False
        if self._is_dead:
            return
        if self._jobs:
            self._jobs.popleft()()
        self._start()


def flip_bit(files: Files, random: Random) -> Files | None:
    """A copy with one bit wrong in a batch that is not the journal's last; None: no such batch."""
    return _damage(files, random, _flipped)


def misdirect(files: Files, random: Random) -> Files | None:
    """A copy in which one batch, not the last, went to another place of its file."""
    return _damage(files, random, _misplaced)


def _damage(
    files: Files, random: Random, change: Callable[[bytearray, int, int, int, Random], None]
) -> Files | None:
    batches = [
        (name, offset, length)
        for name in sorted(files)
        if name.endswith(SEGMENT_SUFFIX)
        for offset, length in _batches(name, files[name])
    ]
    if len(batches) < 2:
        return None
    name, offset, length = random.choice(batches[:-1])
    data = bytearray(files[name])
    end = max(at + size for file, at, size in batches if file == name)
    change(data, offset, length, end, random)
    return files | {name: bytes(data)}


def _batches(name: str, data: bytes) -> list[tuple[int, int]]:
    segment = int(name.partition(".")[0])
    found: list[tuple[int, int]] = []
    offset = 0
    while (batch := parse(data, offset, segment << 32 | offset)) and is_whole(data, offset, batch):
        found.append((offset, batch.length))
        offset += batch.length
    return found


def _flipped(data: bytearray, offset: int, length: int, end: int, random: Random) -> None:
    data[offset + random.randrange(length)] ^= 1 << random.randrange(8)


def _misplaced(data: bytearray, offset: int, length: int, end: int, random: Random) -> None:
    batch = data[offset : offset + length]
    data[offset : offset + length] = bytes(length)
    later = bytes(data[offset + length : end])
    elsewhere = random.randrange(max(1, len(data) - length))
    data[elsewhere : elsewhere + length] = batch
    # What came after was written after it, over whatever lay there.
    data[offset + length : end] = later
