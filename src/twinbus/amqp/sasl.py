"""The SASL exchange before a connection, seen from the server.

Frame bodies enter; the frames to answer leave, with what was agreed. Asks the handler
about passwords and keeps none.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.codec import encode, encode_binary, encode_list
from twinbus.amqp.errors import ILLEGAL_STATE, ProtocolError
from twinbus.amqp.framing import sasl_frame
from twinbus.amqp.handler import Handler
from twinbus.amqp.performatives import Fields, descriptor_at
from twinbus.amqp.types import ARRAY_OF_SYMBOL, AmqpArray, Symbol, UByte

_INIT: Final = 0x41
_RESPONSE: Final = 0x43

_PLAIN: Final = "PLAIN"
# All but PLAIN prove nothing here: their claims come later, as tokens over $cbs.
_OFFERED: Final = ["ANONYMOUS", _PLAIN, "MSSBCBS"]
# Not offered: a client that has a password and sees it may prefer it, and be nobody.
_TAKEN: Final = [*_OFFERED, "EXTERNAL"]

_OK: Final = 0
_REFUSED: Final = 1


class SaslServer:
    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._awaits_response = False
        self.done = False
        self.accepted = False
        # The name that PLAIN proved.
        self.user: str | None = None

    def mechanisms(self) -> bytes:
        offered = AmqpArray([Symbol(name) for name in _OFFERED], ARRAY_OF_SYMBOL)
        return sasl_frame(b"\x00\x53\x40" + encode_list([encode(offered)]))

    def receive(self, buf: bytes, pos: int, end: int) -> bytes:
        """Take one frame body; give the frame to answer."""
        code, at = descriptor_at(buf, pos)
        fields = Fields(buf, at, end)
        if code == _INIT and not self._awaits_response:
            mechanism = fields.text(0) or ""
            if mechanism not in _TAKEN:
                return self._outcome(False)
            if mechanism != _PLAIN:
                return self._outcome(True)
            response = fields.binary(1)
            if response is None:
                self._awaits_response = True
                return sasl_frame(b"\x00\x53\x42" + encode_list([encode_binary(b"")]))
            return self._outcome(self._check_plain(response))
        if code == _RESPONSE and self._awaits_response:
            return self._outcome(self._check_plain(fields.binary(0) or b""))
        raise ProtocolError(ILLEGAL_STATE, "SASL frame out of turn")

    def _check_plain(self, response: bytes) -> bool:
        """Authorisation name, NUL, user, NUL, password (RFC 4616)."""
        parts = response.split(b"\x00")
        if len(parts) != 3:
            return False
        try:
            user = parts[1].decode()
            password = parts[2].decode()
        except UnicodeDecodeError:
            return False
        if not self._handler.on_sasl_plain(user, password):
            return False
        self.user = user
        return True

    def _outcome(self, accepted: bool) -> bytes:
        self.done = True
        self.accepted = accepted
        code = encode(UByte(_OK if accepted else _REFUSED))
        return sasl_frame(b"\x00\x53\x44" + encode_list([code]))
