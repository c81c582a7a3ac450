"""What the user says about an entity (E3): settings, their defaults, what is allowed.

Plain data. The engine obeys it, the admin API reads and writes it, the journal keeps it
as JSON, which `read` turns back: a file from before a field was added still reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from twinbus.core.errors import ARGUMENT_ERROR, NOT_ALLOWED, BusError
from twinbus.core.units import DAY_MS, MINUTE_MS, SECOND_MS, UNLIMITED_MS

ACTIVE = "Active"
DISABLED = "Disabled"
SEND_DISABLED = "SendDisabled"
RECEIVE_DISABLED = "ReceiveDisabled"
STATUSES = (ACTIVE, DISABLED, SEND_DISABLED, RECEIVE_DISABLED)

SEND = "Send"
LISTEN = "Listen"
MANAGE = "Manage"

INT32_MAX = 2**31 - 1
DEFAULT_RULE = "$Default"
DUPLICATE_WINDOW_MS_MAX = 7 * DAY_MS


@dataclass(slots=True)
class AuthorizationRule:
    """A named pair of keys and what they allow. Two keys, so that one can be rotated."""

    name: str
    rights: list[str]
    #: Kept out of whatever is printed or logged by accident.
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    created_ms: int = 0
    modified_ms: int = 0

    def check(self) -> None:
        if not self.name:
            raise BusError(ARGUMENT_ERROR, "An authorization rule needs a key name.")
        unknown = [right for right in self.rights if right not in (SEND, LISTEN, MANAGE)]
        if unknown or not self.rights:
            raise BusError(
                ARGUMENT_ERROR,
                f"The rights of '{self.name}' must be some of Manage, Send and Listen;"
                f" got {self.rights}.",
            )


@dataclass(slots=True)
class QueueDescription:
    name: str
    lock_duration_ms: int = 30 * SECOND_MS
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live_ms: int = UNLIMITED_MS
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window_ms: int = 10 * MINUTE_MS
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int = UNLIMITED_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    max_message_size_in_kilobytes: int = 256
    authorization_rules: list[AuthorizationRule] = field(default_factory=list)
    created_ms: int = 0
    updated_ms: int = 0

    def check(self) -> None:
        _check_lock(self.lock_duration_ms)
        _check_delivery_count(self.max_delivery_count)
        _check_time_to_live(self.default_message_time_to_live_ms)
        _check_window(self.duplicate_detection_history_time_window_ms)
        _check_idle(self.auto_delete_on_idle_ms)
        _check_size(self.max_size_in_megabytes)
        _check_message_size(self.max_message_size_in_kilobytes)
        _check_status(self.status)
        _check_metadata(self.user_metadata)
        _check_rules(self.authorization_rules)
        if self.requires_session and self.forward_to:
            raise BusError(
                ARGUMENT_ERROR, f"Queue '{self.name}' requires sessions and so cannot forward."
            )

    def check_update(self, old: "QueueDescription") -> None:
        _check_unchanged(
            self,
            old,
            "requires_duplicate_detection",
            "requires_session",
            "enable_partitioning",
        )


@dataclass(slots=True)
class TopicDescription:
    name: str
    default_message_time_to_live_ms: int = UNLIMITED_MS
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window_ms: int = 10 * MINUTE_MS
    enable_batched_operations: bool = True
    status: str = ACTIVE
    user_metadata: str | None = None
    support_ordering: bool = True
    auto_delete_on_idle_ms: int = UNLIMITED_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    max_message_size_in_kilobytes: int = 256
    authorization_rules: list[AuthorizationRule] = field(default_factory=list)
    created_ms: int = 0
    updated_ms: int = 0

    def check(self) -> None:
        _check_time_to_live(self.default_message_time_to_live_ms)
        _check_window(self.duplicate_detection_history_time_window_ms)
        _check_idle(self.auto_delete_on_idle_ms)
        _check_size(self.max_size_in_megabytes)
        _check_message_size(self.max_message_size_in_kilobytes)
        _check_status(self.status)
        _check_metadata(self.user_metadata)
        _check_rules(self.authorization_rules)

    def check_update(self, old: "TopicDescription") -> None:
        _check_unchanged(self, old, "requires_duplicate_detection", "enable_partitioning")


@dataclass(slots=True)
class SubscriptionDescription:
    topic: str
    name: str
    lock_duration_ms: int = 30 * SECOND_MS
    requires_session: bool = False
    default_message_time_to_live_ms: int = UNLIMITED_MS
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int = UNLIMITED_MS
    created_ms: int = 0
    updated_ms: int = 0

    def check(self) -> None:
        _check_lock(self.lock_duration_ms)
        _check_delivery_count(self.max_delivery_count)
        _check_time_to_live(self.default_message_time_to_live_ms)
        _check_idle(self.auto_delete_on_idle_ms)
        _check_status(self.status)
        _check_metadata(self.user_metadata)
        if self.requires_session and self.forward_to:
            raise BusError(
                ARGUMENT_ERROR,
                f"Subscription '{self.name}' requires sessions and so cannot forward.",
            )

    def check_update(self, old: "SubscriptionDescription") -> None:
        _check_unchanged(self, old, "requires_session")


@dataclass(slots=True)
class RuleDescription:
    """A filter and, maybe, an action. `filter` is one of true, false, sql, correlation.

    Typed values (`parameters`, `properties`) are pairs of an XML Schema type name (string,
    int, long, double, boolean, dateTime, duration) and the value's text, kept as sent.
    """

    name: str
    filter: str = "true"
    expression: str = "1=1"
    parameters: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: correlation_id, message_id, to, reply_to, label, session_id, reply_to_session_id,
    #: content_type: only those given.
    correlation: dict[str, str] = field(default_factory=dict)
    properties: dict[str, tuple[str, str]] = field(default_factory=dict)
    action: str | None = None
    action_parameters: dict[str, tuple[str, str]] = field(default_factory=dict)
    created_ms: int = 0

    def chars(self) -> int:
        """How much it says."""
        typed = (self.parameters, self.properties, self.action_parameters)
        return (
            len(self.name)
            + len(self.expression)
            + len(self.action or "")
            + sum(len(name) + len(text) for name, text in self.correlation.items())
            + sum(len(n) + len(kind) + len(t) for some in typed for n, (kind, t) in some.items())
        )


D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription, RuleDescription)


def read(kind: type[D], given: Mapping[str, Any]) -> D:
    """Make a description of what `asdict` gave once; fields unknown here are passed over."""
    known = {f.name for f in fields(kind)}
    values: dict[str, Any] = {k: v for k, v in given.items() if k in known}
    if "authorization_rules" in values:
        values["authorization_rules"] = [
            AuthorizationRule(**rule) for rule in values["authorization_rules"]
        ]
    for name in ("parameters", "properties", "action_parameters"):
        if name in values:
            values[name] = {key: (pair[0], pair[1]) for key, pair in values[name].items()}
    return kind(**values)


def _refuse(text: str) -> BusError:
    return BusError(ARGUMENT_ERROR, text)


def _check_lock(lock_duration_ms: int) -> None:
    if not 5 * SECOND_MS <= lock_duration_ms <= 5 * MINUTE_MS:
        raise _refuse("LockDuration must be from 5 seconds to 5 minutes.")


def _check_delivery_count(count: int) -> None:
    if not 1 <= count <= INT32_MAX:
        raise _refuse(f"MaxDeliveryCount must be from 1 to {INT32_MAX}.")


def _check_time_to_live(ttl_ms: int) -> None:
    if ttl_ms < SECOND_MS:
        raise _refuse("DefaultMessageTimeToLive must be at least 1 second.")


def _check_window(window_ms: int) -> None:
    if not 20 * SECOND_MS <= window_ms <= DUPLICATE_WINDOW_MS_MAX:
        raise _refuse("DuplicateDetectionHistoryTimeWindow must be from 20 seconds to 7 days.")


def _check_idle(idle_ms: int) -> None:
    if idle_ms < 5 * MINUTE_MS:
        raise _refuse("AutoDeleteOnIdle must be at least 5 minutes.")


def _check_size(megabytes: int) -> None:
    if not 1 <= megabytes <= 81_920:
        raise _refuse("MaxSizeInMegabytes must be from 1 to 81920.")


def _check_message_size(kilobytes: int) -> None:
    if kilobytes != 256 and not 1024 <= kilobytes <= 102_400:
        raise _refuse(
            "MaxMessageSizeInKilobytes must be from 1024 to 102400 (or the default, 256)."
        )


def _check_status(status: str) -> None:
    if status not in STATUSES:
        raise _refuse(f"Status must be one of {', '.join(STATUSES)}; got '{status}'.")


def _check_metadata(metadata: str | None) -> None:
    if metadata is not None and len(metadata) > 1024:
        raise _refuse("UserMetadata may have at most 1024 characters.")


def _check_rules(rules: list[AuthorizationRule]) -> None:
    if len(rules) > 12:
        raise _refuse("An entity may have at most 12 authorization rules.")
    for rule in rules:
        rule.check()


def _check_unchanged(new: object, old: object, *names: str) -> None:
    for name in names:
        if getattr(new, name) != getattr(old, name):
            words = "".join(part.capitalize() for part in name.split("_"))
            raise BusError(
                NOT_ALLOWED, f"{words} cannot be changed once the entity exists; make a new one."
            )
