"""The settings of entities as options of the command line, by the SDK's names, and back."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

from twinbus.cli.commands import Setting
from twinbus.cli.failures import NOT_FOUND, USAGE, CommandError
from twinbus.core.units import duration_to_iso, ms_from_datetime
from twinbus.forms.values import time_to_json

T = TypeVar("T")


def _duration(name: str, what: str) -> Setting:
    return Setting(name, str, f"{what} ISO 8601, such as PT30S, PT5M or P14D.", is_duration=True)


_EVERY = (
    _duration("default_message_time_to_live", "How long messages live."),
    _duration("auto_delete_on_idle", "Delete it when unused for so long."),
    Setting("enable_batched_operations", bool, "Let the broker batch its writes."),
    Setting("user_metadata", str, "Anything you want to remember."),
)
_RECEIVED_FROM = (
    _duration("lock_duration", "How long a receiver has a message."),
    Setting("max_delivery_count", int, "Dead-letter after so many failed deliveries."),
    Setting("dead_lettering_on_message_expiration", bool, "Keep expired messages."),
    Setting("forward_to", str, "Hand every message on to this queue or topic."),
    Setting("forward_dead_lettered_messages_to", str, "Hand dead letters on to this one."),
)
_SENT_TO = (
    Setting("max_size_in_megabytes", int, "Refuse sends when it is this large."),
    Setting("max_message_size_in_kilobytes", int, "The largest message."),
    _duration("duplicate_detection_history_time_window", "Remember ids for it."),
)
_AT_BIRTH_SENT_TO = (
    Setting("requires_duplicate_detection", bool, "Drop a second message with the same id."),
    Setting("enable_partitioning", bool, "Spread it over several stores (Azure)."),
)
_SESSION = Setting("requires_session", bool, "Deliver by session, in order.")
_FILTER_ERRORS = Setting(
    "dead_lettering_on_filter_evaluation_exceptions", bool, "Keep messages whose filter fails."
)
_ORDERING = Setting("support_ordering", bool, "Keep the order of messages.")
_STATUS = Setting("status", str, "Active, Disabled, SendDisabled or ReceiveDisabled.")

QUEUE_CREATE = (*_RECEIVED_FROM, *_SENT_TO, *_EVERY, *_AT_BIRTH_SENT_TO, _SESSION)
QUEUE_UPDATE = (*_RECEIVED_FROM, *_SENT_TO, *_EVERY, _STATUS)
TOPIC_CREATE = (*_SENT_TO, *_EVERY, *_AT_BIRTH_SENT_TO, _ORDERING)
TOPIC_UPDATE = (*_SENT_TO, *_EVERY, _ORDERING, _STATUS)
SUBSCRIPTION_CREATE = (*_RECEIVED_FROM, *_EVERY, _SESSION, _FILTER_ERRORS)
SUBSCRIPTION_UPDATE = (*_RECEIVED_FROM, *_EVERY, _FILTER_ERRORS, _STATUS)

# Counts and times that the SDK has on objects of their own.
_RUNTIME = (
    "active_message_count",
    "dead_letter_message_count",
    "scheduled_message_count",
    "transfer_message_count",
    "transfer_dead_letter_message_count",
    "total_message_count",
    "subscription_count",
    "size_in_bytes",
    "created_at_utc",
    "updated_at_utc",
    "accessed_at_utc",
)


def at_birth(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a new entity: what is empty is left to the broker."""
    return {name: value for name, value in settings.items() if value != ""}


def apply(properties: Any, settings: Mapping[str, Any]) -> None:
    """Change an entity's properties as the options say; an empty text clears a setting."""
    if not settings:
        raise CommandError("nothing to change: give a setting; --help lists them", USAGE)
    for name, value in settings.items():
        setattr(properties, name, None if value == "" else value)


def found(get: Callable[[str], T], kind: str, name: str) -> T:
    """Ask for an entity of one kind.

    A broker also answers with one of another kind, and the SDK finds nothing in the answer.
    """
    try:
        return get(name)
    except AttributeError as error:
        raise CommandError(f"there is no {kind} '{name}'", NOT_FOUND) from error


def shown(properties: Any, runtime: Any = None) -> dict[str, Any]:
    """An entity's properties, and its counts and times if given, as plain data."""
    found = {name: plain(value) for name, value in properties.items()}
    # Keys are secrets: they do not belong on a screen or in a log.
    for rule in found.get("authorization_rules") or []:
        rule.pop("primary_key", None)
        rule.pop("secondary_key", None)
    if runtime is not None:
        given = {name: getattr(runtime, name, None) for name in _RUNTIME}
        found |= {name: plain(value) for name, value in given.items() if value is not None}
    return found


def plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return duration_to_iso(value // timedelta(milliseconds=1))
    if isinstance(value, datetime):
        return time_to_json(ms_from_datetime(value))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "items"):
        return {str(name): plain(item) for name, item in value.items()}
    return value
