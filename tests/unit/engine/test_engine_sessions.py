"""Sessions (E6)."""

from __future__ import annotations

from typing import Any, NoReturn

from engine_kit import LOCK_MS, Kit, Taker, payload, refusal

from twinbus.amqp.types import Char
from twinbus.core import errors
from twinbus.core.descriptions import RuleDescription
from twinbus.engine import records, reserving, settlement
from twinbus.engine.consumer import Lock
from twinbus.engine.entities import Queue
from twinbus.engine.index import ACTIVE
from twinbus.engine.settlement import PLAIN_COMPLETE, Settlement


def session_queue(kit: Kit, **settings: object) -> Queue:
    queue = kit.queue(requires_session=True, **settings)
    kit.send(
        queue,
        payload(b"a1", session_id="a"),
        payload(b"b1", session_id="b"),
        payload(b"a2", session_id="a"),
    )
    return queue


def seek(kit: Kit, queue: Queue, wait_ms: int = 10_000, credit: int = 5) -> Taker:
    """A receiver that takes any session."""
    taker = Taker(kit, queue.main, credit, True)
    queue.main.attach(taker, kit.now_ms)
    queue.main.seek_session(taker, kit.now_ms + wait_ms)
    kit.settle_down()
    return taker


def test_e6_a_session_goes_in_order_to_its_holder() -> None:
    kit = Kit()
    queue = session_queue(kit)
    taker = kit.session_taker(queue, "a", credit=5)
    assert taker.bodies == [b"a1", b"a2"]
    kit.send(queue, payload(b"b2", session_id="b"), payload(b"a3", session_id="a"))
    assert taker.bodies == [b"a1", b"a2", b"a3"]


def test_e6_a_session_has_one_holder() -> None:
    kit = Kit()
    queue = session_queue(kit)
    kit.session_taker(queue, "a")
    error = refusal(lambda: kit.session_taker(queue, "a"))
    assert error.kind is errors.SESSION_CANNOT_BE_LOCKED


def test_e6_the_next_available_session_is_one_with_messages() -> None:
    kit = Kit()
    queue = session_queue(kit)
    kit.session_taker(queue, "a")
    taker = seek(kit, queue)
    assert taker.found == "b"
    assert taker.bodies == [b"b1"]


def test_e6_whoever_seeks_a_session_waits_for_one() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    taker = seek(kit, queue, wait_ms=1_000)
    kit.wait(999)
    assert not taker.gave_up
    kit.send(queue, payload(session_id="new"))
    assert taker.found == "new"


def test_e6_whoever_seeks_a_session_gives_up_in_time() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    taker = seek(kit, queue, wait_ms=1_000)
    kit.wait(1_000)
    assert taker.gave_up
    kit.send(queue, payload(session_id="late"))
    assert taker.found is None


def test_r9_e6_whoever_does_not_wait_gets_what_is_free_now() -> None:
    kit = Kit()
    queue = session_queue(kit)
    first, second, third = [seek(kit, queue, wait_ms=0) for _ in range(3)]
    assert (first.found, first.bodies) == ("a", [b"a1", b"a2"])
    assert (second.found, second.bodies) == ("b", [b"b1"])
    assert third.gave_up


def test_e5_e6_a_session_is_browsed_by_itself() -> None:
    kit = Kit()
    queue = session_queue(kit)
    states = bytes((ACTIVE,))
    assert queue.main.browse(1, 10, "a", states) == [1, 3]
    assert queue.main.browse(2, 10, "a", states) == [3]
    assert queue.main.browse(1, 1, "a", states) == [1]
    assert queue.main.browse(1, 10, "b", states) == [2]
    assert queue.main.browse(1, 10, "nobody's", states) == []


def test_e6_an_empty_session_can_be_accepted_by_its_id() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    taker = kit.session_taker(queue, "empty")
    kit.send(queue, payload(b"first", session_id="empty"))
    assert taker.bodies == [b"first"]


