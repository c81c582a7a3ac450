"""A message as filters and actions see it (E8): decoded when asked, once for all rules."""

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

from twinbus.amqp import codec, decimals
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.types import (
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Symbol,
    Timestamp,
    ULong,
)
from twinbus.core.units import UNLIMITED_MS, datetime_from_ms, ms_from_datetime
from twinbus.engine import message as place
from twinbus.engine import stored as form
from twinbus.engine.message import Message
from twinbus.filters.errors import EvaluationError
from twinbus.filters.values import MISSING, Missing, Value

# The first number that a long cannot hold.
_LONG_END: Final = 2**63

# System properties that are fields of the properties section.
_FIELDS: Final = {
    "message_id": place.MESSAGE_ID,
    "to": place.TO,
    "label": place.SUBJECT,
    "reply_to": place.REPLY_TO,
    "correlation_id": place.CORRELATION_ID,
    "content_type": place.CONTENT_TYPE,
    "session_id": place.SESSION_ID,
    "reply_to_session_id": place.REPLY_TO_SESSION_ID,
}
# System properties that are message annotations.
_ANNOTATIONS: Final = {
    "partition_key": "x-opt-partition-key",
    "via_partition_key": "x-opt-via-partition-key",
    "scheduled_enqueue_time_utc": form.SCHEDULED_TIME,
    "enqueued_sequence_number": "x-opt-enqueue-sequence-number",
    "dead_letter_source": "x-opt-deadletter-source",
}


class View:
    """Reads, and for actions changes, one message. Fields the broker sets later are None."""

    def __init__(self, message: Message, new_id: Callable[[], UUID]) -> None:
        self._message = message
        self._new_id = new_id
        self._user: dict[str, tuple[str, Value]] | None = None

    def system(self, name: str) -> Value:
        field = _FIELDS.get(name)
        if field is not None:
            value = self._message.properties()[field]
            # An id may be a number or a GUID; filters know it as a text.
            return str(value) if isinstance(value, UUID | int) else plain(value)
        if name == "time_to_live":
            ttl_ms = self._message.ttl_ms
            return None if ttl_ms >= UNLIMITED_MS else timedelta(milliseconds=ttl_ms)
        if name == "size":
            return self._message.wire_bytes
        if name == "delivery_count":
            return 0
        annotation = _ANNOTATIONS.get(name)
        if annotation is None:
            return None
        try:
            return plain(form.annotation(self._message.stored, annotation))
        except DecodeError as error:
            raise EvaluationError(f"The annotation {annotation} cannot be read: {error}.") from None

    def _properties(self) -> dict[str, tuple[str, Value]]:
        if self._user is None:
            user: dict[str, tuple[str, Value]] = {}
            try:
                for key, raw in self._message.application_properties():
                    user[str(key).casefold()] = (str(key), plain(codec.decode_whole(raw)))
            except DecodeError as error:
                raise EvaluationError(f"The properties cannot be read: {error}.") from None
            self._user = user
        return self._user

    def user(self, name: str) -> Value | Missing:
        found = self._properties().get(name)
        return MISSING if found is None else found[1]

    def new_id(self) -> UUID:
        return self._new_id()

    # --- for actions ------------------------------------------------------------------

    def set_user(self, name: str, value: Value) -> None:
        pairs = self._without(name.casefold())
        pairs.append((name, codec.encode(_wire(value))))
        self._message.set_application_properties(pairs)
        self._user = None

    def remove_user(self, name: str) -> None:
        self._message.set_application_properties(self._without(name))
        self._user = None

    def _without(self, folded: str) -> list[tuple[object, bytes]]:
        pairs = self._message.application_properties()
        return [pair for pair in pairs if str(pair[0]).casefold() != folded]

    def set_system(self, name: str, value: Value) -> None:
        field = _FIELDS.get(name)
        if field is not None:
            fields = list(self._message.properties())
            # A text elsewhere, a symbol here: strict clients see nothing else.
            is_symbol = field == place.CONTENT_TYPE and isinstance(value, str)
            fields[field] = Symbol(value) if is_symbol else _wire(value)
            self._message.set_properties(fields)
        elif name == "time_to_live" and isinstance(value, timedelta):
            self._message.limit_ttl(value // timedelta(milliseconds=1))
        elif name in _ANNOTATIONS:
            self._message.set_annotation(_ANNOTATIONS[name], _wire(value))


def plain(value: object) -> Value:
    """An AMQP value as filters know it: Python's own types."""
    if value is None or isinstance(value, bool | UUID | datetime):
        return value
    if isinstance(value, Timestamp):
        return datetime_from_ms(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str | Char):
        return str(value)
    if isinstance(value, Decimal32 | Decimal64 | Decimal128):
        return decimals.read(value)
    if isinstance(value, bytes):
        return bytes(value)
    return None


def _wire(value: Value) -> object:
    if isinstance(value, datetime):
        return Timestamp(ms_from_datetime(value))
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, int) and not -_LONG_END <= value < _LONG_END:
        if not 0 <= value < 2 * _LONG_END:
            raise EvaluationError(f"{value} does not fit 64 bits.")
        return ULong(value)
    if value is None or isinstance(value, bool | int | float | str | bytes | UUID):
        return value
    if isinstance(value, Decimal):
        return decimals.write(value) or str(value)
    return str(value)
