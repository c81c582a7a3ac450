"""Failures that were found once, each as the shortest story that shows it.

The stories run in the model's `World`, which compares the engine with the naive broker after
every turn: a story needs few checks of its own.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_content import RULES, Content, payload_of
from engine_store import ListStore
from engine_world import HeldLock, Place, World
from naive_entities import Described

from twinbus.core import errors
from twinbus.core.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.engine import settlement
from twinbus.engine.entities import Holder
from twinbus.engine.message import take_in
from twinbus.engine.returning import resubmit
from twinbus.engine.settlement import Settlement
from twinbus.engine.topics import Subscription
from twinbus.engine.transactions import Transaction

LOCK_MS = 5_000
Q: Place = ("q", 0)
DEAD: Place = ("q", 1)


def queue(name: str = "q", **settings: object) -> QueueDescription:
    return QueueDescription(name, lock_duration_ms=LOCK_MS, **settings)  # type: ignore[arg-type]


def world_with(*descriptions: Described) -> World:
    world = World(ListStore(), 1 << 20)
    for description in descriptions:
        world.create(description)
    world.commit()
    return world


def content(name: str = "m", **fields: object) -> Content:
    return Content(name.encode(), f"id-{name}", **fields)  # type: ignore[arg-type]


def send(world: World, path: str, *contents: Content, due_ms: int = 0) -> None:
    world.send(path, [(each, due_ms) for each in contents])
    world.turn()
    world.commit()


def locked(world: World, place: Place = Q, credit: int = 1) -> list[HeldLock]:
    """Let a new receiver take what it can."""
    known = len(world.locks)
    world.attach(place, True, credit)
    world.turn()
    return world.locks[known:]


def pass_time(world: World, passed_ms: int) -> None:
    world.advance(passed_ms)
    world.turn()
    world.commit()


def change(world: World, path: str, **settings: object) -> None:
    old = world.model.entities[path].description
    world.update(path, replace(old, **settings))  # type: ignore[arg-type]
    world.turn()
    world.commit()


def in_stream(world: World, place: Place) -> list[str]:
    return [m.content.body.decode() for m in world.model_stream(place).messages]


def refused_with(kind: errors.ErrorKind) -> pytest.RaisesExc[BusError]:
    return pytest.RaisesExc(BusError, check=lambda error: error.kind is kind)


# --- receivers ---------------------------------------------------------------------------


def test_an_entity_is_deleted_while_somebody_waits_for_its_messages() -> None:
    world = world_with(queue())
    world.attach(Q, True, 1)
    world.turn()
    world.delete("q")
    world.turn()
    assert world.namespace.find("q") is None


def test_receivers_of_dead_letters_stay_when_the_queue_forwards() -> None:
    world = world_with(queue(), queue("sink"))
    receiver = world.attach(DEAD, True, 1)
    change(world, "q", forward_to="sink")
    assert receiver.attached


# --- locks and counts --------------------------------------------------------------------


def test_d3_abandoning_with_a_delay_does_not_get_around_the_limit() -> None:
    world = world_with(queue(max_delivery_count=1))
    send(world, "q", content())
    (held,) = locked(world)
    wanted = Settlement(settlement.ABANDON)
    wanted.delay_ms = 1_000
    wanted.apply(held.holder, held.stream, held.lock, world.now_ms)
    world.model.abandon(held.model_stream, held.model_lock, {}, 1_000)
    world.turn()
    assert in_stream(world, DEAD) == ["m"]


def test_d3_a_lower_limit_buries_what_is_locked_beyond_it() -> None:
    """The dead-letter queue came into being while the entity's streams were gone through."""
    world = world_with(queue(max_delivery_count=3))
    send(world, "q", content())
    locked(world)
    pass_time(world, LOCK_MS)
    locked(world)
    change(world, "q", max_delivery_count=1)
    assert in_stream(world, DEAD) == ["m"]


def test_r5_releasing_a_message_after_its_lock_lapsed_does_not_save_the_attempt() -> None:
    world = world_with(queue())
    send(world, "q", content())
    (held,) = locked(world)
    world.advance(LOCK_MS)
    with refused_with(errors.MESSAGE_LOCK_LOST):
        held.stream.release(held.lock, world.now_ms)
    world.turn()
    assert world.model_stream(Q).messages[0].count == 1


