"""Tokens end by the clock on the wall, also when that is set: the front door in memory."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.amqp.amqp_client import DETACH, Peer, source, target
from tests.unit.engine.engine_kit import Kit
from tests.unit.server.server_kit import OneHost
from twinbus.amqp.exchange import encode_exchange
from twinbus.amqp.properties import Properties
from twinbus.amqp.types import Symbol
from twinbus.core import sas
from twinbus.core.descriptions import SEND, AuthorizationRule
from twinbus.core.errors import BusError
from twinbus.engine.namespace import Namespace
from twinbus.server.authorization import Guard
from twinbus.server.bridge import Bridge, Hub
from twinbus.server.door import FrontDoor, Visitor

LIFE_MS = 60_000
AUDIENCE = "sb://host/orders"


def _track(error: BusError, subject: str) -> str:
    return error.text


class TwoHosts(OneHost):
    """One namespace at `host`, another everywhere else."""

    def resolve(self, host: str | None) -> tuple[Namespace, Guard]:
        return super().resolve(host) if host == "host" else OneHost(Kit().namespace).resolve(host)


class Entrance:
    """A client whose sender's token lasts a minute, and timers that are set off by hand."""

    def __init__(self, audience: str = AUDIENCE) -> None:
        self.kit = kit = Kit()
        kit.queue("orders")
        self.hub = Hub(kit.engine.kernel, _track, lambda: "id")
        self.hub.now_ms = kit.now_ms
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.door = FrontDoor(
            TwoHosts(kit.namespace, AuthorizationRule("Sender", [SEND], "key", "")),
            self._call_later,
        )
        bridge = Bridge(self.hub, self.door)
        self.door.visitors[bridge] = Visitor(bridge)
        self.peer = Peer(bridge)
        bridge.connection = self.peer.server
        self.peer.handshake(sasl=True)
        self.peer.attach(0, receiver=False, name="ask", target=target("$cbs"))
        self.peer.attach(1, receiver=True, name="answer", source=source("$cbs"))
        self.put_token(0, LIFE_MS, audience)
        self.peer.attach(2, receiver=False, name="sender", target=target("orders"))

    def _call_later(self, delay_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        timer = delay_ms, call
        self.timers.append(timer)
        return lambda: self.timers.remove(timer) if timer in self.timers else None

    def put_token(self, delivery: int, life_ms: int, audience: str = AUDIENCE) -> None:
        token = sas.make_token(audience, "Sender", "key", (self.hub.now_ms + life_ms) // 1000)
        headers = {"operation": "put-token", "type": "servicebus.windows.net:sastoken"}
        request = encode_exchange(Properties(), headers | {"name": audience}, token)
        self.peer.transfer(0, delivery, request, settled=True)

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


def test_one_look_is_planned_however_many_tokens_and_none_when_the_client_is_gone() -> None:
    """Tokens may last for years, connections come and go."""
    entrance = Entrance()
    entrance.put_token(1, LIFE_MS // 2)
    entrance.put_token(2, LIFE_MS * 2)
    ((delay_ms, _),) = entrance.timers
    assert delay_ms == LIFE_MS * 2, "the last token for an address is the one that counts"
    (bridge,) = entrance.door.visitors
    entrance.door.leave(bridge)
    assert entrance.timers == []


def test_a_token_for_another_namespace_is_refused_S2() -> None:
    """They have the same root key."""
    entrance = Entrance(audience="sb://elsewhere/orders")
    assert not entrance.is_open
    assert entrance.timers == []


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


def test_s2_e10_who_sends_via_an_entity_needs_a_token_for_both_all_the_time() -> None:
    client = Entrance()
    client.kit.queue("far")
    client.put_token(1, LIFE_MS // 2, "sb://host/far")
    via = {Symbol("com.microsoft:transfer-destination-address"): "far"}
    client.peer.attach(3, receiver=False, name="via", target=target("orders"), properties=via)
    assert client.is_open
    assert client.ring() <= LIFE_MS // 2
    assert not client.is_open
    assert [int(frame[0]) for frame in client.peer.heard if frame.code == DETACH] == [3]
