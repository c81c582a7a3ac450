# Generated from ../sender.py by tools/async_to_sync.py; change that file instead.
"""A sender with the SDK sender's methods that goes on when its entity fails.

Messages enter; they leave to the primary while the entity is healthy (P3) and rewritten to a
backlog queue while it has failed over (P6, P8). An error that says nothing about the
entity's health is raised as the SDK raised it (P4).
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from twinbus.pairing import rewrite, sdk
from twinbus.pairing.errors import BacklogMessageTooLargeError, BacklogSendError, PairClosedError
from twinbus.pairing.events import MessagesBacklogged
from twinbus.pairing.failures import CREDENTIALS, OnSend, connection_is_lost, verdict_on
from twinbus.pairing.policy import BacklogQueue, State
from twinbus.pairing.rewrite import AnyMessage
from twinbus.pairing.sync.concurrency import Task, sleep
from twinbus.pairing.sync.order import SessionOrder
from twinbus.pairing.sync.pair import Pair, now_ms, wall_clock_ms
from twinbus.pairing.sync.pool import CalledOff, SenderPool

Messages = AnyMessage | ServiceBusMessageBatch | Iterable[AnyMessage]

#: How long to leave a busy primary alone before sending again (P4).
SERVER_BUSY_WAIT_S = 10.0

#: Stands for the sequence number of a message scheduled through the backlog: it gets its
#: real one when the syphon brings it to the primary, so it cannot be cancelled by number.
NOT_NUMBERED_YET = 0


class FailedOver(Exception):
    """The entity has failed over: this send is for the backlog."""


class PairedSender:
    """Sends to one queue or topic of the primary, or to the backlog when that has failed.

    Unlike the SDK's sender it may be used by many callers at once; at most `max_in_flight`
    of their sends are under way, the others wait for their turn (S4).
    """

    def __init__(
        self,
        pair: Pair,
        order: SessionOrder | None,
        entity_name: str,
        make: Callable[[], ServiceBusSender],
        max_in_flight: int,
    ) -> None:
        self.entity_name = entity_name
        self.max_in_flight = max_in_flight
        self.closed = False
        self._pair = pair
        self._order = order
        self._assign_ids = pair.options.assign_message_ids
        self._entity = pair.entity(entity_name)
        self._primary = SenderPool(make, max_in_flight)
        pair.pool_made(self._entity, self._primary)
        self._backlog: dict[int, SenderPool] = {}
        self._queue: int | None = None

    def __enter__(self) -> "PairedSender":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send_messages(self, message: Messages, *, timeout: float | None = None) -> None:
        """Send a message, a list of messages or a batch; return when it is stored for good.

        `timeout` bounds an attempt on the primary and, after a failover, one on the backlog.
        """
        if self.closed or self._pair.closed_because is not None:
            self._check_open()
        outgoing = message if isinstance(message, ServiceBusMessage) else _reusable(message)
        if _is_empty(outgoing):
            return
        seconds = timeout or self._pair.timeout_s
        if self._assign_ids:
            _assign_ids(outgoing)
        if self._order is not None:
            self._order.wait(self._entity, _flat(outgoing), seconds, self._check_open)
        began_ms = now_ms()
        give_up_ms = began_ms + int(seconds * 1000)
        sender = self._primary.take_idle() if self._entity.state is State.HEALTHY else None
        if sender is not None:
            # `_on_primary` would do the same; here the healthy send has no layer more than
            # it must, since that is what a pair costs every day (P3).
            try:
                sender.send_messages(outgoing, timeout=seconds)
            except BaseException as error:
                self._after_failure(sender, error, began_ms, give_up_ms, had_idled=True)
            else:
                self._primary.give(sender)
                self._has_sent()
                return
        try:
            self._on_primary(give_up_ms, "send_messages", outgoing, timeout=seconds)
        except FailedOver:
            self._to_backlog(_flat(outgoing), None, seconds)
        else:
            self._has_sent()

    def schedule_messages(
        self,
        messages: AnyMessage | Iterable[AnyMessage],
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
    ) -> list[int]:
        """Schedule messages; give their sequence numbers.

        While failed over they are stored in the backlog with their time, and
        `NOT_NUMBERED_YET` stands for each number.
        """
        self._check_open()
        message = _reusable(messages)
        if _is_empty(message):
            return []
        seconds = timeout or self._pair.timeout_s
        if self._assign_ids:
            _assign_ids(message)
        try:
            numbers: list[int] = self._on_primary(
                now_ms() + int(seconds * 1000),
                "schedule_messages",
                message,
                schedule_time_utc,
                timeout=seconds,
            )
        except FailedOver:
            flat = _flat(message)
            self._to_backlog(flat, schedule_time_utc, seconds)
            return [NOT_NUMBERED_YET] * len(flat)
        self._has_sent()
        return numbers

    def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        """Cancel in the primary, the only place that knows the numbers."""
        self._check_open()
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else sequence_numbers
        if NOT_NUMBERED_YET in numbers:
            raise ValueError(
                "A message that was scheduled while its entity had failed over has no "
                "sequence number and cannot be cancelled."
            )
        sender = self._take_primary()
        try:
            sender.cancel_scheduled_messages(numbers, timeout=timeout or self._pair.timeout_s)
        except BaseException:
            self._primary.discard(sender)
            raise
        self._primary.give(sender)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """An empty batch; its size is the primary's limit, or the backlog's while failed over."""
        self._check_open()
        try:
            batch: ServiceBusMessageBatch = self._on_primary(
                now_ms() + int(self._pair.timeout_s * 1000),
                "create_message_batch",
                max_size_in_bytes,
            )
        except FailedOver:
            _, batch = self._on_backlog(
                None, lambda sender: sender.create_message_batch(max_size_in_bytes)
            )
        return batch

    def close(self) -> None:
        self.closed = True
        pools = [self._primary, *self._backlog.values()]
        closing = [Task("close senders", pool.close) for pool in pools]
        for task in closing:
            task.result()

    def _check_pair(self) -> None:
        if self._pair.closed_because is not None:
            raise PairClosedError(self._pair.closed_because)

    def _check_open(self) -> None:
        self._check_pair()
        if self.closed:
            raise ValueError("The sender has been closed; get a new one from the client.")

    def _on_primary(self, give_up_ms: int, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the SDK's sender until it worked, the error is the caller's, or the
        entity has failed over."""
        while not self._has_left_primary():
            idle = self._primary.take_idle()
            try:
                sender = idle or self._primary.take()
            except CalledOff:
                continue
            if self._has_left_primary():
                # That happened while this send waited for its turn.
                self._primary.give(sender)
                break
            began_ms = now_ms()
            try:
                result = getattr(sender, method)(*args, **options)
            except BaseException as error:
                self._after_failure(sender, error, began_ms, give_up_ms, idle is not None)
            else:
                self._primary.give(sender)
                return result
        self._primary.discard_idle()
        self._check_pair()
        raise FailedOver

    def _take_primary(self) -> ServiceBusSender:
        """A sender for what only the primary can do, failed over or not."""
        while True:
            self._check_pair()
            try:
                return self._primary.take()
            except CalledOff:
                continue

    def _has_left_primary(self) -> bool:
        closed = self._pair.closed_because is not None
        return closed or self._entity.state is State.FAILED_OVER

    def _has_sent(self) -> None:
        """The primary took a message; a batch that was made is no proof that it does (P5)."""
        if self._entity.state is State.SUSPECT:
            self._pair.send_succeeded(self._entity)

    def _after_failure(
        self,
        sender: ServiceBusSender,
        error: BaseException,
        began_ms: int,
        give_up_ms: int,
        had_idled: bool,
    ) -> None:
        """Put the sender away; return if the send may be tried again, else raise (P4)."""
        if not isinstance(error, Exception):
            # Cancelled half-way: what this sender would read next is unknown.
            self._primary.discard(sender)
            raise error
        on_send = verdict_on(error).on_send
        if on_send is OnSend.COUNT:
            if _broke_while_idle(self._primary, sender, error, had_idled):
                return
            if not self._pair.send_failed(self._entity, error, began_ms):
                raise error
            return
        self._primary.give(sender)
        if on_send is OnSend.RAISE or now_ms() + SERVER_BUSY_WAIT_S * 1000 > give_up_ms:
            raise error
        sleep(SERVER_BUSY_WAIT_S)

    def _to_backlog(
        self, messages: list[AnyMessage], schedule_time: datetime | None, seconds: float
    ) -> None:
        wall_ms = wall_clock_ms()
        rewritten = [
            rewrite.to_backlog(
                rewrite.annotated(message), self._entity.path, wall_ms, schedule_time
            )
            for message in messages
        ]
        if self._order is None:
            self._store(rewritten, None, seconds, 0)
            return
        stored = 0
        for session_id, group in self._order.groups(rewritten):
            fixed = self._order.queue_of(self._entity, session_id)
            queue = self._store(group, fixed, seconds, stored)
            self._order.stored(self._entity, session_id, queue)
            stored += len(group)

    def _store(
        self,
        messages: list[AmqpAnnotatedMessage],
        fixed: int | None,
        seconds: float,
        stored_before: int,
    ) -> BacklogQueue:
        """Put messages into one backlog queue. What one queue has taken before it failed is not
        sent again to the next."""
        remaining = list(messages)
        try:
            queue, _ = self._on_backlog(
                fixed, lambda sender: self._store_all(sender, remaining, seconds)
            )
        except MessageSizeExceededError as error:
            largest = max(rewrite.added_bytes(message) for message in remaining)
            stored = stored_before + len(messages) - len(remaining)
            raise BacklogMessageTooLargeError(self._entity.path, largest, stored, error) from error
        self._pair.observer.tell([MessagesBacklogged(self._entity.path, queue.name, len(messages))])
        return queue

    def _on_backlog(
        self, fixed: int | None, use: Callable[[ServiceBusSender], Any]
    ) -> tuple[BacklogQueue, Any]:
        """Use a sender to a backlog queue, going on to the next while queues fail (P6).

        A session whose order is kept stays with its `fixed` queue.
        """
        last_error: Exception | None = None
        tried: set[int] = set()
        while True:
            self._check_pair()
            queue = self._pair.choose_queue(self._queue if fixed is None else fixed, tried)
            if queue is None or fixed not in (None, queue.index):
                raise BacklogSendError(self._entity.path, self._entity.error, last_error)
            if fixed is None:
                self._queue = queue.index
            pool = self._pool(queue)
            idle = pool.take_idle()
            sender = idle or pool.take()
            closed = self._pair.closed_because is not None
            if closed or self._pair.choose_queue(queue.index, tried) is not queue:
                # The pair ended, or the queue left the rotation, while this send waited for its
                # turn.
                pool.give(sender)
                continue
            try:
                result = use(sender)
            except MessageSizeExceededError:
                pool.give(sender)
                raise
            except Exception as error:
                if _broke_while_idle(pool, sender, error, idle is not None):
                    continue
                verdict = verdict_on(error)
                if verdict.on_send is OnSend.RAISE and verdict is not CREDENTIALS:
                    raise
                self._pair.queue_failed(queue, error)
                tried.add(queue.index)
                last_error = error
            except BaseException:
                # Cancelled half-way: what this sender would read next is unknown.
                pool.discard(sender)
                raise
            else:
                pool.give(sender)
                return queue, result

    def _store_all(
        self, sender: ServiceBusSender, remaining: list[AmqpAnnotatedMessage], seconds: float
    ) -> None:
        """Send a list in as few transfers as it takes; what is stored leaves the list.

        A batch that was full for the primary is too long once rewritten, hence several.
        """
        if len(remaining) == 1:
            sender.send_messages(remaining[0], timeout=seconds)
            remaining.clear()
            return
        batches = [sender.create_message_batch()]
        for message in remaining:
            try:
                batches[-1].add_message(message)
            except MessageSizeExceededError:
                batches.append(sender.create_message_batch())
                batches[-1].add_message(message)
        for batch in batches:
            sender.send_messages(batch, timeout=seconds)
            del remaining[: len(batch)]

    def _pool(self, queue: BacklogQueue) -> SenderPool:
        make = partial(self._pair.secondary.get_queue_sender, queue.name)
        return self._backlog.setdefault(queue.index, SenderPool(make, self.max_in_flight))


