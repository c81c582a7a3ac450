"""A namespace: its entities by name, made, changed and removed (E1–E3)."""

import json
from dataclasses import replace
from uuid import UUID

from twinbus.core import errors, limits, names
from twinbus.core.descriptions import (
    DEFAULT_RULE,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.engine import records
from twinbus.engine.entities import Directory, Entity, Holder, Queue
from twinbus.engine.idle import IdleTimer
from twinbus.engine.kernel import Kernel
from twinbus.engine.rules import Rule
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Subscription, Topic
from twinbus.engine.upkeep import Owner


class Registry:
    """What all namespaces of a broker share: entity numbers and streams without an entity.

    While the journal is read, messages can come before the entity that they belong to (its
    record may have been carried forward past them); their streams wait here.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.next_number = 1
        self.entities: dict[int, Entity] = {}
        self.orphans: dict[int, Stream] = {}

    def orphan(self, number: int) -> Stream:
        stream = self.orphans.get(number)
        if stream is None:
            stream = self.orphans[number] = Stream(self.kernel, Owner(), number, "")
        return stream


class Namespace(Directory):
    def __init__(self, name: str, registry: Registry, created_ms: int) -> None:
        self.name = name
        self.created_ms = created_ms
        self.registry = registry
        self.kernel = registry.kernel
        self.queues: dict[str, Queue] = {}
        self.topics: dict[str, Topic] = {}
        self._idle: dict[int, IdleTimer] = {}

    # --- for entities -----------------------------------------------------------------

    def find(self, path: str) -> Entity | None:
        """Find a queue, a topic or a subscription by its path."""
        folded = names.fold(path)
        entity: Entity | None = self.queues.get(folded) or self.topics.get(folded)
        if entity is not None:
            return entity
        pair = names.split_subscription(path)
        if pair is None:
            return None
        topic = self.topics.get(names.fold(pair[0]))
        return None if topic is None else topic.subscriptions.get(names.fold(pair[1]))

    def stream(self, owner: Entity, number: int) -> Stream:
        stream = self.registry.orphans.pop(number, None)
        if stream is None:
            return Stream(self.kernel, owner, number, "")
        stream.belong_to(owner)
        return stream

    def new_uuid(self) -> UUID:
        return UUID(bytes=self.kernel.dice(16), version=4)

    # --- queues and topics ------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        queue = self.queues.get(names.fold(name))
        if queue is None:
            raise errors.entity_not_found(name)
        return queue

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(names.fold(name))
        if topic is None:
            raise errors.entity_not_found(name)
        return topic

    def subscription(self, topic: str, name: str) -> Subscription:
        subscription = self.topic(topic).subscriptions.get(names.fold(name))
        if subscription is None:
            raise errors.entity_not_found(names.subscription_path(topic, name))
        return subscription

    def create_queue(self, description: QueueDescription, now_ms: int) -> Queue:
        self._check_new(description.name)
        description = replace(description, created_ms=now_ms, updated_ms=now_ms)
        self._check_forwarding(description)
        description.check()
        queue = Queue(self.kernel, self, self._number(), description)
        self._add(queue, now_ms)
        return queue

    def create_topic(self, description: TopicDescription, now_ms: int) -> Topic:
        self._check_new(description.name)
        description = replace(description, created_ms=now_ms, updated_ms=now_ms)
        description.check()
        topic = Topic(self.kernel, self, self._number(), description)
        self._add(topic, now_ms)
        return topic

    def create_subscription(
        self, description: SubscriptionDescription, rule: RuleDescription | None, now_ms: int
    ) -> Subscription:
        topic = self.topic(description.topic)
        names.check_subscription_name(description.name)
        if names.fold(description.name) in topic.subscriptions:
            raise _exists(names.subscription_path(topic.path, description.name))
        if len(topic.subscriptions) >= limits.SUBSCRIPTIONS_MAX:
            raise BusError(
                errors.QUOTA_EXCEEDED,
                f"A topic may have at most {limits.SUBSCRIPTIONS_MAX} subscriptions.",
            )
        description = replace(description, topic=topic.path, created_ms=now_ms, updated_ms=now_ms)
        self._check_forwarding(description)
        description.check()
        rule = rule or RuleDescription(DEFAULT_RULE)
        rule = replace(rule, name=rule.name or DEFAULT_RULE, created_ms=now_ms)
        _check_room([], rule)
        subscription = Subscription(self.kernel, self, self._number(), description, [rule])
        self._add(subscription, now_ms)
        return subscription

    def update_queue(self, description: QueueDescription, now_ms: int) -> None:
        queue = self.queue(description.name)
        old = queue.description
        description = replace(
            description, name=old.name, created_ms=old.created_ms, updated_ms=now_ms
        )
        description.check_update(old)
        self._check_forwarding(description)
        description.check()
        queue.description = description
        self._changed(queue, now_ms)

    def update_topic(self, description: TopicDescription, now_ms: int) -> None:
        topic = self.topic(description.name)
        old = topic.description
        description = replace(
            description, name=old.name, created_ms=old.created_ms, updated_ms=now_ms
        )
        description.check_update(old)
        description.check()
        topic.description = description
        self._changed(topic, now_ms)

    def update_subscription(self, description: SubscriptionDescription, now_ms: int) -> None:
        subscription = self.subscription(description.topic, description.name)
        old = subscription.description
        description = replace(
            description, topic=old.topic, name=old.name, created_ms=old.created_ms,
            updated_ms=now_ms,
        )  # fmt: skip
        description.check_update(old)
        self._check_forwarding(description)
        description.check()
        subscription.description = description
        self._changed(subscription, now_ms)

    def delete(self, path: str) -> None:
        """Remove an entity with all that is in it."""
        entity = self.find(path)
        if entity is None:
            raise errors.entity_not_found(path)
        if isinstance(entity, Topic):
            for subscription in list(entity.subscriptions.values()):
                self._remove(subscription)
        self._remove(entity)

    # --- rules ------------------------------------------------------------------------

    def create_rule(self, subscription: Subscription, rule: RuleDescription, now_ms: int) -> None:
        if names.fold(rule.name) in subscription.rules:
            raise _exists(f"{subscription.path}/Rules/{rule.name}")
        if len(subscription.rules) >= limits.RULES_MAX:
            raise BusError(
                errors.QUOTA_EXCEEDED, f"A subscription may have at most {limits.RULES_MAX} rules."
            )
        _check_room([known.description for known in subscription.rules.values()], rule)
        made = Rule(replace(rule, created_ms=now_ms))
        subscription.rules[names.fold(rule.name)] = made
        subscription.accessed_ms = now_ms
        self._write(subscription)

    def update_rule(self, subscription: Subscription, rule: RuleDescription) -> None:
        old = self.rule(subscription, rule.name)
        _check_room([r.description for r in subscription.rules.values() if r is not old], rule)
        made = Rule(replace(rule, name=old.description.name, created_ms=old.description.created_ms))
        subscription.rules[names.fold(rule.name)] = made
        self._write(subscription)

    def delete_rule(self, subscription: Subscription, name: str) -> None:
        self.rule(subscription, name)
        del subscription.rules[names.fold(name)]
        self._write(subscription)

    def rule(self, subscription: Subscription, name: str) -> Rule:
        rule = subscription.rules.get(names.fold(name))
        if rule is None:
            raise errors.entity_not_found(f"{subscription.path}/Rules/{name}")
        return rule

    # --- how an entity comes and goes -------------------------------------------------

    def adopt(self, entity: Entity) -> None:
        """Put an entity in its place, new or read from the journal."""
        self.registry.entities[entity.number] = entity
        if isinstance(entity, Queue):
            self.queues[names.fold(entity.path)] = entity
        elif isinstance(entity, Topic):
            self.topics[names.fold(entity.path)] = entity
        elif isinstance(entity, Subscription):
            topic = self.topic(entity.description.topic)
            topic.subscriptions[names.fold(entity.description.name)] = entity

    def watch_idle(self, entity: Entity, now_ms: int) -> None:
        """See that an entity is deleted when nobody has used it for its AutoDeleteOnIdle."""
        timer = self._idle.get(entity.number)
        if timer is None:
            timer = self._idle[entity.number] = IdleTimer(self.kernel, entity, self.delete)
        entity.accessed_ms = max(entity.accessed_ms, now_ms)
        timer.watch(now_ms)

    def _add(self, entity: Entity, now_ms: int) -> None:
        self.adopt(entity)
        self._write(entity)
        self.watch_idle(entity, now_ms)

    def _changed(self, entity: Entity, now_ms: int) -> None:
        """Settings are new: locks are void (R7), and what may not stay attached goes."""
        entity.settings_changed()
        self._write(entity)
        self.watch_idle(entity, now_ms)
        if entity.send_disabled:
            _detach_all(list(entity.senders), _disabled(entity))
        # A copy: a lock that is dropped may call for a dead-letter queue.
        for stream in list(entity.streams.values()):
            stream.drop_locks(now_ms)
            if entity.receive_disabled or (stream.is_main and entity.forward_to is not None):
                _detach_all(list(stream.attached), _disabled(entity))
        if entity.forward_to is not None and isinstance(entity, Holder):
            entity.forward_waiting(now_ms)

    def _remove(self, entity: Entity) -> None:
        del self.registry.entities[entity.number]
        timer = self._idle.pop(entity.number, None)
        if timer is not None:
            timer.stop()
        if isinstance(entity, Queue):
            del self.queues[names.fold(entity.path)]
        elif isinstance(entity, Topic):
            del self.topics[names.fold(entity.path)]
        elif isinstance(entity, Subscription):
            topic = self.topic(entity.description.topic)
            del topic.subscriptions[names.fold(entity.description.name)]
            # What was done with it was done with its topic (E3).
            topic.accessed_ms = max(topic.accessed_ms, entity.accessed_ms)
        self.kernel.log.append(records.entity_removed(entity.number))
        entity.remove()

    def _write(self, entity: Entity) -> None:
        record = self.record(entity)
        entity.location = self.kernel.log.append(record)

    def record(self, entity: Entity) -> bytes:
        body = {"namespace": self.name, **entity.describe()}
        text = json.dumps(body, separators=(",", ":")).encode()
        return records.entity_put(entity.number, entity.kind, text)

    def _number(self) -> int:
        number = self.registry.next_number
        self.registry.next_number = number + 1
        return number

    def _check_new(self, name: str) -> None:
        names.check_entity_name(name)
        if self.find(name) is not None:
            raise _exists(name)

    def _check_forwarding(self, description: QueueDescription | SubscriptionDescription) -> None:
        own = (
            names.subscription_path(description.topic, description.name)
            if isinstance(description, SubscriptionDescription)
            else description.name
        )
        targets: list[str | None] = []
        for target in (description.forward_to, description.forward_dead_lettered_messages_to):
            path = names.strip_authority(target) if target else None
            if path is not None and names.fold(path) == names.fold(own):
                raise BusError(errors.ARGUMENT_ERROR, f"'{own}' cannot forward to itself.")
            found = None if path is None else self.find(path)
            if isinstance(found, Subscription):
                raise BusError(
                    errors.ARGUMENT_ERROR,
                    f"'{own}' cannot forward to a subscription: name a queue or a topic.",
                )
            if path is not None and found is None:
                raise BusError(
                    errors.ARGUMENT_ERROR,
                    f"'{own}' cannot forward to '{path}': there is no such entity. Make it first.",
                )
            targets.append(path)
        description.forward_to, description.forward_dead_lettered_messages_to = targets


def _check_room(others: list[RuleDescription], rule: RuleDescription) -> None:
    """Refuse a rule that says too much, by itself or with the subscription's others.

    Not where rules are read: what was taken once is kept.
    """
    if rule.chars() > limits.RULE_CHARS_MAX:
        raise BusError(
            errors.QUOTA_EXCEEDED,
            f"A rule may have at most {limits.RULE_CHARS_MAX} characters, its values included.",
        )
    if rule.chars() + sum([other.chars() for other in others]) > limits.RULES_CHARS_MAX:
        raise BusError(
            errors.QUOTA_EXCEEDED,
            f"The rules of a subscription may have at most {limits.RULES_CHARS_MAX} characters"
            " together.",
        )


def _exists(path: str) -> BusError:
    return BusError(
        errors.ALREADY_EXISTS,
        f"Entity '{path}' already exists. Names are compared without regard to case.",
    )


def _disabled(entity: Entity) -> BusError:
    return BusError(
        errors.ENTITY_DISABLED, f"Messaging entity '{entity.path}' is no longer open to this link."
    )


def _detach_all(attached: list, error: BusError) -> None:  # type: ignore[type-arg]
    for attachment in attached:
        attachment.detach(error)
