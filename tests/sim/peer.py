"""An AMQP client without sockets: links, sends, deliveries and settlements, to be awaited.

It writes frames from plain values and reads them the same way. Everything the broker says to
it goes to the auditor at the moment it is said; the client itself learns of it later, or
never. A connection that ends raises `Broken` in everything that waits on it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.sim.auditor import Auditor, Delivery, Send, code_of, fields_of
from tests.sim.network import Wire
from tests.sim.node import KEY, POLICY
from tests.unit.amqp.amqp_client import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    FLOW,
    OPEN,
    TRANSFER,
    Frame,
    attach_fields,
    performative,
    source,
    target,
)
from twinbus.amqp.codec import decode, encode
from twinbus.amqp.framing import AMQP_HEADER, SASL_HEADER, sasl_frame
from twinbus.amqp.types import Described, Symbol, UInt, ULong

ACCEPTED, REJECTED, RELEASED, MODIFIED = 0x24, 0x25, 0x26, 0x27
DECLARE, DISCHARGE, DECLARED, TRANSACTIONAL, COORDINATOR = 0x31, 0x32, 0x33, 0x34, 0x30
BATCH_FORMAT = 0x80013700
WINDOW = 1 << 30
SESSION_FILTER = Symbol("com.microsoft:session-filter")
_TIMEOUT_PROPERTY = Symbol("com.microsoft:timeout")


class Broken(Exception):
    """The connection or the link is gone."""


class Refused(Exception):
    """The broker said no, with a condition."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition


def state(code: int, *fields: object) -> Described:
    return Described(ULong(code), list(fields))


