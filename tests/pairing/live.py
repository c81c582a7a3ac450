"""Two live brokers for the pairing tests, and what tests do to them from outside.

Everything here speaks to the brokers as a user would: the SDK's synchronous clients.
"""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient

from tests.support.broker import KEY, KEY_NAME, Broker

_numbers = itertools.count(1)


class Side:
    """One namespace of a pair."""

    def __init__(self, directory: Path, form: str | None) -> None:
        self.broker = Broker(directory, form=form, options=("--admin-port", "0"))
        self.broker.start()
        # A restarted broker must be found again where it was.
        self.broker.options = ("--admin-port", str(self._admin_port))
        self.ca = str(directory / "data" / "tls" / "ca.pem")
        self.admin = ServiceBusAdministrationClient.from_connection_string(
            self.admin_string, connection_verify=self.ca
        )

    @property
    def _admin_port(self) -> int:
        port: int = self.broker.ready["ports"]["admin"]
        return port

    @property
    def admin_string(self) -> str:
        return (
            f"Endpoint=sb://localhost:{self._admin_port};"
            f"SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"
        )

    def connection_string(
        self, port: int | None = None, key: str = KEY, host: str = "localhost"
    ) -> str:
        """How to reach it, maybe through a proxy's port, with another key or by another name."""
        return (
            f"Endpoint=sb://{host}:{port or self.broker.amqp_port};"
            f"SharedAccessKeyName={KEY_NAME};SharedAccessKey={key};UseDevelopmentEmulator=true"
        )

    def administration(self, key: str = KEY) -> AsyncAdministrationClient:
        return AsyncAdministrationClient.from_connection_string(
            self.admin_string.replace(KEY, key), connection_verify=self.ca, retry_total=0
        )

    def administration_for_threads(self) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            self.admin_string, connection_verify=self.ca, retry_total=0
        )

    def new_queue(self, **settings: Any) -> str:
        name = f"q{next(_numbers)}"
        self.admin.create_queue(name, **settings)
        return name

    def set_status(self, queue: str, status: str) -> None:
        description = self.admin.get_queue(queue)
        description.status = EntityStatus(status)
        self.admin.update_queue(description)

    def count(self, queue: str) -> int:
        return self.admin.get_queue_runtime_properties(queue).active_message_count or 0

    def total(self, queue: str) -> int:
        return self.admin.get_queue_runtime_properties(queue).total_message_count or 0

    def client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.connection_string())

    def receive(
        self, queue: str, count: int, seconds: float = 15, **receiver: Any
    ) -> list[ServiceBusReceivedMessage]:
        """Take that many messages out of a queue, or as many as come in time."""
        found: list[ServiceBusReceivedMessage] = []
        give_up = time.monotonic() + seconds
        with self.client() as client, client.get_queue_receiver(queue, **receiver) as taker:
            while len(found) < count and time.monotonic() < give_up:
                for message in taker.receive_messages(count - len(found), max_wait_time=1):
                    taker.complete_message(message)
                    found.append(message)
        return found

    def dead_letters(self, queue: str, count: int) -> list[ServiceBusReceivedMessage]:
        return self.receive(queue, count, sub_queue=ServiceBusSubQueue.DEAD_LETTER)

    def close(self) -> None:
        self.admin.close()
        self.broker.__exit__()


def wait_until(condition: Callable[[], Any], seconds: float = 20) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.05)
