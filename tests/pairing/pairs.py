"""Pairs for tests: short intervals, and the events kept in order."""

import asyncio
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage

from tests.pairing.live import Side
from tests.pairing.proxy import FaultyProxy
from tests.pairing.scripted import ScriptedNamespace
from twinbus.pairing import PairedServiceBusClient, SendAvailabilityPairedNamespaceOptions
from twinbus.pairing import sync as threads
from twinbus.pairing.events import Event
from twinbus.pairing.names import backlog_queue_name

SHORT: dict[str, Any] = {
    "failover_interval": timedelta(0),
    "ping_primary_interval": timedelta(seconds=1),
    "operation_timeout": timedelta(seconds=15),
    "syphon_retry_interval": timedelta(seconds=0.5),
    "backlog_queue_count": 2,
}


class ScriptedWorld:
    """Two namespaces that answer as told."""

    def __enter__(self) -> "ScriptedWorld":
        self.primary = ScriptedNamespace()
        self.secondary = ScriptedNamespace()
        return self

    def __exit__(self, *_: object) -> None:
        self.primary.close()
        self.secondary.close()


class EveryQueueExists:
    """Administration of a scripted namespace, which has whatever queue it is asked for."""

    async def get_queue(self, name: str) -> None:
        return None

    async def close(self) -> None:
        return None


def scripted_pair(
    primary: ScriptedNamespace, secondary: ScriptedNamespace, **settings: Any
) -> tuple[PairedServiceBusClient, list[Event]]:
    events: list[Event] = []
    options = SendAvailabilityPairedNamespaceOptions(
        secondary=secondary.connection_string,
        administration=EveryQueueExists(),
        **(SHORT | settings),
    )
    client = PairedServiceBusClient(primary.connection_string, options, on_event=events.append)
    return client, events


class LiveWorld:
    """Two live brokers, and a name for the primary that no other test uses.

    Backlog queues are called after the primary's host, so a name of one's own means backlog
    queues of one's own. The names are all 127.0.0.1, written as a number with more or
    fewer zeros.
    """

    _zeros = itertools.count(1)

    def __init__(self, near: Side, far: Side) -> None:
        self.near = near
        self.far = far
        self.host = f"0x{'0' * next(self._zeros)}7f000001"

    def __enter__(self) -> "LiveWorld":
        self.proxy = FaultyProxy(self.near.broker.amqp_port)
        self.queue = self.near.new_queue()
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.close()

    def backlog(self, index: int) -> str:
        return backlog_queue_name(self.host, index)

    @property
    def primary(self) -> str:
        """The connection string of the primary, through the proxy."""
        return self.near.connection_string(self.proxy.port, host=self.host)

    def backlog_count(self, queues: int = 2) -> int:
        return sum(self.far.total(self.backlog(index)) for index in range(queues))

    def pair(
        self, primary: Any = None, **settings: Any
    ) -> tuple[PairedServiceBusClient, list[Event]]:
        """A pair of the two, and the events as they will come."""
        events: list[Event] = []
        options = self.options(self.far.administration(), **settings)
        client = PairedServiceBusClient(primary or self.primary, options, on_event=events.append)
        return client, events

    def threads_pair(self, **settings: Any) -> tuple[threads.PairedServiceBusClient, list[Event]]:
        """The same for the synchronous client."""
        events: list[Event] = []
        options = self.options(self.far.administration_for_threads(), **settings)
        return threads.PairedServiceBusClient(self.primary, options, on_event=events.append), events

    def options(self, administration: Any, **settings: Any) -> Any:
        return SendAvailabilityPairedNamespaceOptions(
            administration=administration,
            **(SHORT | {"secondary": self.far.connection_string()} | settings),
        )

    async def receive(
        self, queue: str, count: int, **receiver: Any
    ) -> list[ServiceBusReceivedMessage]:
        return await asyncio.to_thread(self.near.receive, queue, count, **receiver)


async def until(condition: Callable[[], Any], seconds: float = 15) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def seen(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]
