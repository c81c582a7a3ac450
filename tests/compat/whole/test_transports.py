"""TLS with the broker's own certificate, AMQP over WebSocket, HTTP beside HTTPS (WIRE 1)."""

from __future__ import annotations

import http.client
import ssl
from typing import Any

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType, aio
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient
from proton import ConnectionException, Message, SSLDomain
from proton.utils import BlockingConnection

from tests.compat.whole.credentials import token
from tests.compat.whole.kit import WAIT, Bus, bodies, drain, send
from tests.support.broker import KEY, KEY_NAME

CREDENTIALS = f"SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"


def over_tls(bus: Bus, **options: Any) -> dict[str, Any]:
    return {
        "conn_str": f"Endpoint=sb://localhost;{CREDENTIALS}",
        "custom_endpoint_address": f"localhost:{bus.broker.ready['ports']['amqps']}",
        "transport_type": TransportType.Amqp,
        "connection_verify": bus.ca,
        "retry_total": 0,
        **options,
    }


def test_amqps_with_the_blocking_sdk(bus: Bus) -> None:
    """S1 R4: verified against ca.pem."""
    queue = bus.queue()
    with ServiceBusClient.from_connection_string(**over_tls(bus)) as client:
        send(client, queue, "a", ServiceBusMessage(b"x" * 200_000))
        first, _ = drain(client, queue, 2)
        assert str(first) == "a"


async def test_amqps_with_the_asyncio_sdk(bus: Bus) -> None:
    """S1 R4."""
    queue = bus.queue()
    await exchange(aio.ServiceBusClient.from_connection_string(**over_tls(bus)), queue)


async def test_amqp_over_websocket(bus: Bus) -> None:
    """S1 R4: wss on the admin port, path `/$servicebus/websocket`."""
    queue = bus.queue()
    client = aio.ServiceBusClient.from_connection_string(
        f"Endpoint=sb://localhost;{CREDENTIALS}",
        custom_endpoint_address=f"localhost:{bus.broker.ready['ports']['admin']}",
        transport_type=TransportType.AmqpOverWebsocket,
        connection_verify=bus.ca,
        retry_total=0,
    )
    await exchange(client, queue)


async def exchange(client: aio.ServiceBusClient, queue: str) -> None:
    async with client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("a"))
            await sender.send_messages(ServiceBusMessage(b"x" * 200_000))
        async with client.get_queue_receiver(queue) as receiver:
            got: list[int] = []
            while len(got) < 2:
                messages = await receiver.receive_messages(2, max_wait_time=WAIT)
                assert messages
                for message in messages:
                    got.append(len(b"".join(message.body)))
                    await receiver.complete_message(message)
            assert got == [1, 200_000]


def test_amqps_with_proton(bus: Bus, client: ServiceBusClient) -> None:
    """S1: PLAIN inside TLS, the peer's name verified."""
    queue = bus.queue()
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(bus.ca)
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    connection = BlockingConnection(
        f"amqps://localhost:{bus.broker.ready['ports']['amqps']}",
        timeout=WAIT,
        ssl_domain=domain,
        user=KEY_NAME,
        password=KEY,
        allowed_mechs="PLAIN",
    )
    connection.create_sender(queue).send(Message(id="a", body="a"))
    connection.close()
    drain(client, queue, 1)


def test_a_client_that_does_not_trust_the_certificate(bus: Bus, client: ServiceBusClient) -> None:
    """It refuses the broker; the broker goes on."""
    queue = bus.queue()
    options = over_tls(bus)
    del options["connection_verify"]
    other = ServiceBusClient.from_connection_string(**options)
    with other, pytest.raises(ServiceBusError):
        send(other, queue, "a")
    text = bus.admin_connection_string
    admin: Any = ServiceBusAdministrationClient.from_connection_string(text, retry_total=0)
    with admin, pytest.raises(ServiceRequestError):
        admin.get_queue(queue)
    send(client, queue, "b")
    assert bodies(drain(client, queue, 1)) == ["b"]


def test_plain_amqp_on_the_tls_port(bus: Bus) -> None:
    """The connection ends."""
    with pytest.raises(ConnectionException):
        BlockingConnection(
            f"amqp://localhost:{bus.broker.ready['ports']['amqps']}",
            timeout=5,
            user=KEY_NAME,
            password=KEY,
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
        )


@pytest.mark.parametrize("secure", [True, False], ids=["https", "http"])
def test_the_admin_port_speaks_http_and_https(bus: Bus, secure: bool) -> None:
    """WIRE 1.1: told apart by the first byte."""
    port = bus.broker.ready["ports"]["admin"]
    connection = (
        http.client.HTTPSConnection(
            "localhost", port, context=ssl.create_default_context(cafile=bus.ca), timeout=WAIT
        )
        if secure
        else http.client.HTTPConnection("localhost", port, timeout=WAIT)
    )
    scheme = "https" if secure else "http"
    made = token(f"{scheme}://localhost:{port}", KEY_NAME, KEY, 60)
    path = "/$namespaceinfo?api-version=2021-05"
    connection.request("GET", path, headers={"Authorization": made})
    answer = connection.getresponse()
    assert answer.status == 200
    assert b"NamespaceInfo" in answer.read()
    connection.request("GET", path)
    assert connection.getresponse().status == 401
    connection.close()
