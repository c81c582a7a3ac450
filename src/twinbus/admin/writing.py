"""Descriptions become answers' XML: entries, feeds, errors.

Clients are particular: elements in a fixed order and in the default namespace, no
whitespace between them, names taken from `<id>` by one client and `<title>` by another.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from twinbus.admin import forms
from twinbus.admin.forms import Setting, write_flag
from twinbus.admin.markup import ATOM, INSTANCE, SERVICE_BUS, element, leaf
from twinbus.admin.ports import Counts
from twinbus.core.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.names import subscription_path
from twinbus.core.units import time_to_iso

_COUNTS_NAMESPACE = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
_SCHEMA = "http://www.w3.org/2001/XMLSchema"
_PLAIN = {"type": "text"}
_NEVER = "0001-01-01T00:00:00Z"
# Topics tell the number of their filters from this version of the API on.
_FILTER_COUNTS_SINCE = "2024-05"
_FILTER_TYPES = {
    "true": "TrueFilter",
    "false": "FalseFilter",
    "sql": "SqlFilter",
    "correlation": "CorrelationFilter",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came in: what the addresses in its answer are made of."""

    scheme: str
    #: As in the Host header, with the port.
    host: str
    namespace: str
    api_version: str

    def url(self, path: str, query: str = "") -> str:
        version = quote(self.api_version, safe="")
        return f"{self.scheme}://{self.host}/{quote(path, safe='/$~')}?{query}api-version={version}"


@dataclass(frozen=True, slots=True)
class Page:
    """A cut out of a list: which entries were asked for, and whether more remain."""

    skip: int
    top: int
    more: bool


def queue_entry(queue: QueueDescription, counts: Counts, origin: Origin) -> str:
    computed = _computed(queue.created_ms, queue.updated_ms, counts)
    content = _description("QueueDescription", queue, forms.QUEUE, computed, origin)
    return _entry(queue.name, queue.name, queue.created_ms, queue.updated_ms, content, origin)


def topic_entry(topic: TopicDescription, counts: Counts, origin: Origin) -> str:
    computed = _computed(topic.created_ms, topic.updated_ms, counts)
    computed["SubscriptionCount"] = leaf("SubscriptionCount", str(counts.subscription_count))
    if origin.api_version >= _FILTER_COUNTS_SINCE:
        computed["SqlFilterCount"] = leaf("SqlFilterCount", str(counts.sql_filter_count))
        computed["CorrelationFilterCount"] = leaf(
            "CorrelationFilterCount", str(counts.correlation_filter_count)
        )
    content = _description("TopicDescription", topic, forms.TOPIC, computed, origin)
    return _entry(topic.name, topic.name, topic.created_ms, topic.updated_ms, content, origin)


def subscription_entry(
    subscription: SubscriptionDescription, counts: Counts, origin: Origin
) -> str:
    computed = _computed(subscription.created_ms, subscription.updated_ms, counts)
    content = _description(
        "SubscriptionDescription", subscription, forms.SUBSCRIPTION, computed, origin
    )
    return _entry(
        subscription.name,
        subscription_path(subscription.topic, subscription.name),
        subscription.created_ms,
        subscription.updated_ms,
        content,
        origin,
    )


def rule_entry(topic: str, subscription: str, rule: RuleDescription, origin: Origin) -> str:
    if rule.action is None:
        action = element("Action", "", {"i:type": "EmptyRuleAction"})
    else:
        expression = _sql(rule.action, rule.action_parameters)
        action = element("Action", expression, {"i:type": "SqlRuleAction"})
    content = _root(
        "RuleDescription",
        _filter(rule)
        + action
        + leaf("CreatedAt", _time(rule.created_ms))
        + leaf("Name", rule.name),
    )
    path = f"{subscription_path(topic, subscription)}/Rules/{rule.name}"
    return _entry(rule.name, path, rule.created_ms, rule.created_ms, content, origin)


def namespace_entry(name: str, created_ms: int, origin: Origin) -> str:
    content = _root(
        "NamespaceInfo",
        leaf("CreatedTime", _time(created_ms))
        + leaf("MessagingSKU", "Standard")
        + leaf("ModifiedTime", _time(created_ms))
        + leaf("Name", name)
        + leaf("NamespaceType", "Messaging"),
    )
    return _entry(name, "$namespaceinfo", created_ms, created_ms, content, origin)


