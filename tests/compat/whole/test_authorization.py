"""Who may do what: keys, tokens, claims, policies of entities, PLAIN (WIRE section 2, S2)."""

from __future__ import annotations

import base64
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import ServiceBusAdministrationClient
from proton import ConnectionException, Message
from proton.utils import BlockingConnection, LinkDetached, SendException

from tests.compat.whole.credentials import PRIMARY, RIGHTS, SECONDARY, policies, token
from tests.compat.whole.kit import EMPTY_WAIT, WAIT, Bus, bodies, drain, receiver_of, send
from tests.compat.whole.raw import Management
from tests.support.broker import KEY, KEY_NAME, Broker


def with_token(bus: Bus, made: str) -> str:
    endpoint = f"Endpoint=sb://localhost:{bus.broker.amqp_port};UseDevelopmentEmulator=true"
    return f"{endpoint};SharedAccessSignature={made}"


def send_one(bus: Bus, connection_string: str, entity: str) -> None:
    with bus.client(connection_string) as client:
        send(client, entity, "a")


def receive_none(bus: Bus, connection_string: str, path: str) -> None:
    with bus.client(connection_string) as client, receiver_of(client, path) as receiver:
        receiver.receive_messages(max_wait_time=EMPTY_WAIT)


# --- tokens ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"), [(KEY_NAME, PRIMARY), ("NoSuchKey", KEY)], ids=["bad key", "unknown name"]
)
def test_a_bad_key_is_refused(bus: Bus, name: str, key: str) -> None:
    """S2: 401 from `$cbs`; nobody else is disturbed."""
    queue = bus.queue()
    with pytest.raises(ServiceBusAuthenticationError):
        send_one(bus, bus.connection_string_of(name, key), queue)
    send_one(bus, bus.broker.connection_string, queue)


@pytest.mark.parametrize("encode", [True, False], ids=["encoded", "plain"])
def test_a_token_holds_for_its_resource_and_below(bus: Bus, encode: bool) -> None:
    """WIRE 2: for one queue, in any spelling; not for another; not once it has expired."""
    queue, other = bus.queue(), bus.queue()
    resource = f"sb://localhost/{queue}"

    def text(expires_in_s: float) -> str:
        return with_token(bus, token(resource, KEY_NAME, KEY, expires_in_s, encode=encode))

    send_one(bus, text(60), queue)
    receive_none(bus, text(60), queue)
    with pytest.raises(ServiceBusAuthenticationError):
        send_one(bus, text(60), other)
    with pytest.raises(ServiceBusAuthenticationError):
        send_one(bus, text(-5), queue)


def test_links_end_when_their_token_does(bus: Bus) -> None:
    """WIRE 2: a token of 3 seconds that is not renewed; then nothing is sent with it."""
    queue = bus.queue()
    made = token(f"sb://localhost/{queue}", KEY_NAME, KEY, 4)
    with bus.client(with_token(bus, made)) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("in time"))
        time.sleep(6)
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("too late"))
    with bus.client() as client:
        assert bodies(drain(client, queue, 1)) == ["in time"]


# --- policies of entities -------------------------------------------------------------


@pytest.mark.parametrize("key", [PRIMARY, SECONDARY], ids=["primary", "secondary"])
@pytest.mark.parametrize("right", sorted(RIGHTS))
def test_a_queues_policy_allows_what_it_says(bus: Bus, right: str, key: str) -> None:
    """S2: send, listen or both with manage; the link is refused for what it lacks."""
    queue, other = bus.queue(authorization_rules=policies()), bus.queue()
    text = bus.connection_string_of(right, key)
    if right == "listen":
        with pytest.raises(ServiceBusAuthorizationError):
            send_one(bus, text, queue)
    else:
        send_one(bus, text, queue)
    if right == "send":
        with pytest.raises(ServiceBusAuthorizationError):
            receive_none(bus, text, queue)
    else:
        receive_none(bus, text, queue)
    with pytest.raises(ServiceBusAuthenticationError):
        send_one(bus, text, other)


def test_a_topics_policy_reaches_its_subscriptions(bus: Bus) -> None:
    """E8: listen on the subscription, send on the topic."""
    topic = bus.topic(authorization_rules=policies())
    path = f"{topic}/{bus.subscription(topic)}"
    send_one(bus, bus.connection_string_of("send", PRIMARY), topic)
    receive_none(bus, bus.connection_string_of("listen", PRIMARY), path)
    with pytest.raises(ServiceBusAuthorizationError):
        receive_none(bus, bus.connection_string_of("send", PRIMARY), path)


def test_management_asks_for_the_right_of_the_operation(bus: Bus) -> None:
    """S2: scheduling needs Send, peeking needs Listen."""
    queue = bus.queue(authorization_rules=policies())
    due = datetime.now(UTC) + timedelta(minutes=1)
    with bus.client(bus.connection_string_of("send", PRIMARY)) as client:
        sender = client.get_queue_sender(queue)
        receiver = receiver_of(client, queue)
        with sender:
            (number,) = sender.schedule_messages(ServiceBusMessage("a"), due)
            sender.cancel_scheduled_messages(number)
        with pytest.raises(ServiceBusAuthorizationError), receiver:
            receiver.peek_messages(1)
    with bus.client(bus.connection_string_of("listen", PRIMARY)) as client:
        sender = client.get_queue_sender(queue)
        receiver = receiver_of(client, queue)
        with receiver:
            assert receiver.peek_messages(1) == []
        with pytest.raises(ServiceBusAuthorizationError), sender:
            sender.schedule_messages(ServiceBusMessage("a"), due)


