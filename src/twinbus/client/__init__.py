"""A client over the project's own AMQP: requests and bulk sending, blocking, TCP or TLS."""

from twinbus.client.client import Answer, Client
from twinbus.client.errors import ClientError, ConnectionLost, Refused, SendRefused
from twinbus.client.sender import Sender

__all__ = [
    "Answer",
    "Client",
    "ClientError",
    "ConnectionLost",
    "Refused",
    "SendRefused",
    "Sender",
]
