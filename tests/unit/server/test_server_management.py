"""`$management` in memory: answers that nobody takes, and what a connection leaves behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

import pytest

from tests.unit.amqp.amqp_client import DETACH, TRANSFER, Frame, source, target
from tests.unit.engine.engine_kit import Kit, payload, section
from tests.unit.server.server_kit import connected
from twinbus.amqp.connection import EFFORT_MAX
from twinbus.amqp.exchange import decode_exchange
from twinbus.amqp.types import ARRAY_OF_LONG, ARRAY_OF_UUID, AmqpArray, UInt
from twinbus.core import errors
from twinbus.core.descriptions import RuleDescription
from twinbus.core.errors import BusError
from twinbus.engine.index import DEFERRED
from twinbus.server.replies import Replies
from twinbus.server.requests import RequestNode

NODE = "q/$management"
REQUESTS, ANSWERS = 0, 1
PEEK: dict[str, object] = {"from-sequence-number": 1, "message-count": 1}


class Asking:
    """A client with links to the management node of the queue `q`."""

    def __init__(self, kit: Kit, credit: int = 100, node: str = NODE) -> None:
        self.kit = kit
        self._planned: list[Callable[[], None]] = []
        self.peer, self.bridge = connected(kit, self._planned)
        self._asked = 0
        self.peer.attach(REQUESTS, receiver=False, target=target(node))
        self.peer.attach(ANSWERS, receiver=True, name="answers", source=source(node))
        if credit:
            self.peer.flow(ANSWERS, credit)

    def ask(self, operation: str, body: dict[str, object]) -> list[Frame]:
        """Ask, and give what comes once everything is on disk."""
        return self.put(operation, body) + self.end_turn()

    def put(self, operation: str, body: dict[str, object]) -> list[Frame]:
        request = section(0x73, [f"request {self._asked}"])
        request += section(0x74, {"operation": f"com.microsoft:{operation}"})
        request += section(0x77, body)
        heard = self.peer.transfer(REQUESTS, self._asked, request, settled=True)
        self._asked += 1
        return heard

    def peek(self) -> list[Frame]:
        return self.ask("peek-message", PEEK)

    def end_turn(self) -> list[Frame]:
        planned, self._planned[:] = self._planned[:], []
        for call in planned:
            call()
        hub = self.bridge.hub
        replies, hub.replies = hub.replies, Replies()
        replies.release()
        return self.peer.read()

    def end_turns(self) -> list[Frame]:
        """All that comes while the socket takes what is written."""
        heard: list[Frame] = []
        while fresh := self.end_turn():
            heard += fresh
            self.bridge.resume()
        return heard

    @property
    def owed_bytes(self) -> int:
        (node,) = self.bridge.reply_links.values()
        assert isinstance(node, RequestNode)
        return node.owed_bytes


def asked(frames: list[Frame]) -> list[int]:
    """The numbers of the requests that are answered."""
    answers = [decode_exchange(frame.payload) for frame in frames if frame.code == TRANSFER]
    return [int(str(properties.correlation_id).split()[1]) for properties, _, _ in answers]


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


# --- answers that nobody takes ----------------------------------------------------------

BODY_BYTES = 100_000
OWED_MAX = 250_000


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Kit:
    """A queue whose message makes three answers too many."""
    monkeypatch.setattr("twinbus.core.limits.OWED_BYTES_MAX", OWED_MAX)
    kit = Kit()
    kit.send(kit.queue(), payload(b"x" * BODY_BYTES))
    return kit


def test_e5_while_nobody_takes_the_answers_requests_wait(large: Kit) -> None:
    """E5: a request of some bytes has an answer of a megabyte; all come, in order, in the end."""
    client = Asking(large, credit=0)
    assert [client.peek() for _ in range(20)] == [[]] * 20
    assert client.owed_bytes < OWED_MAX + 2 * BODY_BYTES

    heard = client.peer.flow(ANSWERS, 5) + client.end_turns()
    assert asked(heard) == [0, 1, 2, 3, 4]
    assert client.owed_bytes < OWED_MAX + 2 * BODY_BYTES
    heard = client.peer.flow(ANSWERS, 20, count=5, seen=5) + client.end_turns()
    assert asked(heard) == list(range(5, 20))
    assert client.owed_bytes == 0


def test_e5_answers_that_wait_for_the_disk_are_owed_as_well(large: Kit) -> None:
    client = Asking(large)
    client.end_turn = list  # type: ignore[method-assign]
    for _ in range(20):
        client.peek()
    assert client.owed_bytes < OWED_MAX + 2 * BODY_BYTES
    del client.end_turn  # type: ignore[method-assign]
    assert asked(client.end_turns()) == list(range(20))


def test_e5_answers_wait_for_the_socket_too(large: Kit) -> None:
    client = Asking(large)
    client.bridge.writable = False
    assert [client.peek() for _ in range(20)] == [[]] * 20
    client.bridge.resume()
    assert client.end_turns() == []

    client.bridge.writable = True
    client.bridge.resume()
    assert asked(client.end_turns()) == list(range(20))


def test_e5_who_takes_its_answers_gets_each_at_once_and_credit_for_more(large: Kit) -> None:
    client = Asking(large, credit=3_000)
    for number in range(1_500):
        assert asked(client.peek()) == [number]
        client.bridge.resume()


def test_e5_requests_beyond_the_credit_end_the_link(
    large: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinbus.core.limits.SENDER_CREDIT", 10)
    client = Asking(large, credit=0)
    detached: list[Frame] = []
    for _ in range(30):
        detached += [frame for frame in client.peek() if frame.code == DETACH]
    assert [str(frame[2].value[0]) for frame in detached] == ["com.microsoft:server-busy"]
    assert asked(client.peer.flow(ANSWERS, 30) + client.end_turns()) == [0, 1, 2]


def test_e5_a_link_for_answers_that_ends_takes_what_is_owed_with_it(large: Kit) -> None:
    client = Asking(large, credit=0)
    for _ in range(5):
        client.peek()
    client.peer.send(DETACH, [UInt(ANSWERS), True])
    client.end_turns()
    client.peer.attach(ANSWERS, receiver=True, name="again", source=source(NODE))
    client.peer.flow(ANSWERS, 10)
    assert asked(client.peek()) == [5]
    assert client.owed_bytes == 0


def stack_up(client: Asking, links: int, requests: int) -> list[Frame]:
    """Ask for what nobody knows, on many links, while no answer is taken."""
    heard: list[Frame] = []
    while client.owed_bytes <= OWED_MAX:
        client.peek()
    request = section(0x73, ["request 0"]) + section(0x74, {"operation": "no-such"})
    for handle in range(10, 10 + links):
        client.peer.attach(handle, receiver=False, name=f"link {handle}", target=target(NODE))
        for number in range(requests):
            heard += client.peer.transfer(handle, number, request, settled=True)
    return heard


def test_a_request_that_waits_weighs_more_than_its_bytes(
    large: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have one byte, and there may be a thousand on each of thousands of links."""
    monkeypatch.setattr("twinbus.core.limits.LARGE_MESSAGE_BYTES_MAX", 20_000)
    monkeypatch.setattr("twinbus.core.limits.REQUEST_BYTES_AROUND", 0)
    heard = stack_up(Asking(large, credit=0), links=3, requests=50)
    assert any(frame.code == DETACH for frame in heard)


