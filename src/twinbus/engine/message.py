"""One message on its way through the broker, in stored form, and the changes made to it.

Properties are decoded only when somebody asks: a plain queue asks for none of them.
"""

from collections.abc import Callable
from typing import Final

from twinbus.amqp import codec
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.sections import APPLICATION_PROPERTIES, FOOTER, HEADER, PROPERTIES, split_batch
from twinbus.core import errors, limits
from twinbus.core.errors import BusError
from twinbus.core.units import UNLIMITED_MS
from twinbus.engine import stored as form

PING_CONTENT_TYPE: Final = b"application/vnd.ms-servicebus-ping"

# Constructors of lists, maps and binaries whose size is one byte.
_SHORT: Final = b"\xc0\xc1\xa0"

# Places in the properties section.
MESSAGE_ID: Final = 0
TO: Final = 2
SUBJECT: Final = 3
REPLY_TO: Final = 4
CORRELATION_ID: Final = 5
CONTENT_TYPE: Final = 6
SESSION_ID: Final = 10
REPLY_TO_SESSION_ID: Final = 12

#: The annotation by which a dead letter that is sent again says which one it is.
RESUBMISSION: Final = "x-opt-resubmission"
_ORIGINAL_SEQUENCE: Final = "x-opt-enqueue-sequence-number"
_SOURCE: Final = "x-opt-deadletter-source"
_DEATH_PROPERTIES: Final = ("DeadLetterReason", "DeadLetterErrorDescription")


