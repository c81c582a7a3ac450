# Generated from ../window.py by tools/async_to_sync.py; change that file instead.
"""Overlapped sends with a bound, and nothing forgotten (S3, S4).

`send` returns as soon as the message is on its way and there is room for the next; `drain`
(or leaving the `with` block) waits for all outcomes and raises if one of them was bad. A block
that ends with an error of its own raises that, with a note; `drain` then raises the others.
"""

from typing import Any

from twinbus.pairing.errors import UnsentError
from twinbus.pairing.sync.concurrency import Semaphore, Task
from twinbus.pairing.sync.sender import Messages, PairedSender


class SendWindow:
    """At most `max_in_flight` sends of one sender under way (the sender's own bound if less)."""

    def __init__(self, sender: PairedSender, max_in_flight: int = 10) -> None:
        self._sender = sender
        self._slots = Semaphore(max_in_flight)
        self._tasks: list[Task] = []
        self._failures: list[tuple[Any, BaseException]] = []

    def __enter__(self) -> "SendWindow":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        try:
            self.drain()
        except UnsentError as unsent:
            if error is None:
                raise
            # The error that ends the block is the one to see. What failed beside it is noted
            # there, and kept: nothing is forgotten (S4).
            self._failures = unsent.failures
            error.add_note(f"In its window {unsent}. drain() raises them all.")

    def send(self, message: Messages, *, timeout: float | None = None) -> None:
        """Wait for room, then send without waiting for the outcome."""
        self._slots.acquire()
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(Task("windowed send", self._run, message, timeout))

    def drain(self) -> None:
        """Wait for every outcome; raise `UnsentError` if a send failed since the last drain."""
        for task in self._tasks:
            task.wait()
        failures, self._failures = self._failures, []
        if failures:
            raise UnsentError(failures)

    def _run(self, message: Messages, timeout: float | None) -> None:
        try:
            self._sender.send_messages(message, timeout=timeout)
        except BaseException as error:
            # One that was cancelled, too: nobody knows whether it has arrived.
            self._failures.append((message, error))
            if not isinstance(error, Exception):
                raise
        finally:
            self._slots.release()
