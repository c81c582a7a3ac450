"""One port for HTTP and HTTPS, told apart by a connection's first byte.

Clients differ in which of the two they speak to the admin port, and users know one port
number. The byte is looked at while it stays in the socket, so that whichever server gets
the socket reads the stream from its beginning.
"""

import asyncio
import errno
import logging
import socket
import ssl

from aiohttp import web

# A TLS record that begins a handshake; no HTTP method begins with it.
_TLS_HANDSHAKE = b"\x16"
FIRST_BYTE_WAIT_S = 5.0
HANDSHAKE_WAIT_S = 10.0
# A connection between requests, or before its first, is kept this long.
IDLE_WAIT_S = 60.0
SHUTDOWN_WAIT_S = 5.0
_BACKLOG = 1024
# An abort takes effect in the next turns of the event loop: connection lost, socket closed.
_TURNS_TO_ABORT = 3
_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

logger = logging.getLogger(__name__)


class HttpListener:
    """A port that is open from `start` to `close`."""

    def __init__(self, application: web.Application, tls: ssl.SSLContext | None) -> None:
        self._runner = web.AppRunner(
            application,
            access_log=None,
            keepalive_timeout=IDLE_WAIT_S,
            shutdown_timeout=SHUTDOWN_WAIT_S,
        )
        self._tls = tls
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
        self._sockets = await _bind(host, port)
        await self._runner.setup()
        for listening in self._sockets:
            self._keep(asyncio.create_task(self._accept(listening)))

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

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # Most likely out of file descriptors: trying again at once would only spin.
                logger.error("No new HTTP connections for a second: %s", error)
                await asyncio.sleep(1)
                continue
            self._undecided.add(connection)
            self._keep(loop.create_task(self._hand_over(connection)))

    async def _hand_over(self, connection: socket.socket) -> None:
        """Give a new connection to the server, with TLS or without, as its first byte says."""
        server = self._runner.server
        assert server is not None
        first = await _first_byte(connection)
        self._undecided.discard(connection)
        wants_tls = first == _TLS_HANDSHAKE
        if not first or (wants_tls and self._tls is None):
            connection.close()
            return
        try:
            # From here on the socket is the event loop's to close.
            await asyncio.get_running_loop().connect_accepted_socket(
                server,
                connection,
                ssl=self._tls if wants_tls else None,
                ssl_handshake_timeout=HANDSHAKE_WAIT_S if wants_tls else None,
            )
        except OSError as error:
            logger.debug("An HTTP connection ended before its first request: %r", error)


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


async def _bind(host: str | None, port: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    failure: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        if bound and port == 0:
            # All addresses of the host share the port that the first one was given.
            address = (address[0], bound[0].getsockname()[1], *address[2:])
        try:
            bound.append(_listen(family, kind, protocol, address))
        except OSError as error:
            failure = error
            if error.errno not in _NO_SUCH_FAMILY:
                break
    if bound and (failure is None or failure.errno in _NO_SUCH_FAMILY):
        return bound
    for listening in bound:
        listening.close()
    raise failure or OSError(f"'{host}' has no address to listen on")


def _listen(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
