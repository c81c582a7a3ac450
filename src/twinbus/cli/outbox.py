"""Sends encoded messages in batches, as they are.

Encoded messages go in one by one; a batch goes out when it is full, or when the next message
may not share it. Whatever was put in before an error may have been sent or not; what is given
as sent has been accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from twinbus.forms.message_form import Encoded

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusSender

# Below the smallest limit of any tier, with room for the batch's own bytes.
_BATCH_BYTES_MAX = 200 * 1024
_BATCH_COUNT_MAX = 500


class Outbox:
    def __init__(self, sender: ServiceBusSender) -> None:
        self._sender = sender
        self._waiting: list[Encoded] = []
        self._bytes = 0

    def send_all(self, messages: Iterable[Encoded], advance: Callable[[int], None]) -> None:
        """Send messages to the last one; `advance` is told whenever some have been accepted."""
        for message in messages:
            advance(self.put(message))
        advance(self.flush())

    def put(self, message: Encoded) -> int:
        """Take a message; gives how many were sent meanwhile."""
        count = 0
        if self._waiting and not self._fits(message):
            count = self.flush()
        self._waiting.append(message)
        self._bytes += len(message.payload)
        return count

    def flush(self) -> int:
        """Send what waits; gives how many that were."""
        # Where the SDK is not installed, nobody gets here.
        from twinbus.pairing.sdk import fill_raw

        if not self._waiting:
            return 0
        batch = self._sender.create_message_batch()
        for message in self._waiting:
            fill_raw(batch, message.payload, message.session_id, message.partition_key)
        self._sender.send_messages(batch)
        count = len(self._waiting)
        self._waiting, self._bytes = [], 0
        return count

    def _fits(self, message: Encoded) -> bool:
        # A partitioned entity takes a batch only if all of it belongs to one partition.
        first = self._waiting[0]
        return (
            len(self._waiting) < _BATCH_COUNT_MAX
            and self._bytes + len(message.payload) <= _BATCH_BYTES_MAX
            and first.session_id == message.session_id
            and first.partition_key == message.partition_key
        )
