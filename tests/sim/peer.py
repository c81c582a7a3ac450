"""An AMQP client without sockets: links, sends, deliveries and settlements, to be awaited.

It writes frames from plain values and reads them the same way. Everything the broker says to
it goes to the auditor at the moment it is said; the client itself learns of it later, or
never. A connection that ends raises `Broken` in everything that waits on it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.sim.auditor import Auditor
from tests.sim.facts import ACCEPTED, REJECTED, TRANSACTIONAL, Delivery, Send, code_of, fields_of
from tests.sim.network import Frame, Wire
from tests.sim.node import KEY, POLICY
from tests.sim.reading import (
    Answer,
    Said,
    condition_of,
    numbers_of,
    read_answer,
    read_message,
    read_transfer,
)
from tests.unit.amqp.amqp_client import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    FLOW,
    OPEN,
    TRANSFER,
    attach_fields,
    performative,
    source,
    target,
)
from twinbus.amqp.codec import encode
from twinbus.amqp.framing import AMQP_HEADER, SASL_HEADER, sasl_frame
from twinbus.amqp.types import (
    ARRAY_OF_LONG,
    ARRAY_OF_UUID,
    AmqpArray,
    Described,
    Symbol,
    UInt,
    ULong,
)

DECLARE, DISCHARGE, DECLARED, COORDINATOR = 0x31, 0x32, 0x33, 0x30
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
    #: How many transfers have been allowed since the link began, and who waits for more.
    granted: int = 0
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    sent: int = 0
    received: int = 0
    inbox: deque[Delivery] = field(default_factory=deque)
    #: Somebody waits for what comes in.
    bell: asyncio.Future[None] | None = None
    #: On this link come the answers of a management node.
    carries_answers: bool = False

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def ring(self) -> None:
        """Let whoever waits for what comes in look again."""
        if self.bell is not None and not self.bell.done():
            self.bell.set_result(None)

    def wake(self) -> None:
        """Let those who wait for credit look again."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)


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
        #: Requests under way: who hears the answer when it is said, and who waits for it.
        self._requests: dict[str, tuple[Said | None, asyncio.Future[Answer]]] = {}
        self._requests_total = 0
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
        self,
        link: SimLink,
        payload: bytes,
        sends: list[Send],
        wrapped: Described | None,
        reached: Callable[[], None] | None = None,
    ) -> Described:
        link.check()
        while link.sent >= link.granted:
            waiting: asyncio.Future[None] = _future()
            link.waiting.append(waiting)
            await waiting
            link.check()
        number = self._next_delivery
        self._next_delivery += 1
        link.sent += 1
        if wrapped is None:
            self._sends[number] = sends
        kind = BATCH_FORMAT if len(sends) > 1 else 0
        answer = self._expect(True, number)
        fields: list[Any] = [UInt(link.handle), UInt(number), number.to_bytes(4, "big"), UInt(kind)]
        fields += [False, False, None, wrapped]
        self._wire.send(performative(TRANSFER, fields, payload=payload), reached)
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
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        # As `asyncio.timeout` would, without its weight: nothing is waited for as often.
        timer = None if link.inbox else loop.call_later(wait_s, link.ring)
        try:
            while not link.inbox:
                link.check()
                if loop.time() >= until_s:
                    return None
                link.bell = loop.create_future()
                await link.bell
        finally:
            if timer is not None:
                timer.cancel()
        return link.inbox.popleft()

    async def settle(
        self, delivery: Delivery, outcome: Described, *, arrive_ms: int = 0, wait_s: float = 30
    ) -> None:
        """Settle; return when the broker agreed. A time-out leaves it open what became of it."""
        self._check()
        self._auditor.settling(delivery, outcome)
        assert delivery.number is not None
        answer = self._expect(False, delivery.number)
        fields = [True, UInt(delivery.number), None, False, outcome]
        self._wire.send(
            performative(DISPOSITION, fields),
            lambda: self._auditor.settling_reached(delivery),
            arrive_ms,
        )
        async with asyncio.timeout(wait_s):
            said = await answer
        if said.descriptor != outcome.descriptor or condition_of(said):
            raise _refusal(said)

    async def fetch_deferred(self, address: str, seq: int) -> Delivery:
        """Lock a deferred message by its number (E5)."""
        found: list[Delivery] = []
        fetched_ms = 0

        def reached() -> None:
            nonlocal fetched_ms
            fetched_ms = self._auditor.now_ms()

        def said(answer: Answer) -> None:
            if answer.status == 200:
                entry = answer.body["messages"][0]
                link = f"{address}/$management"
                delivery = read_message(entry["message"], self._wire, self.node, link, address)
                delivery.tag = entry["lock-token"].bytes_le
                delivery.fetched_ms = fetched_ms
                found.append(delivery)
                self._auditor.delivered(delivery)

        body = {
            "sequence-numbers": AmqpArray([seq], ARRAY_OF_LONG),
            "receiver-settle-mode": UInt(1),
        }
        operation = "com.microsoft:receive-by-sequence-number"
        answer = await self.ask(address, operation, body, said, reached)
        if answer.status != 200:
            raise Refused(answer.condition)
        return found[0]

    async def settle_by_token(self, delivery: Delivery, status: str, outcome: Described) -> None:
        """Settle through the management node, as one settles what was fetched by number."""
        self._auditor.settling(delivery, outcome)

        def said(answer: Answer) -> None:
            condition = "" if answer.status == 200 else answer.condition
            self._auditor.settled(delivery, code_of(outcome), condition)

        answer = await self.ask(
            delivery.stream,
            "com.microsoft:update-disposition",
            {"disposition-status": status, "lock-tokens": _tokens(delivery)},
            said,
            lambda: self._auditor.settling_reached(delivery),
        )
        if answer.status != 200:
            raise Refused(answer.condition)

    async def renew(self, delivery: Delivery) -> None:
        """Prolong a lock (R6), or that of a whole session."""

        def said(answer: Answer) -> None:
            if answer.status == 200:
                ends = answer.body.get("expiration") or answer.body["expirations"][0]
                self._auditor.renewed(delivery, int(ends) - self._wire.clock.now_ms)

        operation, body = "renew-lock", {"lock-tokens": _tokens(delivery)}
        if delivery.session is not None:
            operation, body = "renew-session-lock", {"session-id": delivery.session}
        answer = await self.ask(delivery.stream, f"com.microsoft:{operation}", body, said)
        if answer.status != 200:
            raise Refused(answer.condition)

    async def ask(
        self,
        address: str,
        operation: str,
        body: dict[str, Any],
        said: Said | None = None,
        reached: Callable[[], None] | None = None,
    ) -> Answer:
        """Ask the management node of an entity.

        `reached` is called when the request is at the broker, `said` when the broker answers,
        whether or not the answer ever comes here.
        """
        node = f"{address}/$management"
        answers = self._links.get(f"{node}#answers")
        if answers is None:
            answers = await self._attach(node, "answers", receiver=True, source=source(node))
            self.grant(answers, 1000)
        requests = self._links.get(f"{node}#requests")
        if requests is None:
            requests = await self._attach(node, "requests", receiver=False, target=target(node))
        self._requests_total += 1
        name = f"request-{self._requests_total}"
        answer: asyncio.Future[Answer] = _future()
        self._requests[name] = said, answer
        payload = b"".join(
            (
                encode(state(0x73, name, None, None, None, answers.name)),
                encode(Described(ULong(0x74), {"operation": operation})),
                encode(Described(ULong(0x77), body)),
            )
        )
        await self._transfer(requests, payload, [], None, reached)
        return await answer

    # --- what the broker says ---------------------------------------------------------

    def overheard(self, frame: Frame) -> None:
        if frame.code == ATTACH:
            link = self._links[frame.fields[0]]
            self._remote[frame.fields[1]] = link
            if frame.fields[2] is False and frame.fields[5] is not None:
                given = (frame.fields[5].value + [None] * 8)[7] or {}
                link.session = given.get(SESSION_FILTER)
        elif frame.code == TRANSFER:
            link = self._remote[frame.fields[0]]
            if link.carries_answers:
                self._overhear_answer(frame.payload)
                return
            delivery = read_transfer(frame, self._wire, self.node, link.name, link.address)
            self._deliveries[frame.fields[1]] = delivery
            self._auditor.delivered(delivery)
        elif frame.code == DISPOSITION:
            for number in numbers_of(frame):
                if frame.fields[0]:
                    for send in self._sends.pop(number, ()):
                        self._auditor.answered(
                            send, frame.fields[4].descriptor, condition_of(frame.fields[4])
                        )
                elif (settled := self._deliveries.get(number)) is not None:
                    self._auditor.settled(
                        settled, frame.fields[4].descriptor, condition_of(frame.fields[4])
                    )
        elif frame.code == DETACH:
            link = self._remote[frame.fields[0]]
            self._auditor.leaving(self._wire, link.name)

    def _overhear_answer(self, payload: bytes) -> None:
        name, answer = read_answer(payload)
        said, _ = self._requests[name]
        if said is not None:
            said(answer)

    def arrived(self, frame: Frame) -> None:
        if frame.code == ATTACH:
            link = self._links[frame.fields[0]]
            # A refusal comes as an attach without the terminus, and a detach after it.
            if frame.fields[5 if frame.fields[2] is False else 6] is not None:
                link.is_open = True
                self._resolve_open(link)
        elif frame.code == FLOW and frame.fields[4] is not None:
            link = self._remote[frame.fields[4]]
            allowed = (frame.fields[5] or 0) + (frame.fields[6] or 0)
            if allowed > link.granted:
                link.granted = allowed
                link.wake()
        elif frame.code == TRANSFER:
            link = self._remote[frame.fields[0]]
            link.received += 1
            if link.carries_answers:
                name, answer = read_answer(frame.payload)
                _, asked = self._requests.pop(name)
                if not asked.done():
                    asked.set_result(answer)
                return
            link.inbox.append(self._deliveries[frame.fields[1]])
            link.ring()
        elif frame.code == DISPOSITION:
            for number in numbers_of(frame):
                waiting = self._waiting.pop((bool(frame.fields[0]), number), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(frame.fields[4])
        elif frame.code == DETACH:
            said = condition_of(Described(ULong(REJECTED), [frame.fields[2]])) or "detached"
            self._fail_link(self._remote[frame.fields[0]], Refused(said))

    def broker_lost_us(self) -> None:
        self._auditor.connection_lost(self._wire)

    def lost(self) -> None:
        self.error = Broken(self._wire.name)
        for link in self._links.values():
            self._fail_link(link, self.error)
        for waiting in self._waiting.values():
            if not waiting.done():
                _fail(waiting, self.error)
        self._waiting.clear()
        for _, answer in self._requests.values():
            if not answer.done():
                _fail(answer, self.error)

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
        link.ring()
        link.wake()


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _fail(waiting: asyncio.Future[Any], error: Exception) -> None:
    waiting.set_exception(error)
    # Who waited may have given up; that is no error of the loop's.
    waiting.exception()


def _tokens(delivery: Delivery) -> Any:
    return AmqpArray([delivery.token], ARRAY_OF_UUID)


def _value(body: Described) -> bytes:
    return encode(Described(ULong(0x77), body))


def _refusal(said: Described) -> Exception:
    return Refused(condition_of(said) or f"0x{code_of(said):02x}")
