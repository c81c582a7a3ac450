"""A small AMQP client without I/O, and a handler that writes down its calls.

Two ends in memory: bytes that one writes are handed to the other. The client builds its
frames from plain values with the codec and reads the server's the same way, so it shares
no state machine with what it tests.
"""

from __future__ import annotations

from typing import Any

from twinbus.amqp.codec import decode, encode
from twinbus.amqp.connection import Connection
from twinbus.amqp.framing import AMQP_HEADER, SASL_HEADER, frame, sasl_frame
from twinbus.amqp.handler import Handler
from twinbus.amqp.link import Link
from twinbus.amqp.outcomes import Outcome
from twinbus.amqp.session import AmqpSession
from twinbus.amqp.types import Described, Symbol, UByte, UInt, ULong

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)


class Frame:
    """One frame as the client read it."""

    def __init__(self, channel: int, code: int, fields: list[Any], payload: bytes) -> None:
        self.channel = channel
        self.code = code
        self.fields = fields
        self.payload = payload

    def __getitem__(self, index: int) -> Any:
        return self.fields[index] if index < len(self.fields) else None

    def __repr__(self) -> str:
        return f"Frame({self.channel}, 0x{self.code:02x}, {self.fields}, {self.payload!r})"


class Recorder(Handler):
    """Accepts every link and keeps every call as a tuple, in order."""

    def __init__(self, *, answer_attach: bool = True, credit: int = 100) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.links: list[Link] = []
        self.passwords: dict[str, str] = {}
        self.answer_attach = answer_attach
        self.credit = credit

    def on_sasl_plain(self, user: str, password: str) -> bool:
        self.calls.append(("sasl_plain", user, password))
        return self.passwords.get(user) == password

    def on_open(self, connection: Connection) -> None:
        self.calls.append(("open", connection.remote_container_id, connection.hostname))

    def on_attach(self, link: Link) -> None:
        self.links.append(link)
        self.calls.append(("attach", link.name, link.handle, link.is_sender))
        if self.answer_attach:
            link.accept()
            if not link.is_sender:
                link.grant(self.credit)

    def on_transfer(
        self,
        link: Link,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
        txn_id: bytes | None,
    ) -> None:
        self.calls.append(
            ("transfer", link.handle, delivery_id, tag, message_format, settled, payload, txn_id)
        )

    def on_too_large(
        self, link: Link, delivery_id: int, settled: bool, size: int, txn_id: bytes | None
    ) -> None:
        self.calls.append(("too_large", link.handle, delivery_id, settled, size))

    def on_outcome(
        self, context: object, delivery_id: int, settled: bool, outcome: Outcome
    ) -> None:
        self.calls.append(("outcome", context, delivery_id, settled, outcome))

    def on_outcomes_end(self, session: AmqpSession) -> None:
        self.calls.append(("outcomes_end", session.channel))

    def on_flow(self, link: Link) -> None:
        self.calls.append(("flow", link.handle, link.credit, link.drain))

    def on_detach(self, link: Link, closed: bool) -> None:
        self.calls.append(("detach", link.handle, closed))

    def on_close(self, connection: Connection) -> None:
        self.calls.append(("close",))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == kind]


