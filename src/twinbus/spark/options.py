"""The options of a read, checked: text goes in, a `ReadOptions` or an error that names the
option and says what it may be comes out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

CONNECTION_STRING = "TWINBUS_CONNECTION"
STATES = ("active", "locked", "deferred", "scheduled", "reserved")
RESERVE, DEFER = MODES = ("reserve", "defer")
PARTITIONS_MAX = 10_000
SEQUENCE_MAX = 2**63 - 1

_EITHER = ("connectionString", "entity", "includeBody", "partitions")
_BATCH = ("states", "fromSequence", "toSequence", "fromTime", "toTime")
_STREAM = ("consumer", "mode", "maxMessagesPerTrigger", "maxBatchFailures")

Value = TypeVar("Value")


class OptionError(ValueError):
    """An option is missing, unknown or wrong."""


@dataclass(frozen=True)
class ReadOptions:
    connection_string: str = field(repr=False)
    entity: str
    include_body: bool = True
    #: Into how many tasks a read is cut at most.
    partitions: int = 2
    #: Empty: all states.
    states: tuple[str, ...] = ()
    from_sequence: int = 1
    to_sequence: int = SEQUENCE_MAX
    from_time: datetime | None = None
    to_time: datetime | None = None
    consumer: str = ""
    mode: str = RESERVE
    messages_max: int = 50_000
    failures_max: int = 5


def batch_options(given: Mapping[str, str]) -> ReadOptions:
    return _parsed(given, _EITHER + _BATCH, "a batch read")


def stream_options(given: Mapping[str, str]) -> ReadOptions:
    options = _parsed(given, _EITHER + _STREAM, "a stream read")
    if not options.consumer:
        raise OptionError(
            "The option 'consumer' is missing: a name for this query, which no other query on "
            f"'{options.entity}' has. The broker keeps under it what the query holds."
        )
    return options


def _parsed(given: Mapping[str, str], allowed: tuple[str, ...], what: str) -> ReadOptions:
    text = {key.lower(): value for key, value in given.items()}
    known = {name.lower() for name in allowed}
    for key in text:
        if key not in known:
            raise OptionError(
                f"The option '{_spelled(key)}' is not one of {what}: those are "
                f"{', '.join(allowed)}."
            )

    def read(name: str, parse: Callable[[str, str], Value], default: Value) -> Value:
        value = text.get(name.lower())
        return default if value is None else parse(name, value)

    return ReadOptions(
        connection_string=_connection_string(text),
        entity=_entity(text),
        include_body=read("includeBody", _truth, True),
        partitions=read("partitions", _number(1, PARTITIONS_MAX), os.cpu_count() or 2),
        states=read("states", _states, ()),
        from_sequence=read("fromSequence", _number(0, SEQUENCE_MAX), 1),
        to_sequence=read("toSequence", _number(0, SEQUENCE_MAX), SEQUENCE_MAX),
        from_time=read("fromTime", _time, None),
        to_time=read("toTime", _time, None),
        consumer=read("consumer", _name, ""),
        mode=read("mode", _mode, RESERVE),
        messages_max=read("maxMessagesPerTrigger", _number(1, 10_000_000), 50_000),
        failures_max=read("maxBatchFailures", _number(0, 1_000_000), 5),
    )


def _spelled(key: str) -> str:
    """The option as its owner knows it; Spark hands it over in small letters."""
    return next((name for name in _BATCH + _STREAM if name.lower() == key), key)


def _connection_string(text: Mapping[str, str]) -> str:
    value = text.get("connectionstring") or os.environ.get(CONNECTION_STRING)
    if not value:
        raise OptionError(
            "The option 'connectionString' is missing: give it, or set the environment variable "
            f"{CONNECTION_STRING}."
        )
    return value


def _entity(text: Mapping[str, str]) -> str:
    value = text.get("entity", "").strip("/")
    if not value:
        raise OptionError(
            "The option 'entity' is missing: a queue, 'topic/Subscriptions/name', or one of "
            "these with '/$DeadLetterQueue' or '/$Transfer/$DeadLetterQueue' behind it."
        )
    return value


def _truth(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise OptionError(f"The option '{name}' is 'true' or 'false', not '{value}'.")
    return value.lower() == "true"


def _number(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise OptionError(
                f"The option '{name}' is a whole number from {low} to {high}, not '{value}'."
            )
        return number

    return parse


def _states(name: str, value: str) -> tuple[str, ...]:
    states = tuple(state.strip().lower() for state in value.split(","))
    for state in states:
        if state not in STATES:
            raise OptionError(
                f"The option '{name}' is a list of {', '.join(STATES)} with commas between "
                f"them; '{state}' is none of them."
            )
    return states


def _time(name: str, value: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise OptionError(
            f"The option '{name}' is a time like 2026-01-31T12:00:00Z, not '{value}'."
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _name(name: str, value: str) -> str:
    if not value.strip() or len(value) > 128:
        raise OptionError(f"The option '{name}' is a name of 1 to 128 characters.")
    return value


def _mode(name: str, value: str) -> str:
    if value.lower() not in MODES:
        raise OptionError(
            f"The option '{name}' is 'reserve' (on this broker) or 'defer' (on any Service Bus), "
            f"not '{value}'."
        )
    return value.lower()
