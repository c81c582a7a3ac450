"""Sockets: each connection is a protocol that feeds its bridge and writes what comes back."""

import asyncio
import logging
import ssl
from typing import cast

from twinbus.amqp.connection import NEVER_MS, Connection
from twinbus.core import limits
from twinbus.server.bridge import Bridge
from twinbus.server.broker import Broker
from twinbus.server.door import FrontDoor, Visitor

log = logging.getLogger(__name__)

# Beyond this in the socket's buffer its receivers wait.
_WRITE_BUFFER_BYTES = 256 * 1024
CONTAINER_ID = "twinbus"


class AmqpProtocol(asyncio.Protocol):
    """One client's connection."""

    def __init__(
        self, broker: Broker, door: FrontDoor, open_connections: "set[AmqpProtocol]"
    ) -> None:
        self._broker = broker
        self._door = door
        self._open = open_connections
        self._transport: asyncio.Transport | None = None
        self._bridge = Bridge(broker.hub, door)
        self._bridge.writer = self.write_out
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self.connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        now_ms = self._broker.begin_turn()
        self.connection = Connection(
            self._bridge, CONTAINER_ID, now_ms, max_frame_size=limits.FRAME_BYTES_MAX
        )
        self._bridge.connection = self.connection
        self._door.visitors[self._bridge] = Visitor(self._bridge)
        self._open.add(self)
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        assert self.connection is not None
        now_ms = self._broker.begin_turn()
        try:
            self.connection.receive(data, now_ms)
        except Exception:
            # A fault of ours must not take other connections with it.
            log.exception("a connection broke the bridge")
            self.connection.close("amqp:internal-error", "The broker met an error of its own.")
        self._bridge.touch()
        if self._broker.wait_for_room(self._resume_reading) and self._transport is not None:
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def write_out(self) -> None:
        """The turn ends: write what there is, in one call."""
        connection = self.connection
        transport = self._transport
        if connection is None or transport is None:
            return
        if connection.has_output and not transport.is_closing():
            transport.write(connection.take_output())
        if connection.finished:
            transport.close()
        else:
            self._bridge.resume()
            self._set_timer()

    def pause_writing(self) -> None:
        self._bridge.writable = False

    def resume_writing(self) -> None:
        self._bridge.writable = True
        self._broker.begin_turn()
        self._bridge.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self._broker.begin_turn()
        if self._timer is not None:
            self._timer.cancel()
        if self.connection is not None:
            self.connection.abort()
        self._transport = None
        self._door.visitors.pop(self._bridge, None)
        self._open.discard(self)

    def shut(self) -> None:
        """The broker stops: say so to the client."""
        if self.connection is not None:
            self.connection.close("amqp:connection:forced", "The broker is shutting down.")
            self.write_out()

    def _set_timer(self) -> None:
        """Keep-alive and idle time-out; set anew only when the deadline comes nearer."""
        assert self.connection is not None
        deadline_ms = self.connection.deadline_ms()
        if deadline_ms >= NEVER_MS or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(0.0, (deadline_ms - self._broker.clock()) / 1000)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        assert self.connection is not None
        self.connection.tick(self._broker.begin_turn())
        self._bridge.touch()
        self._set_timer()


class AmqpListener:
    """The AMQP ports of a broker."""

    def __init__(self, broker: Broker, door: FrontDoor) -> None:
        self._broker = broker
        self._door = door
        self._servers: list[asyncio.Server] = []
        self.connections: set[AmqpProtocol] = set()

    def make_protocol(self) -> AmqpProtocol:
        return AmqpProtocol(self._broker, self._door, self.connections)

    async def listen(self, host: str | None, port: int, tls: ssl.SSLContext | None) -> int:
        """Open a port; give its number."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            self.make_protocol, host, port, ssl=tls, backlog=1024, reuse_address=True
        )
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        now_ms = self._broker.begin_turn()
        # The broker goes, not its receivers: no attempt of theirs has failed.
        for stream in self._broker.engine.streams():
            stream.drop_locks(now_ms)
        for protocol in list(self.connections):
            protocol.shut()
        # What was written still goes out; those that do not take it are cut off.
        for _ in range(20):
            if not self.connections:
                break
            await asyncio.sleep(0.05)
