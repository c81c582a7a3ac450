"""Entities as the admin API and the command line manage them; changes are durable on return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from twinbus.core import errors, names
from twinbus.core.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.engine.entities import Entity
from twinbus.engine.index import SCHEDULED
from twinbus.engine.namespace import Namespace
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Topic
from twinbus.server.authorization import Guard
from twinbus.server.broker import Broker


@dataclass(frozen=True, slots=True)
class Counts:
    """What an entity holds; the last three are a topic's."""

    active: int
    dead_letter: int
    scheduled: int
    transfer: int
    transfer_dead_letter: int
    size_bytes: int
    accessed_ms: int
    subscription_count: int = 0
    sql_filter_count: int = 0
    correlation_filter_count: int = 0


class NamespaceAdministration:
    def __init__(self, broker: Broker, namespace: Namespace, guard: Guard) -> None:
        self._broker = broker
        self._namespace = namespace
        self._guard = guard

    @property
    def name(self) -> str:
        return self._namespace.name

    @property
    def created_ms(self) -> int:
        return self._namespace.created_ms

    def authorize(self, token: str, audience: str, right: str, now_s: int) -> None:
        """Refuse a token that does not hold for an address, or lacks the right."""
        if not self._guard.checks:
            return
        claim = self._guard.check_token(token, audience, now_s)
        if not claim.allows(claim.path, right, now_s):
            raise BusError(errors.UNAUTHORIZED, f"The token lacks the '{right}' claim.")

    async def _do(self, change: Callable[[int], object]) -> None:
        now_ms = self._broker.begin_turn()
        self._broker.hub.check()
        try:
            change(now_ms)
        finally:
            # A refusal, too, may tell of what is not on disk yet, as that something exists.
            await self._broker.durable()

    async def _make(self, create: Callable[[int], object]) -> None:
        """Make something new, as far as the disk has room; what is there can always be changed.

        To disable or to delete something is a way out of a disk that is full.
        """
        self._broker.hub.check_sends()
        await self._do(create)

    # --- queues -----------------------------------------------------------------------

    def get_queue(self, name: str) -> QueueDescription | None:
        queue = self._namespace.queues.get(names.fold(name))
        return None if queue is None else queue.description

    def list_queues(self) -> list[QueueDescription]:
        found = [queue.description for queue in self._namespace.queues.values()]
        return sorted(found, key=lambda d: names.fold(d.name))

    async def create_queue(self, queue: QueueDescription) -> None:
        await self._make(lambda now_ms: self._namespace.create_queue(queue, now_ms))

    async def update_queue(self, queue: QueueDescription) -> None:
        await self._do(lambda now_ms: self._namespace.update_queue(queue, now_ms))

    # --- topics and subscriptions -----------------------------------------------------

    def get_topic(self, name: str) -> TopicDescription | None:
        topic = self._namespace.topics.get(names.fold(name))
        return None if topic is None else topic.description

    def list_topics(self) -> list[TopicDescription]:
        found = [topic.description for topic in self._namespace.topics.values()]
        return sorted(found, key=lambda d: names.fold(d.name))

    async def create_topic(self, topic: TopicDescription) -> None:
        await self._make(lambda now_ms: self._namespace.create_topic(topic, now_ms))

    async def update_topic(self, topic: TopicDescription) -> None:
        await self._do(lambda now_ms: self._namespace.update_topic(topic, now_ms))

    def get_subscription(self, topic: str, name: str) -> SubscriptionDescription | None:
        known = self._namespace.topics.get(names.fold(topic))
        found = known.subscriptions.get(names.fold(name)) if known is not None else None
        return None if found is None else found.description

    def list_subscriptions(self, topic: str) -> list[SubscriptionDescription]:
        found = [s.description for s in self._namespace.topic(topic).subscriptions.values()]
        return sorted(found, key=lambda d: names.fold(d.name))

    async def create_subscription(
        self, subscription: SubscriptionDescription, default_rule: RuleDescription | None
    ) -> None:
        await self._make(
            lambda now_ms: self._namespace.create_subscription(subscription, default_rule, now_ms)
        )

    async def update_subscription(self, subscription: SubscriptionDescription) -> None:
        await self._do(lambda now_ms: self._namespace.update_subscription(subscription, now_ms))

    # --- rules ------------------------------------------------------------------------

    def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription | None:
        rules = self._namespace.subscription(topic, subscription).rules
        rule = rules.get(names.fold(name))
        return None if rule is None else rule.description

    def list_rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        rules = self._namespace.subscription(topic, subscription).rules.values()
        return sorted((r.description for r in rules), key=lambda d: names.fold(d.name))

    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> None:
        holder = self._namespace.subscription(topic, subscription)
        await self._make(lambda now_ms: self._namespace.create_rule(holder, rule, now_ms))

    async def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> None:
        holder = self._namespace.subscription(topic, subscription)
        await self._do(lambda now_ms: self._namespace.update_rule(holder, rule))

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        holder = self._namespace.subscription(topic, subscription)
        await self._do(lambda now_ms: self._namespace.delete_rule(holder, name))

    # --- any entity -------------------------------------------------------------------

    async def delete(self, path: str) -> None:
        await self._do(lambda now_ms: self._namespace.delete(path))

    def counts(self, path: str) -> Counts:
        entity = self._namespace.find(path)
        if entity is None:
            raise errors.entity_not_found(path)
        counts = _counts(entity)
        if not isinstance(entity, Topic):
            return counts
        subscriptions = entity.subscriptions.values()
        rules = [rule for s in subscriptions for rule in s.rules.values()]
        correlation = sum(rule.description.filter == "correlation" for rule in rules)
        return replace(
            counts,
            subscription_count=len(entity.subscriptions),
            sql_filter_count=len(rules) - correlation,
            correlation_filter_count=correlation,
        )


def _counts(entity: Entity) -> Counts:
    main = entity.streams.get(names.MAIN_STREAM)
    dead = entity.streams.get(names.DEAD_LETTER_STREAM)
    transfer = entity.streams.get(names.TRANSFER_STREAM)
    return Counts(
        active=0 if main is None else main.index.live - main.count_state(SCHEDULED),
        dead_letter=_live(dead),
        scheduled=0 if main is None else main.count_state(SCHEDULED),
        transfer=0,
        transfer_dead_letter=_live(transfer),
        size_bytes=entity.size_bytes(),
        accessed_ms=entity.accessed_ms,
    )


def _live(stream: Stream | None) -> int:
    return 0 if stream is None else stream.index.live
