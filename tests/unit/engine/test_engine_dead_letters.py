"""Dead-lettering and expiry (D1–D9)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from engine_kit import LOCK_MS, Kit, Taker, payload, properties_of, refusal

from twinbus.core import errors
from twinbus.core.descriptions import INT32_MAX
from twinbus.engine import settlement
from twinbus.engine.entities import Queue
from twinbus.engine.returning import resubmit
from twinbus.engine.settlement import PLAIN_COMPLETE, Settlement

DEAD = 1
ABANDON = Settlement(settlement.ABANDON)


def fail_until_dead(kit: Kit, queue: Queue) -> int:
    """The documents' loop: receive what is there, abandon it, until nothing comes."""
    rounds = 0
    taker = kit.taker(queue)
    while len(taker.locks) > rounds:
        kit.settle(queue, queue.main, taker.locks[rounds], ABANDON)
        rounds += 1
        taker.ask()
    queue.main.detach(taker, kit.now_ms)
    return rounds


def buried(kit: Kit, queue: Queue) -> Taker:
    """A receiver that holds the first dead letter."""
    return kit.taker(queue, DEAD)


def test_d9_the_documents_loop_ends_in_the_dead_letter_queue() -> None:
    kit = Kit()
    queue = kit.queue(max_delivery_count=4)
    kit.send(queue, payload())
    assert fail_until_dead(kit, queue) == 4
    assert kit.bodies(queue) == []
    assert kit.bodies(queue, DEAD) == [b"body"]
    reason, description, source = kit.death(queue)
    assert reason == "MaxDeliveryCountExceeded"
    assert description == "Message could not be consumed after 4 delivery attempts."
    assert source == "q"


def test_d3_locks_that_run_out_count_as_deliveries() -> None:
    kit = Kit()
    queue = kit.queue(max_delivery_count=2)
    kit.send(queue, payload())
    taker = kit.taker(queue, credit=9)
    kit.wait(LOCK_MS)
    assert taker.counts == [0, 1]
    kit.wait(LOCK_MS)
    assert kit.bodies(queue, DEAD) == [b"body"]


def test_d1_dead_letters_have_no_limits() -> None:
    kit = Kit()
    queue = kit.queue(max_delivery_count=1, dead_lettering_on_message_expiration=True)
    kit.send(queue, payload(ttl_ms=1_000))
    fail_until_dead(kit, queue)
    taker = buried(kit, queue)
    for _ in range(3):
        kit.wait(LOCK_MS)
        taker.ask()
    assert taker.counts == [1, 2, 3, 4]
    wanted = Settlement(settlement.DEAD_LETTER)
    ask = lambda: wanted.apply(queue, taker.stream, taker.locks[-1], kit.now_ms)  # noqa: E731
    assert refusal(ask).kind is errors.NOT_ALLOWED
    kit.settle(queue, taker.stream, taker.locks[-1], PLAIN_COMPLETE)
    assert kit.bodies(queue, DEAD) == []


def test_d1_dead_letters_are_received_and_deleted_too() -> None:
    kit = Kit()
    queue = kit.queue(max_delivery_count=1)
    kit.send(queue, payload())
    fail_until_dead(kit, queue)
    assert kit.taker(queue, DEAD, peek_lock=False).bodies == [b"body"]
    assert kit.bodies(queue, DEAD) == []


def test_r4_d2_the_application_says_why_a_message_is_dead() -> None:
    kit = Kit()
    queue = kit.queue("Orders")
    kit.send(queue, payload(properties={"kept": 1}))
    taker = kit.taker(queue)
    wanted = Settlement(settlement.DEAD_LETTER)
    wanted.take_dead_letter_info(
        {"DeadLetterReason": "odd", "DeadLetterErrorDescription": "no total", "line": 7}
    )
    kit.settle(queue, queue.main, taker.locks[0], wanted)
    assert kit.death(queue) == ("odd", "no total", "Orders")
    dead = buried(kit, queue)
    given = properties_of(dead.stored[0])
    assert (given["kept"], given["line"]) == (1, 7)


