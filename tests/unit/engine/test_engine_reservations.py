"""Reservations (L3): fixed sets of messages for one consumer, epoch by epoch, fenced."""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack

import pytest
from engine_kit import Kit, Taker, body_of, payload, present, refusal
from test_engine_carrying import carry_all, fill_segment

from twinbus.core import errors, limits
from twinbus.engine import browsing, records, reserving
from twinbus.engine.entities import Holder, Queue
from twinbus.engine.index import ACTIVE, RESERVED
from twinbus.engine.returning import resubmit
from twinbus.engine.settlement import PLAIN_COMPLETE
from twinbus.engine.stream import Stream


def filled(kit: Kit, count: int) -> Queue:
    queue = kit.queue()
    kit.send(queue, *[payload(b"%d" % number) for number in range(1, count + 1)])
    return queue


def reserve(
    kit: Kit, holder: Holder, epoch: int, count: int = 100, *, name: str = "job", which: int = 0
) -> list[int] | None:
    """The ranges that a consumer gets, None when there is nothing."""
    stream = holder.stream(which)
    found = reserving.reserve(holder, stream, name, epoch, count, kit.now_ms)
    kit.settle_down()
    return None if found is None else found.ranges


def settle(kit: Kit, holder: Holder, epoch: int, name: str = "job") -> int:
    count = reserving.settle_upto(holder.main, name, epoch)
    kit.settle_down()
    return count


def attempt(kit: Kit, holder: Holder, epoch: int, attempts_max: int = 0) -> tuple[int, bool]:
    found = reserving.attempt(holder, holder.main, "job", epoch, attempts_max, kit.now_ms)
    kit.settle_down()
    return found.attempts, found.is_buried


def release(kit: Kit, holder: Holder, name: str = "job") -> int:
    count = reserving.release(holder, holder.main, name, kit.now_ms)
    kit.settle_down()
    return count


def states(stream: Stream) -> dict[int, int]:
    return {seq: stream.index.state(seq) for seq in present(stream)}


def outstanding(stream: Stream, name: str = "job") -> dict[int, tuple[list[int], int]]:
    assert stream.reservations is not None
    found = stream.reservations.reservers[name].outstanding()
    return {one.epoch: (one.ranges, one.attempts) for one in found}


def check_fenced(kit: Kit, queue: Queue, epoch: int, name: str = "job") -> None:
    error = refusal(lambda: reserve(kit, queue, epoch, name=name))
    assert error.kind is errors.EPOCH_FENCED


def reopened(kit: Kit) -> Queue:
    kit.restart()
    return kit.namespace.queue("q")


# --- taking ---------------------------------------------------------------------------------


def test_l3_the_oldest_messages_are_set_aside_in_order() -> None:
    kit = Kit()
    queue = filled(kit, 5)
    assert reserve(kit, queue, 1, 3) == [1, 3]
    assert states(queue.main) == {1: 6, 2: 6, 3: 6, 4: 1, 5: 1}
    assert kit.taker(queue, credit=10).seqs == [4, 5]


def test_l3_what_is_locked_deferred_or_not_durable_is_left_out() -> None:
    kit = Kit()
    queue = filled(kit, 4)
    taker = kit.taker(queue, credit=2)
    queue.main.defer(taker.locks[1], kit.now_ms, None)
    message = payload(b"fresh")
    kit.send(queue, payload(b"5"))
    queue.main.place(message, kit.now_ms, 0)
    found = reserving.reserve(queue, queue.main, "job", 1, 100, kit.now_ms)
    assert found is not None
    assert found.ranges == [3, 5]


def test_l3_ranges_join_over_chunks_and_leave_gaps_out() -> None:
    kit = Kit()
    queue = filled(kit, 1_500)
    kit.settle(queue, queue.main, kit.taker(queue).locks[0], PLAIN_COMPLETE)
    taker = kit.taker(queue)
    assert taker.seqs == [2]
    taker.detach(errors.entity_not_found("q"))
    queue.main.drop_lock(taker.locks[0], kit.now_ms)
    queue.main.remove(700, records.PURGED)
    assert reserve(kit, queue, 1, 1_200) == [2, 699, 701, 1_202]
    assert reserve(kit, queue, 2, 1_000) == [1_203, 1_500]
    found = outstanding(queue.main)
    assert found == {1: ([2, 699, 701, 1_202], 0), 2: ([1_203, 1_500], 0)}


