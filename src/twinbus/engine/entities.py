"""What is done with a message that is sent: in queues, and in whatever else takes one.

`check` refuses, `accept` places: a batch is checked whole before any of it is placed (S6).
Forwarding happens as a message is placed, so a message is never between two entities.
"""

from dataclasses import asdict
from typing import Final
from uuid import UUID

from twinbus.core import descriptions, errors, limits, names
from twinbus.core.descriptions import QueueDescription, TopicDescription
from twinbus.core.errors import BusError
from twinbus.core.units import UNLIMITED_MS
from twinbus.engine import observations, records
from twinbus.engine.consumer import Attachment, Lock
from twinbus.engine.duplicates import DuplicateHistory
from twinbus.engine.index import ACTIVE, SCHEDULED
from twinbus.engine.kernel import Kernel
from twinbus.engine.message import MESSAGE_ID, Message
from twinbus.engine.metering import UNIT_BYTES, extra_units
from twinbus.engine.sessions import SessionTable
from twinbus.engine.shelf import Shelf
from twinbus.engine.stream import Stream
from twinbus.engine.upkeep import MOVE_EFFORT, Owner

QUEUE: Final = 1
TOPIC: Final = 2
SUBSCRIPTION: Final = 3

_MEGABYTE: Final = 1024 * 1024


class Directory:
    """How an entity finds another one of its namespace."""

    def find(self, path: str) -> "Entity | None":
        raise NotImplementedError

    def stream(self, owner: "Entity", number: int) -> Stream:
        """Give the stream of that number, with what the journal told of it."""
        raise NotImplementedError

    def new_uuid(self) -> UUID:
        raise NotImplementedError


