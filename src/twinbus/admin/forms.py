"""How each setting of an entity looks in XML, and in which order the elements stand.

One table per kind of entity serves both reading and writing. A plain name in a table is an
element that the broker works out itself: it is written, and passed over when read.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from twinbus.admin.markup import child, children, element, leaf
from twinbus.core.descriptions import AuthorizationRule
from twinbus.core.names import strip_authority
from twinbus.core.units import duration_from_iso, duration_to_iso, time_to_iso

_INTEGER = re.compile(r"[+-]?\d{1,18}")


@dataclass(frozen=True, slots=True)
class Form:
    """The two directions of one kind of value. `read` raises ValueError for a bad one."""

    read: Callable[[Element], Any]
    #: From the element's name, the value and the host that the client spoke to.
    write: Callable[[str, Any, str], str]


@dataclass(frozen=True, slots=True)
class Setting:
    element: str
    field: str
    form: Form
    #: Chosen when the entity is made: an update that does not name it does not mean its default.
    is_fixed: bool = False


def text_of(found: Element) -> str:
    return found.text or ""


def read_integer(found: Element) -> int:
    text = text_of(found).strip()
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"'{text}' is not a whole number")
    return int(text)


def read_flag(found: Element) -> bool:
    text = text_of(found).strip().lower()
    if text not in ("true", "false", "1", "0"):
        raise ValueError(f"'{text}' is neither true nor false")
    return text in ("true", "1")


def write_flag(name: str, value: bool) -> str:
    return leaf(name, "true" if value else "false")


def _read_rules(found: Element) -> list[AuthorizationRule]:
    return [_read_rule(rule) for rule in children(found, "AuthorizationRule")]


def _read_rule(found: Element) -> AuthorizationRule:
    """Read a rule without its times: those are the broker's to say."""

    def text(name: str) -> str:
        inner = child(found, name)
        return "" if inner is None else text_of(inner).strip()

    rights = child(found, "Rights")
    return AuthorizationRule(
        name=text("KeyName"),
        rights=[] if rights is None else [text_of(r) for r in children(rights, "AccessRights")],
        primary_key=text("PrimaryKey"),
        secondary_key=text("SecondaryKey"),
    )


def _write_rule(rule: AuthorizationRule) -> str:
    rights = "".join(leaf("AccessRights", right) for right in rule.rights)
    content = (
        leaf("ClaimType", "SharedAccessKey")
        + leaf("ClaimValue", "None")
        + element("Rights", rights)
        + leaf("CreatedTime", time_to_iso(rule.created_ms))
        + leaf("ModifiedTime", time_to_iso(rule.modified_ms))
        + leaf("KeyName", rule.name)
        + leaf("PrimaryKey", rule.primary_key)
        + leaf("SecondaryKey", rule.secondary_key)
    )
    return element("AuthorizationRule", content, {"i:type": "SharedAccessAuthorizationRule"})


DURATION = Form(
    read=lambda found: duration_from_iso(text_of(found)),
    write=lambda name, value, host: leaf(name, duration_to_iso(value)),
)
INTEGER = Form(
    read=read_integer,
    write=lambda name, value, host: leaf(name, str(value)),
)
FLAG = Form(
    read=read_flag,
    write=lambda name, value, host: write_flag(name, value),
)
WORD = Form(
    read=lambda found: text_of(found).strip(),
    write=lambda name, value, host: leaf(name, value),
)
TEXT = Form(
    read=lambda found: text_of(found) or None,
    write=lambda name, value, host: "" if value is None else leaf(name, value),
)
# A forwarding target is a path inside; clients send and expect a whole address.
TARGET = Form(
    read=lambda found: strip_authority(text_of(found).strip()) or None,
    write=lambda name, value, host: "" if value is None else leaf(name, f"sb://{host}/{value}"),
)
RULES = Form(
    read=_read_rules,
    write=lambda name, value, host: element(name, "".join(map(_write_rule, value))),
)

