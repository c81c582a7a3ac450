"""Brings what the backlog holds to the primary: a pump per backlog queue (P11).

It runs where a pair says so (`enable_syphon`), or by itself. Where it runs it also keeps the
two clients together: when one of them is gone and the other does not follow within five
seconds, it closes that one too (P12).
"""

from collections.abc import Callable
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from twinbus.pairing import sdk
from twinbus.pairing.concurrency import Event, Task, bounded
from twinbus.pairing.events import PairFaulted
from twinbus.pairing.names import backlog_queue_name
from twinbus.pairing.observer import Observer, OnEvent
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.pair import now_ms
from twinbus.pairing.pump import Pump

#: How long one client may be open without the other (P12).
FAULT_AFTER_S = 5.0
_WATCH_S = 0.5


class Syphon:
    def __init__(
        self,
        primary: ServiceBusClient,
        secondary: ServiceBusClient,
        queues: list[str],
        options: SendAvailabilityPairedNamespaceOptions,
        observer: Observer,
        on_fault: Callable[[str], None] | None = None,
    ) -> None:
        self._clients = {"primary": primary, "secondary": secondary}
        self._observer = observer
        self._on_fault = on_fault
        self._stopping = Event()
        # A sender that never sends: the SDK closes it with its client, and that is how a
        # client shows that it was closed.
        self._canaries = {
            name: client.get_queue_sender(queues[0]) for name, client in self._clients.items()
        }
        self._pumps = [Pump(primary, secondary, name, options, observer) for name in queues]
        self._tasks = [Task(f"pump {pump.queue}", pump.run) for pump in self._pumps]
        self._tasks.append(Task("pair watch", self._watch))

    @classmethod
    def from_connection_strings(
        cls,
        primary: str,
        secondary: str,
        *,
        on_event: OnEvent | None = None,
        client_options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> "Syphon":
        """A syphon of its own, for the backlog queues that a pair of these two uses.

        `settings` are fields of `SendAvailabilityPairedNamespaceOptions`, `client_options`
        what the SDK's clients take.
        """
        options = SendAvailabilityPairedNamespaceOptions(secondary=secondary, **settings)
        how = options.attempt_settings() | (client_options or {})
        open_s = options.operation_timeout.total_seconds()
        clients = [
            bounded(ServiceBusClient.from_connection_string(each, **how), open_s)
            for each in (primary, secondary)
        ]
        host = clients[0].fully_qualified_namespace
        queues = [backlog_queue_name(host, index) for index in range(options.backlog_queue_count)]
        return cls(clients[0], clients[1], queues, options, Observer(on_event))

    async def __aenter__(self) -> "Syphon":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def counters(self) -> dict[str, int]:
        return self._observer.counters()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the syphon is told to stop, or for so long; tell whether it stopped."""
        return await self._stopping.wait(timeout_s)

    async def stop(self) -> None:
        """Finish the messages in hand and stop; the clients stay open."""
        self._stopping.set()
        for pump in self._pumps:
            pump.stop()
        for task in self._tasks:
            await task.result()
        for canary in self._canaries.values():
            await canary.close()

    async def close(self) -> None:
        """Stop, then close the clients: the backlog's first, so that nothing is in hand."""
        await self.stop()
        await self._clients["secondary"].close()
        await self._clients["primary"].close()

    async def _watch(self) -> None:
        gone_since_ms: int | None = None
        while not await self._stopping.wait(_WATCH_S):
            gone = [name for name, canary in self._canaries.items() if sdk.is_closed(canary)]
            if not gone:
                gone_since_ms = None
                continue
            gone_since_ms = gone_since_ms or now_ms()
            if len(gone) == 2 or now_ms() - gone_since_ms >= FAULT_AFTER_S * 1000:
                await self._fault(gone)
                return

    async def _fault(self, gone: list[str]) -> None:
        """One or both clients are gone: the pumps end, and what is open is closed."""
        self._stopping.set()
        for pump in self._pumps:
            pump.stop()
        for name in self._clients.keys() - gone:
            # Said before the close: a sender that is used while it is being closed opens
            # again, and the close never ends.
            if self._on_fault is not None:
                self._on_fault(f"The {gone[0]} client was closed; the pair has faulted.")
            await self._clients[name].close()
            self._observer.tell([PairFaulted(gone[0], name)])
