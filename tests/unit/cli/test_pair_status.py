"""What `twinbus pair status` makes of backlogs with odd messages in them."""

from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.cli import pair
from twinbus.cli.pair import Backlog


def test_a_message_that_cannot_be_read_waits_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early, late = "2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z"
    waiting = [
        {"sequence_number": 1, "unreadable": "a text that is no UTF-8"},
        {"sequence_number": 2, "enqueued_time_utc": early},
        # Properties whose names are not all texts are pairs.
        {"sequence_number": 3, "enqueued_time_utc": late, "application_properties": [[1, 2]]},
        {
            "sequence_number": 4,
            "enqueued_time_utc": late,
            "application_properties": {"x-ms-path": "orders"},
        },
    ]

    def node(client: object, path: str) -> Any:
        pages = [] if path.endswith("$DeadLetterQueue") else [waiting]
        return SimpleNamespace(browse=lambda **_: pages)

    monkeypatch.setattr(pair, "Node", node)
    backlog = Backlog()
    backlog.look(None, "q")
    assert backlog.queues == [{"queue": "q", "exists": True, "waiting": 4, "dead_letters": 0}]
    assert list(backlog.entities.values()) == [
        {"entity": "(no destination)", "waiting": 3, "oldest": early},
        {"entity": "orders", "waiting": 1, "oldest": late},
    ]
