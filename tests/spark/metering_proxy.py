"""A proxy that counts operations by what is on the wire, to hold the broker's figures against.

It stands between clients and one broker, passes every byte on, and reads the frames that go
by in both directions. It knows AMQP and nothing of this broker: a send counts when the broker
accepted it, a delivery when its last frame came, a settlement when the client said it, and an
empty receive when credit was granted and no delivery followed until the next grant or until
the client ended the link (C1).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.pairing.background import BackgroundLoop
from twinbus.amqp import codec
from twinbus.amqp.types import Described

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
PROPERTIES, APPLICATION_PROPERTIES, DATA = 0x73, 0x74, 0x75
ACCEPTED, RECEIVED = 0x24, 0x23
BATCH = 0x80013700
PING = "application/vnd.ms-servicebus-ping"
_CONTENT_TYPE = 6
# What clients say is held back for a moment: deliveries that the broker had sent before it
# heard that come by first, and are counted in the order in which the broker saw things.
_HOLD_S = 0.02
_OPERATIONS = {
    "com.microsoft:peek-message": "peeked",
    "com.microsoft:renew-lock": "lock_renewed",
    "com.microsoft:renew-session-lock": "lock_renewed",
}


@dataclass
class Link:
    """One link, from the client's attach on."""

    entity: str
    client_sends: bool
    waiting: bool = False
    payload: bytes = b""
    #: Of the delivery whose frames are coming.
    head: tuple[int, int, bool] = (0, 0, False)

    @property
    def receives_messages(self) -> bool:
        """Not the answers of `$cbs` and of `$management`."""
        return not self.client_sends and "$" not in self.entity.rpartition("/")[2]


class Meter:
    """The counts, and what is under way; shared by all connections of a proxy."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.sends_in_flight = 0
        self.guard = threading.Lock()

    def add(self, entity: str, kind: str, number: int = 1) -> None:
        self.counts[entity, kind] += number


class Wire:
    """One connection: two streams of frames that explain each other."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._bytes = {True: bytearray(), False: bytearray()}
        self._links: dict[tuple[bool, str], Link] = {}
        self._by_handle: dict[tuple[bool, int, int], Link] = {}
        #: What the client sent and the broker has not judged, by delivery: entity and counts.
        self._sent: dict[int, tuple[str, Counter[str]]] = {}
        self._delivered: dict[int, str] = {}

    def feed(self, from_client: bool, data: bytes) -> None:
        pending = self._bytes[from_client]
        pending += data
        while len(pending) >= 8:
            if pending[:4] == b"AMQP":
                del pending[:8]
                continue
            size = int.from_bytes(pending[:4], "big")
            if len(pending) < size:
                return
            frame = bytes(pending[:size])
            del pending[:size]
            body = frame[4 * frame[4] :]
            if frame[5] == 0 and body:
                with self._meter.guard:
                    self._frame(from_client, int.from_bytes(frame[6:8], "big"), body)

    def ended_by_client(self) -> None:
        """The client closed the connection: its links end with it."""
        with self._meter.guard:
            for link in self._links.values():
                self._end(link)
            self._forget()

    def lost(self) -> None:
        """The broker is gone: what it had not answered was not counted by it either."""
        with self._meter.guard:
            self._forget()

    def _forget(self) -> None:
        self._meter.sends_in_flight -= len(self._sent)
        self._sent.clear()
        self._links.clear()

    def _frame(self, from_client: bool, channel: int, body: bytes) -> None:
        performative, end = codec.decode(body)
        assert isinstance(performative, Described)
        fields: list[Any] = list(performative.value) + [None] * 14  # type: ignore[call-overload]
        code = performative.descriptor
        if code == ATTACH:
            self._attach(from_client, channel, fields)
        elif code == TRANSFER:
            link = self._by_handle.get((from_client, channel, fields[0]))
            if link is not None:
                self._transfer(from_client, link, fields, body[end:])
        elif code == DISPOSITION:
            self._disposition(from_client, fields)
        elif code == FLOW and from_client and fields[4] is not None:
            link = self._by_handle.get((True, channel, fields[4]))
            if link is not None and link.receives_messages and (fields[6] or 0) > 0:
                self._end(link)
                link.waiting = True
        elif code == DETACH and from_client:
            link = self._by_handle.get((True, channel, fields[0]))
            if link is not None:
                self._end(link)

    def _attach(self, from_client: bool, channel: int, fields: list[Any]) -> None:
        # Each end names its own role; together they are one link.
        client_sends = bool(fields[2]) is not from_client
        key = (client_sends, str(fields[0]))
        if from_client:
            terminus = fields[6] if client_sends else fields[5]
            address = str(terminus.value[0] or "") if terminus is not None else ""
            # Some clients give the whole address and some the path.
            path = address.partition("://")[2].partition("/")[2] if "://" in address else address
            self._links[key] = Link(path, client_sends)
        if key in self._links:
            self._by_handle[from_client, channel, fields[1]] = self._links[key]

    def _transfer(self, from_client: bool, link: Link, fields: list[Any], payload: bytes) -> None:
        if fields[1] is not None:
            link.head = (fields[1], fields[3] or 0, bool(fields[4]))
            link.payload = b""
        link.payload += payload
        if fields[5]:
            return
        delivery_id, message_format, settled = link.head
        if link.entity.endswith("$cbs"):
            return
        if from_client:
            counts = _operations(link, message_format)
            self._sent[delivery_id] = (link.entity.removesuffix("/$management"), counts)
            self._meter.sends_in_flight += 1
        elif link.receives_messages:
            link.waiting = False
            self._meter.add(link.entity, "delivered")
            if not settled:
                self._delivered[delivery_id] = link.entity

    def _disposition(self, from_client: bool, fields: list[Any]) -> None:
        if not fields[0]:
            return
        first, last = fields[1], fields[1] if fields[2] is None else fields[2]
        outcome = fields[4].descriptor if isinstance(fields[4], Described) else None
        for delivery_id in range(first, last + 1):
            if from_client:
                entity = self._delivered.get(delivery_id)
                if entity is not None and outcome not in (None, RECEIVED):
                    del self._delivered[delivery_id]
                    self._meter.add(entity, "settled")
                continue
            sent = self._sent.pop(delivery_id, None)
            if sent is not None:
                self._meter.sends_in_flight -= 1
                if outcome == ACCEPTED:
                    for kind, number in sent[1].items():
                        self._meter.add(sent[0], kind, number)

    def _end(self, link: Link) -> None:
        """The grant before is over: nothing came of it, if the link still waits."""
        if link.waiting:
            link.waiting = False
            self._meter.add(link.entity, "received_nothing")