@dataclass(eq=False)
class SimLink:
    peer: Peer
    name: str
    handle: int
    address: str
    session: str | None = None
    is_open: bool = False
    error: Exception | None = None
    credit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    granted: int = 0
    sent: int = 0
    received: int = 0
    inbox: deque[Delivery] = field(default_factory=deque)
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    #: On this link come the answers of a management node.
    carries_answers: bool = False

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class Peer:
    """One connection."""

    def __init__(self, wire: Wire, auditor: Auditor, node: str) -> None:
        self._wire = wire
        self._auditor = auditor
        self.node = node
        self.error: Exception | None = None
        self._links: dict[str, SimLink] = {}
        self._remote: dict[int, SimLink] = {}
        self._next_delivery = 0
        self._sends: dict[int, list[Send]] = {}
        self._deliveries: dict[int, Delivery] = {}
        self._waiting: dict[tuple[bool, int], asyncio.Future[Described]] = {}
        self._opened: dict[str, asyncio.Future[None]] = {}
        #: Renewals under way: the lock of each, and who waits for the answer.
        self._renewals: dict[str, tuple[Delivery, asyncio.Future[int]]] = {}
        wire.join(self)
        plain = state(0x41, Symbol("PLAIN"), f"\0{POLICY}\0{KEY}".encode())
        self._wire.send(
            SASL_HEADER
            + sasl_frame(encode(plain))
            + AMQP_HEADER
            + performative(OPEN, [wire.name, node, UInt(65536)])
            + performative(BEGIN, [None, UInt(0), UInt(WINDOW), UInt(WINDOW)])
        )

    # --- links ------------------------------------------------------------------------

    async def sender(self, address: str) -> SimLink:
        return await self._attach(address, receiver=False, target=target(address))

    async def coordinator(self) -> SimLink:
        return await self._attach("coordinator", receiver=False, target=state(COORDINATOR, None))

    async def receiver(self, address: str, *, deletes: bool = False) -> SimLink:
        mode = 1 if deletes else 0
        return await self._attach(
            address, receiver=True, source=source(address), snd=mode, rcv=1 - mode
        )

    async def session_receiver(self, address: str, wait_ms: int) -> SimLink:
        """Accept the next session that is free."""
        wanted = source(address, None, None, None, None, None, None, {SESSION_FILTER: None})
        properties = {_TIMEOUT_PROPERTY: UInt(wait_ms)}
        return await self._attach(
            address, receiver=True, source=wanted, rcv=1, properties=properties
        )

    async def _attach(
        self, address: str, name: str = "", *, receiver: bool, **more: Any
    ) -> SimLink:
        self._check()
        handle = len(self._links)
        link = SimLink(self, f"{address}#{name or handle}", handle, address)
        link.carries_answers = name == "answers"
        self._links[link.name] = link
        opened = self._opened[link.name] = asyncio.get_running_loop().create_future()
        self._write(ATTACH, attach_fields(handle, receiver, link.name, **more))
        await opened
        link.check()
        return link

    def detach(self, link: SimLink) -> None:
        link.error = Broken("detached")
        self._auditor.leaving(self._wire, link.name)
        self._write(DETACH, [UInt(link.handle), True])

    def close(self) -> None:
        """Say goodbye and go; answers under way are not heard."""
        self._write(CLOSE, [])
        self._wire.close_client_end()

    # --- sending ----------------------------------------------------------------------

    async def send(self, link: SimLink, payload: bytes, sends: list[Send]) -> None:
        """Send one message, or several as a batch; return when the broker has accepted."""
        answer = await self._transfer(link, payload, sends, None)
        if answer.descriptor != ACCEPTED:
            raise _refusal(answer)

    async def send_in(
        self, txn_id: bytes, link: SimLink, payload: bytes, sends: list[Send]
    ) -> None:
        answer = await self._transfer(link, payload, sends, state(TRANSACTIONAL, txn_id))
        if answer.descriptor != TRANSACTIONAL:
            raise _refusal(answer)

    async def declare(self, link: SimLink) -> bytes:
        answer = await self._transfer(link, _value(state(DECLARE, None)), [], None)
        if answer.descriptor != DECLARED:
            raise _refusal(answer)
        return bytes(fields_of(answer)[0])

    async def discharge(self, link: SimLink, txn_id: bytes, fail: bool, txn: Send) -> None:
        """End a transaction; the auditor hears of its answer as of that of a send."""
        answer = await self._transfer(link, _value(state(DISCHARGE, txn_id, fail)), [txn], None)
        if answer.descriptor != ACCEPTED:
            raise _refusal(answer)

    async def _transfer(
        self, link: SimLink, payload: bytes, sends: list[Send], wrapped: Described | None
    ) -> Described:
        link.check()
        await link.credit.acquire()
        link.check()
        number = self._next_delivery
        self._next_delivery += 1
        link.sent += 1
        if wrapped is None:
            self._sends[number] = sends
        kind = BATCH_FORMAT if len(sends) > 1 else 0
        answer = self._expect(True, number)
        fields = [UInt(link.handle), UInt(number), number.to_bytes(4, "big"), UInt(kind)]
        self._write(TRANSFER, [*fields, False, False, None, wrapped], payload)
        return await answer

    # --- receiving --------------------------------------------------------------------

    def grant(self, link: SimLink, credit: int) -> None:
        if link.error is None:
            link.granted += credit
            fields = [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW), UInt(link.handle)]
            left = link.granted - link.received
            self._write(FLOW, [*fields, UInt(link.received), UInt(left)])

    async def next(self, link: SimLink, wait_s: float) -> Delivery | None:
        """The next delivery, or None when none came in time."""
        try:
            async with asyncio.timeout(wait_s):
                while not link.inbox:
                    link.check()
                    link.bell.clear()
                    await link.bell.wait()
        except TimeoutError:
            return None
        return link.inbox.popleft()

    async def settle(
        self, delivery: Delivery, outcome: Described, *, arrive_ms: int = 0, wait_s: float = 30
    ) -> None:
        """Settle; return when the broker agreed. A time-out leaves it open what became of it."""
        self._check()
        self._auditor.settling(delivery, outcome)
        answer = self._expect(False, delivery.number)
        fields = [True, UInt(delivery.number), None, False, outcome]
        self._wire.send(
            performative(DISPOSITION, fields),
            lambda: self._auditor.settling_reached(delivery),
            arrive_ms,
        )
        async with asyncio.timeout(wait_s):
            said = await answer
        if said.descriptor != outcome.descriptor or _condition(said):
            raise _refusal(said)

    async def renew(self, delivery: Delivery) -> None:
        """Prolong a lock through the management node of its entity (R6)."""
        node = f"{delivery.stream}/$management"
        answers = self._links.get(f"{node}#answers")
        if answers is None:
            answers = await self._attach(node, "answers", receiver=True, source=source(node))
            self.grant(answers, 1000)
        requests = self._links.get(f"{node}#requests")
        if requests is None:
            requests = await self._attach(node, "requests", receiver=False, target=target(node))
        name = f"renew-{self._next_delivery}"
        answer: asyncio.Future[int] = _future()
        self._renewals[name] = delivery, answer
        properties = state(0x73, name, None, None, None, answers.name)
        headers = Described(ULong(0x74), {"operation": "com.microsoft:renew-lock"})
        body = Described(ULong(0x77), {"lock-tokens": [delivery.token]})
        payload = encode(properties) + encode(headers) + encode(body)
        await self._transfer(requests, payload, [], None)
        status = await answer
        if status != 200:
            raise Refused(str(status))

    # --- what the broker says ---------------------------------------------------------

    def overheard(self, frame: Frame) -> None:
        if frame.code == ATTACH:
            link = self._links[frame[0]]
            self._remote[frame[1]] = link
            if frame[2] is False and frame[5] is not None:
                given = (frame[5].value + [None] * 8)[7] or {}
                link.session = given.get(SESSION_FILTER)
        elif frame.code == TRANSFER:
            link = self._remote[frame[0]]
            if link.carries_answers:
                self._overhear_answer(frame.payload)
                return
            delivery = _read_delivery(frame, self._wire, self.node, link)
            self._deliveries[delivery.number] = delivery
            self._auditor.delivered(delivery)
        elif frame.code == DISPOSITION:
            for number in _numbers(frame):
                if frame[0]:
                    for send in self._sends.pop(number, ()):
                        self._auditor.answered(send, frame[4].descriptor, _condition(frame[4]))
                elif (settled := self._deliveries.get(number)) is not None:
                    self._auditor.settled(settled, frame[4].descriptor, _condition(frame[4]))
        elif frame.code == DETACH:
            link = self._remote[frame[0]]
            self._auditor.leaving(self._wire, link.name)

    def _overhear_answer(self, payload: bytes) -> None:
        sections = _sections(payload)
        delivery, _ = self._renewals[sections[0x73][5]]
        if sections[0x74]["statusCode"] == 200:
            self._auditor.renewed(delivery, int(sections[0x77]["expirations"][0]))

    def arrived(self, frame: Frame) -> None:
        if frame.code == ATTACH:
            link = self._links[frame[0]]
            # A refusal comes as an attach without the terminus, and a detach after it.
            if frame[5 if frame[2] is False else 6] is not None:
                link.is_open = True
                self._resolve_open(link)
        elif frame.code == FLOW and frame[4] is not None:
            link = self._remote[frame[4]]
            allowed = (frame[5] or 0) + (frame[6] or 0)
            for _ in range(allowed - link.granted):
                link.credit.release()
            link.granted = max(link.granted, allowed)
        elif frame.code == TRANSFER:
            link = self._remote[frame[0]]
            link.received += 1
            if link.carries_answers:
                sections = _sections(frame.payload)
                _, answer = self._renewals[sections[0x73][5]]
                if not answer.done():
                    answer.set_result(int(sections[0x74]["statusCode"]))
                return
            link.inbox.append(self._deliveries[frame[1]])
            link.bell.set()
        elif frame.code == DISPOSITION:
            for number in _numbers(frame):
                waiting = self._waiting.pop((bool(frame[0]), number), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(frame[4])
        elif frame.code == DETACH:
            said = _condition(Described(ULong(REJECTED), [frame[2]])) or "detached"
            self._fail_link(self._remote[frame[0]], Refused(said))

    def broker_lost_us(self) -> None:
        self._auditor.connection_lost(self._wire)

    def lost(self) -> None:
        self.error = Broken(self._wire.name)
        for link in self._links.values():
            self._fail_link(link, self.error)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self.error)
        self._waiting.clear()
        for _, answer in self._renewals.values():
            if not answer.done():
                answer.set_exception(self.error)

    # --- inside -----------------------------------------------------------------------

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def _write(self, code: int, fields: list[Any], payload: bytes = b"") -> None:
        self._wire.send(performative(code, fields, payload=payload))

    def _expect(self, is_send: bool, number: int) -> asyncio.Future[Described]:
        self._check()
        waiting: asyncio.Future[Described] = _future()
        self._waiting[is_send, number] = waiting
        return waiting

    def _resolve_open(self, link: SimLink) -> None:
        opened = self._opened.pop(link.name, None)
        if opened is not None and not opened.done():
            opened.set_result(None)

    def _fail_link(self, link: SimLink, error: Exception) -> None:
        if link.error is None:
            link.error = error
        self._resolve_open(link)
        link.bell.set()
        for _ in range(64):
            link.credit.release()


