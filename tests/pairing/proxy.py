"""A TCP proxy that can be told to fail in the ways a network fails.

It stands between a client and a broker with real sockets. Its port stays the same while its
behaviour changes, so that a client sees one address that breaks and heals.
"""

import asyncio
import contextlib
import socket
import struct

from tests.pairing.background import BackgroundLoop


class FaultyProxy:
    """`target_port` on this machine, seen through `port`. Starts healthy."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = _free_port()
        self.connections = 0
        self._latency_s = 0.0
        self._swallow = False
        self._resetting = False
        self._says = b""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = BackgroundLoop()
        self._loop.call(self._listen())

    def heal(self) -> None:
        """Pass everything on again; connections from the bad time are cut."""
        self._loop.call(self._heal())

    def refuse(self) -> None:
        """Nobody listens: connections are refused, those there are cut."""
        self._loop.call(self._stop_listening())
        self._loop.call(self._cut())

    def reset(self) -> None:
        """Cut every connection with a reset, now; new ones are let in."""
        self._loop.call(self._cut())

    def reset_each(self) -> None:
        """Cut every connection with a reset, and each new one when it speaks."""
        self._resetting = True
        self.reset()

    def black_hole(self) -> None:
        """Accept, read, and never answer: on old and new connections alike."""
        self._swallow = True

    def answer_in_http(self) -> None:
        """Cut every connection, and answer new ones as a load balancer does that has no target."""
        self._says = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
        self.reset()

    def slow(self, latency_s: float) -> None:
        """Hold every piece back for so long, in both directions."""
        self._latency_s = latency_s

    def close(self) -> None:
        self.refuse()
        self._loop.stop()

    def __enter__(self) -> "FaultyProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _heal(self) -> None:
        if self._swallow:
            await self._cut()
        self._swallow = False
        self._resetting = False
        self._says = b""
        self._latency_s = 0.0
        if self._server is None:
            await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _cut(self) -> None:
        for writer in list(self._writers):
            sock = writer.get_extra_info("socket")
            if sock is not None:
                # Linger of zero: closing sends a reset instead of a farewell.
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            if self._resetting:
                await reader.read(1)
                await self._cut()
                return
            if self._says:
                await reader.read(8)
                writer.write(self._says)
                await reader.read()
                return
            if self._swallow:
                while await reader.read(65536):
                    pass
                return
            answers, upstream = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._writers.add(upstream)
            there = asyncio.create_task(self._copy(reader, upstream))
            back = asyncio.create_task(self._copy(answers, writer))
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
        except OSError:
            return
        finally:
            for each in (writer, upstream):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy with latency but without losing bandwidth: pieces wait side by side."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        deliver = asyncio.create_task(self._deliver(pieces, writer))
        try:
            while data := await reader.read(65536):
                due = asyncio.get_running_loop().time() + self._latency_s
                pieces.put_nowait((due, data))
        except OSError:
            return
        finally:
            deliver.cancel()

    async def _deliver(
        self, pieces: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await pieces.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            if not self._swallow:
                writer.write(data)
                with contextlib.suppress(OSError):
                    await writer.drain()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
