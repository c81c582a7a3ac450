"""Whose bytes are next when more is sent than can be taken in.

Bytes that have to wait go in, with the mark that their connection got last; a new mark comes
out, and later the turn. Whoever has the smallest mark is next, and a mark grows with the bytes
that had to wait, so that connections get equal shares (self-clocked fair queueing). First come,
first served would make a client that sends now and then wait for a round of all who flood; what
it has to say meanwhile would wait together, and for a round again, for as long as they flood.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Resume = Callable[[], None]


class Turnstile:
    def __init__(self) -> None:
        self.held_bytes = 0
        #: The mark of the last who was let in: nobody saves up turns that were not used.
        self._mark = 0
        self._entries = 0
        self._waiting: list[tuple[int, int, int, Resume]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def hold(self, mark: int, size_bytes: int, resume: Resume) -> int:
        """Let bytes wait, of the connection with that mark; give it its new one."""
        mark = max(mark, self._mark) + size_bytes
        self._entries += 1
        heapq.heappush(self._waiting, (mark, self._entries, size_bytes, resume))
        self.held_bytes += size_bytes
        return mark

    def next_bytes(self) -> int:
        """How much is let in next."""
        return self._waiting[0][2]

    def let_in(self) -> None:
        self._mark, _, size_bytes, resume = heapq.heappop(self._waiting)
        self.held_bytes -= size_bytes
        resume()
