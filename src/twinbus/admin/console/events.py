"""What the applications of a pair say about it, from the files of events that they keep.

Lines of JSON go in (`twinbus.pairing.EventFile` writes them), the present state of each entity as
each application sees it comes out, with what was parked and taken home. Files are followed: each
look reads what is new, and not much of it at a time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: Read of one file at one look.
READ_BYTES_MAX = 256 * 1024
#: Of a file that was there before only the end is read.
TAIL_BYTES = 2 * 1024 * 1024
FILES_MAX = 100
ENTITIES_MAX = 5_000

_STATES = {
    "EntitySuspected": "suspect",
    "EntityFailedOver": "failed over",
    "EntityCleared": "healthy",
    "EntityRecovered": "healthy",
}

Json = dict[str, Any]


@dataclass(slots=True)
class Told:
    """One entity as one application sees it."""

    pair: str
    client: str
    path: str
    #: healthy, suspect, failed over; empty while no event has told it.
    state: str = ""
    since: str = ""
    error: str = ""
    pings: int = 0
    parked: int = 0
    syphoned: int = 0
    last: str = ""


@dataclass(slots=True)
class _Place:
    inode: int
    position: int


class PairEvents:
    """Follows the files of events in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: dict[Path, _Place] = {}
        self._told: dict[tuple[str, str, str], Told] = {}

    def look(self) -> list[Json]:
        """Read what is new and give all that is known, by pair, entity and application."""
        for path in sorted(self._directory.glob("*.jsonl"))[:FILES_MAX]:
            self._read(path)
        ordered = sorted(self._told.values(), key=lambda t: (t.pair, t.path.casefold(), t.client))
        return [asdict(told) for told in ordered]

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                found = path.stat()
                place = self._places.get(path)
                if place is None:
                    start = max(0, found.st_size - TAIL_BYTES)
                    place = self._places[path] = _Place(found.st_ino, start)
                elif place.inode != found.st_ino or place.position > found.st_size:
                    # A full file was renamed, and this one begins anew.
                    place.inode, place.position = found.st_ino, 0
                file.seek(place.position)
                piece = file.read(READ_BYTES_MAX)
        except OSError:
            return
        # A line that is not whole yet is read next time; the first of a tail may be half a one.
        whole = piece[: piece.rfind(b"\n") + 1]
        # No event is that long: what has no end is passed over.
        place.position += len(whole) or len(piece) // READ_BYTES_MAX * READ_BYTES_MAX
        for line in whole.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            path = event.get("path")
        except (ValueError, AttributeError, RecursionError):
            return
        if not isinstance(path, str):
            return
        names = (str(event.get("pair", "")), str(event.get("client", "")))
        key = (*names, path.casefold())
        told = self._told.get(key)
        if told is None:
            if len(self._told) >= ENTITIES_MAX:
                return
            told = self._told[key] = Told(*names, path)
        kind, when = str(event.get("event")), str(event.get("ts", ""))
        told.last = when
        if kind in _STATES:
            told.state, told.since = _STATES[kind], when
            told.error = str(event.get("error") or "")
        elif kind == "PingSent":
            told.pings += 1
        elif kind == "MessagesBacklogged":
            count = event.get("count")
            told.parked += count if type(count) is int else 0
        elif kind == "MessageSyphoned":
            told.syphoned += 1
