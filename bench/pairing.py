"""Paired namespaces: what a paired sender costs while healthy, and what overlapping brings.

Two live brokers enter; verdicts leave: the paired sender against the SDK's own in interleaved
sends (P3), and 100 sends over a slow line, awaited one by one and through the bounded window
(S3, S4).
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bench.report import Budget
from tests.pairing.live import Side
from tests.pairing.proxy import FaultyProxy
from twinbus.pairing import (
    PairedServiceBusClient,
    SendAvailabilityPairedNamespaceOptions,
    SendWindow,
)

QUEUE = "bench"
SENDS = 3_000
OVERHEAD_MAX = 1.03
# Each way; with the store's time a send over this line takes a little more than 80 ms.
LATENCY_S = 0.040
SLOW_SENDS = 100
AWAITED_SECONDS_MIN = 8.0
OVERLAPPED_SECONDS_MAX = 1.3


def run() -> list[Budget]:
    with tempfile.TemporaryDirectory(prefix="bench-pairing-") as directory:
        near, far = Side(Path(directory) / "near", None), Side(Path(directory) / "far", None)
        near.admin.create_queue(QUEUE)
        try:
            return asyncio.run(_measure(near, far))
        finally:
            near.close()
            far.close()


async def _measure(near: Side, far: Side) -> list[Budget]:
    async with _paired(near.connection_string(), far) as client:
        overhead = await _overhead(near, client)
    proxy = FaultyProxy(near.broker.amqp_port)
    try:
        async with _paired(near.connection_string(proxy.port), far) as client:
            awaited, overlapped = await _slow_line(client, proxy)
    finally:
        proxy.close()
    lasted = awaited >= AWAITED_SECONDS_MIN
    soon = overlapped <= OVERLAPPED_SECONDS_MAX
    return [
        Budget(
            "paired sender's CPU over the SDK's own, healthy",
            overhead,
            OVERHEAD_MAX,
            overhead <= OVERHEAD_MAX,
        ),
        Budget("100 awaited sends over 80 ms, seconds", awaited, AWAITED_SECONDS_MIN, lasted),
        Budget("100 sends in the window, seconds", overlapped, OVERLAPPED_SECONDS_MAX, soon),
    ]


@asynccontextmanager
async def _paired(primary: str, far: Side) -> AsyncIterator[PairedServiceBusClient]:
    options = SendAvailabilityPairedNamespaceOptions(
        secondary=far.connection_string(),
        administration=far.administration(),
        backlog_queue_count=1,
    )
    async with PairedServiceBusClient(primary, options) as client:
        yield client


async def _overhead(near: Side, client: PairedServiceBusClient) -> float:
    """Median CPU of a paired send over that of a plain one, in shuffled order."""
    message = ServiceBusMessage(b"x" * 1000)
    text = near.connection_string()
    async with (
        ServiceBusClient.from_connection_string(text) as plain,
        plain.get_queue_sender(QUEUE) as own,
        client.get_queue_sender(QUEUE) as paired,
    ):
        sends: dict[str, Callable[[ServiceBusMessage], Awaitable[None]]] = {
            "own": own.send_messages,
            "paired": paired.send_messages,
        }
        took: dict[str, list[int]] = {name: [] for name in sends}
        names = list(sends)
        for _ in range(SENDS):
            random.shuffle(names)
            for name in names:
                began = time.thread_time_ns()
                await sends[name](message)
                took[name].append(time.thread_time_ns() - began)
    return statistics.median(took["paired"]) / statistics.median(took["own"])


async def _slow_line(client: PairedServiceBusClient, proxy: FaultyProxy) -> tuple[float, float]:
    messages = [ServiceBusMessage(str(number)) for number in range(SLOW_SENDS)]
    async with client.get_queue_sender(QUEUE) as sender:
        # The connections of all ten slots are made before the line gets slow.
        await asyncio.gather(*(sender.send_messages(message) for message in messages[:10]))
        proxy.slow(LATENCY_S)
        began = time.perf_counter()
        for message in messages:
            await sender.send_messages(message)
        awaited = time.perf_counter() - began
        began = time.perf_counter()
        async with SendWindow(sender) as window:
            for message in messages:
                await window.send(message)
        overlapped = time.perf_counter() - began
        proxy.slow(0)
    return awaited, overlapped
