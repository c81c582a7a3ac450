"""What a broker whose journal is captured says by itself: that it started, that time passes,
and from time to time everything that is there.

The heartbeat takes along the observations of what changed nothing, such as a poll in vain: no
answer waits for those. Its clock is the event loop's, so that virtual time moves it as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from twinbus.engine.census import take_census
from twinbus.engine.engine import Engine
from twinbus.engine.observations import HEARTBEAT, STARTED, observed
from twinbus.journal import Journal
from twinbus.server.bridge import Hub

HEARTBEAT_S = 5.0
# A census comes with every so many heartbeats, if anything was written in between.
CENSUS_BEATS = 120


class Pulse:
    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        loop: asyncio.AbstractEventLoop,
        hub: Hub,
        begin_turn: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._loop = loop
        self._hub = hub
        self._begin_turn = begin_turn
        self._beats = 0
        self._changed = False
        journal.append(observed(STARTED, 0))
        take_census(engine)
        self._seen_lsn = journal.next_lsn
        self._timer = self._wait()
        begin_turn()

    def _wait(self) -> asyncio.TimerHandle:
        return self._loop.call_later(HEARTBEAT_S, self._beat)

    def _beat(self) -> None:
        if self._journal.failed is not None:
            return
        # What is left of a full disk is for settlements.
        if self._hub.refusing is None:
            self._tell()
        self._timer = self._wait()

    def _tell(self) -> None:
        self._begin_turn()
        self._changed = self._changed or self._journal.next_lsn != self._seen_lsn
        self._journal.append(observed(HEARTBEAT, 0))
        self._beats += 1
        if self._beats >= CENSUS_BEATS and self._changed:
            take_census(self._engine)
            self._beats = 0
            self._changed = False
        self._seen_lsn = self._journal.next_lsn

    def stop(self) -> None:
        self._timer.cancel()