def test_r7_a_change_of_the_entity_ends_session_locks() -> None:
    world = world_with(queue(requires_session=True))
    send(world, "q", content(session_id="s"))
    world.accept_session(Q, "s", True, 1)
    world.turn()
    change(world, "q", lock_duration_ms=7_000)
    assert world.stream(Q).sessions is not None
    world.accept_session(Q, "s", True, 1)
    world.turn()
    assert world.model_stream(Q).messages[0].count == 0


def test_r7_a_change_of_the_entity_ends_delays() -> None:
    """A message held back by a delay would have stayed behind when the queue began to forward."""
    world = world_with(queue(), queue("sink"))
    send(world, "q", content())
    (held,) = locked(world)
    held.stream.abandon(held.lock, world.now_ms, None, 60_000)
    world.model.abandon(held.model_stream, held.model_lock, {}, 60_000)
    world.turn()
    change(world, "q", forward_to="sink")
    assert in_stream(world, ("sink", 0)) == ["m"]


def test_e5_e6_a_deferred_message_of_a_session_is_not_fetched_without_the_session() -> None:
    """Its lock would have belonged to nobody and never have ended."""
    world = world_with(queue(requires_session=True))
    send(world, "q", content(session_id="s"))
    world.accept_session(Q, "s", True, 1)
    world.turn()
    held = world.locks[0]
    held.stream.defer(held.lock, world.now_ms, None)
    world.model.defer(held.model_stream, held.model_lock, {})
    world.commit()
    with refused_with(errors.SESSION_LOCK_LOST):
        world.stream(Q).fetch_deferred([held.lock.seq], None, None, world.now_ms)
    world.turn()


def test_e6_an_empty_session_taken_over_from_a_lapsed_lock_is_a_session_like_any_other() -> None:
    """It was forgotten as it changed hands, and its new holder got nothing any more."""
    world = world_with(queue(requires_session=True))
    world.accept_session(Q, "s", True, 1)
    world.turn()
    world.advance(LOCK_MS)
    world.accept_session(Q, "s", True, 1)
    world.turn()
    assert world.stream(Q).renew_session("s", world.now_ms) == world.now_ms + LOCK_MS
    send(world, "q", content(session_id="s"))
    assert len(world.locks) == 1


# --- time to live ------------------------------------------------------------------------


def test_d5_a_message_that_expired_while_it_was_locked_is_not_delivered_again() -> None:
    world = world_with(queue())
    send(world, "q", content(ttl_ms=1_000))
    (held,) = locked(world)
    pass_time(world, 1_000)
    held.stream.abandon(held.lock, world.now_ms, None)
    world.model.abandon(held.model_stream, held.model_lock, {}, 0)
    assert locked(world) == []


def test_d5_a_message_that_expired_before_it_was_durable_is_not_delivered() -> None:
    world = world_with(queue())
    world.attach(Q, True, 0)
    world.send("q", [(content(ttl_ms=1_000), 0)])
    world.advance(1_000)
    world.turn()
    world.commit()
    assert locked(world) == []
    pass_time(world, 1_000)
    assert in_stream(world, Q) == []


def test_d5_a_message_that_expired_while_it_was_deferred_is_not_delivered() -> None:
    world = world_with(queue())
    send(world, "q", content(ttl_ms=1_000))
    (held,) = locked(world)
    held.stream.defer(held.lock, world.now_ms, None)
    world.model.defer(held.model_stream, held.model_lock, {})
    pass_time(world, 1_000)
    world.stream(Q).undefer(1)
    world.model.undefer(world.model_stream(Q), 1)
    world.turn()
    assert in_stream(world, Q) == []


def test_d5_e9_forwarding_does_not_lengthen_a_life() -> None:
    world = world_with(queue(), queue("sink"))
    send(world, "q", content("short", ttl_ms=1_000), content("long", ttl_ms=2_000))
    pass_time(world, 1_500)
    change(world, "q", forward_to="sink")
    assert in_stream(world, ("sink", 0)) == ["long"]
    assert world.model_stream(("sink", 0)).messages[0].expires_ms == world.now_ms + 500


