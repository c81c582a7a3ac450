"""Between the AMQP engine and the broker's engine: one bridge for each connection.

Transfers become messages, dispositions become settlements, credit becomes deliveries. No
answer that promises something leaves before the journal has it: such answers wait in
`Replies` for the commit. This module is on the path of every message and is compiled; it
sees neither socket nor clock (the hub holds the time of the current turn).
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from twinbus.amqp import outcomes
from twinbus.amqp.connection import Connection
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.handler import Handler
from twinbus.amqp.link import Link
from twinbus.amqp.outcomes import ACCEPTED, Outcome
from twinbus.amqp.sections import BATCH_FORMAT
from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.engine import observations, settlement
from twinbus.engine import stored as form
from twinbus.engine.consumer import Attachment, Consumer, Lock
from twinbus.engine.entities import Entity, Holder
from twinbus.engine.kernel import Kernel
from twinbus.engine.message import Message, batch_parts, take_in
from twinbus.engine.observer import Tally
from twinbus.engine.sessions import Session
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Topic
from twinbus.engine.transactions import Transactions
from twinbus.server import transacting
from twinbus.server.replies import Replies
from twinbus.server.transacting import Coordinator

# How much may wait for one socket before its receivers get no more.
_OUTPUT_BYTES_MAX: Final = 1024 * 1024
# So few locks of links that are over are not worth sorting out those that were settled since.
_HELD_MIN: Final = 10_000


class Hub:
    """What all bridges of a broker share."""

    def __init__(
        self,
        kernel: Kernel,
        track: Callable[[BusError, str], str],
        new_message_id: Callable[[], str],
    ) -> None:
        self.kernel = kernel
        #: Gives a refusal's text its tracking id, and logs it.
        self.track = track
        self.new_message_id = new_message_id
        #: The time of the current turn of the loop.
        self.now_ms = 0
        self.replies = Replies()
        #: Bridges with something to write, or to look at, at the end of the turn.
        self.dirty: list[Bridge] = []
        #: Set while nothing can be accepted: the disk is full, or the journal failed. Raised
        #: without its traceback, which would grow with each refusal.
        self.refusing: BusError | None = None
        #: Set for good when the journal failed: then nothing can be kept, nor surely be read.
        self.failed: BusError | None = None

    def check(self) -> None:
        """Refuse whatever needs the journal once it has failed."""
        if self.failed is not None:
            raise self.failed.with_traceback(None)

    def check_sends(self) -> None:
        """Refuse what would be kept while nothing can be."""
        if self.refusing is not None:
            raise self.refusing.with_traceback(None)


class Sender(Attachment):
    """A link on which the client sends."""

    def __init__(self, bridge: "Bridge", link: Link, entity: Entity) -> None:
        self.bridge = bridge
        self.link = link
        self.entity = entity
        #: What it sent since the last commit; None where that is not observed.
        self.sent: Tally | None = None
        self._pinged: Tally | None = None
        observer = bridge.hub.kernel.observer
        if observer is not None:
            stream = entity.main.number
            self.sent = Tally(observer, observations.SENT, stream, bridge.client())
            self._pinged = Tally(observer, observations.PINGED, stream, bridge.client())

    def tally(self, message: Message) -> Tally | None:
        """Where an accepted message is counted (C1)."""
        return self._pinged if message.is_ping else self.sent

    def count(self, message: Message) -> None:
        tally = self.tally(message)
        assert tally is not None
        tally.add(message.wire_bytes)

    def detach(self, error: BusError) -> None:
        self.bridge.detach_link(self.link, error)


class Receiver(Consumer):
    """A link on which the client receives."""

    def __init__(
        self, bridge: "Bridge", link: Link, holder: Holder, stream: Stream, peek_lock: bool
    ) -> None:
        super().__init__(peek_lock, bridge.client())
        self.bridge = bridge
        self.link = link
        self.holder = holder
        self.stream = stream
        #: What it settled since the last commit, and how often it asked in vain; None where
        #: that is not observed.
        self.settled: Tally | None = None
        self._in_vain: Tally | None = None
        observer = bridge.hub.kernel.observer
        if observer is not None:
            number = stream.number
            self.settled = Tally(observer, observations.SETTLED, number, self.client)
            self._in_vain = Tally(observer, observations.RECEIVED_NOTHING, number, self.client)
        #: It asked, and got nothing so far.
        self._asked = False
        #: The link's delivery count at which its credit is used up.
        self._credit_end = 0
        # A lock token as a delivery tag has its first three groups the other way round.
        high = stream.token_high
        self._tag_high = bytes(
            (high[3], high[2], high[1], high[0], high[5], high[4], high[7], high[6])
        )

    def can_take(self) -> bool:
        link = self.link
        if link.credit <= 0 or not link.session.can_send():
            return False
        bridge = self.bridge
        if not bridge.writable or bridge.output_bytes > _OUTPUT_BYTES_MAX:
            bridge.stalled = True
            return False
        # What is received and deleted is gone once it is handed over (R1).
        return self.peek_lock or bridge.is_closing is None or not bridge.is_closing()

    def deliver(
        self, seq: int, stored: bytes, enqueued_ms: int, delivery_count: int, lock: Lock | None
    ) -> None:
        bridge = self.bridge
        self._asked = False
        body = stored[form.bare_start(stored) :]
        if bridge.is_python_sdk:
            body = form.for_python_sdk(body)
        bridge.output_bytes += len(stored)
        if lock is None:
            head = form.free_head(stored, seq, enqueued_ms, delivery_count)
            self.link.deliver(b"", 0, True, head, body, None)
        else:
            head = form.locked_head(
                stored, seq, enqueued_ms, delivery_count, self.stream.token_high, lock.low,
                lock.locked_until_ms,
            )  # fmt: skip
            tag = self._tag_high + lock.low.to_bytes(8, "big")
            lock.delivery_id = self.link.deliver(tag, 0, False, head, body, lock)
        bridge.touch()

    def on_credit(self) -> None:
        """The client asks for messages. A drain ends an ask, or is one where no credit was
        left."""
        link = self.link
        if not link.drain:
            self.end_ask()
            self._asked = True
        elif link.delivery_count == self._credit_end:
            self._asked = True
        self._credit_end = (link.delivery_count + link.credit) & 0xFFFFFFFF

    def end_ask(self) -> None:
        """What it asked for last will not come any more: a poll in vain costs as well (C1)."""
        if self._asked and self._in_vain is not None:
            self._in_vain.add(0)
        self._asked = False

    def detach(self, error: BusError) -> None:
        self.bridge.detach_link(self.link, error)

    def session_found(self, session: Session) -> None:
        self.bridge.door.on_session_found(self.bridge, self, session)

    def session_not_found(self) -> None:
        self.bridge.detach_link(
            self.link,
            BusError(errors.TIMEOUT, f"No session of '{self.stream.path}' came free in time."),
        )

    def session_lost(self) -> None:
        self.bridge.door.on_session_lost(self.bridge, self)


@mypyc_attr(allow_interpreted_subclasses=True)
class Node:
    """A link of a request/response node, `$cbs` or `$management`; the server fills it in."""

    def on_request(self, link: Link, payload: bytes) -> None:
        raise NotImplementedError

    def on_credit(self, link: Link) -> None:
        raise NotImplementedError

    def on_gone(self, link: Link) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Door:
    """What a connection needs of the server and not of the message path."""

    def check_password(self, bridge: "Bridge", user: str, password: str) -> bool:
        raise NotImplementedError

    def on_open(self, bridge: "Bridge") -> None:
        raise NotImplementedError

    def on_attach(self, bridge: "Bridge", link: Link) -> None:
        raise NotImplementedError

    def on_session_found(self, bridge: "Bridge", receiver: Receiver, session: Session) -> None:
        raise NotImplementedError

    def on_session_lost(self, bridge: "Bridge", receiver: Receiver) -> None:
        raise NotImplementedError


class Bridge(Handler):
    """One connection."""

    def __init__(self, hub: Hub, door: Door) -> None:
        self.hub = hub
        self.door = door
        self.connection: Connection | None = None
        #: Writes the connection's output to its socket.
        self.writer: Callable[[], None] | None = None
        self.is_dirty = False
        self.writable = True
        #: Tells whether the socket is being closed, so that nothing written arrives any more.
        self.is_closing: Callable[[], bool] | None = None
        #: The Python SDK, which reads decimals in a form of their own, is at the other end.
        self.is_python_sdk = False
        #: Bytes of deliveries written since the socket last took some.
        self.output_bytes = 0
        #: A receiver, or an answer, was passed over because the socket takes no more.
        self.stalled = False
        self.receivers: dict[Link, Receiver] = {}
        #: Links on which nodes answer.
        self.reply_links: dict[Link, Node] = {}
        #: Locks of links that are over: they last as long as the connection does.
        self.held: list[tuple[Stream, Lock]] = []
        self._held_max: int = _HELD_MIN
        self.transactions = Transactions()
        #: What requests weigh that wait in all nodes; those keep count of it.
        self.waiting_bytes = 0

    def client(self) -> str:
        """The name that the client goes by."""
        return "" if self.connection is None else self.connection.remote_container_id

    def touch(self) -> None:
        if not self.is_dirty:
            self.is_dirty = True
            self.hub.dirty.append(self)

    def write_out(self) -> None:
        if self.writer is not None:
            self.writer()

    # --- left to the server -----------------------------------------------------------

    def on_sasl_plain(self, user: str, password: str) -> bool:
        return self.door.check_password(self, user, password)

    def on_open(self, connection: Connection) -> None:
        self.door.on_open(self)

    def on_attach(self, link: Link) -> None:
        try:
            self.door.on_attach(self, link)
        except BusError as error:
            self.refuse_link(link, error)

    # --- refusals ---------------------------------------------------------------------

    def rejected(self, error: BusError, subject: str) -> bytes:
        return outcomes.rejected(error.kind.condition, self.hub.track(error, subject))

    def refuse_link(self, link: Link, error: BusError) -> None:
        subject = link.source.address if link.is_sender else link.target.address
        link.refuse(error.kind.condition, self.hub.track(error, subject or "link"))
        self.touch()

    def detach_link(self, link: Link, error: BusError) -> None:
        """Close a link of ours with an error; to the engine it is gone at once."""
        subject = link.source.address if link.is_sender else link.target.address
        text = self.hub.track(error, subject or "link")
        if link.attached:
            link.detach(error.kind.condition, text)
        else:
            link.refuse(error.kind.condition, text)
        self._forget(link)
        self.touch()

    # --- sending ----------------------------------------------------------------------

    def on_transfer(
        self, link: Link, delivery_id: int, tag: bytes, message_format: int, settled: bool,
        payload: bytes, txn_id: bytes | None,
    ) -> None:  # fmt: skip
        context = link.context
        if isinstance(context, Sender):
            hub = self.hub
            entity = context.entity
            try:
                hub.check_sends()
                if txn_id is not None:
                    transacting.send(self, context, message_format, payload, txn_id)
                elif message_format != BATCH_FORMAT:
                    message = self.read(payload)
                    entity.check(message)
                    entity.publish(message, hub.now_ms)
                    if context.sent is not None:
                        context.count(message)
                    if isinstance(entity, Topic):
                        link.session.connection.add_effort(entity.copies())
                else:
                    self._send_batch(context, payload)
            except BusError as error:
                self.refuse_transfer(link, delivery_id, settled, error, txn_id)
                return
            except DecodeError as fault:
                refusal = BusError(errors.DECODE_ERROR, f"The message is no AMQP message: {fault}")
                self.refuse_transfer(link, delivery_id, settled, refusal, txn_id)
                return
            if settled:
                return
            if txn_id is None:
                hub.replies.settle(self, link.session, delivery_id, ACCEPTED, True)
            else:
                state = outcomes.transactional(txn_id, ACCEPTED)
                link.session.settle_incoming(delivery_id, delivery_id, state)
        elif isinstance(context, Node):
            if not settled:
                link.session.settle_incoming(delivery_id, delivery_id, ACCEPTED)
            context.on_request(link, payload)
        elif isinstance(context, Coordinator):
            transacting.coordinate(self, link, delivery_id, settled, payload)

    def refuse_transfer(
        self, link: Link, delivery_id: int, settled: bool, error: BusError,
        txn_id: bytes | None = None,
    ) -> None:  # fmt: skip
        state = self.rejected(error, link.target.address or "link")
        if not settled:
            link.session.settle_incoming(delivery_id, delivery_id, state)
        elif txn_id is not None:
            self.transactions.refuse(txn_id, error)

    def on_too_large(
        self, link: Link, delivery_id: int, settled: bool, size: int, txn_id: bytes | None
    ) -> None:
        error = BusError(
            errors.MESSAGE_TOO_LARGE,
            f"The received message (size {size} bytes) exceeds the limit"
            f" ({link.max_message_size} bytes) of the link.",
        )
        self.refuse_transfer(link, delivery_id, settled, error, txn_id)

    def read(self, payload: bytes) -> Message:
        if self.is_python_sdk:
            payload = form.from_python_sdk(payload)
        return take_in(payload, self.hub.new_message_id)

    def messages(self, message_format: int, payload: bytes) -> list[Message]:
        if message_format != BATCH_FORMAT:
            return [self.read(payload)]
        return [self.read(part) for part in batch_parts(payload)]

    def _send_batch(self, sender: Sender, payload: bytes) -> None:
        """Accept all messages of a batch or none (S6)."""
        entity = sender.entity
        messages = self.messages(BATCH_FORMAT, payload)
        for message in messages:
            entity.check(message)
        for message in messages:
            entity.publish(message, self.hub.now_ms)
            if sender.sent is not None:
                sender.count(message)
        if isinstance(entity, Topic):
            sender.link.session.connection.add_effort(len(messages) * entity.copies())

    # --- settling ---------------------------------------------------------------------

    def on_outcome(
        self, context: object, delivery_id: int, settled: bool, outcome: Outcome
    ) -> None:
        if not isinstance(context, Lock):
            return
        lock = context
        receiver = lock.consumer
        assert isinstance(receiver, Receiver)
        hub = self.hub
        kind = outcome.kind
        settling = self.transactions.settling
        if kind == outcomes.KIND_RECEIVED and outcome.txn_id is None:
            return
        receiver.holder.meter.settlements += 1
        if receiver.settled is not None:
            receiver.settled.add(0)
        try:
            if outcome.txn_id is not None or (settling and lock in settling):
                transacting.settle(self, receiver, lock, delivery_id, settled, outcome)
                return
            if kind == outcomes.KIND_ACCEPTED:
                receiver.stream.complete(lock, hub.now_ms)
                state = ACCEPTED
            else:
                wanted = settlement.from_outcome(outcome)
                wanted.take_effort(receiver.stream, lock, hub.now_ms)
                wanted.apply(receiver.holder, receiver.stream, lock, hub.now_ms)
                state = settlement.answer_to(outcome)
        except BusError as error:
            state = self._refuse_settlement(receiver, lock, settled, error, outcome.txn_id)
        except DecodeError as fault:
            refusal = BusError(errors.DECODE_ERROR, f"The settlement cannot be read: {fault}")
            state = self._refuse_settlement(receiver, lock, settled, refusal, outcome.txn_id)
        if not settled:
            session = receiver.link.session
            hub.replies.settle(self, session, delivery_id, state, False)
            if outcome.txn_id is not None or kind == outcomes.KIND_NONE:
                # Any other outcome is known there as decided. Until the answer is out a repetition
                # would get one of its own.
                session.decide(delivery_id)

    def _refuse_settlement(
        self, receiver: Receiver, lock: Lock, settled: bool, error: BusError, txn_id: bytes | None
    ) -> bytes:
        # To the link the delivery is over; the lock may still be there.
        self.hold(receiver.stream, [lock])
        if settled and txn_id is not None:
            self.transactions.refuse(txn_id, error)
        return self.rejected(error, receiver.stream.path)

    def settle_delivery(self, lock: Lock, state: bytes) -> None:
        """Settle what carries a lock once all that was done is on disk."""
        receiver = lock.consumer
        assert isinstance(receiver, Receiver)
        self.hub.replies.settle(self, receiver.link.session, lock.delivery_id, state, False)

    # --- credit -----------------------------------------------------------------------

    def on_flow(self, link: Link) -> None:
        context = link.context
        if isinstance(context, Receiver):
            if link.credit > 0:
                context.holder.meter.receive_calls += 1
                context.on_credit()
                context.stream.want(context)
            if link.drain:
                context.stream.dispatch(self.hub.now_ms)
                # A closed window is no reason to wait: rhea opens it when messages are settled,
                # and its user gets none before this answer. What is half sent comes first.
                if link.attached and (link.credit == 0 or not link.session.is_midway(link)):
                    link.drained()
                    context.end_ask()
        elif isinstance(context, Node):
            context.on_credit(link)

    def takes_more(self) -> bool:
        """Tell whether the socket takes more; if not, `resume` calls when it does."""
        if self.writable and self.output_bytes <= _OUTPUT_BYTES_MAX:
            return True
        self.stalled = True
        return False

    def resume(self) -> None:
        """The socket takes more: receivers that were passed over stand in line again."""
        self.output_bytes = 0
        if self.stalled and self.writable:
            self.stalled = False
            for link, receiver in self.receivers.items():
                if link.credit > 0:
                    receiver.stream.want(receiver)
            for link, node in list(self.reply_links.items()):
                node.on_credit(link)

    # --- endings ----------------------------------------------------------------------

    def on_detach(self, link: Link, closed: bool) -> None:
        self._forget(link)

    def _forget(self, link: Link) -> None:
        context = link.context
        link.context = None
        if isinstance(context, Sender):
            context.entity.senders.pop(context, None)
        elif isinstance(context, Receiver):
            self.receivers.pop(link, None)
            context.end_ask()
            context.stream.detach(context, self.hub.now_ms)
            self.hold(context.stream, link.take_unsettled())
        elif isinstance(context, Node):
            context.on_gone(link)
        elif isinstance(context, Coordinator):
            self.transactions.roll_back(context)

    def hold(self, stream: Stream, contexts: list[object]) -> None:
        for context in contexts:
            if isinstance(context, Lock) and stream.holds(context):
                self.held.append((stream, context))
        if len(self.held) > self._held_max:
            self.held = [(stream, lock) for stream, lock in self.held if stream.holds(lock)]
            # The next time when there are twice as many: each lock pays for one look.
            self._held_max = max(_HELD_MIN, 2 * len(self.held))

    def on_close(self, connection: Connection) -> None:
        """The connection is gone, and with it locks and open transactions (R7)."""
        if self.hub.failed is None:
            for stream, lock in self.held:
                stream.drop_lock(lock, self.hub.now_ms)
        self.held = []
        self.transactions = Transactions()
        self.touch()
