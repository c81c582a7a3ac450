"""The files of a capture: named by the LSNs they hold, each written once and for good.

A file is there under its name only when all of it is durable: it is written as `_tmp-…`, synced
and renamed. So the names alone say what has been captured, and after a crash capture goes on
behind the highest LSN among them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from twinbus.capture.mark import Mark
from twinbus.capture.names import Names
from twinbus.journal import RealDisk

# Readers load a row group at a time; half a million rows or more make a file worth opening.
ROW_GROUP_ROWS = 256 * 1024
_LOCK_RETRY_S = 0.1
_TEMPORARY = "_tmp-"
_SIDECAR = "_entities.json"
_MARK = "twinbus.last_batch"
_NAME = re.compile(r"(?P<node>.+)-(?P<first>\d{20})-(?P<last>\d{20})\.parquet")
# Neighbours differ little in these; their values are no use in a dictionary.
_DELTAS = ("lsn", "part", "parts", "ts", "seq", "enqueued_ts", "first_delivered_ts")


class CaptureError(Exception):
    """Why a capture cannot go on, and what to do about it."""


class CaptureFile(NamedTuple):
    first_lsn: int
    last_lsn: int
    node: str
    path: Path

    @property
    def day(self) -> date:
        """The UTC day of the file's first record."""
        return date.fromisoformat(self.path.parent.name.removeprefix("date="))


class Sidecar(NamedTuple):
    """What is known about a root besides its files."""

    node: str
    #: Where the journal was; nothing depends on its staying there.
    journal: str
    names: Names


# --- what is there --------------------------------------------------------------------


def list_files(root: Path) -> list[CaptureFile]:
    """Every captured file, by LSN; what is still being written is not there yet."""
    found = []
    for path in root.glob("date=*/*.parquet"):
        match = _NAME.fullmatch(path.name)
        if match is not None:
            found.append(CaptureFile(int(match["first"]), int(match["last"]), match["node"], path))
    return sorted(found)


def captured_lsn(root: Path) -> int:
    """The last LSN that has been captured, 0 if none has."""
    return max((file.last_lsn for file in list_files(root)), default=0)


