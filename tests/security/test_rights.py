"""Goal: a key opens what it is for, whatever a client writes around it.

Method: a live broker, queues with policies of their own, requests written by hand where no
official client would send them.
"""

from __future__ import annotations

import json
import socket
import struct
from base64 import b64encode

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.servicebus.management import ServiceBusAdministrationClient
from proton.utils import BlockingConnection

from tests.compat.whole.credentials import PRIMARY, policies, token
from tests.compat.whole.raw import Management
from tests.hostile.http_talk import Answer, read_answer, talk
from tests.security.conftest import Start
from tests.security.official import administration, authority, log_lines
from tests.support.broker import KEY, KEY_NAME, Broker
from twinbus.admin.connection import CARRIED_BYTES_MAX

ASK = "?api-version=2021-05"
CONFIG = f"""
max_unauthenticated = 20
[namespaces.sbemulatorns.policies.reader]
rights = ["Listen"]
primary_key = "{PRIMARY}"
"""
NOT_TEXT = f"SharedAccessSignature sr=\xff&sig=a&se=9999999999&skn={KEY_NAME}"


@pytest.fixture(scope="module")
def broker(start: Start) -> Broker:
    """`mine` and `topic` have keys of their own; `victim` is somebody else's."""
    broker = start(CONFIG)
    with administration(broker) as admin:
        admin.create_queue("mine", authorization_rules=policies())
        admin.create_topic("topic", authorization_rules=policies())
        admin.create_queue("victim", authorization_rules=policies(primary=b64encode(b"v").decode()))
    return broker


def ask(broker: Broker, line: str, *headers: str, body: bytes = b"") -> Answer:
    head = "\r\n".join([f"{line} HTTP/1.1", *headers, f"Content-Length: {len(body)}"])
    raw = head.encode("latin-1") + b"\r\n\r\n" + body
    return read_answer(talk(broker.ready["ports"]["admin"], raw), is_head=False)


def of_mine(resource: str = "https://localhost") -> str:
    return f"Authorization: {token(resource, 'manage', PRIMARY, 60)}"


def holder_of_mine(broker: Broker) -> ServiceBusAdministrationClient:
    """Administers with the key of `mine` (and of `topic`)."""
    text = (
        f"Endpoint=sb://localhost:{broker.ready['ports']['admin']};SharedAccessKeyName=manage;"
        f"SharedAccessKey={PRIMARY}"
    )
    return ServiceBusAdministrationClient.from_connection_string(
        text, connection_verify=authority(broker), retry_total=0
    )


# --- whose it is ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost/mine/Subscriptions", "localhost/mine?", "localhost:1/mine", "a@b", "", "[::1"],
)
def test_no_host_moves_a_key_to_another_entity_S2(broker: Broker, host: str) -> None:
    """A token is checked against host and path together: neither may hold the other."""
    narrow = token("https://localhost/mine", KEY_NAME, KEY, 60)
    for shown in (of_mine(), f"Authorization: {narrow}"):
        assert ask(broker, f"GET /mine{ASK}", "Host: localhost", shown).status == 200
        assert ask(broker, f"GET /victim{ASK}", "Host: localhost", shown).status == 401
        answer = ask(broker, f"GET /victim{ASK}", f"Host: {host}", shown)
        assert answer.status == 400
        assert b"TrackingId" in answer.body


def test_an_entitys_policy_does_not_take_the_place_of_the_namespaces_S2(broker: Broker) -> None:
    """Else whoever manages a queue could keep its owner out."""
    with administration(broker) as admin:
        admin.create_queue("taken", authorization_rules=policies())
        taken = admin.get_queue("taken")
        taken.authorization_rules[0].key_name = KEY_NAME
        admin.update_queue(taken)
        admin.get_queue("taken")
        admin.delete_queue("taken")


def test_a_topics_key_lists_its_subscriptions_S2(broker: Broker) -> None:
    with holder_of_mine(broker) as admin:
        admin.create_subscription("topic", "s")
        assert [s.name for s in admin.list_subscriptions("topic")] == ["s"]
        with pytest.raises(ClientAuthenticationError):
            list(admin.list_queues())


def test_what_is_scheduled_is_its_senders_to_purge_S2_E5(broker: Broker) -> None:
    """Whoever may only listen cancels nothing, by whatever name."""
    connection = BlockingConnection(
        f"amqp://127.0.0.1:{broker.amqp_port}",
        user="reader",
        password=PRIMARY,
        allowed_mechs="PLAIN",
        allow_insecure_mechs=True,
    )
    try:
        management = Management(connection, "mine")
        assert management.ask("twinbus:purge", {"state": "active"}).status == 200
        assert management.ask("twinbus:purge", {"state": "scheduled"}).status == 401
    finally:
        connection.close()


