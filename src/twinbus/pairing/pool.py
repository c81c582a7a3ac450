"""SDK senders to one entity, lent to one send at a time.

The SDK's sender does not stand overlapping calls, and one that failed may hold a connection
that will never answer again. So each send borrows a sender; a good one comes back, a bad
one is closed beside the traffic. There are as many as sends overlap, and no more than the
bound: who comes then waits (S4).
"""

import logging
from collections import deque
from collections.abc import Callable

from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender

from twinbus.pairing.concurrency import Event, Task, guard

log = logging.getLogger("twinbus.pairing")


class CalledOff(Exception):
    """There is nothing to wait for here any more."""


class SenderPool:
    def __init__(self, make: Callable[[], ServiceBusSender], senders_max: int) -> None:
        self._make = make
        self._senders_max = senders_max
        self._senders = 0
        self._idle: list[ServiceBusSender] = []
        # Who waits, the longest first. While somebody does, nothing lies idle.
        self._line: deque[_Turn] = deque()
        self._closed = False
        self._closing: list[Task] = []
        self._guard = guard()

    def take_idle(self) -> ServiceBusSender | None:
        """Borrow a sender if one lies ready."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    async def take(self) -> ServiceBusSender:
        """Borrow a sender; `give` or `discard` it afterwards.

        Raises CalledOff if it had to wait, and waiting was called off.
        """
        turn: _Turn | None = None
        with self._guard:
            idle = self.take_idle()
            if idle is not None:
                return idle
            if self._senders < self._senders_max:
                self._senders += 1
            else:
                turn = _Turn()
                self._line.append(turn)
        if turn is not None:
            try:
                await turn.has_come.wait()
            except BaseException:
                self._leave(turn)
                raise
            if turn.is_called_off:
                raise CalledOff
            if turn.sender is not None:
                return turn.sender
        try:
            return self._make()
        except BaseException:
            # One that cannot be made takes no place.
            self._free_place()
            raise

    def give(self, sender: ServiceBusSender) -> None:
        with self._guard:
            if self._pass_on(sender):
                return
            if not self._closed:
                self._idle.append(sender)
                return
        self.discard(sender)

    def discard(self, sender: ServiceBusSender) -> None:
        """Close a sender without waiting: the other side may be the one that is silent."""
        with self._guard:
            self._closing = [task for task in self._closing if not task.done()]
            self._closing.append(Task("close sender", close_quietly, sender))
        self._free_place()

    def call_off(self) -> None:
        """Let nobody wait: those who have a sender may have no answer for long."""
        with self._guard:
            turns = list(self._line)
            self._line.clear()
            for turn in turns:
                turn.is_called_off = True
        for turn in turns:
            turn.has_come.set()

    def _pass_on(self, sender: ServiceBusSender | None) -> bool:
        """Hand a sender, or the place of one, to who has waited longest, if anybody has.

        From hand to hand: whoever sends in a loop is back before one that waits can look, and
        would find first whatever was laid down.
        """
        if not self._line:
            return False
        turn = self._line.popleft()
        turn.sender = sender
        turn.has_come.set()
        return True

    def _free_place(self) -> None:
        with self._guard:
            if not self._pass_on(None):
                self._senders -= 1

    def _leave(self, turn: "_Turn") -> None:
        """Somebody waits no longer; had the turn come meanwhile, it is the next one's."""
        with self._guard:
            if turn in self._line:
                self._line.remove(turn)
                return
            if turn.is_called_off:
                return
        if turn.sender is None:
            self._free_place()
        else:
            self.give(turn.sender)

    def discard_idle(self) -> None:
        """Close what is not in use: after an outage each connection may be dead."""
        while (sender := self.take_idle()) is not None:
            self.discard(sender)

    async def close(self) -> None:
        """Close what is not in use; what still is goes when it is given back."""
        with self._guard:
            self._closed = True
        self.discard_idle()
        with self._guard:
            closing, self._closing = self._closing, []
        for task in closing:
            await task.result()


class _Turn:
    """A place in the line."""

    def __init__(self) -> None:
        self.has_come = Event()
        #: What to use; None: the place is free to make one.
        self.sender: ServiceBusSender | None = None
        self.is_called_off = False


async def close_quietly(handler: ServiceBusSender | ServiceBusReceiver) -> None:
    """Close a sender or receiver whose other side may be gone."""
    try:
        await handler.close()
    except Exception:
        log.debug("A connection did not close cleanly", exc_info=True)
