"""Auto-forwarding, forwarded dead letters, the transfer dead-letter queue (E9, D3, D7, D8)."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import EntityStatus, SqlRuleFilter

from tests.compat.whole.kit import (
    DEAD_LETTER,
    TRANSFER_DEAD_LETTER,
    Bus,
    assert_empty,
    bodies,
    drain,
    reason,
    receiver_of,
    send,
    take_one,
)


def chain(bus: Bus, length: int) -> list[str]:
    """So many queues, each forwarding to the next."""
    queues = [bus.queue()]
    for _ in range(length - 1):
        queues.insert(0, bus.queue(forward_to=queues[0]))
    return queues


def test_e9_a_queue_forwards(bus: Bus, client: ServiceBusClient) -> None:
    """E9 E4: everything arrives with its properties; the original number stays known."""
    source, target = chain(bus, 2)
    send(client, target, "direct")
    message = ServiceBusMessage("a", subject="s", application_properties={"k": "v"})
    send(client, source, message)
    direct, forwarded = drain(client, target, 2)
    assert str(direct) == "direct"
    assert (str(forwarded), forwarded.subject) == ("a", "s")
    assert forwarded.application_properties == {b"k": b"v"}
    assert forwarded.sequence_number == 2
    assert_counts(bus, source, active=0)


def assert_counts(bus: Bus, queue: str, **counts: int) -> None:
    with bus.administration() as admin:
        found = admin.get_queue_runtime_properties(queue)
    for name, wanted in counts.items():
        assert getattr(found, f"{name}_message_count") == wanted


def test_e9_the_source_cannot_be_received_from(bus: Bus, client: ServiceBusClient) -> None:
    """E9 S2."""
    source, target = chain(bus, 2)
    with pytest.raises(ServiceBusError, match="TrackingId:"):
        receiver_of(client, source).__enter__()
    assert_empty(client, target)


def test_e9_subscriptions_forward_what_their_rules_choose(
    bus: Bus, client: ServiceBusClient
) -> None:
    """E9 E8: from a subscription to a queue, and from a queue to a topic."""
    topic, queue = bus.topic(), bus.queue()
    bus.subscription(topic, {"big": SqlRuleFilter("size > 5")}, forward_to=queue)
    other = bus.subscription(topic)
    entry = bus.queue(forward_to=topic)
    for size in (1, 9):
        message = ServiceBusMessage(str(size), application_properties={"size": size})
        send(client, entry, message)
    assert bodies(drain(client, queue, 1)) == ["9"]
    assert bodies(drain(client, f"{topic}/{other}", 2)) == ["1", "9"]


def test_e9_four_hops_are_allowed(bus: Bus, client: ServiceBusClient) -> None:
    """E9: the fifth queue of a chain is reached."""
    queues = chain(bus, 5)
    send(client, queues[0], "a")
    assert bodies(drain(client, queues[-1], 1)) == ["a"]


def test_d8_the_fifth_hop_goes_to_the_transfer_dead_letter_queue(
    bus: Bus, client: ServiceBusClient
) -> None:
    """D8 D3 E9: of the queue that could not forward any more."""
    queues = chain(bus, 6)
    send(client, queues[0], "a")
    assert_empty(client, queues[-1])
    (dead,) = drain(client, queues[4], 1, sub_queue=TRANSFER_DEAD_LETTER)
    assert reason(dead)[0] == "MaxTransferHopCountExceeded"
    assert "maximum number of allowed hops" in (reason(dead)[1] or "")
    assert "4" in (reason(dead)[1] or "")
    assert dead.dead_letter_source == queues[4]
    assert_counts(bus, queues[4], transfer_dead_letter=0)


def test_d8_a_circle_ends(bus: Bus, client: ServiceBusClient) -> None:
    """D8 E9: two queues that forward to each other, and a topic fed by its own subscription."""
    first = bus.queue()
    second = bus.queue(forward_to=first)
    with bus.administration() as admin:
        properties = admin.get_queue(first)
        properties.forward_to = second
        admin.update_queue(properties)
    send(client, first, "a")
    (dead,) = drain(client, first, 1, sub_queue=TRANSFER_DEAD_LETTER)
    assert reason(dead)[0] == "MaxTransferHopCountExceeded"
    topic = bus.topic()
    sub = bus.subscription(topic, forward_to=topic)
    send(client, topic, "b")
    (dead,) = drain(client, f"{topic}/{sub}", 1, sub_queue=TRANSFER_DEAD_LETTER)
    assert reason(dead)[0] == "MaxTransferHopCountExceeded"


def test_d8_a_disabled_target(bus: Bus, client: ServiceBusClient) -> None:
    """D8 E9: the send succeeds, the message waits in the source's transfer dead letters."""
    source, target = chain(bus, 2)
    with bus.administration() as admin:
        properties = admin.get_queue(target)
        properties.status = EntityStatus.SEND_DISABLED
        admin.update_queue(properties)
    send(client, source, "a")
    assert_counts(bus, source, transfer_dead_letter=1, active=0, total=1)
    (dead,) = drain(client, source, 1, sub_queue=TRANSFER_DEAD_LETTER)
    assert reason(dead)[0] == "MessagingEntityDisabled"
    assert target in (reason(dead)[1] or "")
    assert str(dead) == "a"


def test_d8_a_deleted_target(bus: Bus, client: ServiceBusClient) -> None:
    """D8 E9."""
    source, target = chain(bus, 2)
    with bus.administration() as admin:
        admin.delete_queue(target)
    send(client, source, "a")
    (dead,) = drain(client, source, 1, sub_queue=TRANSFER_DEAD_LETTER)
    assert reason(dead)[0] == "MessagingEntityNotFound"