def feed(
    title: str, path: str, entries: Iterable[str], page: Page, now_ms: int, origin: Origin
) -> str:
    url = origin.url(path)
    head = leaf("title", title, _PLAIN) + leaf("id", url) + leaf("updated", _time(now_ms))
    links = element("link", "", {"rel": "self", "href": url})
    if page.more:
        # It must be the second link and name both numbers, or clients stop here.
        query = f"$skip={page.skip + page.top}&$top={page.top}&"
        links += element("link", "", {"rel": "next", "href": origin.url(path, query)})
    return element("feed", head + links + "".join(entries), {"xmlns": ATOM})


def error_body(status: int, detail: str) -> str:
    return element("Error", leaf("Code", str(status)) + leaf("Detail", detail))


def _entry(
    title: str, path: str, created_ms: int, updated_ms: int, content: str, origin: Origin
) -> str:
    url = origin.url(path)
    return element(
        "entry",
        leaf("id", url)
        + leaf("title", title, _PLAIN)
        + leaf("published", _time(created_ms))
        + leaf("updated", _time(updated_ms))
        + element("author", leaf("name", origin.namespace))
        + element("link", "", {"rel": "self", "href": url})
        + element("content", content, {"type": "application/xml"}),
        {"xmlns": ATOM},
    )


def _root(name: str, content: str) -> str:
    return element(name, content, {"xmlns": SERVICE_BUS, "xmlns:i": INSTANCE})


def _description(
    name: str,
    description: object,
    table: tuple[Setting | str, ...],
    computed: dict[str, str],
    origin: Origin,
) -> str:
    parts = [
        computed.get(item, "")
        if isinstance(item, str)
        else item.form.write(item.element, getattr(description, item.field), origin.host)
        for item in table
    ]
    return _root(name, "".join(parts))


def _computed(created_ms: int, updated_ms: int, counts: Counts) -> dict[str, str]:
    """Write the elements that no user sets; each kind of entity takes those it has."""
    total = (
        counts.active
        + counts.dead_letter
        + counts.scheduled
        + counts.transfer
        + counts.transfer_dead_letter
    )
    return {
        "SizeInBytes": leaf("SizeInBytes", str(counts.size_bytes)),
        "MessageCount": leaf("MessageCount", str(total)),
        "IsAnonymousAccessible": write_flag("IsAnonymousAccessible", False),
        "FilteringMessagesBeforePublishing": write_flag("FilteringMessagesBeforePublishing", False),
        "CreatedAt": leaf("CreatedAt", _time(created_ms)),
        "UpdatedAt": leaf("UpdatedAt", _time(updated_ms)),
        "AccessedAt": leaf("AccessedAt", _time(counts.accessed_ms)),
        "SupportOrdering": write_flag("SupportOrdering", True),
        "CountDetails": _count_details(counts),
        "EntityAvailabilityStatus": leaf("EntityAvailabilityStatus", "Available"),
        "EnableSubscriptionPartitioning": write_flag("EnableSubscriptionPartitioning", False),
    }


def _count_details(counts: Counts) -> str:
    return element(
        "CountDetails",
        leaf("d2p1:ActiveMessageCount", str(counts.active))
        + leaf("d2p1:DeadLetterMessageCount", str(counts.dead_letter))
        + leaf("d2p1:ScheduledMessageCount", str(counts.scheduled))
        + leaf("d2p1:TransferMessageCount", str(counts.transfer))
        + leaf("d2p1:TransferDeadLetterMessageCount", str(counts.transfer_dead_letter)),
        {"xmlns:d2p1": _COUNTS_NAMESPACE},
    )


def _filter(rule: RuleDescription) -> str:
    kind = {"i:type": _FILTER_TYPES[rule.filter]}
    if rule.filter != "correlation":
        return element("Filter", _sql(rule.expression, rule.parameters), kind)
    fields = "".join(
        leaf(name, rule.correlation[field])
        for name, field in forms.CORRELATION
        if field in rule.correlation
    )
    return element("Filter", fields + _typed_values("Properties", rule.properties), kind)


def _sql(expression: str, parameters: dict[str, tuple[str, str]]) -> str:
    return (
        leaf("SqlExpression", expression)
        + leaf("CompatibilityLevel", "20")
        + _typed_values("Parameters", parameters)
    )


def _typed_values(name: str, values: dict[str, tuple[str, str]]) -> str:
    if not values:
        return ""
    pairs = [
        element("KeyValueOfstringanyType", leaf("Key", key) + _typed_value(kind, text))
        for key, (kind, text) in values.items()
    ]
    return element(name, "".join(pairs))


def _typed_value(kind: str, text: str) -> str:
    # The JS client cuts five characters off the type: the prefix must have four.
    return leaf("Value", text, {"i:type": f"d6p1:{kind}", "xmlns:d6p1": _SCHEMA})


def _time(unix_ms: int) -> str:
    return time_to_iso(unix_ms) if unix_ms else _NEVER
