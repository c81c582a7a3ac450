"""The client's half of the protocol against the broker's half, in memory, with no clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.amqp.connection import Connection as ServerConnection
from twinbus.amqp.framing import AMQP_HEADER, SASL_HEADER
from twinbus.amqp.handler import Handler
from twinbus.amqp.link import Link
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, rejected
from twinbus.client.connection import Connection, refusal_of
from twinbus.client.errors import ConnectionLost, Refused

BATCH_FORMAT = 0x80013700


class Broker(Handler):
    """Accepts every link and message; answers requests with their own payload."""

    def __init__(self, credit: int = 1000, size_max: int = 0) -> None:
        self.credit = credit
        self.size_max = size_max
        self.received: list[tuple[int, bytes]] = []
        self.links: list[Link] = []
        self.state = ACCEPTED

    def on_attach(self, link: Link) -> None:
        address = link.source.address if link.is_sender else link.target.address
        if address == "missing":
            link.refuse("amqp:not-found", "There is no such queue.")
            return
        self.links.append(link)
        link.accept(max_message_size=self.size_max)
        if not link.is_sender:
            link.grant(self.credit)

    def on_transfer(self, link: Link, *rest: Any) -> None:
        delivery_id, _, message_format, _, payload, _ = rest
        self.received.append((message_format, payload))
        link.session.settle_incoming(delivery_id, delivery_id, self.state)
        for other in self.links:
            if other.is_sender and other.attached:
                other.deliver(b"t", 0, True, b"", payload, None)


class World:
    """Both halves, and the line between them."""

    def __init__(self, broker: Broker, frame_bytes_max: int = 65536, chunk: int = 1 << 30) -> None:
        self.broker = broker
        self.chunk = chunk
        self.server = ServerConnection(broker, "broker", 0, max_frame_size=frame_bytes_max)
        self.client = Connection("localhost", "me")
        self.run()

    def run(self) -> None:
        """Carry bytes both ways until nobody has any, cut into chunks."""
        while self.client.output or self.server.has_output:
            output, self.client.output[:] = b"".join(self.client.output), []
            for at in range(0, len(output), self.chunk):
                self.server.receive(output[at : at + self.chunk], 0)
            output = self.server.take_output()
            for at in range(0, len(output), self.chunk):
                self.client.receive(output[at : at + self.chunk])


def test_opens_with_its_names() -> None:
    world = World(Broker())
    assert world.client.opened
    assert world.client.keep_alive_ms == 120_000
    assert (world.server.hostname, world.server.remote_container_id) == ("localhost", "me")


@pytest.mark.parametrize("size", range(470, 500))
def test_messages_about_as_long_as_a_frame_arrive(size: int) -> None:
    world = World(Broker(), 512)
    out = world.client.attach_sender("q")
    world.run()
    world.client.send(out, bytes(size), BATCH_FORMAT)
    world.run()
    assert world.broker.received == [(BATCH_FORMAT, bytes(size))]


@settings(max_examples=60, deadline=None)
@given(
    chunk=st.integers(1, 2000),
    frame_bytes_max=st.sampled_from((512, 4096, 65536)),
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=8),
)
def test_messages_arrive_whole_however_the_bytes_are_cut(
    chunk: int, frame_bytes_max: int, sizes: list[int]
) -> None:
    """Both ways, in one frame and in many."""
    world = World(Broker(), frame_bytes_max, chunk)
    out = world.client.attach_sender("q")
    back = world.client.attach_receiver("q")
    world.run()
    payloads = [bytes([i]) * size for i, size in enumerate(sizes)]
    for payload in payloads:
        world.client.send(out, payload, BATCH_FORMAT)
    world.run()
    assert world.broker.received == [(BATCH_FORMAT, payload) for payload in payloads]
    assert [refusal_of(outcome) for _, outcome in out.outcomes] == [None] * len(payloads)
    assert list(back.messages) == payloads


def test_a_message_longer_than_the_session_window() -> None:
    """6,000 frames of 512 bytes: the window of 5,000 must be opened again on the way."""
    world = World(Broker(size_max=4_000_000), 512)
    out = world.client.attach_sender("q")
    world.run()
    world.client.send(out, b"x" * 2_900_000, 0)
    world.run()
    assert [len(payload) for _, payload in world.broker.received] == [2_900_000]


def test_waits_for_credit_and_goes_on() -> None:
    world = World(Broker(credit=2))
    out = world.client.attach_sender("q")
    for i in range(9):
        world.client.send(out, bytes([i]), 0)
    assert not any(b"\x00\x53\x14" in part for part in world.client.output)
    world.run()
    assert [payload for _, payload in world.broker.received] == [bytes([i]) for i in range(9)]


def test_answers_keep_coming_beyond_the_first_credit() -> None:
    world = World(Broker())
    out = world.client.attach_sender("q")
    back = world.client.attach_receiver("q")
    world.run()
    for i in range(450):
        world.client.send(out, i.to_bytes(2, "big"), 0)
        world.run()
    assert len(back.messages) == 450


def test_handles_of_closed_links_are_used_again() -> None:
    world = World(Broker())
    for _ in range(6000):
        link = world.client.attach_sender("q")
        world.run()
        world.client.detach(link)
        world.run()
    assert link.handle == 0
    assert world.client.failure is None
    assert world.server.link_count == 0


def test_a_refused_link_says_why_and_the_connection_goes_on() -> None:
    world = World(Broker())
    link = world.client.attach_sender("missing")
    world.run()
    assert not link.attached
    assert isinstance(link.failure, Refused)
    assert link.failure.condition == "amqp:not-found"
    other = world.client.attach_sender("q")
    world.run()
    assert other.attached
    assert world.client.failure is None


@pytest.mark.parametrize(
    ("state", "condition", "retryable"),
    [
        (rejected("amqp:not-allowed", "No."), "amqp:not-allowed", False),
        (rejected("com.microsoft:server-busy", "Later."), "com.microsoft:server-busy", True),
        (RELEASED, "com.microsoft:server-busy", True),
    ],
)
def test_outcomes_that_are_refusals(state: bytes, condition: str, retryable: bool) -> None:
    world = World(Broker())
    world.broker.state = state
    out = world.client.attach_sender("q")
    world.client.send(out, b"x", 0)
    world.run()
    ((_, outcome),) = out.outcomes
    refusal = refusal_of(outcome)
    assert refusal is not None
    assert (refusal.condition, refusal.retryable) == (condition, retryable)


def test_a_detach_in_the_middle_fails_the_link() -> None:
    world = World(Broker())
    out = world.client.attach_sender("q")
    world.run()
    world.broker.links[0].detach("amqp:unauthorized-access", "The token has expired.")
    world.run()
    assert isinstance(out.failure, Refused)
    assert "expired" in str(out.failure)


@pytest.mark.parametrize(
    ("condition", "kind"),
    [("amqp:connection:forced", ConnectionLost), ("amqp:unauthorized-access", Refused)],
)
def test_a_close_fails_the_connection_and_its_links(condition: str, kind: type) -> None:
    world = World(Broker())
    out = world.client.attach_sender("q")
    world.run()
    world.server.close(condition, "Because.")
    world.run()
    assert isinstance(world.client.failure, kind)
    assert out.failure is world.client.failure
    assert "Because." in str(out.failure)


@pytest.mark.parametrize(
    "junk",
    [
        b"HTTP/1.1 400 Bad",
        AMQP_HEADER,
        b"\xff" * 64,
        SASL_HEADER + b"\x00\x00\x00\x07\x02\x01\x00\x00",
        SASL_HEADER + b"\x00\x00\x00\x08\x01\x01\x00\x00",
        SASL_HEADER + b"\x00\x00\x00\x08\x03\x01\x00\x00",
    ],
    ids=["http", "no-sasl", "noise", "too-short", "offset-inside", "offset-beyond"],
)
def test_a_peer_that_speaks_something_else(junk: bytes) -> None:
    client = Connection("localhost", "me")
    client.receive(junk)
    assert isinstance(client.failure, ConnectionLost)


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 400), value=st.integers(0, 255))
def test_damaged_bytes_never_raise(at: int, value: int) -> None:
    """Whatever one byte of the broker's greeting becomes, the connection fails or goes on."""
    world = World(Broker())
    world.client.attach_receiver("q")
    world.client.attach_sender("missing")
    output, world.client.output[:] = b"".join(world.client.output), []
    world.server.receive(output, 0)
    answer = bytearray(world.server.take_output())
    answer[at % len(answer)] = value
    world.client.receive(bytes(answer))
    assert world.client.failure is None or str(world.client.failure)
