"""The official SDK against a broker, over each of its ports."""

from __future__ import annotations

from pathlib import Path

from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.support.broker import KEY, KEY_NAME, Broker

WAYS = ("amqp", "amqps", "websocket")


def authority(broker: Broker) -> str:
    return str(broker.directory / "data" / "tls" / "ca.pem")


def secure_string(port: int, key: str = KEY) -> str:
    return f"Endpoint=sb://localhost:{port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={key}"


def client_over(broker: Broker, way: str, key: str = KEY) -> ServiceBusClient:
    ports = broker.ready["ports"]
    if way == "amqp":
        text = broker.connection_string.replace(KEY, key)
        return ServiceBusClient.from_connection_string(text, retry_total=0, socket_timeout=10)
    if way == "amqps":
        return ServiceBusClient.from_connection_string(
            secure_string(ports["amqps"], key),
            retry_total=0,
            transport_type=TransportType.Amqp,
            connection_verify=authority(broker),
            custom_endpoint_address=f"sb://localhost:{ports['amqps']}",
        )
    return ServiceBusClient.from_connection_string(
        f"Endpoint=sb://localhost/;SharedAccessKeyName={KEY_NAME};SharedAccessKey={key}",
        retry_total=0,
        transport_type=TransportType.AmqpOverWebsocket,
        connection_verify=authority(broker),
        custom_endpoint_address=f"https://localhost:{ports['admin']}",
    )


def administration(broker: Broker, key: str = KEY) -> ServiceBusAdministrationClient:
    port = broker.ready["ports"]["admin"]
    return ServiceBusAdministrationClient.from_connection_string(
        secure_string(port, key), connection_verify=authority(broker), retry_total=0
    )


async def round_trip(client: ServiceBusClient, queue: str, body: bytes = b"hello") -> None:
    """A message goes in and comes out."""
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
    async with sender, receiver:
        await sender.send_messages(ServiceBusMessage(body), timeout=10)
        (message,) = await receiver.receive_messages(max_wait_time=10)
        assert b"".join(message.body) == body
        await receiver.complete_message(message)


def log_lines(broker: Broker, words: str) -> list[str]:
    return [line for line in broker.log.splitlines() if words in line]


def data_directory(broker: Broker) -> Path:
    return broker.directory / "data"
