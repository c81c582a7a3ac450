"""What a receiver wants done with a message that it holds (R4)."""

from typing import Final

from twinbus.amqp import codec, outcomes
from twinbus.amqp.outcomes import ACCEPTED, REJECTED, RELEASED, Outcome
from twinbus.core import errors, limits
from twinbus.core.errors import BusError
from twinbus.engine.consumer import Lock
from twinbus.engine.entities import Holder
from twinbus.engine.message import Message
from twinbus.engine.stream import Stream

COMPLETE: Final = 1
ABANDON: Final = 2
DEFER: Final = 3
DEAD_LETTER: Final = 4
RELEASE: Final = 5

# An extension: abandon, and hold the message back for so many milliseconds.
DELAY: Final = "x-opt-abandon-delay-ms"


class Settlement:
    def __init__(self, what: int) -> None:
        self.what = what
        #: Application properties to set.
        self.properties: dict[object, object] = {}
        self.reason: str | None = None
        self.description: str | None = None
        self.delay_ms = 0

    def take_properties(self, given: dict[object, object] | None) -> None:
        """Take properties to set, and the extension that is hidden among them."""
        for key, value in (given or {}).items():
            if str(key) == DELAY and isinstance(value, int):
                self.delay_ms = max(value, 0)
            else:
                self.properties[str(key)] = value

    def take_dead_letter_info(self, info: dict[object, object] | None) -> None:
        """Reason, description and further properties, as clients send them."""
        for key, value in (info or {}).items():
            if str(key) == "DeadLetterReason":
                self.reason = None if value is None else str(value)
            elif str(key) == "DeadLetterErrorDescription":
                self.description = None if value is None else str(value)
            else:
                self.properties[str(key)] = value

    def check(self, stream: Stream, lock: Lock, now_ms: int) -> None:
        """Refuse what cannot be done (R5, D1, E4)."""
        stream.check_lock(lock, now_ms)
        if self.properties or self.reason or self.description:
            self._check_size(stream, lock)
        if self.what == DEAD_LETTER and not stream.is_main:
            raise BusError(
                errors.NOT_ALLOWED,
                f"Nothing can be dead-lettered from '{stream.path}': complete it instead.",
            )

    @property
    def writes_anew(self) -> bool:
        """The message is written to the journal once more."""
        return self.what == DEAD_LETTER or bool(self.properties)

    def take_effort(self, stream: Stream, lock: Lock, now_ms: int) -> None:
        """Refuse to write a message anew while there is no room for it; it stays as it is."""
        if not self.writes_anew:
            return
        stream.check_lock(lock, now_ms)
        kernel = stream.kernel
        if kernel.is_full:
            raise BusError(
                errors.SERVER_BUSY,
                "The broker's disk is full: no message can be dead-lettered or changed. Complete or"
                " abandon it, or try again when there is room.",
            )
        if not kernel.takes_effort(stream.size(lock.seq)):
            raise BusError(
                errors.SERVER_BUSY, "That is too much at once. Settle the rest again in a moment."
            )

    def _check_size(self, stream: Stream, lock: Lock) -> None:
        """What is set must fit, like what is sent. A dead letter is moved once and for all: what
        it has already does not keep it from dying."""
        if self.what == DEAD_LETTER:
            size = len(self.reason or "") + len(self.description or "")
            for name, value in self.properties.items():
                size += len(str(name)) + len(codec.encode(value))
        else:
            message = Message(stream.stored(lock.seq))
            message.merge_properties(self.properties)
            message.measure()
            size = message.header_bytes
        if size > limits.HEADER_BYTES_MAX:
            raise BusError(
                errors.MESSAGE_TOO_LARGE,
                f"The message's properties (size {size} bytes) would exceed the limit"
                f" ({limits.HEADER_BYTES_MAX} bytes). The message stays as it is.",
            )

    def apply(self, holder: Holder, stream: Stream, lock: Lock, now_ms: int) -> None:
        what = self.what
        if what == COMPLETE:
            stream.complete(lock, now_ms)
        elif what == RELEASE:
            stream.release(lock, now_ms)
        elif what == DEAD_LETTER:
            self.check(stream, lock, now_ms)
            holder.dead_letter_locked(
                stream, lock, self.reason, self.description, self.properties, now_ms
            )
        else:
            self.check(stream, lock, now_ms)
            stored: bytes | None = None
            if self.properties:
                message = Message(stream.stored(lock.seq))
                message.merge_properties(self.properties)
                stored = message.stored
            if what == DEFER:
                stream.defer(lock, now_ms, stored)
            else:
                stream.abandon(lock, now_ms, stored, self.delay_ms)


PLAIN_COMPLETE: Final = Settlement(COMPLETE)
PLAIN_RELEASE: Final = Settlement(RELEASE)


def from_outcome(outcome: Outcome) -> Settlement:
    """What a receiver's outcome asks for."""
    kind = outcome.kind
    if kind == outcomes.KIND_ACCEPTED:
        return PLAIN_COMPLETE
    if kind == outcomes.KIND_REJECTED:
        wanted = Settlement(DEAD_LETTER)
        wanted.take_dead_letter_info(outcome.info)
        if wanted.reason is None and outcome.info is None:
            wanted.reason = outcome.condition
            wanted.description = outcome.description
        return wanted
    if kind == outcomes.KIND_MODIFIED:
        what = DEFER if outcome.undeliverable_here else ABANDON
        wanted = Settlement(what)
        wanted.take_properties(outcome.annotations)
        return wanted
    return PLAIN_RELEASE


def answer_to(outcome: Outcome) -> bytes:
    """The same outcome back, as clients compare it; a dead-letter's without its error."""
    kind = outcome.kind
    if kind == outcomes.KIND_ACCEPTED:
        return ACCEPTED
    if kind == outcomes.KIND_REJECTED:
        return REJECTED
    if kind == outcomes.KIND_MODIFIED:
        return outcomes.modified(outcome.delivery_failed, outcome.undeliverable_here, None)
    return RELEASED
