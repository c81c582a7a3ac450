"""Paired namespaces for threads: the same names as `twinbus.pairing`, without async.

Generated from the asynchronous modules by tools/async_to_sync.py, except this file and
`concurrency.py`.
"""

from twinbus.pairing.errors import (
    BacklogMessageTooLargeError,
    BacklogSendError,
    NoBacklogQueueError,
    PairClosedError,
    PairingError,
    UnsentError,
)
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.status import PairStatus
from twinbus.pairing.sync.client import PairedServiceBusClient, pair_namespace
from twinbus.pairing.sync.sender import NOT_NUMBERED_YET, PairedSender
from twinbus.pairing.sync.syphon import Syphon
from twinbus.pairing.sync.window import SendWindow

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
