"""What the journal tells of things that change nothing (L1, C1), and what it keeps silent."""

from __future__ import annotations

from struct import unpack

import pytest
from engine_kit import LOCK_MS, Kit, payload, present

from twinbus.core.descriptions import RuleDescription
from twinbus.engine import observations, records
from twinbus.engine.census import take_census
from twinbus.engine.entities import Queue
from twinbus.engine.index import ACTIVE, CHUNK_SIZE
from twinbus.engine.observations import Observation
from twinbus.engine.observer import Tally
from twinbus.engine.records import Placed
from twinbus.engine.settlement import ABANDON, DEFER, Settlement
from twinbus.engine.stream import Stream

BROKEN = RuleDescription("broken", "sql", "10 / n > 1")


@pytest.fixture
def kit() -> Kit:
    return Kit(observing=True)


def queue_of(kit: Kit) -> Queue:
    """The queue as it is after a restart."""
    return kit.namespace.queue("q")


def of_kind(kit: Kit, kind: int) -> list[bytes]:
    return [record for _, record in kit.log.records if record[0] == kind]


def observed(kit: Kit, what: int) -> list[Observation]:
    found = [Observation(record) for record in of_kind(kit, records.OBSERVED)]
    return [seen for seen in found if seen.what == what]


def ended(kit: Kit) -> list[tuple[int, int, int, int]]:
    """Sequence number, enqueued, first delivered and size of each message that left."""
    rows: list[tuple[int, int, int, int]] = []
    for record in of_kind(kit, records.SETTLED):
        _, first, count, _ = records.read_settled(record)
        columns = records.read_settled_columns(record)
        assert columns is not None
        forms = (f"<{count}q", f"<{count}q", f"<{count}I")
        enqueued, delivered, sizes = (
            unpack(form, raw) for form, raw in zip(forms, columns, strict=True)
        )
        rows += zip(range(first, first + count), enqueued, delivered, sizes, strict=True)
    return rows


def census(kit: Kit, stream: Stream) -> tuple[list[int], list[int]]:
    """The totals that a stream's records of the last census give, and the numbers in them."""
    before = len(observed(kit, observations.PRESENT))
    take_census(kit.engine)
    found = observed(kit, observations.PRESENT)[before:]
    mine = [seen for seen in found if seen.stream == stream.number]
    runs = [run for seen in mine for run in seen.runs()]
    seqs = [seq for first, count in runs for seq in range(first, first + count)]
    return [seen.count for seen in mine], seqs


def test_l1_what_leaves_carries_its_times_and_size(kit: Kit) -> None:
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"bb"))
    sizes = [len(queue.main.stored(seq)) for seq in (1, 2)]
    enqueued_ms = kit.now_ms
    kit.wait(10)
    taker = kit.taker(queue, credit=2)
    delivered_ms = kit.now_ms
    kit.wait(10)
    for lock in taker.locks:
        queue.main.complete(lock, kit.now_ms)
    kit.settle_down()
    assert ended(kit) == [
        (1, enqueued_ms, delivered_ms, sizes[0]),
        (2, enqueued_ms, delivered_ms, sizes[1]),
    ]


def test_l1_the_first_delivery_counts_and_none_is_told_as_zero(kit: Kit) -> None:
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"), payload(b"c"))
    first_ms = kit.now_ms
    taker = kit.taker(queue, credit=2)
    for lock in taker.locks:
        kit.settle(queue, queue.main, lock, Settlement(ABANDON))
    kit.wait(50)
    taker.ask(2)
    for lock in taker.locks[2:]:
        queue.main.complete(lock, kit.now_ms)
    queue.main.remove(3, records.PURGED)
    kit.settle_down()
    assert [(seq, delivered) for seq, _, delivered, _ in ended(kit)] == [
        (1, first_ms), (2, first_ms), (3, 0),
    ]  # fmt: skip


