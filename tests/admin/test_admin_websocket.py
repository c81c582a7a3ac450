"""AMQP over WebSocket on the admin port: a byte stream both ways (here: an echo)."""

import asyncio
import ssl

import aiohttp
import pytest
from conftest import AdminPort, Echo, wall_clock_ms
from memory_namespace import MemoryNamespace

from twinbus.admin import websocket as websocket_module
from twinbus.admin.application import make_application
from twinbus.admin.listener import HttpListener
from twinbus.server.lobby import Lobby

PATH = "/$servicebus/websocket"


async def read_exactly(websocket: aiohttp.ClientWebSocketResponse, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        data += await websocket.receive_bytes(timeout=10)
    return bytes(data)


async def test_bytes_go_both_ways_over_tls_and_without(admin_port: AdminPort) -> None:
    trusting = ssl.create_default_context(cafile=str(admin_port.ca))
    sent = bytes(range(256)) * 4000
    async with aiohttp.ClientSession() as session:
        for scheme in ("ws", "wss"):
            async with session.ws_connect(
                f"{scheme}://localhost:{admin_port.port}{PATH}",
                protocols=("AMQPWSB10",),
                ssl=trusting,
            ) as websocket:
                assert websocket.protocol == "AMQPWSB10"
                for start in range(0, len(sent), 100_000):
                    await websocket.send_bytes(sent[start : start + 100_000])
                assert await read_exactly(websocket, len(sent)) == sent
                await websocket.ping()
                await websocket.send_bytes(b"after the ping")
                assert await read_exactly(websocket, 14) == b"after the ping"


class Recorder(Echo):
    """Keeps what happens to a connection, for the test in the same loop to see."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.paused = asyncio.Event()
        self.resumed = asyncio.Event()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if data == b"fail":
            raise RuntimeError("the connection's own fault")
        self.received += data

    def pause_writing(self) -> None:
        self.paused.set()

    def resume_writing(self) -> None:
        self.resumed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)


class Port:
    """The admin port in the test's own loop, with the connections it has made."""

    def __init__(self) -> None:
        self.connections: list[Recorder] = []
        self._listener = HttpListener(
            make_application(MemoryNamespace(), self._connection, wall_clock_ms),
            None,
            Lobby(wall_clock_ms),
        )
        self._session = aiohttp.ClientSession()

    def _connection(self) -> Recorder:
        self.connections.append(Recorder())
        return self.connections[-1]

    async def __aenter__(self) -> "Port":
        await self._listener.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()
        await self._listener.close()
        # The client's sockets close in the next turns of the event loop.
        for _ in range(3):
            await asyncio.sleep(0)

    async def connect(self, *protocols: str) -> tuple[aiohttp.ClientWebSocketResponse, Recorder]:
        websocket = await self._session.ws_connect(
            f"ws://127.0.0.1:{self._listener.port}{PATH}", protocols=protocols or ("AMQPWSB10",)
        )
        return websocket, self.connections[-1]

    async def close(self) -> None:
        await self._listener.close()


async def test_a_client_that_does_not_speak_the_subprotocol_is_refused() -> None:
    async with Port() as port:
        for offered in ("mqtt", "AMQPWSB11"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await port.connect(offered)
            assert caught.value.status == 400
        assert port.connections == []


async def test_a_plain_request_to_the_websocket_is_refused() -> None:
    async with Port() as port, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port._listener.port}{PATH}"
        for headers in ({}, {"Sec-WebSocket-Protocol": "AMQPWSB10"}):
            async with session.get(url, headers=headers) as response:
                assert response.status == 400


async def test_what_was_written_before_closing_arrives() -> None:
    async with Port() as port:
        websocket, connection = await port.connect()
        connection.transport.write(b"x" * 200_000)
        connection.transport.close()
        connection.transport.write(b"too late")
        await websocket.send_bytes(b"too late as well")
        assert connection.transport.is_closing()
        assert await read_exactly(websocket, 200_000) == b"x" * 200_000
        assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert await asyncio.wait_for(connection.lost, 5) is None
        assert connection.received == b""


@pytest.mark.parametrize("politely", [True, False])
async def test_the_connection_hears_when_the_client_leaves(politely: bool) -> None:
    async with Port() as port:
        websocket, connection = await port.connect()
        if politely:
            await websocket.close()
        else:
            transport = websocket.get_extra_info("socket")
            assert transport is not None
            websocket._response.connection.transport.abort()  # type: ignore[union-attr]
        assert await asyncio.wait_for(connection.lost, 5) is None
        connection.transport.write(b"into the void")


async def test_aborting_is_immediate() -> None:
    async with Port() as port:
        websocket, connection = await port.connect()
        connection.transport.write(b"x" * 10_000_000)
        connection.transport.abort()
        await asyncio.wait_for(connection.lost, 5)
        while (await websocket.receive(timeout=5)).type is aiohttp.WSMsgType.BINARY:
            pass
        assert websocket.closed


async def test_a_slow_reader_pauses_the_writer_until_it_reads() -> None:
    async with Port() as port:
        websocket, connection = await port.connect()
        connection.transport.set_write_buffer_limits(high=256 * 1024)
        written = 0
        while not connection.paused.is_set():
            connection.transport.write(b"x" * 65_536)
            written += 65_536
        assert connection.transport.get_write_buffer_size() == written == 5 * 65_536
        assert not connection.resumed.is_set()
        assert len(await read_exactly(websocket, written)) == written
        await asyncio.wait_for(connection.resumed.wait(), 5)
        await websocket.close()


async def test_a_stuck_reader_cannot_hold_a_closed_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_module, "CLOSE_WAIT_S", 0.2)
    async with Port() as port:
        websocket, connection = await port.connect()
        connection.transport.write(b"x" * 50_000_000)
        await asyncio.wait_for(connection.paused.wait(), 5)
        connection.transport.close()
        await asyncio.wait_for(connection.lost, 5)
        await websocket.close()


