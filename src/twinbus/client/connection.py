"""The client's half of an AMQP connection with one session, without I/O.

Bytes of the peer go in (`receive`), bytes for the peer come out (`output`). Walks through
SASL, open and begin by itself; then callers attach links, queue deliveries and read what
came of them. Sees neither socket nor clock. Whatever ends the connection is in `failure`.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.codec import NULL, encode_list, encode_string, encode_symbol, encode_uint
from twinbus.amqp.errors import DecodeError, ProtocolError
from twinbus.amqp.framing import (
    AMQP_HEADER,
    FRAME_BYTES_MIN,
    FRAME_HEADER_BYTES,
    SASL_HEADER,
    FrameReader,
    frame,
    sasl_frame,
)
from twinbus.amqp.outcomes import ACCEPTED, KIND_ACCEPTED, KIND_REJECTED, Outcome, read_outcome
from twinbus.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    TRANSFER_BYTES,
    Fields,
    attach_frame,
    close_frame,
    descriptor_at,
    detach_frame,
    disposition,
    link_flow,
    read_disposition,
    read_flow,
    read_transfer,
    session_flow,
    transfer_continuation,
    transfer_first,
    transfer_single,
)
from twinbus.client.errors import ClientError, ConnectionLost, Refused
from twinbus.client.links import (
    REPLY_BYTES_MAX,
    REPLY_CREDIT,
    SERIAL,
    Link,
    Outgoing,
    ReceivingLink,
    SendingLink,
)
from twinbus.core.limits import FRAME_BYTES_MAX

_CHANNEL: Final = 0
_WINDOW: Final = 5000
_HANDLE_MAX: Final = 4999
_HALF: Final = 0x80000000
_UNAUTHORIZED: Final = "amqp:unauthorized-access"

_SASL_MECHANISMS: Final = 0x40
_SASL_OUTCOME: Final = 0x44
# The claims come later, as tokens; either name leads there.
_MECHANISMS: Final = ("MSSBCBS", "ANONYMOUS")

_UNSETTLED_FIRST: Final = b"\x50\x00\x50\x00"
_SETTLED_FIRST: Final = b"\x50\x01\x50\x00"


class Connection(FrameReader):
    def __init__(self, hostname: str, container_id: str) -> None:
        super().__init__(FRAME_BYTES_MAX)
        self._hostname = hostname
        self._container_id = container_id
        #: Bytes for the peer, in order; whoever writes them empties it.
        self.output: list[bytes] = [SASL_HEADER]
        self.opened = False
        self.failure: ClientError | None = None
        #: How often the peer must hear from us; 0: it does not mind.
        self.keep_alive_ms = 0
        self._in_sasl = True
        self._frame_bytes_max = FRAME_BYTES_MIN
        self._links: dict[str, Link] = {}
        self._by_remote_handle: dict[int, Link] = {}
        self._next_handle = 0
        # Of links that both ends have let go.
        self._free_handles: list[int] = []
        self._link_count = 0
        self._next_incoming_id = 0
        self._incoming_window = _WINDOW
        self._next_outgoing_id = 0
        self._remote_window = 0
        self._next_delivery_id = 0
        self._unsettled: dict[int, tuple[SendingLink, Outgoing]] = {}

    # -----------------------------------------------------------------------------------
    # What callers ask

    def attach_sender(self, address: str) -> SendingLink:
        link = SendingLink(*self._new_link("out"))
        self._attach(link, address, _UNSETTLED_FIRST, 0)
        return link

    def attach_receiver(self, address: str) -> ReceivingLink:
        """A link for answers; the link's name is the address that a request's reply-to says."""
        link = ReceivingLink(*self._new_link("in"))
        self._attach(link, address, _SETTLED_FIRST, REPLY_BYTES_MAX)
        return link

    def send(self, link: SendingLink, payload: bytes, message_format: int) -> Outgoing:
        """Queue a delivery; it leaves as credit and window allow."""
        outgoing = Outgoing(payload, message_format)
        link.queue.append(outgoing)
        self._send_from(link)
        return outgoing

    def detach(self, link: Link) -> None:
        """Close a link; what the peer says to that is not waited for."""
        if link.failure is None and self.failure is None:
            link.failure = Refused("amqp:link:closed", "The link was closed by this client.")
            self.output.append(detach_frame(_CHANNEL, link.handle, NULL))

    def close(self) -> None:
        if self.failure is None:
            if self.opened:
                self.output.append(close_frame(NULL))
            self.finished = True
            self.failure = ConnectionLost("the connection was closed by this client")

    def lost(self, why: str) -> None:
        """The transport is gone, or the peer was silent for too long."""
        if self.failure is None:
            self._fail(ConnectionLost(why))

    def _new_link(self, direction: str) -> tuple[str, int]:
        if self._free_handles:
            handle = self._free_handles.pop()
        else:
            handle = self._next_handle
            self._next_handle += 1
        if handle > _HANDLE_MAX:
            raise ConnectionLost("the connection has too many links: connect again")
        self._link_count += 1
        return f"{self._container_id}-{direction}-{self._link_count}", handle

    def _attach(self, link: Link, address: str, modes: bytes, size_max: int) -> None:
        is_sender = isinstance(link, SendingLink)
        node, here = encode_list([encode_string(address)]), encode_list([encode_string(link.name)])
        source = b"\x00\x53\x28" + (here if is_sender else node)
        target = b"\x00\x53\x29" + (node if is_sender else here)
        self._links[link.name] = link
        self.output.append(
            attach_frame(
                _CHANNEL, link.name, link.handle, is_sender, modes, source, target, size_max, None
            )
        )

    # -----------------------------------------------------------------------------------
    # Sending

    def _send_from(self, link: SendingLink) -> None:
        queue = link.queue
        while queue and self._remote_window > 0 and link.failure is None:
            outgoing = queue[0]
            if outgoing.delivery_id < 0:
                if link.credit <= 0:
                    return
                self._begin_delivery(link, outgoing)
            else:
                self._continue_delivery(link, outgoing)
            if outgoing.sent_bytes == len(outgoing.payload):
                queue.popleft()

    def _begin_delivery(self, link: SendingLink, outgoing: Outgoing) -> None:
        delivery_id = outgoing.delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) & SERIAL
        link.delivery_count = (link.delivery_count + 1) & SERIAL
        link.credit -= 1
        self._unsettled[delivery_id] = (link, outgoing)
        tag = delivery_id.to_bytes(4, "big")
        payload, form = outgoing.payload, outgoing.message_format
        size = TRANSFER_BYTES + len(tag) + len(payload)
        if size <= self._frame_bytes_max:
            head = transfer_single(size, _CHANNEL, link.handle, delivery_id, tag, form, False)
            self.output += (head, payload)
            outgoing.sent_bytes = len(payload)
        else:
            head = transfer_first(link.handle, delivery_id, tag, form, False)
            # Something must be left: this frame says that another one follows.
            room = self._frame_bytes_max - FRAME_HEADER_BYTES - len(head)
            outgoing.sent_bytes = min(room, len(payload) - 1)
            self.output.append(frame(_CHANNEL, head + payload[: outgoing.sent_bytes]))
        self._count_sent_frame()

    def _continue_delivery(self, link: SendingLink, outgoing: Outgoing) -> None:
        head = transfer_continuation(link.handle, False, True)
        start = outgoing.sent_bytes
        end = start + self._frame_bytes_max - FRAME_HEADER_BYTES - len(head)
        if end >= len(outgoing.payload):
            end = len(outgoing.payload)
            head = transfer_continuation(link.handle, False, False)
        self.output.append(frame(_CHANNEL, head + outgoing.payload[start:end]))
        outgoing.sent_bytes = end
        self._count_sent_frame()

    def _count_sent_frame(self) -> None:
        self._remote_window -= 1
        self._next_outgoing_id = (self._next_outgoing_id + 1) & SERIAL

    # -----------------------------------------------------------------------------------
    # Bytes to frames

    def receive(self, data: bytes) -> None:
        """Take bytes as they came from the transport, cut anywhere."""
        if self.finished:
            return
        try:
            self.read_frames(data)
        except (DecodeError, ProtocolError) as error:
            self._fail(ConnectionLost(f"the peer does not speak AMQP as it should: {error}"))
        except ClientError as error:
            self._fail(error)

    def take_header(self, header: bytes) -> None:
        wanted = SASL_HEADER if self._in_sasl else AMQP_HEADER
        if header != wanted:
            raise ConnectionLost(f"the peer speaks no AMQP 1.0 (it said {header!r})")
        self.awaits_header = False

    def take_frame(self, kind: int, channel: int, data: bytes, pos: int, end: int) -> None:
        if pos == end:
            return
        code, at = descriptor_at(data, pos)
        if code == TRANSFER:
            self._receive_transfer(data, at, end)
        elif code == DISPOSITION:
            self._receive_disposition(data, at, end)
        elif code == FLOW:
            self._receive_flow(data, at, end)
        else:
            self._receive_rare(code, Fields(data, at, end))

    def _receive_rare(self, code: int, fields: Fields) -> None:
        if self._in_sasl:
            self._receive_sasl(code, fields)
        elif code == OPEN:
            size = fields.number(2, FRAME_BYTES_MAX)
            self._frame_bytes_max = max(min(size, FRAME_BYTES_MAX), FRAME_BYTES_MIN)
            self.keep_alive_ms = fields.number(4, 0) // 2
        elif code == BEGIN:
            self._next_incoming_id = fields.number(1, 0) & SERIAL
            self._remote_window = fields.number(2, 0)
            self.opened = True
        elif code == ATTACH:
            self._receive_attach(fields)
        elif code == DETACH:
            self._receive_detach(fields)
        elif code == END:
            raise _refusal(fields, 0, "the broker ended the AMQP session")
        elif code == CLOSE:
            raise _refusal(fields, 0, "the broker closed the connection")

    # -----------------------------------------------------------------------------------
    # Frames to links

    def _receive_sasl(self, code: int, fields: Fields) -> None:
        if code == _SASL_MECHANISMS:
            offered = fields.value(0)
            names = offered if isinstance(offered, list) else [offered]
            chosen = next((name for name in _MECHANISMS if name in names), None)
            if chosen is None:
                raise Refused(_UNAUTHORIZED, f"The broker offers none of {_MECHANISMS}: {names}.")
            init = encode_list([encode_symbol(chosen), NULL, encode_string(self._hostname)])
            self.output.append(sasl_frame(b"\x00\x53\x41" + init))
        elif code == _SASL_OUTCOME:
            if fields.number(0, 1) != 0:
                raise Refused(_UNAUTHORIZED, "The broker refused the connection (SASL).")
            self._in_sasl = False
            self.awaits_header = True
            self.output += [AMQP_HEADER, self._open_frame(), _begin_frame()]

    def _open_frame(self) -> bytes:
        fields = [
            encode_string(self._container_id),
            encode_string(self._hostname),
            encode_uint(FRAME_BYTES_MAX),
        ]
        return frame(0, b"\x00\x53\x10" + encode_list(fields))

    def _receive_attach(self, fields: Fields) -> None:
        link = self._links.get(fields.text(0) or "")
        if link is None:
            return
        self._by_remote_handle[fields.number(1, 0)] = link
        # A refusal comes as an attach without terminus, and a detach that says why.
        terminus = 6 if isinstance(link, SendingLink) else 5
        link.attached = fields.present(terminus)
        if isinstance(link, SendingLink):
            link.max_message_size = fields.number(10, 0)
        elif link.attached and isinstance(link, ReceivingLink):
            link.delivery_count = fields.number(9, 0) & SERIAL
            self._grant(link)

    def _receive_detach(self, fields: Fields) -> None:
        link = self._by_remote_handle.pop(fields.number(0, -1), None)
        if link is None:
            return
        self._links.pop(link.name, None)
        self._free_handles.append(link.handle)
        self._unsettled = {i: known for i, known in self._unsettled.items() if known[0] is not link}
        if link.failure is None:
            link.failure = _refusal(fields, 2, "the broker closed the link")
            self.output.append(detach_frame(_CHANNEL, link.handle, NULL))

    def _receive_transfer(self, data: bytes, pos: int, end: int) -> None:
        handle, delivery_id, _, _, settled, more, aborted, _, payload_at = read_transfer(
            data, pos, end
        )
        self._next_incoming_id = (self._next_incoming_id + 1) & SERIAL
        self._incoming_window -= 1
        if self._incoming_window <= _WINDOW >> 1:
            self._send_session_flow()
        link = self._by_remote_handle.get(handle)
        if not isinstance(link, ReceivingLink):
            return
        if link.take_frame(data[payload_at:end], more, aborted):
            link.delivery_count = (link.delivery_count + 1) & SERIAL
            link.credit -= 1
            if not settled and delivery_id >= 0:
                self.output.append(disposition(_CHANNEL, True, delivery_id, delivery_id, ACCEPTED))
            if link.credit <= REPLY_CREDIT >> 1:
                self._grant(link)

    def _receive_disposition(self, data: bytes, pos: int, end: int) -> None:
        is_receiver, first, last, _, state_at, state_end = read_disposition(data, pos, end)
        if not is_receiver:
            return
        outcome = read_outcome(data, state_at, state_end)
        if not outcome.is_terminal():
            return
        count = ((last - first) & SERIAL) + 1
        if count <= len(self._unsettled):
            ids = [(first + i) & SERIAL for i in range(count)]
        else:
            ids = [i for i in self._unsettled if (i - first) & SERIAL < count]
        for delivery_id in ids:
            known = self._unsettled.pop(delivery_id, None)
            if known is not None:
                known[0].outcomes.append((known[1], outcome))

    def _receive_flow(self, data: bytes, pos: int, end: int) -> None:
        next_incoming_id, window, handle, delivery_count, link_credit, _, echo = read_flow(
            data, pos, end
        )
        in_flight = self._next_outgoing_id - max(next_incoming_id, 0)
        in_flight = ((in_flight + _HALF) & SERIAL) - _HALF
        self._remote_window = max(window - in_flight, 0)
        link = self._by_remote_handle.get(handle)
        if isinstance(link, SendingLink) and link_credit >= 0:
            link.take_credit(delivery_count, link_credit)
        for other in self._links.values():
            if isinstance(other, SendingLink):
                self._send_from(other)
        if echo:
            self._send_session_flow()

    def _grant(self, link: ReceivingLink) -> None:
        link.credit = REPLY_CREDIT
        self._incoming_window = _WINDOW
        self.output.append(
            link_flow(
                _CHANNEL, self._next_incoming_id, _WINDOW, self._next_outgoing_id, _WINDOW,
                link.handle, link.delivery_count, link.credit, False,
            )
        )  # fmt: skip

    def _send_session_flow(self) -> None:
        self._incoming_window = _WINDOW
        self.output.append(
            session_flow(_CHANNEL, self._next_incoming_id, _WINDOW, self._next_outgoing_id, _WINDOW)
        )

    def _fail(self, failure: ClientError) -> None:
        self.finished = True
        self.failure = failure
        for link in self._links.values():
            link.failure = link.failure or failure


def _begin_frame() -> bytes:
    fields = [NULL, encode_uint(0), encode_uint(_WINDOW), encode_uint(_WINDOW)]
    fields.append(encode_uint(_HANDLE_MAX))
    return frame(_CHANNEL, b"\x00\x53\x11" + encode_list(fields))


def _refusal(fields: Fields, index: int, what: str) -> ClientError:
    """What a peer's end, close or detach means: its error, or that it just left."""
    condition, description = None, None
    if fields.present(index):
        _, at = descriptor_at(fields.buf, fields.start(index))
        error = Fields(fields.buf, at, fields.after)
        condition, description = error.text(0), error.text(1)
    if condition is None:
        return ConnectionLost(what)
    refused = Refused(condition, description or what)
    return ConnectionLost(f"{what}: {refused}") if refused.retryable else refused


def refusal_of(outcome: Outcome) -> Refused | None:
    """What a delivery's outcome means to its sender: None if it was accepted."""
    if outcome.kind == KIND_REJECTED:
        condition = outcome.condition or "amqp:internal-error"
        return Refused(condition, outcome.description or "The broker gave no reason.")
    if outcome.kind == KIND_ACCEPTED:
        return None
    # Released or modified: the broker could not take it now.
    return Refused("com.microsoft:server-busy", "The broker gave the message back.")
