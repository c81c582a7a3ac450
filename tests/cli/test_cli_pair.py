"""`twinbus pair status` tells what waits, for whom, and whether the primary answers (P2, P8)."""

import json
from typing import Any

import pytest

from tests.cli.command_line import CommandLine
from tests.support.broker import Broker

BACKLOG = "localhost/x-servicebus-transfer/0"
NOBODY = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=Yg==;"
    "UseDevelopmentEmulator=true"
)


def status(run: CommandLine, primary: str, secondary: str) -> dict[str, Any]:
    options = ("--primary", primary, "--secondary", secondary, "--backlog-queues", "2")
    found: dict[str, Any] = json.loads(run("pair", "status", *options, "--json").out)
    return found


@pytest.mark.slow
def test_what_waits_is_told_by_destination(run: CommandLine, broker: Broker, queue: str) -> None:
    run("queue", "create", BACKLOG)
    run("send", BACKLOG, "one", "two", "--property", f"x-ms-path={queue}")
    run("send", BACKLOG, "lost", "--property", "x-ms-path=elsewhere")
    text = broker.connection_string

    found = status(run, text, text)
    assert found["primary"] == {"reachable": True, "error": None}
    assert found["waiting"] == 3
    assert [(e["entity"], e["waiting"]) for e in found["entities"]] == [
        (queue, 2),
        ("elsewhere", 1),
    ]
    assert [(q["exists"], q["waiting"], q["dead_letters"]) for q in found["backlog_queues"]] == [
        (True, 3, 0),
        (False, 0, 0),
    ]

    shown = run("pair", "status", "--primary", text, "--secondary", text, "--backlog-queues", "2")
    assert "3 waiting" in shown.out
    assert queue in shown.out

    down = status(run, NOBODY, text)
    assert down["primary"]["reachable"] is False
    run("queue", "delete", BACKLOG, "--yes")
