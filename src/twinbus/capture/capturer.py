"""Captures a journal: follows it, gathers rows, and writes files that hold each LSN once.

A journal's directory and a root go in; Parquet files come out. It keeps no state but the files
themselves: where to go on is read off their names. It must be the only one that writes to the
root, and it never writes to the journal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from twinbus.capture.files import (
    CaptureError,
    CaptureFile,
    Sidecar,
    captured_lsn,
    read_sidecar,
    remove_old,
    write_file,
    write_sidecar,
)
from twinbus.capture.identity import check_identity
from twinbus.capture.mark import Mark
from twinbus.capture.names import Names
from twinbus.capture.rows import Rows
from twinbus.engine import observations, records
from twinbus.engine.observations import Observation
from twinbus.journal import read_segments
from twinbus.journal.tail import READ_BYTES, JournalGap, Tail, oldest_lsn

log = logging.getLogger(__name__)

ROLL_ROWS = 500_000
ROLL_SECONDS = 60.0
# Heartbeats alone make a file this many times more rarely: enough to move a stream's watermark.
IDLE_FACTOR = 10
# Gathered records become columns at this number, so that few of them are Python objects.
_COLUMN_ROWS = 64 * 1024
_GIGABYTE = 10**9


@dataclass(frozen=True, slots=True)
class Settings:
    journal: Path
    root: Path
    node: str
    roll_rows: int = ROLL_ROWS
    roll_seconds: float = ROLL_SECONDS
    keep_days: int | None = None
    keep_gigabytes: float | None = None
    accept_gap: bool = False


def _today() -> date:
    return datetime.now(UTC).date()


class Capturer:
    """Whoever makes one holds the root (`files.held`)."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_written: Callable[[CaptureFile], None] = lambda file: None,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], date] = _today,
    ) -> None:
        self._settings = settings
        self._on_written = on_written
        self._clock = clock
        self._today = today
        self._batches: list[Any] = []
        self._gathered = 0
        self._is_telling = False
        self._first_lsn = 0
        self._last_lsn = captured_lsn(settings.root)
        self._mark: Mark | None = None
        self._since = 0.0
        check_identity(settings.root, settings.journal, settings.node)
        sidecar = read_sidecar(settings.root)
        self._names = Names() if sidecar is None else sidecar.names
        self._is_named = sidecar is not None
        begin = self._last_lsn + 1
        if sidecar is None or not self._last_lsn:
            begin = self._look_around(begin)
        self._tail = Tail(settings.journal, begin)
        self._rows = Rows(self._names, self._payload)

    @property
    def captured_lsn(self) -> int:
        """Everything up to here is in files."""
        return self._first_lsn - 1 if self._first_lsn else self._last_lsn

    def step(self) -> int:
        """Take in some of what is durable now, write a file if one is due; give the bytes read."""
        try:
            found = self._tail.read()
        except JournalGap as gap:
            self._pass_over(gap)
            return READ_BYTES
        for one in found:
            if not self._first_lsn:
                self._first_lsn = one.batch.first_lsn
                self._since = self._clock()
            self._rows.add(one)
            self._last_lsn = one.batch.next_lsn - 1
            self._mark = Mark(one.batch.location, one.batch.crc)
            if self._rows.count >= _COLUMN_ROWS:
                self._make_columns()
            if self._gathered + self._rows.count >= self._settings.roll_rows:
                self.write()
        if self._is_due():
            self.write()
        return sum(one.batch.length for one in found)

    def drain(self) -> None:
        """Capture everything that is durable by now."""
        while self.step():
            pass
        self.write()

    def write(self) -> None:
        """Make a file of what has been gathered."""
        if not self._first_lsn:
            return
        self._make_columns()
        self._save_names()
        settings = self._settings
        table = pa.Table.from_batches(self._batches)
        file = write_file(
            settings.root, table, settings.node, self._first_lsn, self._last_lsn, self._mark
        )
        self._batches = []
        self._gathered = 0
        self._is_telling = False
        self._first_lsn = 0
        self._on_written(file)
        self._retain()

    def close(self) -> None:
        self._tail.close()

    # --- beginning --------------------------------------------------------------------

    def _look_around(self, begin: int) -> int:
        """Learn the names in the journal; say where a new capture begins.

        That is where the broker was first started with capture on: from there on all is told,
        beginning with what was there. In a journal that was never observed it is the oldest
        record.
        """
        started = 0
        for lsn, _, _, record in read_segments(self._settings.journal):
            if record[0] == records.ENTITY_PUT:
                self._names.put(record)
            elif not started and is_start(record):
                started = lsn
        if self._last_lsn:
            return begin
        return started or oldest_lsn(self._settings.journal)

    def _pass_over(self, gap: JournalGap) -> None:
        if not self._settings.accept_gap:
            raise CaptureError(
                f"{gap}. They cannot be captured any more. To go on without them:"
                f" twinbus capture run {self._settings.journal.parent} {self._settings.root}"
                " --once --accept-gap. Every audit of this capture will name them."
            ) from gap
        log.warning("LSNs %d to %d are missing from the capture", gap.first_lsn, gap.last_lsn)
        # A file's name must not span what it does not hold.
        self.write()
        self._look_around(gap.last_lsn + 1)
        self._tail.close()
        self._tail = Tail(self._settings.journal, gap.last_lsn + 1)

    # --- going on ---------------------------------------------------------------------

    def _payload(self, location: int, length: int) -> bytes | None:
        return self._tail.payload(location, length)

    def _is_due(self) -> bool:
        if not self._first_lsn:
            return False
        waited = self._clock() - self._since
        seconds = self._settings.roll_seconds
        if self._is_telling or self._rows.telling:
            return waited >= seconds
        return waited >= seconds * IDLE_FACTOR

    def _make_columns(self) -> None:
        if self._rows.count:
            self._gathered += self._rows.count
            self._is_telling |= self._rows.telling > 0
            self._batches.append(self._rows.take())

    def _save_names(self) -> None:
        """Keep the names durably before the first file that needs them."""
        if self._is_named and not self._names.is_changed:
            return
        settings = self._settings
        journal = str(settings.journal.resolve())
        write_sidecar(settings.root, Sidecar(settings.node, journal, self._names))
        self._names.is_changed = False
        self._is_named = True

    def _retain(self) -> None:
        days, gigabytes = self._settings.keep_days, self._settings.keep_gigabytes
        if days is None and gigabytes is None:
            return
        bytes_max = None if gigabytes is None else int(gigabytes * _GIGABYTE)
        removed = remove_old(self._settings.root, self._today(), days_max=days, bytes_max=bytes_max)
        for file in removed:
            log.info("removed an old file", extra={"file": file.path.name})


def is_start(record: bytes) -> bool:
    return record[0] == records.OBSERVED and Observation(record).what == observations.STARTED