def test_a_new_key_takes_the_place_of_the_old_one(bus: Bus) -> None:
    """S2: rotation through the admin API."""
    queue = bus.queue(authorization_rules=policies())
    fresh = base64.b64encode(b"n" * 32).decode()
    with bus.administration() as admin:
        properties = admin.get_queue(queue)
        found = {rule.key_name: rule for rule in properties.authorization_rules}
        assert found["send"].primary_key == PRIMARY
        assert found["manage"].rights == RIGHTS["manage"]
        properties.authorization_rules = policies(primary=fresh)
        admin.update_queue(properties)
    with pytest.raises(ServiceBusAuthenticationError):
        send_one(bus, bus.connection_string_of("send", PRIMARY), queue)
    send_one(bus, bus.connection_string_of("send", fresh), queue)
    send_one(bus, bus.connection_string_of("send", SECONDARY), queue)


# --- PLAIN, and no credentials at all -------------------------------------------------


def test_plain_with_a_key(bus: Bus) -> None:
    """WIRE 1.2: the whole connection has the policy's rights; a wrong key ends it."""
    queue = bus.queue()
    with bus.proton() as connection:
        connection.create_sender(queue).send(Message(body=b"a"))
    for user, password in ((KEY_NAME, "wrong"), ("nobody", KEY), ("", "")):
        with pytest.raises(ConnectionException), bus.proton(user, password):
            pass


def test_without_a_token_nothing_is_attached(bus: Bus) -> None:
    """S2: ANONYMOUS gets as far as `$cbs` and no further."""
    queue = bus.queue()
    connection = BlockingConnection(
        f"amqp://127.0.0.1:{bus.broker.amqp_port}", timeout=WAIT, allowed_mechs="ANONYMOUS"
    )
    try:
        for attach in (connection.create_sender, connection.create_receiver):
            with pytest.raises(LinkDetached) as refused:
                attach(queue)
            assert refused.value.condition == "amqp:unauthorized-access"
            assert "TrackingId:" in str(refused.value)
        with pytest.raises(LinkDetached):
            Management(connection, queue)
        # Nor can a stranger fill the broker's memory with what calls itself a token.
        tokens = connection.create_sender("$cbs")
        with pytest.raises(SendException):
            tokens.send(Message(body="x" * 20_000))
    finally:
        connection.close()


def test_development_mode_checks_nothing(bus: Bus) -> None:
    """Only when asked for by name, on loopback."""
    directory = bus.broker.directory / bus.fresh("development")
    options = ("--admin-port", "off", "--development")
    with Broker(directory, {"q": {}}, bus.broker.form, options=options) as broker:
        other = Bus(broker)
        send_one(other, other.connection_string_of("anyone", "anything"), "q")
        with other.client() as client:
            drain(client, "q", 1)
    far = ("--admin-port", "off", "--development", "--host", "0.0.0.0")
    with pytest.raises(RuntimeError, match="loopback"):
        Broker(directory / "far", {}, bus.broker.form, options=far).start()


# --- the admin API --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [(KEY_NAME, PRIMARY), ("NoSuchKey", KEY), ("listen", PRIMARY)],
    ids=["bad key", "unknown name", "an entity's policy"],
)
def test_the_admin_api_refuses(bus: Bus, name: str, key: str) -> None:
    """S2: 401, and the broker goes on."""
    bus.queue(authorization_rules=policies())
    text = bus.admin_string_of(name, key)
    client: Any = ServiceBusAdministrationClient.from_connection_string(
        text, connection_verify=bus.ca, retry_total=0
    )
    with client, pytest.raises(ClientAuthenticationError) as refused:
        client.create_queue(bus.fresh("queue"))
    assert "TrackingId:" in str(refused.value)
    bus.queue()


def test_an_entitys_manage_policy_on_the_admin_api(bus: Bus) -> None:
    """S2: it reads its own entity and no other; without Manage it does not."""
    queue, other = bus.queue(authorization_rules=policies()), bus.queue()

    def get(policy: str, name: str) -> Any:
        client: Any = ServiceBusAdministrationClient.from_connection_string(
            bus.admin_string_of(policy, PRIMARY), connection_verify=bus.ca, retry_total=0
        )
        with client:
            return client.get_queue(name)

    assert get("manage", queue).name == queue
    for policy, name in (("manage", other), ("listen", queue)):
        with pytest.raises(ClientAuthenticationError) as refused:
            get(policy, name)
        assert refused.value.status_code == 401


def test_the_client_of_a_refused_neighbour_goes_on(bus: Bus, client: ServiceBusClient) -> None:
    """S2: a refused attach on one connection, while another sends."""
    queue = bus.queue(authorization_rules=policies())
    with client.get_queue_sender(queue) as sender:
        for _ in range(3):
            with pytest.raises(ServiceBusAuthorizationError):
                receive_none(bus, bus.connection_string_of("send", PRIMARY), queue)
            sender.send_messages(ServiceBusMessage("a"))
    drain(client, queue, 3)
