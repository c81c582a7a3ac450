"""Facts on disk: opaque records, appended, made durable in groups, replayed after a restart."""

from .disk import Disk, RealDisk
from .errors import JournalDamaged, JournalError, JournalFailed, JournalLocked, JournalNewer
from .journal import Journal
from .scan import read_segments

__all__ = [
    "Disk",
    "Journal",
    "JournalDamaged",
    "JournalError",
    "JournalFailed",
    "JournalLocked",
    "JournalNewer",
    "RealDisk",
    "read_segments",
]
