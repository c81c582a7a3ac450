"""Bad input gets the documented error in each client, and everybody else goes on (S2)."""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import time

import pytest
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)
from proton import Delivery, Message
from proton.utils import LinkDetached

from tests.compat.whole.credentials import token
from tests.compat.whole.kit import (
    DEAD_LETTER,
    Bus,
    drain,
    receiver_of,
    send,
    session_filter,
    take_one,
)
from tests.support.broker import KEY, KEY_NAME

ATOM = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{}</content>'
    "</entry>"
)
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


# --- entities that are not there, or of another kind ----------------------------------


def test_an_unknown_entity(bus: Bus, client: ServiceBusClient) -> None:
    """S2 E1: `$cbs` answers 404; without it (PLAIN) the link is refused with not-found."""
    topic = bus.topic()
    for path in ("no-such-queue", f"{topic}/no-such-subscription"):
        with pytest.raises((ServiceBusAuthenticationError, MessagingEntityNotFoundError)):
            receiver_of(client, path).__enter__()
    with pytest.raises((ServiceBusAuthenticationError, MessagingEntityNotFoundError)):
        send(client, "no-such-queue", "a")
    with bus.proton() as connection:
        for attach in (connection.create_sender, connection.create_receiver):
            for path in ("no-such-queue", "no-such-queue/$management", "$management"):
                with pytest.raises(LinkDetached) as refused:
                    attach(path)
                assert refused.value.condition == "amqp:not-found"
                assert "could not be found" in str(refused.value)


def test_the_wrong_kind_of_entity(bus: Bus, client: ServiceBusClient) -> None:
    """S2 D1: receive from a topic, send to a subscription or a dead-letter queue."""
    topic, queue = bus.topic(), bus.queue()
    path = f"{topic}/Subscriptions/{bus.subscription(topic)}"
    with pytest.raises(ServiceBusError, match="TrackingId:"):
        receiver_of(client, topic).__enter__()
    with bus.proton() as connection:
        for target in (path, f"{queue}/$DeadLetterQueue", f"{queue}/$Transfer/$DeadLetterQueue"):
            with pytest.raises(LinkDetached) as refused:
                connection.create_sender(target)
            assert refused.value.condition == "amqp:not-allowed"
        with pytest.raises(LinkDetached) as refused:
            connection.create_receiver(topic)
        assert refused.value.condition == "amqp:not-allowed"
        with pytest.raises(LinkDetached) as refused:
            connection.create_receiver(queue, options=session_filter("s"))
        assert refused.value.condition == "amqp:not-allowed"
        # The connection is as good as before.
        assert connection.create_sender(queue).send(Message(body="a")).settled


def test_s2_the_tracking_id_is_in_the_log(bus: Bus, client: ServiceBusClient) -> None:
    """S2: text, tracking id, entity and time; the log has the same id."""
    topic = bus.topic()
    with pytest.raises(ServiceBusError) as refused:
        receiver_of(client, topic).__enter__()
    found = re.search(r"TrackingId:(\S+), SystemTracker:(\S+), Timestamp:\S+", str(refused.value))
    assert found is not None
    assert found[1] in bus.broker.log
    assert topic in found[2]


def test_e6_a_session_id_that_is_too_long(bus: Bus) -> None:
    """S2 E6: nobody could ask for such a session; the link goes on."""
    queue = bus.queue(requires_session=True)
    with bus.proton() as connection:
        sender = connection.create_sender(queue)
        delivery = sender.link.send(Message(body="x", group_id="s" * 129))
        connection.wait(lambda: delivery.remote_state != 0)
        assert delivery.remote_state == Delivery.REJECTED
        assert delivery.remote.condition.name == "com.microsoft:argument-error"
        accepted = sender.send(Message(body="a", group_id="s" * 128))
        assert accepted.remote_state == Delivery.ACCEPTED


def test_d3_properties_that_grow_in_the_broker(bus: Bus, client: ServiceBusClient) -> None:
    """R4 D2 E4: a dead letter may hold more than its 64 KB of properties; nothing is lost."""
    queue = bus.queue()
    long = {"p": "x" * 30_000, "q": "x" * 30_000}
    send(client, queue, ServiceBusMessage("a", application_properties=long))
    with receiver_of(client, queue) as receiver:
        message = take_one(receiver)
        receiver.dead_letter_message(message, reason="y" * 4000, error_description="z" * 4000)
    (dead,) = drain(client, queue, 1, sub_queue=DEAD_LETTER)
    assert dead.dead_letter_reason == "y" * 4000


# --- bytes that are no AMQP -----------------------------------------------------------

SASL = b"AMQP\x03\x01\x00\x00"
PLAIN_HEADER = b"AMQP\x00\x01\x00\x00"
GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "random": os.urandom(4096),
    "wrong version": b"AMQP\x00\x02\x00\x00",
    "frame of 4 GB": SASL + b"\xff\xff\xff\xff\x02\x01\x00\x00",
    "frame of nothing": SASL + b"\x00\x00\x00\x00\x02\x01\x00\x00",
    "short frame": SASL + b"\x00\x00\x00\x08\x01\x01\x00\x00",
    "no performative": PLAIN_HEADER + b"\x00\x00\x00\x0c\x02\x00\x00\x00abcd",
    "begin before open": PLAIN_HEADER + b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x11\x45",
    "nothing at all": b"",
}


