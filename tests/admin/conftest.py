"""The admin port, running: a listener on a free port with the broker's own certificate."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uvloop
from memory_namespace import ROOT_KEY, ROOT_KEY_NAME, MemoryNamespace

from twinbus.admin.application import make_application
from twinbus.admin.listener import HttpListener
from twinbus.server.lobby import Lobby
from twinbus.server.tls import own_certificate, server_context


class Echo(asyncio.Protocol):
    """Stands where an AMQP connection does: sends back what it gets."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@dataclass
class AdminPort:
    namespace: MemoryNamespace
    ca: Path
    port: int
    protocols: list[Echo] = field(default_factory=list)

    @property
    def connection_string(self) -> str:
        return self.connection_string_of(ROOT_KEY_NAME, ROOT_KEY)

    def connection_string_of(self, key_name: str, key: str) -> str:
        return (
            f"Endpoint=sb://localhost:{self.port}/;"
            f"SharedAccessKeyName={key_name};SharedAccessKey={key}"
        )


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


async def _serve(admin: AdminPort, ready: threading.Event, stop: asyncio.Event) -> None:
    files = own_certificate(admin.ca.parent, [], datetime.now(UTC))

    def connection() -> Echo:
        admin.protocols.append(Echo())
        return admin.protocols[-1]

    listener = HttpListener(
        make_application(admin.namespace, connection, wall_clock_ms),
        server_context(files),
        Lobby(wall_clock_ms),
    )
    await listener.start("localhost", 0)
    admin.port = listener.port
    ready.set()
    await stop.wait()
    await listener.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def loop_factory(kind: str) -> Callable[[], asyncio.AbstractEventLoop]:
    return uvloop.new_event_loop if kind == "uvloop" else asyncio.new_event_loop


def _run_admin_port(kind: str, directory: Path) -> Iterator[AdminPort]:
    admin = AdminPort(MemoryNamespace(), directory / "tls" / "ca.pem", 0)
    loop = loop_factory(kind)()
    ready, stop = threading.Event(), asyncio.Event()
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(_serve(admin, ready, stop)), daemon=True
    )
    thread.start()
    try:
        assert ready.wait(10)
        yield admin
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        assert not thread.is_alive()
        loop.close()


@pytest.fixture
def admin_port(loop_kind: str, tmp_path: Path) -> Iterator[AdminPort]:
    """On each of the two event loops that the broker may run on."""
    yield from _run_admin_port(loop_kind, tmp_path)


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[AdminPort]:
    yield from _run_admin_port("uvloop", tmp_path)
