"""Purging and un-deferring a whole entity from the command line."""

from azure.servicebus import ServiceBusClient

from tests.cli.command_line import CommandLine
from tests.support.broker import Broker


def states(run: CommandLine, entity: str) -> list[str]:
    found = run("peek", entity, "--all", "--json").lines
    return sorted(message.get("state", "active") for message in found)


def test_messages_are_purged_by_their_state(run: CommandLine, queue: str) -> None:
    run("send", queue, "a", "b", "c")
    run("receive", queue, "--settle", "defer")
    run("send", queue, "later", "--schedule", "PT1H")
    assert "--yes" in run("purge", queue, code=2).err
    assert "'locked'" in run("purge", queue, "--state", "locked", "--yes", code=2).err
    assert run("purge", queue, "--yes", "--json").json == {"purged": 2}
    assert states(run, queue) == ["deferred", "scheduled"]
    assert run("purge", queue, "--state", "deferred", "--yes").out == f"1 purged from {queue}.\n"
    assert states(run, queue) == ["scheduled"]
    assert run("purge", queue, "--state", "scheduled", "--yes", "--json").json == {"purged": 1}
    assert states(run, queue) == []


def test_deferred_messages_become_active_again(
    run: CommandLine, queue: str, broker: Broker
) -> None:
    """But not the one that somebody has in hand."""
    run("send", queue, "a", "b", "c")
    run("receive", queue, "--count", "3", "--settle", "defer")
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        assert len(receiver.receive_deferred_messages([2])) == 1
        assert run("undefer", queue, "--json").json == {"undeferred": 2}
        assert states(run, queue) == ["active", "active", "deferred"]
    assert run("undefer", queue).out == f"1 in {queue} are active again.\n"


def test_a_subscription_s_messages(run: CommandLine) -> None:
    run("topic", "create", "purged")
    run("subscription", "create", "purged", "mine")
    run("send", "purged", "a", "b")
    path = "purged/Subscriptions/mine"
    run("receive", path, "--settle", "defer")
    assert run("undefer", path, "--json").json == {"undeferred": 1}
    assert run("purge", path, "--yes", "--json").json == {"purged": 2}
