"""What a user says when pairing two namespaces (P1). Plain data, checked when made."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

PING_INTERVAL_MIN = timedelta(seconds=1)
PING_INTERVAL_MAX = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class SendAvailabilityPairedNamespaceOptions:
    """How to go on sending when an entity of the primary fails.

    The names are those of the documents. A client may stand for a connection string: of
    `azure.servicebus.aio` where the pair is asynchronous, of `azure.servicebus` where not.
    """

    #: A connection string with manage rights, or a `ServiceBusClient`.
    secondary: Any = field(repr=False)
    #: Finds and makes the backlog queues: a `ServiceBusAdministrationClient` or its
    #: connection string. None: the connection string in `secondary` serves.
    administration: Any = field(default=None, repr=False)
    backlog_queue_count: int = 10
    #: How long an entity may fail before its messages go to the backlog. Zero: at once.
    failover_interval: timedelta = timedelta(seconds=10)
    enable_syphon: bool = False
    ping_primary_interval: timedelta = timedelta(seconds=60)
    #: How long the syphon leaves an entity, or a namespace, alone after a failure.
    syphon_retry_interval: timedelta = timedelta(seconds=60)
    #: One long poll of the syphon: with 10 idle queues, 40 receive calls an hour (P11).
    syphon_poll: timedelta = timedelta(minutes=15)
    #: A send that takes longer counts as timed out (P4), unless the caller says a time-out.
    operation_timeout: timedelta = timedelta(seconds=60)
    #: Beyond the documents: hold a session's sends until its backlog is drained.
    keep_session_order: bool = False
    #: Beyond the documents: give an id to messages without one, so that an entity with
    #: duplicate detection drops the second copy of a send that was tried twice.
    assign_message_ids: bool = False

    def __post_init__(self) -> None:
        if self.backlog_queue_count < 1:
            raise ValueError("backlog_queue_count must be at least 1.")
        if self.failover_interval < timedelta(0):
            raise ValueError("failover_interval must not be negative.")
        if not PING_INTERVAL_MIN <= self.ping_primary_interval <= PING_INTERVAL_MAX:
            raise ValueError("ping_primary_interval must be from 1 second to 30 minutes.")
        for name in ("syphon_retry_interval", "syphon_poll", "operation_timeout"):
            if getattr(self, name) <= timedelta(0):
                raise ValueError(f"{name} must be longer than zero.")
        if self.administration is None and not isinstance(self.secondary, str):
            raise ValueError(
                "Give an administration client (or its connection string) as `administration`: "
                "the backlog queues cannot be made through a messaging client."
            )

    def attempt_settings(self) -> dict[str, Any]:
        """How the SDK's clients try: once, and not for ever (see `PairedServiceBusClient`)."""
        return {"retry_total": 0, "try_timeout": self.operation_timeout.total_seconds()}


def milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