def _broke_while_idle(
    pool: SenderPool, sender: ServiceBusSender, error: Exception, had_idled: bool
) -> bool:
    """Discard a sender that failed; tell whether to try on a fresh one before it counts.

    Whatever broke or silenced its connection may have done so to those that lie idle, hence
    they go too. A connection that had idled may have broken long ago, which says nothing about
    the entity (P3). Had the message arrived all the same, it comes twice (R10).
    """
    lost = connection_is_lost(error)
    pool.discard(sender)
    if lost or isinstance(error, OperationTimeoutError):
        pool.discard_idle()
    return lost and had_idled


def _reusable(message: Any) -> Any:
    """What each attempt can send alike.

    A generator would be used up by the attempt that failed; of a mapping each would make a new
    message, with a new id, and duplicates could not be recognised (R10).
    """
    if isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage, ServiceBusMessageBatch)):
        return message
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message)
    return [ServiceBusMessage(**one) if isinstance(one, Mapping) else one for one in message]


def _is_empty(message: Any) -> bool:
    """Tell whether there is nothing to send. The SDK would send nothing and be content, which is
    no proof that the primary takes messages (P5)."""
    return isinstance(message, (list, ServiceBusMessageBatch)) and not len(message)


def _flat(message: Any) -> list[AnyMessage]:
    if isinstance(message, ServiceBusMessageBatch):
        return list(sdk.messages_of(message))
    return message if isinstance(message, list) else [message]


def _assign_ids(message: Any) -> None:
    """The SDK gives an id to every `ServiceBusMessage`; the plain AMQP form may lack one."""
    for each in _flat(message):
        if isinstance(each, AmqpAnnotatedMessage):
            properties = each.properties or AmqpMessageProperties()
            properties.message_id = properties.message_id or uuid.uuid4().hex
            each.properties = properties
