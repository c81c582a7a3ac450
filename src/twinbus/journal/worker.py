"""Runs jobs one after the other, away from the caller's thread.

Jobs are callables that do not raise. Without a thread of its own a job runs at once, which is
what a simulation wants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], None]


class Worker:
    """One thread and its queue."""

    def __init__(self, *, has_thread: bool) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if has_thread:
            # A daemon: a broker that dies of an error must not hang on it. Being cut off in a
            # write is what recovery is for.
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()

    def submit(self, job: Job) -> None:
        if self._thread is None:
            job()
        else:
            self._jobs.put(job)

    def drain(self) -> None:
        """Wait until every job submitted so far is done."""
        done = threading.Event()
        self.submit(done.set)
        done.wait()

    def stop(self) -> None:
        """Finish what was submitted, then end the thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
