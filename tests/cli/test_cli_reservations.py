"""Listing and releasing what a stopped query holds (L3)."""

from tests.cli.command_line import CommandLine
from tests.support.broker import Broker
from twinbus.cli.node import Node
from twinbus.cli.remote import Remote


def reserve(broker: Broker, queue: str, consumer: str, epoch: int, count: int) -> None:
    with Remote(broker.connection_string, None, None).client() as client:
        body = {"consumer": consumer, "epoch": epoch, "message-count": count}
        Node(client, queue).request("twinbus:reserve", body)


def test_l3_list_and_release(run: CommandLine, broker: Broker, queue: str) -> None:
    """L3: who holds what; release gives it back to everybody, in its old places."""
    assert run("reservations", "list", queue, "--json").json == []
    run("send", queue, "a", "b", "c")
    reserve(broker, queue, "nightly", 1, 1)
    reserve(broker, queue, "nightly", 2, 1)
    (known,) = run("reservations", "list", queue, "--json").json
    assert (known["consumer"], known["settled_epoch"]) == ("nightly", 0)
    assert [(e["epoch"], e["messages"], e["ranges"]) for e in known["epochs"]] == [
        (1, 1, [1, 1]),
        (2, 1, [2, 2]),
    ]
    assert known["epochs"][0]["reserved_at"].endswith("+00:00")
    table = run("reservations", "list", queue, "nightly").out.splitlines()
    assert table[0].split()[:2] == ["consumer", "settled"]
    assert len(table) == 3

    wrong = run("reservations", "release", queue, "nighty", "--yes", code=3)
    assert "nightly" in wrong.err
    asked = run("reservations", "release", queue, "nightly", code=2)
    assert "2 messages" in asked.err
    assert run("reservations", "release", queue, "nightly", "--yes", "--json").json == {
        "released": 2
    }
    assert run("reservations", "list", queue).out.splitlines()[1].split() == ["nightly", "2"]
    got = run("receive", queue, "--count", "3", "--json").lines
    assert [message["body"] for message in got] == ["a", "b", "c"]
