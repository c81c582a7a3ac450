"""`$management` in memory: what requests leave behind with the connection."""

from __future__ import annotations

from tests.unit.amqp.amqp_client import TRANSFER, Frame, source, target
from tests.unit.engine.engine_kit import Kit, payload, section
from tests.unit.server.test_server_bridge import connected
from twinbus.amqp.exchange import decode_exchange
from twinbus.amqp.types import ARRAY_OF_LONG, AmqpArray, UInt
from twinbus.engine.index import DEFERRED
from twinbus.server.bridge import Replies

NODE = "q/$management"
REQUESTS, ANSWERS = 0, 1


class Asking:
    """A client with links to the management node of the queue `q`."""

    def __init__(self, kit: Kit, credit: int = 100) -> None:
        self.kit = kit
        self.peer, self.bridge = connected(kit)
        self._asked = 0
        self.peer.attach(REQUESTS, receiver=False, target=target(NODE))
        self.peer.attach(ANSWERS, receiver=True, name="answers", source=source(NODE))
        if credit:
            self.peer.flow(ANSWERS, credit)

    def ask(self, operation: str, body: dict[str, object]) -> list[Frame]:
        """Ask, and give what comes once everything is on disk."""
        request = section(0x73, [f"request {self._asked}"])
        request += section(0x74, {"operation": f"com.microsoft:{operation}"})
        request += section(0x77, body)
        heard = self.peer.transfer(REQUESTS, self._asked, request, settled=True)
        self._asked += 1
        return heard + self.end_turn()

    def end_turn(self) -> list[Frame]:
        hub = self.bridge.hub
        replies, hub.replies = hub.replies, Replies()
        replies.release()
        return self.peer.read()


def statuses(frames: list[Frame]) -> list[object]:
    answers = [decode_exchange(frame.payload) for frame in frames if frame.code == TRANSFER]
    return [headers["statusCode"] for _, headers, _ in answers]


def fetch(seq: int, *, peek_lock: bool) -> dict[str, object]:
    mode = UInt(1 if peek_lock else 0)
    return {
        "sequence-numbers": AmqpArray([seq], ARRAY_OF_LONG),
        "receiver-settle-mode": mode,
    }


def test_r7_locks_on_deferred_messages_end_with_the_connection() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"))
    taker = kit.taker(queue, credit=2)
    for lock in taker.locks:
        queue.main.defer(lock, kit.now_ms, None)
    client, other = Asking(kit), Asking(kit)
    operation = "receive-by-sequence-number"
    assert statuses(client.ask(operation, fetch(1, peek_lock=True))) == [200]
    assert statuses(client.ask(operation, fetch(2, peek_lock=False))) == [200]
    assert statuses(other.ask(operation, fetch(1, peek_lock=True))) == [404]
    assert len(client.bridge.held) == 1

    client.peer.server.abort()

    assert queue.main.index.state(1) == DEFERRED
    assert kit.bodies(queue) == [b"a"]
    assert statuses(other.ask(operation, fetch(1, peek_lock=True))) == [200]
