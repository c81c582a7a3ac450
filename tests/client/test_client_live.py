"""The own client against a live broker, and against peers that misbehave."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.client.peer import mute, served
from tests.support.broker import KEY, KEY_NAME, Broker
from twinbus.amqp.handler import Handler
from twinbus.amqp.link import Link
from twinbus.amqp.properties import Properties, encode_properties
from twinbus.amqp.types import Int
from twinbus.client import Client, ConnectionLost, Refused, Sender, SendRefused
from twinbus.client.client import CA_VARIABLE
from twinbus.client.tokens import Tokens
from twinbus.spark.messages import to_batch


def message(message_id: str, body: bytes = b"x", session_id: str | None = None) -> bytes:
    properties = Properties()
    properties.message_id, properties.group_id = message_id, session_id
    return encode_properties(properties) + b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body


def deliver(sender: Sender, messages: list[bytes]) -> None:
    sender.send(messages)
    sender.flush()


def peek(client: Client, queue: str) -> list[tuple[str, int]]:
    """Ids and body lengths of all messages, in order."""
    found: list[tuple[str, int]] = []
    low = 1
    while True:
        body = {"from-sequence-number": low, "message-count": Int(250)}
        page = client.request(queue, "peek-message", body)
        if page.status == 204:
            return found
        batch = to_batch([entry["message"] for entry in page.body["messages"]])
        lengths = [len(body) for body in batch["body"].to_pylist()]
        found += zip(batch["message_id"].to_pylist(), lengths, strict=True)
        low = batch["sequence_number"][-1].as_py() + 1


def test_sends_in_order_and_reads_back(broker: Broker, queue: str) -> None:
    """Through a window much smaller than the whole."""
    wanted = [(f"m-{i:05}", i % 700) for i in range(3000)]
    with Client.connect(broker.connection_string) as client:
        sender = client.sender(queue, window_messages=500, window_bytes=100_000)
        for at in range(0, 3000, 77):
            sender.send([message(name, b"y" * size) for name, size in wanted[at : at + 77]])
        sender.flush()
        assert sender.accepted == sender.given == 3000
        assert sender.unacknowledged() == []
        assert peek(client, queue) == wanted


def test_messages_of_many_frames_both_ways(broker: Broker, queue: str) -> None:
    sizes = [200_000, 10, 262_000, 65_536, 0]
    with Client.connect(broker.connection_string) as client:
        sender = client.sender(queue)
        deliver(sender, [message(f"m-{i}", b"z" * size) for i, size in enumerate(sizes)])
        assert [size for _, size in peek(client, queue)] == sizes


def test_a_message_too_large_is_named_and_not_sent(broker: Broker, queue: str) -> None:
    with Client.connect(broker.connection_string) as client:
        sender = client.sender(queue)
        messages = [message("a"), message("b", b"z" * 300_000), message("c")]
        with pytest.raises(SendRefused, match="262144") as refusal:
            deliver(sender, messages)
        assert refusal.value.position == 1
        assert not refusal.value.retryable


def test_one_refused_message_of_a_pipeline_is_named(broker: Broker, session_queue: str) -> None:
    """Many batches are under way when the broker refuses the one with the message in it."""
    messages = [message(f"m-{i}", b"x" * 500, "s") for i in range(5000)]
    messages[3210] = message("m-3210", b"x" * 500)
    with Client.connect(broker.connection_string) as client:
        sender = client.sender(session_queue)
        with pytest.raises(SendRefused, match="needs a session id") as refusal:
            deliver(sender, messages)
        assert (refusal.value.position, refusal.value.retryable) == (3210, False)
        assert refusal.value.message == messages[3210]
        found = dict(peek(client, session_queue))
        assert "m-3209" in found
        assert "m-3210" not in found


def test_a_wrong_key_is_refused(broker: Broker, queue: str) -> None:
    wrong = broker.connection_string.replace(KEY, "d3Jvbmc=")
    with Client.connect(wrong) as client:
        with pytest.raises(Refused, match="signature") as refusal:
            client.sender(queue)
        assert refusal.value.condition == "amqp:unauthorized-access"
        with pytest.raises(Refused, match="signature"):
            client.request(queue, "peek-message", {})


def test_a_missing_entity_and_an_unknown_operation_are_refused(broker: Broker, queue: str) -> None:
    with Client.connect(broker.connection_string) as client:
        with pytest.raises(Refused, match="could not be found") as missing:
            client.sender("no-such-queue")
        assert missing.value.condition == "amqp:not-found"
        with pytest.raises(Refused, match="not known here") as unknown:
            client.request(queue, "twinbus:dance", {})
        assert unknown.value.condition == "amqp:not-implemented"
        with pytest.raises(Refused, match="Nothing can be sent"):
            client.sender(f"{queue}/$DeadLetterQueue")
        assert peek(client, queue) == []


def test_a_broker_killed_in_the_middle_loses_the_connection(own_broker: Broker) -> None:
    """What was not acknowledged is known, and sent again by a new client; nothing is lost."""
    messages = [message(f"m-{i:05}", b"x" * 900) for i in range(20_000)]
    with Client.connect(own_broker.connection_string) as client:
        sender = client.sender("q")
        sender.send(messages[:2000])
        own_broker.kill()
        with pytest.raises(ConnectionLost) as lost:
            deliver(sender, messages[2000:])
        assert lost.value.retryable
        with pytest.raises(ConnectionLost):
            client.request("q", "peek-message", {})
        rest = sender.unacknowledged()
        again = [entry for _, entry in rest] + messages[sender.given :]
        assert sender.accepted + len(again) == len(messages)
    own_broker.start()
    with Client.connect(own_broker.connection_string) as client:
        sender = client.sender("q")
        deliver(sender, again)
        assert sorted(name for name, _ in peek(client, "q")) == [f"m-{i:05}" for i in range(20_000)]


def test_nobody_there_is_a_lost_connection(own_broker: Broker) -> None:
    own_broker.kill()
    with pytest.raises(ConnectionLost, match="cannot reach localhost"):
        Client.connect(own_broker.connection_string)


def test_a_peer_that_says_nothing_is_given_up() -> None:
    with mute() as text, pytest.raises(ConnectionLost, match="did not open the connection in time"):
        Client.connect(text, timeout_s=0.2)


class Vague(Handler):
    """Opens links and never answers on them."""

    def on_attach(self, link: Link) -> None:
        link.accept()
        if not link.is_sender:
            link.grant(10)


def test_an_answer_that_does_not_come_is_given_up() -> None:
    with served(Vague()) as text, Client.connect(text, timeout_s=0.3) as client:
        with pytest.raises(ConnectionLost, match=r"did not answer \$cbs in time"):
            client.request("q", "peek-message", {})
        with pytest.raises(ConnectionLost):
            client.sender("q")


def test_an_idle_client_keeps_the_line_alive() -> None:
    """The peer ends connections on which it hears nothing for 1.5 s; nobody calls for 2.5 s."""
    with served(Vague(), idle_timeout_ms=1500) as text, Client.connect(text) as client:
        time.sleep(2.5)
        assert client._wire.connection.failure is None


def test_tokens_are_renewed_while_links_are_open(
    broker: Broker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each token were old at once: every call shows another, and the sender goes on."""
    shown: list[str] = []
    monkeypatch.setattr(Tokens, "is_due", lambda *_: True)
    monkeypatch.setattr(Tokens, "shown", lambda _, audience, now_s: shown.append(audience))
    with Client.connect(broker.connection_string) as client:
        sender = client.sender(queue)
        for i in range(3):
            assert len(peek(client, queue)) == i
            deliver(sender, [message(f"m-{i}")])
    assert len(shown) > 5
    assert set(shown) == {f"sb://localhost/{queue}"}


