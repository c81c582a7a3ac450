"""One process of senders for the kill test: sends under its own ids until told to stop.

Started as a program with its orders in JSON on standard input's first line; ends when standard
input ends. Says on standard output that it has paired, and then, in its answer, every id whose
send returned success.
"""

import asyncio
import json
import sys
import time
from datetime import timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from twinbus.pairing import PairedServiceBusClient, SendAvailabilityPairedNamespaceOptions


class Worker:
    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self.stop = asyncio.Event()
        self.sent: list[str] = []
        self.failures = 0
        self.longest_s = 0.0

    async def run(self) -> None:
        orders = self.orders
        options = SendAvailabilityPairedNamespaceOptions(
            secondary=orders["secondary"],
            administration=ServiceBusAdministrationClient.from_connection_string(
                orders["administration"], connection_verify=orders["ca"]
            ),
            backlog_queue_count=orders["backlog_queues"],
            failover_interval=timedelta(seconds=orders["failover_s"]),
            ping_primary_interval=timedelta(seconds=1),
            operation_timeout=timedelta(seconds=5),
        )
        asyncio.get_running_loop().add_reader(sys.stdin, self._read)
        async with PairedServiceBusClient(orders["primary"], options) as client:
            print("paired", flush=True)
            await asyncio.gather(
                *(self._send(client, f"{orders['name']}-{n}") for n in range(orders["senders"]))
            )

    def _read(self) -> None:
        if not sys.stdin.readline():
            self.stop.set()

    async def _send(self, client: PairedServiceBusClient, name: str) -> None:
        number = 0
        async with client.get_queue_sender(self.orders["queue"]) as sender:
            while not self.stop.is_set():
                message_id = f"{name}-{number}"
                began = time.monotonic()
                try:
                    await sender.send_messages(ServiceBusMessage(b"x", message_id=message_id))
                except Exception:
                    # As an application does: the same message again, a little later.
                    self.failures += 1
                    await asyncio.sleep(0.2)
                    continue
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.sent.append(message_id)
                number += 1
                await asyncio.sleep(self.orders["pause_s"])


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    answer: dict[str, Any] = {}

    async def work() -> None:
        worker = Worker(orders)
        await worker.run()
        answer.update(sent=worker.sent, failures=worker.failures, longest_s=worker.longest_s)

    asyncio.run(work())
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
