"""One link: credit and deliveries in one direction, from attach to detach.

The session hands over what concerns the link; frames leave into the connection's output.
Does not know what a message means or where it is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec import NULL
from twinbus.amqp.errors import INVALID_FIELD, NOT_ALLOWED, ProtocolError
from twinbus.amqp.outcomes import error
from twinbus.amqp.performatives import (
    TRANSFER_BYTES,
    Fields,
    attach_frame,
    detach_frame,
    transfer_single,
)
from twinbus.amqp.terminus import Source, Target, read_source, read_target

if TYPE_CHECKING:
    from twinbus.amqp.session import AmqpSession

# What a link may make us hold before the broker has said how much it takes.
MESSAGE_BYTES_MAX: Final = 1_048_576

_SERIAL: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000

PENDING: Final = 0  # the peer attached, the broker has not answered
ATTACHED: Final = 1
DETACHED: Final = 2  # we detached, the peer has not answered
GONE: Final = 3


class Link:
    """A link that a peer attached; `is_sender` says that we are the sending end.

    Once the link is over, what the broker asks of it (but `deliver`) does nothing: its
    answers may come late.
    """

    def __init__(self, session: AmqpSession, attach: Fields) -> None:
        self.session = session
        self.name = attach.text(0) or ""
        self.handle = attach.number(1, -1)
        self.is_sender = attach.boolean(2, False)
        self.snd_settle_mode = attach.number(3, 2)
        self.rcv_settle_mode = attach.number(4, 0)
        self.source: Source = read_source(attach, 5)
        self.target: Target = read_target(attach, 6)
        self.is_coordinator = self.target.is_coordinator
        # Counts deliveries since the attach: the peer's start where it sends, else ours.
        self.delivery_count = 0 if self.is_sender else attach.number(9, 0) & _SERIAL
        self.remote_max_message_size = attach.number(10, 0)
        self.properties: dict[object, object] = attach.mapping(13)
        self.max_message_size = MESSAGE_BYTES_MAX
        self.state = PENDING
        self.credit = 0
        self.drain = False
        self.hold_credit = False
        # Free for the broker.
        self.context: object = None
        self._modes = attach.raw(3) + attach.raw(4)
        self._granted = 0
        self._unsettled: dict[int, object] = {}
        self._orphans: list[object] = []
        # The delivery of which some frames have arrived: None between deliveries.
        self._partial: Partial | None = None

    @property
    def attached(self) -> bool:
        return self.state == ATTACHED

    # -----------------------------------------------------------------------------------
    # What the broker asks

    def accept(
        self,
        *,
        max_message_size: int = 0,
        properties: dict[object, object] | None = None,
        source_filter: dict[object, object] | None = None,
    ) -> None:
        """Answer the attach. Source and target go back exactly as sent, but for the filter.

        Credit that the peer gave before this answer is handed to `Handler.on_flow` at once.
        """
        if self.state != PENDING:
            return
        source = self.source.raw
        if source_filter is not None:
            source = self.source.with_filter(source_filter)
        if max_message_size:
            self.max_message_size = max_message_size
        self.state = ATTACHED
        self._send_attach(source, self.target.raw, max_message_size, properties)
        if self.is_sender and (self.credit > 0 or self.drain):
            self.session.connection.handler.on_flow(self)

    def refuse(
        self, condition: str, description: str, info: dict[object, object] | None = None
    ) -> None:
        """Answer the attach with a refusal: no source, no target and the error at once."""
        if self.state != PENDING:
            return
        self._send_attach(NULL, NULL, 0, None)
        self._send_detach(error(condition, description, info))

    def detach(
        self,
        condition: str | None,
        description: str = "",
        info: dict[object, object] | None = None,
    ) -> None:
        """Close an open link, with an error or (condition None) without."""
        if self.state == ATTACHED:
            self._send_detach(NULL if condition is None else error(condition, description, info))

    def grant(self, credit: int) -> None:
        """Let the peer send `credit` messages; topped up to that when half is used."""
        assert not self.is_sender, "credit is the receiver's to give"
        if self.state == ATTACHED:
            self._granted = credit
            self.credit = credit
            self.session.send_link_flow(self)

    def deliver(
        self,
        tag: bytes,
        message_format: int,
        settled: bool,
        head: bytes,
        body: bytes,
        context: object,
    ) -> int:
        """Send `head + body` as one message; give its delivery-id.

        Needs credit and `session.can_send()`. What the peer's window does not take now
        goes out when it opens.
        """
        session = self.session
        assert self.state == ATTACHED, "link is not attached"
        assert self.credit > 0, "no credit"
        assert session.can_send(), "the peer's window is closed"
        delivery_id = session.next_delivery_id
        session.next_delivery_id = (delivery_id + 1) & _SERIAL
        self.delivery_count = (self.delivery_count + 1) & _SERIAL
        self.credit -= 1
        if not settled:
            self._unsettled[delivery_id] = context
            session.owners[delivery_id] = self
        connection = session.connection
        size = TRANSFER_BYTES + len(tag) + len(head) + len(body)
        if size > connection.remote_max_frame_size:
            session.send_in_frames(self, delivery_id, tag, message_format, settled, head + body)
            return delivery_id
        session.count_sent_frame()
        channel = session.channel
        output = connection.output
        output.append(
            transfer_single(size, channel, self.handle, delivery_id, tag, message_format, settled)
        )
        output.append(head)
        output.append(body)
        return delivery_id

    def drained(self) -> None:
        """Nothing is left for the credit that the peer drains: use it up and say so."""
        assert self.is_sender, "only a sender drains"
        if self.state == ATTACHED:
            self.delivery_count = (self.delivery_count + self.credit) & _SERIAL
            self.credit = 0
            self.drain = True
            self.session.send_link_flow(self)
            self.drain = False

    def take_unsettled(self) -> list[object]:
        """The contexts of deliveries that the link's end left open; given once."""
        orphans = self._orphans
        self._orphans = []
        return orphans

    # -----------------------------------------------------------------------------------
    # What the peer does, told by the session

    def peer_flow(self, delivery_count: int, link_credit: int, drain: bool) -> None:
        """Take the peer's credit; the session has decoded its flow."""
        # A sender's flow says nothing that we rely on, and the Python SDK's claims credit.
        if not self.is_sender or link_credit < 0 or self.state > ATTACHED:
            return
        # The peer may not have seen all that we sent, and then counts it as credit.
        seen = delivery_count if delivery_count >= 0 else 0
        ahead = ((self.delivery_count - seen + _HALF) & _SERIAL) - _HALF
        self.credit = min(max(link_credit - ahead, 0), _SERIAL)
        self.drain = drain
        if self.state == ATTACHED:
            self.session.connection.handler.on_flow(self)

    def peer_transfer(
        self,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        more: bool,
        aborted: bool,
        payload: bytes,
        txn_id: bytes | None,
    ) -> None:
        """Take one transfer frame; hand the message over with its last frame."""
        partial = self._partial
        if partial is None:
            if delivery_id < 0:
                raise ProtocolError(INVALID_FIELD, "transfer without delivery-id")
            if message_format < 0:
                message_format = 0
            if not more and not aborted:
                self._hand_over(delivery_id, tag, message_format, settled, payload, txn_id)
                return
            partial = Partial(delivery_id, tag, message_format)
            self._partial = partial
        elif delivery_id >= 0 and delivery_id != partial.delivery_id:
            raise ProtocolError(NOT_ALLOWED, "a delivery inside another one")
        grown = partial.add(payload, settled, txn_id, self.max_message_size)
        self.session.connection.partial_bytes += grown
        if aborted:
            self._end_partial()
            self._use_credit()
        elif more:
            self.session.connection.check_partials()
        else:
            self._end_partial()
            if partial.too_large:
                self._refuse_size(
                    partial.delivery_id, partial.settled, partial.size, partial.txn_id
                )
                return
            self._hand_over(
                partial.delivery_id,
                partial.tag,
                partial.message_format,
                partial.settled,
                bytes(partial.payload),
                partial.txn_id,
            )

    def _end_partial(self) -> None:
        """The delivery is whole, aborted, or over with its link: the connection holds less."""
        partial = self._partial
        if partial is not None:
            self._partial = None
            self.session.connection.partial_bytes -= partial.held_bytes

    def _hand_over(
        self,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
        txn_id: bytes | None,
    ) -> None:
        if len(payload) > self.max_message_size:
            self._refuse_size(delivery_id, settled, len(payload), txn_id)
            return
        self._use_credit()
        self.session.connection.handler.on_transfer(
            self, delivery_id, tag, message_format, settled, payload, txn_id
        )

    def _refuse_size(
        self, delivery_id: int, settled: bool, size: int, txn_id: bytes | None
    ) -> None:
        self._use_credit()
        self.session.connection.handler.on_too_large(self, delivery_id, settled, size, txn_id)

    def _use_credit(self) -> None:
        """Count one delivery received; peers that overrun their credit are let through."""
        self.delivery_count = (self.delivery_count + 1) & _SERIAL
        if self.credit > 0:
            self.credit -= 1
        if self.credit <= self._granted >> 1 and self._granted and not self.hold_credit:
            self.credit = self._granted
            self.session.send_link_flow(self)

    def peer_detach(self, closed: bool) -> None:
        """Answer the peer's detach, if it is not itself an answer."""
        if self.state == PENDING:
            # A detach needs an attach before it, and ours is still to come.
            self._send_attach(NULL, NULL, 0, None)
        if self.state != DETACHED:
            self._send(detach_frame(self.session.channel, self.handle, NULL))
        self.end(closed)

    def end(self, closed: bool) -> None:
        """The peer ended the link: by detach, end, close or a lost transport."""
        was_open = self.state == PENDING or self.state == ATTACHED
        self._forget(GONE)
        if was_open:
            self.session.connection.handler.on_detach(self, closed)

    def settled(self, delivery_id: int) -> object:
        """Forget one delivery; give its context."""
        return self._unsettled.pop(delivery_id)

    def unsettled(self, delivery_id: int) -> object:
        return self._unsettled[delivery_id]

    # -----------------------------------------------------------------------------------

    def _send(self, output: bytes) -> None:
        self.session.connection.output.append(output)

    def _send_attach(
        self,
        source: bytes,
        target: bytes,
        max_message_size: int,
        properties: dict[object, object] | None,
    ) -> None:
        self._send(
            attach_frame(
                self.session.channel,
                self.name,
                self.handle,
                self.is_sender,
                self._modes,
                source,
                target,
                max_message_size,
                properties,
            )
        )

    def _send_detach(self, reason: bytes) -> None:
        """Detach first; until the peer answers, only the handle is kept."""
        self._send(detach_frame(self.session.channel, self.handle, reason))
        self._forget(DETACHED)
        self.source = Source()
        self.target = Target()
        self.properties = {}

    def _forget(self, state: int) -> None:
        """Leave the open states. Late dispositions for the link's deliveries find nothing."""
        self.state = state
        self.credit = 0
        self._end_partial()
        self.session.drop_rest_of(self)
        for delivery_id in self._unsettled:
            del self.session.owners[delivery_id]
            self.session.decided.discard(delivery_id)
        self._orphans += self._unsettled.values()
        self._unsettled = {}


class Partial:
    """The frames so far of a message that takes several; sheds them once it is too large."""

    def __init__(self, delivery_id: int, tag: bytes, message_format: int) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = False
        self.txn_id: bytes | None = None
        # In one piece: as a list even empty frames would take memory, and nobody counts them.
        self.payload = bytearray()
        self.size = 0
        self.too_large = False
        # What it makes the connection hold; a tag may be as long as a frame.
        self.held_bytes = 0

    def add(self, payload: bytes, settled: bool, txn_id: bytes | None, size_max: int) -> int:
        """Take a frame; give by how much `held_bytes` grew."""
        self.settled = self.settled or settled
        if txn_id is not None:
            self.txn_id = txn_id
        self.size += len(payload)
        if self.size > size_max:
            self.too_large = True
            self.payload = bytearray()
        else:
            self.payload += payload
        before = self.held_bytes
        self.held_bytes = len(self.payload) + len(self.tag)
        if self.txn_id is not None:
            self.held_bytes += len(self.txn_id)
        return self.held_bytes - before