QUEUE: tuple[Setting | str, ...] = (
    Setting("LockDuration", "lock_duration_ms", DURATION),
    Setting("MaxSizeInMegabytes", "max_size_in_megabytes", INTEGER),
    Setting("RequiresDuplicateDetection", "requires_duplicate_detection", FLAG, is_fixed=True),
    Setting("RequiresSession", "requires_session", FLAG, is_fixed=True),
    Setting("DefaultMessageTimeToLive", "default_message_time_to_live_ms", DURATION),
    Setting("DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration", FLAG),
    Setting(
        "DuplicateDetectionHistoryTimeWindow",
        "duplicate_detection_history_time_window_ms",
        DURATION,
    ),
    Setting("MaxDeliveryCount", "max_delivery_count", INTEGER),
    Setting("EnableBatchedOperations", "enable_batched_operations", FLAG),
    "SizeInBytes",
    "MessageCount",
    "IsAnonymousAccessible",
    Setting("AuthorizationRules", "authorization_rules", RULES),
    Setting("Status", "status", WORD),
    Setting("ForwardTo", "forward_to", TARGET),
    Setting("UserMetadata", "user_metadata", TEXT),
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "SupportOrdering",
    "CountDetails",
    Setting("AutoDeleteOnIdle", "auto_delete_on_idle_ms", DURATION),
    Setting("EnablePartitioning", "enable_partitioning", FLAG, is_fixed=True),
    "EntityAvailabilityStatus",
    Setting("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to", TARGET),
    Setting("EnableExpress", "enable_express", FLAG),
    Setting("MaxMessageSizeInKilobytes", "max_message_size_in_kilobytes", INTEGER),
)

TOPIC: tuple[Setting | str, ...] = (
    Setting("DefaultMessageTimeToLive", "default_message_time_to_live_ms", DURATION),
    Setting("MaxSizeInMegabytes", "max_size_in_megabytes", INTEGER),
    Setting("RequiresDuplicateDetection", "requires_duplicate_detection", FLAG, is_fixed=True),
    Setting(
        "DuplicateDetectionHistoryTimeWindow",
        "duplicate_detection_history_time_window_ms",
        DURATION,
    ),
    Setting("EnableBatchedOperations", "enable_batched_operations", FLAG),
    "SizeInBytes",
    "FilteringMessagesBeforePublishing",
    "IsAnonymousAccessible",
    Setting("AuthorizationRules", "authorization_rules", RULES),
    Setting("Status", "status", WORD),
    Setting("UserMetadata", "user_metadata", TEXT),
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    Setting("SupportOrdering", "support_ordering", FLAG),
    "CountDetails",
    "SubscriptionCount",
    "SqlFilterCount",
    "CorrelationFilterCount",
    Setting("AutoDeleteOnIdle", "auto_delete_on_idle_ms", DURATION),
    Setting("EnablePartitioning", "enable_partitioning", FLAG, is_fixed=True),
    "EntityAvailabilityStatus",
    "EnableSubscriptionPartitioning",
    Setting("EnableExpress", "enable_express", FLAG),
    Setting("MaxMessageSizeInKilobytes", "max_message_size_in_kilobytes", INTEGER),
)

SUBSCRIPTION: tuple[Setting | str, ...] = (
    Setting("LockDuration", "lock_duration_ms", DURATION),
    Setting("RequiresSession", "requires_session", FLAG, is_fixed=True),
    Setting("DefaultMessageTimeToLive", "default_message_time_to_live_ms", DURATION),
    Setting("DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration", FLAG),
    Setting(
        "DeadLetteringOnFilterEvaluationExceptions",
        "dead_lettering_on_filter_evaluation_exceptions",
        FLAG,
    ),
    "MessageCount",
    Setting("MaxDeliveryCount", "max_delivery_count", INTEGER),
    Setting("EnableBatchedOperations", "enable_batched_operations", FLAG),
    Setting("Status", "status", WORD),
    Setting("ForwardTo", "forward_to", TARGET),
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "CountDetails",
    Setting("UserMetadata", "user_metadata", TEXT),
    Setting("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to", TARGET),
    Setting("AutoDeleteOnIdle", "auto_delete_on_idle_ms", DURATION),
    "EntityAvailabilityStatus",
)

#: Element and field of each system property that a correlation filter may name, in order.
CORRELATION = (
    ("CorrelationId", "correlation_id"),
    ("MessageId", "message_id"),
    ("To", "to"),
    ("ReplyTo", "reply_to"),
    ("Label", "label"),
    ("SessionId", "session_id"),
    ("ReplyToSessionId", "reply_to_session_id"),
    ("ContentType", "content_type"),
)
#: XML Schema types that a rule's typed values may have.
VALUE_TYPES = ("string", "int", "long", "double", "boolean", "dateTime", "duration")