class Peer:
    """The client end, joined to a server `Connection`."""

    def __init__(self, handler: Handler | None = None, **options: int) -> None:
        self.handler = handler if handler is not None else Recorder()
        self.now_ms = 1_000_000
        self.server = Connection(self.handler, "twinbus", self.now_ms, **options)
        self.heard: list[Frame] = []
        self.headers: list[bytes] = []
        self.sasl: list[Frame] = []

    @property
    def recorder(self) -> Recorder:
        assert isinstance(self.handler, Recorder)
        return self.handler

    # Bytes both ways

    def write(self, data: bytes) -> list[Frame]:
        self.server.receive(data, self.now_ms)
        return self.read()

    def read(self) -> list[Frame]:
        """Take what the server wrote and give its AMQP frames."""
        data = self.server.take_output()
        fresh: list[Frame] = []
        pos = 0
        while pos < len(data):
            if data[pos : pos + 4] == b"AMQP":
                self.headers.append(data[pos : pos + 8])
                pos += 8
                continue
            size = int.from_bytes(data[pos : pos + 4], "big")
            kind, channel = data[pos + 5], int.from_bytes(data[pos + 6 : pos + 8], "big")
            body = data[pos + 8 : pos + size]
            pos += size
            if not body:
                fresh.append(Frame(channel, 0, [], b""))
                continue
            value, end = decode(body)
            assert isinstance(value, Described)
            assert isinstance(value.descriptor, ULong)
            assert isinstance(value.value, list)
            read = Frame(channel, int(value.descriptor), value.value, body[end:])
            (self.sasl if kind == 1 else fresh).append(read)
        self.heard += fresh
        return fresh

    def send(
        self, code: int, fields: list[Any], *, channel: int = 0, payload: bytes = b""
    ) -> list[Frame]:
        return self.write(performative(code, fields, channel=channel, payload=payload))

    # The usual steps

    def handshake(self, *, sasl: bool = False, channel: int = 0, window: int = 5000) -> Peer:
        if sasl:
            self.write(SASL_HEADER)
            self.write(sasl_frame(encode(Described(ULong(0x41), [Symbol("ANONYMOUS")]))))
        self.write(AMQP_HEADER)
        self.send(OPEN, ["client", "host"])
        self.begin(channel, window=window)
        return self

    def begin(self, channel: int = 0, *, window: int = 5000) -> list[Frame]:
        return self.send(BEGIN, [None, UInt(0), UInt(window), UInt(5000)], channel=channel)

    def attach(
        self, handle: int, *, receiver: bool, name: str = "link", channel: int = 0, **more: Any
    ) -> list[Frame]:
        return self.send(ATTACH, attach_fields(handle, receiver, name, **more), channel=channel)

    def flow(
        self,
        handle: int,
        credit: int,
        *,
        seen: int = 0,
        count: int = 0,
        window: int = 5000,
        drain: bool = False,
        echo: bool = False,
        channel: int = 0,
    ) -> list[Frame]:
        fields = [UInt(seen), UInt(window), UInt(0), UInt(5000), UInt(handle)]
        fields += [UInt(count), UInt(credit), None, drain, echo]
        return self.send(FLOW, fields, channel=channel)

    def transfer(
        self,
        handle: int,
        delivery_id: int,
        payload: bytes,
        *,
        tag: bytes = b"tag",
        settled: bool = False,
        more: bool = False,
        state: object = None,
        aborted: bool = False,
        channel: int = 0,
        message_format: int = 0,
    ) -> list[Frame]:
        fields = [UInt(handle), UInt(delivery_id), tag, UInt(message_format), settled, more]
        fields += [None, state, None, aborted]
        return self.send(TRANSFER, fields, channel=channel, payload=payload)

    def disposition(
        self, first: int, last: int | None, *, settled: bool, state: object, channel: int = 0
    ) -> list[Frame]:
        fields = [True, UInt(first), None if last is None else UInt(last), settled, state]
        return self.send(DISPOSITION, fields, channel=channel)


def performative(code: int, fields: list[Any], *, channel: int = 0, payload: bytes = b"") -> bytes:
    return frame(channel, encode(Described(ULong(code), fields)) + payload)


def source(address: str | None, *more: Any) -> Described:
    return Described(ULong(0x28), [address, *more])


def target(address: str | None, *more: Any) -> Described:
    return Described(ULong(0x29), [address, *more])


def attach_fields(
    handle: int,
    receiver: bool,
    name: str,
    *,
    source: object = None,
    target: object = None,
    properties: dict[Any, Any] | None = None,
    snd: int = 0,
    rcv: int = 0,
) -> list[Any]:
    return [
        name,
        UInt(handle),
        receiver,
        UByte(snd),
        UByte(rcv),
        source if source is not None else Described(ULong(0x28), ["q"]),
        target if target is not None else Described(ULong(0x29), ["q"]),
        None,
        None,
        None if receiver else UInt(0),
        ULong(0),
        None,
        None,
        properties,
    ]


def accepted() -> Described:
    return Described(ULong(0x24), [])
