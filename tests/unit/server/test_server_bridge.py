"""Bridge and front door in memory: no socket, a clock that is set by hand."""

from __future__ import annotations

from tests.unit.amqp.amqp_client import DETACH, Peer, source
from tests.unit.engine.engine_kit import Kit
from twinbus.amqp.types import Described, Symbol, UInt
from twinbus.core.descriptions import AuthorizationRule
from twinbus.core.errors import BusError
from twinbus.engine.namespace import Namespace
from twinbus.server.authorization import Guard
from twinbus.server.bridge import Bridge, Hub
from twinbus.server.door import SESSION_FILTER, FrontDoor, Visitor


class OneHost:
    """Whatever the host name, the same namespace; without rules nobody checks."""

    def __init__(self, namespace: Namespace, *rules: AuthorizationRule) -> None:
        self._found = namespace, Guard(namespace, list(rules), checks=bool(rules))

    def resolve(self, host: str | None) -> tuple[Namespace, Guard]:
        return self._found

    def all(self) -> list[tuple[Namespace, Guard]]:
        return [self._found]


def _track(error: BusError, subject: str) -> str:
    return error.text


def connected(kit: Kit) -> tuple[Peer, Bridge]:
    """A client with an open connection and session."""
    hub = Hub(kit.engine.kernel, _track, lambda: "id")
    hub.now_ms = kit.now_ms
    door = FrontDoor(OneHost(kit.namespace), lambda delay_ms, call: lambda: None)
    bridge = Bridge(hub, door)
    door.visitors[bridge] = Visitor(bridge)
    peer = Peer(bridge)
    bridge.connection = peer.server
    return peer.handshake(), bridge


def session(value: object) -> Described:
    """The source of a receiver that asks for a session."""
    return source("orders", None, None, None, None, None, None, {Symbol(SESSION_FILTER): value})


def test_a_receiver_that_waited_for_a_session_in_vain_is_forgotten() -> None:
    """E3 E6: else the entity would never be idle again."""
    kit = Kit()
    stream = kit.queue("orders", requires_session=True).main
    peer, bridge = connected(kit)
    waits = {Symbol("com.microsoft:timeout"): UInt(1_000)}
    peer.attach(0, receiver=True, source=session(None), properties=waits)
    assert stream.receivers == 1

    kit.engine.kernel.run_timers(kit.now_ms + 1_000)

    assert [frame.code for frame in peer.read()][-1] == DETACH
    assert stream.receivers == 0
    assert not stream.attached
    assert not bridge.receivers


def test_a_described_filter_means_the_same() -> None:
    """E6: some clients describe the filter, some do not."""
    kit = Kit()
    stream = kit.queue("orders", requires_session=True).main
    peer, _ = connected(kit)
    peer.attach(0, receiver=True, source=session(Described(Symbol(SESSION_FILTER), "s1")))
    assert stream.sessions is not None
    assert [held.id for held in stream.sessions.held.values()] == ["s1"]
