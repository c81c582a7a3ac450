"""The blocking half of a client: moves bytes between transport and connection, and waits.

Whoever uses it holds its lock. Keeps the line alive while it waits; every wait has an end,
and a peer that is silent for that long is given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from twinbus.amqp.framing import EMPTY_FRAME
from twinbus.client.connection import Connection
from twinbus.client.errors import ConnectionLost
from twinbus.client.links import Link
from twinbus.client.transport import Transport

_STEP_S_MAX: Final = 30.0
# Empty frames, one or two of each side at a time, keep a line alive and answer nothing.
_SIGNS_OF_LIFE_BYTES: Final = 4 * len(EMPTY_FRAME)


class Wire:
    def __init__(self, transport: Transport, connection: Connection, timeout_s: float) -> None:
        self.connection = connection
        self.lock = threading.RLock()
        self.timeout_s = timeout_s
        self._transport = transport
        self._sent_s = time.monotonic()

    @property
    def keep_alive_s(self) -> float:
        """How long the line may be silent on our side."""
        wanted_ms = self.connection.keep_alive_ms
        return min(wanted_ms / 1000, _STEP_S_MAX) if wanted_ms else _STEP_S_MAX

    def wait(self, ready: Callable[[], bool], what: str, *links: Link) -> None:
        """Go on until `ready`; raise why that will not be."""
        deadline_s = time.monotonic() + self.timeout_s
        while not ready():
            for link in links:
                if link.failure is not None:
                    raise link.failure
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self.connection.lost(f"{self._transport.place} did not {what} in time")
            self.check()
            moved = self._transport.moved_bytes
            self.exchange(min(left_s, self.keep_alive_s))
            if self._transport.moved_bytes - moved > _SIGNS_OF_LIFE_BYTES:
                # A line may need long for a long message; it is not silent.
                deadline_s = time.monotonic() + self.timeout_s

    def check(self) -> None:
        if self.connection.failure is not None:
            raise self.connection.failure

    def exchange(self, wait_s: float) -> None:
        """Write what is to be written, take in what came; wait at most that long for it."""
        connection = self.connection
        now_s = time.monotonic()
        if not connection.output and now_s - self._sent_s >= self.keep_alive_s:
            connection.output.append(EMPTY_FRAME)
        if connection.output:
            self._sent_s = now_s
        try:
            data = self._transport.exchange(connection.output, wait_s)
        except ConnectionLost as error:
            connection.lost(str(error))
            return
        if data:
            connection.receive(data)

    def close(self) -> None:
        """Say goodbye if the peer still listens, and let go of the socket."""
        self.connection.close()
        try:
            self._transport.exchange(self.connection.output, 0)
        except ConnectionLost:
            pass
        finally:
            self._transport.close()
