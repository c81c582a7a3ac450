"""AMQP over WebSocket on a live broker's admin port, with the official asynchronous client."""

from pathlib import Path

from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient

from tests.support.broker import KEY, KEY_NAME, Broker


async def test_S1_R4_messages_go_and_come_over_a_secure_websocket(tmp_path: Path) -> None:
    sent = [bytes([number]) * 1000 for number in range(20)] + [b"large" * 40_000]
    with Broker(tmp_path, queues={"q": {}}, options=("--admin-port", "0")) as broker:
        port = broker.ready["ports"]["admin"]
        received: list[bytes] = []
        async with ServiceBusClient.from_connection_string(
            f"Endpoint=sb://localhost/;SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}",
            transport_type=TransportType.AmqpOverWebsocket,
            custom_endpoint_address=f"https://localhost:{port}",
            connection_verify=str(tmp_path / "data" / "tls" / "ca.pem"),
            retry_total=0,
        ) as client:
            async with client.get_queue_sender("q") as sender:
                for body in sent:
                    await sender.send_messages(ServiceBusMessage(body))
            async with client.get_queue_receiver("q", max_wait_time=5) as receiver:
                while len(received) < len(sent):
                    for message in await receiver.receive_messages(10, max_wait_time=5):
                        received.append(b"".join(message.body))
                        await receiver.complete_message(message)
                assert await receiver.peek_messages() == []
    assert received == sent