@pytest.mark.parametrize("garbage", sorted(GARBAGE))
def test_garbage_on_the_amqp_port(bus: Bus, client: ServiceBusClient, garbage: str) -> None:
    """S2: that connection ends; one that was open goes on."""
    queue = bus.queue()
    with client.get_queue_sender(queue) as sender:
        with socket.create_connection(("127.0.0.1", bus.broker.amqp_port), timeout=5) as raw:
            raw.sendall(GARBAGE[garbage])
            if garbage == "nothing at all":
                raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
        sender.send_messages(ServiceBusMessage("a"))
    drain(client, queue, 1)


# --- bodies that are no Atom ----------------------------------------------------------

BOMB = (
    '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
    "<entry>&b;</entry>"
)
FILE = (
    '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a SYSTEM "file:///etc/passwd">]><entry>&a;</entry>'
)
BODIES = {
    "nothing": "",
    "no xml": "not xml at all",
    "cut off": ATOM.format("<QueueDescription")[:-20],
    "another root": "<html/>",
    "no content": '<entry xmlns="http://www.w3.org/2005/Atom"/>',
    "an unknown kind": ATOM.format(f'<TableDescription xmlns="{CONNECT}"/>'),
    "a bad number": ATOM.format(
        f'<QueueDescription xmlns="{CONNECT}"><MaxDeliveryCount>ten</MaxDeliveryCount>'
        "</QueueDescription>"
    ),
    "a bad duration": ATOM.format(
        f'<QueueDescription xmlns="{CONNECT}"><LockDuration>soon</LockDuration></QueueDescription>'
    ),
    "entities that multiply": BOMB,
    "an external entity": FILE,
}


def request(bus: Bus, method: str, path: str, body: str | bytes) -> tuple[int, str]:
    port = bus.broker.ready["ports"]["admin"]
    context = ssl.create_default_context(cafile=bus.ca)
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=20)
    made = token(f"https://localhost:{port}", KEY_NAME, KEY, 60)
    try:
        connection.request(method, path + "?api-version=2021-05", body, {"Authorization": made})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("body", sorted(BODIES))
def test_malformed_bodies_on_the_admin_port(bus: Bus, body: str) -> None:
    """S2: 400 with an Error that has a tracking id; nothing was made."""
    name = bus.fresh("queue")
    status, text = request(bus, "PUT", f"/{name}", BODIES[body])
    assert status == 400, text
    assert text.startswith("<Error><Code>400</Code><Detail>SubCode=")
    assert "TrackingId:" in text
    assert "root:" not in text
    assert request(bus, "GET", f"/{name}", "")[0] == 404


def test_a_body_that_is_too_long(bus: Bus) -> None:
    """S2: refused before it is read to its end."""
    name = bus.fresh("queue")
    status, text = request(bus, "PUT", f"/{name}", b"<" * 10_000_000)
    assert status == 413
    assert "TrackingId:" in text


@pytest.mark.parametrize(
    "name", ["", "a//b", "a b", "$a", "a" * 261, "a/Subscriptions/b/Rules", "ä"]
)
def test_e1_names_that_are_refused(bus: Bus, name: str) -> None:
    """E1 S2."""
    with bus.administration() as admin, pytest.raises((HttpResponseError, ValueError)):
        admin.create_queue(name)


def test_e1_names(bus: Bus, client: ServiceBusClient) -> None:
    """E1: slashes, 260 characters, any case; a queue and a topic do not share a name."""
    stem = bus.fresh("Path")
    long = f"{stem}/{'x' * (260 - len(stem) - 1)}"
    with bus.administration() as admin:
        for name in (f"{stem}/a/b.c_d-e", long):
            admin.create_queue(name)
            assert admin.get_queue(name.upper()).max_delivery_count == 10
            assert name in [queue.name for queue in admin.list_queues()]
            with client.get_queue_sender(name.upper()) as sender:
                sender.send_messages(ServiceBusMessage("a"))
            with client.get_queue_receiver(name) as receiver:
                receiver.complete_message(take_one(receiver))
            with pytest.raises(ResourceExistsError):
                admin.create_topic(name.lower())
            with pytest.raises(ResourceExistsError):
                admin.create_queue(name.lower())
        topic = bus.topic()
        with pytest.raises(ResourceExistsError):
            admin.create_queue(topic)
        admin.create_subscription(topic, "s" * 50)
        for refused in ("s" * 51, "a/b"):
            with pytest.raises(HttpResponseError):
                admin.create_subscription(topic, refused)
        with pytest.raises(ResourceNotFoundError):
            admin.create_subscription("no-such-topic", "s")


def test_immutable_settings(bus: Bus) -> None:
    """E3 S2: sessions and duplicate detection cannot be switched later."""
    queue = bus.queue()
    with bus.administration() as admin:
        for setting in ("requires_session", "requires_duplicate_detection"):
            properties = admin.get_queue(queue)
            setattr(properties, setting, True)
            with pytest.raises(HttpResponseError) as refused:
                admin.update_queue(properties)
            assert refused.value.status_code == 400


def test_a_client_that_hangs_disturbs_nobody(bus: Bus, client: ServiceBusClient) -> None:
    """S2: half a TLS hello, half a header, and a receiver that reads nothing."""
    queue = bus.queue()
    ports = bus.broker.ready["ports"]
    held = []
    for port, start in (
        (ports["amqp"], SASL[:4]),
        (ports["amqps"], b"\x16\x03"),
        (ports["admin"], b"G"),
    ):
        raw = socket.create_connection(("127.0.0.1", port), timeout=5)
        raw.sendall(start)
        held.append(raw)
    began = time.monotonic()
    send(client, queue, "a")
    drain(client, queue, 1)
    bus.queue()
    assert time.monotonic() - began < 15
    for raw in held:
        raw.close()
