"""One port, two protocols, told apart by the first byte, on both event loops."""

import asyncio
import errno
import socket
import ssl

import aiohttp
import pytest
from conftest import AdminPort, Echo, loop_factory, wall_clock_ms
from memory_namespace import MemoryNamespace

from twinbus.admin import listener as listener_module
from twinbus.admin.application import make_application
from twinbus.admin.listener import HttpListener
from twinbus.server.lobby import Lobby


def _listener() -> HttpListener:
    application = make_application(MemoryNamespace(), Echo, wall_clock_ms)
    return HttpListener(application, None, Lobby(wall_clock_ms))


def trusting(admin: AdminPort) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(admin.ca))


async def health(url: str) -> int:
    async with aiohttp.request("GET", url) as response:
        return response.status


async def ended(reader: asyncio.StreamReader) -> bool:
    """Wait for the end of a connection; unread bytes turn it into a reset."""
    try:
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionResetError:
        return True


async def test_http_and_https_share_the_port(admin_port: AdminPort) -> None:
    async with aiohttp.ClientSession() as session:
        for url, tls in (
            (f"http://localhost:{admin_port.port}/health", True),
            (f"https://localhost:{admin_port.port}/health", trusting(admin_port)),
            (f"https://127.0.0.1:{admin_port.port}/health", trusting(admin_port)),
        ):
            async with session.get(url, ssl=tls) as response:
                assert response.status == 200


async def test_a_silent_client_is_dropped_and_harms_nobody(
    admin_port: AdminPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "FIRST_BYTE_WAIT_S", 0.2)
    silent = [await asyncio.open_connection("localhost", admin_port.port) for _ in range(50)]
    assert await health(f"http://localhost:{admin_port.port}/health") == 200
    for reader, writer in silent:
        assert await ended(reader)
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_stops_in_the_handshake_is_dropped(
    admin_port: AdminPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_WAIT_S", 0.2)
    reader, writer = await asyncio.open_connection("localhost", admin_port.port)
    writer.write(b"\x16\x03\x01")
    assert await ended(reader)
    writer.close()
    await writer.wait_closed()


async def test_noise_is_answered_or_dropped(admin_port: AdminPort) -> None:
    for noise in (
        b"\x16garbage that is no handshake\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"AMQP\x03",
    ):
        reader, writer = await asyncio.open_connection("localhost", admin_port.port)
        writer.write(noise)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer[:5] in (b"", b"HTTP/", b"\x15\x03\x01\x00\x02", b"\x15\x03\x03\x00\x02")
        writer.close()
        await writer.wait_closed()


async def test_without_a_certificate_https_is_dropped() -> None:
    listener = _listener()
    await listener.start("127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"\x16\x03\x01")
        assert await ended(reader)
        writer.close()
    finally:
        await listener.close()


async def test_a_port_in_use_is_an_error_at_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = _listener()
        with pytest.raises(OSError) as caught:
            await listener.start("127.0.0.1", taken.getsockname()[1])
        assert caught.value.errno == errno.EADDRINUSE
        await listener.close()


async def close_with_idle_connections() -> None:
    listener = _listener()
    await listener.start(None, 0)
    port = listener.port
    silent_reader, silent_writer = await asyncio.open_connection("127.0.0.1", port)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/health") as response:
            assert response.status == 200
        await asyncio.wait_for(listener.close(), 3)
    assert await ended(silent_reader)
    silent_writer.close()
    await silent_writer.wait_closed()
    socket.create_server(("127.0.0.1", port)).close()


def test_closing_ends_idle_connections_and_frees_the_port(loop_kind: str) -> None:
    with asyncio.Runner(loop_factory=loop_factory(loop_kind)) as runner:
        runner.run(close_with_idle_connections())


async def test_running_out_of_files_only_makes_new_connections_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    accept = loop.sock_accept
    failures = [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()]

    async def sometimes(listening: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", sometimes)
    listener = _listener()
    await listener.start("127.0.0.1", 0)
    assert await health(f"http://127.0.0.1:{listener.port}/health") == 200
    await listener.close()
    assert "Too many open files" in caplog.text
