"""Purging step by step, and on a broker that is not this one."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.cli import dead_letter, purge
from twinbus.cli.failures import USAGE, CommandError
from twinbus.cli.node import Node
from twinbus.cli.printer import Printer

REMOTE: Any = SimpleNamespace(client=nullcontext)


class Broker(Node):
    """A queue into which a message comes after each step."""

    def __init__(self, held: int, *, twinbus: bool) -> None:
        self.held = held
        self.twinbus = twinbus
        self.befores: set[int] = set()

    def is_twinbus(self) -> bool:
        return self.twinbus

    def request(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        count = min(self.held, body["message-count"]["VALUE"])
        if operation == "twinbus:purge":
            assert body["state"] == "active"
            self.held += 1
        else:
            # Others than Twinbus may remove fewer than there are.
            count = min(count, 7)
            self.befores.add(body["enqueued-time-utc"]["VALUE"])
        self.held -= count
        return {"message-count": count} if count else {"message-count": 0}


def put_in_place(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> Broker:
    monkeypatch.setattr(purge, "Node", lambda *_: broker)
    monkeypatch.setattr(dead_letter, "Node", lambda *_: broker)
    return broker


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return put_in_place(monkeypatch, Broker(20, twinbus=False))


def test_active_messages_are_deleted_anywhere_until_none_is_left(
    azure: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    purge.purge(REMOTE, Printer(json_output=True), "q", yes=True)
    assert json.loads(capsys.readouterr().out) == {"purged": 20}
    # What comes later is none of it.
    assert len(azure.befores) == 1


@pytest.mark.parametrize("command", [purge.purge, dead_letter.purge])
@pytest.mark.parametrize("held", [0, 20, 4_000, 9_999])
def test_what_comes_meanwhile_does_not_keep_it_going(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: Callable[..., None],
    held: int,
) -> None:
    broker = put_in_place(monkeypatch, Broker(held, twinbus=True))
    command(REMOTE, Printer(json_output=True), "q", yes=True)
    steps = held // 4_000 + 1
    assert json.loads(capsys.readouterr().out) == {"purged": held + steps - 1}
    assert broker.held == 1


def test_what_only_this_broker_can_do_is_said(azure: Broker) -> None:
    for state in (purge.Purged.DEFERRED, purge.Purged.SCHEDULED):
        with pytest.raises(CommandError, match=f"only Twinbus can purge {state}") as told:
            purge.purge(REMOTE, Printer(json_output=True), "q", state, yes=True)
        assert told.value.code == USAGE
    with pytest.raises(CommandError, match="only Twinbus can make deferred"):
        purge.undefer(REMOTE, Printer(json_output=True), "q")
    assert azure.held == 20


def test_a_run_that_fails_tells_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    def steps() -> Iterator[int]:
        yield 10_000
        yield 3
        raise CommandError("the broker is gone")

    with pytest.raises(CommandError):
        purge.throw_away(Printer(json_output=False), "q", steps())
    assert capsys.readouterr().out == "10003 purged from q.\n"
