"""What a row says of a message beyond its record: read out of the stored form.

Stored forms go in, texts come out; what cannot be read is None. A queue takes any message whose
sections are well cut, and what nobody ever looked at may be beyond reading: that is no error.
"""

from __future__ import annotations

from typing import NamedTuple

from twinbus.amqp import codec
from twinbus.amqp.errors import DecodeError
from twinbus.core.errors import BusError
from twinbus.engine import stored as form
from twinbus.engine.message import MESSAGE_ID, Message

_SOURCE = "x-opt-deadletter-source"
_BACKLOG_PATH = "x-ms-path"
_REASON = "DeadLetterReason"
_DESCRIPTION = "DeadLetterErrorDescription"

# Properties as a short list whose first field is a short text: what nearly all clients send.
_PROPERTIES = b"\x00\x53\x73\xc0"
_SHORT_TEXT = 0xA1

#: Texts are cut to this. A sender may make them as long as its properties can be, and many such
#: rows would be more than a column holds, or the capturing process.
CHARS_MAX = 4096


class Story(NamedTuple):
    """What a message in a dead-letter or backlog queue tells of itself."""

    session_id: str | None
    reason: str | None
    description: str | None
    correlation: str | None


def message_id(stored: bytes) -> str | None:
    start = form.bare_start(stored)
    try:
        if stored.startswith(_PROPERTIES, start) and stored[start + 6] == _SHORT_TEXT:
            length = stored[start + 7]
            if length + 3 <= stored[start + 4]:
                return stored[start + 8 : start + 8 + length].decode()
        return id_text(Message(stored).properties()[MESSAGE_ID])
    except (DecodeError, BusError, IndexError, UnicodeDecodeError):
        return None


def id_text(value: object) -> str | None:
    """A message id of any type as a text."""
    if isinstance(value, bytes):
        return value.hex()[:CHARS_MAX]
    return None if value is None else str(value)[:CHARS_MAX]


def dead_letter_story(stored: bytes) -> Story:
    """What dead-lettering wrote on a message (D2)."""
    properties = _application_properties(stored)
    try:
        source = form.annotation(stored, _SOURCE)
    except DecodeError:
        source = None
    return Story(
        _session_id(stored),
        _text(properties.get(_REASON)),
        _text(properties.get(_DESCRIPTION)),
        _text(source),
    )


def backlog_story(stored: bytes) -> Story:
    """Where a message in a backlog queue is meant to go (P8)."""
    path = _application_properties(stored).get(_BACKLOG_PATH)
    return Story(_session_id(stored), None, None, _text(path))


def _session_id(stored: bytes) -> str | None:
    try:
        return _text(Message(stored).session_id())
    except (DecodeError, BusError):
        return None


def _application_properties(stored: bytes) -> dict[str, object]:
    try:
        pairs = Message(stored).application_properties()
    except DecodeError:
        return {}
    wanted = (_REASON, _DESCRIPTION, _BACKLOG_PATH)
    found: dict[str, object] = {}
    for key, raw in pairs:
        if key in wanted:
            try:
                found[str(key)] = codec.decode_whole(raw)
            except DecodeError:
                continue
    return found


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")[:CHARS_MAX]
    return None if value is None else str(value)[:CHARS_MAX]
