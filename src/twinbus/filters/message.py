"""What a filter sees of a message, and the names of its system properties.

The engine implements the two protocols over its own messages and may decode lazily. This
module holds no message and knows no encoding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias
from uuid import UUID

from twinbus.core import limits
from twinbus.filters.values import Kind, Missing, Value


class MessageView(Protocol):
    """A message as filters read it."""

    def system(self, name: str) -> Value:
        """Give a system property by its canonical name (see `SYSTEM_PROPERTIES`), None if unset."""

    def user(self, name: str) -> Value | Missing:
        """Give an application property, MISSING if absent.

        Names are compared without regard to case; `name` arrives case-folded.
        """

    def new_id(self) -> UUID:
        """Give a fresh GUID; chance comes from the caller, never from this package."""


class MutableMessageView(MessageView, Protocol):
    """A message's own copy, as actions change it."""

    def set_user(self, name: str, value: Value) -> None:
        """Set an application property; `name` arrives as written.

        It takes the place of one whose name differs in case only.
        """

    def remove_user(self, name: str) -> None:
        """Remove an application property if it is there; `name` arrives case-folded."""

    def set_system(self, name: str, value: Value) -> None:
        """Set a system property by its canonical name; None clears it."""


#: An operand, compiled.
Fetch: TypeAlias = Callable[[MessageView], Value | Missing]
#: A condition, compiled; None is unknown.
Test: TypeAlias = Callable[[MessageView], bool | None]


@dataclass(frozen=True, slots=True)
class SystemProperty:
    """One row of the table of system properties."""

    #: Canonical name, the one that the views know.
    name: str
    kind: Kind
    #: Whether an action may set it.
    writable: bool = False
    #: Whether every message has it, so that an action may not clear it.
    required: bool = False
    chars_max: int = limits.HEADER_BYTES_MAX


_ROWS = {
    ("MessageId",): SystemProperty(
        "message_id", Kind.TEXT, True, True, chars_max=limits.MESSAGE_ID_CHARS_MAX
    ),
    ("CorrelationId",): SystemProperty("correlation_id", Kind.TEXT, True),
    ("To",): SystemProperty("to", Kind.TEXT, True),
    ("ReplyTo",): SystemProperty("reply_to", Kind.TEXT, True),
    ("Label", "Subject"): SystemProperty("label", Kind.TEXT, True),
    ("SessionId",): SystemProperty(
        "session_id", Kind.TEXT, True, chars_max=limits.SESSION_ID_CHARS_MAX
    ),
    ("ReplyToSessionId",): SystemProperty(
        "reply_to_session_id", Kind.TEXT, True, chars_max=limits.SESSION_ID_CHARS_MAX
    ),
    ("ContentType",): SystemProperty("content_type", Kind.TEXT, True),
    ("PartitionKey",): SystemProperty(
        "partition_key", Kind.TEXT, True, chars_max=limits.SESSION_ID_CHARS_MAX
    ),
    ("ViaPartitionKey", "TransactionPartitionKey"): SystemProperty(
        "via_partition_key", Kind.TEXT, True, chars_max=limits.SESSION_ID_CHARS_MAX
    ),
    ("TimeToLive",): SystemProperty("time_to_live", Kind.DURATION, True),
    ("ScheduledEnqueueTimeUtc", "ScheduledEnqueueTime"): SystemProperty(
        "scheduled_enqueue_time_utc", Kind.MOMENT, True
    ),
    ("EnqueuedTimeUtc", "EnqueuedTime"): SystemProperty("enqueued_time_utc", Kind.MOMENT),
    ("ExpiresAtUtc", "ExpiresAt"): SystemProperty("expires_at_utc", Kind.MOMENT),
    ("LockedUntilUtc", "LockedUntil"): SystemProperty("locked_until_utc", Kind.MOMENT),
    ("LockToken",): SystemProperty("lock_token", Kind.GUID),
    ("SequenceNumber",): SystemProperty("sequence_number", Kind.NUMBER),
    ("EnqueuedSequenceNumber",): SystemProperty("enqueued_sequence_number", Kind.NUMBER),
    ("DeliveryCount",): SystemProperty("delivery_count", Kind.NUMBER),
    ("Size",): SystemProperty("size", Kind.NUMBER),
    ("State",): SystemProperty("state", Kind.TEXT),
    ("DeadLetterSource",): SystemProperty("dead_letter_source", Kind.TEXT),
}

#: By the name that expressions use, case-folded.
SYSTEM_PROPERTIES = {name.casefold(): row for names, row in _ROWS.items() for name in names}

#: For messages to people.
SYSTEM_NAMES = ", ".join(sorted(name for names in _ROWS for name in names))
