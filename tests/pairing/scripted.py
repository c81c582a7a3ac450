"""A namespace that answers as told: for refusals that a healthy broker never gives.

It speaks AMQP through the project's own engine on a real socket, takes tokens and sends, and
asks the test what to answer. It stores nothing and delivers nothing.
"""

import asyncio
import time
from collections.abc import Callable

from tests.pairing.background import BackgroundLoop
from twinbus.amqp import codec
from twinbus.amqp.connection import Connection
from twinbus.amqp.handler import Handler
from twinbus.amqp.link import Link
from twinbus.amqp.outcomes import ACCEPTED, rejected
from twinbus.amqp.properties import decode_properties
from twinbus.amqp.sections import locate
from twinbus.amqp.types import Int
from twinbus.core.names import strip_authority

#: Takes the entity and the number of its sends so far; gives a condition, or None to accept.
Answer = Callable[[str, int], str | None]


class ScriptedNamespace:
    def __init__(self) -> None:
        self.answer: Answer = lambda entity, number: None
        self.token_status = 200
        #: Every payload that was accepted, and every one that was offered.
        self.accepted: list[tuple[str, bytes]] = []
        self.offered: list[tuple[str, bytes]] = []
        #: Every entity that a receiver asked for messages, once for each time it asked.
        self.polled: list[str] = []
        self._loop = BackgroundLoop()
        self._server: asyncio.Server = self._loop.call(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName=any;SharedAccessKey=any;"
            "UseDevelopmentEmulator=true"
        )

    def close(self) -> None:
        self._server.close()
        self._loop.stop()

    def __enter__(self) -> "ScriptedNamespace":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(lambda: _Wire(self), "127.0.0.1", 0)


class _Wire(asyncio.Protocol):
    """The socket's side of one connection."""

    def __init__(self, namespace: ScriptedNamespace) -> None:
        self._connection = Connection(_Peer(namespace), "scripted", _now_ms())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._connection.receive(data, _now_ms())
        self._transport.write(self._connection.take_output())
        if self._connection.finished:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.abort()


class _Peer(Handler):
    """The protocol's side of one connection."""

    def __init__(self, namespace: ScriptedNamespace) -> None:
        self._namespace = namespace
        self._answers: Link | None = None

    def on_attach(self, link: Link) -> None:
        link.accept(max_message_size=262_144)
        if not link.is_sender:
            link.grant(100)
        elif link.source.address == "$cbs":
            self._answers = link

    def on_flow(self, link: Link) -> None:
        entity = strip_authority(link.source.address or "").casefold()
        if link.credit > 0 and not entity.startswith("$"):
            self._namespace.polled.append(entity)

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
        entity = strip_authority(link.target.address or "").casefold()
        if entity == "$cbs":
            link.session.settle_incoming(delivery_id, delivery_id, ACCEPTED)
            self._answer_token(payload)
            return
        number = sum(1 for known, _ in self._namespace.offered if known == entity)
        self._namespace.offered.append((entity, payload))
        condition = self._namespace.answer(entity, number)
        if condition is None:
            self._namespace.accepted.append((entity, payload))
            link.session.settle_incoming(delivery_id, delivery_id, ACCEPTED)
        else:
            state = rejected(condition, f"{condition}, as told")
            link.session.settle_incoming(delivery_id, delivery_id, state)

    def on_too_large(
        self, link: Link, delivery_id: int, settled: bool, size: int, txn_id: bytes | None
    ) -> None:
        state = rejected("amqp:link:message-size-exceeded", f"{size} bytes are too many")
        link.session.settle_incoming(delivery_id, delivery_id, state)

    def _answer_token(self, request: bytes) -> None:
        assert self._answers is not None
        properties = decode_properties(request, locate(request).properties_at)
        # Properties with the request's id as correlation id, and the status.
        fields = codec.encode_list([codec.NULL] * 5 + [codec.encode(properties.message_id)])
        status = codec.encode(
            {"status-code": Int(self._namespace.token_status), "status-description": "as told"}
        )
        head = b"\x00\x53\x73" + fields + b"\x00\x53\x74" + status
        self._answers.deliver(b"t", 0, True, head, b"\x00\x53\x77\x40", None)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
