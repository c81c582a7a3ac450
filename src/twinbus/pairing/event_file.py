"""Keeps a pair's events as lines of JSON, for the `failovers` report.

Give an `EventFile` as `on_event`: each event becomes one line with the time, the pair's name,
the client's name, the name of the event and its fields. A file that is full is renamed
`<name>.1`, the one before `<name>.2`, and so on; the oldest goes. One file belongs to one
process: two that rename would take each other's lines away.

It must not block or fail a sender for long: a line is one small write, and what goes wrong is
caught by the observer that calls it.
"""

import dataclasses
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from twinbus.pairing.events import Event

#: When a file is full, and how many full ones are kept beside it.
FULL_BYTES = 64 * 1024 * 1024
KEPT = 4


class EventFile:
    """Appends; made anew on the same path it goes on behind what is there."""

    def __init__(
        self,
        path: Path | str,
        pair: str,
        client: str,
        *,
        full_bytes: int = FULL_BYTES,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path = Path(path)
        self._names = {"pair": pair, "client": client}
        self._full_bytes = full_bytes
        self._now = now
        self._lock = threading.Lock()
        self._file: TextIO | None = self._open()

    def __call__(self, event: Event) -> None:
        line = json.dumps(self._fields(event), ensure_ascii=False) + "\n"
        with self._lock:
            if self._file is None:
                # A pair that is closing may still have something to say; it is kept.
                self._file = self._open()
            self._file.write(line)
            if self._file.tell() >= self._full_bytes:
                self._file.close()
                self._file = None
                self._rotate()

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fields(self, event: Event) -> dict[str, Any]:
        at = self._now().astimezone(UTC).isoformat(timespec="microseconds")
        return {
            "ts": at.replace("+00:00", "Z"),
            **self._names,
            "event": type(event).__name__,
            **dataclasses.asdict(event),
        }

    def _open(self) -> TextIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Buffered by the line: what happened before a crash is in the file.
        file = self._path.open("a", encoding="utf-8", buffering=1)
        if file.tell() and not self._ends_with_a_line():
            file.write("\n")
        return file

    def _ends_with_a_line(self) -> bool:
        """Whether a process that wrote here before was not cut off in the middle of a line."""
        with self._path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"

    def _rotate(self) -> None:
        def numbered(number: int) -> Path:
            return self._path.with_name(f"{self._path.name}.{number}")

        for number in range(KEPT - 1, 0, -1):
            if numbered(number).exists():
                numbered(number).replace(numbered(number + 1))
        self._path.replace(numbered(1))
