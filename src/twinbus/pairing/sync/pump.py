# Generated from ../pump.py by tools/async_to_sync.py; change that file instead.
"""Moves the messages of one backlog queue to where they belong in the primary (P11).

A message leaves the backlog only after the primary has accepted it. What can never be
delivered is dead-lettered with the reason; what cannot be delivered now stays, and its
entity is left alone for the rest of the pass. A pass ends when everything that can be moved
has been; then the messages that stay are given back, and after the retry interval the next
pass tries them again, in their old order.
"""

import logging
from collections import OrderedDict
from datetime import UTC, datetime

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
)
from azure.servicebus.exceptions import MessageLockLostError

from twinbus.amqp.errors import DecodeError
from twinbus.pairing import sdk
from twinbus.pairing.events import (
    MessageDeadLettered,
    MessageSyphoned,
    PumpFailed,
    SyphonDeferred,
)
from twinbus.pairing.failures import BAD_CALL, OnSyphon, reason_and_description, verdict_on
from twinbus.pairing.observer import Observer
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.rewrite import MissingPathError, NotRestorableError, Restored, restore
from twinbus.pairing.sync.concurrency import Event
from twinbus.pairing.sync.pair import now_ms
from twinbus.pairing.sync.pool import close_quietly

log = logging.getLogger("twinbus.pairing")

# Messages asked for at once. Their locks run while the first of them are being sent.
_RECEIVE_COUNT = 20
# Messages that stay locked during a pass so that those behind them can be reached. Without body
# and properties each takes 2 KB of memory, so that a backlog queue may take 20 MB. A pass must be
# past them while the first lock lasts, or that message comes again before those behind: with a
# lock of a minute, 170 a second do. Each of them is received again in the next pass.
_HELD_MAX = 10_000
# With messages in hand a pass looks for more only this long before it ends.
_LOOK_FURTHER_S = 1.0
# Senders kept open, of the entities used last.
_SENDERS_MAX = 32
# A client that is being closed breaks if it must open something new meanwhile. By the end of
# this pause the syphon has noticed the closing and stopped its pumps (P12).
_CLIENT_GONE_S = 30.0
# No lock is shorter than five seconds, so one that seems over this soon is not: the clock is wrong.
_JUST_RECEIVED_MS = 2000
# Service Bus takes at most this many characters of reason and description.
_REASON_CHARS_MAX = 4096


class ClientGoneError(Exception):
    """Somebody is closing one of the two clients under the pump."""


class ClockAheadError(Exception):
    """By this machine's clock locks are over when they begin, so that nothing can be moved."""


