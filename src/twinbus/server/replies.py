"""Answers that wait for the journal: nothing is promised before it is on disk (S1).

Neighbours that get the same answer share one. This module is compiled with the bridge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twinbus.amqp.session import AmqpSession
from twinbus.core.errors import BusError

if TYPE_CHECKING:
    from twinbus.server.bridge import Bridge


class Run:
    """Consecutive deliveries of one AMQP session that get the same answer."""

    def __init__(
        self, bridge: Bridge, session: AmqpSession, first: int, state: bytes, incoming: bool
    ) -> None:
        self.bridge = bridge
        self.session = session
        self.first = first
        self.last = first
        self.state = state
        self.incoming = incoming

    def answer(self, state: bytes) -> None:
        if self.incoming:
            self.session.settle_incoming(self.first, self.last, state)
        else:
            self.session.settle_outgoing(self.first, self.last, state)
        self.bridge.touch()


class Replies:
    """Answers that wait for one commit."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._last: Run | None = None
        self._calls: list[Callable[[BusError | None], None]] = []

    def settle(
        self, bridge: Bridge, session: AmqpSession, delivery_id: int, state: bytes, incoming: bool
    ) -> None:
        run = self._last
        if (
            run is not None
            and run.session is session
            and run.last + 1 == delivery_id
            and run.incoming == incoming
            and run.state == state
        ):
            run.last = delivery_id
            return
        run = Run(bridge, session, delivery_id, state, incoming)
        self._runs.append(run)
        self._last = run

    def call(self, reply: Callable[[BusError | None], None]) -> None:
        self._calls.append(reply)

    @property
    def any(self) -> bool:
        return bool(self._runs or self._calls)

    def release(self) -> None:
        """It is on disk: say so."""
        for run in self._runs:
            run.answer(run.state)
        for reply in self._calls:
            reply(None)

    def fail(self, error: BusError) -> None:
        """It is not on disk, or nobody knows: nothing was promised, and that is said."""
        for run in self._runs:
            run.answer(run.bridge.rejected(error, "journal"))
        for reply in self._calls:
            reply(error)