def tls_string(broker: Broker) -> str:
    port = broker.ready["ports"]["amqps"]
    return f"Endpoint=sb://localhost:{port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"


def authority(broker: Broker) -> Path:
    return broker.directory / "data" / "tls" / "ca.pem"


def test_tls_with_the_brokers_authority(
    broker: Broker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client.connect(tls_string(broker), ca_file=str(authority(broker))) as client:
        sender = client.sender(queue)
        deliver(sender, [message("a", b"x" * 250_000), message("b")])
    monkeypatch.setenv(CA_VARIABLE, str(authority(broker)))
    with Client.connect(tls_string(broker)) as client:
        assert peek(client, queue) == [("a", 250_000), ("b", 1)]


def test_tls_is_verified(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CA_VARIABLE, raising=False)
    with pytest.raises(Refused, match=r"not trusted.*ca\.pem") as refusal:
        Client.connect(tls_string(broker))
    assert not refusal.value.retryable
    with pytest.raises(ValueError, match="there is no certificate file"):
        Client.connect(tls_string(broker), ca_file="/nowhere/ca.pem")
    with pytest.raises(ConnectionLost, match="no TLS with"):
        Client.connect(tls_string(broker).replace(
            str(broker.ready["ports"]["amqps"]), str(broker.amqp_port)
        ))  # fmt: skip
