"""Disks for tests: one in memory, one that watches another, and what a power cut makes of it.

MemoryDisk holds files as bytes, with a capacity. WatchedDisk passes everything on to the disk
it wraps, keeps a log of what would change the medium, and fails where it is told to.
`power_cut` rebuilds, from a part of such a log, files as a power cut could have left them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

from twinbus.journal import Disk, JournalLocked

SECTOR_BYTES = 512
Files = dict[str, bytes]


class MemoryDisk:
    """Files of one directory; `capacity_bytes` bounds what they may take together."""

    def __init__(self, files: Files | None = None, capacity_bytes: int = 1 << 40) -> None:
        self.files = {name: bytearray(data) for name, data in (files or {}).items()}
        self.capacity_bytes = capacity_bytes
        self._opened: dict[int, bytearray] = {}
        self._lock_handles: dict[int, str] = {}
        self._handles = count(1)

    def contents(self) -> Files:
        return {name: bytes(data) for name, data in self.files.items()}

    def rot(self, content: bytes) -> Callable[[], None]:
        """Turn a bit of something that is there; what comes back turns it once more."""
        file = next(file for file in self.files.values() if content in file)
        at = file.index(content)

        def turn() -> None:
            file[at] ^= 1

        turn()
        return turn

    def kill_holders(self) -> None:
        """Let go of everything open, as the end of a process does."""
        self._opened.clear()
        self._lock_handles.clear()

    def make_directory(self, directory: Path) -> None:
        pass

    def lock(self, path: Path) -> int:
        if path.name in self._lock_handles.values():
            raise JournalLocked(f"{path.parent} is in use by another broker (process 1)")
        handle = next(self._handles)
        self._lock_handles[handle] = path.name
        return handle

    def names(self, directory: Path) -> list[str]:
        return list(self.files)

    def open(self, path: Path, *, create: bool = False) -> int:
        if path.name not in self.files:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self.files[path.name] = bytearray()
        handle = next(self._handles)
        self._opened[handle] = self.files[path.name]
        return handle

    def close(self, handle: int) -> None:
        if self._lock_handles.pop(handle, None) is None:
            del self._opened[handle]

    def size(self, handle: int) -> int:
        return len(self._opened[handle])

    def read(self, handle: int, length: int, offset: int) -> bytes:
        return bytes(self._opened[handle][offset : offset + length])

    def write(self, handle: int, pieces: Sequence[bytes], offset: int) -> None:
        data = b"".join(pieces)
        self.allocate(handle, offset + len(data))
        self._opened[handle][offset : offset + len(data)] = data

    def sync(self, handle: int) -> None:
        assert handle in self._opened

    def allocate(self, handle: int, length: int) -> None:
        file = self._opened[handle]
        grown = max(0, length - len(file))
        if grown and sum(map(len, self.files.values())) + grown > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "no space left on the test's disk")
        file += bytes(grown)

    def truncate(self, handle: int, length: int) -> None:
        del self._opened[handle][length:]

    def rename(self, old: Path, new: Path) -> None:
        self.files[new.name] = self.files.pop(old.name)

    def unlink(self, path: Path) -> None:
        self.files.pop(path.name, None)

    def sync_directory(self, directory: Path) -> None:
        pass


class Operation(NamedTuple):
    """One change asked of a disk; `file` numbers files across renames."""

    kind: str
    file: int = 0
    name: str = ""
    offset: int = 0
    data: bytes = b""


@dataclass
class WatchedDisk:
    """Passes calls on to `inner`, logs what changes the medium, and fails on demand.

    `refuse` sees every operation before it is done, with its place in the log, and may raise.
    `before` is what the directory held, durably, when the watch began.
    """

    inner: Disk
    before: Files = field(default_factory=dict)
    refuse: Callable[[int, Operation], None] = lambda place, operation: None
    log: list[Operation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.origins = dict(enumerate(self.before, 1))
        self._numbers = {name: number for number, name in self.origins.items()}
        self._next = count(len(self.before) + 1)
        self._opened: dict[int, int] = {}

    def _note(self, operation: Operation) -> None:
        self.refuse(len(self.log), operation)
        self.log.append(operation)

    def make_directory(self, directory: Path) -> None:
        self.inner.make_directory(directory)

    def lock(self, path: Path) -> int:
        return self.inner.lock(path)

    def names(self, directory: Path) -> list[str]:
        return self.inner.names(directory)

    def open(self, path: Path, *, create: bool = False) -> int:
        if create and path.name not in self._numbers:
            number = next(self._next)
            self._note(Operation("create", number, path.name))
            self._numbers[path.name] = number
        handle = self.inner.open(path, create=create)
        self._opened[handle] = self._numbers[path.name]
        return handle

    def close(self, handle: int) -> None:
        self._opened.pop(handle, None)
        self.inner.close(handle)

    def size(self, handle: int) -> int:
        return self.inner.size(handle)

    def read(self, handle: int, length: int, offset: int) -> bytes:
        return self.inner.read(handle, length, offset)

    def write(self, handle: int, pieces: Sequence[bytes], offset: int) -> None:
        data = b"".join(pieces)
        self._note(Operation("write", self._opened[handle], offset=offset, data=data))
        self.inner.write(handle, pieces, offset)

    def sync(self, handle: int) -> None:
        # Logged when done: until it returns nothing is promised.
        operation = Operation("sync", self._opened[handle])
        try:
            self.refuse(len(self.log), operation)
        except OSError:
            self.log.append(operation._replace(kind="failed sync"))
            raise
        self.inner.sync(handle)
        self.log.append(operation)

    def allocate(self, handle: int, length: int) -> None:
        self._note(Operation("allocate", self._opened[handle], offset=length))
        self.inner.allocate(handle, length)

    def truncate(self, handle: int, length: int) -> None:
        self._note(Operation("truncate", self._opened[handle], offset=length))
        self.inner.truncate(handle, length)

    def rename(self, old: Path, new: Path) -> None:
        number = self._numbers[old.name]
        self._note(Operation("rename", number, new.name, data=old.name.encode()))
        self.inner.rename(old, new)
        self._numbers[new.name] = self._numbers.pop(old.name)

    def unlink(self, path: Path) -> None:
        if path.name in self._numbers:
            self._note(Operation("unlink", self._numbers.pop(path.name), path.name))
        self.inner.unlink(path)

    def sync_directory(self, directory: Path) -> None:
        self.refuse(len(self.log), operation := Operation("sync directory"))
        self.inner.sync_directory(directory)
        self.log.append(operation)


def power_cut(disk: WatchedDisk, place: int, random: Random) -> Files:
    """Return files as a cut just before operation `place` could have left them.

    What was synced is there. Of the rest, anything may be: each sector of a write, or its first
    bytes up to any point; each change of a size; each creation, rename and removal, alone.
    """
    contents = {number: bytearray(disk.before[name]) for number, name in disk.origins.items()}
    names = {name: number for number, name in disk.origins.items()}
    waiting: dict[int, list[Operation]] = {}
    waiting_names: list[Operation] = []
    for operation in disk.log[:place]:
        if operation.kind == "sync":
            for each in waiting.pop(operation.file, []):
                _apply(contents, each)
        elif operation.kind == "failed sync":
            # The kernel reports it once and takes the pages for clean: they are never written.
            waiting.pop(operation.file, None)
        elif operation.kind == "sync directory":
            for each in waiting_names:
                _apply_name(names, each)
            waiting_names = []
        elif operation.kind in {"create", "rename", "unlink"}:
            contents.setdefault(operation.file, bytearray())
            waiting_names.append(operation)
        else:
            waiting.setdefault(operation.file, []).append(operation)
    luck = random.choice([0.0, 0.5, 0.9, 1.0])
    for operations in waiting.values():
        for each in operations:
            for torn in _tear(each, luck, random):
                _apply(contents, torn)
    for each in waiting_names:
        if random.random() < luck:
            _apply_name(names, each)
    return {name: bytes(contents[number]) for name, number in names.items()}


def _tear(operation: Operation, luck: float, random: Random) -> Iterable[Operation]:
    """Yield the parts of an operation that reached the medium."""
    if operation.kind != "write":
        if random.random() < luck:
            yield operation
        return
    data, start = operation.data, operation.offset
    if random.random() < 0.25:
        yield operation._replace(data=data[: random.randint(0, len(data))])
        return
    position = 0
    while position < len(data):
        end = position + SECTOR_BYTES - (start + position) % SECTOR_BYTES
        if random.random() < luck:
            yield operation._replace(offset=start + position, data=data[position:end])
        position = end


def _apply(contents: dict[int, bytearray], operation: Operation) -> None:
    file = contents[operation.file]
    end = operation.offset + len(operation.data)
    if operation.kind == "truncate":
        del file[end:]
    file += bytes(max(0, end - len(file)))
    file[operation.offset : end] = operation.data


def _apply_name(names: dict[str, int], operation: Operation) -> None:
    if operation.kind == "unlink":
        names.pop(operation.name, None)
        return
    if operation.kind == "rename":
        names.pop(operation.data.decode(), None)
    names[operation.name] = operation.file
