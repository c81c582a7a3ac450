"""A handler that plays a very small broker and writes down what it is told.

The recorder runs it against real clients; the replay runs it against their recorded
bytes. It answers each call at once and the same way every time, so that a recording,
replayed, leads through the same calls.
"""

from __future__ import annotations

import uuid
from typing import Any

from twinbus.amqp.codec import decode, encode, encode_map
from twinbus.amqp.connection import Connection
from twinbus.amqp.errors import DECODE_ERROR, DecodeError
from twinbus.amqp.handler import Handler
from twinbus.amqp.link import Link
from twinbus.amqp.outcomes import (
    ACCEPTED,
    KIND_MODIFIED,
    REJECTED,
    RELEASED,
    Outcome,
    modified,
    rejected,
)
from twinbus.amqp.properties import Properties, decode_properties, encode_properties
from twinbus.amqp.sections import BATCH_FORMAT, Sections, locate, split_batch
from twinbus.amqp.session import AmqpSession
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, UInt

NOW_MS = 1_000_000

# What the node hands out, one after the other; the last takes proton several frames.
STOCK = [b"first", b"second", b"third", b"fourth", b"x" * 40_000]


def server_connection(handler: Handler) -> Connection:
    """Our end, with frames so small that a client's 10 KB need several."""
    return Connection(handler, "recorder", NOW_MS, max_frame_size=4096)


class Scribe(Handler):
    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.connection: Connection | None = None
        self._next = 0
        self._cbs: dict[int, Link] = {}

    def note(self, call: str, **what: Any) -> None:
        self.calls.append({"call": call, **what})

    def on_sasl_plain(self, user: str, password: str) -> bool:
        self.note("sasl_plain", user=user, password=password)
        return True

    def on_open(self, connection: Connection) -> None:
        self.connection = connection
        self.note(
            "open",
            container_id=connection.remote_container_id,
            hostname=connection.hostname,
            user=connection.user,
            properties=plain(connection.remote_properties),
        )

    def on_attach(self, link: Link) -> None:
        self.note(
            "attach",
            name=link.name,
            handle=link.handle,
            channel=link.session.channel,
            we_send=link.is_sender,
            source=link.source.address,
            target=link.target.address,
            filter=plain(link.source.filter),
            settle_modes=[link.snd_settle_mode, link.rcv_settle_mode],
            properties=plain(link.properties),
        )
        if link.is_sender:
            if link.source.address == "$cbs":
                self._cbs[link.session.channel] = link
            link.accept()
        else:
            link.accept(max_message_size=262_144)
            link.grant(100)

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
        batch = message_format == BATCH_FORMAT
        state = ACCEPTED
        try:
            messages = split_batch(payload) if batch else [payload]
            meanings = [meaning(message) for message in messages]
        except DecodeError as problem:
            meanings = []
            state = rejected(DECODE_ERROR, str(problem))
        self.note(
            "transfer",
            handle=link.handle,
            delivery_id=delivery_id,
            batch=batch,
            settled=settled,
            messages=meanings,
        )
        if not settled:
            link.session.settle_incoming(delivery_id, delivery_id, state)
        if link.target.address == "$cbs" and meanings:
            self._answer_token(link.session, payload)

    def _answer_token(self, session: AmqpSession, payload: bytes) -> None:
        answer = Properties()
        request = decode_properties(payload, locate(payload).properties_at)
        answer.correlation_id = request.message_id
        status = encode_map(
            [("status-code", encode(Int(202))), ("status-description", b"\xa1\x00")]
        )
        body = encode_properties(answer) + b"\x00\x53\x74" + status + b"\x00\x53\x77\x40"
        reply = self._cbs.get(session.channel)
        if reply is not None and reply.credit and session.can_send():
            reply.deliver(b"", 0, True, b"", body, None)

    def on_flow(self, link: Link) -> None:
        self.note("flow", handle=link.handle, credit=link.credit, drain=link.drain)
        if link.source.address == "$cbs":
            return
        settled = link.snd_settle_mode == 1
        while link.credit and link.session.can_send() and self._next < len(STOCK):
            self._next += 1
            token = uuid.UUID(int=self._next)
            head = stock_head(self._next)
            body = encode(STOCK[self._next - 1])
            tag = b"" if settled else token.bytes_le
            link.deliver(tag, 0, settled, head, b"\x00\x53\x75" + body, (link, self._next))
        if link.drain and self._next == len(STOCK):
            link.drained()

    def on_outcome(
        self, context: object, delivery_id: int, settled: bool, outcome: Outcome
    ) -> None:
        assert isinstance(context, tuple)
        link, number = context
        self.note(
            "outcome",
            message=number,
            delivery_id=delivery_id,
            settled=settled,
            kind=f"0x{outcome.kind:02x}",
            delivery_failed=outcome.delivery_failed,
            undeliverable_here=outcome.undeliverable_here,
            annotations=plain(outcome.annotations),
            condition=outcome.condition,
            description=outcome.description,
            info=plain(outcome.info),
        )
        if not settled:
            states = {0x25: REJECTED, 0x26: RELEASED}
            state = states.get(outcome.kind, ACCEPTED)
            if outcome.kind == KIND_MODIFIED:
                state = modified(outcome.delivery_failed, outcome.undeliverable_here)
            link.session.settle_outgoing(delivery_id, delivery_id, state)

    def on_detach(self, link: Link, closed: bool) -> None:
        unsettled = [context[1] for context in link.take_unsettled()]  # type: ignore[index]
        self.note("detach", handle=link.handle, closed=closed, unsettled=unsettled)

    def on_close(self, connection: Connection) -> None:
        self.note("close")


def stock_head(number: int) -> bytes:
    annotations = {
        Symbol("x-opt-sequence-number"): number,
        Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_000),
        Symbol("x-opt-locked-until"): Timestamp(4_000_000_000_000),
    }
    properties = Properties()
    properties.message_id = f"stock-{number}"
    return (
        b"\x00\x53\x70"
        + encode([None, None, None, None, UInt(0)])
        + b"\x00\x53\x71"
        + encode({Symbol("x-opt-lock-token"): uuid.UUID(int=number)})
        + b"\x00\x53\x72"
        + encode(annotations)
        + encode_properties(properties)
    )


def meaning(message: bytes) -> dict[str, Any]:
    """A message in plain words: what a client's user would say was sent."""
    found = locate(message)
    properties = decode_properties(message, found.properties_at)
    return {
        "message_id": plain(properties.message_id),
        "subject": properties.subject,
        "group_id": properties.group_id,
        "correlation_id": plain(properties.correlation_id),
        "application_properties": _map(message, found.application_properties_at),
        "message_annotations": _map(message, found.message_annotations_at),
        "delivery_annotations": _map(message, found.delivery_annotations_at),
        "body": _body(message, found),
    }


def _map(message: bytes, at: int) -> Any:
    if at < 0:
        return None
    pairs, _ = decode(message, at)
    return plain(pairs)


def _body(message: bytes, found: Sections) -> Any:
    """The value of the first body section; a long one is told by its length."""
    if found.body_start < 0:
        return None
    section, _ = decode(message, found.body_start)
    assert isinstance(section, Described)
    value = section.value
    if isinstance(value, (bytes, str)) and len(value) > 300:
        return f"{len(value)} long"
    return plain(value)


def plain(value: object) -> Any:
    """A value as JSON can hold it, with its AMQP type where JSON has none."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return {"binary": value.decode("latin-1")}
    if type(value) is str:
        return value
    return {type(value).__name__.lower(): str(value)}
