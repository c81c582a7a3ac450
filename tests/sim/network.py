"""The wires between clients and brokers: bytes one way, frames the other, late, cut or lost.

Each wire is one connection, in order within itself and in no order with the others. What a
broker writes is read at once by an observer, with the time at which it was said, whether or
not it ever arrives: a promise counts when it is made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, Protocol

from tests.sim.loop import VirtualLoop
from twinbus.amqp.codec import decode
from twinbus.amqp.types import Described

# How long a client listens to nothing at all.
_SILENCE_MS = 10_000
# More than any performative has: what a peer leaves out reads as None.
_NO_FIELDS: list[Any] = [None] * 15


class Frame(NamedTuple):
    """One frame as a client reads it."""

    code: int
    fields: list[Any]
    payload: bytes


class Offsets(NamedTuple):
    """By how much a machine's clock is ahead of the true time, now and at any time before."""

    now_ms: int = 0
    least_ms: int = 0
    most_ms: int = 0

    def set(self, offset_ms: int) -> Offsets:
        return Offsets(offset_ms, min(self.least_ms, offset_ms), max(self.most_ms, offset_ms))


class Client(Protocol):
    """The client's end of a wire."""

    def overheard(self, frame: Frame) -> None:
        """The broker has said this; it is on its way."""

    def arrived(self, frame: Frame) -> None: ...

    def broker_lost_us(self) -> None:
        """The broker takes the connection for closed."""

    def lost(self) -> None:
        """The client takes the connection for closed."""


