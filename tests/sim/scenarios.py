"""Failures that were found once, each as the shortest play that shows it; they stay.

A scenario takes a world and plays it without chance; what goes wrong is a violation.
"""

from __future__ import annotations

import asyncio

from tests.sim.actors import payload_of
from tests.sim.peer import Refused
from tests.sim.world import World


async def sends_after_a_full_disk(world: World) -> None:
    """With nobody but senders there is no commit that would notice that the disk has room."""
    node = world.primary
    node.start()
    peer = world.stage.connect(node)
    link = await peer.sender("orders")
    node.drive.fill()
    if not await _is_refused(world, link, 500):
        world.auditor.violation("E11", "a full disk refused nothing")
    node.drive.free()
    await asyncio.sleep(10)
    if await _is_refused(world, link, 1):
        await asyncio.sleep(10)
        if await _is_refused(world, link, 1):
            world.auditor.violation("S1", "sends are refused long after the disk has room")
    peer.close()
    await asyncio.sleep(1)
    world.auditor.check_node(node)


async def _is_refused(world: World, link: object, tries: int) -> bool:
    for _ in range(tries):
        send = world.stage.new_send(world.primary, "orders")
        try:
            await link.peer.send(link, payload_of(send), [send])  # type: ignore[attr-defined]
        except Refused:
            return True
    return False


SCENARIOS = (sends_after_a_full_disk,)
