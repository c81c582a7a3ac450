"""Listening sockets: addresses are bound, connections accepted and handed on as bare sockets.

For ports where a connection must be seen before an event loop's server would show it: when TLS
has yet to be agreed upon, or the first byte decides what it is.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable

_BACKLOG = 1024
_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

logger = logging.getLogger(__name__)


async def accept_all(
    listening: socket.socket, take: Callable[[socket.socket, object], None]
) -> None:
    """Give every connection and its peer's name to `take`, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, peer = await loop.sock_accept(listening)
        except ConnectionAbortedError:
            continue
        except OSError as error:
            # Most likely out of file descriptors: trying again at once would only spin.
            logger.error("No new connections for a second: %s", error)
            await asyncio.sleep(1)
            continue
        take(connection, peer)


def cut(connection: socket.socket) -> None:
    """End a connection under whoever holds its socket: they see the end and close it."""
    # One that is over already cannot be ended.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


async def bind(host: str | None, port: int) -> list[socket.socket]:
    """Listen on every address of the host (None: all addresses)."""
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