# --- forwarding -----------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["forward_to", "forward_dead_lettered_messages_to"])
def test_forwarding_takes_rights_at_both_ends_E9_D7(broker: Broker, setting: str) -> None:
    """It sends to its target: whoever could set it freely could send anywhere."""
    with holder_of_mine(broker) as holder, administration(broker) as root:
        mine = holder.get_queue("mine")
        with pytest.raises(ClientAuthenticationError, match="takes Manage"):
            holder.update_queue(mine, **{setting: "victim"})
        with pytest.raises(ClientAuthenticationError, match="takes Manage"):
            holder.create_subscription("topic", "f", **{setting: "victim"})
        assert getattr(holder.get_queue("mine"), setting) is None
        root.update_queue(mine, **{setting: "victim"})
        # What is there already may stay when something else is changed.
        mine = holder.get_queue("mine")
        holder.update_queue(mine, max_delivery_count=7)
        assert getattr(holder.get_queue("mine"), setting).endswith("victim")
        root.update_queue(mine, **{setting: None})
        # To another entity with the same key the client shows it, as it does for Azure.
        holder.update_queue(holder.get_queue("mine"), **{setting: "topic"})
        root.update_queue(holder.get_queue("mine"), **{setting: None})


# --- pages of other sites -------------------------------------------------------------


def test_a_page_whose_name_leads_here_reads_no_metrics(broker: Broker) -> None:
    assert ask(broker, "GET /metrics", "Host: localhost").status == 200
    assert ask(broker, "GET /metrics", "Host: 127.0.0.1:5300").status == 200
    assert ask(broker, "GET /metrics", "Host: evil.example").status == 401


UPGRADE = (
    "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: " + b64encode(b"x" * 16).decode(), "Sec-WebSocket-Protocol: AMQPWSB10",
)  # fmt: skip


@pytest.mark.parametrize("line", ["GET /$servicebus/websocket", f"GET /$namespaceinfo{ASK}"])
def test_in_development_mode_only_pages_of_this_machine_get_in(start: Start, line: str) -> None:
    """Nobody shows a key there, and browsers let any page open a WebSocket."""
    config = '[namespaces.sbemulatorns]\nhosts = ["bus.test"]\n'
    broker = start(config, more_options=("--development",))
    welcome = 101 if "websocket" in line else 200
    for host in ("localhost", "x.localhost:5300", "127.0.0.1", "[::1]:5300", "bus.test"):
        assert ask(broker, line, f"Host: {host}", *UPGRADE).status == welcome
        origin = f"Origin: http://{host}"
        assert ask(broker, line, "Host: localhost", origin, *UPGRADE).status == welcome
    for origin in ("https://evil.example", "null", "http://localhost.evil.example", "http://[x"):
        answer = ask(broker, line, "Host: localhost", f"Origin: {origin}", *UPGRADE)
        assert answer.status == 403
        assert b"localhost" in answer.body
    assert ask(broker, line, "Host: evil.example", *UPGRADE).status == 403


# --- strangers ------------------------------------------------------------------------


def test_a_stranger_cannot_leave_a_large_message_unfinished(broker: Broker) -> None:
    """What waits for the rest of its message counts as well."""
    request = "\r\n".join(["GET /$servicebus/websocket HTTP/1.1", "Host: localhost", *UPGRADE])
    with socket.create_connection(("127.0.0.1", broker.ready["ports"]["admin"]), 20) as stranger:
        stranger.sendall(request.encode() + b"\r\n\r\n")
        assert stranger.recv(4096).startswith(b"HTTP/1.1 101")
        # Binary, masked, nearly a megabyte long.
        stranger.sendall(struct.pack(">BBQ4s", 0x82, 0xFF, 1_000_000, b"mask"))
        stranger.sendall(bytes(CARRIED_BYTES_MAX - 1024))
        stranger.settimeout(0.5)
        with pytest.raises(TimeoutError):
            stranger.recv(1)
        stranger.settimeout(20)
        stranger.sendall(bytes(1024))
        assert stranger.recv(1) == b""
    assert log_lines(broker, "sent too much")


@pytest.mark.parametrize(
    ("line", "headers", "body"),
    [
        (f"GET /mine{ASK}", [f"Authorization: {NOT_TEXT}"], {}),
        ("GET /metrics", ["X-Forwarded-For: 10.0.0.1", "Authorization: Basic \xff\xfe"], {}),
        (
            "POST /console/api/sign-in",
            ["Content-Type: application/json"],
            {"policy": KEY_NAME, "key": "\ud800"},
        ),
    ],
    ids=["a token", "a password", "a key"],
)
def test_bytes_that_are_no_text_are_a_wrong_key_S2(
    broker: Broker, line: str, headers: list[str], body: dict[str, str]
) -> None:
    """And no fault of the broker's."""
    answer = ask(broker, line, "Host: localhost", *headers, body=json.dumps(body).encode())
    assert answer.status == 401
    assert "Traceback" not in broker.log


def test_a_name_that_belongs_to_another_entity_cannot_be_taken_E1(broker: Broker) -> None:
    with administration(broker) as admin:
        for name in ("topic/$management", "topic/Subscriptions"):
            with pytest.raises(HttpResponseError):
                admin.create_queue(name)
