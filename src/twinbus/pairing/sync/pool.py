# Generated from ../pool.py by tools/async_to_sync.py; change that file instead.
"""SDK senders to one entity, lent to one send at a time.

The SDK's sender does not stand overlapping calls, and one that failed may hold a connection
that will never answer again. So each send borrows a sender; a good one comes back, a bad
one is closed beside the traffic. While sends do not overlap there is exactly one.
"""

import logging
from collections.abc import Callable

from azure.servicebus import ServiceBusReceiver, ServiceBusSender

from twinbus.pairing.sync.concurrency import Task, guard

log = logging.getLogger("twinbus.pairing")


class SenderPool:
    def __init__(self, make: Callable[[], ServiceBusSender]) -> None:
        self._make = make
        self._idle: list[ServiceBusSender] = []
        self._closing: list[Task] = []
        self._guard = guard()

    def take(self) -> ServiceBusSender:
        with self._guard:
            if self._idle:
                return self._idle.pop()
        return self._make()

    def give(self, sender: ServiceBusSender) -> None:
        with self._guard:
            self._idle.append(sender)

    def discard(self, sender: ServiceBusSender) -> None:
        """Close a sender without waiting: the other side may be the one that is silent."""
        with self._guard:
            self._closing = [task for task in self._closing if not task.done()]
            self._closing.append(Task("close sender", close_quietly, sender))

    def discard_idle(self) -> None:
        """Close what is not in use: after an outage each connection may be dead."""
        with self._guard:
            idle, self._idle = self._idle, []
        for sender in idle:
            self.discard(sender)

    def close(self) -> None:
        self.discard_idle()
        with self._guard:
            closing, self._closing = self._closing, []
        for task in closing:
            task.result()


def close_quietly(handler: ServiceBusSender | ServiceBusReceiver) -> None:
    """Close a sender or receiver whose other side may be gone."""
    try:
        handler.close()
    except Exception:
        log.debug("A connection did not close cleanly", exc_info=True)
