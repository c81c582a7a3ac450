"""What the console changes: send, resubmit, delete, wake up. Each step is one commit.

Entities and numbers go in. A bulk change goes in steps of a bounded size; each step is
durable before the next begins and says where to go on, so that a run which was cut short is
simply run again. A message that moves leaves one place and enters the other in one commit:
it is never in neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from twinbus.admin.console.streams import EVERYTHING, Query, next_seq, search, states_of
from twinbus.amqp.errors import DecodeError
from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.engine import records
from twinbus.engine.entities import Entity, Holder
from twinbus.engine.index import ACTIVE, DEFERRED, SCHEDULED
from twinbus.engine.message import Message, take_in
from twinbus.engine.returning import hand_on, resubmit
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Topic
from twinbus.engine.view import View
from twinbus.filters import Action, EvaluationError, FilterError, sql_action
from twinbus.forms import message_form
from twinbus.server.broker import Broker

STEP = 1_000
#: Deleting reads no message: more of them take no longer.
DELETE_STEP = 5_000
SEND_MAX = 1_000
_DELETABLE = {"active": ACTIVE, "deferred": DEFERRED, "scheduled": SCHEDULED}

Json = dict[str, Any]


class UnreadableMessage(BusError):
    """Says what is wrong with a message in the message's own words: not for a log."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages of a stream: these numbers, or all that a query finds in a range."""

    seqs: tuple[int, ...] | None
    state: str = ""
    query: Query = EVERYTHING
    from_seq: int = 1
    to_seq: int = 0


@dataclass(slots=True)
class Step:
    """One step of a bulk change; `next` is 0 when there is nothing left to do."""

    seqs: list[int]
    next: int
    to: int
    done: int = 0
    failures: list[str] | None = None

    def answer(self) -> Json:
        return {
            "done": self.done,
            "passed_over": len(self.seqs) - self.done,
            "next": self.next,
            "to": self.to,
            "failures": (self.failures or [])[:20],
        }


async def select(stream: Stream, wanted: Selection, count: int = STEP) -> Step:
    """Find what the next step works on."""
    # What arrives while a run goes on is not part of it, or it might never end.
    to_seq = min(wanted.to_seq or stream.durable_seq, stream.durable_seq)
    if wanted.seqs is not None:
        if len(wanted.seqs) > STEP:
            raise BusError(errors.ARGUMENT_ERROR, f"Name at most {STEP} messages at a time.")
        return Step(list(dict.fromkeys(wanted.seqs)), 0, to_seq)
    states = states_of(wanted.state)
    if wanted.query != EVERYTHING:
        found = await search(stream, states, wanted.query, wanted.from_seq, to_seq, count)
        return Step(found.seqs, found.next_seq, to_seq)
    seqs: list[int] = []
    seq = next_seq(stream, states, wanted.from_seq)
    while seq and seq <= to_seq and len(seqs) < count:
        seqs.append(seq)
        seq = next_seq(stream, states, seq + 1)
    return Step(seqs, seq if 0 < seq <= to_seq else 0, to_seq)


