"""What an admin URL's path points at."""

import re
from dataclasses import dataclass
from enum import Enum, auto

# A topic's name may hold slashes; a subscription's and a rule's may not.
_BELOW_TOPIC = re.compile(
    r"(?P<topic>.+?)/subscriptions?"
    r"(?:/(?P<subscription>[^/]+)(?P<rules>/rules(?:/(?P<rule>[^/]+))?)?)?",
    re.IGNORECASE,
)


class Kind(Enum):
    NAMESPACE = auto()
    QUEUES = auto()
    TOPICS = auto()
    #: A queue or a topic: they share one space of names.
    ENTITY = auto()
    SUBSCRIPTIONS = auto()
    SUBSCRIPTION = auto()
    RULES = auto()
    RULE = auto()


@dataclass(frozen=True, slots=True)
class Target:
    kind: Kind
    #: The whole path, without slashes around it.
    path: str
    #: Queue or topic; empty for those that belong to the namespace.
    entity: str = ""
    subscription: str = ""
    rule: str = ""


_FIXED = {
    "$namespaceinfo": Kind.NAMESPACE,
    "$resources/queues": Kind.QUEUES,
    "$resources/topics": Kind.TOPICS,
}


def parse_target(path: str) -> Target:
    """Read a path whose percent signs are undone. Names are not checked here."""
    path = path.strip("/")
    fixed = _FIXED.get(path.casefold())
    if fixed is not None:
        return Target(fixed, path)
    match = _BELOW_TOPIC.fullmatch(path)
    if match is None:
        return Target(Kind.ENTITY, path, path)
    topic, subscription, rules, rule = match.group("topic", "subscription", "rules", "rule")
    if subscription is None:
        return Target(Kind.SUBSCRIPTIONS, path, topic)
    if rules is None:
        return Target(Kind.SUBSCRIPTION, path, topic, subscription)
    if rule is None:
        return Target(Kind.RULES, path, topic, subscription)
    return Target(Kind.RULE, path, topic, subscription, rule)