def test_d8_a_full_target(bus: Bus, client: ServiceBusClient) -> None:
    """D8 E9 E11: the target is over its size."""
    target = bus.queue(max_size_in_megabytes=1)
    source = bus.queue(forward_to=target)
    block = ServiceBusMessage(b"x" * 200_000)
    with client.get_queue_sender(target) as sender:
        for _ in range(6):
            sender.send_messages(block)
    send(client, source, "a")
    (dead,) = drain(client, source, 1, sub_queue=TRANSFER_DEAD_LETTER)
    assert reason(dead)[0] == "QuotaExceeded"


def test_d8_a_target_that_needs_sessions(bus: Bus, client: ServiceBusClient) -> None:
    """D8 E6: what the target refuses is kept."""
    target = bus.queue(requires_session=True)
    topic = bus.topic()
    sub = bus.subscription(topic, forward_to=target)
    send(client, topic, "a", ServiceBusMessage("b", session_id="s"))
    assert bodies(drain(client, target, 1, session_id="s")) == ["b"]
    assert bodies(drain(client, f"{topic}/{sub}", 1, sub_queue=TRANSFER_DEAD_LETTER)) == ["a"]


def test_d8_transfer_dead_letters_are_received_like_others(
    bus: Bus, client: ServiceBusClient
) -> None:
    """D8 D1: peek, lock, abandon, complete."""
    source, target = chain(bus, 2)
    with bus.administration() as admin:
        admin.delete_queue(target)
    send(client, source, "a")
    with receiver_of(client, source, sub_queue=TRANSFER_DEAD_LETTER) as receiver:
        assert bodies(receiver.peek_messages(5)) == ["a"]
        receiver.abandon_message(take_one(receiver))
        message = take_one(receiver)
        assert message.delivery_count == 1
        receiver.complete_message(message)
    assert_empty(client, source, sub_queue=TRANSFER_DEAD_LETTER)


@pytest.mark.parametrize("how", ["application", "limit"])
def test_d7_dead_letters_are_forwarded(bus: Bus, client: ServiceBusClient, how: str) -> None:
    """D7 D2: by the application or by the limit; they keep their reason and source."""
    grave = bus.queue()
    queue = bus.queue(forward_dead_lettered_messages_to=grave, max_delivery_count=1)
    send(client, queue, "a")
    with receiver_of(client, queue) as receiver:
        message = take_one(receiver)
        if how == "application":
            receiver.dead_letter_message(message, reason="unfit", error_description="why")
        else:
            receiver.abandon_message(message)
    (dead,) = drain(client, grave, 1)
    wanted = "unfit" if how == "application" else "MaxDeliveryCountExceeded"
    assert (reason(dead)[0], dead.dead_letter_source) == (wanted, queue)
    assert_empty(client, queue, sub_queue=DEAD_LETTER)


def test_d7_a_subscriptions_dead_letters_are_forwarded(bus: Bus, client: ServiceBusClient) -> None:
    """D7 D3: those of a failing filter too."""
    grave, topic = bus.queue(), bus.topic()
    bus.subscription(
        topic, {"r": SqlRuleFilter("1 / zero = 1")}, forward_dead_lettered_messages_to=grave
    )
    send(client, topic, ServiceBusMessage("a", application_properties={"zero": 0}))
    (dead,) = drain(client, grave, 1)
    assert reason(dead)[0] == "FilterException"


def test_d7_expired_messages_are_forwarded(bus: Bus, client: ServiceBusClient) -> None:
    """D7 D5: and do not expire again on their way."""
    grave = bus.queue()
    queue = bus.queue(
        forward_dead_lettered_messages_to=grave, dead_lettering_on_message_expiration=True
    )
    send(client, queue, ServiceBusMessage("a", time_to_live=timedelta(seconds=1)))
    time.sleep(1.5)
    assert_empty(client, queue)
    (dead,) = drain(client, grave, 1)
    assert reason(dead)[0] == "TTLExpiredException"


def test_e9_switching_forwarding_on_moves_what_waits(bus: Bus, client: ServiceBusClient) -> None:
    """E9: and switching it off makes the source a queue like others."""
    source, target = bus.queue(), bus.queue()
    send(client, source, "before")
    with bus.administration() as admin:
        properties = admin.get_queue(source)
        properties.forward_to = target
        admin.update_queue(properties)
    assert bodies(drain(client, target, 1)) == ["before"]
    with bus.administration() as admin:
        properties = admin.get_queue(source)
        assert properties.forward_to.endswith(f"/{target}")
        properties.forward_to = None
        admin.update_queue(properties)
    send(client, source, "after")
    assert bodies(drain(client, source, 1)) == ["after"]


def test_e9_impossible_targets_are_refused(bus: Bus) -> None:
    """E9 S2: itself, or something that is not there."""
    with bus.administration() as admin:
        for settings in (
            {"forward_to": "no-such-queue"},
            {"forward_dead_lettered_messages_to": "no-such-queue"},
        ):
            with pytest.raises(HttpResponseError) as refused:
                admin.create_queue(bus.fresh("queue"), **settings)
            assert refused.value.status_code == 400
        queue = bus.queue()
        properties = admin.get_queue(queue)
        properties.forward_to = queue
        with pytest.raises(HttpResponseError):
            admin.update_queue(properties)
