"""The SDK's face over simulated connections: as much of it as the pairing library touches.

Senders and receivers here have the names and the behaviour of `azure.servicebus.aio`, down to
the private ones that `twinbus.pairing.sdk` reads, and speak through a `Peer` of their own. So
the pairing library itself runs in the simulation, not a copy of its rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from tests.sim.auditor import Auditor
from tests.sim.facts import ACCEPTED, MODIFIED, REJECTED, Delivery, Send
from tests.sim.peer import Broken, Peer, Refused, SimLink, state
from twinbus.amqp.codec import decode
from twinbus.amqp.types import Symbol, ULong
from twinbus.pairing.rewrite import PING_CONTENT_TYPE

Connect = Callable[[], Peer]
_CONNECT_S = 5.0


class SimClient:
    """A `ServiceBusClient` for one namespace."""

    def __init__(self, connect: Connect, auditor: Auditor) -> None:
        self.connect = connect
        self.auditor = auditor

    def get_queue_sender(self, queue_name: str, **_: Any) -> SimSender:
        return SimSender(self, queue_name)

    def get_queue_receiver(self, queue_name: str, **_: Any) -> SimReceiver:
        return SimReceiver(self, queue_name)


class _Handler:
    """What senders and receivers share: a connection made when it is first needed."""

    def __init__(self, client: SimClient, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._peer: Peer | None = None
        self._shutdown = asyncio.Event()

    async def _attach(self, *, receiver: bool) -> tuple[Peer, SimLink]:
        peer = self._peer = self._client.connect()
        async with asyncio.timeout(_CONNECT_S):
            make = peer.receiver if receiver else peer.sender
            return peer, await make(self._queue)

    async def close(self) -> None:
        self._shutdown.set()
        if self._peer is not None and self._peer.error is None:
            self._peer.close()


class SimSender(_Handler):
    def __init__(self, client: SimClient, queue: str) -> None:
        super().__init__(client, queue)
        self._link: SimLink | None = None

    async def create_message_batch(self) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch()

    async def send_messages(self, message: Any, *, timeout: float) -> None:
        payload = _encoded(message)
        try:
            async with asyncio.timeout(timeout):
                if self._link is None or self._link.error is not None:
                    self._peer, self._link = await self._attach(receiver=False)
                assert self._peer is not None
                await self._peer.send(self._link, payload, [self._send(payload, self._peer)])
        except TimeoutError:
            raise OperationTimeoutError(message="timed out") from None
        except Refused as refusal:
            raise _error(refusal) from None
        except (Broken, OSError) as error:
            raise ServiceBusConnectionError(message=str(error)) from None

    def _send(self, payload: bytes, peer: Peer) -> Send:
        properties = _properties(payload)
        # The SDK gives a ping an id by chance, which would be the one thing not from the seed.
        is_ping = properties[6] == PING_CONTENT_TYPE
        mid = "ping" if is_ping else str(properties[0])
        auditor = self._client.auditor
        send = auditor.sends.get(f"{peer.node}/{mid}")
        if send is None:
            # To the backlog: there it has neither session nor times (P8).
            send = Send(mid, peer.node, self._queue, may_repeat=True, is_ping=is_ping)
            auditor.sending(send)
        return send


class _Link:
    """Where `sdk.PayloadTap` sits: what arrives passes through `_incoming_transfer`."""

    def __init__(self, peer: Peer, link: SimLink) -> None:
        self.peer = peer
        self.link = link

    def _incoming_transfer(self, frame: Any) -> None:
        pass

    async def flow(self, link_credit: int) -> None:
        # Credit is given for one call's messages, so none is left standing.
        assert link_credit == 0


class _PollHandler:
    def __init__(self, link: _Link) -> None:
        self._link = link
        self._shutdown = False


class SimReceived:
    """A received message: the pump reads no more of it, and forgets what it says."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._message: object = None
        self._raw_amqp_message = SimpleNamespace()
        self._delivery_tag = delivery.tag
        self.locked_until_utc = None


class SimReceiver(_Handler):
    def __init__(self, client: SimClient, queue: str) -> None:
        super().__init__(client, queue)
        self._handler: _PollHandler | None = None

    async def __aenter__(self) -> SimReceiver:
        try:
            peer, link = await self._attach(receiver=True)
        except (Broken, OSError, TimeoutError, Refused) as error:
            raise ServiceBusConnectionError(message=str(error)) from None
        self._handler = _PollHandler(_Link(peer, link))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def receive_messages(
        self, *, max_message_count: int, max_wait_time: float
    ) -> list[SimReceived]:
        assert self._handler is not None
        tap = self._handler._link
        peer, link = tap.peer, tap.link
        if link.granted - link.received < max_message_count:
            peer.grant(link, max_message_count - (link.granted - link.received))
        found: list[SimReceived] = []
        wait_s = max_wait_time
        try:
            while len(found) < max_message_count:
                delivery = await peer.next(link, wait_s)
                if delivery is None:
                    break
                frame = {1: delivery.number, 2: delivery.tag, 5: False, 11: delivery.payload}
                tap._incoming_transfer(frame)
                found.append(SimReceived(delivery))
                wait_s = 0.0 if not link.inbox else 1.0
        except (Broken, Refused) as error:
            raise ServiceBusConnectionError(message=str(error)) from None
        return found

    async def complete_message(self, message: SimReceived) -> None:
        await self._settle(message, ACCEPTED)

    async def abandon_message(self, message: SimReceived) -> None:
        await self._settle(message, MODIFIED, True, False)

    async def dead_letter_message(
        self, message: SimReceived, *, reason: str, error_description: str
    ) -> None:
        error = state(0x1D, Symbol("com.microsoft:dead-letter"), error_description)
        await self._settle(message, REJECTED, error)

    async def _settle(self, message: SimReceived, *outcome: Any) -> None:
        assert self._handler is not None
        try:
            await self._handler._link.peer.settle(message.delivery, state(*outcome))
        except TimeoutError:
            raise OperationTimeoutError(message="timed out") from None
        except Refused as refusal:
            raise _error(refusal) from None
        except Broken as error:
            raise ServiceBusConnectionError(message=str(error)) from None


def _error(refusal: Refused) -> ServiceBusError:
    kinds = {
        "com.microsoft:message-lock-lost": MessageLockLostError,
        "com.microsoft:server-busy": ServiceBusServerBusyError,
    }
    return kinds.get(refusal.condition, ServiceBusError)(message=refusal.condition)


def _encoded(message: Any) -> bytes:
    if isinstance(message, ServiceBusMessageBatch):
        # Of one message, encoded already (`sdk.fill_raw`). The envelope around it matters to
        # partitioned entities only; here there is none.
        (payload,) = cast(Any, message._message)[5]
        return bytes(payload)
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    return bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(raw)))


def _properties(payload: bytes) -> list[Any]:
    at = 0
    while at < len(payload):
        section, at = decode(payload, at)
        if section.descriptor == ULong(0x73):  # type: ignore[attr-defined]
            return [*section.value, *[None] * 11]  # type: ignore[attr-defined]
    raise ValueError("a message without properties")
