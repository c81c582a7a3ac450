"""The JavaScript clients (the official SDK, and rhea) against a live broker.

Needs `python -m tests.support.node` once, which installs them beside these tests.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.support.broker import KEY, KEY_NAME, Broker
from tests.support.node import JS, program
from tests.support.queues import QueuePool


def run(script: str, *arguments: str, connection_string: str = "") -> Any:
    if not (JS / "node_modules").is_dir():
        pytest.skip("the JavaScript clients are not installed: python -m tests.support.node")
    ended = subprocess.run(
        [program("node"), str(JS / script), *arguments],
        env=os.environ | {"CONNECTION_STRING": connection_string},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def seen(broker: Broker, pool: QueuePool) -> Any:
    """What the SDK saw in all its scenarios, on one queue, in one process."""
    return run("sdk.mjs", pool.take(), connection_string=broker.connection_string)


def test_sdk_sends_receives_and_completes(seen: Any) -> None:
    """S1 E4 R2 R4."""
    assert seen["sendAndComplete"] == {
        "body": {"text": "ž"},
        "messageId": "m-1",
        "subject": "greeting",
        "correlationId": "c-1",
        "properties": {"whole": 7, "real": 1.5, "yes": True, "text": "ž"},
        "deliveryCount": 0,
        "sequenceNumber": "1",
        "lockTokenLength": 36,
        "emptyAfter": True,
    }


def test_sdk_batch_arrives_in_order(seen: Any) -> None:
    """S6."""
    assert seen["batch"] == {"bodies": list(range(100))}


def test_sdk_receive_and_delete(seen: Any) -> None:
    """R1."""
    assert seen["receiveAndDelete"] == {"body": "a", "emptyAfter": True}


def test_sdk_abandon_counts_and_changes_properties(seen: Any) -> None:
    """R3 R4."""
    assert seen["abandon"] == {"body": "a", "deliveryCount": 1, "tried": "once"}


def test_sdk_defer_and_fetch(seen: Any) -> None:
    """E5 R4."""
    assert seen["deferAndFetch"] == {
        "hidden": True,
        "body": "later",
        "state": "deferred",
        "missingCode": "MessageNotFound",
    }


def test_sdk_dead_letter(seen: Any) -> None:
    """R4 D2: reason, description and further properties of the application."""
    assert seen["deadLetter"] == {
        "body": "bad",
        "reason": "unfit",
        "description": "no price",
        "seenBy": "clerk",
    }


def test_sdk_renew(seen: Any) -> None:
    """R6."""
    assert seen["renew"] == {"prolonged": True}


def test_sdk_peek_and_schedule(seen: Any) -> None:
    """E5."""
    assert seen["peekAndSchedule"] == {
        "before": [["a", "active"], ["s", "scheduled"]],
        "after": [["a", "active"]],
    }


def test_sdk_subscribe(seen: Any) -> None:
    """R2: the streaming receiver, completing by itself."""
    assert seen["subscribe"] == {"bodies": [1, 2, 3]}


def test_sdk_sessions(broker: Broker, session_queue: str) -> None:
    """E6."""
    told = run("sdk_sessions.mjs", session_queue, connection_string=broker.connection_string)
    assert told.pop("withoutSession") is not None
    assert told == {
        "locked": "SessionCannotBeLocked",
        "state": {"step": 1},
        "renewed": True,
        "bodies": [1, 3],
        "freeId": "blue",
        "noneLeft": "ServiceTimeout",
    }


def test_rhea(broker: Broker, queue: str) -> None:
    """S3 R2 R3 R4: pipelined sends, a credit window, every outcome."""
    assert run("rhea.mjs", str(broker.amqp_port), queue, KEY_NAME, KEY) == {
        "accepted": 200,
        "received": list(range(1, 200)),
        "counts": [0, 0, 1],
        "dead": 0,
    }


def test_the_lock_file_names_no_registry() -> None:
    """Whoever installs from it decides where from."""
    assert "resolved" not in (JS / "package-lock.json").read_text()
