"""Tokens end by the clock on the wall, also when that is set: the front door in memory."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.amqp.amqp_client import DETACH, Peer, source, target
from tests.unit.engine.engine_kit import Kit
from tests.unit.server.test_server_bridge import OneHost
from twinbus.amqp.exchange import encode_exchange
from twinbus.amqp.properties import Properties
from twinbus.core import sas
from twinbus.core.descriptions import SEND, AuthorizationRule
from twinbus.core.errors import BusError
from twinbus.server.bridge import Bridge, Hub
from twinbus.server.door import FrontDoor, Visitor

LIFE_MS = 60_000
AUDIENCE = "sb://host/orders"


def _track(error: BusError, subject: str) -> str:
    return error.text


class Entrance:
    """A client whose sender's token lasts a minute, and timers that are set off by hand."""

    def __init__(self) -> None:
        kit = Kit()
        kit.queue("orders")
        self.hub = Hub(kit.engine.kernel, _track, lambda: "id")
        self.hub.now_ms = kit.now_ms
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.door = FrontDoor(
            OneHost(kit.namespace, AuthorizationRule("Sender", [SEND], "key", "")),
            lambda delay_ms, call: self.timers.append((delay_ms, call)),
        )
        bridge = Bridge(self.hub, self.door)
        self.door.visitors[bridge] = Visitor(bridge)
        self.peer = Peer(bridge)
        bridge.connection = self.peer.server
        self.peer.handshake(sasl=True)
        self._put_token()
        self.peer.attach(2, receiver=False, name="sender", target=target("orders"))

    def _put_token(self) -> None:
        self.peer.attach(0, receiver=False, name="ask", target=target("$cbs"))
        self.peer.attach(1, receiver=True, name="answer", source=source("$cbs"))
        token = sas.make_token(AUDIENCE, "Sender", "key", (self.hub.now_ms + LIFE_MS) // 1000)
        headers = {"operation": "put-token", "type": "servicebus.windows.net:sastoken"}
        self.peer.transfer(
            0, 0, encode_exchange(Properties(), headers | {"name": AUDIENCE}, token), settled=True
        )

    def ring(self) -> int:
        """Let the one timer go off when it is due; give how long that took."""
        ((delay_ms, call),) = self.timers
        self.timers.clear()
        self.hub.now_ms += delay_ms
        call()
        return delay_ms

    @property
    def is_open(self) -> bool:
        self.peer.read()
        return DETACH not in [frame.code for frame in self.peer.heard]


def test_a_link_ends_with_its_token() -> None:
    entrance = Entrance()
    assert entrance.is_open
    assert entrance.ring() == LIFE_MS
    assert not entrance.is_open


def test_a_clock_that_was_set_back_prolongs_a_token_but_not_for_ever() -> None:
    entrance = Entrance()
    entrance.hub.now_ms -= 10_000
    entrance.ring()
    assert entrance.is_open
    assert entrance.ring() == 10_000
    assert not entrance.is_open


def test_a_clock_that_was_set_forwards_ends_a_token_when_the_door_looks() -> None:
    entrance = Entrance()
    entrance.hub.now_ms += LIFE_MS - 1
    entrance.door.recheck()
    assert entrance.is_open
    entrance.hub.now_ms += 1
    entrance.door.recheck()
    assert not entrance.is_open
