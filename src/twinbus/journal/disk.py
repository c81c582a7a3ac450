"""The few things the journal asks of a file system, and the real one.

Paths, handles and bytes go in; bytes and sizes come out; a failure is an OSError. A disk keeps
no state of the journal and never repeats a write or a sync: what a failed one means is the
journal's decision.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from .errors import JournalLocked

# Linux takes at most this many pieces in one gathered write (IOV_MAX).
_PIECES_MAX = 1024
# Each of two threads may open a file, and then the directory that it is in.
_RESERVED_DESCRIPTORS = 4

T = TypeVar("T")


class Disk(Protocol):
    """What a journal needs; a handle is whatever number `open` gave."""

    def make_directory(self, directory: Path) -> None: ...

    def lock(self, path: Path) -> int:
        """Hold `path` for this process alone until its handle is closed."""

    def names(self, directory: Path) -> list[str]: ...

    def open(self, path: Path, *, create: bool = False) -> int: ...

    def close(self, handle: int) -> None: ...

    def size(self, handle: int) -> int: ...

    def read(self, handle: int, length: int, offset: int) -> bytes:
        """Return `length` bytes, fewer only where the file ends."""

    def write(self, handle: int, pieces: Sequence[bytes], offset: int) -> None:
        """Write all of the pieces, one after the other."""

    def sync(self, handle: int) -> None:
        """Return when the file's bytes, and the size needed to read them, are durable."""

    def allocate(self, handle: int, length: int) -> None:
        """Reserve blocks for the first `length` bytes; new bytes are zero, old ones stay."""

    def truncate(self, handle: int, length: int) -> None: ...

    def rename(self, old: Path, new: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def sync_directory(self, directory: Path) -> None:
        """Return when creations, renames and removals in `directory` are durable."""


class RealDisk:
    """The operating system's files (Linux).

    While a directory is held some descriptors are kept in reserve: when connections have used
    up all others, files can still be opened, and the journal goes on.
    """

    def __init__(self) -> None:
        self._lock = -1
        self._nothing = -1
        self._reserve: list[int] = []

    def make_directory(self, directory: Path) -> None:
        if directory.is_dir():
            return
        self.make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        self.sync_directory(directory.parent)

    def lock(self, path: Path) -> int:
        handle = self.open(path, create=True)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise JournalLocked(
                f"{path.parent} is in use by another broker (process {holder}); stop it first"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._lock = handle
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._reserve = [os.dup(self._nothing) for _ in range(_RESERVED_DESCRIPTORS)]
        return handle

    def names(self, directory: Path) -> list[str]:
        return self._with_reserve(lambda: os.listdir(directory))

    def open(self, path: Path, *, create: bool = False) -> int:
        return self._open(path, os.O_RDWR | (os.O_CREAT if create else 0))

    def _open(self, path: Path, flags: int) -> int:
        return self._with_reserve(lambda: os.open(path, flags | os.O_CLOEXEC, 0o600))

    def _with_reserve(self, call: Callable[[], T]) -> T:
        """Do something that takes a descriptor, one of the reserve if there is no other."""
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno != errno.EMFILE or not self._reserve:
                    raise
                with contextlib.suppress(IndexError):  # the other thread took the last one
                    os.close(self._reserve.pop())

    def close(self, handle: int) -> None:
        if handle == self._lock:
            self._let_go()
        if self._lock >= 0 and len(self._reserve) < _RESERVED_DESCRIPTORS:
            # Straight into the reserve: once closed, anybody could take it.
            os.dup2(self._nothing, handle, inheritable=False)
            self._reserve.append(handle)
        else:
            os.close(handle)

    def _let_go(self) -> None:
        """The directory is no longer held, and nothing needs to be kept for it."""
        for handle in (self._nothing, *self._reserve):
            os.close(handle)
        self._lock = self._nothing = -1
        self._reserve = []

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def read(self, handle: int, length: int, offset: int) -> bytes:
        data = os.pread(handle, length, offset)
        if len(data) == length or not data:
            return data
        # One system call returns at most 2 GiB, and may be cut short by a signal.
        parts = [data]
        done = len(data)
        while done < length and (data := os.pread(handle, length - done, offset + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def write(self, handle: int, pieces: Sequence[bytes], offset: int) -> None:
        for first in range(0, len(pieces), _PIECES_MAX):
            group = pieces[first : first + _PIECES_MAX]
            written = os.pwritev(handle, group, offset)
            offset += written
            if written < sum(map(len, group)):
                offset = self._write_rest(handle, group, written, offset)

    def _write_rest(self, handle: int, group: Sequence[bytes], written: int, offset: int) -> int:
        """Finish a write that the system cut short; it says why it did on the next call."""
        for piece in group:
            rest = memoryview(piece)[min(written, len(piece)) :]
            written -= len(piece) - len(rest)
            while rest:
                count = os.pwrite(handle, rest, offset)
                rest = rest[count:]
                offset += count
        return offset

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def allocate(self, handle: int, length: int) -> None:
        os.posix_fallocate(handle, 0, length)

    def truncate(self, handle: int, length: int) -> None:
        os.ftruncate(handle, length)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def sync_directory(self, directory: Path) -> None:
        handle = self._open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            self.close(handle)
