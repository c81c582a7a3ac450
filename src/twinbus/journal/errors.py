"""What can go wrong with a journal, said so that an operator can act on it."""

from __future__ import annotations

from pathlib import Path


class JournalError(Exception):
    """The root of everything the journal raises on its own account."""


class JournalLocked(JournalError):
    """Another process holds the directory."""


class JournalFailed(JournalError):
    """A write or a sync failed earlier; nothing more is accepted until a restart."""


class JournalNewer(JournalError):
    """A later version wrote something that this one does not know."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} was written by a newer Twinbus. Start the broker with that version, or"
            " restore a backup made before it; nothing has been changed on disk."
        )


class JournalDamaged(JournalError):
    """Records that had been acknowledged cannot be read any more.

    `last_lsn` is None where nothing readable follows the damage, so that its extent is unknown.
    """

    def __init__(
        self, path: Path, offset: int, first_lsn: int, last_lsn: int | None, what: str
    ) -> None:
        self.path = path
        self.offset = offset
        self.first_lsn = first_lsn
        self.last_lsn = last_lsn
        reach = "on" if last_lsn is None else f"to {last_lsn}"
        super().__init__(
            f"{path}: {what} at offset {offset}; records from LSN {first_lsn} {reach} are affected."
            " They had been acknowledged, so the broker does not start without them."
            " Restore this file (and every later one) from a backup of the same directory;"
            " nothing has been changed on disk."
        )
