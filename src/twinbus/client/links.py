"""The client's ends of links: what waits to be sent, what came in, what became of it.

The connection tells a link what the peer did; callers put deliveries in and take outcomes
and messages out. A link writes no frames itself.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from twinbus.amqp.outcomes import Outcome
from twinbus.client.errors import ClientError, ConnectionLost

SERIAL: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000

# Answers in flight: far more than one caller ever has, topped up when half is used.
REPLY_CREDIT: Final = 100
# An answer holds 4 MB of messages at most, or one message of up to 100 MB.
REPLY_BYTES_MAX: Final = 101 * 1024 * 1024


class Link:
    """What both directions share. `handle` is ours; the peer's is the connection's affair."""

    def __init__(self, name: str, handle: int) -> None:
        self.name = name
        self.handle = handle
        #: The peer has answered the attach and means it.
        self.attached = False
        #: Why the link is over.
        self.failure: ClientError | None = None
        self.delivery_count = 0


class Outgoing:
    """A delivery on its way out, perhaps in several frames."""

    __slots__ = ("delivery_id", "message_format", "payload", "sent_bytes")

    def __init__(self, payload: bytes, message_format: int) -> None:
        self.payload = payload
        self.message_format = message_format
        #: Given when the first frame leaves, -1 before.
        self.delivery_id = -1
        self.sent_bytes = 0


class SendingLink(Link):
    def __init__(self, name: str, handle: int) -> None:
        super().__init__(name, handle)
        #: How large a message the peer takes; 0: it does not say.
        self.max_message_size = 0
        self.credit = 0
        self.queue: deque[Outgoing] = deque()
        #: What the peer said of deliveries, in the order it said so.
        self.outcomes: deque[tuple[Outgoing, Outcome]] = deque()

    def take_credit(self, delivery_count: int, link_credit: int) -> None:
        """Credit counts from the peer's view of our deliveries (AMQP 1.0 §2.6.7)."""
        seen = max(delivery_count, 0)
        behind = ((self.delivery_count - seen + _HALF) & SERIAL) - _HALF
        self.credit = max(link_credit - behind, 0)


class ReceivingLink(Link):
    def __init__(self, name: str, handle: int) -> None:
        super().__init__(name, handle)
        self.credit = 0
        self.messages: deque[bytes] = deque()
        self._parts: list[bytes] = []
        self._size = 0

    def take_frame(self, payload: bytes, more: bool, aborted: bool) -> bool:
        """One frame of a delivery; tells whether a message is complete."""
        if aborted:
            self._parts = []
            self._size = 0
            return False
        self._size += len(payload)
        if self._size > REPLY_BYTES_MAX:
            raise ConnectionLost(f"the broker sent an answer of more than {REPLY_BYTES_MAX} bytes")
        self._parts.append(payload)
        if more:
            return False
        self.messages.append(b"".join(self._parts))
        self._parts = []
        self._size = 0
        return True
