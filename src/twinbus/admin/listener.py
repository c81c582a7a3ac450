"""One port for HTTP and HTTPS, told apart by a connection's first byte.

Clients differ in which of the two they speak to the admin port, and users know one port
number. The byte is looked at while it stays in the socket, so that whichever server gets
the socket reads the stream from its beginning.
"""

import asyncio
import logging
import socket
import ssl
import time

from aiohttp import web

from twinbus.admin.connection import HttpProtocol, attending
from twinbus.server.accepting import accept_all, bind, cut
from twinbus.server.lobby import Lobby, Place

# A TLS record that begins a handshake; no HTTP method begins with it.
_TLS_HANDSHAKE = b"\x16"
FIRST_BYTE_WAIT_S = 5.0
HANDSHAKE_WAIT_S = 10.0
# A connection between requests, or before its first, is kept this long.
IDLE_WAIT_S = 60.0
SHUTDOWN_WAIT_S = 5.0
# An abort takes effect in the next turns of the event loop: connection lost, socket closed.
_TURNS_TO_ABORT = 3

logger = logging.getLogger(__name__)


class HttpListener:
    """A port that is open from `start` to `close`."""

    def __init__(
        self, application: web.Application, tls: ssl.SSLContext | None, lobby: Lobby
    ) -> None:
        self._runner = web.AppRunner(application, shutdown_timeout=SHUTDOWN_WAIT_S)
        self._tls = tls
        self._lobby = lobby
        self._sockets: list[socket.socket] = []
        #: Connections that have not sent their first byte.
        self._undecided: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that was bound; useful when 0 was asked for."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def start(self, host: str | None, port: int) -> None:
        """Bind every address of the host (None: all addresses) and serve."""
        self._sockets = await bind(host, port)
        await self._runner.setup()
        assert self._runner.server is not None
        self._runner.server.request_handler = attending(self._runner.server.request_handler)
        for listening in self._sockets:
            self._keep(asyncio.create_task(accept_all(listening, self._take)))

    async def close(self) -> None:
        """Stop listening, end requests and connections, wait until all is over."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for idle in [*self._sockets, *self._undecided]:
            idle.close()
        server = self._runner.server
        handlers = server.connections if server else []
        transports = [handler.transport for handler in handlers if handler.transport]
        await self._runner.cleanup()
        # A TLS connection says goodbye and waits for the answer; there is nobody to wait now.
        for transport in transports:
            transport.abort()
        for _ in range(_TURNS_TO_ABORT):
            await asyncio.sleep(0)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, connection: socket.socket, peer: object) -> None:
        self._undecided.add(connection)
        place = self._lobby.enter(peer, lambda: cut(connection))
        self._keep(asyncio.create_task(self._hand_over(connection, place)))

    async def _hand_over(self, connection: socket.socket, place: Place) -> None:
        """Give a new connection to the server, with TLS or without, as its first byte says."""
        try:
            first = await _first_byte(connection)
            self._undecided.discard(connection)
            wants_tls = first == _TLS_HANDSHAKE
            if not first or (wants_tls and self._tls is None):
                connection.close()
                return
            # From here on the socket is the event loop's to close.
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._tls if wants_tls else None,
                ssl_handshake_timeout=HANDSHAKE_WAIT_S if wants_tls else None,
            )
        except OSError as error:
            logger.debug("An HTTP connection ended before its first request: %r", error)
        finally:
            place.leave()

    def _make_protocol(self) -> HttpProtocol:
        assert self._runner.server is not None
        return HttpProtocol(self._runner.server, self._lobby, _clock_ms, IDLE_WAIT_S)


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


async def _first_byte(connection: socket.socket) -> bytes:
    """Look at the first byte and leave it where it is; nothing if none comes in time."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        async with asyncio.timeout(FIRST_BYTE_WAIT_S):
            await readable.wait()
        return connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return b""
    finally:
        loop.remove_reader(connection)