def test_r4_a_reason_is_not_needed() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue)
    kit.settle(queue, queue.main, taker.locks[0], Settlement(settlement.DEAD_LETTER))
    assert kit.death(queue) == (None, None, "q")


def test_r7_dead_letters_survive_a_restart() -> None:
    kit = Kit()
    queue = kit.queue(max_delivery_count=1)
    kit.send(queue, payload())
    fail_until_dead(kit, queue)
    kit.restart()
    queue = kit.namespace.queue("q")
    assert kit.bodies(queue, DEAD) == [b"body"]
    assert buried(kit, queue).counts == [1]


def test_d4_the_limit_can_only_be_very_high() -> None:
    kit = Kit()
    assert kit.queue(max_delivery_count=INT32_MAX).main.max_delivery_count == INT32_MAX
    error = refusal(lambda: kit.queue("p", max_delivery_count=0))
    assert error.kind is errors.ARGUMENT_ERROR


# --- expiry ------------------------------------------------------------------------------


def test_d5_expired_messages_are_dropped() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(ttl_ms=1_000))
    kit.wait(1_000)
    assert kit.taker(queue).bodies == []
    assert kit.bodies(queue) == []
    assert kit.bodies(queue, DEAD) == []


def test_d5_expired_messages_are_dead_lettered_where_that_is_on() -> None:
    kit = Kit()
    queue = kit.queue(dead_lettering_on_message_expiration=True)
    kit.send(queue, payload(ttl_ms=1_000))
    kit.wait(1_000)
    kit.taker(queue)
    reason, description, _ = kit.death(queue)
    assert reason == "TTLExpiredException"
    assert description == "The message expired and was dead lettered."


def test_d5_a_message_lives_to_its_last_millisecond() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(ttl_ms=1_000))
    kit.wait(999)
    assert kit.taker(queue).bodies == [b"body"]


def test_d5_nothing_goes_while_nobody_receives() -> None:
    kit = Kit()
    queue = kit.queue(dead_lettering_on_message_expiration=True)
    kit.send(queue, payload(ttl_ms=1_000))
    kit.wait(60_000)
    assert kit.bodies(queue) == [b"body"]
    kit.taker(queue, credit=0)
    assert kit.bodies(queue, DEAD) == [b"body"]


def test_d5_a_receiver_without_credit_is_enough() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.taker(queue, credit=0)
    kit.send(queue, payload(ttl_ms=1_000), payload(ttl_ms=2_000))
    kit.wait(1_000)
    assert len(kit.bodies(queue)) == 1
    kit.wait(1_000)
    assert kit.bodies(queue) == []


def test_d5_a_locked_message_may_be_completed_after_its_time() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(ttl_ms=1_000))
    taker = kit.taker(queue)
    kit.wait(5_000)
    kit.settle(queue, queue.main, taker.locks[0], PLAIN_COMPLETE)
    assert kit.bodies(queue) == []


def test_d5_the_shorter_life_counts() -> None:
    kit = Kit()
    queue = kit.queue(default_message_time_to_live_ms=2_000)
    kit.send(queue, payload(b"own", ttl_ms=1_000), payload(b"default"))
    kit.wait(1_000)
    kit.taker(queue, credit=0)
    assert kit.bodies(queue) == [b"default"]
    kit.wait(1_000)
    assert kit.bodies(queue) == []


def test_d5_time_to_live_survives_a_restart() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(ttl_ms=1_000))
    kit.restart()
    kit.wait(1_000)
    assert kit.taker(kit.namespace.queue("q")).bodies == []


# --- sending dead letters again ----------------------------------------------------------


def test_a_dead_letter_can_be_sent_again() -> None:
    kit = Kit()
    queue = kit.queue(max_delivery_count=1)
    kit.send(queue, payload(properties={"kept": 1}))
    fail_until_dead(kit, queue)
    assert resubmit(queue, queue.stream(DEAD), [1, 2], kit.now_ms) == 1
    kit.settle_down()
    taker = kit.taker(queue)
    assert taker.counts == [0]
    assert properties_of(taker.stored[0]) == {"kept": 1}


