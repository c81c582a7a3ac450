"""The Python SDK's admin client against a live broker: settings, counts, lists (E1, E3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import CorrelationRuleFilter, MessagingSku, SqlRuleFilter

from tests.compat.whole.kit import Bus, drain, receiver_of, send, take


def test_e3_a_queue_has_the_documented_defaults(bus: Bus) -> None:
    """E3."""
    queue = bus.queue()
    with bus.administration() as admin:
        found = admin.get_queue(queue)
    assert found.lock_duration == timedelta(seconds=30)
    assert found.max_delivery_count == 10
    assert found.default_message_time_to_live > timedelta(days=10_000_000)
    assert found.auto_delete_on_idle > timedelta(days=10_000_000)
    assert found.duplicate_detection_history_time_window == timedelta(minutes=10)
    assert found.max_size_in_megabytes == 1024
    assert found.enable_batched_operations is True
    assert found.dead_lettering_on_message_expiration is False
    assert (found.requires_session, found.requires_duplicate_detection) == (False, False)
    assert (found.forward_to, found.forward_dead_lettered_messages_to) == (None, None)
    assert found.user_metadata is None


def test_e3_every_setting_comes_back(bus: Bus) -> None:
    """E3: and can be changed, but for those that cannot."""
    target = bus.queue()
    settings = {
        "lock_duration": timedelta(seconds=45),
        "max_delivery_count": 3,
        "default_message_time_to_live": timedelta(hours=1),
        "dead_lettering_on_message_expiration": True,
        "requires_duplicate_detection": True,
        "duplicate_detection_history_time_window": timedelta(minutes=2),
        "max_size_in_megabytes": 2048,
        "max_message_size_in_kilobytes": 2048,
        "enable_batched_operations": False,
        "auto_delete_on_idle": timedelta(minutes=10),
        "user_metadata": "žluťoučký <&>",
        "forward_dead_lettered_messages_to": target,
    }
    queue = bus.queue(**settings)
    with bus.administration() as admin:
        found = admin.get_queue(queue)
        for name, wanted in settings.items():
            got = getattr(found, name)
            assert got == wanted or str(got).endswith(f"/{wanted}"), name
        found.lock_duration = timedelta(minutes=5)
        found.forward_dead_lettered_messages_to = None
        admin.update_queue(found)
        changed = admin.get_queue(queue)
        assert changed.lock_duration == timedelta(minutes=5)
        assert changed.forward_dead_lettered_messages_to is None
        assert changed.max_delivery_count == 3
        admin.update_queue(changed, max_delivery_count=4)
        assert admin.get_queue(queue).max_delivery_count == 4


def test_e3_topics_and_subscriptions(bus: Bus) -> None:
    """E3 E8: with DeadLetteringOnFilterEvaluationExceptions on the subscription."""
    topic = bus.topic(default_message_time_to_live=timedelta(hours=2))
    sub = bus.subscription(topic)
    with bus.administration() as admin:
        found = admin.get_subscription(topic, sub)
        assert found.dead_lettering_on_filter_evaluation_exceptions is True
        assert found.lock_duration == timedelta(seconds=30)
        found.dead_lettering_on_filter_evaluation_exceptions = False
        found.max_delivery_count = 5
        admin.update_subscription(topic, found)
        changed = admin.get_subscription(topic, sub)
        assert changed.dead_lettering_on_filter_evaluation_exceptions is False
        assert changed.max_delivery_count == 5
        wanted = admin.get_topic(topic)
        assert wanted.default_message_time_to_live == timedelta(hours=2)
        wanted.user_metadata = "changed"
        admin.update_topic(wanted)
        assert admin.get_topic(topic).user_metadata == "changed"


def test_e3_counts_are_current_at_once(bus: Bus, client: ServiceBusClient) -> None:
    """E3: active (locked and deferred too), scheduled, dead, total, size, times."""
    began = datetime.now(UTC) - timedelta(seconds=5)
    queue = bus.queue()
    send(client, queue, "a", "b", "c", "d")
    with client.get_queue_sender(queue) as sender:
        due = datetime.now(UTC) + timedelta(minutes=5)
        sender.schedule_messages(ServiceBusMessage("e"), due)
    with receiver_of(client, queue) as receiver, bus.administration() as admin:
        _, deferred, dead, done = take(receiver, 4)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead)
        receiver.complete_message(done)
        found = admin.get_queue_runtime_properties(queue)
        assert found.active_message_count == 2
        assert found.scheduled_message_count == 1
        assert found.dead_letter_message_count == 1
        assert found.transfer_dead_letter_message_count == 0
        assert found.total_message_count == 4
        assert found.size_in_bytes > 0
        assert found.accessed_at_utc >= began
        assert found.created_at_utc >= began
        (listed,) = [
            entry for entry in admin.list_queues_runtime_properties() if entry.name == queue
        ]
        assert listed.total_message_count == 4


def test_e8_a_topics_counts(bus: Bus) -> None:
    """E8: subscriptions and filters; `$Default` counts as SQL."""
    topic = bus.topic()
    bus.subscription(topic)
    filters = {"c": CorrelationRuleFilter(label="x"), "s": SqlRuleFilter("a = 1")}
    bus.subscription(topic, filters)
    with bus.administration() as admin:
        found = admin.get_topic_runtime_properties(topic)
    counts = (found.subscription_count, found.sql_filter_count, found.correlation_filter_count)
    assert counts == (2, 2, 1)


def test_e8_rules_are_listed_in_pages(bus: Bus) -> None:
    """E8: more than one page, each once, sorted by name."""
    topic = bus.topic()
    wanted = [f"r{number:03}" for number in range(120)]
    sub = bus.subscription(topic, {name: SqlRuleFilter("1 = 0") for name in reversed(wanted)})
    assert [rule.name for rule in bus.rules(topic, sub)] == wanted


def test_what_is_not_there(bus: Bus) -> None:
    """S2: 404 for each operation."""
    topic = bus.topic()
    with bus.administration() as admin:
        for ask in (
            lambda: admin.get_queue("no-such"),
            lambda: admin.get_topic("no-such"),
            lambda: admin.get_subscription(topic, "no-such"),
            lambda: admin.get_queue_runtime_properties("no-such"),
            lambda: admin.delete_queue("no-such"),
            lambda: admin.delete_subscription(topic, "no-such"),
        ):
            with pytest.raises(ResourceNotFoundError):
                ask()
        missing = admin.get_queue(bus.queue())
        missing.name = "no-such"
        with pytest.raises(HttpResponseError) as refused:
            admin.update_queue(missing)
        assert refused.value.status_code == 404


def test_namespace(bus: Bus) -> None:
    """WIRE 13: the name is the first label of the host."""
    with bus.administration() as admin:
        found = admin.get_namespace_properties()
    assert (found.name, found.messaging_sku) == ("localhost", MessagingSku.STANDARD)


async def test_the_asyncio_admin_client(bus: Bus, client: ServiceBusClient) -> None:
    """E1 E3 E8: the same API, the other client."""
    name, topic = bus.fresh("queue"), bus.fresh("topic")
    admin = ServiceBusAdministrationClient.from_connection_string(
        bus.admin_connection_string, connection_verify=bus.ca
    )
    async with admin:
        await admin.create_queue(name, max_delivery_count=4)
        assert (await admin.get_queue(name)).max_delivery_count == 4
        await admin.create_topic(topic)
        await admin.create_subscription(topic, "s")
        await admin.create_rule(topic, "s", "r", filter=SqlRuleFilter("a = 1"))
        rules = [rule.name async for rule in admin.list_rules(topic, "s")]
        assert rules == ["$Default", "r"]
        send(client, name, "a")
        counts = await admin.get_queue_runtime_properties(name)
        assert counts.active_message_count == 1
        drain(client, name, 1)
        await admin.delete_topic(topic)
        with pytest.raises(ResourceNotFoundError):
            await admin.get_topic(topic)