class Message:
    def __init__(self, stored: bytes) -> None:
        self.stored = stored
        ttl_ms = form.ttl_of(stored)
        self.ttl_ms: int = UNLIMITED_MS if ttl_ms == form.NO_TTL else ttl_ms
        self.scheduled_ms = 0
        #: As its sender had it; what the broker adds is not held against it.
        self.wire_bytes = len(stored) - form.PREFIX_SIZE
        self.header_bytes = 0
        self.is_ping = False
        #: Where the same payload lies in the journal already; 0 when nowhere.
        self.shared = 0
        #: Several entities get it, and may share one payload in the journal.
        self.fans_out = False
        #: The same with other times to live, as it fans out: stored form and place in the journal.
        self._limited: dict[int, tuple[bytes, int]] | None = None
        self._properties: list[object] | None = None

    # --- reading ----------------------------------------------------------------------

    def section(self, code: int) -> tuple[int, int]:
        """Where a section of the bare message lies; (0, 0) if it is missing."""
        stored = self.stored
        pos = form.bare_start(stored)
        while pos < len(stored):
            end = form.section_end(stored, pos)
            if stored[pos + 2] == code:
                return pos, end
            if stored[pos + 2] > code:
                break
            pos = end
        return 0, 0

    def properties(self) -> list[object]:
        """The thirteen properties; what is not given is None."""
        if self._properties is None:
            start, end = self.section(PROPERTIES)
            try:
                fields: object = codec.decode_whole(self.stored[start + 3 : end]) if end else []
            except DecodeError as error:
                raise BusError(
                    errors.DECODE_ERROR, f"The message's properties cannot be read: {error}."
                ) from error
            if not isinstance(fields, list) or len(fields) > 13:
                raise BusError(
                    errors.DECODE_ERROR, "The message's properties are no list of at most 13."
                )
            self._properties = fields + [None] * (13 - len(fields))
        return self._properties

    def session_id(self) -> str | None:
        value = self.properties()[SESSION_ID]
        return value if isinstance(value, str) else None

    def duplicate_key(self) -> bytes:
        """What duplicates are known by: the id with its type, as bytes to compare (E7).

        A dead letter that is sent again bears the id that the entity knows from its first life.
        So it says which dead letter it is: it is no duplicate of what died, and one of itself.
        """
        key = codec.encode(self.properties()[MESSAGE_ID])
        if form.has_annotations(self.stored):
            mark = form.raw_annotation(self.stored, RESUBMISSION)
            # As long as an id may be: it is kept in memory.
            if len(mark) <= limits.MESSAGE_ID_CHARS_MAX:
                key += mark
        return key

    def application_properties(self) -> list[tuple[object, bytes]]:
        """The application properties, values as they are on the wire."""
        start, end = self.section(APPLICATION_PROPERTIES)
        return codec.map_pairs(self.stored, start + 3) if end else []

    def original_sequence(self) -> int:
        """The number that the message got where it first entered; 0 if that is here."""
        if not form.has_annotations(self.stored):
            return 0
        value = form.annotation(self.stored, _ORIGINAL_SEQUENCE)
        return value if isinstance(value, int) else 0

    def keep_original_sequence(self, seq: int) -> None:
        """Note the number that it has here, unless it brought one along."""
        self.set_annotation(_ORIGINAL_SEQUENCE, self.original_sequence() or seq)

    def is_dead_letter(self) -> bool:
        return form.has_annotations(self.stored) and bool(form.annotation(self.stored, _SOURCE))

    def copy(self) -> "Message":
        """Another message with the same content, free to change."""
        copy = Message(self.stored)
        copy.wire_bytes = self.wire_bytes
        copy.header_bytes = self.header_bytes
        return copy

    def measure(self) -> None:
        """Take the sizes anew after a change."""
        start = form.bare_start(self.stored)
        self.header_bytes = start - form.PREFIX_SIZE
        for code in (PROPERTIES, APPLICATION_PROPERTIES):
            section = self.section(code)
            self.header_bytes += section[1] - section[0]
        self.wire_bytes = len(self.stored) - form.PREFIX_SIZE

    # --- changing ---------------------------------------------------------------------

    def _changed(self, stored: bytes) -> None:
        self.stored = stored
        self.shared = 0
        self._limited = None

    def limited(self, ttl_ms: int) -> tuple[bytes, int]:
        """The stored form with another time to live, and where it lies in the journal, or 0."""
        known = self._limited
        if known is not None and ttl_ms in known:
            return known[ttl_ms]
        return form.with_ttl(self.stored, ttl_ms), 0

    def lies_at(self, location: int, stored: bytes, ttl_ms: int) -> None:
        """Its payload, as it is or with another time to live, was written: others may share it."""
        if stored is self.stored:
            self.shared = location
        elif self._limited is None:
            self._limited = {ttl_ms: (stored, location)}
        else:
            self._limited[ttl_ms] = stored, location

    def limit_ttl(self, ttl_ms: int) -> None:
        """Say in the header what time to live the message really has."""
        if ttl_ms != self.ttl_ms and ttl_ms < form.NO_TTL:
            self._changed(form.with_ttl(self.stored, ttl_ms))
            self.ttl_ms = ttl_ms

    def set_annotation(self, name: str, value: object) -> None:
        self._changed(form.with_annotation(self.stored, name, codec.encode(value)))

    def set_section(self, code: int, value: bytes) -> None:
        """Put an encoded value in the place of a section, or before the later ones."""
        stored = self.stored
        section = bytes((0x00, 0x53, code)) + value
        pos = form.bare_start(stored)
        while pos < len(stored) and stored[pos + 2] < code:
            pos = form.section_end(stored, pos)
        end = pos
        if pos < len(stored) and stored[pos + 2] == code:
            end = form.section_end(stored, pos)
        self._changed(stored[:pos] + section + stored[end:])
        if code == PROPERTIES:
            self._properties = None

    def set_properties(self, fields: list[object]) -> None:
        self.set_section(PROPERTIES, codec.encode(fields))

    def set_application_properties(self, pairs: list[tuple[object, bytes]]) -> None:
        self.set_section(APPLICATION_PROPERTIES, codec.encode_map(pairs))

    def merge_properties(self, updates: dict[object, object]) -> None:
        """Set some application properties and keep the others (R4)."""
        if not updates:
            return
        names = {str(key): value for key, value in updates.items()}
        pairs = [pair for pair in self.application_properties() if str(pair[0]) not in names]
        pairs += [(name, codec.encode(value)) for name, value in names.items()]
        self.set_application_properties(pairs)

    def buried(
        self, reason: str | None, description: str | None, source: str,
        properties: dict[object, object] | None = None,
    ) -> "Message":  # fmt: skip
        """A copy for a dead-letter queue (D2)."""
        copy = Message(self.stored)
        copy.wire_bytes = self.wire_bytes
        updates: dict[object, object] = dict(properties) if properties else {}
        if reason is not None:
            updates["DeadLetterReason"] = reason
        if description is not None:
            updates["DeadLetterErrorDescription"] = description
        copy.merge_properties(updates)
        copy.set_annotation(_SOURCE, source)
        return copy

    def revive(self, graveyard: int, seq: int) -> None:
        """Take away what dead-lettering added, and say which dead letter of which stream it was.

        Its id is known wherever it was before, however much later it gets there (`duplicate_key`).
        """
        pairs = self.application_properties()
        kept = [pair for pair in pairs if str(pair[0]) not in _DEATH_PROPERTIES]
        if len(kept) != len(pairs):
            self.set_application_properties(kept)
        self._changed(form.without_annotation(self.stored, _SOURCE))
        self.set_annotation(RESUBMISSION, f"{graveyard}:{seq}")


