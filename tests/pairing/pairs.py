"""Pairs for tests: short intervals, and the events kept in order."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.pairing.live import Side
from tests.pairing.scripted import ScriptedNamespace
from tests.support.broker import KEY

from twinbus.pairing import PairedServiceBusClient, SendAvailabilityPairedNamespaceOptions
from twinbus.pairing import sync as threads
from twinbus.pairing.events import Event

SHORT: dict[str, Any] = {
    "failover_interval": timedelta(0),
    "ping_primary_interval": timedelta(seconds=1),
    "operation_timeout": timedelta(seconds=5),
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


def live_pair(
    near: Side, far: Side, port: int | None = None, key: str = KEY, **settings: Any
) -> tuple[PairedServiceBusClient, list[Event]]:
    """A pair of the two brokers, the primary maybe seen through a proxy's port."""
    events: list[Event] = []
    options = SendAvailabilityPairedNamespaceOptions(
        secondary=far.connection_string(),
        administration=far.administration(),
        **(SHORT | settings),
    )
    primary = near.connection_string(port, key)
    return PairedServiceBusClient(primary, options, on_event=events.append), events


def live_threads_pair(
    near: Side, far: Side, port: int | None = None, **settings: Any
) -> tuple[threads.PairedServiceBusClient, list[Event]]:
    """The same for the synchronous client."""
    events: list[Event] = []
    options = SendAvailabilityPairedNamespaceOptions(
        secondary=far.connection_string(),
        administration=far.administration_for_threads(),
        **(SHORT | settings),
    )
    client = threads.PairedServiceBusClient(
        near.connection_string(port), options, on_event=events.append
    )
    return client, events


async def until(condition: Callable[[], Any], seconds: float = 15) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def seen(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]
