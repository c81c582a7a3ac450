"""The broker's half of the protocol behind a real socket, for what a broker never does.

Enters: a handler and the settings of a connection. Leaves: a port on which one client is
served, in a thread, by the real server connection; or a peer that accepts and says nothing.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from twinbus.amqp.connection import Connection
from twinbus.amqp.handler import Handler

_STEP_S = 0.02


def connection_string(port: int) -> str:
    return (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=a;SharedAccessKey=b;"
        "UseDevelopmentEmulator=true"
    )


@contextmanager
def served(handler: Handler, **settings: Any) -> Iterator[str]:
    """A connection string for a peer that serves its first client with `handler`."""
    with socket.create_server(("localhost", 0)) as listener:
        over = threading.Event()
        thread = threading.Thread(target=_serve, args=(listener, handler, settings, over))
        thread.start()
        try:
            yield connection_string(listener.getsockname()[1])
        finally:
            over.set()
            thread.join()


def _serve(
    listener: socket.socket, handler: Handler, settings: dict[str, Any], over: threading.Event
) -> None:
    client, _ = listener.accept()
    with client:
        client.settimeout(_STEP_S)
        connection = Connection(handler, "peer", _now_ms(), **settings)
        while not over.is_set() and not connection.finished:
            try:
                data = client.recv(65536)
                if not data:
                    return
                connection.receive(data, _now_ms())
            except TimeoutError:
                connection.tick(_now_ms())
            client.sendall(connection.take_output())


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


@contextmanager
def mute() -> Iterator[str]:
    """A connection string for a peer that accepts connections and never says a word."""
    with socket.create_server(("localhost", 0)) as listener:
        yield connection_string(listener.getsockname()[1])
