"""The few things that differ between asyncio and threads.

The asynchronous modules of this package use only these, so that their synchronous twins can
be generated (tools/async_to_sync.py); `sync/concurrency.py` has the same names for threads.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any, TypeVar

Client = TypeVar("Client")

#: Bounds how many may be inside at a time.
Semaphore = asyncio.Semaphore


def guard() -> nullcontext[None]:
    """Keep a short stretch of code from being entered twice. On a loop nothing interrupts it."""
    return nullcontext()


class Event:
    """A flag to wait for, at most so long."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the flag is up (True) or the time is over (False)."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Task:
    """Work that runs beside the caller."""

    def __init__(self, name: str, work: Callable[..., Coroutine[Any, Any, Any]], *args: Any):
        self._task = asyncio.create_task(work(*args), name=name)

    def done(self) -> bool:
        return self._task.done()

    async def wait(self) -> None:
        """Wait for the end, good or bad. The work goes on if the wait is cancelled: many may
        wait for it, and none of them owns it."""
        await asyncio.wait({self._task})

    async def result(self) -> Any:
        """Wait for the end; what the work raised is raised here."""
        await self.wait()
        return self._task.result()


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def bounded(client: Client, open_s: float) -> Client:
    """See that opening a connection ends; the SDK's asynchronous clients do by themselves."""
    return client
