"""Goal: a broker that is short of effort, room or time loses nothing and doubles nothing.

Method: random operations on an engine whose batches hold next to nothing (`tight_world.py`).
There is no second broker to compare with, for when exactly something is done is nobody's promise
here; instead every message is accounted for after each commit, the engine's books must add up, a
restart must change nothing, and in the end, when all is plentiful, everything can be received.
The model leaves effort out, so that it can tell what happens when; this is the other half.

A failure names its seed: `SEED=n pytest tests/model/test_engine_tight.py` plays it again.
"""

from __future__ import annotations

import os
from collections import Counter
from random import SystemRandom
from typing import Any

import pytest
from engine_dump import assert_same, dump_engine
from tight_world import OPERATIONS, SESSIONS, TightWorld

from tests.support.payloads import check_payloads
from tests.unit.engine.engine_kit import Taker, present
from twinbus.engine import reserving
from twinbus.engine.index import ACTIVE, DEFERRED_LOCKED, LOCKED, RESERVED, SCHEDULED
from twinbus.engine.stream import Stream

STEPS = 250
TRACE_SHOWN = 12
# 4, 9, 18, 19, 21, 31, 43, 48, 50, 56 and 69 catch it if two epochs are settled at once, only the
# second is refused as busy, and what has died of the first is still in it by the journal: then it
# is reserved after a restart although it is gone. With sessions the broker could not even start. A
# change of the engine, or of the operations, changes which seeds do.
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else list(range(70))
LONG_SEEDS = 5_000
PLENTY = 1 << 30


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_in_need_keeps_what_it_has(seed: int) -> None:
    play(seed)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_broker_in_need_keeps_what_it_has_for_long() -> None:
    for _ in range(LONG_SEEDS):
        play(SystemRandom().randrange(1 << 32))


def play(seed: int) -> None:
    world = TightWorld(seed)
    try:
        for _ in range(STEPS):
            (operation,) = world.dice.choices(list(OPERATIONS), list(OPERATIONS.values()))
            world.trace.append(operation.__name__)
            if operation is TightWorld.restart:
                check_restart(world)
            else:
                operation(world)
            if world.happens(0.6):
                world.commit()
                check(world)
        world.trace.append("everything is received")
        check_end(world)
    except Exception as fault:
        last = "\n  ".join(world.trace[-TRACE_SHOWN:])
        fault.add_note(f"seed {seed}, step {len(world.trace)}; the last ones:\n  {last}")
        raise


def check(world: TightWorld) -> None:
    """What must hold after every commit."""
    for entity in world.entities():
        for stream in entity.streams.values():
            check_stream(stream)
        held_bytes = sum(stream.index.bytes for stream in entity.streams.values())
        assert entity.bytes_used == held_bytes, entity.path
    check_payloads(world.kit.engine)
    check_messages(world)


def check_messages(world: TightWorld) -> None:
    """Of what was sent, so many copies are there or gone for good as there must be."""
    streams = {s.number: s for entity in world.entities() for s in entity.streams.values()}
    there = {(number, seq) for number, stream in streams.items() for seq in present(stream)}
    assert there == world.ledger.there.keys(), "the journal tells otherwise"
    found: Counter[bytes] = Counter(world.ledger.gone)
    for (number, _), body in world.ledger.there.items():
        found[body] += world.worth(number)
    assert found == world.copies, "lost, doubled or back from the dead"


def check_stream(stream: Stream) -> None:
    index, path = stream.index, stream.path
    seqs = present(stream)
    assert index.live == len(seqs), path
    assert index.bytes == sum(stream.size(seq) for seq in seqs), path
    waiting = {seq for _, seq in stream.delayed} | {seq for seq, *_ in stream.dying}
    for seq in seqs:
        if index.state(seq) == LOCKED:
            assert seq in stream.locked or seq in waiting, f"{path}: nobody unlocks {seq}"
        if index.state(seq) == DEFERRED_LOCKED:
            assert seq in stream.locked, f"{path}: nobody unlocks {seq}"
    table = stream.reservations
    reservers = [] if table is None else list(table.reservers.values())
    outstanding = [each for reserver in reservers for each in reserver.outstanding()]
    reserved = sorted(seq for each in outstanding for seq in each.seqs())
    assert reserved == [seq for seq in seqs if index.state(seq) == RESERVED], path
    if stream.sessions is not None:
        check_sessions(stream, seqs)


def check_sessions(stream: Stream, seqs: list[int]) -> None:
    table, index = stream.sessions, stream.index
    assert table is not None
    assert sorted(table.of_message) == seqs
    for session in table.sessions.values():
        own = [seq for seq in seqs if table.of_message[seq] is session]
        assert session.live == len(own)
        assert session.reserved == [index.state(seq) for seq in own].count(RESERVED)
        active = {seq for seq in own if index.state(seq) == ACTIVE}
        assert active <= set(session.waiting), "one would never be delivered"
        assert not active or session.holder is not None or session.id in table.free


def check_restart(world: TightWorld) -> None:
    """What is on disk is what was there."""
    world.commit()
    check(world)
    before = durable(world)
    world.restart()
    assert_same(durable(world), before)


def durable(world: TightWorld) -> dict[str, Any]:
    dump = dump_engine(world.kit.engine, world.kit.now_ms)
    # When an id was seen moves with the clock, and is told as it was once after a restart.
    return {path: {**told, "history": sorted(told["history"])} for path, told in dump.items()}


def check_end(world: TightWorld) -> None:
    """Once there is plenty of everything, nothing is stuck, and all is received in order."""
    kit = world.kit
    kernel = kit.engine.kernel
    kernel.set_full(False)
    kernel.effort_max = kernel.effort_left = PLENTY
    for _ in range(2):
        kit.settle_down()
    for _, stream in world.all_streams():
        assert not stream.dying, f"nobody told {stream.path} that there is room"
    for receiver in world.receivers:
        if receiver.detached is None:
            receiver.stream.detach(receiver, kit.now_ms)
    freely = {"status": "Active", "forward_to": None, "forward_dead_lettered_messages_to": None}
    for holder in world.holders():
        world.change(holder, {**freely, "max_delivery_count": 100})
    for holder, stream in world.all_streams():
        if stream.reservations is not None:
            for consumer in list(stream.reservations.reservers):
                reserving.release(holder, stream, consumer, kit.now_ms)
    for _ in range(3):
        kit.wait(10_000)
    check_rest(world, {LOCKED, DEFERRED_LOCKED, RESERVED, SCHEDULED})
    takers: list[Taker] = []
    for holder in world.holders():
        for which in (0, 1, 2):
            if holder.stream(which).sessions is None:
                takers.append(kit.taker(holder, which, PLENTY))
            else:
                takers += [kit.session_taker(holder, session, PLENTY) for session in SESSIONS]
    for _ in range(3):
        kit.wait(1)
    check_rest(world, {ACTIVE, RESERVED, SCHEDULED})
    for taker in takers:
        assert taker.seqs == sorted(taker.seqs)
    world.commit()
    check(world)


def check_rest(world: TightWorld, over: set[int]) -> None:
    """No message is in a state that must be over by now."""
    for entity in world.entities():
        for stream in entity.streams.values():
            states = {stream.index.state(seq) for seq in present(stream)}
            assert not states & over, f"stuck in {stream.path}"
