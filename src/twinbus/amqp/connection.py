"""One connection: bytes of a peer in, handler calls and bytes for the peer out.

Walks through SASL, open, sessions and close. Sees neither socket nor clock: the time is an
argument. Whatever bytes come, `receive` does not raise
for them; it answers with the AMQP error that fits and is `finished`. What the handler
raises goes through.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.codec import NULL
from twinbus.amqp.errors import (
    CONNECTION_FORCED,
    DECODE_ERROR,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    RESOURCE_LIMIT_EXCEEDED,
    DecodeError,
    ProtocolError,
)
from twinbus.amqp.framing import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    FRAME_BYTES_MIN,
    SASL_FRAME,
    SASL_HEADER,
    FrameReader,
)
from twinbus.amqp.handler import Handler
from twinbus.amqp.outcomes import error
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
    Fields,
    begin_frame,
    close_frame,
    descriptor_at,
    end_frame,
    open_frame,
)
from twinbus.amqp.sasl import SaslServer
from twinbus.amqp.session import HANDLE_MAX, INCOMING_WINDOW, OUTGOING_WINDOW, AmqpSession

NEVER_MS: Final = 1 << 62
LINKS_MAX: Final = 5000
# How many deliveries and links the frames of one `receive` may look through, or copies of a
# topic's messages make, before others get their turn. A frame of thirty bytes can name all that
# there are, and be repeated.
EFFORT_MAX: Final = 10_000
# A peer cannot make us write more often than this by announcing a tiny idle time-out.
KEEP_ALIVE_MS_MIN: Final = 250

# Stages of a connection.
_START: Final = 0
_SASL: Final = 1
_AFTER_SASL: Final = 2
_UNOPENED: Final = 3
_OPEN: Final = 4


class Connection(FrameReader):
    def __init__(
        self,
        handler: Handler,
        container_id: str,
        now_ms: int,
        *,
        max_frame_size: int = 65536,
        channel_max: int = 4999,
        idle_timeout_ms: int = 240_000,
        handshake_timeout_ms: int = 30_000,
        partial_bytes_max: int = 200 * 1024 * 1024,
    ) -> None:
        super().__init__(max_frame_size)
        self.handler = handler
        self.container_id = container_id
        self.sessions: dict[int, AmqpSession] = {}
        self.link_count = 0
        # What the links hold of messages whose end has not come; they keep count of it.
        self.partial_bytes = 0
        self.user: str | None = None
        self.remote_container_id = ""
        self.hostname: str | None = None
        self.remote_properties: dict[object, object] = {}
        self.remote_max_frame_size = FRAME_BYTES_MIN
        # Bytes for the peer, in order; sessions and links append to it.
        self.output: list[bytes] = []
        self._channel_max = channel_max
        self._partial_bytes_max = partial_bytes_max
        self._idle_timeout_ms = idle_timeout_ms
        # How often the peer must hear from us; 0: it does not mind.
        self._keep_alive_ms = 0
        self._stage = _START
        self._sasl: SaslServer | None = None
        self._effort = 0
        self._open_sent = False
        self._now_ms = now_ms
        self._heard_ms = now_ms
        self._sent_ms = now_ms
        self._handshake_until_ms = now_ms + handshake_timeout_ms

    @property
    def has_output(self) -> bool:
        return len(self.output) > 0

    def take_output(self) -> bytes:
        """All bytes to write now, joined once."""
        if not self.output:
            return b""
        taken = b"".join(self.output)
        self.output.clear()
        # The last known time may lie before the real one; an empty frame then goes out
        # early, never late.
        self._sent_ms = self._now_ms
        return taken

    # -----------------------------------------------------------------------------------
    # Time

    def deadline_ms(self) -> int:
        """When `tick` is next needed."""
        if self.finished:
            return NEVER_MS
        deadline = NEVER_MS
        if self._stage != _OPEN:
            deadline = self._handshake_until_ms
        elif self._idle_timeout_ms:
            deadline = self._heard_ms + self._idle_timeout_ms
        if self._keep_alive_ms:
            deadline = min(deadline, self._sent_ms + self._keep_alive_ms)
        return deadline

    def shift(self, step_ms: int) -> None:
        """The clock was set: what the peer was given to be silent stays as long as it was."""
        self._now_ms += step_ms
        self._heard_ms += step_ms
        self._sent_ms += step_ms
        self._handshake_until_ms += step_ms

    def tick(self, now_ms: int) -> None:
        """Do what is due: give up a silent peer, or keep one from giving us up."""
        self._now_ms = max(self._now_ms, now_ms)
        if self.finished:
            return
        if self._stage != _OPEN:
            if now_ms >= self._handshake_until_ms:
                self._finish()
            return
        if self._idle_timeout_ms and now_ms >= self._heard_ms + self._idle_timeout_ms:
            self.close(CONNECTION_FORCED, "The connection was idle for too long.")
            return
        if self._keep_alive_ms and now_ms >= self._sent_ms + self._keep_alive_ms:
            self._sent_ms = now_ms
            if not self.output:
                self.output.append(EMPTY_FRAME)

    # -----------------------------------------------------------------------------------
    # Endings

    def close(self, condition: str, description: str) -> None:
        """End the connection with an error. What is in `output` still goes to the peer."""
        if self.finished:
            return
        if self._stage >= _UNOPENED:
            if not self._open_sent:
                self._send_open()
            self.output.append(close_frame(error(condition, description, None)))
        self._finish()

    def abort(self) -> None:
        """The transport is lost."""
        if not self.finished:
            self.output.clear()
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._cut.clear()
        sessions = list(self.sessions.values())
        self.sessions.clear()
        # Detach callbacks may still write to links of a peer that hears no more.
        written = len(self.output)
        for session in sessions:
            session.peer_end()
        self.handler.on_close(self)
        del self.output[written:]

    # -----------------------------------------------------------------------------------
    # Bytes to frames

    @property
    def is_interrupted(self) -> bool:
        """Frames wait that cost too much for one turn: call `receive(b"")` in the next."""
        return self.is_weary and len(self._cut) > 0

    @property
    def interrupted_bytes(self) -> int:
        """The size of what waits."""
        return len(self._cut)

    def add_effort(self, looked_through: int) -> None:
        """Count what a frame looks through or makes; enough of it ends the turn after the frame."""
        self._effort += looked_through
        if self._effort > EFFORT_MAX:
            self.is_weary = True

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take bytes as they came from the transport, cut anywhere."""
        if self.finished:
            return
        self._effort = 0
        self.is_weary = False
        self._now_ms = max(self._now_ms, now_ms)
        self._heard_ms = self._now_ms
        try:
            self.read_frames(data)
        except DecodeError as undecodable:
            self.close(DECODE_ERROR, str(undecodable))
        # Under another name: compiled, a variable has one type for the whole function.
        except ProtocolError as problem:
            self.close(problem.condition, problem.description)

    def take_header(self, header: bytes) -> None:
        self.awaits_header = False
        if header == AMQP_HEADER:
            self.output.append(AMQP_HEADER)
            self._stage = _UNOPENED
        elif header == SASL_HEADER and self._stage == _START:
            self._sasl = SaslServer(self.handler)
            self._stage = _SASL
            self.output.append(SASL_HEADER)
            self.output.append(self._sasl.mechanisms())
        else:
            # The answer to an unknown header is one that we know (AMQP 1.0 §2.2).
            self.output.append(SASL_HEADER if self._stage == _START else AMQP_HEADER)
            self._finish()

    def take_frame(self, kind: int, channel: int, data: bytes, pos: int, end: int) -> None:
        if self._stage == _SASL:
            if kind != SASL_FRAME:
                raise ProtocolError(FRAMING_ERROR, "not a SASL frame")
            self._receive_sasl(data, pos, end)
            return
        if kind != AMQP_FRAME:
            raise ProtocolError(FRAMING_ERROR, "not an AMQP frame")
        if pos == end:
            return
        code, at = descriptor_at(data, pos)
        if self._stage == _OPEN:
            self._receive_performative(channel, code, data, at, end)
        elif code == OPEN:
            self._receive_open(Fields(data, at, end))
        elif code == CLOSE:
            self._receive_close()
        else:
            raise ProtocolError(ILLEGAL_STATE, "the connection is not open")

    def _receive_sasl(self, data: bytes, pos: int, end: int) -> None:
        sasl = self._sasl
        assert sasl is not None
        self.output.append(sasl.receive(data, pos, end))
        if not sasl.done:
            return
        if not sasl.accepted:
            self._finish()
            return
        self.user = sasl.user
        self._stage = _AFTER_SASL
        self.awaits_header = True

    # -----------------------------------------------------------------------------------
    # Frames to sessions

    def _receive_performative(
        self, channel: int, code: int, data: bytes, at: int, end: int
    ) -> None:
        if code == BEGIN:
            self._receive_begin(channel, Fields(data, at, end))
            return
        if code == CLOSE:
            self._receive_close()
            return
        if code == OPEN:
            raise ProtocolError(ILLEGAL_STATE, "the connection is open already")
        session = self.sessions.get(channel)
        if session is None:
            # The Python SDK detaches links of a session that it has ended.
            return
        if code == TRANSFER:
            session.peer_transfer(data, at, end)
        elif code == DISPOSITION:
            session.peer_disposition(data, at, end)
        elif code == FLOW:
            session.peer_flow(data, at, end)
        elif code == ATTACH:
            session.peer_attach(data, at, end)
        elif code == DETACH:
            session.peer_detach(data, at, end)
        elif code == END:
            del self.sessions[channel]
            session.peer_end()
            self.output.append(end_frame(channel))
        else:
            raise DecodeError(f"unknown performative 0x{code:x}", at)

    def _receive_open(self, fields: Fields) -> None:
        self.remote_container_id = fields.text(0) or ""
        self.hostname = fields.text(1)
        self.remote_max_frame_size = max(fields.number(2, 0xFFFFFFFF), FRAME_BYTES_MIN)
        idle_timeout_ms = fields.number(4, 0)
        if idle_timeout_ms:
            self._keep_alive_ms = max(idle_timeout_ms // 2, KEEP_ALIVE_MS_MIN)
        self.remote_properties = fields.mapping(9)
        self._send_open()
        self._stage = _OPEN
        self.handler.on_open(self)

    def _send_open(self) -> None:
        self._open_sent = True
        self.output.append(
            open_frame(
                self.container_id, self._max_frame_size, self._channel_max, self._idle_timeout_ms
            )
        )

    def _receive_begin(self, channel: int, fields: Fields) -> None:
        if channel > self._channel_max:
            raise ProtocolError(FRAMING_ERROR, f"channel {channel} is beyond channel-max")
        if channel in self.sessions:
            raise ProtocolError(ILLEGAL_STATE, f"channel {channel} has a session already")
        self.sessions[channel] = AmqpSession(self, channel, fields)
        self.output.append(begin_frame(channel, 0, INCOMING_WINDOW, OUTGOING_WINDOW, HANDLE_MAX))

    def _receive_close(self) -> None:
        if not self._open_sent:
            self._send_open()
        self.output.append(close_frame(NULL))
        self._finish()

    def count_link(self) -> None:
        """One more link, and no more than a stranger may make us hold."""
        if self.link_count >= LINKS_MAX:
            raise ProtocolError(RESOURCE_LIMIT_EXCEEDED, f"more than {LINKS_MAX} links")
        self.link_count += 1

    def check_partials(self) -> None:
        """End a peer that begins more than it ends: what it holds open waits in memory."""
        if self.partial_bytes > self._partial_bytes_max:
            raise ProtocolError(
                RESOURCE_LIMIT_EXCEEDED,
                f"more than {self._partial_bytes_max} bytes of messages that are not whole",
            )