class Changes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def _begin(self, *, sends: bool) -> int:
        now_ms = self._broker.begin_turn()
        self._broker.hub.check()
        # A full disk takes no message, but lets messages go: that makes room.
        if sends:
            self._broker.hub.check_sends()
        return now_ms

    async def send(self, entity: Entity, given: list[Json]) -> list[int]:
        """Send messages, all or none; gives the numbers of those that were scheduled."""
        if not 0 < len(given) <= SEND_MAX:
            raise BusError(errors.ARGUMENT_ERROR, f"Send 1 to {SEND_MAX} messages at a time.")
        now_ms = self._begin(sends=True)
        entity.check_send()
        messages = [self.read(each) for each in given]
        for message in messages:
            entity.check(message)
        seqs = [entity.publish(message, now_ms) for message in messages]
        await self._broker.durable()
        return seqs

    def read(self, given: Json) -> Message:
        """Make a message of its JSON form."""
        try:
            payload = message_form.from_json(given).payload
            return take_in(payload, self._broker.hub.new_message_id)
        except (ValueError, DecodeError, RecursionError) as error:
            text = f"The message is not valid: {error}"
            raise UnreadableMessage(errors.ARGUMENT_ERROR, text) from None

    async def delete(self, stream: Stream, step: Step, state: str) -> Step:
        """Remove messages in a state for good; those that somebody holds are passed over."""
        self._begin(sends=False)
        states = _deletable(state)
        for seq in step.seqs:
            if seq <= stream.durable_seq and stream.index.state(seq) in states:
                stream.remove(seq, records.PURGED)
                step.done += 1
        await self._broker.durable()
        return step

    async def undefer(self, holder: Holder, stream: Stream, step: Step) -> Step:
        """Make deferred messages active again, in their own place."""
        now_ms = self._begin(sends=False)
        for seq in step.seqs:
            if seq <= stream.durable_seq and stream.index.state(seq) == DEFERRED:
                stream.undefer(seq)
                step.done += 1
        hand_on(holder, stream, now_ms)
        await self._broker.durable()
        return step

    async def resubmit(
        self, holder: Holder, stream: Stream, step: Step, target: Entity, action: str
    ) -> Step:
        """Move dead letters back to where they died, or elsewhere, maybe changed on the way."""
        now_ms = self._begin(sends=True)
        if target is holder and not action:
            while done := resubmit(holder, stream, step.seqs, now_ms):
                step.done += done
                await self._broker.durable()
                now_ms = self._begin(sends=True)
            return step
        change = _change(action)
        step.failures = []
        for seq in step.seqs:
            if not stream.kernel.takes_effort(0):
                # As much as a batch should hold: the rest is another.
                await self._broker.durable()
                now_ms = self._begin(sends=True)
            if seq > stream.durable_seq or stream.index.state(seq) != ACTIVE:
                continue
            try:
                message = Message(stream.stored(seq))
                stream.kernel.takes_effort(len(message.stored))
                message.revive(stream.number, seq)
                change(message)
                message.measure()
                _move(stream, seq, message, target, now_ms)
                step.done += 1
            except (BusError, EvaluationError, DecodeError) as error:
                step.failures.append(f"{seq}: {error}")
        await self._broker.durable()
        return step

    async def resubmit_edited(self, stream: Stream, seq: int, given: Json, target: Entity) -> None:
        """Put an edited message in the place of a dead letter: one in, one out, one commit."""
        now_ms = self._begin(sends=True)
        if seq > stream.durable_seq or stream.index.state(seq) != ACTIVE:
            raise BusError(
                errors.MESSAGE_NOT_FOUND,
                f"Message {seq} is not there any more, or somebody holds it.",
            )
        message = self.read(given)
        original = Message(stream.stored(seq)).original_sequence()
        if original:
            message.keep_original_sequence(original)
        message.revive(stream.number, seq)
        _move(stream, seq, message, target, now_ms)
        await self._broker.durable()


def _move(stream: Stream, seq: int, message: Message, target: Entity, now_ms: int) -> None:
    target.check_send()
    target.check(message)
    # A subscription does not look at this by itself.
    if isinstance(target, Holder) and target.main.sessions is not None and not message.session_id():
        raise BusError(errors.NOT_ALLOWED, f"'{target.path}' requires sessions: give a session id.")
    is_later = message.scheduled_ms > now_ms
    if isinstance(target, Topic) and not is_later and not target.reaches_anybody(message):
        # A topic keeps nothing: the last copy of the message would be gone.
        text = f"No subscription of '{target.path}' would take the message."
        raise BusError(errors.NOT_ALLOWED, text)
    stream.remove(seq, records.FORWARDED)
    if is_later:
        target.schedule(message, now_ms)
    else:
        target.accept(message, now_ms, message.ttl_ms, 0)


def _deletable(state: str) -> bytes:
    """What may be deleted; without a state everything but what takes another right."""
    if not state:
        return bytes((ACTIVE, DEFERRED))
    if state not in _DELETABLE:
        raise BusError(errors.NOT_ALLOWED, f"'{state}' messages cannot be deleted.")
    return bytes((_DELETABLE[state],))


def _change(action: str) -> Callable[[Message], None]:
    """What an action in the language of rules does to a message."""
    if not action:
        return lambda message: None
    try:
        compiled: Action = sql_action(action)
    except FilterError as error:
        raise BusError(errors.ARGUMENT_ERROR, f"The change is not valid: {error}") from None
    return lambda message: compiled.apply(View(message, uuid4))