def test_e5_e9_what_comes_due_at_a_start_is_handed_on_at_once() -> None:
    """It queued up behind what waits to be handed on, though nothing did."""
    world = world_with(queue(), queue("sink"))
    send(world, "q", content(), due_ms=world.now_ms + 1_000)
    change(world, "q", forward_to="sink")
    world.advance(1_000)
    world.crash(keep_in_flight=False, revive_dropped=False)
    assert in_stream(world, ("sink", 0)) == ["m"]
    assert world.stream(Q).next_seq == 2


def test_e8_an_action_can_shorten_a_life() -> None:
    world = World(ListStore(), 0)
    world.namespace.create_topic(TopicDescription("t"), world.now_ms)
    rule = RuleDescription("short", action="SET sys.TimeToLive = 'PT1S'")
    subscription = world.namespace.create_subscription(
        SubscriptionDescription("t", "s"), rule, world.now_ms
    )
    world.entity("t").publish(take_in(payload_of(content()), str), world.now_ms)
    assert subscription.main.expires_ms(1) == world.now_ms + 1_000


def test_d7_e8_a_dead_letter_does_not_expire_because_an_action_changes_it() -> None:
    """The copy that a rule's action makes had the life of the message that died."""
    mourning = queue(
        dead_lettering_on_message_expiration=True, forward_dead_lettered_messages_to="t"
    )
    world = world_with(TopicDescription("t"), mourning)
    world.create(SubscriptionDescription("t", "s"), RULES["mark"].description)
    world.attach(Q, True, 0)
    send(world, "q", content(ttl_ms=1_000, properties={"color": "red"}))
    pass_time(world, 1_000)
    (dead,) = world.model_stream(("t/Subscriptions/s", 0)).messages
    assert dead.content.properties["mark"] == "seen"
    assert dead.expires_ms == 0


# --- transactions ------------------------------------------------------------------------


def test_e10_a_transaction_settles_a_message_once() -> None:
    """The second settlement failed after the first one and the sends had been done."""
    world = world_with(queue())
    send(world, "q", content())
    (held,) = locked(world)
    transaction = Transaction()
    complete = settlement.PLAIN_COMPLETE
    transaction.settle(held.holder, held.stream, held.lock, complete, world.now_ms)
    with refused_with(errors.NOT_ALLOWED):
        transaction.settle(held.holder, held.stream, held.lock, complete, world.now_ms)


def test_e10_d1_a_transaction_with_an_impossible_settlement_does_nothing() -> None:
    """A dead letter cannot be dead-lettered: that came out only after the sends were done."""
    world = world_with(queue(max_delivery_count=1))
    send(world, "q", content())
    locked(world)
    pass_time(world, LOCK_MS)
    (held,) = locked(world, DEAD)
    transaction = Transaction()
    wanted = Settlement(settlement.DEAD_LETTER)
    with refused_with(errors.NOT_ALLOWED):
        transaction.settle(held.holder, held.stream, held.lock, wanted, world.now_ms)


def test_e10_a_transaction_does_not_send_to_an_entity_that_was_deleted() -> None:
    world = world_with(queue())
    transaction = Transaction()
    transaction.send(world.entity("q"), take_in(payload_of(content()), str))
    world.delete("q")
    with refused_with(errors.NOT_FOUND):
        transaction.commit(world.now_ms)
    world.turn()


def test_s6_a_batch_with_an_unreadable_message_id_is_refused_before_any_of_it_is_placed() -> None:
    """Duplicate detection read the id only when the first messages had been placed."""
    world = world_with(queue(requires_duplicate_detection=True))
    broken = take_in(b"\0\x53\x73\xc0\x04\x01\xa1\x01\xff" + b"\0\x53\x75\xa0\x01b", str)
    with refused_with(errors.DECODE_ERROR):
        world.entity("q").check(broken)


# --- topics and forwarding ---------------------------------------------------------------


def test_e9_topics_that_forward_to_themselves_come_to_an_end() -> None:
    world = world_with(
        TopicDescription("t"),
        SubscriptionDescription("t", "again", forward_to="t"),
        SubscriptionDescription("t", "kept"),
    )
    send(world, "t", content())
    assert len(in_stream(world, ("t/Subscriptions/kept", 0))) == 5
    assert len(in_stream(world, ("t/Subscriptions/again", 2))) == 1


