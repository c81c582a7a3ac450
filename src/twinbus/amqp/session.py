"""One AMQP session: the windows both ways, delivery-ids, and the links by handle.

The connection hands over frame bodies of one channel; calls to links and to the handler
come out. Knows transfers and dispositions, not messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec import encode, encode_list, encode_uint
from twinbus.amqp.errors import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    NOT_ALLOWED,
    UNATTACHED_HANDLE,
    ProtocolError,
)
from twinbus.amqp.framing import FRAME_HEADER_BYTES, frame
from twinbus.amqp.link import ATTACHED, DETACHED, PENDING, Link
from twinbus.amqp.outcomes import KIND_RECEIVED, Outcome, read_outcome
from twinbus.amqp.performatives import (
    Fields,
    disposition,
    link_flow,
    read_disposition,
    read_flow,
    read_transfer,
    session_flow,
    transfer_continuation,
    transfer_first,
)

if TYPE_CHECKING:
    from twinbus.amqp.connection import Connection

INCOMING_WINDOW: Final = 5000
OUTGOING_WINDOW: Final = 5000
HANDLE_MAX: Final = 4999

_SERIAL: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000


class AmqpSession:
    def __init__(self, connection: Connection, channel: int, begin: Fields) -> None:
        self.connection = connection
        self.channel = channel
        self.ended = False
        self.links: dict[int, Link] = {}
        self.next_incoming_id = begin.number(1, 0) & _SERIAL
        self.incoming_window = INCOMING_WINDOW
        self.next_outgoing_id = 0
        self.remote_incoming_window = begin.number(2, 0)
        self.next_delivery_id = 0
        # Which link each unsettled delivery of ours went out on.
        self.owners: dict[int, Link] = {}
        # Those among them whose outcome the peer has told and waits for our answer.
        self.decided: set[int] = set()
        # What the peer's window has not taken yet of the delivery being sent.
        self._rest = b""
        self._rest_at = 0
        self._rest_link: Link | None = None
        self._rest_settled = False

    # -----------------------------------------------------------------------------------
    # What the broker asks

    def can_send(self) -> bool:
        """Tell whether the peer's window takes another delivery."""
        return self.remote_incoming_window > 0 and self._rest_link is None

    def is_midway(self, link: Link) -> bool:
        """Tell whether the rest of a delivery of that link waits for the peer's window."""
        return self._rest_link is link

    def settle_incoming(self, first: int, last: int, state: bytes) -> None:
        """Settle what we received, `first` to `last`, with an encoded state."""
        if not self.ended:
            self.connection.output.append(disposition(self.channel, True, first, last, state))

    def answer_outgoing(self, delivery_id: int, state: bytes) -> None:
        """Tell the peer that its outcome was heard; the delivery stays unsettled."""
        if delivery_id in self.owners:
            number = encode_uint(delivery_id)
            fields = [encode(False), number, number, encode(False), state]
            body = b"\x00\x53\x15" + encode_list(fields)
            self.connection.output.append(frame(self.channel, body))

    def decide(self, delivery_id: int) -> None:
        """An answer that settles this waits: what the peer says of it now comes too late."""
        if delivery_id in self.owners:
            self.decided.add(delivery_id)

    def settle_outgoing(self, first: int, last: int, state: bytes) -> None:
        """Settle what we sent, `first` to `last`, with an encoded state, and forget it.

        Nothing is said of deliveries whose link is over: the peer has forgotten them too.
        """
        known = self._unsettled_between(first, last)
        start = 0
        for i, delivery_id in enumerate(known):
            self.decided.discard(delivery_id)
            self.owners.pop(delivery_id).settled(delivery_id)
            if i + 1 == len(known) or known[i + 1] != (delivery_id + 1) & _SERIAL:
                self.connection.output.append(
                    disposition(self.channel, False, known[start], delivery_id, state)
                )
                start = i + 1

    # -----------------------------------------------------------------------------------
    # Sending, for the links

    def count_sent_frame(self) -> None:
        self.remote_incoming_window -= 1
        self.next_outgoing_id = (self.next_outgoing_id + 1) & _SERIAL

    def send_in_frames(
        self, link: Link, delivery_id: int, tag: bytes, form: int, settled: bool, payload: bytes
    ) -> None:
        """Send a message too long for one frame, as far as the window goes."""
        head = transfer_first(link.handle, delivery_id, tag, form, settled)
        room = self.connection.remote_max_frame_size - FRAME_HEADER_BYTES - len(head)
        self.count_sent_frame()
        self.connection.output.append(frame(self.channel, head + payload[:room]))
        self._rest = payload
        self._rest_at = room
        self._rest_link = link
        self._rest_settled = settled
        self._send_rest()

    def _send_rest(self) -> None:
        """Send further frames of the delivery under way, as far as the window goes."""
        link = self._rest_link
        if link is None:
            return
        while self.remote_incoming_window > 0:
            head = transfer_continuation(link.handle, self._rest_settled, True)
            room = self.connection.remote_max_frame_size - FRAME_HEADER_BYTES - len(head)
            start = self._rest_at
            end = start + room
            if end >= len(self._rest):
                end = len(self._rest)
                head = transfer_continuation(link.handle, self._rest_settled, False)
            self._rest_at = end
            self.count_sent_frame()
            self.connection.output.append(frame(self.channel, head + self._rest[start:end]))
            if end == len(self._rest):
                self._rest = b""
                self._rest_link = None
                return

    def drop_rest_of(self, link: Link) -> None:
        """The link is over: what it had still to send is not wanted any more."""
        if self._rest_link is link:
            self._rest = b""
            self._rest_link = None

    def send_link_flow(self, link: Link) -> None:
        self.incoming_window = INCOMING_WINDOW
        self.connection.output.append(
            link_flow(
                self.channel,
                self.next_incoming_id,
                INCOMING_WINDOW,
                self.next_outgoing_id,
                OUTGOING_WINDOW,
                link.handle,
                link.delivery_count,
                link.credit,
                link.drain,
            )
        )

    def _send_session_flow(self) -> None:
        self.incoming_window = INCOMING_WINDOW
        self.connection.output.append(
            session_flow(
                self.channel,
                self.next_incoming_id,
                INCOMING_WINDOW,
                self.next_outgoing_id,
                OUTGOING_WINDOW,
            )
        )

    # -----------------------------------------------------------------------------------
    # What the peer does, told by the connection

    def peer_attach(self, buf: bytes, pos: int, end: int) -> None:
        link = Link(self, Fields(buf, pos, end))
        handle = link.handle
        if not 0 <= handle <= HANDLE_MAX:
            raise ProtocolError(FRAMING_ERROR, f"handle {handle} is beyond handle-max")
        known = self.links.get(handle)
        if known is None:
            self.connection.count_link()
        elif known.state != DETACHED:
            raise ProtocolError(HANDLE_IN_USE, f"handle {handle} is in use")
        # A client that was refused may take the handle again without answering our detach.
        self.links[handle] = link
        self.connection.handler.on_attach(link)

    def peer_detach(self, buf: bytes, pos: int, end: int) -> None:
        fields = Fields(buf, pos, end)
        closed = fields.boolean(1, False)
        link = self.links.pop(fields.number(0, -1), None)
        if link is not None:
            self.connection.link_count -= 1
            link.peer_detach(closed)

    def peer_end(self) -> None:
        """The session is over, by its end or the connection's."""
        self.ended = True
        links = list(self.links.values())
        self.links.clear()
        self.connection.link_count -= len(links)
        for link in links:
            link.end(True)

    def peer_transfer(self, buf: bytes, pos: int, end: int) -> None:
        (
            handle,
            delivery_id,
            tag,
            message_format,
            settled,
            more,
            aborted,
            state_at,
            payload_at,
        ) = read_transfer(buf, pos, end)
        self.next_incoming_id = (self.next_incoming_id + 1) & _SERIAL
        self.incoming_window -= 1
        if self.incoming_window <= INCOMING_WINDOW >> 1:
            self._send_session_flow()
        link = self.links.get(handle)
        if link is None:
            raise ProtocolError(UNATTACHED_HANDLE, f"transfer on handle {handle}")
        if link.state == DETACHED:
            return
        if link.state == PENDING or link.is_sender:
            raise ProtocolError(NOT_ALLOWED, f"transfer without credit on handle {handle}")
        txn_id = None if state_at < 0 else read_outcome(buf, state_at, payload_at).txn_id
        link.peer_transfer(
            delivery_id,
            tag,
            message_format,
            settled,
            more,
            aborted,
            buf[payload_at:end],
            txn_id,
        )

    def peer_flow(self, buf: bytes, pos: int, end: int) -> None:
        next_incoming_id, window, handle, delivery_count, link_credit, drain, echo = read_flow(
            buf, pos, end
        )
        # Before it has seen our begin the peer counts from our first id, which is 0.
        seen = next_incoming_id if next_incoming_id >= 0 else 0
        in_flight = ((self.next_outgoing_id - seen + _HALF) & _SERIAL) - _HALF
        was_open = self.can_send()
        midway = self._rest_link
        self.remote_incoming_window = max(window - in_flight, 0)
        self._send_rest()
        link = self.links.get(handle)
        if link is not None:
            link.peer_flow(delivery_count, link_credit, drain)
        if not was_open and (self.can_send() or self._rest_link is not midway):
            self.connection.add_effort(len(self.links))
            for other in list(self.links.values()):
                if other.is_sender and other.state == ATTACHED and other is not link:
                    self.connection.handler.on_flow(other)
        if echo:
            if link is not None and link.state == ATTACHED:
                self.send_link_flow(link)
            else:
                self._send_session_flow()

    def peer_disposition(self, buf: bytes, pos: int, end: int) -> None:
        is_receiver, first, last, settled, state_at, state_end = read_disposition(buf, pos, end)
        # A sender's disposition concerns what we received, and we settled that for good.
        if not is_receiver:
            return
        outcome = read_outcome(buf, state_at, state_end)
        if outcome.kind == KIND_RECEIVED and outcome.txn_id is None and not settled:
            # Progress, which changes nothing, however many deliveries have made it.
            return
        if first != last:
            count = ((last - first) & _SERIAL) + 1
            self.connection.add_effort(min(count, len(self.owners)))
        for delivery_id in self._unsettled_between(first, last):
            self._peer_outcome(delivery_id, settled, outcome)
        self.connection.handler.on_outcomes_end(self)

    def _peer_outcome(self, delivery_id: int, settled: bool, outcome: Outcome) -> None:
        """Tell the handler one outcome; repeating it (or settling after it) tells nothing new."""
        link = self.owners.get(delivery_id)
        if link is None:
            return
        told = delivery_id in self.decided
        if settled:
            self.decided.discard(delivery_id)
            del self.owners[delivery_id]
            context = link.settled(delivery_id)
        else:
            context = link.unsettled(delivery_id)
            # A rollback takes an outcome back, and the next one is news again.
            if outcome.is_terminal() and outcome.txn_id is None:
                self.decided.add(delivery_id)
        if not told:
            self.connection.handler.on_outcome(context, delivery_id, settled, outcome)

    def _unsettled_between(self, first: int, last: int) -> list[int]:
        """Unsettled deliveries in a range of serial numbers, in order, however wide it is."""
        owners = self.owners
        if first == last:
            return [first] if first in owners else []
        count = ((last - first) & _SERIAL) + 1
        if count <= len(owners):
            ids = [(first + i) & _SERIAL for i in range(count)]
            return [delivery_id for delivery_id in ids if delivery_id in owners]
        return [i for i in owners if (i - first) & _SERIAL < count]
