"""Requests to `$management` through proton, type by type, as WIRE section 8 writes them.

Enters: an operation and its map. Leaves: status, condition, text and body of the answer.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from proton import UNDESCRIBED, Array, Data, Message
from proton.utils import BlockingConnection


@dataclass(frozen=True)
class Answer:
    status: int
    condition: str | None
    text: str
    body: Any
    tracking_id: str | None
    #: Binary values are views into it, so it has to stay.
    reply: Message


class Management:
    """The pair of links to one entity's management node."""

    def __init__(self, connection: BlockingConnection, path: str) -> None:
        self.node = f"{path}/$management"
        self.replies = connection.create_receiver(self.node, credit=10)
        self.requests = connection.create_sender(self.node)

    def ask(
        self, operation: str, body: Any = None, properties: dict[str, Any] | None = None
    ) -> Answer:
        named = operation if ":" in operation else f"com.microsoft:{operation}"
        request = Message(
            id=uuid.uuid4(),
            reply_to=self.node,
            properties={"operation": named, **(properties or {})},
            body=body,
        )
        self.requests.send(request)
        reply = self.replies.receive()
        assert reply.correlation_id == request.id
        given = reply.properties
        return Answer(
            given["statusCode"],
            given.get("errorCondition"),
            given["statusDescription"],
            reply.body,
            given.get("com.microsoft:tracking-id"),
            reply,
        )


def longs(*numbers: int) -> Array:
    return Array(UNDESCRIBED, Data.LONG, *numbers)


def tokens(*lock_tokens: Any) -> Array:
    return Array(UNDESCRIBED, Data.UUID, *lock_tokens)


def messages_in(answer: Answer) -> list[Message]:
    """The messages that an answer holds, decoded."""
    found = []
    for entry in answer.body["messages"] if answer.body else []:
        message = Message()
        message.decode(entry["message"])
        found.append(message)
    return found
