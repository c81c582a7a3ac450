"""What can go wrong between a client and a broker, in two kinds: the connection is gone, or
the broker said no. Both say whether trying again may help."""

from __future__ import annotations

from typing import Final

from twinbus.core import errors

_RETRYABLE: Final = frozenset(
    kind.condition
    for kind in vars(errors).values()
    if isinstance(kind, errors.ErrorKind) and kind.retryable
) | {"amqp:link:detach-forced"}


class ClientError(Exception):
    """Anything this client raises of its own."""

    retryable = False


class ConnectionLost(ClientError):
    """The broker cannot be reached, is silent, or ended the connection: connect again.

    What was sent and not acknowledged may or may not have arrived.
    """

    retryable = True


class Refused(ClientError):
    """The broker said no."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{description} ({condition})")
        self.condition = condition
        self.description = description
        self.retryable = condition in _RETRYABLE


class SendRefused(Refused):
    """The broker refused a message; `position` counts the sender's messages from 0."""

    def __init__(self, position: int, message: bytes, condition: str, description: str) -> None:
        super().__init__(condition, description)
        self.position = position
        self.message = message