class Pump:
    def __init__(
        self,
        primary: ServiceBusClient,
        secondary: ServiceBusClient,
        queue: str,
        options: SendAvailabilityPairedNamespaceOptions,
        observer: Observer,
    ) -> None:
        self.queue = queue
        self._primary = primary
        self._secondary = secondary
        self._observer = observer
        self._poll_s = options.syphon_poll.total_seconds()
        self._retry_s = options.syphon_retry_interval.total_seconds()
        self._timeout_s = options.operation_timeout.total_seconds()
        self._stopping = Event()
        self._receiver: ServiceBusReceiver | None = None
        self._tap = sdk.PayloadTap()
        self._senders: OrderedDict[str, ServiceBusSender] = OrderedDict()
        self._skipped: set[str] = set()
        self._held: list[ServiceBusReceivedMessage] = []
        self._received_ms = 0

    def run(self) -> None:
        """Pump until told to stop; either side may go away and come back meanwhile."""
        while not self._stopping.is_set():
            pause_s = self._retry_s
            try:
                self._pump()
            except Exception as error:
                if isinstance(error, ClientGoneError):
                    pause_s = _CLIENT_GONE_S
                if not self._stopping.is_set():
                    self._observer.tell([PumpFailed(self.queue, str(error))])
                    log.debug("Pump of %s", self.queue, exc_info=True)
            self._close_all()
            self._stopping.wait(pause_s)

    def stop(self) -> None:
        """Finish what is in hand and end; `run` returns soon after."""
        self._stopping.set()
        if self._receiver is not None:
            sdk.end_poll(self._receiver)

    def _pump(self) -> None:
        """Open the backlog queue and make passes over it until something breaks."""
        self._receiver = receiver = self._secondary.get_queue_receiver(self.queue)
        with receiver:
            try:
                while not self._stopping.is_set():
                    self._receive(receiver)
                self._give_back(receiver)
            except Exception as error:
                if sdk.is_closed(receiver) or verdict_on(error) is BAD_CALL:
                    raise ClientGoneError(str(error)) from error
                raise

    def _receive(self, receiver: ServiceBusReceiver) -> None:
        """One poll, and the work that it brings."""
        if not self._tap.sits_on(receiver):
            self._tap.put_on(receiver)
        self._tap.forget()
        messages = receiver.receive_messages(
            max_message_count=_RECEIVE_COUNT,
            max_wait_time=_LOOK_FURTHER_S if self._held else self._poll_s,
        )
        self._received_ms = now_ms()
        sdk.withdraw_credit(receiver)
        for message in messages:
            self._handle(receiver, message)
        if len(self._held) >= _HELD_MAX or (self._held and not messages):
            self._stopping.wait(self._retry_s)
            self._give_back(receiver)

    def _hold(self, message: ServiceBusReceivedMessage) -> None:
        sdk.keep_lock_only(message)
        self._held.append(message)

    def _give_back(self, receiver: ServiceBusReceiver) -> None:
        """End the pass: what could not be moved returns to its place in the backlog."""
        held, self._held = self._held, []
        self._skipped.clear()
        for message in held:
            self._abandon(receiver, message)

    def _handle(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        payload = self._tap.take(message, receiver)
        if payload is None:
            # It came over a link that the SDK opened by itself, untapped: let it come again.
            self._abandon(receiver, message)
            return
        if _lock_is_over(message):
            if now_ms() - self._received_ms < _JUST_RECEIVED_MS:
                raise ClockAheadError("this machine's clock is ahead of the secondary's")
            return
        try:
            restored = restore(payload)
        except NotRestorableError as error:
            self._dead_letter(receiver, message, error.reason, str(error))
            return
        except DecodeError as error:
            self._dead_letter(receiver, message, MissingPathError.reason, str(error))
            return
        if restored.path.casefold() in self._skipped:
            self._hold(message)
            return
        try:
            self._send(restored)
        except ClientGoneError:
            raise
        except Exception as error:
            if verdict_on(error).on_syphon is OnSyphon.DEAD_LETTER:
                self._dead_letter(receiver, message, *reason_and_description(error))
                return
            self._skipped.add(restored.path.casefold())
            self._hold(message)
            self._observer.tell([SyphonDeferred(restored.path, self.queue, str(error))])
            return
        self._complete(receiver, message)
        self._observer.tell([MessageSyphoned(restored.path, self.queue)])

    def _abandon(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        try:
            receiver.abandon_message(message)
        except MessageLockLostError:
            # Its lock is over: the broker has given it back already.
            log.debug("The lock of a message to give back was over in %s", self.queue)

    def _complete(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        try:
            receiver.complete_message(message)
        except MessageLockLostError:
            # It is in the primary and will come from the backlog once more: a duplicate,
            # with the same message id, which R10 allows. Losing it is what must not be.
            log.info("The lock of a syphoned message was over; %s has a duplicate", self.queue)

    def _dead_letter(
        self,
        receiver: ServiceBusReceiver,
        message: ServiceBusReceivedMessage,
        reason: str,
        description: str,
    ) -> None:
        description = description[:_REASON_CHARS_MAX]
        try:
            receiver.dead_letter_message(message, reason=reason, error_description=description)
        except MessageLockLostError:
            # The refusal took too long to come: the message comes again, those behind it now.
            log.debug("The lock of a message to dead-letter was over in %s", self.queue)
            return
        self._observer.tell([MessageDeadLettered(self.queue, reason, description)])

    def _send(self, restored: Restored) -> None:
        sender = self._senders.pop(restored.path, None)
        if sender is None:
            sender = self._primary.get_queue_sender(restored.path)
        try:
            batch = sdk.fill_raw(
                sender.create_message_batch(),
                restored.payload,
                restored.session_id,
                restored.partition_key,
            )
            sender.send_messages(batch, timeout=self._timeout_s)
        except BaseException as error:
            if sdk.is_closed(sender):
                raise ClientGoneError(str(error)) from error
            close_quietly(sender)
            raise
        self._senders[restored.path] = sender
        if len(self._senders) > _SENDERS_MAX:
            _, oldest = self._senders.popitem(last=False)
            close_quietly(oldest)

    def _close_all(self) -> None:
        """After a failure every connection is new, and the locks on what was held are gone."""
        self._held = []
        self._skipped.clear()
        senders = list(self._senders.values())
        self._senders.clear()
        for sender in senders:
            close_quietly(sender)


def _lock_is_over(message: ServiceBusReceivedMessage) -> bool:
    until = message.locked_until_utc
    return until is not None and datetime.now(UTC) >= until
