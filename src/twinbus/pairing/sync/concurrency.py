"""The threads' side of `twinbus.pairing.concurrency`: the same names, written by hand."""

import threading
import time
from collections.abc import Callable
from typing import Any

#: Bounds how many may be inside at a time.
Semaphore = threading.Semaphore


def guard() -> "threading.Lock":
    """Keep a short stretch of code from being entered twice."""
    return threading.Lock()


class Event:
    """A flag to wait for, at most so long."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the flag is up (True) or the time is over (False)."""
        return self._event.wait(timeout_s)


class Task:
    """Work that runs beside the caller."""

    def __init__(self, name: str, work: Callable[..., Any], *args: Any) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        # A daemon: an application that forgets to close the pair can still end.
        self._thread = threading.Thread(target=self._run, args=(work, args), name=name, daemon=True)
        self._thread.start()

    def _run(self, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self._value = work(*args)
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        """Wait for the end; what the work raised is raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value


def sleep(seconds: float) -> None:
    time.sleep(seconds)
