"""The threads' side of `twinbus.pairing.concurrency`: the same names, written by hand."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.pairing import sdk

Client = TypeVar("Client")

# When the time is over the socket may not be there yet, so the cut is made more than once.
_CUT_AGAIN_S = 0.1

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

    def wait(self) -> None:
        """Wait for the end, good or bad."""
        self._thread.join()

    def result(self) -> Any:
        """Wait for the end; what the work raised is raised here."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def bounded(client: Client, open_s: float) -> Client:
    """See that opening a connection ends: what this client makes has `open_s` seconds for it.

    The SDK waits without end for the first answer of a peer that took the connection. Such a
    send would never fail over, and such a ping never end (P4, P7).
    """
    return cast(Client, _Bounded(client, open_s))


class _Bounded:
    """A client of the SDK whose senders and receivers open in time or not at all."""

    def __init__(self, client: Any, open_s: float) -> None:
        self._client = client
        self._open_s = open_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_queue_sender(self, *args: Any, **options: Any) -> Any:
        return self._watched(self._client.get_queue_sender(*args, **options))

    def get_topic_sender(self, *args: Any, **options: Any) -> Any:
        return self._watched(self._client.get_topic_sender(*args, **options))

    def get_queue_receiver(self, *args: Any, **options: Any) -> Any:
        return self._watched(self._client.get_queue_receiver(*args, **options))

    def _watched(self, handler: Any) -> Any:
        def run(opening: Callable[[], None], timeout_s: float | None) -> None:
            seconds = self._open_s if timeout_s is None else min(timeout_s, self._open_s)
            _open_in_time(handler, opening, seconds)

        sdk.bound_handshake(handler, self._open_s)
        sdk.around_open(handler, run)
        return handler


def _open_in_time(handler: Any, opening: Callable[[], None], seconds: float) -> None:
    """Open while a thread watches. It ends before this returns and so never cuts a good one."""
    ended = threading.Event()
    cuts = 0

    def watch() -> None:
        nonlocal cuts
        wait_s = seconds
        while not ended.wait(wait_s):
            cuts += 1
            sdk.cut(handler)
            wait_s = _CUT_AGAIN_S

    watcher = threading.Thread(target=watch, name="watch opening", daemon=True)
    watcher.start()
    failure: Exception | None = None
    try:
        opening()
    except Exception as error:
        failure = error
    finally:
        ended.set()
        watcher.join()
    if cuts:
        # Said as it is, whatever the SDK made of the cut: a time-out counts (P4).
        raise OperationTimeoutError(
            message=f"The connection did not open within {seconds:g} seconds."
        ) from failure
    if failure is not None:
        raise failure
