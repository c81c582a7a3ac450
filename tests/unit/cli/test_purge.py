"""Purging step by step, and on a broker that is not this one."""

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.cli import purge
from twinbus.cli.failures import USAGE, CommandError
from twinbus.cli.printer import Printer

REMOTE: Any = SimpleNamespace(client=nullcontext)


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What its steps remove."""
    steps = [4_000, 7, 0]
    node = SimpleNamespace(is_twinbus=lambda: False, delete=lambda: steps.pop(0))
    monkeypatch.setattr(purge, "Node", lambda *_: node)
    return steps


def test_active_messages_are_deleted_anywhere_until_none_is_left(
    azure: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    purge.purge(REMOTE, Printer(json_output=True), "q", yes=True)
    assert json.loads(capsys.readouterr().out) == {"purged": 4_007}
    assert azure == []


def test_what_only_this_broker_can_do_is_said(azure: list[int]) -> None:
    for state in (purge.Purged.DEFERRED, purge.Purged.SCHEDULED):
        with pytest.raises(CommandError, match=f"only Twinbus can purge {state}") as told:
            purge.purge(REMOTE, Printer(json_output=True), "q", state, yes=True)
        assert told.value.code == USAGE
    with pytest.raises(CommandError, match="only Twinbus can make deferred"):
        purge.undefer(REMOTE, Printer(json_output=True), "q")
    assert len(azure) == 3


def test_a_run_that_fails_tells_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    steps = iter([10_000, 3])
    with pytest.raises(StopIteration):
        purge.throw_away(Printer(json_output=False), "q", steps.__next__)
    assert capsys.readouterr().out == "10003 purged from q.\n"
