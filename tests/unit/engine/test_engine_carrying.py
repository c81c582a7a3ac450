"""Compaction: what is live in old segments is written anew, and they can go."""

from __future__ import annotations

from engine_kit import Kit, payload

from twinbus.core.units import MINUTE_MS
from twinbus.engine import settlement
from twinbus.engine.carrying import Carrier
from twinbus.engine.index import DEFERRED, SCHEDULED
from twinbus.engine.settlement import PLAIN_COMPLETE, Settlement
from twinbus.engine.shifting import shift


def fill_segment(kit: Kit) -> None:
    """Write until a new segment begins."""
    segment = kit.log.records[-1][0] >> 32
    filler = kit.namespace.find("filler") or kit.queue("filler")
    while kit.log.records[-1][0] >> 32 == segment:
        kit.send(filler, payload(b"filler"))


def carry_all(kit: Kit, bytes_max: int = 1 << 20) -> None:
    """Carry everything out of all segments but the current one, and drop them."""
    segment = kit.log.records[-1][0] >> 32
    carrier = Carrier(kit.engine, segment)
    while not carrier.finished:
        carrier.step(bytes_max, kit.now_ms)
    kit.settle_down()
    kit.log.drop_before(segment)


def test_what_is_live_outlives_its_segment() -> None:
    kit = Kit(memory_bytes_max=0)
    queue = kit.queue()
    kit.send(queue, payload(b"done"), payload(b"live"), payload(b"later", due_ms=kit.now_ms + 500))
    taker = kit.taker(queue)
    kit.settle(queue, queue.main, taker.locks[0], PLAIN_COMPLETE)
    fill_segment(kit)
    carry_all(kit)
    assert kit.bodies(queue) == [b"live", b"later"]
    kit.restart()
    queue = kit.namespace.queue("q")
    assert kit.bodies(queue) == [b"live", b"later"]
    assert queue.main.index.state(3) == SCHEDULED
    assert queue.main.next_seq == 4


def test_e8_subscriptions_stay_in_the_order_in_which_they_were_made() -> None:
    """It decides which of two copies is the duplicate where both are forwarded to."""
    kit = Kit()
    topic = kit.topic()
    for name in ("b", "c", "a"):
        kit.subscription(name)
    fill_segment(kit)
    carry_all(kit)
    kit.restart()
    topic = kit.namespace.topic("t")
    assert list(topic.subscriptions) == ["b", "c", "a"]


def test_every_state_is_carried_as_it_will_be_after_a_restart() -> None:
    kit = Kit(memory_bytes_max=0)
    queue = kit.queue()
    kit.send(queue, payload(b"deferred"), payload(b"locked"), payload(b"failed"))
    taker = kit.taker(queue, credit=3)
    kit.settle(queue, queue.main, taker.locks[0], Settlement(settlement.DEFER))
    kit.settle(queue, queue.main, taker.locks[2], Settlement(settlement.ABANDON))
    queue.main.fetch_deferred([1], None, None, kit.now_ms)
    fill_segment(kit)
    carry_all(kit)
    # Locks are not touched by it.
    kit.settle(queue, queue.main, taker.locks[1], Settlement(settlement.RELEASE))
    kit.restart()
    queue = kit.namespace.queue("q")
    assert queue.main.index.state(1) == DEFERRED
    again = kit.taker(queue, credit=5)
    assert (again.bodies, again.counts) == ([b"locked", b"failed"], [0, 1])


def test_shared_payloads_stay_shared() -> None:
    kit = Kit(memory_bytes_max=0)
    topic = kit.topic()
    subscriptions = [kit.subscription(name) for name in "abc"]
    kit.send(topic, payload(b"x" * 1_000))
    fill_segment(kit)
    written = len(kit.log.records)
    carry_all(kit)
    assert len({s.main.location(1) for s in subscriptions}) == 1
    assert sum(b"x" * 1_000 in record for _, record in kit.log.records[written:]) == 1
    kit.restart()
    for name in "abc":
        assert kit.bodies(kit.namespace.subscription("t", name)) == [b"x" * 1_000]


def test_e6_e7_session_states_and_message_ids_are_carried() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True, requires_duplicate_detection=True)
    kit.send(queue, payload(message_id="old", session_id="s"))
    kit.wait(9 * MINUTE_MS)
    kit.send(queue, payload(message_id="new", session_id="s"))
    taker = kit.session_taker(queue, "s", credit=0)
    queue.main.set_session_state("s", b"state", kit.now_ms)
    queue.main.detach(taker, kit.now_ms)
    fill_segment(kit)
    kit.wait(1 * MINUTE_MS)
    carry_all(kit)
    kit.restart()
    queue = kit.namespace.queue("q")
    assert queue.main.sessions is not None
    assert queue.main.sessions.get("s").state == b"state"
    kit.send(
        queue, payload(message_id="old", session_id="s"), payload(message_id="new", session_id="s")
    )
    assert len(kit.bodies(queue)) == 3


