"""Messages as the console shows them: a line for a list, all of it for one.

A stream and a number go in, JSON comes out. Nothing is locked and nothing changes.
"""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import UUID

from twinbus.admin.console.streams import state_name
from twinbus.amqp import codec
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.sections import AMQP_SEQUENCE, AMQP_VALUE, DATA
from twinbus.core.errors import BusError
from twinbus.engine import message as place
from twinbus.engine import stored as form
from twinbus.engine.index import DEFERRED, DEFERRED_LOCKED, SCHEDULED
from twinbus.engine.message import Message
from twinbus.engine.stream import Stream
from twinbus.forms import message_form, values

EXCERPT_BYTES = 160
#: Bodies are shown up to here; longer ones are there to be downloaded.
BODY_BYTES_MAX = 256 * 1024
#: A message longer than this cannot be edited in a browser.
EDIT_BYTES_MAX = 512 * 1024
_WIRE_STATE = {DEFERRED: 1, DEFERRED_LOCKED: 1, SCHEDULED: 2}
_SHORT_BINARY = 0xA0
_EXACT_MAX = 2**53 - 1
_NUMBERS = ("long", "ulong", "int", "uint", "short", "ushort", "byte", "ubyte", "timestamp")
_TRACES = ("traceparent", "Diagnostic-Id", "tracestate")

Json = dict[str, Any]


def line(stream: Stream, seq: int) -> Json:
    """What a list says of a message."""
    stored = stream.stored(seq)
    message = Message(stored)
    lock = stream.locked.get(seq)
    shown: Json = {
        "seq": seq,
        "state": state_name(stream, seq),
        "enqueued": stream.enqueued_ms(seq),
        "expires": stream.expires_ms(seq),
        "size": len(stored),
        "deliveries": stream.counts.get(seq, 0),
        "due": stream.due.get(seq, 0),
        "locked_until": 0 if lock is None else lock.locked_until_ms,
    }
    try:
        fields = message.properties()
    except BusError:
        fields = [None] * 13
    shown["id"] = _text(fields[place.MESSAGE_ID])
    shown["subject"] = _text(fields[place.SUBJECT])
    shown["session"] = _text(fields[place.SESSION_ID])
    shown["content_type"] = _text(fields[place.CONTENT_TYPE])
    own = _own_properties(message)
    shown["reason"] = own.get("DeadLetterReason")
    shown["traced"] = any(name in own for name in _TRACES)
    shown["excerpt"] = _body(stored, EXCERPT_BYTES).decode(errors="replace")
    return shown


def whole(stream: Stream, seq: int) -> Json:
    """Everything about a message; `message` is the form in which it can be edited and sent."""
    stored = stream.stored(seq)
    state = _WIRE_STATE.get(stream.index.state(seq), 0)
    head = form.free_head(stored, seq, stream.enqueued_ms(seq), stream.counts.get(seq, 0), state)
    body = _body(stored)
    shown = line(stream, seq)
    own = _own_properties(Message(stored))
    shown["trace"] = {name: own[name] for name in _TRACES if name in own}
    shown["body_size"] = len(body)
    shown["body"] = base64.b64encode(body[:BODY_BYTES_MAX]).decode()
    shown["message"] = None
    if len(stored) <= EDIT_BYTES_MAX:
        payload = head + stored[form.bare_start(stored) :]
        try:
            shown["message"] = _for_browser(message_form.to_json(payload))
        except DecodeError as error:
            # A stranger's bytes: they can be looked at and moved, not edited.
            shown["unreadable"] = str(error)
    return shown


def body_of(stream: Stream, seq: int) -> bytes:
    return _body(stream.stored(seq))


def message_json(message: Message) -> Json:
    """A message that is in no stream, as a form."""
    head = form.free_head(message.stored, 0, 0, 0)
    shown = message_form.to_json(head + message.stored[form.bare_start(message.stored) :])
    for name in ("sequence_number", "enqueued_time_utc", "delivery_count"):
        shown.pop(name, None)
    return _for_browser(shown)


def _for_browser(message: Json) -> Json:
    """A whole message; a property that is called like a type is none."""
    return {
        name: (
            {key: browser_safe(item) for key, item in value.items()}
            if name in message_form.MAPS and isinstance(value, dict)
            else browser_safe(value)
        )
        for name, value in message.items()
    }


def browser_safe(value: Any, tag: str = "") -> Any:
    """The same JSON without what a browser would change.

    It reads every number as a double: long integers get rounded, and 1.0 comes back as 1. Such
    numbers get their type, and digits where need be.
    """
    if isinstance(value, dict):
        only = next(iter(value)) if len(value) == 1 else ""
        return {key: browser_safe(item, only) for key, item in value.items()}
    if isinstance(value, list):
        return [browser_safe(item) for item in value]
    if type(value) is int and abs(value) > _EXACT_MAX:
        return str(value) if tag in _NUMBERS else {"long": str(value)}
    if type(value) is float and value.is_integer():
        # Minus nought would lose its sign.
        kept = value if str(value) != "-0.0" else "-0.0"
        return kept if tag in ("double", "float") else {"double": kept}
    return value


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.hex()
    return None if value is None else str(value)


def _own_properties(message: Message) -> dict[str, str]:
    """The application properties that are texts; the others are for the whole view."""
    try:
        pairs = [
            (str(key), codec.decode_whole(raw)) for key, raw in message.application_properties()
        ]
    except DecodeError:
        return {}
    return {key: str(value) for key, value in pairs if isinstance(value, str | UUID)}


def _body(stored: bytes, bytes_max: int = 2**62) -> bytes:
    """The body's first bytes: those of data sections, or the text of an AMQP value."""
    start = pos = form.bare_start(stored)
    body = b""
    try:
        while pos < len(stored) and len(body) < bytes_max:
            end = form.section_end(stored, pos)
            code = stored[pos + 2]
            if code == DATA:
                at = pos + (5 if stored[pos + 3] == _SHORT_BINARY else 8)
                body += stored[at : min(end, at + bytes_max)]
            elif code in (AMQP_VALUE, AMQP_SEQUENCE):
                body += _value(codec.decode_whole(stored[pos + 3 : end]))
            pos = end
    except DecodeError:
        return stored[start : start + min(len(stored), bytes_max)]
    return body[:bytes_max]


def _value(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        # Half a character (see `values`) is no text.
        return value.encode(errors="replace")
    return json.dumps(values.to_json(value), ensure_ascii=False).encode()