def test_l3_bytes_are_those_of_the_messages() -> None:
    kit = Kit()
    queue = filled(kit, 1_100)
    reserve(kit, queue, 1, 1_000)
    assert queue.main.reservations is not None
    found = queue.main.reservations.reservers["job"].epochs[1]
    assert found.message_count() == 1_000
    wanted = sum(len(queue.main.stored(seq)) for seq in range(1, 1_001))
    assert found.byte_count(queue.main.index) == wanted


def test_l3_nothing_active_makes_no_reservation() -> None:
    kit = Kit()
    queue = kit.queue()
    assert reserve(kit, queue, 1) is None
    assert queue.main.reservations is None
    kit.send(queue, payload())
    assert reserve(kit, queue, 1) == [1, 1]


def test_l3_asking_again_gives_the_same_set() -> None:
    kit = Kit()
    queue = filled(kit, 3)
    assert reserve(kit, queue, 1, 2) == [1, 2]
    assert reserve(kit, queue, 1, 100) == [1, 2]
    assert states(queue.main)[3] == ACTIVE


def test_l3_consumers_share_nothing() -> None:
    kit = Kit()
    queue = filled(kit, 4)
    assert reserve(kit, queue, 1, 2, name="one") == [1, 2]
    assert reserve(kit, queue, 1, 2, name="two") == [3, 4]
    assert settle(kit, queue, 1, "one") == 2
    assert states(queue.main) == {3: RESERVED, 4: RESERVED}


def test_l3_messages_that_come_back_are_found_in_their_places() -> None:
    kit = Kit()
    queue = filled(kit, 3)
    taker = kit.taker(queue, credit=1)
    assert reserve(kit, queue, 1, 1) == [2, 2]
    queue.main.release(taker.locks[0], kit.now_ms)
    taker.detach(errors.entity_not_found("q"))
    assert reserve(kit, queue, 2) == [1, 1, 3, 3]


def test_l3_an_entity_that_is_closed_to_receivers_gives_nothing() -> None:
    kit = Kit()
    queue = filled(kit, 2)
    reserve(kit, queue, 1, 1)
    queue.description.status = "ReceiveDisabled"
    kit.namespace.update_queue(queue.description, kit.now_ms)
    assert refusal(lambda: reserve(kit, queue, 2)).kind is errors.ENTITY_DISABLED
    # What is under way can be finished.
    assert reserve(kit, queue, 1) == [1, 1]
    assert settle(kit, queue, 1) == 1


def test_l3_dead_letters_and_subscriptions_can_be_reserved() -> None:
    kit = Kit()
    topic, subscription = kit.topic(), kit.subscription()
    kit.send(topic, payload(b"a"), payload(b"b"))
    assert reserve(kit, subscription, 1, 1) == [1, 1]
    assert settle(kit, subscription, 1) == 1
    subscription.dead_letter(subscription.main, 2, "why", "because", 0, kit.now_ms)
    kit.settle_down()
    assert reserve(kit, subscription, 1, which=1) == [1, 1]
    dead = subscription.stream(1)
    # Nothing dies twice: there the limit has no effect.
    for _ in range(3):
        reserving.attempt(subscription, dead, "job", 1, 1, kit.now_ms)
    assert outstanding(dead) == {1: ([1, 1], 3)}
    assert resubmit(subscription, dead, [1], kit.now_ms) == 0
    assert reserving.settle_upto(dead, "job", 1) == 1
    assert present(dead) == []


# --- settling -------------------------------------------------------------------------------


