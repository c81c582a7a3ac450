"""Paired namespaces: keep sending when the primary is down (asyncio; threads in `.sync`).

Two namespaces go in, whosever they are; a client comes out whose senders go on when an entity
of the primary fails. It stands on the `azure-servicebus` package (extra `pairing`).
"""

from twinbus.pairing.client import PairedServiceBusClient, pair_namespace
from twinbus.pairing.errors import (
    BacklogMessageTooLargeError,
    BacklogSendError,
    NoBacklogQueueError,
    PairClosedError,
    PairingError,
    UnsentError,
)
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.sender import NOT_NUMBERED_YET, PairedSender
from twinbus.pairing.status import PairStatus
from twinbus.pairing.syphon import Syphon
from twinbus.pairing.window import SendWindow

__all__ = [
    "NOT_NUMBERED_YET",
    "BacklogMessageTooLargeError",
    "BacklogSendError",
    "NoBacklogQueueError",
    "PairClosedError",
    "PairStatus",
    "PairedSender",
    "PairedServiceBusClient",
    "PairingError",
    "SendAvailabilityPairedNamespaceOptions",
    "SendWindow",
    "Syphon",
    "UnsentError",
    "pair_namespace",
]