def test_e6_session_states_are_carried_some_at_a_time() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    for number in range(50):
        taker = kit.session_taker(queue, f"s{number}", credit=0)
        queue.main.set_session_state(f"s{number}", b"%d" % number * 10_000, kit.now_ms)
        queue.main.detach(taker, kit.now_ms)
    fill_segment(kit)
    carrier = Carrier(kit.engine, kit.log.records[-1][0] >> 32)
    steps = 0
    while not carrier.finished:
        written = len(kit.log.records)
        carrier.step(100_000, kit.now_ms)
        assert sum(len(record) for _, record in kit.log.records[written:]) < 150_000
        steps += 1
        if steps == 2:
            # Set anew and gone while they wait.
            for number, state in ((3, b"new"), (4, None)):
                taker = kit.session_taker(queue, f"s{number}", credit=0)
                queue.main.set_session_state(f"s{number}", state, kit.now_ms)
                queue.main.detach(taker, kit.now_ms)
    assert steps >= 5
    kit.settle_down()
    kit.log.drop_before(carrier.segment)
    kit.restart()
    table = kit.namespace.queue("q").main.sessions
    assert table is not None
    wanted: dict[str, bytes | None] = {f"s{n}": b"%d" % n * 10_000 for n in range(50)}
    wanted["s3"] = b"new"
    del wanted["s4"]
    assert {session.id: session.state for session in table.sessions.values()} == wanted


def test_e7_an_entity_that_goes_while_its_ids_are_carried_does_no_harm() -> None:
    kit = Kit()
    queue = kit.queue(requires_duplicate_detection=True)
    kit.send(queue, *[payload(message_id=str(number)) for number in range(1_500)])
    fill_segment(kit)
    carrier = Carrier(kit.engine, kit.log.records[-1][0] >> 32)
    while not 500 < kit.log.carried < 1_200:
        carrier.step(1, kit.now_ms)
    kit.namespace.delete("q")
    while not carrier.finished:
        carrier.step(1, kit.now_ms)
    kit.settle_down()
    kit.log.drop_before(carrier.segment)
    kit.restart()
    assert kit.namespace.find("q") is None
    assert kit.engine.kept_bytes() > 0


def test_entities_and_numbers_are_carried() -> None:
    kit = Kit()
    kit.queue("Empty")
    emptied = kit.queue("emptied")
    kit.send(emptied, payload())
    kit.taker(emptied, peek_lock=False)
    topic = kit.topic()
    kit.send(topic, payload())
    fill_segment(kit)
    carry_all(kit)
    kit.restart()
    assert kit.namespace.queue("empty").path == "Empty"
    assert kit.namespace.queue("emptied").main.next_seq == 2
    assert kit.namespace.topic("t").main.next_seq == 2


def test_carrying_goes_a_little_at_a_time() -> None:
    kit = Kit(memory_bytes_max=0)
    queue = kit.queue()
    kit.send(queue, *[payload(b"x" * 100) for _ in range(10)])
    fill_segment(kit)
    segment = kit.log.records[-1][0] >> 32
    carrier = Carrier(kit.engine, segment)
    steps = 0
    while not carrier.finished:
        before = kit.log.carried
        carrier.step(1, kit.now_ms)
        # A message, or an entity with how far its numbers had come.
        assert kit.log.carried - before <= 2
        steps += 1
    assert steps >= 10


def test_a_thousand_queues_are_carried_some_at_a_time() -> None:
    kit = Kit()
    for number in range(1000):
        kit.queue(f"q{number}")
    fill_segment(kit)
    carrier = Carrier(kit.engine, kit.log.records[-1][0] >> 32)
    carrier.step(1 << 20, kit.now_ms)
    assert 0 < kit.log.carried <= 101
    assert not carrier.finished
    kit.namespace.delete("q0")
    kit.queue("q0", lock_duration_ms=7_000)
    while not carrier.finished:
        carrier.step(1 << 20, kit.now_ms)
    kit.settle_down()
    kit.log.drop_before(carrier.segment)
    kit.restart()
    assert kit.namespace.queue("q0").description.lock_duration_ms == 7_000
    assert kit.namespace.queue("q999").path == "q999"


def test_what_is_settled_while_it_waits_its_turn_is_not_carried() -> None:
    kit = Kit(memory_bytes_max=0)
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"))
    fill_segment(kit)
    carrier = Carrier(kit.engine, kit.log.records[-1][0] >> 32)
    kit.taker(queue, peek_lock=False)
    while not carrier.finished:
        carrier.step(1 << 20, kit.now_ms)
    kit.settle_down()
    kit.log.drop_before(carrier.segment)
    kit.restart()
    assert kit.bodies(kit.namespace.queue("q")) == [b"b"]


def test_a_segment_that_turns_up_again_does_no_harm() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"a"), payload(b"b"))
    fill_segment(kit)
    kept = list(kit.log.records)
    carry_all(kit)
    kit.taker(queue, peek_lock=False)
    kit.log.records[: len(kept)] = kept
    kit.restart()
    assert kit.bodies(kit.namespace.queue("q")) == [b"b"]


def test_a_removed_entitys_number_is_not_given_again() -> None:
    """L1: else its messages could not be told from its successor's."""
    kit = Kit()
    kit.queue("filler")
    number = kit.queue("gone").number
    kit.namespace.delete("gone")
    fill_segment(kit)
    carry_all(kit)
    kit.restart()
    assert kit.queue("new").number > number


def test_e7_ids_are_kept_when_the_clock_is_set_back_while_they_wait_to_be_carried() -> None:
    """They moved with the clock, and are as young as before."""
    kit = Kit()
    kit.now_ms += 3_600_000
    queue = kit.queue(requires_duplicate_detection=True)
    kit.send(queue, payload(message_id="known"))
    fill_segment(kit)
    carrier = Carrier(kit.engine, kit.log.records[-1][0] >> 32)
    kit.now_ms -= 3_600_000
    shift(kit.engine, -3_600_000, kit.now_ms)
    while not carrier.finished:
        carrier.step(1 << 20, kit.now_ms)
    kit.settle_down()
    kit.log.drop_before(carrier.segment)
    for _ in range(2):
        kit.send(kit.namespace.queue("q"), payload(message_id="known"))
        assert len(kit.bodies(kit.namespace.queue("q"))) == 1
        kit.restart()
