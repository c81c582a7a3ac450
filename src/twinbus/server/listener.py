"""Sockets: each connection is a protocol that feeds its bridge and writes what comes back."""

import asyncio
import logging
import socket
import ssl
from typing import cast

from twinbus.amqp.connection import NEVER_MS, Connection
from twinbus.core import errors, limits
from twinbus.core.errors import BusError
from twinbus.journal import JournalFailed
from twinbus.server.accepting import accept_all, bind, cut
from twinbus.server.bridge import Bridge
from twinbus.server.broker import Broker
from twinbus.server.door import FrontDoor, Visitor
from twinbus.server.lobby import Lobby, Place

log = logging.getLogger(__name__)

# Beyond this in the socket's buffer its receivers wait.
_WRITE_BUFFER_BYTES = 256 * 1024
# A client that leaves so much unread, answers to what it sends among it, is read no further.
_UNREAD_BYTES_MAX = 4 * 1024 * 1024
_TLS_WAIT_S = 10.0
# How long a client may take to read the last that was said to it.
_LINGER_S = 30.0
CONTAINER_ID = "twinbus"


class AmqpProtocol(asyncio.Protocol):
    """One client's connection."""

    def __init__(
        self,
        broker: Broker,
        door: FrontDoor,
        lobby: Lobby,
        open_connections: "set[AmqpProtocol]",
    ) -> None:
        self._broker = broker
        self._door = door
        self._lobby = lobby
        self._open = open_connections
        self._transport: asyncio.Transport | None = None
        self._bridge = Bridge(broker.hub, door)
        self._bridge.writer = self.write_out
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self.connection: Connection | None = None
        #: What came while there was no room for it.
        self._held: list[bytes] = []
        #: Ends it when it has ended and what was written still does not go out.
        self._cutting: asyncio.TimerHandle | None = None
        #: Its place among those who are held; it says how much of it was.
        self._mark = 0
        #: It has left too much unread.
        self._is_deaf = False
        #: Frames of it wait for the next turn.
        self._will_go_on = False
        self._visitor = Visitor(self._bridge)
        self._place: Place | None = None
        #: Until a key was shown: how long, and how many bytes, that may take.
        self.is_stranger = True
        self._stranger_until_ms = NEVER_MS
        self._stranger_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        now_ms = self._broker.begin_turn()
        self.connection = Connection(
            self._bridge,
            CONTAINER_ID,
            now_ms,
            max_frame_size=limits.FRAME_BYTES_MAX,
            partial_bytes_max=limits.PARTIAL_BYTES_MAX,
        )
        self._bridge.connection = self.connection
        self._bridge.is_closing = self._transport.is_closing
        self._door.visitors[self._bridge] = self._visitor
        self._open.add(self)
        self._place = self._lobby.enter(transport.get_extra_info("peername"), self._cut_off)
        self._stranger_until_ms = now_ms + limits.STRANGER_WAIT_MS
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        self._take_or_hold(data, len(data))

    def _take_or_hold(self, data: bytes, size_bytes: int) -> None:
        if self._held or not self._broker.has_room(size_bytes):
            self._hold(data, size_bytes)
        else:
            self._take_in(data)

    def _hold(self, data: bytes, size_bytes: int) -> None:
        """Too much waits for the disk: read no further, and go on with this when there is room."""
        if self._held:
            self._held.append(data)
        elif mark := self._broker.hold(self._mark, size_bytes, self._go_on):
            self._mark = mark
            self._held.append(data)
            self._read_or_wait()
        else:
            with self._broker.busy():
                self._take_in(data)

    def _go_on(self) -> None:
        held, self._held = self._held, []
        if self._transport is None:
            return
        self._take_in(b"".join(held))
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._held or self._is_deaf or self._will_go_on:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _take_in(self, data: bytes) -> None:
        assert self.connection is not None
        now_ms = self._broker.begin_turn()
        if self.is_stranger:
            if self.connection.finished:
                return
            self._stranger_bytes += len(data)
            if self._stranger_bytes > limits.STRANGER_BYTES_MAX:
                self._expel(f"sent more than {limits.STRANGER_BYTES_MAX} bytes")
                return
        try:
            self.connection.receive(data, now_ms)
        except JournalFailed as error:
            # A record could not be read back. Everybody is told at the end of the turn; whoever
            # asked for it is in the middle of something.
            failed = errors.disk_failed(error)
            self.connection.close(failed.kind.condition, self._broker.track(failed, "journal"))
        except Exception:
            # A fault of ours must not take other connections with it.
            log.exception("a connection broke the bridge")
            self.connection.close("amqp:internal-error", "The broker met an error of its own.")
        if self.is_stranger:
            self._look_at_stranger()
        self._bridge.touch()
        if self.connection.is_interrupted and not self._will_go_on:
            # Others come first, and nothing more is read meanwhile.
            self._will_go_on = True
            asyncio.get_running_loop().call_soon(self._take_rest)
            self._read_or_wait()

    def _take_rest(self) -> None:
        self._will_go_on = False
        if self._transport is not None:
            assert self.connection is not None
            # A small frame to a topic may be much for the disk.
            self._take_or_hold(b"", self.connection.interrupted_bytes)
            self._read_or_wait()

    def _look_at_stranger(self) -> None:
        connection = self.connection
        assert connection is not None
        assert self._place is not None
        if self._visitor.is_known:
            if not self._place.know():
                text = f"There are {self._lobby.known_max} connections: close some of them."
                error = BusError(errors.QUOTA_EXCEEDED, text)
                connection.close(error.kind.condition, self._broker.track(error, "connection"))
                return
            self.is_stranger = False
            self._stranger_until_ms = NEVER_MS
        elif len(connection.sessions) > limits.STRANGER_SESSIONS_MAX:
            self._expel(f"began more than {limits.STRANGER_SESSIONS_MAX} sessions")
        elif connection.link_count > limits.STRANGER_LINKS_MAX:
            self._expel(f"attached more than {limits.STRANGER_LINKS_MAX} links")

    def _expel(self, reason: str) -> None:
        """End a connection that has used up what a stranger is given."""
        assert self.connection is not None
        self._lobby.note_expelled()
        text = f"The connection {reason} before it showed a key. Put a token to $cbs first."
        self.connection.close(errors.QUOTA_EXCEEDED.condition, text)
        self._bridge.touch()

    def _cut_off(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def write_out(self) -> None:
        """The turn ends: write what there is, in one call."""
        connection = self.connection
        transport = self._transport
        if connection is None or transport is None:
            return
        if connection.has_output and not transport.is_closing():
            transport.write(connection.take_output())
            if not self._bridge.writable:
                self._look_whether_it_reads(transport)
        if connection.finished:
            transport.close()
            if self._cutting is None:
                loop = asyncio.get_running_loop()
                self._cutting = loop.call_later(_LINGER_S, self._cut_off)
        else:
            self._bridge.resume()
            self._set_timer()

    def _look_whether_it_reads(self, transport: asyncio.Transport) -> None:
        if not self._is_deaf and transport.get_write_buffer_size() > _UNREAD_BYTES_MAX:
            self._is_deaf = True
            self._read_or_wait()

    def pause_writing(self) -> None:
        self._bridge.writable = False

    def resume_writing(self) -> None:
        self._bridge.writable = True
        self._is_deaf = False
        self._read_or_wait()
        self._broker.begin_turn()
        self._bridge.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self._broker.begin_turn()
        for timer in (self._timer, self._cutting):
            if timer is not None:
                timer.cancel()
        if self.connection is not None:
            self.connection.abort()
        self._transport = None
        self._bridge.is_closing = None
        if self._place is not None:
            self._place.leave()
        self._door.leave(self._bridge)
        self._open.discard(self)

    def shut(self) -> None:
        """The broker stops: say so to the client."""
        if self.connection is not None:
            self.connection.close("amqp:connection:forced", "The broker is shutting down.")
            self.write_out()

    def _set_timer(self) -> None:
        """Keep-alive and idle time-out; set anew only when the deadline comes nearer."""
        assert self.connection is not None
        deadline_ms = min(self.connection.deadline_ms(), self._stranger_until_ms)
        if deadline_ms >= NEVER_MS or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(0.0, (deadline_ms - self._broker.clock()) / 1000)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def shift(self, step_ms: int) -> None:
        """The clock was set; the timer, which knows nothing of clocks, goes on as it was."""
        if self.connection is not None:
            self.connection.shift(step_ms)
        self._timer_ms += step_ms
        if self._stranger_until_ms < NEVER_MS:
            self._stranger_until_ms += step_ms

    def _on_timer(self) -> None:
        self._timer = None
        assert self.connection is not None
        now_ms = self._broker.begin_turn()
        if now_ms >= self._stranger_until_ms:
            self._stranger_until_ms = NEVER_MS
            self._expel(f"took more than {limits.STRANGER_WAIT_MS // 1000} seconds")
        self.connection.tick(now_ms)
        self._bridge.touch()
        self._set_timer()


class AmqpListener:
    """The AMQP ports of a broker."""

    def __init__(self, broker: Broker, door: FrontDoor, lobby: Lobby) -> None:
        self._broker = broker
        self._door = door
        self.lobby = lobby
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections: set[AmqpProtocol] = set()

    def shift(self, step_ms: int) -> None:
        """The clock was set by so much."""
        for protocol in self.connections:
            protocol.shift(step_ms)

    def make_protocol(self) -> AmqpProtocol:
        return AmqpProtocol(self._broker, self._door, self.lobby, self.connections)

    async def listen(self, host: str | None, port: int, tls: ssl.SSLContext | None) -> int:
        """Open a port; give its number."""
        if tls is not None:
            return await self._listen_with_tls(host, port, tls)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            self.make_protocol, host, port, backlog=1024, reuse_address=True
        )
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _listen_with_tls(self, host: str | None, port: int, tls: ssl.SSLContext) -> int:
        """A loop's own server would show a connection only once TLS is agreed upon: until then
        nobody would count it."""
        sockets = await bind(host, port)

        def take(connection: socket.socket, peer: object) -> None:
            place = self.lobby.enter(peer, lambda: cut(connection))
            self._keep(asyncio.create_task(self._agree(connection, tls, place)))

        self._sockets += sockets
        for listening in sockets:
            self._keep(asyncio.create_task(accept_all(listening, take)))
        return int(sockets[0].getsockname()[1])

    async def _agree(self, connection: socket.socket, tls: ssl.SSLContext, place: Place) -> None:
        """Do the TLS handshake; the connection then has a place of its own."""
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # From here on the socket is the event loop's to close.
            await asyncio.get_running_loop().connect_accepted_socket(
                self.make_protocol, connection, ssl=tls, ssl_handshake_timeout=_TLS_WAIT_S
            )
        except OSError as error:
            log.debug("a connection ended before TLS was agreed upon: %r", error)
        finally:
            place.leave()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for listening in self._sockets:
            listening.close()
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