class Transport(asyncio.Transport):
    """The broker's end, as the listener's protocol sees it."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._wire.from_broker(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self._wire.unread_bytes

    def is_closing(self) -> bool:
        return self._wire.broker_end_closed

    def close(self) -> None:
        self._wire.close_broker_end()

    def pause_reading(self) -> None:
        self._wire.pause_reading(True)

    def resume_reading(self) -> None:
        self._wire.pause_reading(False)


class Wire:
    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        name: str,
        protocol: asyncio.Protocol,
        clock: Offsets,
    ) -> None:
        self.clock = clock
        self._loop = loop
        self._random = random
        self.name = name
        self._protocol = protocol
        self._client: Client | None = None
        self._latency_ms = random.choice((1, 2, 5, 20, 70))
        # Of what is on its way to a client that does not read, a broker's socket holds so much.
        self._buffer_bytes = random.choice((1 << 11, 1 << 18))
        #: Until when nothing arrives at the broker, and nothing at the client.
        self._up_held_ms = self._down_held_ms = 0
        self._up: deque[tuple[bytes, Callable[[], None] | None]] = deque()
        self._down: deque[tuple[list[Frame], int]] = deque()
        self._up_ms = self._down_ms = 0
        self.unread_bytes = 0
        self._is_full = False
        self._reads_not = False
        self._unread: list[bytes] = []
        self._rest = b""
        self.broker_end_closed = False
        self.client_end_closed = False

    def join(self, client: Client) -> None:
        self._client = client
        self._protocol.connection_made(Transport(self))

    # --- from the client to the broker ------------------------------------------------

    def send(
        self,
        data: bytes,
        on_arrival: Callable[[], None] | None = None,
        arrive_ms: int = 0,
    ) -> None:
        """Put bytes on their way; `arrive_ms` asks for a moment, if it can still be met."""
        if self.client_end_closed:
            return
        self._up_ms = max(self._up_ms, self._arrival_ms(), self._up_held_ms, arrive_ms)
        self._up.append((data, on_arrival))
        self._loop.at_ms(self._up_ms, self._reach_broker)

    def _reach_broker(self) -> None:
        data, on_arrival = self._up.popleft()
        if self.broker_end_closed:
            # A machine that knows nothing of this connection says so.
            self._end_client()
            return
        if on_arrival is not None:
            on_arrival()
        if self._reads_not:
            self._unread.append(data)
            return
        # A stream has no packets: the broker may get the same bytes in any pieces.
        if len(data) > 1 and self._random.random() < 0.1:
            middle = self._random.randrange(1, len(data))
            self._protocol.data_received(data[:middle])
            data = data[middle:]
        if not self.broker_end_closed:
            self._protocol.data_received(data)

    def pause_reading(self, paused: bool) -> None:
        self._reads_not = paused
        while self._unread and not self._reads_not and not self.broker_end_closed:
            self._protocol.data_received(self._unread.pop(0))

    # --- from the broker to the client ------------------------------------------------

    def from_broker(self, data: bytes) -> None:
        assert self._client is not None
        frames = self._read_frames(data)
        for frame in frames:
            self._client.overheard(frame)
        self._down_ms = max(self._down_ms, self._arrival_ms(), self._down_held_ms)
        self.unread_bytes += len(data)
        self._down.append((frames, len(data)))
        self._loop.at_ms(self._down_ms, self._reach_client)
        if self.unread_bytes > self._buffer_bytes and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def _read_frames(self, data: bytes) -> list[Frame]:
        data = self._rest + data
        frames: list[Frame] = []
        at = 0
        while len(data) - at >= 8:
            if data.startswith(b"AMQP", at):
                at += 8
                continue
            size = int.from_bytes(data[at : at + 4], "big")
            if len(data) - at < size:
                break
            body = data[at + 8 : at + size]
            is_sasl = data[at + 5] == 1
            at += size
            if body and not is_sasl:
                value, end = decode(body)
                assert isinstance(value, Described)
                assert isinstance(value.descriptor, int)
                assert isinstance(value.value, list)
                fields = value.value + _NO_FIELDS
                frames.append(Frame(int(value.descriptor), fields, body[end:]))
        self._rest = data[at:]
        return frames

    def _reach_client(self) -> None:
        frames, size = self._down.popleft()
        self.unread_bytes -= size
        if self._is_full and self.unread_bytes <= self._buffer_bytes // 4:
            self._is_full = False
            if not self.broker_end_closed:
                self._protocol.resume_writing()
        assert self._client is not None
        for frame in frames:
            if not self.client_end_closed:
                self._client.arrived(frame)

    def _arrival_ms(self) -> int:
        return self._loop.now_ms() + self._latency_ms + self._random.getrandbits(2)

    # --- endings and faults -----------------------------------------------------------

    def close_broker_end(self) -> None:
        """The broker closes: what it wrote still goes out, then the client hears of it."""
        if self.broker_end_closed:
            return
        self._end_broker()
        self._loop.at_ms(max(self._down_ms, self._arrival_ms()) + 1, self._end_client)

    def close_client_end(self) -> None:
        """The client closes its socket."""
        if not self.client_end_closed:
            self._end_client()
            self._loop.at_ms(max(self._up_ms, self._arrival_ms()) + 1, self._end_broker)

    def cut(self) -> None:
        """Both ends see a reset; what is under way is gone."""
        self._end_broker()
        self._end_client()

    def half_open(self) -> None:
        """One end is gone and the other does not know."""
        if self._random.random() < 0.5:
            self._end_client()
            return
        self._end_broker()
        # A client that only listens finds out when nothing comes for too long.
        self._loop.at_ms(self._loop.now_ms() + _SILENCE_MS, self._end_client)

    def black_hole(self, until_ms: int, *, up: bool = True, down: bool = True) -> None:
        """Nothing arrives until then, one way or both; nobody is told."""
        if up:
            self._up_held_ms = until_ms
        if down:
            self._down_held_ms = until_ms

    def _end_broker(self) -> None:
        if not self.broker_end_closed:
            self.broker_end_closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)
            assert self._client is not None
            self._client.broker_lost_us()

    def drop_broker(self) -> None:
        """The broker's process is gone. Its end is told only so that its timers stop."""
        if not self.broker_end_closed:
            self.broker_end_closed = True
            self._protocol.connection_lost(None)
            assert self._client is not None
            self._client.broker_lost_us()
        self._end_client()

    def _end_client(self) -> None:
        if not self.client_end_closed:
            self.client_end_closed = True
            assert self._client is not None
            self._client.lost()
