"""Goal: what somebody without a key can take is bounded, and never a client's place.

Method: a live broker with small limits, bare sockets in its face, and official SDK clients that
must get in all the same. Time limits run on virtual time.
"""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from random import Random

import pytest

from tests.security.conftest import QUEUE, Start
from tests.security.official import WAYS, administration, client_over, log_lines, round_trip
from tests.sim.loop import VirtualLoop
from tests.sim.node import Node
from tests.support.broker import Broker
from tests.support.raw_amqp import (
    ATTACH,
    BEGIN,
    FALSE,
    NULL,
    OPEN,
    WINDOW_MAX,
    RawLink,
    _sasl_init,
    described,
    frame,
    string,
    uint,
)
from tests.unit.amqp.amqp_client import Frame
from twinbus.core import limits
from twinbus.server.lobby import Lobby, address_of, fit

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PLACES = 20
ANONYMOUS = frame(described(0x41, string("ANONYMOUS", 0xA3)), kind=1)
OPENED = frame(described(OPEN, string("stranger"), string("localhost"), uint(65536)))


@pytest.fixture
def crowd() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def come(
    crowd: ExitStack, port: int, count: int, address: str = "127.0.0.1"
) -> list[socket.socket]:
    return [
        crowd.enter_context(
            socket.create_connection(("127.0.0.1", port), 10, source_address=(address, 0))
        )
        for _ in range(count)
    ]


def is_open(one: socket.socket) -> bool:
    one.settimeout(0.05)
    try:
        return one.recv(1, socket.MSG_PEEK) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def metric(broker: Broker, name: str) -> int:
    # From an address of its own: nobody's crowd pushes it out.
    http = HTTPConnection(
        "127.0.0.1", broker.ready["ports"]["admin"], timeout=10, source_address=("127.0.0.9", 0)
    )
    http.request("GET", "/metrics")
    text = http.getresponse().read().decode()
    http.close()
    found = re.search(rf"^twinbus_{name} (\S+)$", text, re.MULTILINE)
    assert found, name
    return int(float(found[1]))


def wait_for(broker: Broker, name: str, least: int) -> None:
    while metric(broker, name) < least:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("crowded", ["amqp", "amqps", "admin"])
async def test_clients_get_in_while_strangers_hold_every_place(
    broker: Broker, crowd: ExitStack, crowded: str
) -> None:
    """And those that are in stay in."""
    evicted = metric(broker, "strangers_evicted_total")
    async with client_over(broker, "amqp") as regular:
        await round_trip(regular, QUEUE)
        strangers = come(crowd, broker.ready["ports"][crowded], 3 * PLACES)
        wait_for(broker, "strangers_evicted_total", evicted + 2 * PLACES)
        for way in WAYS:
            async with client_over(broker, way) as client:
                await round_trip(client, QUEUE)
        with administration(broker) as admin:
            assert admin.get_queue(QUEUE).name == QUEUE
        await round_trip(regular, QUEUE)
    open_now = [number for number, one in enumerate(strangers) if is_open(one)]
    assert len(open_now) <= PLACES
    assert min(open_now, default=2 * PLACES) >= 2 * PLACES, "the oldest go first"
    assert len(log_lines(broker, "shown no key")) == 1, "one line, not one for each"


async def test_clients_get_in_though_the_system_allows_few_connections(
    start: Start, crowd: ExitStack
) -> None:
    """The configured places are more than there can be sockets; a part of them is for clients."""
    broker = start("[namespaces.sbemulatorns.queues.orders]", open_files_max=256)
    come(crowd, broker.amqp_port, 400)
    wait_for(broker, "strangers_evicted_total", 300)
    for way in WAYS:
        async with client_over(broker, way) as client:
            await round_trip(client, QUEUE)
    (told,) = log_lines(broker, "the system allows")
    assert "256 open files" in told