def test_e6_a_message_without_session_id_is_refused() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    assert refusal(lambda: kit.send(queue, payload())).kind is errors.NOT_ALLOWED
    long_id = payload(session_id="x" * 129)
    assert refusal(lambda: kit.send(queue, long_id)).kind is errors.ARGUMENT_ERROR


def test_e6_d3_a_message_without_session_id_dies_in_a_subscription() -> None:
    kit = Kit()
    topic = kit.topic()
    subscription = kit.subscription(requires_session=True)
    kit.send(topic, payload(b"stray"), payload(b"fine", session_id="a"))
    assert kit.bodies(subscription) == [b"fine"]
    reason, description, source = kit.death(subscription)
    assert reason == "Session id is null."
    assert "session identifier is null" in str(description)
    assert source == "t/Subscriptions/s"


def test_e6_a_rule_may_give_a_message_its_session() -> None:
    kit = Kit()
    topic = kit.topic()
    rule = RuleDescription("by-label", action="SET sys.SessionId = sys.Label")
    subscription = kit.subscription(rule=rule, requires_session=True)
    kit.send(topic, payload(b"x", subject="given"))
    assert kit.session_taker(subscription, "given").bodies == [b"x"]


def test_e6_r3_a_session_lock_that_runs_out_counts() -> None:
    kit = Kit()
    queue = session_queue(kit)
    taker = kit.session_taker(queue, "a")
    kit.wait(LOCK_MS)
    assert taker.lost
    error = refusal(lambda: queue.main.complete(taker.locks[0], kit.now_ms))
    assert error.kind is errors.SESSION_LOCK_LOST
    other = kit.session_taker(queue, "a", credit=2)
    assert (other.bodies, other.counts) == ([b"a1", b"a2"], [1, 0])


def test_e6_a_session_whose_lock_ran_out_can_be_taken_before_the_timers_run() -> None:
    kit = Kit()
    queue = session_queue(kit)
    first = kit.session_taker(queue, "a")
    kit.now_ms += LOCK_MS
    second = kit.session_taker(queue, "a")
    assert first.lost
    assert second.counts == [1]


def test_e6_a_receiver_that_leaves_counts_for_nothing() -> None:
    kit = Kit()
    queue = session_queue(kit)
    taker = kit.session_taker(queue, "a")
    queue.main.detach(taker, kit.now_ms)
    assert kit.session_taker(queue, "a").counts == [0]


def test_e6_r6_renewing_a_session_prolongs_the_locks_of_its_messages() -> None:
    kit = Kit()
    queue = session_queue(kit)
    taker = kit.session_taker(queue, "a")
    kit.wait(LOCK_MS - 1)
    assert queue.main.renew_session("a", kit.now_ms) == kit.now_ms + LOCK_MS
    kit.wait(LOCK_MS - 1)
    kit.settle(queue, queue.main, taker.locks[0], PLAIN_COMPLETE)
    assert b"a1" not in kit.bodies(queue)
    kit.wait(1)
    assert taker.lost
    error = refusal(lambda: queue.main.renew_session("a", kit.now_ms))
    assert error.kind is errors.SESSION_LOCK_LOST


def test_e6_an_abandoned_message_comes_before_later_ones() -> None:
    kit = Kit()
    queue = session_queue(kit)
    taker = kit.session_taker(queue, "a")
    kit.settle(queue, queue.main, taker.locks[0], Settlement(settlement.ABANDON))
    taker.ask(2)
    assert taker.bodies == [b"a1", b"a1", b"a2"]


def held_back(kit: Kit, queue: Queue, delay_ms: int = 500) -> Taker:
    """The holder of session a, after its first message was abandoned with a delay."""
    taker = kit.session_taker(queue, "a")
    wanted = Settlement(settlement.ABANDON)
    wanted.delay_ms = delay_ms
    kit.settle(queue, queue.main, taker.locks[0], wanted)
    return taker


