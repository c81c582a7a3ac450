"""A namespace in dictionaries: a real Administration, without a journal and messages."""

from collections.abc import Container
from dataclasses import dataclass, replace

from twinbus.core import names, sas
from twinbus.core.descriptions import (
    DEFAULT_RULE,
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import (
    ALREADY_EXISTS,
    FORBIDDEN,
    NOT_FOUND,
    UNAUTHORIZED,
    BusError,
    entity_not_found,
)
from twinbus.core.names import fold

ROOT_KEY_NAME = "RootManageSharedAccessKey"
ROOT_KEY = "a2V5IG9mIHRoZSBtZW1vcnkgbmFtZXNwYWNl"
NOW_MS = 1_900_000_000_000

Entity = QueueDescription | TopicDescription


@dataclass(frozen=True, slots=True)
class Counts:
    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0
    size_bytes: int = 0
    accessed_ms: int = 0
    subscription_count: int = 0
    sql_filter_count: int = 0
    correlation_filter_count: int = 0


class MemoryNamespace:
    """Names are keys in their folded form, so that look-ups disregard case (E1)."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.created_ms = NOW_MS
        self.entities: dict[str, Entity] = {}
        self.subscriptions: dict[str, dict[str, SubscriptionDescription]] = {}
        self.rules: dict[tuple[str, str], dict[str, RuleDescription]] = {}
        self.held: dict[str, Counts] = {}
        #: What a request about the entity of this name is refused with.
        self.refusals: dict[str, BusError] = {}
        self.failure: Exception | None = None

    def namespace_for(self, host: str) -> "MemoryNamespace":
        if host.startswith("nobody."):
            raise BusError(NOT_FOUND, f"No service is hosted at '{host}'.")
        return self

    def authorize(self, token: str, audience: str, right: str, now_s: int) -> None:
        try:
            parsed = sas.parse_token(token)
        except ValueError as error:
            raise BusError(UNAUTHORIZED, f"The token cannot be read: {error}.") from error
        rule = self._key_rule(parsed.key_name, names.strip_authority(audience))
        if (
            rule is None
            or parsed.expiry_s <= now_s
            or not parsed.covers(audience)
            or not any(parsed.signed_by(key) for key in (rule.primary_key, rule.secondary_key))
        ):
            raise BusError(UNAUTHORIZED, "The token's signature is not valid here.")
        if right not in rule.rights:
            raise BusError(FORBIDDEN, f"The key '{rule.name}' does not give {right}.")

    def _key_rule(self, key_name: str, path: str) -> AuthorizationRule | None:
        if key_name == ROOT_KEY_NAME:
            return AuthorizationRule(key_name, ["Manage", "Send", "Listen"], ROOT_KEY, ROOT_KEY)
        entity = self.entities.get(fold(path.partition("/Subscriptions")[0]))
        rules = entity.authorization_rules if entity else []
        return next((rule for rule in rules if rule.name == key_name), None)

    def get_queue(self, name: str) -> QueueDescription | None:
        if name in self.refusals:
            raise self.refusals[name]
        found = self.entities.get(fold(name))
        return found if isinstance(found, QueueDescription) else None

    def get_topic(self, name: str) -> TopicDescription | None:
        found = self.entities.get(fold(name))
        return found if isinstance(found, TopicDescription) else None

    def list_queues(self) -> list[QueueDescription]:
        if self.failure:
            raise self.failure
        found = [e for e in self.entities.values() if isinstance(e, QueueDescription)]
        return sorted(found, key=lambda queue: fold(queue.name))

    def list_topics(self) -> list[TopicDescription]:
        found = [e for e in self.entities.values() if isinstance(e, TopicDescription)]
        return sorted(found, key=lambda topic: fold(topic.name))

    async def create_queue(self, queue: QueueDescription) -> None:
        self._create(queue)

    async def create_topic(self, topic: TopicDescription) -> None:
        self._create(topic)
        self.subscriptions[fold(topic.name)] = {}

    def _create(self, entity: Entity) -> None:
        if entity.name in self.refusals:
            raise self.refusals[entity.name]
        names.check_entity_name(entity.name)
        entity.check()
        self._refuse_existing(self.entities, entity.name)
        self.entities[fold(entity.name)] = replace(entity, created_ms=NOW_MS, updated_ms=NOW_MS)

    @staticmethod
    def _refuse_existing(known: Container[str], name: str) -> None:
        if fold(name) in known:
            raise BusError(ALREADY_EXISTS, f"Entity '{name}' already exists.")

    async def update_queue(self, queue: QueueDescription) -> None:
        old = self.get_queue(queue.name)
        if old is None:
            raise entity_not_found(queue.name)
        queue.check()
        queue.check_update(old)
        self.entities[fold(queue.name)] = replace(queue, updated_ms=NOW_MS + 1000)

    async def update_topic(self, topic: TopicDescription) -> None:
        old = self.get_topic(topic.name)
        if old is None:
            raise entity_not_found(topic.name)
        topic.check()
        topic.check_update(old)
        self.entities[fold(topic.name)] = replace(topic, updated_ms=NOW_MS + 1000)

    async def delete(self, path: str) -> None:
        below = names.split_subscription(path)
        if below is None:
            if self.entities.pop(fold(path), None) is None:
                raise entity_not_found(path)
            self.subscriptions.pop(fold(path), None)
        elif self._subscriptions(below[0]).pop(fold(below[1]), None) is None:
            raise entity_not_found(path)

    def _subscriptions(self, topic: str) -> dict[str, SubscriptionDescription]:
        if self.get_topic(topic) is None:
            raise entity_not_found(topic)
        return self.subscriptions[fold(topic)]

    def get_subscription(self, topic: str, name: str) -> SubscriptionDescription | None:
        return self.subscriptions.get(fold(topic), {}).get(fold(name))

    def list_subscriptions(self, topic: str) -> list[SubscriptionDescription]:
        return sorted(self._subscriptions(topic).values(), key=lambda s: fold(s.name))

    async def create_subscription(
        self, subscription: SubscriptionDescription, default_rule: RuleDescription | None
    ) -> None:
        names.check_subscription_name(subscription.name)
        subscription.check()
        known = self._subscriptions(subscription.topic)
        self._refuse_existing(known, subscription.name)
        known[fold(subscription.name)] = replace(
            subscription,
            topic=self.entities[fold(subscription.topic)].name,
            created_ms=NOW_MS,
            updated_ms=NOW_MS,
        )
        self.rules[fold(subscription.topic), fold(subscription.name)] = {}
        rule = default_rule or RuleDescription(DEFAULT_RULE)
        await self.create_rule(subscription.topic, subscription.name, rule)

    async def update_subscription(self, subscription: SubscriptionDescription) -> None:
        old = self.get_subscription(subscription.topic, subscription.name)
        if old is None:
            raise entity_not_found(subscription.name)
        subscription.check()
        subscription.check_update(old)
        known = self._subscriptions(subscription.topic)
        known[fold(subscription.name)] = replace(subscription, updated_ms=NOW_MS + 1000)

    def _rules(self, topic: str, subscription: str) -> dict[str, RuleDescription]:
        if self.get_subscription(topic, subscription) is None:
            raise entity_not_found(names.subscription_path(topic, subscription))
        return self.rules[fold(topic), fold(subscription)]

    def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription | None:
        return self.rules.get((fold(topic), fold(subscription)), {}).get(fold(name))

    def list_rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        return sorted(self._rules(topic, subscription).values(), key=lambda r: fold(r.name))

    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> None:
        names.check_rule_name(rule.name)
        known = self._rules(topic, subscription)
        self._refuse_existing(known, rule.name)
        known[fold(rule.name)] = replace(rule, created_ms=NOW_MS)

    async def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> None:
        known = self._rules(topic, subscription)
        if fold(rule.name) not in known:
            raise entity_not_found(rule.name)
        known[fold(rule.name)] = replace(rule, created_ms=NOW_MS)

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        if self._rules(topic, subscription).pop(fold(name), None) is None:
            raise entity_not_found(name)

    def counts(self, path: str) -> Counts:
        rules = [
            rule
            for (topic, _), known in self.rules.items()
            if topic == fold(path)
            for rule in known.values()
        ]
        correlation = sum(rule.filter == "correlation" for rule in rules)
        return replace(
            self.held.get(fold(path), Counts()),
            subscription_count=len(self.subscriptions.get(fold(path), {})),
            sql_filter_count=len(rules) - correlation,
            correlation_filter_count=correlation,
        )
