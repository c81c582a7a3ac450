"""Back-pressure: what comes in while too much waits for the disk, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.unit.amqp.amqp_client import (
    ATTACH,
    BEGIN,
    FLOW,
    OPEN,
    TRANSFER,
    attach_fields,
    performative,
)
from tests.unit.engine.engine_kit import Kit, payload
from tests.unit.server.server_kit import Machine, OneHost, connected, never
from twinbus.amqp.framing import AMQP_HEADER
from twinbus.amqp.types import UInt
from twinbus.core import errors
from twinbus.core.descriptions import QueueDescription
from twinbus.core.errors import BusError
from twinbus.engine.message import take_in
from twinbus.server import broker as broker_module
from twinbus.server.door import FrontDoor
from twinbus.server.listener import AmqpListener
from twinbus.server.lobby import Lobby

PENDING_MAX = 8 << 10
HELD_MAX = 24 << 10
LARGE, MEDIUM, SMALL = b"x" * (10 << 10), b"x" * (5 << 10), b"x" * 100
ACCEPTED = b"\x00\x53\x24"


class Client(asyncio.Transport):
    """A connection with a link to the queue, as the broker sees it."""

    def __init__(self, listener: AmqpListener) -> None:
        super().__init__()
        self.heard = b""
        self.paused = False
        self.closed = False
        self.unread_bytes = 0
        self._sent = 0
        self._protocol = listener.make_protocol()
        self._protocol.connection_made(self)
        opening = AMQP_HEADER + performative(OPEN, ["client", "host"])
        opening += performative(BEGIN, [None, UInt(0), UInt(5000), UInt(5000)])
        self._protocol.data_received(
            opening + performative(ATTACH, attach_fields(0, False, "link"))
        )

    def send(self, body: bytes) -> None:
        fields = [UInt(0), UInt(self._sent), b"tag", UInt(0), False, False]
        self._sent += 1
        self.receive(performative(TRANSFER, fields, payload=payload(body)))

    def receive(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def attach_receiver(self, credit: int) -> None:
        """Attach to the queue as a receiver, too."""
        asked = performative(ATTACH, attach_fields(1, True, "receiver"))
        flow = [UInt(0), UInt(1 << 30), UInt(0), UInt(5000), UInt(1), UInt(0), UInt(credit)]
        self.receive(asked + performative(FLOW, flow))

    def lose(self) -> None:
        self._protocol.connection_lost(None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.heard += data

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def leave_unread(self, size_bytes: int) -> None:
        """As a transport does that cannot write."""
        self.unread_bytes = size_bytes
        self._protocol.pause_writing()

    def read_all(self) -> None:
        self.unread_bytes = 0
        self._protocol.resume_writing()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        """What is unread still has to go."""
        self.closed = True

    def abort(self) -> None:
        self.closed = True
        self.lose()

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Crowded(Machine):
    """A broker with one queue, to which many connect."""

    def __init__(self) -> None:
        super().__init__(segment_bytes=64 << 20)
        now_ms = self.broker.begin_turn()
        namespace = self.broker.engine.namespace("n", now_ms)
        self.queue = namespace.create_queue(QueueDescription("q"), now_ms)
        door = FrontDoor(OneHost(namespace), never)
        self.lobby = Lobby(self.loop.now_ms)
        self._listener = AmqpListener(self.broker, door, self.lobby)

    def clients(self, count: int) -> list[Client]:
        async def connect() -> list[Client]:
            return [Client(self._listener) for _ in range(count)]

        made = self.loop.run_until_complete(connect())
        self.run()
        return made

    @property
    def taken(self) -> int:
        return self.queue.main.next_seq - 1


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowded]:
    monkeypatch.setattr(broker_module, "PENDING_BYTES_MAX", PENDING_MAX)
    monkeypatch.setattr(broker_module, "_HELD_BYTES_MAX", HELD_MAX)
    machine = Crowded()
    yield machine
    machine.close()


def test_what_finds_no_room_is_held_and_goes_on(machine: Crowded) -> None:
    first, second, third = machine.clients(3)
    for client in (first, second, third):
        client.send(LARGE)
    assert machine.taken == 1
    assert [client.paused for client in (first, second, third)] == [False, True, True]
    # A transport may hand over what it had read already.
    second.send(LARGE)

    machine.run()
    assert machine.taken == 4
    assert not any(client.paused for client in (first, second, third))
    assert [client.heard.count(ACCEPTED) for client in (first, second, third)] == [1, 1, 1]


def test_who_sends_little_goes_past_those_who_are_held(machine: Crowded) -> None:
    flooding, waiting, modest = machine.clients(3)
    flooding.send(LARGE)
    waiting.send(LARGE)
    modest.send(SMALL)
    assert machine.taken == 2
    assert waiting.paused
    assert not modest.paused

    # But not without end.
    while not modest.paused:
        modest.send(SMALL)
    assert machine.broker.journal.pending_bytes < 2 * PENDING_MAX + len(payload(LARGE))


def test_who_fell_behind_does_not_wait_for_all_who_flood(machine: Crowded) -> None:
    """What it had to say meanwhile is no longer little, but less than what they send."""
    flooding, waiting, behind = machine.clients(3)
    for client, body in ((flooding, LARGE), (waiting, LARGE), (behind, MEDIUM)):
        client.send(body)
    assert [client.paused for client in (flooding, waiting, behind)] == [False, True, True]
    machine.run()
    stream = machine.queue.main
    sizes = [len(stream.stored(seq)) for seq in range(1, machine.taken + 1)]
    assert [size > len(MEDIUM) * 1.5 for size in sizes] == [True, False, True]


def test_s2_when_too_much_is_held_sends_are_refused_as_busy(machine: Crowded) -> None:
    clients = machine.clients(4)
    for client in clients:
        client.send(LARGE)
    assert [client.paused for client in clients] == [False, True, True, False]

    machine.run()
    assert [b"com.microsoft:server-busy" in client.heard for client in clients] == [
        False,
        False,
        False,
        True,
    ]
    assert machine.taken == 3
    clients[3].send(LARGE)
    machine.run()
    assert machine.taken == 4


def test_a_connection_that_ends_while_it_is_held_sends_nothing(machine: Crowded) -> None:
    first, second, third = machine.clients(3)
    for client in (first, second, third):
        client.send(LARGE)
    second.lose()

    machine.run()
    assert machine.taken == 2
    assert third.heard.count(ACCEPTED) == 1


def test_a_client_that_does_not_read_its_answers_is_read_no_further(machine: Crowded) -> None:
    deaf, slow = machine.clients(2)
    deaf.leave_unread(5 << 20)
    slow.leave_unread(1 << 20)
    for client in (deaf, slow):
        client.send(SMALL)
    machine.run()
    assert [client.paused for client in (deaf, slow)] == [True, False]
    assert machine.taken == 2

    deaf.read_all()
    assert not deaf.paused


def test_a_client_that_hangs_is_cut_off_in_the_end(machine: Crowded) -> None:
    """Its socket would be open, and its place taken, for as long as it does not read."""
    deaf, slow = machine.clients(2)
    for client in (deaf, slow):
        client.leave_unread(5 << 20)
    machine.run(239)
    assert machine.lobby.known == 2
    machine.run(2)
    # They were silent for too long.
    assert deaf.closed
    assert slow.closed
    machine.run(20)
    assert machine.lobby.known == 2, "what is written may still go out"
    slow.read_all()
    slow.lose()
    machine.run(20)
    assert machine.lobby.known == 0


def test_a_client_that_is_held_and_does_not_read_waits_for_both(machine: Crowded) -> None:
    first, second = machine.clients(2)
    second.send(SMALL)
    second.leave_unread(5 << 20)
    machine.run()
    first.send(LARGE)
    second.send(LARGE)
    assert second.paused
    machine.run()
    assert machine.taken == 3
    assert second.paused, "there is room, but it still does not read"

    second.read_all()
    assert not second.paused


def test_one_that_reads_fast_leaves_turns_to_others(machine: Crowded) -> None:
    """However much waits for it, and however much its socket takes."""
    (reader,) = machine.clients(1)
    body = bytes(200_000)
    for _ in range(50):
        machine.queue.publish(take_in(payload(body), str), machine.broker.begin_turn())
        machine.run()

    async def turns() -> list[int]:
        reader.attach_receiver(50)
        heard = [len(reader.heard)]
        while heard[-1] < 50 * len(body):
            await asyncio.sleep(0)
            heard.append(len(reader.heard))
            assert len(heard) < 1000
        return heard

    heard = machine.loop.run_until_complete(turns())
    assert max(after - before for before, after in pairwise(heard)) < 2 << 20


def test_a_refusal_that_is_raised_again_and_again_does_not_grow() -> None:
    kit = Kit()
    kit.queue()
    peer, bridge = connected(kit)
    refusing = bridge.hub.refusing = BusError(errors.SERVER_BUSY, "The disk is full.")
    peer.attach(0, receiver=False)
    for number in range(50):
        peer.transfer(0, number, payload(b"x"))
    depth, traceback = 0, refusing.__traceback__
    while traceback is not None:
        depth, traceback = depth + 1, traceback.tb_next
    assert depth < 10