def test_l3_settling_completes_every_epoch_up_to_one() -> None:
    kit = Kit()
    queue = filled(kit, 6)
    for epoch in (1, 2, 3):
        reserve(kit, queue, epoch, 2)
    assert settle(kit, queue, 2) == 4
    assert outstanding(queue.main) == {3: ([5, 6], 0)}
    assert settle(kit, queue, 2) == 0
    assert settle(kit, queue, 0) == 0
    assert settle(kit, queue, 3) == 2
    assert present(queue.main) == []
    assert queue.bytes_used == 0
    assert kit.engine.kernel.live_bytes == 0
    assert kit.engine.kernel.cached_bytes == 0


def test_l3_neighbours_settled_together_share_a_record() -> None:
    kit = Kit()
    queue = filled(kit, 50)
    reserve(kit, queue, 1)
    before = len(kit.log.records)
    settle(kit, queue, 1)
    written = [record for _, record in kit.log.records[before:]]
    assert sorted(record[0] for record in written) == [
        records.SETTLED,
        records.RESERVATION_SETTLED,
    ]
    assert records.read_reservation_ended(written[0]) == (queue.main.number, "job", 1, [])


def test_l1_settled_ranges_tell_of_every_message_when_observed() -> None:
    """L1 L3: the records of a range have a row for each of its messages."""
    kit = Kit(observing=True)
    queue = filled(kit, 1_100)
    reserve(kit, queue, 1, 1_050)
    wanted = [(seq, len(queue.main.stored(seq))) for seq in range(1, 1_051)]
    settle(kit, queue, 1)
    rows: dict[int, int] = {}
    for _, record in kit.log.records:
        if record[0] == records.SETTLED:
            _, first, count, how = records.read_settled(record)
            assert how == records.COMPLETED
            columns = records.read_settled_columns(record)
            assert columns is not None
            sizes = unpack(f"<{count}I", columns[2])
            rows |= dict(zip(range(first, first + count), sizes, strict=True))
    assert list(rows.items()) == wanted


def test_l3_epochs_that_are_over_or_leave_one_out_are_fenced() -> None:
    kit = Kit()
    queue = filled(kit, 4)
    reserve(kit, queue, 1, 1)
    reserve(kit, queue, 2, 1)
    settle(kit, queue, 1)
    for epoch in (1, 4):
        check_fenced(kit, queue, epoch)
    text = refusal(lambda: reserve(kit, queue, 9)).text
    for part in ("'job'", "'q'", "epoch 9", "up to epoch 1", "outstanding: 2", "next is 3"):
        assert part in text
    assert "twinbus reservations release" in text
    assert refusal(lambda: attempt(kit, queue, 1)).kind is errors.EPOCH_FENCED
    assert refusal(lambda: settle(kit, queue, 3)).kind is errors.EPOCH_FENCED
    assert states(queue.main) == {2: RESERVED, 3: ACTIVE, 4: ACTIVE}


def test_l3_a_new_consumer_begins_with_epoch_1() -> None:
    kit = Kit()
    queue = filled(kit, 1)
    check_fenced(kit, queue, 2)
    assert refusal(lambda: settle(kit, queue, 1)).kind is errors.EPOCH_FENCED
    assert settle(kit, queue, 0) == 0
    assert queue.main.reservations is None


def test_l3_names_consumers_and_epochs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit()
    queue = filled(kit, 3)
    long = "x" * (limits.CONSUMER_CHARS_MAX + 1)
    assert refusal(lambda: reserve(kit, queue, 1, name=long)).kind is errors.ARGUMENT_ERROR
    assert refusal(lambda: reserve(kit, queue, 1, name="")).kind is errors.ARGUMENT_ERROR
    monkeypatch.setattr(limits, "RESERVERS_MAX", 1)
    monkeypatch.setattr(limits, "EPOCHS_MAX", 1)
    reserve(kit, queue, 1, 1)
    assert refusal(lambda: reserve(kit, queue, 1, name="b")).kind is errors.QUOTA_EXCEEDED
    assert refusal(lambda: reserve(kit, queue, 2, 1)).kind is errors.QUOTA_EXCEEDED


# --- trying ---------------------------------------------------------------------------------


