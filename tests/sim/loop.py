"""An event loop whose time is a number: when nothing is left to do now, it jumps to what is next.

Coroutines, timers and callbacks go in and run in an order that depends on nothing but the
order in which they were asked for. No socket, no thread and no real clock is touched.
"""

from __future__ import annotations

import asyncio

#: Where virtual time begins, as Unix time in milliseconds.
EPOCH_MS = 1_700_000_000_000
# Seconds are floats; a timer set for a millisecond must not come a hair before it.
_HAIR_MS = 1e-3


class Deadlock(Exception):
    """Everybody waits and no timer is set."""


class _Clockwork:
    """Stands where the loop has its selector: waiting is moving the hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise Deadlock
        self.now_s += max(0.0, timeout)
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._selector = _Clockwork()

    def time(self) -> float:
        return self._selector.now_s

    def now_ms(self) -> int:
        """Virtual Unix time; the broker's clock."""
        return EPOCH_MS + int(self._selector.now_s * 1000 + _HAIR_MS)

    def at_ms(self, when_ms: int, call: object, *args: object) -> asyncio.TimerHandle:
        return self.call_at((when_ms - EPOCH_MS) / 1000, call, *args)  # type: ignore[arg-type]

    def _process_events(self, events: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
