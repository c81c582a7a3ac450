"""The two ways in which a peer's bytes can be wrong.

Raised inside this package and answered by the connection; a `DecodeError` also leaves it
where the bridge asks for a message to be read.
"""

from __future__ import annotations

DECODE_ERROR = "amqp:decode-error"
FRAMING_ERROR = "amqp:connection:framing-error"
CONNECTION_FORCED = "amqp:connection:forced"
ILLEGAL_STATE = "amqp:illegal-state"
INVALID_FIELD = "amqp:invalid-field"
NOT_ALLOWED = "amqp:not-allowed"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
HANDLE_IN_USE = "amqp:session:handle-in-use"
UNATTACHED_HANDLE = "amqp:session:unattached-handle"


class DecodeError(ValueError):
    """Bytes that are no AMQP, and where they stop being so."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what} at byte {position}")
        self.what = what
        self.position = position


class ProtocolError(Exception):
    """Well-formed bytes that the protocol does not allow here; ends the connection."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description
