"""Applications that use one feature each: duplicate detection, scheduling, deferral, bulk reading.

As in `actors`: coroutines that go on until the world tells them to stop, on connections made
anew, and that tell the auditor what they ask for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.sim.actors import OPERATION_S, Stage, payload_of, persist
from tests.sim.facts import ACCEPTED, MODIFIED, REJECTED, Delivery, Send, Wish
from tests.sim.ledgers import Reservations
from tests.sim.node import Node
from tests.sim.peer import Peer, Refused, SimLink, state
from tests.sim.reading import Answer, Said, sections_of
from twinbus.amqp.types import ARRAY_OF_LONG, AmqpArray

_READ_BYTES = 1 << 20
_FENCED = 410


async def send_until_sure(stage: Stage, node: Node, entity: str) -> None:
    """Send again under the same id whatever was not answered, and now and then what was (E7)."""
    open_sends: list[Send] = []
    done: list[Send] = []

    async def act(peer: Peer) -> None:
        async with asyncio.timeout(OPERATION_S):
            link = await peer.sender(entity)
        while not stage.is_over.is_set():
            await stage.pause(2)
            if done and stage.random.random() < 0.2:
                await _repeat(peer, link, stage.random.choice(done))
                continue
            if not open_sends:
                open_sends.append(stage.new_send(node, entity, may_repeat=True, is_unique=True))
            send = open_sends[0]
            await _repeat(peer, link, send)
            done.append(open_sends.pop())

    async def _repeat(peer: Peer, link: SimLink, send: Send) -> None:
        stage.auditor.note("send once", send.mid)
        async with asyncio.timeout(OPERATION_S):
            await peer.send(link, payload_of(send), [send])

    await persist(stage, node, act)


async def schedule(stage: Stage, node: Node, entity: str) -> None:
    """Schedule through the management node; change one's mind about some (E5)."""

    async def act(peer: Peer) -> None:
        while not stage.is_over.is_set():
            await stage.pause(3)
            due_ms = stage.now_ms() + stage.random.randint(200, 8000)
            send = stage.new_send(node, entity, due_ms=due_ms)
            async with asyncio.timeout(OPERATION_S):
                seq = await _schedule(stage, peer, send)
            if stage.random.random() < 0.5:
                await stage.pause(2)
                async with asyncio.timeout(OPERATION_S):
                    await _cancel(stage, peer, send, seq)

    await persist(stage, node, act)


async def _schedule(stage: Stage, peer: Peer, send: Send) -> int:
    def said(answer: Answer) -> None:
        kind = ACCEPTED if answer.status == 200 else REJECTED
        stage.auditor.answered(send, kind, answer.condition)

    body = {"messages": [{"message-id": send.mid, "message": payload_of(send)}]}
    answer = await peer.ask(send.entity, "com.microsoft:schedule-message", body, said)
    if answer.status != 200:
        raise Refused(answer.condition)
    return int(answer.body["sequence-numbers"][0])


async def _cancel(stage: Stage, peer: Peer, send: Send, seq: int) -> None:
    def reached() -> None:
        send.cancel_asked = True

    def said(answer: Answer) -> None:
        stage.auditor.note("cancelled", send.mid, answer.status)
        send.cancelled = answer.status == 200
        # Too late: it has come due, and under this number there is nothing any more.
        send.cancel_asked = answer.status not in (404, 410)

    body = {"sequence-numbers": AmqpArray([seq], ARRAY_OF_LONG)}
    await peer.ask(send.entity, "com.microsoft:cancel-scheduled-message", body, said, reached)


async def fetch_deferred(
    stage: Stage, node: Node, addresses: list[str], *, is_patient: bool = False
) -> None:
    """Take up again, by number, what some receiver has put aside (E5)."""

    async def act(peer: Peer) -> None:
        while not stage.is_over.is_set():
            await stage.pause(2)
            known = [(address, seq) for address in addresses for seq in stage.deferred[address]]
            if not known:
                continue
            address, seq = stage.random.choice(known)
            try:
                async with asyncio.timeout(OPERATION_S):
                    delivery = await peer.fetch_deferred(address, seq)
                    await _settle_deferred(stage, peer, delivery, is_patient)
            except Refused:
                await stage.pause(1)
            numbers = stage.deferred[address]
            if seq in numbers and _is_gone(stage, node, address, seq):
                numbers.remove(seq)

    await persist(stage, node, act)


def _is_gone(stage: Stage, node: Node, address: str, seq: int) -> bool:
    """Whether it is done with; a request for it may have been done and not answered."""
    copy = stage.auditor.copies[node.name, address, seq]
    return copy.removed or (bool(copy.removal_asked) and not node.has(address, seq))