def test_l1_a_run_of_settlements_ends_with_its_chunk(kit: Kit) -> None:
    queue = kit.queue()
    count = CHUNK_SIZE + 100
    kit.send(queue, *[payload(b"x" * (seq % 7)) for seq in range(count)])
    sizes = [len(queue.main.stored(seq)) for seq in range(1, count + 1)]
    kit.taker(queue, credit=count, peek_lock=False)
    assert [records.read_settled(record)[1:3] for record in of_kind(kit, records.SETTLED)] == [
        (1, CHUNK_SIZE - 1), (CHUNK_SIZE, 101),
    ]  # fmt: skip
    assert [size for _, _, _, size in ended(kit)] == sizes
    assert {delivered for _, _, delivered, _ in ended(kit)} == {kit.now_ms}


def test_c1_neighbours_to_one_receiver_are_one_record(kit: Kit) -> None:
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b" * 70_000), payload(b"c"))
    sizes = [len(queue.main.stored(seq)) for seq in (1, 2, 3)]
    taker = kit.taker(queue, credit=0)
    taker.client = "billing"
    taker.ask(3)
    kit.settle(queue, queue.main, taker.locks[1], Settlement(ABANDON))
    taker.ask()
    first, again = observed(kit, observations.DELIVERED)
    assert (first.first, first.count, first.delivery_count, first.client) == (1, 3, 0, "billing")
    assert (first.stream, first.bytes, first.units) == (queue.main.number, sum(sizes), 4)
    assert unpack("<3I", first.rest) == tuple(sizes)
    assert (again.first, again.count, again.delivery_count, again.units) == (2, 1, 1, 2)


def test_c1_two_receivers_are_two_records(kit: Kit) -> None:
    queue = kit.queue()
    kit.send(queue, *[payload() for _ in range(4)])
    one, two = kit.taker(queue, credit=0), kit.taker(queue, credit=0)
    for taker in (one, two):
        taker.credit = 2
        queue.main.want(taker)
    kit.settle_down()
    assert [(seen.first, seen.count) for seen in observed(kit, observations.DELIVERED)] == [
        (1, 2), (3, 2),
    ]  # fmt: skip


def test_l1_a_new_payload_is_marked_and_the_old_one_was_delivered(kit: Kit) -> None:
    queue = kit.queue()
    kit.send(queue, payload())
    size = len(queue.main.stored(1))
    taker = kit.taker(queue, credit=0)
    taker.credit = 1
    queue.main.want(taker)
    kit.engine.kernel.dispatch_ready(kit.now_ms)
    wanted = Settlement(DEFER)
    wanted.take_properties({"color": "red"})
    kit.settle(queue, queue.main, taker.locks[0], wanted)
    new, replaced = (Placed(record, 0) for record in of_kind(kit, records.PLACED))
    assert (new.replaced, replaced.replaced) == (False, True)
    assert new.state == replaced.state == ACTIVE
    (delivered,) = observed(kit, observations.DELIVERED)
    assert delivered.bytes == size < replaced.size
    kit.restart()
    assert present(queue_of(kit).main) == [1]


def test_r5_an_expired_lock_is_told_with_its_holder(kit: Kit) -> None:
    queue = kit.queue()
    kit.send(queue, payload(), payload())
    taker = kit.taker(queue, credit=2)
    taker.client = "slow"
    queue.main.complete(taker.locks[0], kit.now_ms)
    kit.wait(LOCK_MS)
    (seen,) = observed(kit, observations.LOCK_EXPIRED)
    assert (seen.first, seen.count, seen.delivery_count, seen.client) == (2, 1, 0, "slow")
    assert seen.units == 0


def test_e6_an_expired_session_is_told_by_name(kit: Kit) -> None:
    queue = kit.queue(requires_session=True)
    kit.send(queue, payload(session_id="s1"))
    taker = kit.session_taker(queue, "s1")
    taker.client = "slow"
    kit.wait(LOCK_MS)
    assert taker.lost
    (seen,) = observed(kit, observations.LOCK_EXPIRED)
    assert (seen.first, seen.rest, seen.client) == (0, b"s1", "slow")


def test_e7_a_dropped_duplicate_is_told_by_its_id(kit: Kit) -> None:
    queue = kit.queue(requires_duplicate_detection=True)
    kit.send(queue, payload(message_id="one"), payload(message_id="one"))
    (seen,) = observed(kit, observations.DUPLICATE_DROPPED)
    assert (seen.stream, seen.rest) == (queue.main.number, b"one")