def _operations(link: Link, message_format: int) -> Counter[str]:
    """What one transfer of a client is: a request, a ping, or so many messages."""
    sections = _sections(link.payload)
    if link.entity.endswith("/$management"):
        properties: Any = dict(sections)[APPLICATION_PROPERTIES]
        return Counter({_OPERATIONS.get(str(properties["operation"]), "managed"): 1})
    if message_format == BATCH:
        inner = [value for code, value in sections if code == DATA]
        return Counter(_kind(_sections(message)) for message in inner)
    return Counter({_kind(sections): 1})


def _kind(sections: list[tuple[int, Any]]) -> str:
    properties = next((value for code, value in sections if code == PROPERTIES), [])
    content_type = properties[_CONTENT_TYPE] if len(properties) > _CONTENT_TYPE else None
    return "pinged" if content_type == PING else "sent"


def _sections(payload: bytes) -> list[tuple[int, Any]]:
    found, position = [], 0
    while position < len(payload):
        section, position = codec.decode(payload, position)
        assert isinstance(section, Described)
        found.append((int(section.descriptor), section.value))  # type: ignore[call-overload]
    return found


class MeteringProxy:
    """`target_port` on this machine, seen through `port`, and metered."""

    def __init__(self, target_port: int) -> None:
        self.meter = Meter()
        self._target_port = target_port
        self._loop = BackgroundLoop()
        self._loop.call(self._listen())

    def counts(self) -> dict[tuple[str, str], int]:
        """(entity, kind) to operations."""
        with self.meter.guard:
            return {key: number for key, number in self.meter.counts.items() if number}

    def close(self) -> None:
        self._loop.call(self._stop_listening())
        self._loop.stop()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(self.meter)
        try:
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        there = asyncio.create_task(self._copy(reader, upstream, wire, True))
        back = asyncio.create_task(self._copy(answers, writer, wire, False))
        await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        # Who ended it? A broker that was killed ends every connection from its side.
        if there.done():
            wire.ended_by_client()
        else:
            wire.lost()
        for task in (there, back):
            task.cancel()
        await asyncio.gather(there, back, return_exceptions=True)
        for each in (writer, upstream):
            each.transport.abort()

    async def _copy(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        wire: Wire,
        from_client: bool,
    ) -> None:
        try:
            while data := await reader.read(65536):
                if from_client:
                    await asyncio.sleep(_HOLD_S)
                wire.feed(from_client, data)
                writer.write(data)
                await writer.drain()
        except OSError:
            return