def test_a_broker_allows_itself_the_files_that_it_may(start: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        broker = start("[namespaces.sbemulatorns.queues.orders]")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wanted = limits.STRANGERS_MAX + limits.CONNECTIONS_MAX + limits.DESCRIPTORS_RESERVED
    allowed, _ = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    assert allowed == (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [(20_000, (5000, 5000)), (1024, (240, 720)), (6000, (1484, 4452)), (10, (1, 1))],
)
def test_places_fit_the_descriptors(descriptors: int, expected: tuple[int, int]) -> None:
    assert fit(5000, 5000, descriptors) == expected


def test_few_strangers_leave_more_for_clients() -> None:
    assert fit(20, 5000, 1024) == (20, 940)


def test_a_crowd_pushes_out_its_own(broker: Broker, crowd: ExitStack) -> None:
    port = broker.amqp_port
    (quiet,) = come(crowd, port, 1, "127.0.0.2")
    come(crowd, port, 5 * PLACES, "127.0.0.3")
    assert is_open(quiet), "the oldest of all, but the only one from its address"


def test_all_places_for_clients_can_be_taken_and_given_back(
    broker: Broker, crowd: ExitStack
) -> None:
    while metric(broker, "clients"):
        pass
    links = [RawLink(broker.amqp_port, QUEUE, sends=True) for _ in range(8)]
    for link in links:
        crowd.callback(link.close)
    refused = Stranger(broker.amqp_port, crowd, OPENED, plain=True)
    assert b"amqp:resource-limit-exceeded" in refused.answer()
    assert b"TrackingId" in refused.answer()
    assert metric(broker, "clients_refused_total") == 1
    links[0].close()
    while metric(broker, "clients") == 8:
        pass
    RawLink(broker.amqp_port, QUEUE, sends=True).close()


class Stranger:
    """Says this and that without a token, and keeps what it is told until it is cut off."""

    def __init__(self, port: int, crowd: ExitStack, words: bytes, *, plain: bool = False) -> None:
        (self._socket,) = come(crowd, port, 1)
        begin = frame(_sasl_init(), kind=1) if plain else ANONYMOUS
        self._said = b""
        self._socket.sendall(b"AMQP\x03\x01\x00\x00" + begin + b"AMQP\x00\x01\x00\x00")
        with suppress(OSError):
            self._socket.sendall(words)

    def answer(self) -> bytes:
        self._socket.settimeout(10)
        try:
            while piece := self._socket.recv(1 << 16):
                self._said += piece
        except ConnectionError:
            pass
        return self._said


def begin(channel: int) -> bytes:
    body = described(BEGIN, NULL, uint(0), uint(WINDOW_MAX), uint(WINDOW_MAX))
    return struct.pack(">IBBH", len(body) + 8, 2, 0, channel) + body


def attach(handle: int, target: bytes) -> bytes:
    source = described(0x28, string("here"))
    link = (string(f"link-{handle}"), uint(handle), FALSE, NULL, NULL, source, target)
    return frame(described(ATTACH, *link, NULL, NULL, uint(0)))


CBS = described(0x29, string("$cbs"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (b"".join(begin(n) for n in range(20)), "began more than 16 sessions"),
        (begin(0) + b"".join(attach(n, CBS) for n in range(20)), "attached more than 16 links"),
    ],
    ids=["sessions", "links"],
)
def test_a_stranger_that_takes_too_much_is_sent_away(
    broker: Broker, crowd: ExitStack, words: bytes, reason: str
) -> None:
    said = Stranger(broker.amqp_port, crowd, OPENED + words).answer()
    assert b"amqp:resource-limit-exceeded" in said
    assert reason.encode() in said


def test_a_stranger_that_talks_on_and_on_is_cut_off(broker: Broker, crowd: ExitStack) -> None:
    """Whether it hears why depends on how much of its talk is still under way."""
    before = metric(broker, "strangers_expelled_total")
    Stranger(broker.amqp_port, crowd, OPENED + b"\0\0\0\x08\x02\0\0\0" * 100_000).answer()
    assert metric(broker, "strangers_expelled_total") == before + 1


def test_a_stranger_declares_no_transactions(broker: Broker, crowd: ExitStack) -> None:
    coordinator = described(0x30, NULL)
    stranger = Stranger(
        broker.amqp_port, crowd, OPENED + begin(0) + attach(0, coordinator) + frame(described(0x18))
    )
    assert b"amqp:unauthorized-access" in stranger.answer()


class Silent:
    """A client's end of a simulated wire that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Frame] = []
        self.is_lost = False

    def overheard(self, frame: Frame) -> None:
        # What was said: whether it arrives is the network's business.
        self.heard.append(frame)

    def arrived(self, frame: Frame) -> None: ...

    def broker_lost_us(self) -> None: ...

    def lost(self) -> None:
        self.is_lost = True


def test_a_stranger_has_thirty_seconds() -> None:
    """Also one that opens its connection and keeps it alive."""
    loop = VirtualLoop()
    node = Node(loop, Random(7), "n", lambda namespace, now_ms: None, lambda name: None)
    node.start()
    end = Silent()
    wire = node.connect()

    async def talk(seconds: int) -> None:
        for _ in range(seconds):
            await asyncio.sleep(1)
            wire.send(b"\0\0\0\x08\x02\0\0\0")

    async def scenario() -> tuple[bool, bool]:
        wire.join(end)
        wire.send(b"AMQP\x03\x01\x00\x00" + ANONYMOUS + b"AMQP\x00\x01\x00\x00" + OPENED)
        await talk(limits.STRANGER_WAIT_MS // 1000 - 1)
        before = end.is_lost
        await talk(2)
        return before, end.is_lost

    assert loop.run_until_complete(scenario()) == (False, True)
    assert "took more than 30 seconds" in str(end.heard[-1].fields)
    node.kill()
    loop.close()


def test_tls_that_is_never_agreed_upon_takes_a_stranger_s_place(
    broker: Broker, crowd: ExitStack
) -> None:
    """Before the handshake there is no connection to be seen, but there is a socket."""
    port = broker.ready["ports"]["amqps"]
    come(crowd, port, 5)
    wait_for(broker, "strangers", 5)
    context = ssl.create_default_context(cafile=str(broker.directory / "data" / "tls" / "ca.pem"))
    (raw,) = come(crowd, port, 1)
    with context.wrap_socket(raw, server_hostname="localhost") as spoken:
        spoken.sendall(b"AMQP\x03\x01\x00\x00")
        assert spoken.recv(8) == b"AMQP\x03\x01\x00\x00"


def test_the_lobby_counts_what_comes_and_goes() -> None:
    now_ms = [0]
    lobby = Lobby(lambda: now_ms[0], strangers_max=2, known_max=1)
    evicted: list[str] = []
    first = lobby.enter(("10.0.0.1", 1), lambda: evicted.append("first"))
    second = lobby.enter(("10.0.0.1", 2), lambda: evicted.append("second"))
    assert first.know()
    assert first.know(), "once known, always known"
    third = lobby.enter(("10.0.0.2", 3), lambda: evicted.append("third"))
    assert (lobby.strangers, lobby.known) == (2, 1)
    assert not second.know()
    lobby.enter(("10.0.0.1", 4), lambda: evicted.append("fourth"))
    assert evicted == ["second"]
    for place in (first, second, third, third):
        place.leave()
    assert (lobby.strangers, lobby.known) == (1, 0)


def test_addresses_of_one_machine_count_as_one() -> None:
    assert address_of(("10.0.0.1", 5)) == "10.0.0.1"
    assert address_of(("2001:db8:1:2:3::4", 5, 0, 0)) == address_of(("2001:db8:1:2::9", 6, 0, 0))
    assert address_of(("2001:db8:1:2::", 5)) != address_of(("2001:db8:1:3::", 5))
    assert address_of(None) == ""
