"""Sets the stage: entities and messages in every state, made with the official SDK.

Enters: a live broker. Leaves: queues and topics that no other test uses, and what is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    ServiceBusAdministrationClient,
)

from tests.browser.plain_http import Http
from tests.support.broker import Broker
from twinbus.client import Client

LISTENER_KEY = "bGlzdGVuZXIta2V5LW9mLTMyLWJ5dGVzLWxvbmchISE="
SENDER_KEY = "c2VuZGVyLWtleS1vZi0zMi1ieXRlcy1sb25nISEhISE="
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

Make = Callable[[int], ServiceBusMessage]


def plain(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(
        f'{{"order": {number}, "total": 12345678901234567890}}',
        message_id=f"m-{number}",
        subject="order",
        content_type="application/json",
        application_properties={"number": number, "colour": "red" if number % 2 else "blue"},
    )


class Stage:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._client = ServiceBusClient.from_connection_string(broker.connection_string)
        self._http = Http(broker.ready["ports"]["admin"]).sign_in()
        self._made = 0

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()
        self._http.__exit__()

    # --- entities -----------------------------------------------------------------------

    def create(self, kind: str, path: str, **settings: Any) -> str:
        answer = self._http.post("create-entity", kind=kind, entity=path, settings=settings)
        assert answer.status == 200, answer.body
        return path

    def queue(self, name: str = "", **settings: Any) -> str:
        self._made += 1
        return self.create("queue", name or f"stage-{self._made:03}", **settings)

    def topic(self, *subscriptions: str) -> str:
        self._made += 1
        topic = self.create("topic", f"topic-{self._made:03}")
        for name in subscriptions:
            self.create("subscription", f"{topic}/Subscriptions/{name}")
        return topic

    def delete(self, path: str) -> None:
        answer = self._http.post("delete-entity", entity=path)
        assert answer.status == 200, answer.body

    def rule(self, subscription: str, **rule: Any) -> None:
        answer = self._http.post("put-rule", entity=subscription, rule=rule)
        assert answer.status == 200, answer.body

    def add_policy(self, queue: str, name: str, rights: list[str], key: str) -> None:
        """Give a queue a policy of its own, over the Atom API."""
        made = [AccessRights.SEND, AccessRights.LISTEN, AccessRights.MANAGE]
        rule = AuthorizationRule(
            claim_type="SharedAccessKey",
            claim_value="None",
            key_name=name,
            rights=[right for right in made if right.value in rights],
            primary_key=key,
            secondary_key=key,
        )
        port = self.broker.ready["ports"]["admin"]
        string = f"Endpoint=sb://localhost:{port};{self.broker.connection_string.partition(';')[2]}"
        ca = self.broker.directory / "data" / "tls" / "ca.pem"
        with ServiceBusAdministrationClient.from_connection_string(
            string, connection_verify=str(ca)
        ) as client:
            properties = client.get_queue(queue)
            properties.authorization_rules = [rule]
            client.update_queue(properties)

    # --- messages -----------------------------------------------------------------------

    def send(self, entity: str, count: int, make: Make = plain) -> None:
        with self._client.get_queue_sender(entity) as sender:
            for start in range(1, count + 1, 500):
                sender.send_messages([make(n) for n in range(start, min(start + 500, count + 1))])

    def send_json(self, entity: str, *messages: dict[str, Any]) -> None:
        """Send what the SDK has no types for."""
        answer = self._http.post("send", entity=entity, messages=messages)
        assert answer.status == 200, answer.body

    def schedule(self, queue: str, count: int, *, apart_s: int = 3600) -> None:
        now = datetime.now(UTC)
        with self._client.get_queue_sender(queue) as sender:
            for number in range(1, count + 1):
                due = now + timedelta(seconds=apart_s * number)
                sender.schedule_messages(plain(number), due)

    def dead_letter(
        self, queue: str, count: int, reason: str = "Broken", make: Make = plain
    ) -> None:
        self.send(queue, count, make)
        with self._client.get_queue_receiver(queue, prefetch_count=200) as receiver:
            left = count
            while left:
                for message in receiver.receive_messages(min(left, 200), max_wait_time=10):
                    left -= 1
                    receiver.dead_letter_message(
                        message, reason="Broken", error_description="The total is no number."
                    )

    def defer(self, queue: str, count: int) -> None:
        self.send(queue, count)
        with self._client.get_queue_receiver(queue) as receiver:
            left = count
            while left:
                for message in receiver.receive_messages(left, max_wait_time=10):
                    left -= 1
                    receiver.defer_message(message)

    def reserve(self, queue: str, count: int) -> None:
        """Set messages aside as a Spark query does."""
        with Client.connect(self.broker.connection_string) as client:
            wanted = {"consumer": "stage", "epoch": 1, "message-count": count}
            assert client.request(queue, "twinbus:reserve", wanted).status == 200

    def receiver(self, queue: str) -> Any:
        return self._client.get_queue_receiver(queue)

    def peek(self, queue: str, *, dead: bool = False) -> list[Any]:
        sub_queue = ServiceBusSubQueue.DEAD_LETTER if dead else None
        with self._client.get_queue_receiver(queue, sub_queue=sub_queue) as receiver:
            return list(receiver.peek_messages(250))

    def messages_of(self, path: str) -> int:
        answer = self._http.get("entity", entity=path)
        return int(answer.json["active"])

    def set_session_state(self, queue: str, session: str, state: str) -> None:
        with self._client.get_queue_receiver(queue, session_id=session) as receiver:
            receiver.session.set_state(state)
