"""What is durable in a broker, in one form for the engine and the model.

A dump is made of plain dicts and tuples; two brokers that hold the same have equal dumps. The
model can be built from one again, as it is after a restart.
"""

from __future__ import annotations

from typing import Any

from engine_content import content_of
from naive_broker import NaiveBroker
from naive_entities import (
    Described,
    NaiveEntity,
    NaiveEpoch,
    NaiveMessage,
    NaiveReserver,
    NaiveSession,
    NaiveStream,
)

from twinbus.core.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.engine.engine import Engine
from twinbus.engine.entities import Entity
from twinbus.engine.index import ACTIVE, DEFERRED, DEFERRED_LOCKED, LOCKED, RESERVED, SCHEDULED
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Subscription

Dump = dict[str, Any]
_NAMES = {
    ACTIVE: "active",
    LOCKED: "active",
    DEFERRED: "deferred",
    DEFERRED_LOCKED: "deferred",
    SCHEDULED: "scheduled",
    RESERVED: "reserved",
}
#: Settled epoch, and when, how often tried and what of each outstanding one, by name.
Reserved = dict[str, tuple[int, dict[int, tuple[int, int, list[int]]]]]
Stored = tuple[int, dict[int, object], dict[str, object], Reserved]
_EMPTY: Stored = (1, {}, {}, {})


def assert_same(engine: Dump, model: Dump) -> None:
    """Equal, or an error that says where they are not."""
    if engine == model:
        return
    assert engine.keys() == model.keys()
    for path, found in engine.items():
        wanted = model[path]
        for part in ("description", "rules", "history"):
            assert found[part] == wanted[part], f"{part} of {path}"
        for which, pair in enumerate(zip(found["streams"], wanted["streams"], strict=True)):
            (next_seq, rows, *rest), (wanted_seq, wanted_rows, *wanted_rest) = pair
            where = f"stream {which} of {path}"
            assert next_seq == wanted_seq, where
            assert rest == wanted_rest, where
            for seq in sorted(rows.keys() | wanted_rows.keys()):
                assert rows.get(seq) == wanted_rows.get(seq), f"message {seq} in {where}"


def dump_model(model: NaiveBroker) -> Dump:
    return {path: _dump_entity(entity, model.now_ms) for path, entity in model.entities.items()}


def _dump_entity(entity: NaiveEntity, now_ms: int) -> Dump:
    return trim(
        {
            "description": entity.description,
            "rules": dict(entity.rules),
            "history": dict(entity.history),
            "streams": [
                (
                    stream.next_seq,
                    {m.seq: _row(m) for m in stream.messages},
                    {i: s.state for i, s in stream.sessions.items() if s.state is not None},
                    _model_reserved(stream),
                )
                for stream in entity.streams
            ],
        },
        now_ms,
    )


def _model_reserved(stream: NaiveStream) -> Reserved:
    found: Reserved = {}
    for name, reserver in stream.reservers.items():
        epochs = {
            epoch: (known.at_ms, known.attempts, _seqs(stream, name, epoch))
            for epoch, known in reserver.epochs.items()
        }
        found[name] = (reserver.settled, epochs)
    return found


def _seqs(stream: NaiveStream, name: str, epoch: int) -> list[int]:
    return [m.seq for m in stream.messages if m.reserved_for == (name, epoch)]


def _row(message: NaiveMessage) -> tuple[object, ...]:
    m = message
    return (m.state, m.count, m.enqueued_ms, m.expires_ms, m.due_ms, m.content)


def trim(dump: Dump, now_ms: int) -> Dump:
    """Forget message ids that no longer count."""
    window_ms = getattr(dump["description"], "duplicate_detection_history_time_window_ms", 0)
    history = {i: at for i, at in dump["history"].items() if now_ms - at < window_ms}
    return {**dump, "history": history}


def trimmed(dump: Dump, now_ms: int) -> Dump:
    return {path: trim(entity, now_ms) for path, entity in dump.items()}


def dump_engine(engine: Engine, now_ms: int) -> Dump:
    found: Dump = {}
    for entity in engine.registry.entities.values():
        rules = entity.rules if isinstance(entity, Subscription) else {}
        history = entity.history
        seen = {} if history is None else history.known()
        dump = {
            "description": description_of(entity),
            "rules": {rule.description.name: rule.description for rule in rules.values()},
            "history": {_texts(key): at_ms for key, at_ms in seen.items()},
            "streams": [
                _dump_stream(entity.streams[which]) if which in entity.streams else _EMPTY
                for which in (0, 1, 2)
            ],
        }
        found[entity.path] = trim(dump, now_ms)
    return found


def _texts(key: bytes) -> tuple[str, str]:
    """A message id and, of what was dead, which dead letter it was."""
    # Strings shorter than 256 bytes: constructor, length, text.
    end = 2 + key[1]
    return key[2:end].decode(), key[end + 2 :].decode()


def _dump_stream(stream: Stream) -> Stored:
    rows: dict[int, object] = {}
    seq = stream.index.next_present(1)
    while seq:
        content = content_of(stream.stored(seq))
        if stream.sessions is not None and content.session_id is not None:
            assert stream.session_id(seq) == content.session_id
        rows[seq] = (
            _NAMES[stream.index.state(seq)], stream.counts.get(seq, 0), stream.enqueued_ms(seq),
            stream.expires_ms(seq), stream.due.get(seq, 0), content,
        )  # fmt: skip
        seq = stream.index.next_present(seq + 1)
    table = stream.sessions
    known = {} if table is None else table.sessions
    states = {i: s.state for i, s in known.items() if s.state is not None}
    return stream.next_seq, rows, dict(states), _reserved(stream)


def _reserved(stream: Stream) -> Reserved:
    table = stream.reservations
    found: Reserved = {}
    for reserver in {} if table is None else table.reservers.values():
        epochs: dict[int, tuple[int, int, list[int]]] = {}
        for one in reserver.epochs.values():
            seqs = [seq for first, last in one.pairs() for seq in range(first, last + 1)]
            epochs[one.epoch] = (one.at_ms, one.attempts, seqs)
        found[reserver.name] = (reserver.settled_epoch, epochs)
    return found


def model_from(dump: Dump) -> NaiveBroker:
    """The model as it is after a restart: what was durable, and nothing locked."""
    model = NaiveBroker()
    for path, saved in dump.items():
        entity = NaiveEntity(saved["description"], dict(saved["rules"]), dict(saved["history"]))
        for stream, stored in zip(entity.streams, saved["streams"], strict=True):
            next_seq, rows, states, reserved = stored
            stream.next_seq = next_seq
            stream.durable_seq = next_seq - 1
            for seq, (state, count, enqueued_ms, expires_ms, due_ms, content) in rows.items():
                stream.messages.append(
                    NaiveMessage(content, state, enqueued_ms, expires_ms, count, due_ms, seq)
                )
            stream.sessions = {i: NaiveSession(state) for i, state in states.items()}
            for name, (settled, epochs) in reserved.items():
                known = {e: NaiveEpoch(at_ms, tried) for e, (at_ms, tried, _) in epochs.items()}
                stream.reservers[name] = NaiveReserver(settled, known)
                for epoch, (_, _, seqs) in epochs.items():
                    for message in stream.messages:
                        if message.seq in seqs:
                            message.reserved_for = (name, epoch)
        model.entities[path] = entity
    return model


def description_of(entity: Entity) -> Described:
    described = entity.description  # type: ignore[attr-defined]
    assert isinstance(described, QueueDescription | TopicDescription | SubscriptionDescription)
    return described