def test_l3_an_epoch_that_fails_too_often_is_dead_lettered_whole() -> None:
    kit = Kit()
    queue = filled(kit, 3)
    reserve(kit, queue, 1, 2)
    assert attempt(kit, queue, 1, 2) == (1, False)
    assert attempt(kit, queue, 1, 2) == (2, False)
    assert attempt(kit, queue, 1, 2) == (3, True)
    assert kit.bodies(queue) == [b"3"]
    assert kit.bodies(queue, 1) == [b"1", b"2"]
    reason, text, source = kit.death(queue)
    assert (reason, source) == ("MaxBatchFailuresExceeded", "q")
    assert "job" in str(text)
    # It stays known, and empty, until it is settled.
    assert attempt(kit, queue, 1, 2) == (3, True)
    assert reserve(kit, queue, 1) == []
    queue = reopened(kit)
    assert outstanding(queue.main) == {1: ([], 3)}
    assert settle(kit, queue, 1) == 0
    assert reserve(kit, queue, 2) == [3, 3]


def test_l3_attempts_without_a_limit_are_only_counted_and_kept() -> None:
    kit = Kit()
    queue = filled(kit, 1)
    reserve(kit, queue, 1)
    for count in range(1, 5):
        assert attempt(kit, queue, 1) == (count, False)
    queue = reopened(kit)
    assert attempt(kit, queue, 1) == (5, False)


# --- giving back ----------------------------------------------------------------------------


def test_l3_releasing_gives_everything_back_and_fences() -> None:
    kit = Kit()
    queue = filled(kit, 5)
    reserve(kit, queue, 1, 2)
    reserve(kit, queue, 2, 1)
    taker = kit.taker(queue, credit=5)
    assert taker.seqs == [4, 5]
    assert release(kit, queue) == 3
    assert taker.seqs == [4, 5, 1, 2, 3]
    assert taker.counts == [0] * 5
    for epoch in (1, 2):
        check_fenced(kit, queue, epoch)
    assert refusal(lambda: attempt(kit, queue, 2)).kind is errors.EPOCH_FENCED
    assert release(kit, queue) == 0
    assert reserve(kit, queue, 3) is None
    assert refusal(lambda: release(kit, queue, "nobody")).kind is errors.NOT_FOUND


def test_l3_what_a_queue_that_forwards_gets_back_goes_on() -> None:
    kit = Kit()
    sink, queue = kit.queue("sink"), filled(kit, 2)
    reserve(kit, queue, 1, 1)
    queue.description.forward_to = "sink"
    kit.namespace.update_queue(queue.description, kit.now_ms)
    assert kit.bodies(sink) == [b"2"]
    assert kit.bodies(queue) == [b"1"]
    assert release(kit, queue) == 1
    assert kit.bodies(sink) == [b"2", b"1"]
    assert kit.bodies(queue) == []


# --- what others may not do with them ---------------------------------------------------------


def test_l3_reserved_messages_do_not_expire_until_they_are_released() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload(b"1", ttl_ms=500), payload(b"2", ttl_ms=500))
    kit.taker(queue, credit=0)
    reserve(kit, queue, 1, 1)
    kit.wait(5_000)
    assert kit.bodies(queue) == [b"1"]
    release(kit, queue)
    kit.wait(1_000)
    assert kit.bodies(queue) == []


def test_l3_what_is_over_expires_instead_of_being_reserved() -> None:
    kit = Kit()
    queue = kit.queue(dead_lettering_on_message_expiration=True)
    kit.send(queue, payload(b"1", ttl_ms=500), payload(b"2"), payload(b"3", ttl_ms=500))
    kit.send(queue, payload(b"4"), payload(b"5"))
    kit.now_ms += 500
    assert reserve(kit, queue, 1, 2) == [2, 2, 4, 4]
    assert kit.bodies(queue, 1) == [b"1", b"3"]
    assert kit.death(queue)[0] == "TTLExpiredException"


def test_l3_changing_the_entity_leaves_reservations_alone() -> None:
    kit = Kit()
    queue = filled(kit, 2)
    reserve(kit, queue, 1, 1)
    queue.description.max_delivery_count = 1
    kit.namespace.update_queue(queue.description, kit.now_ms)
    assert states(queue.main) == {1: RESERVED, 2: ACTIVE}


