"""AMQP over WebSocket: the bytes of WebSocket messages become a byte stream and back.

The connection behind it is the same asyncio.Protocol that TCP connections get: it sees a
transport, and need not know that this one is a WebSocket. Message borders carry no meaning.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from twinbus.admin.connection import HttpProtocol
from twinbus.server.listener import AmqpProtocol

PATH = "/$servicebus/websocket"
SUBPROTOCOL = "AMQPWSB10"

# Some clients refuse messages of several megabytes; a stream can be cut anywhere.
MESSAGE_BYTES_MAX = 64 * 1024
# What a peer may put into one message, which is held until it is whole. Clients send a frame.
RECEIVED_BYTES_MAX = 1024 * 1024
# The protocol is told to pause when more than this is waiting, unless it asks otherwise.
BUFFER_BYTES_HIGH = 64 * 1024
# How long a peer that does not read can keep a closed connection.
CLOSE_WAIT_S = 5.0

logger = logging.getLogger(__name__)

ProtocolFactory = Callable[[], asyncio.Protocol]


class WebSocketTransport(asyncio.Transport):
    """What an AMQP connection writes to; `run` carries the bytes both ways."""

    def __init__(
        self,
        websocket: web.WebSocketResponse,
        protocol: asyncio.Protocol,
        carrier: asyncio.Transport,
    ) -> None:
        super().__init__()
        self._websocket = websocket
        self._protocol = protocol
        self._carrier = carrier
        self._buffer = bytearray()
        self._something_to_do = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._writing_paused = False
        self.set_write_buffer_limits()
        self._closing = False
        self._deadline: asyncio.TimerHandle | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._carrier.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._closing or self._carrier.is_closing()

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        if self._closing:
            return
        self._buffer += data
        self._something_to_do.set()
        if len(self._buffer) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Say above how many waiting bytes the protocol pauses, and below how many it goes on."""
        self._high = BUFFER_BYTES_HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def close(self) -> None:
        """Send what is waiting, then close; a peer that does not read is cut off."""
        if self._closing:
            return
        self._closing = True
        self._deadline = asyncio.get_running_loop().call_later(CLOSE_WAIT_S, self._carrier.abort)
        self._something_to_do.set()
        self._may_read.set()

    def abort(self) -> None:
        """Close at once; what is waiting is lost."""
        self._buffer.clear()
        self.close()
        self._carrier.abort()

    async def run(self) -> None:
        """Carry bytes until either side is done, then tell the protocol."""
        sender = asyncio.create_task(self._send())
        error: Exception | None = None
        try:
            self._protocol.connection_made(self)
            await self._receive()
            if self._closing:
                await asyncio.wait([sender])
        except Exception as caught:
            error = caught
            raise
        finally:
            self._closing = True
            if self._deadline is not None:
                self._deadline.cancel()
            sender.cancel()
            await asyncio.wait([sender])
            self._protocol.connection_lost(error)

    async def _receive(self) -> None:
        while not self._websocket.closed:
            await self._may_read.wait()
            message = await self._websocket.receive()
            if message.type is WSMsgType.BINARY:
                if not self._closing:
                    self._protocol.data_received(message.data)
            elif message.type is WSMsgType.TEXT:
                await self._websocket.close(code=WSCloseCode.UNSUPPORTED_DATA)
            else:
                return

    async def _send(self) -> None:
        try:
            await self._send_all()
        except ConnectionError:
            # The receiving half sees the same loss and ends the connection, unless it waits for
            # its client to take what can be sent no more.
            self._may_read.set()
        except Exception:
            logger.exception("A WebSocket's connection failed while bytes were sent")
            self._carrier.abort()

    async def _send_all(self) -> None:
        while self._buffer or not self._closing:
            await self._something_to_do.wait()
            self._something_to_do.clear()
            while self._buffer:
                piece = bytes(self._buffer[:MESSAGE_BYTES_MAX])
                del self._buffer[:MESSAGE_BYTES_MAX]
                await self._websocket.send_bytes(piece)
                if self._writing_paused and len(self._buffer) <= self._low:
                    self._writing_paused = False
                    self._protocol.resume_writing()
        await self._websocket.close()


class WebSocketDoor:
    """Lets AMQP connections in through HTTP, and shows them out when the port closes."""

    def __init__(self, factory: ProtocolFactory) -> None:
        self._factory = factory
        self._open: set[WebSocketTransport] = set()

    async def enter(self, request: web.Request) -> web.StreamResponse:
        offered = request.headers.get("Sec-WebSocket-Protocol", "")
        if SUBPROTOCOL not in [name.strip() for name in offered.split(",")]:
            raise web.HTTPBadRequest(text=f"This WebSocket speaks {SUBPROTOCOL} only.")
        websocket = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,),
            timeout=CLOSE_WAIT_S,
            compress=False,
            max_msg_size=RECEIVED_BYTES_MAX,
        )
        await websocket.prepare(request)
        carrier = request.transport
        if carrier is not None:
            protocol = self._factory()
            transport = WebSocketTransport(websocket, protocol, carrier)
            self._open.add(transport)
            http = request.protocol
            if isinstance(http, HttpProtocol):
                http.hand_on(lambda: isinstance(protocol, AmqpProtocol) and protocol.is_stranger)
            try:
                await transport.run()
            finally:
                self._open.discard(transport)
        return websocket

    async def close(self, application: web.Application) -> None:
        for transport in list(self._open):
            transport.close()
