"""Transactions (E10)."""

from __future__ import annotations

from engine_kit import LOCK_MS, Kit, payload, refusal

from twinbus.core import errors
from twinbus.engine import settlement
from twinbus.engine.message import take_in
from twinbus.engine.settlement import PLAIN_COMPLETE, Settlement
from twinbus.engine.transactions import Transaction


def test_e10_sends_and_settlements_happen_together() -> None:
    kit = Kit()
    inbox, outbox = kit.queue("in"), kit.queue("out")
    kit.send(inbox, payload(b"order"))
    taker = kit.taker(inbox)
    transaction = Transaction()
    transaction.send(outbox, take_in(payload(b"invoice"), str))
    transaction.settle(inbox, inbox.main, taker.locks[0], PLAIN_COMPLETE, kit.now_ms)
    assert (kit.bodies(inbox), kit.bodies(outbox)) == ([b"order"], [])
    transaction.commit(kit.now_ms)
    kit.settle_down()
    assert (kit.bodies(inbox), kit.bodies(outbox)) == ([], [b"invoice"])


def test_e10_what_is_not_committed_never_was() -> None:
    kit = Kit()
    inbox, outbox = kit.queue("in"), kit.queue("out")
    kit.send(inbox, payload())
    taker = kit.taker(inbox)
    transaction = Transaction()
    transaction.send(outbox, take_in(payload(), str))
    transaction.settle(inbox, inbox.main, taker.locks[0], PLAIN_COMPLETE, kit.now_ms)
    kit.wait(LOCK_MS)
    assert kit.taker(inbox).counts == [1]
    assert kit.bodies(outbox) == []


def test_e10_a_lost_lock_undoes_the_whole_transaction() -> None:
    kit = Kit()
    inbox, outbox = kit.queue("in"), kit.queue("out")
    kit.send(inbox, payload(b"1"), payload(b"2"))
    taker = kit.taker(inbox, credit=2)
    transaction = Transaction()
    transaction.send(outbox, take_in(payload(), str))
    for lock in taker.locks:
        transaction.settle(inbox, inbox.main, lock, PLAIN_COMPLETE, kit.now_ms)
    kit.wait(LOCK_MS - 1)
    inbox.main.renew(taker.locks[0], kit.now_ms)
    kit.wait(1)
    error = refusal(lambda: transaction.commit(kit.now_ms))
    assert error.kind is errors.MESSAGE_LOCK_LOST
    kit.settle_down()
    assert (kit.bodies(inbox), kit.bodies(outbox)) == ([b"1", b"2"], [])


def test_e10_a_refused_send_undoes_the_whole_transaction() -> None:
    kit = Kit()
    inbox, outbox = kit.queue("in"), kit.queue("out", max_size_in_megabytes=1)
    kit.send(inbox, payload())
    taker = kit.taker(inbox)
    transaction = Transaction()
    transaction.settle(inbox, inbox.main, taker.locks[0], PLAIN_COMPLETE, kit.now_ms)
    transaction.send(outbox, take_in(payload(), str))
    for _ in range(5):
        kit.send(outbox, payload(b"x" * 250_000))
    assert refusal(lambda: transaction.commit(kit.now_ms)).kind is errors.QUOTA_EXCEEDED
    inbox.main.check_lock(taker.locks[0], kit.now_ms)
    assert len(kit.bodies(outbox)) == 5


def test_e10_what_cannot_be_sent_is_refused_at_once() -> None:
    kit = Kit()
    queue = kit.queue(requires_session=True)
    transaction = Transaction()
    message = take_in(payload(), str)
    assert refusal(lambda: transaction.send(queue, message)).kind is errors.NOT_ALLOWED
    transaction.commit(kit.now_ms)
    assert kit.bodies(queue) == []


def test_e10_d1_dead_letters_take_part() -> None:
    kit = Kit()
    queue = kit.queue(max_delivery_count=1)
    kit.send(queue, payload())
    kit.taker(queue)
    kit.wait(LOCK_MS)
    dead = kit.taker(queue, 1)
    transaction = Transaction()
    transaction.send(queue, take_in(payload(b"repaired"), str))
    transaction.settle(queue, queue.stream(1), dead.locks[0], PLAIN_COMPLETE, kit.now_ms)
    transaction.commit(kit.now_ms)
    kit.settle_down()
    assert kit.bodies(queue) == [b"repaired"]
    assert kit.bodies(queue, 1) == []