def test_what_is_no_dead_letter_is_not_sent_again() -> None:
    kit = Kit()
    queue = kit.queue()
    error = refusal(lambda: resubmit(queue, queue.main, [1], kit.now_ms))
    assert error.kind is errors.NOT_ALLOWED


@pytest.mark.parametrize("status", ["SendDisabled", "Disabled"])
def test_a_disabled_queue_takes_no_sends_but_keeps_what_it_has(status: str) -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    kit.namespace.update_queue(replace(queue.description, status=status), kit.now_ms)
    assert refusal(lambda: kit.send(queue, payload())).kind is errors.ENTITY_DISABLED
    assert kit.bodies(queue) == [b"body"]


def test_more_than_a_batch_may_hold_goes_some_at_a_time() -> None:
    kit = Kit()
    queue = kit.queue(max_delivery_count=1, max_message_size_in_kilobytes=100 << 10)
    count = 5
    kit.send(queue, *[payload(bytes(20 << 20)) for _ in range(count)])
    fail_until_dead(kit, queue)
    dead = queue.stream(DEAD)
    went = []
    while n := resubmit(queue, dead, list(range(1, count + 1)), kit.now_ms):
        went.append(n)
        kit.settle_down()
    assert went == [4, 1]


# --- a full disk ---------------------------------------------------------------------------


def test_d5_e11_nothing_that_expires_dies_on_a_full_disk() -> None:
    """It would be written anew. Nobody gets it meanwhile, and it goes when there is room."""
    kit = Kit()
    queue = kit.queue(dead_lettering_on_message_expiration=True)
    kit.send(queue, *[payload(b"%d" % n, ttl_ms=1_000) for n in range(3)])
    kit.engine.kernel.set_full(True)
    kit.wait(2_000)
    taker = kit.taker(queue, credit=9)
    kit.wait(60_000)
    assert taker.bodies == []
    assert queue.main.index.live == 3
    assert kit.engine.kernel.deadline_ms() > kit.now_ms, "it would turn and turn"
    kit.engine.kernel.set_full(False)
    kit.wait(1)
    assert queue.main.index.live == 0
    assert kit.bodies(queue, DEAD) == [b"0", b"1", b"2"]
    assert taker.bodies == []


def test_d3_e11_nothing_dies_of_deliveries_on_a_full_disk() -> None:
    kit = Kit()
    queue = kit.queue(max_delivery_count=1)
    kit.send(queue, payload())
    kit.engine.kernel.set_full(True)
    assert fail_until_dead(kit, queue) == 1
    kit.wait(60_000)
    assert queue.main.index.live == 1
    kit.engine.kernel.set_full(False)
    kit.wait(1)
    assert kit.bodies(queue, DEAD) == [b"body"]


def test_r7_what_waits_to_die_keeps_its_delivery_count_over_a_restart() -> None:
    """Its receiver was told that the attempt has failed."""
    kit = Kit()
    queue = kit.queue(max_delivery_count=2)
    kit.send(queue, payload())
    kit.engine.kernel.set_full(True)
    assert fail_until_dead(kit, queue) == 2
    kit.restart()
    queue = kit.namespace.queue("q")
    assert kit.taker(queue).counts == [2]


def test_e11_what_a_receiver_wants_written_anew_is_refused_on_a_full_disk() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue)
    kit.engine.kernel.set_full(True)
    bury = Settlement(settlement.DEAD_LETTER)
    change = Settlement(settlement.DEFER)
    change.take_properties({"a": 1})
    for wanted in (bury, change):
        ask = partial(wanted.take_effort, queue.main, taker.locks[0], kit.now_ms)
        assert refusal(ask).kind is errors.SERVER_BUSY
    PLAIN_COMPLETE.take_effort(queue.main, taker.locks[0], kit.now_ms)
    kit.settle(queue, queue.main, taker.locks[0], PLAIN_COMPLETE)
