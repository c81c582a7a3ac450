"""A whole run from one seed: two namespaces, their users, a pair with its syphon, and faults.

The seed goes in, a `Result` comes out: what was violated, what happened how often, and the hash
of the trace. Nothing outside the run is read: time is the loop's, chance is the seed's.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

from tests.sim import actors, pairing
from tests.sim.actors import Stage
from tests.sim.auditor import Auditor
from tests.sim.loop import VirtualLoop
from tests.sim.node import SEGMENT_BYTES, Node
from twinbus.core.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.engine.index import ACTIVE
from twinbus.engine.namespace import Namespace

PRIMARY, SECONDARY = "primary", "secondary"
BACKLOG = [f"{PRIMARY}/x-servicebus-transfer/{index}" for index in range(2)]
LOCK_MS = 5000
SESSIONS = ("amber", "birch")
ALL, EVEN = "news/Subscriptions/all", "news/Subscriptions/even"
RUN_S = 20.0
DRAIN_S = 240.0


@dataclass
class Result:
    seed: int
    violations: list[str]
    trace_hash: str
    counts: Counter[str]
    trace: list[str] = field(default_factory=list)


def fan_out(entity: str, number: int) -> tuple[str, ...]:
    if entity != "news":
        return ()
    return (ALL, EVEN) if number % 2 == 0 else (ALL,)


def make_primary(namespace: Namespace, now_ms: int) -> None:
    if namespace.find("orders") is not None:
        return
    for name in ("orders", "left", "middle", "right"):
        queue = QueueDescription(name, lock_duration_ms=LOCK_MS, max_delivery_count=5)
        namespace.create_queue(queue, now_ms)
    namespace.create_queue(QueueDescription("inbox", forward_to="orders"), now_ms)
    namespace.create_queue(
        QueueDescription("flights", lock_duration_ms=LOCK_MS, requires_session=True), now_ms
    )
    namespace.create_topic(TopicDescription("news"), now_ms)
    for name, rule in (
        ("all", None),
        ("even", RuleDescription("even", "sql", "number % 2 = 0")),
    ):
        subscription = SubscriptionDescription("news", name, lock_duration_ms=LOCK_MS)
        namespace.create_subscription(subscription, rule, now_ms)


def make_secondary(namespace: Namespace, now_ms: int) -> None:
    for name in BACKLOG:
        if namespace.find(name) is None:
            queue = QueueDescription(name, lock_duration_ms=60_000, max_delivery_count=2**31 - 1)
            namespace.create_queue(queue, now_ms)


class World:
    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.seed = seed
        self.loop = loop
        self.random = Random(seed)
        self.auditor = Auditor(loop.now_ms)
        self.stage = Stage(self.random, self.auditor, loop.now_ms, fan_out=fan_out)
        self.primary = Node(loop, self.random, PRIMARY, make_primary)
        self.secondary = Node(loop, self.random, SECONDARY, make_secondary)
        self.nodes = (self.primary, self.secondary)

    async def run(self) -> None:
        for node in self.nodes:
            node.start()
        pair = pairing.Paired(self.stage, self.primary, self.secondary, BACKLOG)
        await self.play(*self.cast(), pair.send("orders"), pair.send("orders"), faults=self.trouble)
        for node in self.nodes:
            self.heal(node)
        await self.drain(pair)
        await pair.close()
        await self.rest()

    def cast(self) -> list[Coroutine[Any, Any, None]]:
        stage, primary = self.stage, self.primary
        return [
            actors.send_plainly(stage, primary, "orders"),
            actors.send_plainly(stage, primary, "inbox"),
            actors.send_plainly(stage, primary, "news"),
            actors.send_plainly(stage, primary, "left"),
            *(actors.send_sessions(stage, primary, "flights", name) for name in SESSIONS),
            actors.transact(stage, primary, "left", ("middle", "right")),
            actors.receive(stage, primary, "orders"),
            actors.receive(stage, primary, "orders"),
            actors.receive(stage, primary, ALL),
            actors.receive(stage, primary, EVEN),
            actors.receive(stage, primary, "middle", is_patient=True),
            actors.receive_sessions(stage, primary, "flights"),
            actors.receive_sessions(stage, primary, "flights"),
        ]

    async def play(
        self, *cast: Coroutine[Any, Any, None], faults: Callable[[], Awaitable[None]]
    ) -> None:
        """Let the actors act while things go wrong, for so long; then wait for them to end."""
        tasks = [asyncio.create_task(actor) for actor in cast]
        try:
            async with asyncio.timeout(RUN_S):
                await faults()
        except TimeoutError:
            pass
        self.stage.is_over.set()
        # Who waits for an answer that never comes is told that its connection is gone.
        for node in self.nodes:
            for wire in list(node.wires):
                wire.cut()
        await asyncio.gather(*tasks)

    # --- faults -----------------------------------------------------------------------

    async def trouble(self) -> None:
        faults: list[tuple[Callable[[Node], Awaitable[None]], int]] = [
            (self._break_wires, 4),
            (self._kill, 3),
            (self._cut_power, 3),
            (self._fail_sync, 1),
            (self._slow_disk, 2),
            (self._fill_disk, 1),
            (self._isolate, 1),
            (self._change_settings, 1),
        ]
        kinds, weights = zip(*faults, strict=True)
        while True:
            await asyncio.sleep(self.random.uniform(0.2, 3))
            node = self.primary if self.random.random() < 0.7 else self.secondary
            (fault,) = self.random.choices(kinds, weights)
            self.auditor.note("fault", node.name, fault.__name__)
            if node.is_up:
                await fault(node)

    async def _break_wires(self, node: Node) -> None:
        for wire in list(node.wires):
            luck = self.random.random()
            if luck < 0.15:
                wire.cut()
            elif luck < 0.25:
                wire.half_open()
            elif luck < 0.4:
                wire.black_hole(self.loop.now_ms() + self.random.randint(100, 15_000))

    async def _isolate(self, node: Node) -> None:
        until_ms = self.loop.now_ms() + self.random.randint(1000, 10_000)
        for wire in node.wires:
            wire.black_hole(until_ms)

    async def _kill(self, node: Node) -> None:
        node.kill()
        await self._come_back(node)

    async def _cut_power(self, node: Node) -> None:
        node.cut_power()
        await self._come_back(node)

    async def _come_back(self, node: Node) -> None:
        await asyncio.sleep(self.random.uniform(0.05, 5))
        if self.random.random() < 0.3 and (what := node.damage_goes_unnoticed()):
            self.auditor.violation("damage", f"{node.name} starts in spite of {what}")
        node.start()

    async def _fail_sync(self, node: Node) -> None:
        """The disk fails once; somebody restarts the broker, as its error text asks."""
        node.drive.fail_next_sync()
        await asyncio.sleep(self.random.uniform(0.5, 3))
        node.kill()
        await self._come_back(node)

    async def _slow_disk(self, node: Node) -> None:
        node.drive.slow_until_ms = self.loop.now_ms() + self.random.randint(1000, 10_000)

    async def _fill_disk(self, node: Node) -> None:
        node.drive.fill()
        await asyncio.sleep(self.random.uniform(1, 8))
        node.drive.free()

    async def _change_settings(self, node: Node) -> None:
        """A change to an entity drops its locks (R7)."""
        name = "orders" if node is self.primary else BACKLOG[0]
        node.change_queue(name, user_metadata=str(self.random.random()))
        self.auditor.locks_dropped(node.name, name)

    # --- the end ----------------------------------------------------------------------

    def heal(self, node: Node) -> None:
        node.drive.free()
        node.drive.slow_until_ms = 0
        if not node.is_up or node.broker.journal.failed is not None:
            if node.is_up:
                node.kill()
            node.start()

    async def drain(self, pair: pairing.Paired) -> None:
        """With nothing wrong any more, everything must come out."""
        self.stage.is_over.clear()
        stage, primary = self.stage, self.primary
        cast = [
            *(
                actors.receive(stage, primary, name, is_patient=True)
                for name in ("orders", "left", "middle", "right", ALL, EVEN)
            ),
            actors.drain_sessions(stage, primary, "flights"),
        ]
        tasks = [asyncio.create_task(actor) for actor in cast]
        deadline_s = self.loop.time() + DRAIN_S
        while self.left() and self.loop.time() < deadline_s:
            await asyncio.sleep(1)
        for stuck in self.left():
            self.auditor.violation("R2", f"{stuck} was never delivered though nothing was wrong")
        self.stage.is_over.set()
        await asyncio.gather(*tasks)

    def left(self) -> list[str]:
        """Messages that somebody should still receive."""
        return [
            f"{mid} in {stream}"
            for node in self.nodes
            for (stream, _), (state, _, mid) in node.live().items()
            if state == ACTIVE and "$" not in stream
        ]

    async def rest(self) -> None:
        """Look at everything, then take the power away once more and look again."""
        for node in self.nodes:
            while not node.is_quiet:
                await asyncio.sleep(0.1)
            self.auditor.check_node(node)
        self.auditor.check_pair(PRIMARY, self.secondary)
        for node in self.nodes:
            before = node.live()
            node.cut_power()
            node.start()
            if node.live() != before:
                self.auditor.violation("R7", f"{node.name} is another after a restart at rest")


class _JournalTime:
    """The journal's own clock, for its rare retries."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.monotonic = loop.time


