"""The applications of the simulation: senders and receivers that do what users do, and worse.

Each is a coroutine that runs until the world tells it to stop, on a connection that it makes
anew whenever the old one breaks. What it asks for it first tells the auditor.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.sim.auditor import Auditor
from tests.sim.facts import ACCEPTED, DEFER, MODIFIED, REJECTED, TRANSACTIONAL, Delivery, Send, Txn
from tests.sim.ledgers import States
from tests.sim.node import Node
from tests.sim.peer import Broken, Peer, Refused, SimLink, state
from tests.sim.reading import Answer
from twinbus.amqp.codec import encode
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong

OPERATION_S = 12.0
#: Here what expires is dead-lettered, and so never lost.
PERISHABLE = "perishable"
_SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
_FAILURES = (Broken, Refused, OSError, TimeoutError)


@dataclass
class Stage:
    """What an actor knows of its world."""

    random: Random
    auditor: Auditor
    now_ms: Callable[[], int]
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    #: Which subscriptions a message to an entity must reach, by its number.
    fan_out: Callable[[str, int], tuple[str, ...]] = lambda entity, number: ()
    #: Messages are numbered through, whoever sends them.
    sent_total: int = 0
    #: The numbers of messages that were deferred, by where they are.
    deferred: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.states = States(self.auditor)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.random.random())

    def connect(self, node: Node) -> Peer:
        return Peer(node.connect(), self.auditor, node.name)

    def new_send(self, node: Node, entity: str, **more: Any) -> Send:
        self.sent_total += 1
        send = Send(f"m{self.sent_total}", node.name, entity, number=self.sent_total, **more)
        send.subscriptions = self.fan_out(entity, send.number)
        self.auditor.sending(send)
        return send


def payload_of(send: Send) -> bytes:
    """The message of a send: its id, its session, its number as an application property."""
    parts = []
    if send.ttl_ms:
        parts.append(Described(ULong(0x70), [True, None, UInt(send.ttl_ms)]))
    if send.due_ms:
        parts.append(Described(ULong(0x72), {_SCHEDULED: Timestamp(send.due_ms)}))
    parts.append(Described(ULong(0x73), [send.mid, *[None] * 9, send.session]))
    parts.append(Described(ULong(0x74), {"number": Int(send.number)}))
    parts.append(Described(ULong(0x75), b"x" * (send.number % 7) * 40))
    return b"".join(map(encode, parts))


def batch_of(payloads: list[bytes]) -> bytes:
    return b"".join(encode(Described(ULong(0x75), payload)) for payload in payloads)


async def persist(stage: Stage, node: Node, act: Callable[[Peer], Awaitable[None]]) -> None:
    """Run `act` on a connection, and again on a new one, until the play is over."""
    while not stage.is_over.is_set():
        peer: Peer | None = None
        try:
            peer = stage.connect(node)
            await act(peer)
        except _FAILURES:
            await stage.pause(3)
        finally:
            if peer is not None and peer.error is None:
                peer.close()


# --- senders ------------------------------------------------------------------------------


async def send_plainly(stage: Stage, node: Node, entity: str) -> None:
    """One by one, in batches, overlapped, scheduled."""

    async def act(peer: Peer) -> None:
        async with asyncio.timeout(OPERATION_S):
            link = await peer.sender(entity)
        while not stage.is_over.is_set():
            await stage.pause(2)
            async with asyncio.timeout(OPERATION_S), asyncio.TaskGroup() as group:
                for _ in range(stage.random.choice((1, 1, 1, 4))):
                    group.create_task(_send_some(stage, peer, link, node, entity))

    await persist(stage, node, _one_error(act))


async def _send_some(stage: Stage, peer: Peer, link: SimLink, node: Node, entity: str) -> None:
    count = stage.random.choice((1, 1, 1, 3))
    # What expires in the queue that keeps its dead is not gone.
    is_perishable = entity == PERISHABLE
    ttl_ms = 0
    if stage.random.random() < (0.6 if is_perishable else 0.1):
        ttl_ms = stage.random.randint(500, 8000)
    due_ms = 0
    if stage.random.random() < 0.15:
        due_ms = stage.now_ms() + stage.random.randint(1, 8000)
    expires = ttl_ms > 0 and not is_perishable
    times = {"ttl_ms": ttl_ms, "due_ms": due_ms, "expires": expires}
    sends = [stage.new_send(node, entity, **times) for _ in range(count)]
    payloads = [payload_of(send) for send in sends]
    await peer.send(link, payloads[0] if count == 1 else batch_of(payloads), sends)


async def send_sessions(stage: Stage, node: Node, entity: str, session: str) -> None:
    """One after the other, so that the order of acceptance is known."""

    async def act(peer: Peer) -> None:
        async with asyncio.timeout(OPERATION_S):
            link = await peer.sender(entity)
        while not stage.is_over.is_set():
            await stage.pause(3)
            send = stage.new_send(node, entity, session=session)
            async with asyncio.timeout(OPERATION_S):
                await peer.send(link, payload_of(send), [send])

    await persist(stage, node, act)


async def transact(stage: Stage, node: Node, first: str, others: tuple[str, str]) -> None:
    """Move a message from the first queue into both others, in one transaction."""

    async def act(peer: Peer) -> None:
        async with asyncio.timeout(OPERATION_S):
            receiver = await peer.receiver(first)
            senders = [await peer.sender(name) for name in others]
            coordinator = await peer.coordinator()
        while not stage.is_over.is_set():
            peer.grant(receiver, 1)
            delivery = None
            while delivery is None and not stage.is_over.is_set():
                delivery = await peer.next(receiver, 5)
            if delivery is not None:
                async with asyncio.timeout(OPERATION_S):
                    await _move(stage, peer, node, delivery, senders, coordinator)

    await persist(stage, node, act)


async def _move(
    stage: Stage,
    peer: Peer,
    node: Node,
    delivery: Delivery,
    senders: list[SimLink],
    coordinator: SimLink,
) -> None:
    txn_id = await peer.declare(coordinator)
    sends = [stage.new_send(node, link.address) for link in senders]
    for send, link in zip(sends, senders, strict=True):
        await peer.send_in(txn_id, link, payload_of(send), [send])
    # Sometimes so late that the lock runs out before the end.
    await stage.pause(stage.random.choice((0.1, 0.1, 7)))
    await peer.settle(delivery, state(TRANSACTIONAL, txn_id, state(ACCEPTED)))
    if stage.random.random() < 0.5:
        left_ms = delivery.until_ms - stage.now_ms()
        await asyncio.sleep(max(0, left_ms + stage.random.randint(-40, 10)) / 1000)
    txn = Txn(
        f"txn-{sends[0].mid}",
        node.name,
        "coordinator",
        sends=sends,
        completes=delivery,
        rolls_back=stage.random.random() < 0.2,
    )
    for send in sends:
        send.txn = txn
    stage.auditor.sending(txn)
    try:
        await peer.discharge(coordinator, txn_id, txn.rolls_back, txn)
    except Refused:
        return
    if txn.rolls_back:
        await peer.settle(delivery, state(MODIFIED, True, False))


# --- receivers ----------------------------------------------------------------------------


async def receive(
    stage: Stage, node: Node, address: str, *, is_patient: bool = False, deletes: bool = False
) -> None:
    """Receive and settle, mostly well; `is_patient` receivers complete everything.

    With `deletes` the broker settles as it hands over (R1).
    """

    async def act(peer: Peer) -> None:
        async with asyncio.timeout(OPERATION_S):
            link = await peer.receiver(address, deletes=deletes)
        while not stage.is_over.is_set():
            if link.granted == link.received:
                peer.grant(link, stage.random.choice((1, 2, 8)))
            delivery = await peer.next(link, 2)
            if delivery is not None and not deletes:
                await _settle_somehow(stage, peer, delivery, is_patient)

    await persist(stage, node, act)


async def receive_sessions(stage: Stage, node: Node, address: str) -> None:
    """Session after session: look at its state, set it anew, receive what there is (E6)."""

    async def act(peer: Peer) -> None:
        while not stage.is_over.is_set():
            async with asyncio.timeout(OPERATION_S):
                link = await peer.session_receiver(address, 5000)
                if stage.random.random() < 0.5:
                    await _use_state(stage, peer, link)
            peer.grant(link, 3)
            while (delivery := await peer.next(link, 1.5)) is not None:
                await _settle_somehow(stage, peer, delivery, stage.random.random() < 0.5)
                peer.grant(link, 1)
            peer.detach(link)

    await persist(stage, node, act)


async def _use_state(stage: Stage, peer: Peer, link: SimLink) -> None:
    stream, session = link.address, link.session
    assert session is not None
    asked_ms = stage.now_ms()

    def read(answer: Answer) -> None:
        if answer.status == 200:
            stage.states.read(stream, session, asked_ms, answer.body.get("session-state"))

    about = {"session-id": session}
    await peer.ask(stream, "com.microsoft:get-session-state", about, read)
    stage.sent_total += 1
    value = f"s{stage.sent_total}".encode()
    writing = stage.states.writing(stream, session, value)
    body = {**about, "session-state": value}
    await peer.ask(
        stream,
        "com.microsoft:set-session-state",
        body,
        lambda answer: stage.states.wrote(writing, answer),
    )


async def drain_sessions(stage: Stage, node: Node, address: str) -> None:
    """Take session after session and complete everything."""

    async def act(peer: Peer) -> None:
        while not stage.is_over.is_set():
            async with asyncio.timeout(OPERATION_S):
                link = await peer.session_receiver(address, 2000)
            peer.grant(link, 3)
            while (delivery := await peer.next(link, 1.5)) is not None:
                await _settle_somehow(stage, peer, delivery, True)
                peer.grant(link, 1)
            peer.detach(link)

    await persist(stage, node, act)


async def _keep(stage: Stage, peer: Peer, delivery: Delivery) -> None:
    """Renew a lock late, and work on for longer than it would have lasted."""
    left_ms = delivery.until_ms - stage.now_ms()
    await asyncio.sleep(max(0, left_ms - stage.random.choice((2000, 400, 100, 5))) / 1000)
    try:
        async with asyncio.timeout(OPERATION_S):
            await peer.renew(delivery)
    except Refused:
        return
    await stage.pause(4)


async def _settle_somehow(stage: Stage, peer: Peer, delivery: Delivery, is_patient: bool) -> None:
    """Complete, or abandon, defer, bury, forget, or settle at the very end of the lock."""
    luck = 0.0 if is_patient else stage.random.random()
    arrive_ms = 0
    outcome = state(ACCEPTED)
    if is_patient:
        pass
    elif luck < 0.6:
        await stage.pause(0.2)
    elif luck < 0.7:
        outcome = state(MODIFIED, True, False)
    elif luck < 0.73:
        outcome = state(MODIFIED, True, True)
    elif luck < 0.78:
        outcome = state(REJECTED)
    elif luck < 0.85:
        return
    elif luck < 0.92:
        await _keep(stage, peer, delivery)
    else:
        arrive_ms = delivery.until_ms + stage.random.choice((-1, 0, 0, 0, 1))
    try:
        await peer.settle(delivery, outcome, arrive_ms=arrive_ms)
    except Refused:
        return
    if delivery.asked == DEFER and delivery.session is None:
        stage.deferred[delivery.stream].append(delivery.seq)


def _one_error(act: Callable[[Peer], Awaitable[None]]) -> Callable[[Peer], Awaitable[None]]:
    """Several sends at once may fail together; the first failure is what the actor sees."""

    async def wrapped(peer: Peer) -> None:
        try:
            await act(peer)
        except ExceptionGroup as group:
            failure: Exception = group
            while isinstance(failure, ExceptionGroup):
                failure = failure.exceptions[0]
            raise failure from None

    return wrapped
