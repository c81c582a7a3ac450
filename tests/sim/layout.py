"""The entities of the two namespaces, and who uses them: drawn from the seed, play by play.

Every run has the pair, its syphon and the queue it sends to; of the other features each has
its own queues and actors, and takes part in half of the runs.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from tests.sim import actors, specials
from tests.sim.actors import PERISHABLE, Stage
from tests.sim.node import Node
from twinbus.core.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.engine.namespace import Namespace

PRIMARY, SECONDARY = "primary", "secondary"
BACKLOG = [f"{PRIMARY}/x-servicebus-transfer/{index}" for index in range(2)]
LOCK_MS = 5000
SESSIONS = ("amber", "birch")
ALL, EVEN = "news/Subscriptions/all", "news/Subscriptions/even"
DEAD = "$DeadLetterQueue"
FEATURES = (
    "topic", "transactions", "sessions", "duplicates", "deletion", "scheduling", "expiry",
    "deferral", "bulk",
)  # fmt: skip

#: Where messages of a feature are left to be received at the end.
_DRAINED = {
    "topic": [ALL, EVEN],
    "transactions": ["left", "middle", "right"],
    "duplicates": ["once"],
    "expiry": [PERISHABLE],
}

Actor = Coroutine[Any, Any, None]


def fan_out(entity: str, number: int) -> tuple[str, ...]:
    if entity != "news":
        return ()
    return (ALL, EVEN) if number % 2 == 0 else (ALL,)


def make_primary(namespace: Namespace, now_ms: int) -> None:
    if namespace.find("orders") is not None:
        return
    for name in ("orders", "left", "middle", "right", "fast", "bulk"):
        queue = QueueDescription(name, lock_duration_ms=LOCK_MS, max_delivery_count=5)
        namespace.create_queue(queue, now_ms)
    namespace.create_queue(QueueDescription("inbox", forward_to="orders"), now_ms)
    for queue in (
        QueueDescription("flights", lock_duration_ms=LOCK_MS, requires_session=True),
        QueueDescription("once", lock_duration_ms=LOCK_MS, requires_duplicate_detection=True),
        QueueDescription(
            PERISHABLE, lock_duration_ms=LOCK_MS, dead_lettering_on_message_expiration=True
        ),
    ):
        namespace.create_queue(queue, now_ms)
    namespace.create_topic(TopicDescription("news"), now_ms)
    for name, rule in (
        ("all", None),
        ("even", RuleDescription("even", "sql", "number % 2 = 0")),
    ):
        subscription = SubscriptionDescription("news", name, lock_duration_ms=LOCK_MS)
        namespace.create_subscription(subscription, rule, now_ms)


def make_secondary(namespace: Namespace, now_ms: int) -> None:
    for name in BACKLOG:
        if namespace.find(name) is None:
            queue = QueueDescription(name, lock_duration_ms=60_000, max_delivery_count=2**31 - 1)
            namespace.create_queue(queue, now_ms)


class Cast:
    """Who acts in one run."""

    def __init__(self, stage: Stage, node: Node) -> None:
        self._stage = stage
        self._node = node
        self.features = {name for name in FEATURES if stage.random.random() < 0.5}
        self._reader = specials.BulkReader(stage, node, "bulk")

    def play(self) -> list[Actor]:
        stage, node = self._stage, self._node
        cast = [
            actors.send_plainly(stage, node, "orders"),
            actors.send_plainly(stage, node, "inbox"),
            actors.receive(stage, node, "orders"),
            actors.receive(stage, node, "orders"),
        ]
        # In the order of the list: a set has none that is the same everywhere.
        for feature in FEATURES:
            if feature in self.features:
                cast += getattr(self, f"_{feature}")()
        return cast

    def _topic(self) -> list[Actor]:
        stage, node = self._stage, self._node
        return [
            actors.send_plainly(stage, node, "news"),
            actors.receive(stage, node, ALL),
            actors.receive(stage, node, EVEN),
        ]

    def _transactions(self) -> list[Actor]:
        stage, node = self._stage, self._node
        return [
            actors.send_plainly(stage, node, "left"),
            actors.transact(stage, node, "left", ("middle", "right")),
            actors.receive(stage, node, "middle", is_patient=True),
        ]

    def _sessions(self) -> list[Actor]:
        stage, node = self._stage, self._node
        return [
            *(actors.send_sessions(stage, node, "flights", name) for name in SESSIONS),
            actors.receive_sessions(stage, node, "flights"),
            actors.receive_sessions(stage, node, "flights"),
        ]

    def _duplicates(self) -> list[Actor]:
        stage, node = self._stage, self._node
        return [
            specials.send_until_sure(stage, node, "once"),
            specials.send_until_sure(stage, node, "once"),
            actors.receive(stage, node, "once"),
        ]

    def _deletion(self) -> list[Actor]:
        stage, node = self._stage, self._node
        return [
            actors.send_plainly(stage, node, "fast"),
            actors.receive(stage, node, "fast", deletes=True),
        ]

    def _scheduling(self) -> list[Actor]:
        stage, node = self._stage, self._node
        return [specials.schedule(stage, node, "orders"), specials.schedule(stage, node, "orders")]

    def _expiry(self) -> list[Actor]:
        stage, node = self._stage, self._node
        return [
            actors.send_plainly(stage, node, PERISHABLE),
            actors.receive(stage, node, PERISHABLE),
            actors.receive(stage, node, f"{PERISHABLE}/{DEAD}"),
            actors.receive(stage, node, f"orders/{DEAD}"),
        ]

    def _deferral(self) -> list[Actor]:
        stage, node = self._stage, self._node
        return [
            actors.send_plainly(stage, node, "orders"),
            specials.fetch_deferred(stage, node, ["orders"]),
            specials.fetch_deferred(stage, node, ["orders"]),
        ]

    def _bulk(self) -> list[Actor]:
        stage, node = self._stage, self._node
        return [
            actors.send_plainly(stage, node, "bulk"),
            actors.send_plainly(stage, node, "bulk"),
            actors.receive(stage, node, "bulk"),
            self._reader.run(),
        ]

    def drain(self) -> list[Actor]:
        """Those who get everything out once nothing is wrong any more."""
        stage, node = self._stage, self._node
        addresses = ["orders"]
        for feature, used in _DRAINED.items():
            if feature in self.features:
                addresses += used
        deferred = [*addresses, "bulk", f"orders/{DEAD}", f"{PERISHABLE}/{DEAD}"]
        cast = [
            *(actors.receive(stage, node, address, is_patient=True) for address in addresses),
            specials.fetch_deferred(stage, node, deferred, is_patient=True),
        ]
        if "deletion" in self.features:
            cast.append(actors.receive(stage, node, "fast", deletes=True))
        if "sessions" in self.features:
            cast.append(actors.drain_sessions(stage, node, "flights"))
        if "bulk" in self.features:
            cast.append(self._reader.run(is_patient=True))
        return cast
