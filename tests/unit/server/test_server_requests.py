"""What a request may hold, and that rights come before its body, in memory."""

from __future__ import annotations

import pytest

from tests.unit.amqp.amqp_client import ATTACH, DETACH, Frame, target
from tests.unit.engine.engine_kit import Kit, section
from tests.unit.server.server_kit import OneHost, connected
from tests.unit.server.test_server_management import NODE, PEEK, REQUESTS, Asking, statuses
from twinbus.core.descriptions import LISTEN, AuthorizationRule
from twinbus.server.authorization import Claim
from twinbus.server.door import FrontDoor

LARGE_BYTES = 100 * 1024 * 1024
# A list of three elements, the second of which is of no known type.
UNREADABLE = b"\x00\x53\x77\xc0\x04\x03\x40\x3f\x40"


class Listening(Asking):
    """A client whose key is good for listening and no more."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        assert isinstance(self.bridge.door, FrontDoor)
        visitor = self.bridge.door.visitors[self.bridge]
        host = OneHost(kit.namespace, AuthorizationRule("Listener", [LISTEN], "key", ""))
        _, visitor.guard = host.resolve(None)
        visitor.claims[""] = Claim("", frozenset((LISTEN,)), 1 << 40, None)

    def put_raw(self, operation: str, body: bytes, **headers: object) -> list[Frame]:
        request = section(0x73, ["request 0"])
        request += section(0x74, {"operation": f"com.microsoft:{operation}", **headers})
        heard: list[Frame] = []
        whole = request + body
        for start in range(0, len(whole), 60_000):
            piece, more = whole[start : start + 60_000], start + 60_000 < len(whole)
            heard += self.peer.transfer(REQUESTS, 0, piece, settled=True, more=more)
        return heard + self.end_turn()


@pytest.fixture
def client() -> Listening:
    kit = Kit()
    kit.queue()
    return Listening(kit)


def refusals(frames: list[Frame]) -> list[tuple[str, str]]:
    errors = [frame[2].value for frame in frames if frame.code == DETACH]
    return [(str(error[0]), error[1]) for error in errors]


@pytest.mark.parametrize(
    ("operation", "status"), [("add-rule", 401), ("schedule-message", 401), ("no-such", 501)]
)
def test_rights_come_before_the_body(client: Listening, operation: str, status: int) -> None:
    """A body that cannot be decoded was not decoded where the answer is a status."""
    assert statuses(client.put_raw(operation, UNREADABLE)) == [status]
    assert statuses(client.ask("peek-message", PEEK)) == [204]


def test_a_body_that_cannot_be_read_ends_the_link_of_who_may_ask(client: Listening) -> None:
    queue = client.kit.namespace.find("q")
    assert queue is not None
    heard = client.put_raw("peek-message", UNREADABLE)
    ((condition, text),) = refusals(heard)
    assert condition == "amqp:decode-error"
    assert text.startswith("The request cannot be read: unknown type 0x3f")
    assert queue.meter.management_calls == 0


def test_a_request_has_so_many_values_and_no_more(
    client: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each empty list takes one byte on the wire and seventy in memory."""
    monkeypatch.setattr("twinbus.core.limits.REQUEST_VALUES_MAX", 1_000)
    few: dict[str, object] = {**PEEK, "more": [[]] * 900}
    assert statuses(client.put_raw("peek-message", section(0x77, few))) == [204]
    many: dict[str, object] = {**PEEK, "more": [[]] * 1_000}
    ((condition, text),) = refusals(client.put_raw("peek-message", section(0x77, many)))
    assert condition == "amqp:decode-error"
    assert "more than 1000 values" in text


def test_a_round_of_bulk_work_is_ended_by_one_request(client: Listening) -> None:
    each = {"sequence-number": 1 << 40, "reason": "reason", "description": "d" * 100}
    body: dict[str, object] = {"consumer": "c", "epoch": 1, "dead-lettered": [each] * 50_000}
    heard = client.put_raw("twinbus:settle-upto", section(0x77, body))
    assert refusals(heard) == []
    assert len(statuses(heard)) == 1


def test_headers_are_bounded_for_they_come_before_rights(client: Listening) -> None:
    text = "x" * 60_000
    assert statuses(client.put_raw("peek-message", section(0x77, PEEK), more=text)) == [204]
    heard = client.put_raw("peek-message", section(0x77, PEEK), more=text, yet_more=text)
    ((condition, told),) = refusals(heard)
    assert condition == "amqp:decode-error"
    assert "headers of more than 65536 bytes" in told


@pytest.mark.parametrize(
    ("kilobytes", "bytes_max"), [(256, 32 << 20), (102_400, LARGE_BYTES + 65_536)]
)
def test_a_request_holds_one_message_of_the_largest(kilobytes: int, bytes_max: int) -> None:
    kit = Kit()
    kit.queue(max_message_size_in_kilobytes=kilobytes)
    peer, _ = connected(kit)
    (answer,) = [f for f in peer.attach(0, receiver=False, target=target(NODE)) if f.code == ATTACH]
    assert answer[10] == bytes_max