async def _settle_deferred(stage: Stage, peer: Peer, delivery: Delivery, is_patient: bool) -> None:
    luck = 0.0 if is_patient else stage.random.random()
    if luck < 0.6:
        await peer.settle_by_token(delivery, "completed", state(ACCEPTED))
    elif luck < 0.7:
        await peer.settle_by_token(delivery, "suspended", state(REJECTED))
    elif luck < 0.85:
        # It stays deferred: its lock alone is given up.
        await peer.settle_by_token(delivery, "abandoned", state(MODIFIED, True, False))


class BulkReader:
    """Reads in bulk as a Spark query does: reserve, read, settle by epoch, start again (L3).

    What it must remember it remembers, as a query does in its checkpoint: the epoch it is at.
    """

    def __init__(self, stage: Stage, node: Node, address: str) -> None:
        self._stage = stage
        self._node = node
        self._address = address
        self._epoch = 1
        self._ledger = Reservations(stage.auditor, node, address, "query")

    async def run(self, *, is_patient: bool = False) -> None:
        async def act(peer: Peer) -> None:
            while not self._stage.is_over.is_set():
                await self._stage.pause(1)
                async with asyncio.timeout(OPERATION_S):
                    await self._batch(peer, is_patient)

        await persist(self._stage, self._node, act)

    async def _batch(self, peer: Peer, is_patient: bool) -> None:
        random = self._stage.random
        found = await self.reserve(peer)
        if found.status == _FENCED:
            # An earlier request was done after all, though nobody was told.
            self._epoch += 1
            return
        if found.status != 200:
            return
        await self._ask(peer, "attempt", {"epoch": self._epoch, "max-attempts": 0})
        if found.body["ranges"]:
            await self._read(peer, list(found.body["ranges"]))
        await self._stage.pause(2)
        luck = 0.0 if is_patient else random.random()
        if luck < 0.3:
            await self.settle(peer, [], [])
        elif luck < 0.65:
            # Of this epoch and of those that wait with it.
            seqs = self._ledger.up_to(self._epoch)
            returned = [seq for seq in seqs if random.random() < 0.3]
            dead = [seq for seq in seqs if seq not in returned and random.random() < 0.5]
            await self.settle(peer, returned, dead)
        elif luck < 0.75:
            if (await self._ask(peer, "release", {}, self._ledger.releasing)).status == 200:
                self._epoch += 1
        else:
            more = await self.reserve(peer, ahead=1)
            if more.status == 200:
                self._epoch += 1

    async def reserve(self, peer: Peer, ahead: int = 0) -> Answer:
        epoch = self._epoch + ahead

        def said(answer: Answer) -> None:
            if answer.status == 200:
                self._ledger.reserved(epoch, list(answer.body["ranges"]))
            elif answer.status == _FENCED:
                self._ledger.ended(epoch)

        count = self._stage.random.choice((1, 5, 20))
        body = {"epoch": epoch, "message-count": count}
        return await self._ask(peer, "reserve", body, said=said)

    async def _read(self, peer: Peer, ranges: list[int]) -> None:
        epoch = self._epoch

        def said(answer: Answer) -> None:
            if answer.status in (200, 204):
                mids = dict(map(_number_and_id, answer.body.get("messages", ())))
                self._ledger.read(epoch, mids)

        body = {
            "from": ranges[0],
            "to": ranges[-1],
            "byte-count": _READ_BYTES,
            "states": ["reserved"],
        }
        await self._ask(peer, "read", body, said=said)

    async def settle(
        self, peer: Peer, returned: list[int], dead: list[int], ahead: int = 0
    ) -> None:
        epoch = self._epoch + ahead
        wishes: list[Wish] = []

        def reached() -> None:
            wishes.extend(self._ledger.settling(epoch, returned, dead))
            if dead and self._stage.random.random() < 0.8:
                self._node.tire(self._stage.random.randint(1, len(dead)))

        def said(answer: Answer) -> None:
            self._ledger.settled(epoch, wishes, answer)

        reasons = [
            {"sequence-number": seq, "reason": "unreadable", "description": "by chance"}
            for seq in dead
        ]
        body = {"epoch": epoch, "returned": returned, "dead-lettered": reasons}
        answer = await self._ask(peer, "settle-upto", body, reached, said)
        if answer.status == 200:
            self._epoch += 1

    async def _ask(
        self,
        peer: Peer,
        operation: str,
        body: dict[str, Any],
        reached: Callable[[], None] | None = None,
        said: Said | None = None,
    ) -> Answer:
        asked = {"consumer": "query", **body}
        return await peer.ask(self._address, f"twinbus:{operation}", asked, said, reached)


def _number_and_id(payload: bytes) -> tuple[int, str]:
    sections = sections_of(payload, 0x73)
    return int(sections[0x72]["x-opt-sequence-number"]), str(sections[0x73][0])