# --- sessions -------------------------------------------------------------------------------


def sessions(kit: Kit, *names: str) -> Queue:
    queue = kit.queue(requires_session=True)
    bodies = enumerate(names, 1)
    kit.send(queue, *[payload(b"%d" % n, session_id=name) for n, name in bodies])
    return queue


def accept(kit: Kit, queue: Queue, session_id: str) -> Taker:
    return kit.session_taker(queue, session_id, 10)


def test_l3_sessions_that_somebody_holds_are_left_out() -> None:
    kit = Kit()
    queue = sessions(kit, "a", "b", "a", "b")
    holder = kit.session_taker(queue, "a", 0)
    assert reserve(kit, queue, 1) == [2, 2, 4, 4]
    holder.ask(5)
    assert holder.seqs == [1, 3]


def test_l3_a_session_with_reserved_messages_is_handed_to_nobody_else() -> None:
    kit = Kit()
    queue = sessions(kit, "a", "a", "b")
    assert reserve(kit, queue, 1, 1) == [1, 1]
    error = refusal(lambda: accept(kit, queue, "a"))
    assert error.kind is errors.SESSION_CANNOT_BE_LOCKED
    assert refusal(lambda: queue.main.renew_session("a", kit.now_ms)).kind.status == 410
    assert reserve(kit, queue, 1, name="other") == [3, 3]
    # Its own next epoch goes on in the session.
    assert reserve(kit, queue, 2, 1) == [2, 2]
    settle(kit, queue, 1)
    assert refusal(lambda: accept(kit, queue, "a")).kind is errors.SESSION_CANNOT_BE_LOCKED
    settle(kit, queue, 2)
    assert accept(kit, queue, "a").seqs == []


@pytest.mark.parametrize(
    "end",
    [
        lambda kit, queue: settle(kit, queue, 1),
        lambda kit, queue: [attempt(kit, queue, 1, attempts_max=1) for _ in range(2)],
    ],
    ids=["settled", "buried"],
)
def test_l3_a_seeker_gets_the_session_when_the_reservation_ends(
    end: Callable[[Kit, Queue], object],
) -> None:
    kit = Kit()
    queue = sessions(kit, "a")
    reserve(kit, queue, 1)
    kit.send(queue, payload(b"2", session_id="a"))
    seeker = Taker(kit, queue.main, 5, True)
    queue.main.attach(seeker, kit.now_ms)
    queue.main.seek_session(seeker, kit.now_ms + 60_000)
    kit.settle_down()
    assert seeker.found is None
    end(kit, queue)
    assert seeker.found == "a"
    seeker.ask(0)
    assert seeker.seqs == [2]


def test_l3_released_messages_of_a_session_come_in_order() -> None:
    kit = Kit()
    queue = sessions(kit, "a", "a", "a")
    reserve(kit, queue, 1, 2)
    release(kit, queue)
    assert accept(kit, queue, "a").seqs == [1, 2, 3]


def test_l3_a_session_is_not_begun_in_its_middle() -> None:
    """L3 E6: from a number on only those sessions are taken that have nothing before it."""
    kit = Kit()
    queue = sessions(kit, "a", "b", "a", "b", "c")
    kit.settle(queue, queue.main, kit.session_taker(queue, "b").locks[0], PLAIN_COMPLETE)
    kit.namespace.update_queue(queue.description, kit.now_ms)
    found = reserving.reserve(queue, queue.main, "job", 1, 100, kit.now_ms, from_seq=3)
    assert found is not None
    assert found.ranges == [4, 5]
    assert accept(kit, queue, "a").seqs == [1, 3]


def test_l3_sessions_stay_reserved_over_a_restart() -> None:
    kit = Kit()
    queue = sessions(kit, "a", "b", "a")
    reserve(kit, queue, 1, 1)
    queue = reopened(kit)
    assert refusal(lambda: accept(kit, queue, "a")).kind is errors.SESSION_CANNOT_BE_LOCKED
    assert accept(kit, queue, "b").seqs == [2]
    release(kit, queue)
    assert accept(kit, queue, "a").seqs == [1, 3]


