"""An event loop whose time is a number: when nothing is left to do now, it jumps to what is next.

Coroutines, timers and callbacks go in and run in an order that depends on nothing but the
order in which they were asked for. No socket, no thread and no real clock is touched, and no
context variables either: nothing here has any, and keeping them costs a quarter of a run.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

#: Where virtual time begins, as Unix time in milliseconds.
EPOCH_MS = 1_700_000_000_000
# Seconds are floats; a timer set for a millisecond must not come a hair before it.
_HAIR_MS = 1e-3


# A run takes some thousands of turns; one that takes so many will never end.
_TURNS_MAX = 1_000_000


class Deadlock(Exception):
    """Everybody waits and no timer is set, or there is no end to what is to be done."""


class Call:
    """What was asked for, as the handle that asyncio expects."""

    __slots__ = ("args", "call", "is_cancelled", "when_s")

    def __init__(self, call: Callable[..., object], args: tuple[Any, ...], when_s: float) -> None:
        self.call = call
        self.args = args
        self.when_s = when_s
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._calls: deque[Call] = deque()
        #: Timers that come at the same time run in the order in which they were set.
        self._timers: list[tuple[float, int, Call]] = []
        self._timers_total = 0
        self._is_stopping = False

    def time(self) -> float:
        return self._now_s

    def now_ms(self) -> int:
        """Virtual Unix time; the broker's clock."""
        return EPOCH_MS + int(self._now_s * 1000 + _HAIR_MS)

    def at_ms(self, when_ms: int, call: Callable[..., object]) -> None:
        """Call at that millisecond, or at once when it is past."""
        when_s = (when_ms - EPOCH_MS) / 1000
        self._timers_total += 1
        heappush(self._timers, (when_s, self._timers_total, Call(call, (), when_s)))

    # --- what asyncio asks of a loop --------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: object = None
    ) -> Call:
        call = Call(callback, args, self._now_s)
        self._calls.append(call)
        return call

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: object = None
    ) -> Call:
        return self.call_at(self._now_s + delay, callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: object = None
    ) -> Call:
        call = Call(callback, args, when)
        self._timers_total += 1
        heappush(self._timers, (when, self._timers_total, call))
        return call

    def stop(self) -> None:
        self._is_stopping = True

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def run_forever(self) -> None:
        self._is_stopping = False
        events._set_running_loop(self)
        try:
            for _ in range(_TURNS_MAX):
                if self._is_stopping:
                    return
                self._turn()
            raise Deadlock
        finally:
            events._set_running_loop(None)

    def _turn(self) -> None:
        """Do everything there is to do now; if there is nothing, let it be later."""
        calls, timers = self._calls, self._timers
        if not calls:
            while timers and timers[0][2].is_cancelled:
                heappop(timers)
            if not timers:
                raise Deadlock
            self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= self._now_s:
            calls.append(heappop(timers)[2])
        for _ in range(len(calls)):
            call = calls.popleft()
            if call.is_cancelled:
                continue
            try:
                call.call(*call.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                said = f"an error in {call.call!r}"
                self.call_exception_handler({"message": said, "exception": error})

    def close(self) -> None:
        self._calls.clear()
        self._timers.clear()
        super().close()
