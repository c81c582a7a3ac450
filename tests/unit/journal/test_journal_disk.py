"""The real disk: whole writes, whole reads, and errors where it cannot."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from twinbus.journal import RealDisk


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    handle = RealDisk().open(tmp_path / "file", create=True)
    yield handle
    RealDisk().close(handle)


def test_more_pieces_than_one_call_takes_are_all_written(handle: int) -> None:
    pieces = [b"%d," % number for number in range(5000)]
    RealDisk().write(handle, pieces, 10)
    assert RealDisk().read(handle, 1 << 20, 10) == b"".join(pieces)


def test_a_write_cut_short_is_finished(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may take fewer bytes than it is given, at any point of any piece."""
    pieces = [b"one", b"", b"twenty", b"three"]
    whole = b"".join(pieces)
    for cut in range(len(whole) + 1):
        monkeypatch.setattr(
            os, "pwritev", lambda fd, group, at, cut=cut: os.pwrite(fd, b"".join(group)[:cut], at)
        )
        RealDisk().truncate(handle, 0)
        RealDisk().write(handle, pieces, 5)
        assert RealDisk().read(handle, 100, 0) == bytes(5) + whole


def test_a_write_that_cannot_be_finished_says_why(handle: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError) as caught:
            RealDisk().write(handle, [b"x" * 600, b"y" * 600], 0)
        assert caught.value.errno == errno.EFBIG
        with pytest.raises(OSError):
            RealDisk().allocate(handle, 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_files_can_be_opened_when_all_descriptors_are_taken(tmp_path: Path) -> None:
    """As often as needed: what is closed goes back into the reserve."""
    before = len(os.listdir("/proc/self/fd"))
    disk = RealDisk()
    lock = disk.lock(tmp_path / "lock")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, hard))
    try:
        with suppress(OSError):
            while len(taken) < 100:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        assert len(taken) < 100
        for _ in range(10):
            handle = disk.open(tmp_path / "file", create=True)
            other = disk.open(tmp_path / "other", create=True)
            disk.sync_directory(tmp_path)
            assert len(disk.names(tmp_path)) == 3
            disk.write(handle, [b"durable"], 0)
            assert disk.read(handle, 7, 0) == b"durable"
            disk.close(handle)
            disk.close(other)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in taken:
            os.close(one)
    disk.close(lock)
    assert len(os.listdir("/proc/self/fd")) == before


def test_allocation_reserves_and_keeps_what_is_there(handle: int) -> None:
    RealDisk().write(handle, [b"kept"], 0)
    RealDisk().allocate(handle, 100_000)
    assert RealDisk().size(handle) == 100_000
    assert os.fstat(handle).st_blocks * 512 >= 100_000
    assert RealDisk().read(handle, 6, 0) == b"kept\0\0"
    RealDisk().allocate(handle, 10)
    assert RealDisk().size(handle) == 100_000


def test_a_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    RealDisk().make_directory(tmp_path / "a" / "b" / "c")
    RealDisk().make_directory(tmp_path / "a" / "b" / "c")
    assert RealDisk().names(tmp_path / "a" / "b") == ["c"]


def test_files_are_for_the_broker_alone(tmp_path: Path) -> None:
    RealDisk().close(RealDisk().open(tmp_path / "file", create=True))
    assert (tmp_path / "file").stat().st_mode & 0o077 == 0


def test_to_remove_what_is_gone_is_no_error(tmp_path: Path) -> None:
    RealDisk().unlink(tmp_path / "nothing")