def newest_mark(root: Path) -> Mark | None:
    """Which batch of the journal the newest file ends with; older versions did not say."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    newest = max(list_files(root), key=lambda file: file.last_lsn)
    try:
        found = (pq.read_metadata(newest.path).metadata or {}).get(_MARK.encode())
    except (pa.ArrowInvalid, OSError) as error:
        raise CaptureError(
            f"{newest.path} cannot be read ({error}). If it is damaged remove it: its records are"
            " captured again where the journal still has them."
        ) from error
    return None if found is None else Mark.from_text(found.decode())


def missing_lsns(files: Sequence[CaptureFile]) -> list[tuple[int, int]]:
    """The first and last LSN of each gap between files that are in order."""
    return [
        (before.last_lsn + 1, after.first_lsn - 1)
        for before, after in pairwise(files)
        if after.first_lsn > before.last_lsn + 1
    ]


def node_of(data_dir: Path) -> str:
    """The name of a data directory, in all its files: made once, kept with the journal."""
    path = data_dir / "node"
    if not path.exists():
        _write_durably(path, secrets.token_hex(4) + "\n")
    return path.read_text().strip()


# --- holding a root -------------------------------------------------------------------


@contextlib.contextmanager
def held(root: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Be the only one who writes to a root; what a crash left half-written is removed.

    One who is about to stop, because its broker was killed, may be waited for.
    """
    disk = RealDisk()
    disk.make_directory(root)
    handle = os.open(root / "_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(handle, root, time.monotonic() + wait_s)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        for path in [*root.glob(f"{_TEMPORARY}*"), *root.glob(f"date=*/{_TEMPORARY}*")]:
            path.unlink()
        # A name that was seen before a crash must not vanish in the next one.
        for directory in [*root.glob("date=*"), root]:
            disk.sync_directory(directory)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, root: Path, deadline_s: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() < deadline_s:
                time.sleep(_LOCK_RETRY_S)
                continue
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise CaptureError(
                f"{root} is being written by another process ({holder}): stop it first, or"
                " capture to another directory"
            ) from None


def read_sidecar(root: Path) -> Sidecar | None:
    try:
        given = json.loads((root / _SIDECAR).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CaptureError(
            f"{root / _SIDECAR} is not readable ({error}): remove it, and it is made anew from"
            " the journal"
        ) from error
    entities = {int(number): (ns, path) for number, (ns, path) in given["entities"].items()}
    return Sidecar(given["node"], given["journal"], Names(entities))


def write_sidecar(root: Path, sidecar: Sidecar) -> None:
    given = {
        "node": sidecar.node,
        "journal": sidecar.journal,
        "entities": {str(number): name for number, name in sidecar.names.entities.items()},
    }
    _write_durably(root / _SIDECAR, json.dumps(given, indent=1) + "\n")


def _write_durably(path: Path, text: str) -> None:
    temporary = path.with_name(_TEMPORARY + path.name)
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    RealDisk().sync_directory(path.parent)


# --- writing and removing -------------------------------------------------------------


def write_file(
    root: Path, table: Any, node: str, first_lsn: int, last_lsn: int, mark: Mark | None = None
) -> CaptureFile:
    """Make a durable file of a pyarrow.Table that holds these LSNs, all of them.

    `mark` is the batch that holds the last one, as far as that is known.
    """
    import pyarrow.parquet as pq

    day = datetime.fromtimestamp(table["ts"][0].cast("int64").as_py() / 1e6, UTC).date()
    directory = root / f"date={day.isoformat()}"
    disk = RealDisk()
    disk.make_directory(directory)
    name = f"{node}-{first_lsn:020}-{last_lsn:020}"
    # Without the suffix: some readers take every name that ends in it.
    temporary = directory / (_TEMPORARY + name)
    metadata = {
        "twinbus.node": node,
        "twinbus.first_lsn": str(first_lsn),
        "twinbus.last_lsn": str(last_lsn),
    }
    if mark is not None:
        metadata[_MARK] = str(mark)
    with temporary.open("wb") as file:
        pq.write_table(
            table.unify_dictionaries().replace_schema_metadata(metadata),
            file,
            row_group_size=ROW_GROUP_ROWS,
            compression="zstd",
            use_dictionary=[column for column in table.column_names if column not in _DELTAS],
            column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        )
        file.flush()
        os.fsync(file.fileno())
    path = directory / f"{name}.parquet"
    temporary.rename(path)
    disk.sync_directory(directory)
    return CaptureFile(first_lsn, last_lsn, node, path)


def remove_old(
    root: Path, today: date, *, days_max: int | None = None, bytes_max: int | None = None
) -> list[CaptureFile]:
    """Remove the oldest files, of days long past or beyond a total size; say which.

    Only ever the oldest, so that what stays has no gap, and never the newest: its name says how
    far capture has come.
    """
    files = list_files(root)
    days = _days(files, today)
    sizes = [file.path.stat().st_size for file in files]
    total = sum(sizes)
    removed = []
    disk = RealDisk()
    for file, day, size in zip(files[:-1], days, sizes, strict=False):
        is_old = days_max is not None and day < today - timedelta(days=days_max)
        if not is_old and (bytes_max is None or total <= bytes_max):
            break
        file.path.unlink()
        # One at a time: a power cut that undid an older removal only would leave a gap.
        disk.sync_directory(file.path.parent)
        total -= size
        removed.append(file)
    _remove_empty({file.path.parent for file in removed})
    return removed


def _days(files: Sequence[CaptureFile], today: date) -> list[date]:
    """The day of each file, by which it gets old.

    A day that is still to come was written by a clock that was ahead. Such a file is no newer
    than the one after it; by its own day it would keep all later ones as well. The other way
    round, a clock that was behind for once must not make the files before it old.
    """
    days: list[date] = []
    following = date.max
    for file in reversed(files):
        following = file.day if file.day <= today else following
        days.append(following)
    return days[::-1]


def _remove_empty(directories: Iterable[Path]) -> None:
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()