def test_e6_a_message_that_is_held_back_holds_its_session_back() -> None:
    kit = Kit()
    queue = session_queue(kit)
    taker = held_back(kit, queue)
    taker.ask(5)
    assert kit.session_taker(queue, "b").bodies == [b"b1"]
    kit.wait(499)
    assert taker.bodies == [b"a1"]
    kit.wait(1)
    assert taker.bodies == [b"a1", b"a1", b"a2"]


def test_e6_a_session_that_is_held_back_is_found_by_nobody_until_it_goes_on() -> None:
    kit = Kit()
    queue = session_queue(kit)
    queue.main.detach(held_back(kit, queue), kit.now_ms)
    kit.settle_down()
    assert seek(kit, queue).found == "b"
    late = seek(kit, queue)
    assert late.found is None
    kit.wait(500)
    assert late.bodies == [b"a1", b"a2"]


def test_e6_l3_a_session_that_is_held_back_is_not_reserved_in_its_middle() -> None:
    kit = Kit()
    queue = session_queue(kit)
    queue.main.detach(held_back(kit, queue), kit.now_ms)
    kit.settle_down()
    found = reserving.reserve(queue, queue.main, "job", 1, 10, kit.now_ms)
    assert found is not None
    assert found.seqs() == [2]


def test_e6_session_state_is_kept() -> None:
    kit = Kit()
    queue = session_queue(kit)
    kit.session_taker(queue, "a")
    queue.main.set_session_state("a", b"half way", kit.now_ms)
    kit.restart()
    queue = kit.namespace.queue("q")
    assert queue.main.sessions is not None
    assert queue.main.sessions.get("a").state == b"half way"
    error = refusal(lambda: queue.main.set_session_state("a", b"", kit.now_ms))
    assert error.kind is errors.SESSION_LOCK_LOST


def test_e6_a_session_with_a_state_outlives_its_messages() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    taker = kit.session_taker(queue, "a")
    queue.main.set_session_state("a", b"state", kit.now_ms)
    queue.main.detach(taker, kit.now_ms)
    assert queue.main.sessions is not None
    assert "a" in queue.main.sessions.sessions
    taker = kit.session_taker(queue, "a")
    queue.main.set_session_state("a", None, kit.now_ms)
    queue.main.detach(taker, kit.now_ms)
    assert "a" not in queue.main.sessions.sessions
    kit.restart()
    table = kit.namespace.queue("q").main.sessions
    assert table is not None
    assert table.sessions == {}


def test_e6_order_survives_a_restart() -> None:
    kit = Kit()
    queue = session_queue(kit)
    kit.session_taker(queue, "a", credit=2)
    kit.restart()
    assert kit.session_taker(kit.namespace.queue("q"), "a", credit=5).bodies == [b"a1", b"a2"]


def test_e6_the_bytes_of_states_are_counted() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    for session_id, state in (("a", b"x" * 1_000), ("b", b"y" * 500), ("ż", b"")):
        taker = kit.session_taker(queue, session_id)
        queue.main.set_session_state(session_id, state, kit.now_ms)
        queue.main.detach(taker, kit.now_ms)
    written = [len(r) + 4 for _, r in kit.log.records if r[0] == records.SESSION_STATE_SET]
    assert kit.engine.kept_bytes() == sum(written) == 1_500 + 4 + 3 * 20
    taker = kit.session_taker(queue, "a")
    queue.main.set_session_state("a", b"z" * 10, kit.now_ms)
    queue.main.detach(taker, kit.now_ms)
    taker = kit.session_taker(queue, "b")
    queue.main.set_session_state("b", None, kit.now_ms)
    queue.main.detach(taker, kit.now_ms)
    assert kit.engine.kept_bytes() == 10 + 3 + 2 * 20
    kit.restart()
    assert kit.engine.kept_bytes() == 10 + 3 + 2 * 20
    kit.namespace.delete("q")
    assert kit.engine.kept_bytes() == 0


