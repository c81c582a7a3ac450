"""The paired client: the SDK's client in look, with senders that survive the primary (P1–P13).

Two namespaces and options go in; senders, the primary's own receivers, and the state of the
pair come out. Receivers work on the primary only, order is not kept across a failover unless
asked for, and new messages may overtake the backlog (P13).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from twinbus.pairing.backlog import find_or_make_queues
from twinbus.pairing.concurrency import Task, bounded
from twinbus.pairing.errors import PairingError
from twinbus.pairing.names import backlog_queue_name
from twinbus.pairing.observer import Observer, OnEvent
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.order import SessionOrder
from twinbus.pairing.pair import Pair, now_ms
from twinbus.pairing.sender import PairedSender
from twinbus.pairing.status import PairStatus, status_of
from twinbus.pairing.syphon import Syphon


class PairedServiceBusClient:
    """Sends to the primary, and to the secondary's backlog while an entity has failed.

    Made from two connection strings it gives its senders clients without the SDK's retries:
    they would hide an outage for eleven seconds before the first failure shows, and the
    failover interval is there to ride out short ones. Each attempt is bounded by the
    operation time-out, which the SDK's default is not. The receivers' client is the SDK's
    default one. Clients that are passed in are used as they are: give them `retry_total=0`
    and a `try_timeout` of your own.
    """

    def __init__(
        self,
        primary: ServiceBusClient | str,
        options: SendAvailabilityPairedNamespaceOptions,
        *,
        on_event: OnEvent | None = None,
        **client_options: Any,
    ) -> None:
        self.options = options
        self._observer = Observer(on_event)
        self._primary = _client(primary, **client_options)
        attempts = options.attempt_settings() | client_options
        open_s = options.operation_timeout.total_seconds()
        sending = _client(primary, **attempts) if isinstance(primary, str) else self._primary
        self._sending = bounded(sending, open_s)
        self._secondary = bounded(_client(options.secondary, **attempts), open_s)
        self._administration = _administration(options, **client_options)
        self._pair: Pair | None = None
        self._order: SessionOrder | None = None
        self._syphon: Syphon | None = None
        self._senders: list[PairedSender] = []

    @classmethod
    def from_connection_strings(
        cls,
        primary: str,
        secondary: str,
        *,
        on_event: OnEvent | None = None,
        client_options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> "PairedServiceBusClient":
        """Pair two namespaces by their connection strings.

        `settings` are fields of `SendAvailabilityPairedNamespaceOptions`, `client_options`
        what the SDK's clients take (transport_type, connection_verify, ...).
        """
        options = SendAvailabilityPairedNamespaceOptions(secondary=secondary, **settings)
        return cls(primary, options, on_event=on_event, **(client_options or {}))

    async def __aenter__(self) -> "PairedServiceBusClient":
        if self._pair is None:
            await self.pair_namespace()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def pair_namespace(self) -> None:
        """Find or make the backlog queues and start; entering the `with` block does it too.

        Wrong credentials for the secondary, and a secondary where no backlog queue can be
        found or made, are raised here (P1).
        """
        if self._pair is not None:
            raise PairingError("These namespaces are paired already.")
        queues = await find_or_make_queues(
            self._administration,
            self._primary.fully_qualified_namespace,
            self.options.backlog_queue_count,
        )
        self._pair = Pair(self._sending, self._secondary, queues, self.options, self._observer)
        if self.options.keep_session_order:
            self._order = SessionOrder(self._secondary)
        if self.options.enable_syphon:
            # A queue that could not be looked up now may hold messages all the same: its pump
            # tries again, and says so.
            host = self._primary.fully_qualified_namespace
            count = self.options.backlog_queue_count
            self._syphon = Syphon(
                self._sending,
                self._secondary,
                [backlog_queue_name(host, index) for index in range(count)],
                self.options,
                self._observer,
                self._pair.fault,
            )

    @property
    def fully_qualified_namespace(self) -> str:
        return self._primary.fully_qualified_namespace

    def get_queue_sender(
        self, queue_name: str, *, max_in_flight: int = 10, **sender_options: Any
    ) -> PairedSender:
        """A sender to a queue; `sender_options` are those of the SDK's own method."""
        make = partial(self._sending.get_queue_sender, queue_name, **sender_options)
        return self._sender(queue_name, make, max_in_flight)

    def get_topic_sender(
        self, topic_name: str, *, max_in_flight: int = 10, **sender_options: Any
    ) -> PairedSender:
        """A sender to a topic; `sender_options` are those of the SDK's own method."""
        make = partial(self._sending.get_topic_sender, topic_name, **sender_options)
        return self._sender(topic_name, make, max_in_flight)

    def get_queue_receiver(self, queue_name: str, **receiver_options: Any) -> ServiceBusReceiver:
        """The primary's own receiver (P13)."""
        return self._primary.get_queue_receiver(queue_name, **receiver_options)

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, **receiver_options: Any
    ) -> ServiceBusReceiver:
        """The primary's own receiver (P13)."""
        return self._primary.get_subscription_receiver(
            topic_name, subscription_name, **receiver_options
        )

    def status(self) -> PairStatus:
        """The state of every entity and backlog queue, and how often what happened."""
        return status_of(self._paired().policy, self._observer.counters(), now_ms())

    async def close(self) -> None:
        """Close everything in order: no more sends, the syphon, the senders, the clients (P12)."""
        if self._pair is not None:
            await self._pair.close("The pair has been closed.")
        if self._syphon is not None:
            await self._syphon.stop()
        closing = [Task("close sender", sender.close) for sender in self._senders]
        for task in closing:
            await task.result()
        await self._administration.close()
        await self._secondary.close()
        await self._sending.close()
        await self._primary.close()

    def _paired(self) -> Pair:
        if self._pair is None:
            raise PairingError("Call pair_namespace() first, or use the client in a with block.")
        return self._pair

    def _sender(
        self, name: str, make: Callable[[], ServiceBusSender], max_in_flight: int
    ) -> PairedSender:
        sender = PairedSender(self._paired(), self._order, name, make, max_in_flight)
        self._senders = [each for each in self._senders if not each.closed]
        self._senders.append(sender)
        return sender


async def pair_namespace(
    primary: ServiceBusClient | str,
    options: SendAvailabilityPairedNamespaceOptions,
    *,
    on_event: OnEvent | None = None,
    **client_options: Any,
) -> PairedServiceBusClient:
    """Pair in one call: when it returns, the backlog queues exist (P1)."""
    client = PairedServiceBusClient(primary, options, on_event=on_event, **client_options)
    try:
        await client.pair_namespace()
    except BaseException:
        await client.close()
        raise
    return client


def _client(given: Any, **client_options: Any) -> ServiceBusClient:
    if isinstance(given, str):
        return ServiceBusClient.from_connection_string(given, **client_options)
    client: ServiceBusClient = given
    return client


def _administration(
    options: SendAvailabilityPairedNamespaceOptions, **client_options: Any
) -> ServiceBusAdministrationClient:
    given = options.administration or options.secondary
    if isinstance(given, str):
        # Its own time-outs are minutes, its retries many, and there are several queues to ask for.
        seconds = options.operation_timeout.total_seconds()
        how = {"retry_total": 1, "connection_timeout": seconds, "read_timeout": seconds}
        return ServiceBusAdministrationClient.from_connection_string(
            given, **(how | client_options)
        )
    client: ServiceBusAdministrationClient = given
    return client
