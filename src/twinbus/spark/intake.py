"""Receives messages of any Service Bus through the official SDK, for setting them aside.

Enters: a connection string, an entity. Leaves: sequence numbers and lock tokens; the messages
themselves stay where they are. Settles nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

from azure.servicebus import ServiceBusClient, ServiceBusReceiver, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from twinbus.client import ConnectionLost
from twinbus.core import names

_AT_ONCE = 500
_WAIT_S = 1.0
# What a second try may mend.
_PASSING = (
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)
_SUB_QUEUES = {
    names.DEAD_LETTER_STREAM: ServiceBusSubQueue.DEAD_LETTER,
    names.TRANSFER_STREAM: ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
}


class Intake:
    """A receiver that stays open while there is nothing, and only then: what comes to an open
    receiver that nobody asks stays locked for nobody's good."""

    def __init__(self, connection_string: str, entity: str) -> None:
        self._connection_string = connection_string
        self._address = names.parse_address(entity)
        self._client: ServiceBusClient | None = None
        self._receiver: ServiceBusReceiver | None = None

    def receive(self, count_max: int) -> Iterator[list[tuple[int, UUID]]]:
        """Give what is there, at most so many, as sequence numbers and lock tokens."""
        left = count_max
        try:
            while left:
                count = min(left, _AT_ONCE)
                found = self._open().receive_messages(count, max_wait_time=_WAIT_S)
                if not found:
                    break
                left -= len(found)
                yield [(int(one.sequence_number or 0), UUID(str(one.lock_token))) for one in found]
        except _PASSING as error:
            self.close()
            raise ConnectionLost(str(error)) from error
        finally:
            if left < count_max:
                self.close()

    def close(self) -> None:
        for opened in (self._receiver, self._client):
            if opened is not None:
                with suppress(ServiceBusError):
                    opened.close()
        self._receiver = self._client = None

    def _open(self) -> ServiceBusReceiver:
        if self._receiver is None:
            self._client = ServiceBusClient.from_connection_string(self._connection_string)
            sub_queue = _SUB_QUEUES.get(self._address.stream)
            entity = self._address.entity
            split = names.split_subscription(entity)
            if split is not None:
                self._receiver = self._client.get_subscription_receiver(*split, sub_queue=sub_queue)
            else:
                self._receiver = self._client.get_queue_receiver(entity, sub_queue=sub_queue)
        return self._receiver
