"""SDK senders to one entity, lent to one send at a time.

The SDK's sender does not stand overlapping calls, and one that failed may hold a connection
that will never answer again. So each send borrows a sender; a good one comes back, a bad
one is closed beside the traffic. There are as many as sends overlap, and no more than the
bound: who comes then waits (S4).
"""

import logging
from collections.abc import Callable

from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender

from twinbus.pairing.concurrency import Semaphore, Task, guard

log = logging.getLogger("twinbus.pairing")


class SenderPool:
    def __init__(self, make: Callable[[], ServiceBusSender], senders_max: int) -> None:
        self._make = make
        self._senders_max = senders_max
        self._senders = 0
        self._idle: list[ServiceBusSender] = []
        self._waiting = 0
        self._turns = Semaphore(0)
        self._closing: list[Task] = []
        self._guard = guard()

    def take_idle(self) -> ServiceBusSender | None:
        """Borrow a sender if one lies ready."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    async def take(self) -> ServiceBusSender:
        """Borrow a sender; `give` or `discard` it afterwards."""
        while True:
            sender = self.take_idle() or self._make_or_queue_up()
            if sender is not None:
                return sender
            await self._turns.acquire()

    def _make_or_queue_up(self) -> ServiceBusSender | None:
        with self._guard:
            if self._senders < self._senders_max:
                # Counted only once it is there: one that cannot be made takes no place.
                sender = self._make()
                self._senders += 1
                return sender
            # Counted as waiting first and looked again second: a sender that comes back in
            # between is seen here, or its giver sees that somebody waits.
            self._waiting += 1
            idle = self.take_idle()
            if idle is not None:
                self._waiting -= 1
            return idle

    def give(self, sender: ServiceBusSender) -> None:
        self._idle.append(sender)
        if self._waiting:
            self._next_turn()

    def discard(self, sender: ServiceBusSender) -> None:
        """Close a sender without waiting: the other side may be the one that is silent."""
        with self._guard:
            self._senders -= 1
            self._closing = [task for task in self._closing if not task.done()]
            self._closing.append(Task("close sender", close_quietly, sender))
        self._next_turn()

    def _next_turn(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting -= 1
                self._turns.release()

    def discard_idle(self) -> None:
        """Close what is not in use: after an outage each connection may be dead."""
        while (sender := self.take_idle()) is not None:
            self.discard(sender)

    async def close(self) -> None:
        self.discard_idle()
        with self._guard:
            closing, self._closing = self._closing, []
        for task in closing:
            await task.result()


async def close_quietly(handler: ServiceBusSender | ServiceBusReceiver) -> None:
    """Close a sender or receiver whose other side may be gone."""
    try:
        await handler.close()
    except Exception:
        log.debug("A connection did not close cleanly", exc_info=True)
