"""What the admin API needs of the broker, and nothing more.

The server layer implements these protocols. The API only reads XML, asks, and writes XML:
names, limits, what exists, what may change and whether a filter's text is valid are for
the implementation to check, since entities are also made in other ways than over HTTP.
"""

from typing import Protocol

from twinbus.core.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)


class Counts(Protocol):
    """What an entity holds at this moment; the last three are asked of topics only."""

    @property
    def active(self) -> int: ...

    @property
    def dead_letter(self) -> int: ...

    @property
    def scheduled(self) -> int: ...

    @property
    def transfer(self) -> int: ...

    @property
    def transfer_dead_letter(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def accessed_ms(self) -> int:
        """Unix milliseconds of the last send or receive; 0 if there was none."""

    @property
    def subscription_count(self) -> int: ...

    @property
    def sql_filter_count(self) -> int: ...

    @property
    def correlation_filter_count(self) -> int: ...


class Administration(Protocol):
    """One namespace.

    Every method may raise BusError. Those that change something return only when the change
    is durable; they set `created_ms` and `updated_ms` themselves. Names are compared without
    regard to case. Lists are sorted by name.
    """

    @property
    def name(self) -> str: ...

    @property
    def created_ms(self) -> int: ...

    def authorize(self, token: str, audience: str, right: str, now_s: int) -> None:
        """Refuse (UNAUTHORIZED, FORBIDDEN) a token that does not give the right.

        The token is what the request brought, maybe nothing. The audience is the request's
        URL without query, percent signs undone: its path may be an entity's, a list's
        (`orders/Subscriptions`, `$Resources/queues`), a rule's or `$namespaceinfo`. Tokens
        are often made for just that URL.
        """

    def get_queue(self, name: str) -> QueueDescription | None: ...

    def list_queues(self) -> list[QueueDescription]: ...

    async def create_queue(self, queue: QueueDescription) -> None: ...

    async def update_queue(self, queue: QueueDescription) -> None: ...

    def get_topic(self, name: str) -> TopicDescription | None: ...

    def list_topics(self) -> list[TopicDescription]: ...

    async def create_topic(self, topic: TopicDescription) -> None: ...

    async def update_topic(self, topic: TopicDescription) -> None: ...

    def get_subscription(self, topic: str, name: str) -> SubscriptionDescription | None: ...

    def list_subscriptions(self, topic: str) -> list[SubscriptionDescription]:
        """Give a topic's subscriptions; a missing topic is NOT_FOUND."""

    async def create_subscription(
        self, subscription: SubscriptionDescription, default_rule: RuleDescription | None
    ) -> None:
        """Make it with this rule, or with the true rule `$Default` if none is given."""

    async def update_subscription(self, subscription: SubscriptionDescription) -> None: ...

    def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription | None: ...

    def list_rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        """Give a subscription's rules; a missing subscription is NOT_FOUND."""

    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> None: ...

    async def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> None: ...

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None: ...

    async def delete(self, path: str) -> None:
        """Remove a queue, a topic with all it holds, or a subscription."""

    def counts(self, path: str) -> Counts: ...


class Namespaces(Protocol):
    """All the namespaces of a broker."""

    def namespace_for(self, host: str) -> Administration:
        """Find the namespace that a host name (without port) stands for."""
