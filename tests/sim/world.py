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
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

from tests.sim import pairing
from tests.sim.actors import Stage
from tests.sim.at_rest import check_node, check_pair
from tests.sim.auditor import Auditor
from tests.sim.layout import (
    BACKLOG,
    PRIMARY,
    SECONDARY,
    Cast,
    fan_out,
    make_primary,
    make_secondary,
)
from tests.sim.loop import VirtualLoop
from tests.sim.node import SEGMENT_BYTES, Node

RUN_S = 20.0
DRAIN_S = 240.0


@dataclass
class Result:
    seed: int
    violations: list[str]
    trace_hash: str
    counts: Counter[str]
    trace: list[str] = field(default_factory=list)


class World:
    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.seed = seed
        self.loop = loop
        self.random = Random(seed)
        self.auditor = Auditor(loop.now_ms)
        self.stage = Stage(self.random, self.auditor, loop.now_ms, fan_out=fan_out)
        ended = self.auditor.process_ended
        self.primary = Node(loop, self.random, PRIMARY, make_primary, ended)
        self.secondary = Node(loop, self.random, SECONDARY, make_secondary, ended)
        self.nodes = (self.primary, self.secondary)
        self.cast = Cast(self.stage, self.primary)

    async def run(self) -> None:
        for node in self.nodes:
            node.start()
        entities = ["orders", "flights"] if "sessions" in self.cast.features else ["orders"]
        pair = pairing.Paired(self.stage, self.primary, self.secondary, BACKLOG)
        senders = [pair.send(entities) for _ in range(2)]
        await self.play(*self.cast.play(), *senders, faults=self.trouble)
        for node in self.nodes:
            self.heal(node)
        await self.drain()
        await pair.close()
        await self.rest()

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
            (self._fail_disk, 1),
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
                until_ms = self.loop.now_ms() + self.random.randint(100, 15_000)
                up, down = self.random.choice(((True, True), (True, False), (False, True)))
                wire.black_hole(until_ms, up=up, down=down)

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
        for what in node.reserved_and_gone():
            self.auditor.violation("L3", f"{what} is reserved and is not there")

    async def _fail_disk(self, node: Node) -> None:
        """The disk fails once; somebody restarts the broker, as its error text asks."""
        node.drive.fail_next(self.random.choice(("sync", "write")))
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
        node.drive.heal()
        if not node.is_up or node.broker.journal.failed is not None:
            if node.is_up:
                node.kill()
            node.start()

    async def drain(self) -> None:
        """With nothing wrong any more, everything must come out."""
        self.stage.is_over.clear()
        tasks = [asyncio.create_task(actor) for actor in self.cast.drain()]
        deadline_s = self.loop.time() + DRAIN_S
        while any(self.left()) and self.loop.time() < deadline_s:
            await asyncio.sleep(1)
        for stuck in self.left():
            self.auditor.violation("R2", f"{stuck} never came out though nothing was wrong")
        self.stage.is_over.set()
        await asyncio.gather(*tasks)

    def left(self) -> Iterator[str]:
        """Messages that somebody should still receive, or fetch by their numbers."""
        for node in self.nodes:
            yield from node.unfinished()
        for address, numbers in self.stage.deferred.items():
            for seq in numbers:
                yield f"deferred number {seq} in {address}"

    async def rest(self) -> None:
        """Look at everything, then take the power away once more and look again."""
        for node in self.nodes:
            await self._quiet(node)
            check_node(self.auditor, node)
        check_pair(self.auditor, PRIMARY, self.secondary)
        for node in self.nodes:
            before = node.live()
            node.cut_power()
            node.start()
            if node.live() != before:
                self.auditor.violation("R7", f"{node.name} is another after a restart at rest")

    async def _quiet(self, node: Node) -> None:
        """Wait until nothing waits for the disk."""
        deadline_s = self.loop.time() + DRAIN_S
        while not node.is_quiet:
            if self.loop.time() > deadline_s:
                self.auditor.violation("quiet", f"{node.name} writes and writes")
                return
            await asyncio.sleep(0.1)


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

    def of_turn(self, error: Exception) -> None:
        """Takes the place of the method that stops a broker which met a fault of its own."""
        self.of_loop(None, {"message": "a turn broke off", "exception": error})

    def of_loop(self, loop: asyncio.AbstractEventLoop | None, context: dict[str, Any]) -> None:
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
            "twinbus.server.broker.PENDING_BYTES_MAX": world.random.choice((4096, 1 << 25)),
            "twinbus.journal.journal.time": _JournalTime(loop),
            "twinbus.server.listener.log": witness,
            "twinbus.server.broker.Broker._stop": witness.of_turn,
            **pairing.virtual(loop, world.random),
        }.items():
            patches.enter_context(mock.patch(name, value))
        logging.disable(logging.CRITICAL)
        # A run leaves a little garbage at its end; looking for it all the time costs more.
        gc.disable()
        try:
            loop.run_until_complete(play(world))
        except (Exception, asyncio.CancelledError) as error:
            # A cancellation that gets this far would end a worker, and its pool wait for ever.
            witness.of_loop(loop, {"message": "the run broke off", "exception": error})
        finally:
            logging.disable(logging.NOTSET)
            _end(loop)
    auditor = world.auditor
    result = Result(
        seed, auditor.violations, auditor.trace_hash, auditor.counts, auditor.trace or []
    )
    # Only now: enabled with the world still there, the collector would look through all of it.
    del world, auditor, witness, loop, patches
    gc.collect()
    gc.enable()
    return result


def _end(loop: VirtualLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
