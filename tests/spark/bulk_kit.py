"""What the tests of bulk work do to a broker: fill queues, let messages die, look at what is there.

It uses the project's own client, which has tests of its own, because it is quick.
"""

from __future__ import annotations

import time
from typing import Any

from twinbus.client import Client
from twinbus.spark.messages import to_batch, to_messages
from twinbus.spark.schema import ARROW

REASON, DESCRIPTION = "Broken", "it was in pieces"


def send(connection: str, entity: str, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa

    names = [name for name in ARROW.names if any(name in row for row in rows)]
    schema = pa.schema([ARROW.field(name) for name in names])
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    with Client.connect(connection) as client, client.sender(entity) as sender:
        sender.send(to_messages(batch, lambda row: f"row-{row}"))
        sender.flush()


def bury(connection: str, entity: str, rows: list[dict[str, Any]]) -> None:
    """Send messages to a queue, and let all of them die there."""
    send(connection, entity, rows)
    with Client.connect(connection) as client:
        assert bury_all(client, entity) == len(rows)


def bury_all(client: Client, entity: str) -> int:
    """Let die what is in a queue; gives how many those were."""
    asked = {"consumer": "burial", "epoch": 1}
    found = client.request(entity, "twinbus:reserve", {**asked, "message-count": 100_000})
    numbers = found.body["ranges"]
    dead = [
        {"sequence-number": number, "reason": REASON, "description": DESCRIPTION}
        for low, high in zip(numbers[::2], numbers[1::2], strict=True)
        for number in range(low, high + 1)
    ]
    client.request(entity, "twinbus:settle-upto", {**asked, "dead-lettered": dead})
    # The broker lets many die some at a time.
    left = {"from": numbers[0], "to": numbers[-1], "byte-count": 1, "omit-message-body": True}
    while client.request(entity, "twinbus:read", left).body:
        time.sleep(0.01)
    return len(dead)


def contents(connection: str, entity: str) -> list[dict[str, Any]]:
    """All messages of an entity in order, as rows of columns."""
    found: list[dict[str, Any]] = []
    with Client.connect(connection) as client:
        low = 1
        while True:
            body = {"from": low, "to": 2**62, "byte-count": 4 * 1024 * 1024}
            messages = client.request(entity, "twinbus:read", body).body.get("messages")
            if not messages:
                return found
            found += to_batch(messages).to_pylist()
            low = found[-1]["sequence_number"] + 1


def ids(connection: str, entity: str) -> list[str]:
    return [row["message_id"] for row in contents(connection, entity)]