@pytest.mark.parametrize("kept", [False, True])
def test_d6_a_failing_filter_is_told(kit: Kit, kept: bool) -> None:
    topic = kit.topic()
    subscription = kit.subscription(
        rule=BROKEN, dead_lettering_on_filter_evaluation_exceptions=kept
    )
    kit.send(topic, payload(properties={"n": 0}), payload(properties={"n": 2}))
    (seen,) = observed(kit, observations.FILTER_FAILED)
    assert seen.stream == subscription.main.number
    assert seen.rest.startswith(b"FilterException: ")


def test_c1_a_tally_is_one_record_for_each_commit(kit: Kit) -> None:
    observer = kit.engine.kernel.observer
    assert observer is not None
    tally = Tally(observer, observations.SENT, 4, "orders")
    for size in (1, 65_536, 65_537):
        tally.add(size)
    kit.settle_down()
    tally.add(10)
    kit.settle_down()
    kit.settle_down()
    first, second = observed(kit, observations.SENT)
    assert (first.stream, first.count, first.bytes, first.units) == (4, 3, 131_074, 4)
    assert (second.count, second.bytes, second.units, second.client) == (1, 10, 1, "orders")


def test_c1_rare_operations_share_a_tally_and_long_names_are_cut(kit: Kit) -> None:
    observer = kit.engine.kernel.observer
    assert observer is not None
    for _ in range(3):
        observer.count(observations.PEEKED, 4, "ä" * 1_000)
    observer.count(observations.PEEKED, 5, "b")
    kit.settle_down()
    assert [(seen.stream, seen.count, seen.client) for seen in observed(kit, 7)] == [
        (4, 3, "ä" * 256), (5, 1, "b"),
    ]  # fmt: skip


def test_l1_a_census_lists_what_is_there_in_every_state(kit: Kit) -> None:
    queue = kit.queue()
    empty = kit.queue("empty")
    due_ms = kit.now_ms + 60_000
    kit.send(queue, *[payload() for _ in range(CHUNK_SIZE + 5)], payload(due_ms=due_ms))
    taker = kit.taker(queue, credit=4)
    kit.settle(queue, queue.main, taker.locks[0], Settlement(DEFER))
    queue.main.complete(taker.locks[2], kit.now_ms)
    totals, seqs = census(kit, queue.main)
    assert seqs == present(queue.main)
    assert totals == [len(seqs)] == [CHUNK_SIZE + 5]
    assert census(kit, empty.main) == ([0], [])


def test_l1_a_census_follows_the_settlements_it_reflects(kit: Kit) -> None:
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue)
    queue.main.complete(taker.locks[0], kit.now_ms)
    assert census(kit, queue.main) == ([0], [])
    assert [record[0] for _, record in kit.log.records[-2:]] == [records.SETTLED, records.OBSERVED]


def test_l1_a_census_of_many_runs_takes_several_records(kit: Kit) -> None:
    index = kit.queue().main.index
    wanted = list(range(1, 2 * 50_001, 2))
    for seq in wanted:
        index.put(seq, ACTIVE, 1 << 32, 1, kit.now_ms, 0, None)
    totals, seqs = census(kit, queue_of(kit).main)
    assert seqs == wanted
    assert totals == [50_001, 50_001]


def test_l1_nothing_is_observed_unless_asked_for() -> None:
    kit = Kit()
    queue = kit.queue(requires_duplicate_detection=True)
    topic = kit.topic()
    kit.subscription(rule=BROKEN)
    kit.send(topic, payload(properties={"n": 0}))
    kit.send(queue, payload(message_id="a"), payload(message_id="a"), payload(message_id="b"))
    taker = kit.taker(queue, credit=2)
    queue.main.complete(taker.locks[0], kit.now_ms)
    kit.wait(LOCK_MS)
    assert of_kind(kit, records.OBSERVED) == []
    (settled,) = of_kind(kit, records.SETTLED)
    assert records.read_settled_columns(settled) is None


def test_l1_a_broker_that_observes_no_more_reads_what_it_wrote(kit: Kit) -> None:
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"))
    taker = kit.taker(queue, credit=2)
    queue.main.complete(taker.locks[0], kit.now_ms)
    kit.observing = False
    kit.restart()
    assert kit.bodies(queue_of(kit)) == [b"b"]