def test_e10_a_transaction_is_one_batch_of_the_journal() -> None:
    kit = Kit()
    queue = kit.queue()
    kit.send(queue, payload())
    taker = kit.taker(queue)
    transaction = Transaction()
    transaction.send(queue, take_in(payload(b"new"), str))
    wanted = Settlement(settlement.DEAD_LETTER)
    transaction.settle(queue, queue.main, taker.locks[0], wanted, kit.now_ms)
    written = len(kit.log.records)
    transaction.commit(kit.now_ms)
    kit.engine.kernel.seal()
    # Cut anywhere inside it, the journal loses the whole batch: here, before it.
    kit.log.records = kit.log.records[:written]
    kit.restart()
    assert kit.bodies(kit.namespace.queue("q")) == [b"body"]


def test_e10_e11_what_does_not_fit_together_is_refused_whole() -> None:
    kit = Kit()
    inbox, small = kit.queue("in"), kit.queue("small", max_size_in_megabytes=1)
    kit.send(inbox, payload(b"order"))
    taker = kit.taker(inbox)
    transaction = Transaction()
    transaction.settle(inbox, inbox.main, taker.locks[0], PLAIN_COMPLETE, kit.now_ms)
    for _ in range(6):
        transaction.send(small, take_in(payload(bytes(200_000)), str))
        transaction.send(inbox, take_in(payload(b"receipt"), str))
    transaction.commit(kit.now_ms)
    kit.settle_down()
    # As with single sends, the one that fills it up is the last one taken.
    assert len(kit.bodies(small)) == 6
    kit.namespace.delete("small")
    small = kit.queue("small", max_size_in_megabytes=1)
    too_much = Transaction()
    lock = kit.taker(inbox).locks[0]
    too_much.settle(inbox, inbox.main, lock, PLAIN_COMPLETE, kit.now_ms)
    for _ in range(7):
        too_much.send(small, take_in(payload(bytes(200_000)), str))
    error = refusal(lambda: too_much.commit(kit.now_ms))
    assert error.kind is errors.QUOTA_EXCEEDED
    assert "'small'" in error.text
    assert kit.bodies(small) == []
    inbox.main.check_lock(lock, kit.now_ms)


def test_e10_e9_what_is_forwarded_takes_no_room_in_its_source() -> None:
    kit = Kit()
    target = kit.queue("target")
    source = kit.queue("source", max_size_in_megabytes=1, forward_to="target")
    transaction = Transaction()
    for _ in range(10):
        transaction.send(source, take_in(payload(bytes(200_000)), str))
    transaction.commit(kit.now_ms)
    assert len(kit.bodies(target)) == 10


def test_e10_a_topic_is_as_full_as_its_subscriptions() -> None:
    kit = Kit()
    topic = kit.topic(max_size_in_megabytes=1)
    subscription = kit.subscription()
    kit.send(topic, payload(bytes(200_000)), payload(bytes(200_000)), payload(bytes(200_000)))
    transaction = Transaction()
    for _ in range(4):
        transaction.send(topic, take_in(payload(bytes(200_000)), str))
    assert refusal(lambda: transaction.commit(kit.now_ms)).kind is errors.QUOTA_EXCEEDED
    assert len(kit.bodies(subscription)) == 3


def test_e10_a_transaction_sends_a_hundred_messages_at_most() -> None:
    kit = Kit()
    queue = kit.queue()
    transaction = Transaction()
    for _ in range(99):
        transaction.send(queue, take_in(payload(), str))
    two = [take_in(payload(), str), take_in(payload(), str)]
    error = refusal(lambda: transaction.check(queue, two))
    assert error.kind is errors.QUOTA_EXCEEDED
    assert "100 messages in a single transaction" in error.text
    transaction.send(queue, two[0])
    assert refusal(lambda: transaction.send(queue, two[1])).kind is errors.QUOTA_EXCEEDED
    transaction.commit(kit.now_ms)
    assert len(kit.bodies(queue)) == 100
