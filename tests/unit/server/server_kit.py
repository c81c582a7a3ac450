"""A broker and a client of it in memory: no socket, no file, time that only passes when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.sim.loop import VirtualLoop
from tests.store.journal_disks import MemoryDisk
from tests.unit.amqp.amqp_client import Peer
from tests.unit.engine.engine_kit import Kit
from twinbus.core.descriptions import AuthorizationRule
from twinbus.core.errors import BusError
from twinbus.engine.namespace import Namespace
from twinbus.journal import Disk, Journal
from twinbus.server.authorization import Guard
from twinbus.server.bridge import Bridge, Hub
from twinbus.server.broker import Broker
from twinbus.server.door import FrontDoor, Visitor

DIRECTORY = Path("journal")

CallLater = Callable[[int, Callable[[], None]], Callable[[], None]]


class OneHost:
    """Whatever the host name, the same namespace; without rules nobody checks."""

    def __init__(self, namespace: Namespace, *rules: AuthorizationRule) -> None:
        self._found = namespace, Guard(namespace, list(rules), checks=bool(rules))

    def resolve(self, host: str | None) -> tuple[Namespace, Guard]:
        return self._found

    def all(self) -> list[tuple[Namespace, Guard]]:
        return [self._found]


def never(delay_ms: int, call: Callable[[], None]) -> Callable[[], None]:
    """For those to whom what is to be called later does not matter."""
    return lambda: None


def join(hub: Hub, namespace: Namespace, call_later: CallLater = never) -> tuple[Peer, Bridge]:
    """A client with an open connection and session."""
    door = FrontDoor(OneHost(namespace), call_later)
    bridge = Bridge(hub, door)
    door.visitors[bridge] = Visitor(bridge)
    peer = Peer(bridge)
    bridge.connection = peer.server
    return peer.handshake(), bridge


def connected(kit: Kit, planned: list[Callable[[], None]] | None = None) -> tuple[Peer, Bridge]:
    """A client of an engine without a broker; what is to be called later is `planned`."""
    hub = Hub(kit.engine.kernel, _track, lambda: "id")
    hub.now_ms = kit.now_ms
    if planned is None:
        return join(hub, kit.namespace)

    def call_later(delay_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        planned.append(call)
        return lambda: None

    return join(hub, kit.namespace, call_later)


def _track(error: BusError, subject: str) -> str:
    return error.text


class Machine:
    """A broker in virtual time, on a disk in memory."""

    def __init__(
        self,
        disk: Disk | None = None,
        *,
        segment_bytes: int = 8 << 10,
        memory_bytes: int = 1 << 20,
        dice: Callable[[int], bytes] = bytes,
        **more: Any,
    ) -> None:
        self.loop = VirtualLoop()
        journal = Journal.open(DIRECTORY, disk=disk or MemoryDisk(), segment_bytes=segment_bytes)
        self.broker = Broker(journal, memory_bytes, self.loop, self.loop.now_ms, dice, **more)

    def run(self, seconds: float = 0.001) -> None:
        """Let time pass; the least of it is enough for a turn, with a disk that is done at once."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def close(self) -> None:
        if not self.loop.is_closed():
            self.broker.close()
            self.loop.close()
