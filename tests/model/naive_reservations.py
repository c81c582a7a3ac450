"""Reservations as plainly as can be (L3): each message says for whom it is set aside."""

from __future__ import annotations

from naive_broker import SOME_TEXT, NaiveBroker, Refused
from naive_entities import MAIN, NaiveEpoch, NaiveMessage, NaiveReserver, NaiveStream

from twinbus.core import errors


def _reserver(stream: NaiveStream, name: str) -> NaiveReserver:
    return stream.reservers.get(name) or NaiveReserver()


def _members(stream: NaiveStream, name: str, epoch: int) -> list[NaiveMessage]:
    return [m for m in stream.messages if m.reserved_for == (name, epoch)]


def reserve(
    model: NaiveBroker, stream: NaiveStream, name: str, epoch: int, count_max: int,
    bounds: tuple[int, int],
) -> list[int] | None:  # fmt: skip
    """Give the numbers of the messages, None when there are none to be had."""
    reserver = _reserver(stream, name)
    if epoch not in reserver.epochs:
        if epoch != reserver.last + 1:
            raise Refused(errors.EPOCH_FENCED)
        if stream.entity.receives_off:
            raise Refused(errors.ENTITY_DISABLED)
        taken = _take(model, stream, name, count_max, bounds)
        if not taken:
            return None
        for message in taken:
            message.state = "reserved"
            message.reserved_for = (name, epoch)
        reserver.epochs[epoch] = NaiveEpoch(model.now_ms)
        stream.reservers[name] = reserver
    return [m.seq for m in _members(stream, name, epoch)]


def _take(
    model: NaiveBroker, stream: NaiveStream, name: str, count_max: int, bounds: tuple[int, int]
) -> list[NaiveMessage]:
    model.step_on()
    taken: list[NaiveMessage] = []
    for message in list(stream.messages):
        if len(taken) == count_max:
            break
        if not message.is_free or message.seq > stream.durable_seq:
            continue
        if not bounds[0] <= message.seq <= bounds[1]:
            continue
        if stream.has_sessions and not _session_is_open(stream, name, message, taken):
            continue
        if message.is_over(model.now_ms):
            model.expire(stream, message)
        else:
            taken.append(message)
    return taken


def _session_is_open(
    stream: NaiveStream, name: str, message: NaiveMessage, taken: list[NaiveMessage]
) -> bool:
    """Nobody else has the session, and nothing of it is passed over."""
    session = message.content.session_id
    assert session is not None
    if stream.session(session).holder is not None or stream.reserving(session) - {name}:
        return False
    if stream.is_held_up(message):
        return False
    return not any(
        m.is_free and m.seq < message.seq and m.content.session_id == session and m not in taken
        for m in stream.messages
    )


def attempt(
    model: NaiveBroker, stream: NaiveStream, name: str, epoch: int, attempts_max: int
) -> tuple[int, bool]:
    tried = _reserver(stream, name).epochs.get(epoch)
    if tried is None:
        raise Refused(errors.EPOCH_FENCED)
    members = _members(stream, name, epoch)
    if members:
        tried.attempts += 1
        if attempts_max and tried.attempts > attempts_max and stream.which == MAIN:
            model.step_on()
            for message in members:
                stream.messages.remove(message)
                model.bury(
                    stream.entity, message.content, "MaxBatchFailuresExceeded", SOME_TEXT, {},
                    message.count,
                )  # fmt: skip
    return tried.attempts, not _members(stream, name, epoch)


def part(
    model: NaiveBroker, stream: NaiveStream, name: str, epoch: int, returned: list[int],
    dead: list[int],
) -> None:  # fmt: skip
    """Take messages out of the epochs up to one: they return to their places, or die."""
    if dead and stream.which != MAIN:
        raise Refused(errors.NOT_ALLOWED)
    reserver = _reserver(stream, name)
    if name not in stream.reservers or epoch > reserver.last:
        return
    model.step_on()
    for message in [m for e in reserver.epochs if e <= epoch for m in _members(stream, name, e)]:
        if message.seq in dead:
            stream.messages.remove(message)
            model.bury(stream.entity, message.content, "unfit", "why", {}, message.count)
        elif message.seq in returned:
            message.state = "active"
            message.reserved_for = None
    model.made_active(stream)


def settle_upto(model: NaiveBroker, stream: NaiveStream, name: str, epoch: int) -> int:
    reserver = _reserver(stream, name)
    if epoch > reserver.last:
        raise Refused(errors.EPOCH_FENCED)
    done = [m for e in reserver.epochs if e <= epoch for m in _members(stream, name, e)]
    stream.messages = [m for m in stream.messages if m not in done]
    reserver.end(epoch)
    return len(done)


def release(model: NaiveBroker, stream: NaiveStream, name: str) -> int:
    if name not in stream.reservers:
        raise Refused(errors.NOT_FOUND)
    reserver = stream.reservers[name]
    freed = [m for e in reserver.epochs for m in _members(stream, name, e)]
    for message in freed:
        message.state = "active"
        message.reserved_for = None
    if reserver.epochs:
        model.made_active(stream)
    reserver.end(reserver.last)
    return len(freed)
