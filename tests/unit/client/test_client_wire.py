"""Waiting, and keeping a line alive, in virtual time."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from twinbus.amqp.connection import Connection as ServerConnection
from twinbus.amqp.framing import EMPTY_FRAME
from twinbus.amqp.handler import Handler
from twinbus.client import wire as subject
from twinbus.client.connection import Connection
from twinbus.client.endpoint import Endpoint
from twinbus.client.errors import ConnectionLost
from twinbus.client.transport import Transport
from twinbus.client.wire import Wire

IDLE_MS = 240_000


class Line(Transport):
    """The broker's half of a connection in memory; waiting moves the clock."""

    def __init__(self) -> None:
        self.place = "memory"
        self.moved_bytes = 0
        self.now_s = 1000.0
        self.server = ServerConnection(
            Handler(), "broker", self.now_ms, idle_timeout_ms=IDLE_MS, handshake_timeout_ms=IDLE_MS
        )

    @property
    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def exchange(self, output: list[bytes], wait_s: float) -> bytes:
        if output:
            self.server.receive(b"".join(output), self.now_ms)
            output.clear()
        data = self.server.take_output()
        if not data:
            self.now_s += wait_s
            self.server.tick(self.now_ms)
            data = self.server.take_output()
        if not data and self.server.finished:
            raise ConnectionLost("memory closed the connection")
        return data


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    line = Line()
    monkeypatch.setattr(subject, "time", SimpleNamespace(monotonic=lambda: line.now_s))
    return line


def opened(line: Line, timeout_s: float) -> Wire:
    wire = Wire(line, Connection("localhost", "me"), timeout_s)
    wire.wait(lambda: wire.connection.opened, "open the connection")
    return wire


def test_a_long_wait_keeps_the_line_alive(line: Line) -> None:
    wire = opened(line, 3600)
    until_s = line.now_s + 3000
    wire.wait(lambda: line.now_s >= until_s, "do anything")
    assert not line.server.finished


def test_a_line_that_is_looked_after_now_and_then_stays(line: Line) -> None:
    wire = opened(line, 60)
    for _ in range(200):
        line.now_s += wire.keep_alive_s / 2
        wire.exchange(0)
        line.server.tick(line.now_ms)
    assert not line.server.finished
    assert line.now_s > 2 * IDLE_MS / 1000


def test_a_line_that_nobody_looks_after_is_lost(line: Line) -> None:
    wire = opened(line, 60)
    line.now_s += IDLE_MS / 1000
    line.server.tick(line.now_ms)
    with pytest.raises(ConnectionLost, match="idle for too long"):
        wire.wait(lambda: False, "do anything")


def test_a_wait_ends_when_its_time_is_over(line: Line) -> None:
    wire = opened(line, 60)
    began_s = line.now_s
    with pytest.raises(ConnectionLost, match="memory did not answer in time"):
        wire.wait(lambda: False, "answer")
    assert line.now_s - began_s == pytest.approx(60)
    with pytest.raises(ConnectionLost, match="memory did not answer in time"):
        wire.check()


class SlowLine(Line):
    """Takes 1 KB a second of what is sent, and all signs of life."""

    def __init__(self) -> None:
        super().__init__()
        self.on_the_way = b""

    def exchange(self, output: list[bytes], wait_s: float) -> bytes:
        self.on_the_way += b"".join(output)
        output.clear()
        taken = self.on_the_way[: int(wait_s * 1024)]
        self.on_the_way = self.on_the_way[len(taken) :]
        self.moved_bytes += len(taken)
        return super().exchange([taken] if taken else [], wait_s)


def test_a_peer_that_takes_a_long_message_slowly_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = SlowLine()
    monkeypatch.setattr(subject, "time", SimpleNamespace(monotonic=lambda: line.now_s))
    wire = opened(line, 60)
    began_s = line.now_s
    wire.connection.output.append(EMPTY_FRAME * 40_000)
    wire.wait(lambda: not wire.connection.output and not line.on_the_way, "take it")
    assert line.now_s - began_s > 300
    began_s = line.now_s
    with pytest.raises(ConnectionLost, match="memory did not answer in time"):
        wire.wait(lambda: False, "answer")
    assert line.now_s - began_s == pytest.approx(60), "signs of life are no progress"


def test_a_transport_counts_what_moves() -> None:
    with socket.create_server(("localhost", 0)) as listener:
        port = listener.getsockname()[1]
        transport = Transport(Endpoint("localhost", port, tls=False), None, 5)
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"12345")
            assert transport.exchange([b"abc", b"def"], 5) == b"12345"
            assert transport.moved_bytes == 11
            assert transport.exchange([], 0) == b""
            assert transport.moved_bytes == 11
        transport.close()