# --- restart and compaction -----------------------------------------------------------------


def test_l3_reservations_survive_a_restart() -> None:
    kit = Kit()
    queue = filled(kit, 6)
    reserve(kit, queue, 1, 2)
    reserve(kit, queue, 2, 2)
    settle(kit, queue, 1)
    queue = reopened(kit)
    assert outstanding(queue.main) == {2: ([3, 4], 0)}
    assert kit.taker(queue, credit=10).seqs == [5, 6]
    check_fenced(kit, queue, 1)
    assert reserve(kit, queue, 2) == [3, 4]
    assert settle(kit, queue, 2) == 2
    queue = reopened(kit)
    assert present(queue.main) == [5, 6]
    assert outstanding(queue.main) == {}
    check_fenced(kit, queue, 2)


def test_l3_compaction_carries_the_table() -> None:
    kit = Kit(memory_bytes_max=0)
    queue = filled(kit, 6)
    reserve(kit, queue, 1, 1)
    settle(kit, queue, 1)
    reserve(kit, queue, 2, 1)
    reserve(kit, queue, 3, 1)
    attempt(kit, queue, 2)
    reserve(kit, queue, 1, 1, name="released")
    release(kit, queue, "released")
    fill_segment(kit)
    attempt(kit, queue, 3)
    fill_segment(kit)
    for _ in range(2):
        carry_all(kit)
        queue = reopened(kit)
        assert outstanding(queue.main) == {2: ([2, 2], 1), 3: ([3, 3], 1)}
        assert states(queue.main) == {2: 6, 3: 6, 4: 1, 5: 1, 6: 1}
        check_fenced(kit, queue, 1)
        check_fenced(kit, queue, 1, "released")
        fill_segment(kit)
        fill_segment(kit)


def test_l3_what_was_carried_while_reserved_is_active_once_released() -> None:
    """L3: a message's own record never says reserved, only the table does."""
    kit = Kit(memory_bytes_max=0)
    queue = filled(kit, 2)
    reserve(kit, queue, 1)
    fill_segment(kit)
    carry_all(kit)
    queue = reopened(kit)
    assert release(kit, queue) == 2
    queue = reopened(kit)
    assert states(queue.main) == {1: ACTIVE, 2: ACTIVE}


def test_l3_with_the_entity_its_reservations_are_gone() -> None:
    kit = Kit()
    queue = filled(kit, 2)
    reserve(kit, queue, 1)
    kit.namespace.delete("q")
    queue = filled(kit, 1)
    assert queue.main.reservations is None
    queue = reopened(kit)
    assert queue.main.reservations is None
    assert reserve(kit, queue, 1) == [1, 1]


# --- reading --------------------------------------------------------------------------------


def test_l3_reading_gives_a_range_in_order_and_no_more_than_fits() -> None:
    kit = Kit(memory_bytes_max=0)
    queue = filled(kit, 1_200)
    reserve(kit, queue, 1, 600)
    queue.main.remove(600, records.PURGED)
    stream = queue.main
    everything = browsing.read(stream, 0, 10_000, 1 << 30, browsing.ALL_STATES, False)
    assert len(everything) == 1_199
    reserved = browsing.read(stream, 510, 10_000, 1 << 30, browsing.STATES["reserved"], False)
    assert reserved == everything[509:599]
    size = len(everything[0])
    assert browsing.read(stream, 1, 3, size * 2, browsing.ALL_STATES, False) == everything[:2]
    assert browsing.read(stream, 1, 3, 1, browsing.ALL_STATES, False) == everything[:1]
    assert browsing.read(stream, 600, 600, 1 << 30, browsing.ALL_STATES, False) == []
    bodiless = browsing.read(stream, 1, 1, 1 << 30, browsing.ALL_STATES, True)
    assert len(bodiless) == 1
    assert bodiless != everything[:1]
    assert body_of(stream.stored(1)) == b"1"