def _future() -> asyncio.Future[Any]:
    made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    # Who waited may have given up; that is no error of the loop's.
    made.add_done_callback(lambda done: done.cancelled() or done.exception())
    return made


def _numbers(frame: Frame) -> range:
    first = int(frame[1])
    return range(first, (first if frame[2] is None else int(frame[2])) + 1)


def _value(body: Described) -> bytes:
    return encode(Described(ULong(0x77), body))


def _condition(said: Described) -> str:
    """The error condition in a state, or nothing."""
    if said.descriptor != REJECTED or not said.value or fields_of(said)[0] is None:
        return ""
    return str(fields_of(fields_of(said)[0])[0])


def _refusal(said: Described) -> Exception:
    return Refused(_condition(said) or f"0x{code_of(said):02x}")


def _sections(payload: bytes) -> dict[int, Any]:
    sections: dict[int, Any] = {}
    at = 0
    while at < len(payload):
        section, at = decode(payload, at)
        assert isinstance(section, Described)
        sections[code_of(section)] = section.value
    return sections


def _read_delivery(frame: Frame, wire: Wire, node: str, link: SimLink) -> Delivery:
    sections = _sections(frame.payload)
    annotations = {str(key): value for key, value in sections.get(0x72, {}).items()}
    header = [*sections.get(0x70, []), *[None] * 5]
    properties = [*sections[0x73], *[None] * 11]
    ttl_ms = int(header[2] or 0)
    tag = bytes(frame[2] or bytes(16))
    return Delivery(
        wire=wire,
        link=link.name,
        number=int(frame[1]),
        node=node,
        stream=link.address,
        seq=int(annotations["x-opt-sequence-number"]),
        mid=str(properties[0]),
        session=properties[10],
        count=int(header[4] or 0),
        until_ms=int(annotations.get("x-opt-locked-until", 0)),
        expires_ms=int(annotations["x-opt-enqueued-time"]) + ttl_ms if ttl_ms else 0,
        is_settled=bool(frame[4]),
        payload=frame.payload,
        token=UUID(bytes_le=tag),
    )
