"""Which batch of the journal a captured file ends with, and whether a journal still has it.

LSNs are only numbers: a journal restored from an older backup gives them out again, for other
records. A batch is known by where it was written and by its checksum, which covers its records
and the checksum of the batch before it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from twinbus.journal.batch import HEADER_BYTES, OFFSET_MASK, parse
from twinbus.journal.scan import segment_numbers, segment_path


class Mark(NamedTuple):
    location: int
    crc: int

    @staticmethod
    def from_text(text: str) -> Mark:
        location, _, crc = text.partition("-")
        return Mark(int(location, 16), int(crc, 16))

    def __str__(self) -> str:
        return f"{self.location:016x}-{self.crc:08x}"


def is_contradicted(journal: Path, mark: Mark) -> bool:
    """Tell whether a journal has something else in the batch's place, or nothing.

    A segment that was dropped cannot be asked. Only the oldest are dropped: if it was, those
    that are there are all newer.
    """
    segment = mark.location >> 32
    found = None
    with contextlib.suppress(FileNotFoundError), segment_path(journal, segment).open("rb") as file:
        file.seek(mark.location & OFFSET_MASK)
        found = parse(file.read(HEADER_BYTES), 0, mark.location)
    if found is not None and found.crc == mark.crc:
        return False
    # Looked at last: a segment that is dropped meanwhile loses its name before its bytes.
    return any(number <= segment for number in segment_numbers(os.listdir(journal)))