def test_many_requests_that_waited_leave_a_turn_to_others(large: Kit) -> None:
    client = Asking(large, credit=0)
    stack_up(client, links=4, requests=300)
    client.peer.flow(ANSWERS, 5_000)
    rounds: list[int] = []
    while fresh := client.end_turn():
        rounds.append(len(asked(fresh)))
        client.bridge.resume()
    assert sum(rounds) >= 1_200
    assert max(rounds) <= 300
    assert client.bridge.waiting_bytes == 0


def test_many_links_with_requests_that_wait_are_gone_soon(large: Kit) -> None:
    """Not in the square of their number, while all others wait."""
    client = Asking(large, credit=0)
    stack_up(client, links=150, requests=150)
    before_s = time.process_time()
    client.peer.server.abort()
    assert time.process_time() - before_s < 0.05
    assert client.bridge.waiting_bytes == 0


def test_requests_that_wait_are_bounded_for_all_nodes_together(
    large: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may have a node for each queue there is."""
    monkeypatch.setattr("twinbus.core.limits.LARGE_MESSAGE_BYTES_MAX", 50_000)
    monkeypatch.setattr("twinbus.core.limits.REQUEST_BYTES_AROUND", 0)
    others = ["r", "s", "t"]
    client = Asking(large, credit=0)
    for name in others:
        large.send(large.queue(name), payload(b"x" * BODY_BYTES))
    for handle, name in enumerate(["q", *others], start=10):
        node = f"{name}/$management"
        client.peer.attach(handle, receiver=False, name=f"to {name}", target=target(node))
        client.peer.attach(handle + 10, receiver=True, name=f"of {name}", source=source(node))
    ended: list[int] = []
    request = section(0x73, ["request 0"]) + section(
        0x74, {"operation": "com.microsoft:peek-message"}
    )
    request += section(0x77, {**PEEK, "more": b"x" * 20_000})
    for number in range(4):
        for handle in range(10, 14):
            for frame in client.peer.transfer(handle, number, request, settled=True):
                if frame.code == DETACH:
                    ended.append(int(frame[0]))
            client.end_turn()
    assert client.bridge.waiting_bytes <= 50_000
    assert ended
    client.peer.server.abort()
    assert client.bridge.waiting_bytes == 0


def test_e8_a_rule_with_a_number_too_large_for_its_type_is_listed() -> None:
    """It is taken all the same; it must not keep the others from being shown."""
    kit = Kit()
    kit.topic()
    subscription = kit.subscription()
    numbers = {"a": 2**64 - 1, "b": 2**70, "c": -(2**31) - 1, "d": 5}
    rule = RuleDescription("r", "correlation")
    rule.properties = {name: ("long", str(number)) for name, number in numbers.items()}
    rule.properties["c"] = ("int", str(numbers["c"]))
    kit.namespace.create_rule(subscription, rule, kit.now_ms)
    client = Asking(kit, node="t/subscriptions/s/$management")
    (answer,) = [frame for frame in client.ask("enumerate-rules", {}) if frame.code == TRANSFER]
    _, headers, body = decode_exchange(answer.payload)
    assert headers["statusCode"] == 200
    assert isinstance(body, dict)
    shown = body["rules"][1]["rule-description"].value[0].value[8]
    assert shown == {**numbers, "b": str(2**70)}


def test_r5_lock_tokens_made_to_have_one_hash_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 250,000 of them each would be: that took hours."""
    kit = Kit()
    kit.queue()
    tokens = [UUID(int=number * (2**61 - 1)) for number in range(1, 100)]
    compared = 0
    equal = UUID.__eq__

    def counted(token: UUID, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(token, other)

    client = Asking(kit)
    monkeypatch.setattr(UUID, "__eq__", counted)
    asked_for = {
        "disposition-status": "completed",
        "lock-tokens": AmqpArray(tokens, ARRAY_OF_UUID),
    }
    assert statuses(client.ask("update-disposition", asked_for)) == [410]
    assert compared < len(tokens)


def test_e5_deferred_messages_that_are_too_much_for_one_answer_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All or none come, and a few numbers may stand for more than there is memory."""
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, *[payload(bytes(1_000)) for _ in range(3)])
    for lock in kit.taker(queue, credit=3).locks:
        queue.main.defer(lock, kit.now_ms, None)
    client = Asking(kit)
    operation = "receive-by-sequence-number"

    def asked_for(*seqs: int) -> dict[str, object]:
        numbers = AmqpArray(seqs, ARRAY_OF_LONG)
        return {"sequence-numbers": numbers, "receiver-settle-mode": UInt(0)}

    monkeypatch.setattr("twinbus.core.limits.DEFERRED_BYTES_MAX", 2_500)
    assert statuses(client.ask(operation, asked_for(1, 2, 3))) == [403]
    assert statuses(client.ask(operation, asked_for(1, 2))) == [200]
    # One comes, however large.
    monkeypatch.setattr("twinbus.core.limits.DEFERRED_BYTES_MAX", 500)
    assert statuses(client.ask(operation, asked_for(3))) == [200]


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("get-message-sessions", {"last-updated-time": 0, "skip": 0, "top": 100}),
        ("peek-message", {**PEEK, "session-id": "s 1"}),
        ("peek-message", {**PEEK, "state": "deferred"}),
        ("batch-delete-messages", {"message-count": 1, "enqueued-time-utc": 0, "session-id": "s"}),
        ("twinbus:purge", {"state": "deferred"}),
    ],
)
def test_a_request_that_looks_at_everything_lets_others_go_first(
    operation: str, body: dict[str, object]
) -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    client = Asking(kit)
    client.put(operation, body)
    assert not client.peer.server.is_weary
    kit.send(queue, *[payload(b"x", session_id=f"s {n}") for n in range(EFFORT_MAX + 1)])
    client.put(operation, body)
    assert client.peer.server.is_weary


def test_e11_what_is_kept_beside_messages_is_refused_on_a_full_disk() -> None:
    """States of sessions and rules would use up what is left for settlements."""
    kit = Kit()
    kit.topic()
    kit.subscription(requires_session=True)
    client = Asking(kit, node="t/subscriptions/s/$management")
    rule: dict[str, object] = {"rule-name": "r", "rule-description": {}}
    for operation, body in (
        ("add-rule", rule),
        ("set-session-state", {"session-id": "a", "session-state": b"half way"}),
    ):
        client.bridge.hub.refusing = BusError(errors.SERVER_BUSY, "The disk is full.")
        assert statuses(client.ask(operation, body)) == [503]
        client.bridge.hub.refusing = None
        assert statuses(client.ask(operation, body)) != [503]
    # One that is taken away makes room.
    client.bridge.hub.refusing = BusError(errors.SERVER_BUSY, "The disk is full.")
    none: dict[str, object] = {"session-id": "a", "session-state": None}
    assert statuses(client.ask("set-session-state", none)) != [503]


def test_l3_a_refusal_waits_for_the_disk_too() -> None:
    """It may tell of what is not there yet: here, that an epoch is settled."""
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"one"))
    client = Asking(kit)
    epoch: dict[str, object] = {"consumer": "query", "epoch": 1}
    client.ask("twinbus:reserve", {**epoch, "message-count": 1})
    assert client.put("twinbus:settle-upto", epoch) == []
    assert client.put("twinbus:reserve", {**epoch, "message-count": 1}) == []
    assert statuses(client.end_turn()) == [200, 410]