def test_e9_a_subscription_is_no_target_of_forwarding() -> None:
    """One that requires sessions would have got messages that nobody can receive."""
    world = world_with(TopicDescription("t"), SubscriptionDescription("t", "s"))
    with refused_with(errors.ARGUMENT_ERROR):
        world.namespace.create_queue(queue(forward_to="t/Subscriptions/s"), world.now_ms)


def test_e6_a_dead_letter_without_a_session_is_not_sent_again_to_where_it_cannot_be() -> None:
    world = world_with(
        TopicDescription("t"), SubscriptionDescription("t", "s", requires_session=True)
    )
    place: Place = ("t/Subscriptions/s", 1)
    send(world, "t", content())
    assert in_stream(world, place) == ["m"]
    holder = world.entity(place[0])
    assert isinstance(holder, Holder)
    assert resubmit(holder, world.stream(place), [1], world.now_ms) == 0
    world.turn()


def test_d3_annotations_that_cannot_be_read_do_not_stop_dead_lettering() -> None:
    """The engine stopped half way, and the message was locked for ever."""
    world = World(ListStore(), 0)
    made = world.namespace.create_queue(queue(), world.now_ms)
    annotations = b"\0\x53\x72\xc1\x07\x02\xa3\x01x\xa1\x01\xff"
    message = take_in(annotations + payload_of(content()), str)
    made.publish(message, world.now_ms)
    made.bury(made.main, 1, "reason", None, {}, 1, world.now_ms)
    assert made.stream(1).index.live == 1


def test_d3_properties_that_cannot_be_read_fail_only_the_filter_that_reads_them() -> None:
    """A copy for the first subscription was placed, then the send was refused."""
    world = World(ListStore(), 0)
    namespace = world.namespace
    topic = namespace.create_topic(TopicDescription("t"), world.now_ms)
    subscriptions: list[Subscription] = [
        namespace.create_subscription(
            SubscriptionDescription("t", name), RULES[name].description, world.now_ms
        )
        for name in ("red", "$Default")
    ]
    properties = b"\0\x53\x74\xc1\x09\x02\xa1\x03bad\xa1\x01\xff"
    body = b"\0\x53\x75\xa0\x01b"
    message = take_in(properties + body, lambda: "id")
    topic.check(message)
    topic.publish(message, world.now_ms)
    red, every = subscriptions
    assert red.main.index.live == 0
    assert red.stream(1).index.live == 1
    assert every.main.index.live == 1


# --- the journal -------------------------------------------------------------------------


def test_e4_sequence_numbers_go_on_after_a_restart_and_a_compaction() -> None:
    """What told the next number was dropped with its segment, since a restart had made the
    engine believe that it stood in the newest one."""
    world = world_with(queue(), queue("sink"))
    send(world, "q", content())
    held = locked(world)[0]
    held.stream.complete(held.lock, world.now_ms)
    world.model.complete(held.model_stream, held.model_lock)
    world.commit()
    while len(world.store.segments()) < 3:
        send(world, "sink", content())
    world.crash(keep_in_flight=False, revive_dropped=False)
    while world.store.segments()[0] == 1:
        world.start_carrying(1)
        world.carry(1 << 20)
        send(world, "sink", content())
    world.crash(keep_in_flight=False, revive_dropped=False)
    assert world.stream(Q).next_seq == 2


def test_s1_a_scheduled_message_that_comes_due_while_its_segment_is_emptied_is_not_lost() -> None:
    """It got a new number, but its payload was still in the segment that was dropped."""
    world = world_with(queue(), queue("sink"))
    world.memory_bytes_max = 0
    send(world, "q", content("first"))
    send(world, "q", content("later"), due_ms=world.now_ms + 1_000)
    while len(world.store.segments()) < 2:
        send(world, "sink", content())
    world.start_carrying(1)
    pass_time(world, 1_000)
    while world.carrier is not None:
        world.carry(1 << 20)
        world.commit()
    world.crash(keep_in_flight=False, revive_dropped=False)
    assert in_stream(world, Q) == ["first", "later"]