class _Witness:
    """Stands where errors are only logged, so that they fail the run."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor

    def exception(self, text: str) -> None:
        """What the listener calls when a connection met a fault of the broker's own."""
        self._auditor.violation("crash", f"{text}: {sys.exc_info()[1]!r}")

    def of_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = "".join(traceback.format_exception(error)) if error else ""
        self._auditor.violation("crash", f"{context['message']}\n{where}")


def run_seed(
    seed: int,
    play: Callable[[World], Awaitable[None]] = World.run,
    *,
    keeps_trace: bool = False,
) -> Result:
    """Run one world to its end."""
    loop = VirtualLoop()
    world = World(seed, loop)
    if keeps_trace:
        world.auditor.trace = []
    witness = _Witness(world.auditor)
    loop.set_exception_handler(witness.of_loop)
    with ExitStack() as patches:
        for name, value in {
            # A journal of kilobytes meets what one of gigabytes does.
            "twinbus.server.broker._GARBAGE_BYTES_MIN": 2 * SEGMENT_BYTES,
            "twinbus.server.broker._CARRY_STEP_BYTES": 1024,
            "twinbus.server.broker._SPACE_RESERVE_BYTES": SEGMENT_BYTES // 2,
            "twinbus.server.broker.PENDING_BYTES_MAX": world.random.choice((4096, 1 << 25)),
            "twinbus.journal.journal.time": _JournalTime(loop),
            "twinbus.server.listener.log": witness,
            **pairing.virtual(loop, world.random),
        }.items():
            patches.enter_context(mock.patch(name, value))
        logging.disable(logging.CRITICAL)
        try:
            loop.run_until_complete(play(world))
        finally:
            logging.disable(logging.NOTSET)
            _end(loop)
    auditor = world.auditor
    return Result(seed, auditor.violations, auditor.trace_hash, auditor.counts, auditor.trace or [])


def _end(loop: VirtualLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    gc.collect(0)