class Unseen(dict[int, Lock]):
    def values(self) -> NoReturn:  # type: ignore[override]
        raise AssertionError("all locks were looked at")


def test_e6_r7_a_session_that_is_released_looks_at_its_own_locks_only() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    kit.send(queue, *[payload(b"%d" % n, session_id=f"s{n % 2}") for n in range(10)])
    takers = [kit.session_taker(queue, session_id, credit=5) for session_id in ("s0", "s1")]
    kit.settle(queue, queue.main, takers[0].locks[1], PLAIN_COMPLETE)
    kit.settle(queue, queue.main, takers[0].locks[3], Settlement(settlement.DEFER))
    queue.main.locked = Unseen(queue.main.locked)
    queue.main.detach(takers[0], kit.now_ms)
    queue.main.locked = dict(queue.main.locked.items())
    again = kit.session_taker(queue, "s0", credit=5)
    assert again.bodies == [b"0", b"4", b"8"]
    assert len(queue.main.locked) == 8
    # The entity goes with locks on it.
    kit.namespace.delete("q")
    assert again.detached is not None


def test_e6_a_session_that_nobody_takes_does_not_grow_with_what_expires_in_it() -> None:
    """One with a state is never forgotten."""
    kit = Kit()
    queue = kit.queue(requires_session=True)
    keeper = kit.session_taker(queue, "a")
    queue.main.set_session_state("a", b"half way", kit.now_ms)
    queue.main.detach(keeper, kit.now_ms)
    kit.session_taker(queue, "another")  # expired messages go while somebody receives (D5)
    for _ in range(30):
        kit.send(queue, *[payload(session_id="a", ttl_ms=1_000) for _ in range(100)])
        kit.wait(2_000)
        assert queue.main.index.live == 0
    assert queue.main.sessions is not None
    assert len(queue.main.sessions.sessions["a"].waiting) <= 1_100


def test_e6_a_search_past_what_expired_in_a_session_ends_at_what_is_left() -> None:
    """Also if what is stale is swept meanwhile: the first that expires is one too many."""
    kit = Kit()
    queue = kit.queue(requires_session=True)
    kit.send(queue, payload(session_id="a", ttl_ms=1_000))
    kit.send(queue, *[payload(b"%d" % n, session_id="a") for n in range(3)])
    kit.send(queue, *[payload(session_id="a") for _ in range(1_004)])
    queue.main.remove_range(5, queue.main.durable_seq, records.PURGED)
    kit.now_ms += 2_000
    taker = Taker(kit, queue.main, 9, peek_lock=True)
    queue.main.accept_session(taker, "a", kit.now_ms)
    queue.main.want(taker)
    kit.engine.kernel.dispatch_ready(kit.now_ms)
    assert taker.bodies == [b"0", b"1", b"2"]


def test_e6_d3_half_of_a_character_is_no_session_id() -> None:
    """It is no text that could be written: once due, it would have stopped every start."""
    kit = Kit()
    topic = kit.topic()
    kit.subscription(requires_session=True)
    half: Any = Char("\ud83d")
    kit.send(topic, payload(b"half", session_id=half, due_ms=kit.now_ms + 1_000))
    kit.restart()
    subscription = kit.namespace.topic("t").subscriptions["s"]
    kit.wait(1_000)
    assert kit.bodies(subscription, 1) == [b"half"]
    assert kit.death(subscription)[0] == "Session id is null."


def test_e6_a_topic_takes_no_session_id_that_is_too_long() -> None:
    """Whoever gets that session next is told its id, which a frame may not hold: nobody would get
    past it."""
    kit = Kit()
    topic = kit.topic()
    subscription = kit.subscription(requires_session=True)
    kit.send(topic, payload(b"longest", session_id="s" * 128))
    refused = refusal(lambda: kit.send(topic, payload(b"too long", session_id="s" * 129)))
    assert refused.kind is errors.ARGUMENT_ERROR
    assert kit.bodies(subscription) == [b"longest"]
