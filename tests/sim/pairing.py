"""The pairing library at work in the simulation: its own senders, policy and syphon pumps.

Only what it stands on is simulated: the SDK's clients, the clock and the dice.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

from azure.servicebus import ServiceBusMessage

from tests.sim.actors import Stage
from tests.sim.facts import Send
from tests.sim.loop import VirtualLoop
from tests.sim.node import Node
from tests.sim.sdk import SimClient
from twinbus.pairing.observer import Observer
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.pair import Pair
from twinbus.pairing.policy import BacklogQueue
from twinbus.pairing.pump import Pump
from twinbus.pairing.sender import PairedSender

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def virtual(loop: VirtualLoop, random: Random) -> dict[str, object]:
    """What to put in the place of the library's clocks and dice."""
    return {
        "twinbus.pairing.pair.now_ms": loop.now_ms,
        "twinbus.pairing.sender.now_ms": loop.now_ms,
        "twinbus.pairing.sender.wall_clock_ms": loop.now_ms,
        "twinbus.pairing.pair.random": random,
    }


class Paired:
    """One client with a pair, and the syphon in another process."""

    def __init__(self, stage: Stage, primary: Node, secondary: Node, queues: list[str]) -> None:
        self._stage = stage
        self._primary = SimClient(partial(stage.connect, primary), stage.auditor)
        second = SimClient(partial(stage.connect, secondary), stage.auditor)
        options = SendAvailabilityPairedNamespaceOptions(
            secondary=second,
            administration=second,
            backlog_queue_count=len(queues),
            failover_interval=timedelta(seconds=stage.random.choice((0, 2))),
            ping_primary_interval=timedelta(seconds=2),
            operation_timeout=timedelta(seconds=4),
            syphon_retry_interval=timedelta(seconds=2),
            syphon_poll=timedelta(seconds=10),
        )
        observer = Observer(lambda event: stage.auditor.note("pair", type(event).__name__))
        known = [BacklogQueue(index, name) for index, name in enumerate(queues)]
        first: Any = self._primary
        then: Any = second
        self._pair = Pair(first, then, known, options, observer)
        self._pumps = [Pump(first, then, name, options, observer) for name in queues]
        self._pumping = [asyncio.create_task(pump.run()) for pump in self._pumps]

    async def send(self, entities: list[str]) -> None:
        """An application that sends through the pair, and believes what it is told."""
        stage, auditor = self._stage, self._stage.auditor
        senders = [(entity, self._sender(entity)) for entity in entities]
        while not stage.is_over.is_set():
            await stage.pause(2)
            entity, sender = stage.random.choice(senders)
            message = self._message(entity)
            mid = message.message_id
            try:
                await sender.send_messages(message)
            except Exception as error:
                auditor.note("pair failed", mid, type(error).__name__)
                continue
            attempts = [auditor.sends.get(f"{name}/{mid}") for name in ("primary", "secondary")]
            if not any(attempt is not None and attempt.accepted for attempt in attempts):
                auditor.violation("P6", f"{mid} was sent and no broker has it")
        for _, sender in senders:
            await sender.close()

    def _sender(self, entity: str) -> PairedSender:
        make: Any = partial(self._primary.get_queue_sender, entity)
        return PairedSender(self._pair, None, entity, make, 5)

    def _message(self, entity: str) -> ServiceBusMessage:
        """One with everything that the backlog rewrites and the syphon restores (P8)."""
        stage = self._stage
        stage.sent_total += 1
        mid = f"p{stage.sent_total}"
        session = stage.random.choice(("cedar", "alder")) if entity == "flights" else None
        ttl_ms = 1000 * stage.random.randint(2, 60) if stage.random.random() < 0.2 else 0
        due_ms = 0
        if stage.random.random() < 0.2:
            due_ms = stage.now_ms() + stage.random.randint(1, 8000)
        # The library's own attempts, and the syphon's, all carry this one.
        send = Send(mid, "primary", entity, session, may_repeat=True, ttl_ms=ttl_ms, due_ms=due_ms)
        send.expires = ttl_ms > 0
        stage.auditor.sending(send)
        return ServiceBusMessage(
            b"x" * 40,
            message_id=mid,
            session_id=session,
            time_to_live=timedelta(milliseconds=ttl_ms) if ttl_ms else None,
            scheduled_enqueue_time_utc=_EPOCH + timedelta(milliseconds=due_ms) if due_ms else None,
        )

    async def close(self) -> None:
        for pump in self._pumps:
            pump.stop()
        for task in self._pumping:
            task.cancel()
        await asyncio.gather(*self._pumping, return_exceptions=True)
        await self._pair.close("the run is over")
