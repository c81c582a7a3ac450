"""Transactions through qpid-proton: all or nothing, and send-via (E10)."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from proton import Delivery, Message
from proton.utils import LinkDetached

from tests.compat.whole.kit import (
    DEAD_LETTER,
    WAIT,
    Bus,
    assert_empty,
    drain,
    ids,
    reason,
    receiver_of,
    send,
    session_filter,
)
from tests.compat.whole.work import Via, Work


def test_e10_sends_and_settlements_commit_together(bus: Bus, client: ServiceBusClient) -> None:
    """E10: nothing is seen before the commit, all of it after."""
    source, first, second = bus.queue(), bus.queue(), bus.topic()
    sub = f"{second}/{bus.subscription(second)}"
    send(client, source, "order")
    with bus.proton() as connection:
        work = Work(connection)
        assert work.complete(connection.create_receiver(source)).id == "order"
        sender = connection.create_sender(first)
        work.send(sender, "invoice")
        answer = work.send(sender, "label")
        assert answer.remote_state == 0x34
        work.send(connection.create_sender(second), "event")
        assert_empty(client, first)
        assert_empty(client, sub)
        with receiver_of(client, source) as receiver:
            assert ids(receiver.peek_messages(5)) == ["order"]
        assert work.commit() == "committed"
        assert ids(drain(client, first, 2)) == ["invoice", "label"]
        assert ids(drain(client, sub, 1)) == ["event"]
    assert_empty(client, source)


def test_e10_an_aborted_transaction_leaves_no_trace(bus: Bus, client: ServiceBusClient) -> None:
    """E10 R7: the message stays locked with its receiver, and comes back when that goes."""
    source, target = bus.queue(), bus.queue()
    send(client, source, "order")
    with bus.proton() as connection:
        work = Work(connection)
        work.complete(connection.create_receiver(source))
        work.send(connection.create_sender(target), "invoice")
        assert work.abort() == "aborted"
        assert_empty(client, source)
    assert_empty(client, target)
    assert ids(drain(client, source, 1)) == ["order"]


def test_e10_r4_after_an_abort_the_receiver_settles_anew(
    bus: Bus, client: ServiceBusClient
) -> None:
    """E10 R4: proton releases what was accepted in a transaction that it aborts."""
    source = bus.queue()
    send(client, source, "order")
    with bus.proton() as connection:
        work = Work(connection)
        receiver = connection.create_receiver(source)
        receiver.receive()
        delivery = receiver.fetcher.unsettled.popleft()
        work.transaction.accept(delivery)
        connection.wait(lambda: delivery.remote_state != 0)
        assert work.abort() == "aborted"
        assert receiver.receive(timeout=WAIT).id == "order"
        receiver.accept()
    assert_empty(client, source)


def test_e10_a_lost_connection_rolls_back(bus: Bus, client: ServiceBusClient) -> None:
    """E10 R7: an open transaction dies with its connection; its locks are free at once."""
    source, target = bus.queue(), bus.queue()
    send(client, source, "order")
    with bus.proton() as connection:
        work = Work(connection)
        work.complete(connection.create_receiver(source))
        work.send(connection.create_sender(target), "invoice")
    assert ids(drain(client, source, 1)) == ["order"]
    assert_empty(client, target)


def test_e10_one_lost_lock_fails_the_whole(bus: Bus, client: ServiceBusClient) -> None:
    """E10 R5: the sends of the same transaction are not made either."""
    source, target = bus.queue(lock_duration=timedelta(seconds=5)), bus.queue()
    send(client, source, "order")
    with bus.proton() as connection:
        work = Work(connection)
        work.complete(connection.create_receiver(source))
        work.send(connection.create_sender(target), "invoice")
        time.sleep(5.3)
        assert work.commit() == "failed"
        assert work.ledger.condition == "com.microsoft:message-lock-lost"
    assert_empty(client, target)
    assert ids(drain(client, source, 1)) == ["order"]


def test_e10_one_refused_send_fails_the_whole(bus: Bus, client: ServiceBusClient) -> None:
    """E10: a target that is deleted before the commit."""
    source, doomed, target = bus.queue(), bus.queue(), bus.queue()
    send(client, source, "order")
    with bus.proton() as connection:
        work = Work(connection)
        work.complete(connection.create_receiver(source))
        work.send(connection.create_sender(target), "invoice")
        sender = connection.create_sender(doomed)
        work.send(sender, "lost")
        with bus.administration() as admin:
            admin.delete_queue(doomed)
        # The link to what is gone is closed under it.
        with pytest.raises(LinkDetached):
            connection.wait(lambda: False)
        assert work.commit() == "failed"
        assert work.ledger.condition == "amqp:not-found"
    assert_empty(client, target)
    assert ids(drain(client, source, 1)) == ["order"]


def test_e10_every_outcome_can_be_part(bus: Bus, client: ServiceBusClient) -> None:
    """E10 R4 D1 E6: dead-letter, complete a dead letter, complete in a session."""
    queue, sessions = bus.queue(), bus.queue(requires_session=True)
    send(client, queue, "first")
    with receiver_of(client, queue) as receiver:
        (message,) = receiver.receive_messages(max_wait_time=WAIT)
        receiver.dead_letter_message(message, reason="earlier")
    send(client, queue, "second")
    send(client, sessions, ServiceBusMessage("in session", session_id="s"))
    with bus.proton() as connection:
        work = Work(connection)
        work.complete(connection.create_receiver(f"{queue}/$DeadLetterQueue"))
        live = connection.create_receiver(queue)
        live.receive()
        work.settle(live, Delivery.REJECTED)
        work.complete(connection.create_receiver(sessions, options=session_filter("s")))
        assert work.commit() == "committed"
    (dead,) = drain(client, queue, 1, sub_queue=DEAD_LETTER)
    assert (dead.message_id, reason(dead)[0]) == ("second", None)
    assert_empty(client, queue)
    assert_empty(client, sessions, session_id="s")


def test_e10_send_via(bus: Bus, client: ServiceBusClient) -> None:
    """E10: through the entity that is received from, to another, in one transaction."""
    source, target = bus.queue(), bus.queue()
    send(client, source, "order")
    with bus.proton() as connection:
        for ending in ("aborted", "committed"):
            receiver = connection.create_receiver(source)
            sender = connection.create_sender(source, options=Via(target))
            work = Work(connection)
            work.send(sender, "invoice")
            if ending == "committed":
                work.complete(receiver)
                assert work.commit() == ending
            else:
                assert work.abort() == ending
            receiver.close()
            sender.close()
        sender = connection.create_sender(source, options=Via(target))
        sender.send(Message(body="outside", id="outside"))
    assert ids(drain(client, target, 2)) == ["invoice", "outside"]
    assert_empty(client, source)


def test_e10_no_sending_via_to_a_subscription(bus: Bus) -> None:
    """E10 E8: what nobody can send to, nobody can send to by a detour."""
    source, topic = bus.queue(), bus.topic()
    name = bus.subscription(topic)
    with bus.proton() as connection, pytest.raises(LinkDetached):
        connection.create_sender(source, options=Via(f"{topic}/Subscriptions/{name}"))


def test_e10_duplicates_within(bus: Bus, client: ServiceBusClient) -> None:
    """E10 E7: a duplicate in a transaction is dropped when it commits."""
    queue = bus.queue(requires_duplicate_detection=True)
    with bus.proton() as connection:
        work = Work(connection)
        sender = connection.create_sender(queue)
        for text in ("a", "b", "a"):
            work.send(sender, text)
        assert work.commit() == "committed"
    assert ids(drain(client, queue, 2)) == ["a", "b"]


def test_e10_an_unknown_transaction_is_refused(bus: Bus, client: ServiceBusClient) -> None:
    """E10 S2: sends and discharges with an id that is not open."""
    queue = bus.queue()
    with bus.proton() as connection:
        work = Work(connection)
        sender = connection.create_sender(queue)
        assert work.abort() == "aborted"
        delivery = work.send(sender, "a")
        assert delivery.remote_state == Delivery.REJECTED
        assert delivery.remote.condition.name == "amqp:transaction:unknown-id"
        work.ledger.outcome = ""
        assert work.commit() == "failed"
        assert work.ledger.condition == "amqp:transaction:unknown-id"
    assert_empty(client, queue)
