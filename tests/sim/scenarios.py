"""Failures that were found once, each as the shortest play that shows it; they stay.

A scenario takes a world and plays it without chance; what goes wrong is a violation.
"""

from __future__ import annotations

import asyncio

from tests.sim.actors import payload_of
from tests.sim.at_rest import check_node
from tests.sim.ledgers import numbers_in
from tests.sim.node import Node
from tests.sim.peer import Broken, Peer, Refused
from tests.sim.specials import BulkReader
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
    check_node(world.auditor, node)


async def a_message_comes_due_after_the_disk_failed(world: World) -> None:
    """Compaction had just written it anew, in the batch that was lost: it cannot be read."""
    node = world.primary
    node.memory_bytes_max = 0
    node.start()
    peer = world.stage.connect(node)
    link = await peer.sender("fast")
    receiver = await peer.receiver("fast", deletes=True)
    peer.grant(receiver, 10_000)
    due = world.stage.new_send(node, "fast", due_ms=world.loop.now_ms() + 120_000)
    await peer.send(link, payload_of(due), [due])
    failing = asyncio.create_task(_fail_compaction(node))
    while not failing.done() or node.broker.journal.failed is None:
        send = world.stage.new_send(node, "fast")
        try:
            await peer.send(link, payload_of(send), [send])
        except (Refused, Broken):
            break
    await asyncio.sleep(150)
    node.kill()
    node.start()
    await asyncio.sleep(1)
    check_node(world.auditor, node)


async def _fail_compaction(node: Node) -> None:
    """Let the disk fail as soon as something is carried to the journal's end."""
    while node.broker._carrier is None:
        await asyncio.sleep(0.0003)
    node.drive.fail_next("write")


async def compaction_meets_a_record_that_has_rotted(world: World) -> None:
    """It cannot go on, and without it no commit could: everybody is told, and nothing is lost."""
    node = world.primary
    node.memory_bytes_max = 0
    node.start()
    peer = world.stage.connect(node)
    kept = world.stage.new_send(node, "orders")
    await peer.send(await peer.sender("orders"), payload_of(kept), [kept])
    link = await peer.sender("fast")
    peer.grant(await peer.receiver("fast", deletes=True), 10_000)
    mend = node.drive.rot(kept.mid.encode())
    try:
        async with asyncio.timeout(600):
            while True:
                send = world.stage.new_send(node, "fast")
                await peer.send(link, payload_of(send), [send])
    except TimeoutError:
        world.auditor.violation("S2", "a send is never answered")
    except (Refused, Broken):
        if node.broker.why_refusing() is None:
            world.auditor.violation("S2", "nobody can ask why nothing is accepted")
    mend()
    node.kill()
    node.start()
    await asyncio.sleep(1)
    check_node(world.auditor, node)


async def nothing_is_deleted_for_a_connection_that_is_closing(world: World) -> None:
    """Its receiver asks, and in the same moment its socket breaks; the broker hears of it late."""
    node = world.primary
    node.start()
    peer = world.stage.connect(node)
    link = await peer.receiver("fast", deletes=True)
    other = world.stage.connect(node)
    send = world.stage.new_send(node, "fast")
    await other.send(await other.sender("fast"), payload_of(send), [send])
    peer.grant(link, 1)
    wire = node.wires[0]
    world.loop.at_ms(wire._up_ms, wire.cut)
    await asyncio.sleep(1)
    check_node(world.auditor, node)


async def a_session_that_is_another_s_is_not_renewed(world: World) -> None:
    """Who slept through its lock must hear of that, also when there is a new holder to renew."""
    node = world.primary
    node.start()
    late, next_one = world.stage.connect(node), world.stage.connect(node)
    send = world.stage.new_send(node, "flights", session="amber")
    await late.send(await late.sender("flights"), payload_of(send), [send])
    link = await late.session_receiver("flights", 2000)
    late.grant(link, 1)
    delivery = await late.next(link, 5)
    assert delivery is not None
    await asyncio.sleep((delivery.until_ms - world.loop.now_ms()) / 1000)
    await next_one.session_receiver("flights", 2000)
    for operation in ("renew-session-lock", "set-session-state"):
        body = {"session-id": "amber", "session-state": b"state"}
        answer = await late.ask("flights", f"com.microsoft:{operation}", body)
        if answer.condition != "com.microsoft:session-lock-lost":
            world.auditor.violation("E6", f"{operation} of another's session: {answer.status}")


async def _begin_bulk(world: World) -> tuple[Peer, BulkReader, list[int]]:
    """Start, send two messages and set them aside for a bulk reader."""
    node = world.primary
    node.start()
    peer = world.stage.connect(node)
    link = await peer.sender("bulk")
    for _ in range(2):
        send = world.stage.new_send(node, "bulk")
        await peer.send(link, payload_of(send), [send])
    reader = BulkReader(world.stage, node, "bulk")
    found = await reader.reserve(peer)
    return peer, reader, numbers_in(list(found.body["ranges"]))


async def what_died_while_the_disk_was_full_stays_dead(world: World) -> None:
    """Whoever reads in bulk was told so, and the messages still waited to die."""
    node = world.primary
    peer, reader, seqs = await _begin_bulk(world)
    node.drive.fill()
    if not await _is_refused(world, await peer.sender("orders"), 500):
        world.auditor.violation("E11", "a full disk refused nothing")
    await reader.settle(peer, [], seqs)
    node.kill()
    node.drive.free()
    node.start()
    peer = world.stage.connect(node)
    if (await reader.reserve(peer)).status == 200:
        await reader.settle(peer, [], [])
    check_node(world.auditor, node)


async def a_fence_is_told_once_it_is_on_disk(world: World) -> None:
    """Whoever hears that an epoch is settled goes on with the next, and settles up to that: an
    epoch that a power cut brought back would be completed with it, and its deaths forgotten."""
    node = world.primary
    peer, reader, seqs = await _begin_bulk(world)
    again = world.stage.connect(node)
    await again.sender("bulk")
    node.drive.slow_until_ms = world.loop.now_ms() + 60_000
    dying = asyncio.create_task(reader.settle(peer, [], seqs))
    await asyncio.sleep(0.1)
    await reader.reserve(again)
    node.cut_power()
    await asyncio.gather(dying, return_exceptions=True)
    node.drive.heal()
    node.start()
    peer = world.stage.connect(node)
    send = world.stage.new_send(node, "bulk")
    await peer.send(await peer.sender("bulk"), payload_of(send), [send])
    successor = BulkReader(world.stage, node, "bulk")
    await successor.reserve(peer, ahead=1)
    await successor.settle(peer, [], [], ahead=1)
    check_node(world.auditor, node)


async def _is_refused(world: World, link: object, tries: int) -> bool:
    for _ in range(tries):
        send = world.stage.new_send(world.primary, "orders")
        try:
            await link.peer.send(link, payload_of(send), [send])  # type: ignore[attr-defined]
        except Refused:
            return True
    return False


SCENARIOS = (
    sends_after_a_full_disk,
    a_message_comes_due_after_the_disk_failed,
    compaction_meets_a_record_that_has_rotted,
    nothing_is_deleted_for_a_connection_that_is_closing,
    a_session_that_is_another_s_is_not_renewed,
    what_died_while_the_disk_was_full_stays_dead,
    a_fence_is_told_once_it_is_on_disk,
)
