"""Keeps the order of sessions across a failover; off unless asked for (beyond P13).

A session that has messages in the backlog stays with one backlog queue, and once its entity
is back its next messages wait until the syphon has moved those. It knows what this client
sent, no more: order is kept for sessions that are fed through one client and drained by one
syphon.
"""

import itertools
from collections.abc import Callable, Iterator

from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.pairing import rewrite
from twinbus.pairing.concurrency import sleep
from twinbus.pairing.pair import now_ms
from twinbus.pairing.policy import BacklogQueue, Entity, State
from twinbus.pairing.rewrite import AnyMessage

_LOOK_AGAIN_S = 0.5
_PEEK_COUNT = 100


class SessionOrder:
    def __init__(self, secondary: ServiceBusClient) -> None:
        self._secondary = secondary
        self._queues: dict[tuple[str, str], BacklogQueue] = {}
        self._stores = 0

    def groups(
        self, rewritten: list[AmqpAnnotatedMessage]
    ) -> Iterator[tuple[str | None, list[AmqpAnnotatedMessage]]]:
        """Part rewritten messages into runs of one session, in the order they were given."""
        for session_id, group in itertools.groupby(rewritten, rewrite.aliased_session):
            yield session_id, list(group)

    def queue_of(self, entity: Entity, session_id: str | None) -> int | None:
        """The backlog queue that this session must stay with, if it has messages in one."""
        queue = self._queues.get((entity.path, session_id or ""))
        return None if queue is None else queue.index

    def stored(self, entity: Entity, session_id: str | None, queue: BacklogQueue) -> None:
        if session_id is not None:
            self._queues[entity.path, session_id] = queue
            self._stores += 1

    async def wait(
        self,
        entity: Entity,
        messages: list[AnyMessage],
        seconds: float,
        check_open: Callable[[], None],
    ) -> None:
        """Hold messages for the primary until the backlog of their sessions is drained.

        `check_open` raises when there is nothing to wait for any more: a look into the backlog
        opens a connection, under a client that may be closing.
        """
        if not self._queues:
            return
        give_up_ms = now_ms() + int(seconds * 1000)
        for session_id in {rewrite.session_of(message) for message in messages}:
            key = (entity.path, session_id or "")
            while entity.state is not State.FAILED_OVER:
                queue, stores = self._queues.get(key), self._stores
                if queue is None:
                    break
                if not await self._holds(queue, key):
                    # What was stored since the look began it may not have seen.
                    if self._stores == stores:
                        self._queues.pop(key, None)
                elif now_ms() >= give_up_ms:
                    raise OperationTimeoutError(
                        message=f"Session '{session_id}' of '{entity.path}' still has messages "
                        "in the backlog; the syphon has not moved them in time."
                    )
                else:
                    await sleep(_LOOK_AGAIN_S)
                check_open()

    async def _holds(self, queue: BacklogQueue, key: tuple[str, str]) -> bool:
        async with self._secondary.get_queue_receiver(queue.name) as receiver:
            return await _search(receiver, key)


async def _search(receiver: ServiceBusReceiver, key: tuple[str, str]) -> bool:
    """Browse a backlog queue for a session. Its messages are the oldest there, so a search
    that ends with a find ends early."""
    next_number = 0
    while True:
        peeked = await receiver.peek_messages(
            max_message_count=_PEEK_COUNT, sequence_number=next_number
        )
        if not peeked:
            return False
        if any(rewrite.backlog_session(each.application_properties) == key for each in peeked):
            return True
        next_number = (peeked[-1].sequence_number or 0) + 1