def take_in(payload: bytes, new_id: Callable[[], str]) -> Message:
    """Read a client's message; a DecodeError says what is wrong with it.

    One pass over the sections, by their sizes. Most messages are a header, properties and
    data; what else the broker must rewrite is left to `Front`.
    """
    size = len(payload)
    pos = 0
    prefix = form.PLAIN_HEADER
    front: form.Front | None = None
    bare_from = -1
    properties_at = properties_end = -1
    header_bytes = 0
    while pos < size:
        # Most sections are short; the call is for the others, and for what is no section.
        if pos + 4 < size and payload[pos + 3] in _SHORT and not payload[pos]:
            end = pos + 5 + payload[pos + 4]
            if end > size or payload[pos + 1] != 0x53:
                raise DecodeError("no message section", pos)
        else:
            end = form.section_end(payload, pos)
        code = payload[pos + 2]
        if code >= PROPERTIES:
            if bare_from < 0:
                bare_from = pos
            if code == PROPERTIES:
                # Every receiver reads them: one that cannot is no use to anybody.
                codec.check_list(payload, pos + 3)
                properties_at = pos
                properties_end = end
                header_bytes += end - pos
            elif code == APPLICATION_PROPERTIES:
                # The broker may have to edit them long after the sender is gone.
                codec.map_pairs(payload, pos + 3)
                header_bytes += end - pos
            elif code > FOOTER:
                raise DecodeError("unknown message section", pos)
        elif code == HEADER and pos == 0:
            prefix = form.read_header(payload[3:end])
        else:
            if front is None:
                front = form.Front(prefix)
            if bare_from >= 0:
                # pyamqp writes delivery annotations last: the bare message has a hole.
                front.pieces.append(payload[bare_from:pos])
                bare_from = -1
            front.read(payload, pos, end)
            header_bytes += end - pos
        pos = end
    bare = payload[bare_from:] if bare_from >= 0 else b""
    message = Message(form.plain(prefix, bare) if front is None else front.stored(bare))
    if front is not None:
        message.scheduled_ms = front.scheduled_ms
    elif not bare:
        raise DecodeError("the message has no body", 0)
    message.wire_bytes = size
    message.header_bytes = header_bytes
    if properties_at < 0 or not _has_first_field(payload, properties_at, properties_end):
        # Clients need an id to settle by; a message without one gets one.
        properties = message.properties()
        properties[MESSAGE_ID] = new_id()
        message.set_properties(properties)
    elif payload.find(PING_CONTENT_TYPE, properties_at, properties_end) >= 0:
        message.is_ping = message.properties()[CONTENT_TYPE] == PING_CONTENT_TYPE.decode()
    return message


def batch_parts(payload: bytes) -> list[bytes]:
    """The messages of a batch, each to be read by itself; refuse too many of them."""
    parts = split_batch(payload, limits.BATCH_MESSAGES_MAX)
    if not parts:
        raise DecodeError("the batch holds no message", 0)
    if len(parts) > limits.BATCH_MESSAGES_MAX:
        raise BusError(
            errors.MESSAGE_TOO_LARGE,
            f"A batch may hold {limits.BATCH_MESSAGES_MAX} messages at most: send several.",
        )
    return parts


def _has_first_field(payload: bytes, pos: int, end: int) -> bool:
    """Tell whether the list in the section at `pos` has a first element other than null."""
    constructor = payload[pos + 3]
    if constructor == 0xC0:
        return end - pos > 6 and payload[pos + 5] > 0 and payload[pos + 6] != 0x40
    if constructor == 0xD0:
        return end - pos > 12 and any(payload[pos + 8 : pos + 12]) and payload[pos + 12] != 0x40
    return False