async def test_a_paused_connection_is_not_fed() -> None:
    async with Port() as port:
        websocket, connection = await port.connect()
        await websocket.send_bytes(b"one")
        while connection.received != b"one":
            await asyncio.sleep(0)
        connection.transport.pause_reading()
        # The read that is under way may still bring one message.
        await websocket.send_bytes(b"two")
        await websocket.send_bytes(b"three")
        while connection.received != b"onetwo":
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert connection.received == b"onetwo"
        connection.transport.resume_reading()
        while connection.received != b"onetwothree":
            await asyncio.sleep(0)
        await websocket.close()


async def test_a_client_that_is_not_read_from_and_leaves_is_noticed() -> None:
    """R7: its locks would be held, and its place, until the connection counted as idle."""
    async with Port() as port:
        websocket, connection = await port.connect()
        connection.transport.write(b"x" * 50_000_000)
        await asyncio.wait_for(connection.paused.wait(), 5)
        # As an AMQP connection does whose client leaves too much unread.
        connection.transport.pause_reading()
        await websocket.send_bytes(b"one")
        await websocket.send_bytes(b"two")
        while connection.received != b"one":
            await asyncio.sleep(0)
        websocket._response.connection.transport.abort()  # type: ignore[union-attr]
        await asyncio.wait_for(connection.lost, 5)


async def test_text_is_no_amqp() -> None:
    async with Port() as port:
        websocket, connection = await port.connect()
        await websocket.send_str("hello")
        message = await websocket.receive(timeout=5)
        assert message.type is aiohttp.WSMsgType.CLOSE
        assert websocket.close_code == aiohttp.WSCloseCode.UNSUPPORTED_DATA
        assert await asyncio.wait_for(connection.lost, 5) is None


async def test_a_connection_that_fails_is_ended() -> None:
    async with Port() as port:
        websocket, connection = await port.connect()
        await websocket.send_bytes(b"fail")
        error = await asyncio.wait_for(connection.lost, 5)
        assert isinstance(error, RuntimeError)
        assert (await websocket.receive(timeout=5)).type in (
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSED,
        )


async def test_connections_are_shown_out_when_the_port_closes() -> None:
    async with Port() as port:
        websocket, connection = await port.connect()
        closing = asyncio.create_task(port.close())
        assert (await websocket.receive(timeout=5)).type is aiohttp.WSMsgType.CLOSE
        assert await asyncio.wait_for(connection.lost, 5) is None
        await asyncio.wait_for(closing, 5)