class Entity(Owner):
    """What queues, topics and subscriptions have in common."""

    kind = 0

    def __init__(self, kernel: Kernel, directory: Directory, number: int, path: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.directory = directory
        self.number = number
        self.path = path
        #: Where its description lies in the journal.
        self.location = 0
        self.senders: dict[Attachment, None] = {}
        self.streams: dict[int, Stream] = {}
        #: The stream of the entity's own messages; a topic's holds only scheduled ones.
        self.main: Stream = directory.stream(self, number << 2 | names.MAIN_STREAM)
        self.main.path = path
        self.streams[names.MAIN_STREAM] = self.main
        self.bytes_used = self.main.index.bytes
        self.send_disabled = False
        self.receive_disabled = False
        self.message_bytes_max: int = limits.MESSAGE_BYTES_MAX
        self.bytes_max = 0
        self.time_to_live_ms: int = UNLIMITED_MS
        self.forward_to: str | None = None
        self.requires_session = False
        #: The message ids seen of late, where duplicates are detected (E7).
        self.history: DuplicateHistory | None = None
        #: Set while a message goes from here to other entities.
        self.is_handing_on = False
        self.removed = False

    def stream(self, which: int) -> Stream:
        """Give a stream of the entity; a sub-queue is made the first time it is asked for."""
        stream = self.streams.get(which)
        if stream is None:
            stream = self.directory.stream(self, self.number << 2 | which)
            stream.path = names.Address(self.path, which).path
            self.streams[which] = stream
            self.bytes_used += stream.index.bytes
            self.settings_changed()
        return stream

    def describe(self) -> dict[str, object]:
        """What the journal keeps of the entity, to be written as JSON."""
        raise NotImplementedError

    def settings_changed(self) -> None:
        """Carry the description's settings over to where they are used."""
        raise NotImplementedError

    def size_bytes(self) -> int:
        return self.bytes_used

    def set_status(self, status: str) -> None:
        self.send_disabled = status in (descriptions.DISABLED, descriptions.SEND_DISABLED)
        self.receive_disabled = status in (descriptions.DISABLED, descriptions.RECEIVE_DISABLED)

    def take_settings(self, d: QueueDescription | TopicDescription) -> None:
        """What those that are sent to have in common."""
        self.set_status(d.status)
        self.message_bytes_max = d.max_message_size_in_kilobytes * 1024
        self.bytes_max = d.max_size_in_megabytes * _MEGABYTE
        self.time_to_live_ms = d.default_message_time_to_live_ms
        window_ms = d.duplicate_detection_history_time_window_ms
        if not d.requires_duplicate_detection:
            self.history = None
        elif self.history is None:
            self.history = DuplicateHistory(window_ms)
        else:
            self.history.window_ms = window_ms

    def remove(self) -> None:
        """The entity is deleted: its links are told, its memory is given back."""
        self.removed = True
        # What a transaction still holds for it is refused with the commit.
        self.send_disabled = True
        error = errors.entity_not_found(self.path)
        attached = list(self.senders)
        for stream in self.streams.values():
            attached += stream.attached
            stream.close()
        self.senders.clear()
        for attachment in attached:
            attachment.detach(error)

    # --- sending ----------------------------------------------------------------------

    def check_send(self) -> None:
        if self.removed:
            raise errors.entity_not_found(self.path)
        if self.send_disabled:
            raise BusError(
                errors.ENTITY_DISABLED,
                f"Messaging entity '{self.path}' is currently disabled for sending.",
            )

    def check_receive(self) -> None:
        if self.receive_disabled:
            raise BusError(
                errors.ENTITY_DISABLED,
                f"Messaging entity '{self.path}' is currently disabled for receiving.",
            )

    def check(self, message: Message) -> None:
        """Refuse a message that this entity does not take."""
        if self.send_disabled:
            self.check_send()
        if message.wire_bytes > self.message_bytes_max:
            raise BusError(
                errors.MESSAGE_TOO_LARGE,
                f"The received message (size {message.wire_bytes} bytes) exceeds the limit"
                f" ({self.message_bytes_max} bytes) of '{self.path}'.",
            )
        if message.header_bytes > limits.HEADER_BYTES_MAX:
            raise BusError(
                errors.MESSAGE_TOO_LARGE,
                f"The message's properties (size {message.header_bytes} bytes) exceed the limit"
                f" ({limits.HEADER_BYTES_MAX} bytes).",
            )
        if self.bytes_used >= self.bytes_max:
            raise self._full()
        if self.requires_session and not message.is_ping:
            self._check_session(message.session_id())
        if self.history is not None:
            # The id will be needed: one that cannot be read is refused before anything is done.
            message.properties()

    def _check_session(self, session_id: str | None) -> None:
        if session_id is None:
            raise BusError(
                errors.NOT_ALLOWED,
                f"'{self.path}' requires sessions: the message needs a session id.",
            )
        if len(session_id) > limits.SESSION_ID_CHARS_MAX:
            # Nobody could ask for such a session.
            raise BusError(
                errors.ARGUMENT_ERROR,
                f"A session id has at most {limits.SESSION_ID_CHARS_MAX} characters.",
            )

    def _full(self) -> BusError:
        return BusError(
            errors.QUOTA_EXCEEDED,
            f"The maximum entity size of '{self.path}' has been reached or exceeded:"
            f" {self.bytes_max // _MEGABYTE} MB. Receive from it, or raise MaxSizeInMegabytes.",
        )

    def accept(self, message: Message, now_ms: int, ttl_ms: int, hops: int) -> None:
        """Place a checked message, here or where it is forwarded to."""
        raise NotImplementedError

    def publish(self, message: Message, now_ms: int) -> int:
        """Take in a checked message from a client; give its number, 0 if it got none."""
        self.accessed_ms = now_ms
        meter = self.meter
        size = message.wire_bytes
        meter.sends += 1
        meter.send_bytes += size
        if size > UNIT_BYTES:
            meter.send_extra_units += extra_units(size)
        if message.is_ping:
            meter.pings += 1
            # Proof that this entity would have taken a message; nobody ever receives it (P10).
            return 0
        if self.history is not None and self._is_duplicate(message, now_ms):
            return 0
        if message.scheduled_ms > now_ms:
            return self.schedule(message, now_ms)
        self.accept(message, now_ms, message.ttl_ms, 0)
        return 0

    def take_forwarded(self, message: Message, now_ms: int, ttl_ms: int, hops: int) -> None:
        """Take in a checked message that another entity forwards; it counts like a send (E3, E7).

        Some are never dropped as duplicates: a dead letter, and what comes back in a circle, for
        each is the same message still.
        """
        self.accessed_ms = now_ms
        is_new = self.history is None or self.is_handing_on
        if is_new or message.is_dead_letter() or not self._is_duplicate(message, now_ms):
            self.accept(message, now_ms, ttl_ms, hops)

    def _is_duplicate(self, message: Message, now_ms: int) -> bool:
        """Tell whether a message's id is known here (E7); from now on it is."""
        history = self.history
        assert history is not None
        key = message.duplicate_key()
        if not history.seen(key, now_ms):
            history.remember(key, now_ms, self.kernel.log, self.main.number)
            return False
        observer = self.kernel.observer
        if observer is not None:
            text = str(message.properties()[MESSAGE_ID])
            observer.tell(observations.DUPLICATE_DROPPED, self.main.number, text=text)
        return True

    def publish_scheduled(self, message: Message, now_ms: int) -> int:
        """Schedule a checked message, even for a time that has passed; give its number."""
        message.scheduled_ms = max(message.scheduled_ms, now_ms + 1)
        return self.publish(message, now_ms)

    def schedule(self, message: Message, now_ms: int) -> int:
        session_id = message.session_id() if self.main.sessions is not None else None
        return self.main.place(
            message.stored, now_ms, 0, SCHEDULED, 0, session_id, message.scheduled_ms
        )

    def activate(self, stream: Shelf, seq: int, now_ms: int) -> None:
        """A scheduled message is due: it gets a new number and today's date."""
        self.accessed_ms = now_ms
        message = Message(stream.stored(seq))
        message.shared = stream.location(seq)
        stream.remove(seq, records.ACTIVATED)
        self.accept(message, now_ms, message.ttl_ms, 0)


class Holder(Entity):
    """An entity that messages are received from: a queue or a subscription."""

    def __init__(self, kernel: Kernel, directory: Directory, number: int, path: str) -> None:
        super().__init__(kernel, directory, number, path)
        self.dead_letters_to: str | None = None

    def accept(self, message: Message, now_ms: int, ttl_ms: int, hops: int) -> None:
        if self.time_to_live_ms < ttl_ms:
            ttl_ms = self.time_to_live_ms
        # What comes over another entity passes those that wait: its hops are not kept.
        if self.forward_to is not None and (hops or not self.main.is_leaving):
            self._hand_on(message, self.forward_to, now_ms, ttl_ms, hops)
            return
        stream = self.main
        session_id = message.session_id() if stream.sessions is not None else None
        stored = message.stored
        shared = message.shared
        expires_ms = 0
        if ttl_ms < UNLIMITED_MS:
            expires_ms = now_ms + ttl_ms
            if ttl_ms != message.ttl_ms:
                stored, shared = message.limited(ttl_ms)
        seq = stream.place(stored, now_ms, expires_ms, ACTIVE, 0, session_id, 0, shared)
        if message.fans_out:
            message.lies_at(stream.lend(seq), stored, ttl_ms)

    def writes_anew(self) -> bool:
        # Where it is forwarded to, or if that fails; or for another time to live.
        return self.forward_to is not None or self.time_to_live_ms < UNLIMITED_MS

    def _hand_on(self, message: Message, path: str, now_ms: int, ttl_ms: int, hops: int) -> None:
        """Forward a message (E9, D7), or keep it in the transfer dead-letter queue (D8)."""
        target = self.directory.find(path)
        if hops >= limits.FORWARD_HOPS_MAX:
            self._bury_transfer(
                message, now_ms, "MaxTransferHopCountExceeded",
                "The maximum number of allowed hops when forwarding between queues is"
                f" exceeded; it is {limits.FORWARD_HOPS_MAX}.",
            )  # fmt: skip
        elif target is None:
            self._bury_transfer(
                message, now_ms, "MessagingEntityNotFound",
                f"The forwarding target '{path}' does not exist.",
            )  # fmt: skip
        else:
            came_back = self.is_handing_on
            self.is_handing_on = True
            try:
                target.check(message)
                target.take_forwarded(message, now_ms, ttl_ms, hops + 1)
            except BusError as error:
                self._bury_transfer(message, now_ms, errors.transfer_reason(error), error.text)
            finally:
                self.is_handing_on = came_back

    def forward_waiting(self, now_ms: int) -> None:
        """Hand on what waits although the entity forwards (E9), as far as this batch allows."""
        stream = self.main
        stream.is_leaving = False
        path = self.forward_to
        if path is None:
            return
        target = self.directory.find(path)
        effort = MOVE_EFFORT if target is None else MOVE_EFFORT * target.copies()
        seq = stream.index.find_state(ACTIVE, 1, stream.last_seq())
        if seq and self.kernel.is_full:
            stream.is_leaving = True
            self.kernel.wait_for_room(stream)
            return
        while seq and self.kernel.effort_left > 0:
            # Its time to live runs on from where it was, or is over (D5).
            if not stream.expire_if_due(seq, now_ms):
                message = Message(stream.stored(seq))
                size = len(message.stored)
                message.shared = location = stream.hold(seq)
                self.kernel.effort_left -= effort + size
                expires_ms = stream.expires_ms(seq)
                stream.remove(seq, records.FORWARDED)
                ttl_ms = expires_ms - now_ms if expires_ms else UNLIMITED_MS
                self._hand_on(message, path, now_ms, min(ttl_ms, self.time_to_live_ms), 0)
                self.kernel.let_go(location, size)
            seq = stream.index.find_state(ACTIVE, seq + 1, stream.last_seq())
        if seq:
            stream.is_leaving = True
            self.kernel.put_off(stream)

    def _bury_transfer(self, message: Message, now_ms: int, reason: str, text: str) -> None:
        dead = message.buried(reason, text, self.path)
        self.stream(names.TRANSFER_STREAM).place(dead.stored, now_ms, 0)

    # --- dead-lettering ---------------------------------------------------------------

    def dead_letter(
        self, stream: Shelf, seq: int, reason: str, description: str, delivery_count: int,
        now_ms: int,
    ) -> None:  # fmt: skip
        self.bury(stream, seq, reason, description, {}, delivery_count, now_ms)

    def bury(
        self, stream: Shelf, seq: int, reason: str | None, description: str | None,
        properties: dict[object, object], delivery_count: int, now_ms: int,
    ) -> None:  # fmt: skip
        """Move a message from the main stream to the dead-letter queue (D1–D3, D7)."""
        message = Message(stream.stored(seq))
        message.keep_original_sequence(seq)
        dead = message.buried(reason, description, self.path, properties)
        stream.remove(seq, records.DEAD_LETTERED)
        self.place_dead_letter(dead, now_ms, delivery_count)

    def place_dead_letter(
        self, dead: Message, now_ms: int, delivery_count: int, hops: int = 0
    ) -> None:
        """`hops` is how often the message was forwarded on its way here.

        It may die because of where it was forwarded to, and be forwarded there again: without
        the count that would never end.
        """
        if self.dead_letters_to is not None:
            self._hand_on(dead, self.dead_letters_to, now_ms, UNLIMITED_MS, hops)
        else:
            stream = self.stream(names.DEAD_LETTER_STREAM)
            stream.place(dead.stored, now_ms, 0, ACTIVE, delivery_count)

    def dead_letter_locked(
        self, stream: Stream, lock: Lock, reason: str | None, description: str | None,
        properties: dict[object, object], now_ms: int,
    ) -> None:  # fmt: skip
        """The application says that a message is dead (R4)."""
        stream.unlock_for_move(lock, now_ms)
        self.bury(stream, lock.seq, reason, description, properties, lock.delivery_count, now_ms)

    def apply_to_streams(
        self, lock_duration_ms: int, max_delivery_count: int, dead_letters_expired: bool
    ) -> None:
        for which, stream in self.streams.items():
            stream.lock_duration_ms = lock_duration_ms
            stream.max_delivery_count = max_delivery_count
            stream.is_main = which == names.MAIN_STREAM
            stream.dead_letters_expired = dead_letters_expired and stream.is_main
            stream.receive_disabled = self.receive_disabled


class Queue(Holder):
    kind = QUEUE

    def __init__(
        self, kernel: Kernel, directory: Directory, number: int, description: QueueDescription
    ) -> None:
        super().__init__(kernel, directory, number, description.name)
        self.description = description
        self.settings_changed()

    def describe(self) -> dict[str, object]:
        return {"description": asdict(self.description)}

    def settings_changed(self) -> None:
        d = self.description
        self.take_settings(d)
        self.forward_to = d.forward_to
        self.dead_letters_to = d.forward_dead_lettered_messages_to
        self.requires_session = d.requires_session
        if d.requires_session and self.main.sessions is None:
            self.main.sessions = SessionTable()
        self.apply_to_streams(
            d.lock_duration_ms, d.max_delivery_count, d.dead_lettering_on_message_expiration
        )
