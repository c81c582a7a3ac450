"""`$management` of an entity: peek, schedule, renew, settle by token, sessions, rules
(WIRE section 8), and this broker's own additions.

A request is a map; the answer has a status and a map. What changes something is answered
only once it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.types import (
    ARRAY_OF_LONG,
    ARRAY_OF_STRING,
    ARRAY_OF_TIMESTAMP,
    AmqpArray,
    Int,
    Symbol,
    Timestamp,
)
from twinbus.core import errors, limits, names
from twinbus.core.descriptions import LISTEN, MANAGE, SEND
from twinbus.core.errors import BusError
from twinbus.engine import browsing, observations, records, returning, settlement
from twinbus.engine import stored as form
from twinbus.engine.consumer import Consumer, Lock
from twinbus.engine.entities import Entity, Holder
from twinbus.engine.index import ACTIVE, DEFERRED, SCHEDULED
from twinbus.engine.namespace import Namespace
from twinbus.engine.sessions import Session
from twinbus.engine.settlement import PLAIN_COMPLETE, Settlement
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Subscription
from twinbus.journal import JournalFailed
from twinbus.server import reservations, rules
from twinbus.server.bridge import Receiver
from twinbus.server.requests import Request

if TYPE_CHECKING:
    from twinbus.server.door import Visitor

PREFIX = "com.microsoft:"
# The Python SDK's way to say 'no filter' when it lists sessions.
_ANY_TIME_MS = 253_402_300_800_000

_PURGED = {"active": ACTIVE, "deferred": DEFERRED, "scheduled": SCHEDULED}

_SETTLEMENTS = {
    "completed": settlement.COMPLETE,
    "abandoned": settlement.ABANDON,
    "defered": settlement.DEFER,
    "suspended": settlement.DEAD_LETTER,
}

# What keeps something that the disk may have no room for.
_NEED_ROOM = ("schedule-message", "add-rule", "twinbus:resubmit")

# Of what a request is counted as, where that is not MANAGED.
_OBSERVED_AS = {
    "peek-message": observations.PEEKED,
    "renew-lock": observations.LOCK_RENEWED,
    "renew-session-lock": observations.LOCK_RENEWED,
}

Body = dict[str, Any]


class Management:
    """The management node of one stream, as one connection sees it."""

    def __init__(
        self, visitor: Visitor, namespace: Namespace, entity: Entity, address: names.Address
    ) -> None:
        self._visitor = visitor
        self._hub = visitor.bridge.hub
        self._namespace = namespace
        self._entity = entity
        self._address = address
        self._operations: dict[str, tuple[str, Callable[[Body], Body | None]]] = {
            "peek-message": (LISTEN, self._peek),
            "renew-lock": (LISTEN, self._renew_lock),
            "renew-session-lock": (LISTEN, self._renew_session_lock),
            "get-session-state": (LISTEN, self._get_session_state),
            "set-session-state": (LISTEN, self._set_session_state),
            "get-message-sessions": (LISTEN, self._get_message_sessions),
            "receive-by-sequence-number": (LISTEN, self._receive_deferred),
            "update-disposition": (LISTEN, self._update_disposition),
            "batch-delete-messages": (LISTEN, self._batch_delete),
            "schedule-message": (SEND, self._schedule),
            "cancel-scheduled-message": (SEND, self._cancel),
            "add-rule": (MANAGE, self._add_rule),
            "remove-rule": (MANAGE, self._remove_rule),
            "enumerate-rules": (LISTEN, self._enumerate_rules),
            # Not Azure's: see docs/differences.md.
            "twinbus:purge": (LISTEN, self._purge),
            "twinbus:undefer": (LISTEN, self._undefer),
            "twinbus:resubmit": (MANAGE, self._resubmit),
        }
        for name, perform in reservations.OPERATIONS.items():
            self._operations[name] = (LISTEN, partial(self._reservation, perform))

    # --- the frame around an operation ------------------------------------------------

    def answer(self, request: Request) -> None:
        if self._entity.removed:
            # A client keeps its links while somebody removes the entity and makes it anew.
            self._entity = self._namespace.find(self._address.entity) or self._entity
        try:
            perform = self._admit(request)
        except BusError as error:
            self._count(request)
            self._refuse(request, error)
            return
        # What cannot be decoded ends the link: that is no call.
        given = request.take_body()
        self._count(request)
        try:
            body = perform(_arguments(request, given))
        except BusError as error:
            answer = self._refusal(request, error)
        except DecodeError as error:
            answer = self._refusal(request, BusError(errors.DECODE_ERROR, str(error)))
        except JournalFailed as error:
            self._refuse(request, errors.disk_failed(error))
            return
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            text = f"The request's body is not as it must be: {error!r}"
            answer = self._refusal(request, BusError(errors.ARGUMENT_ERROR, text))
        else:
            answer = self._prepare(request, body)
        # Even a read may have seen what is not on disk yet, and so may a refusal: an epoch that is
        # said to be settled must not be there again after a crash. Every answer waits for that.
        self._hub.replies.call(lambda failure: self._reply(request, answer, failure))

    def _count(self, request: Request) -> None:
        self._entity.accessed_ms = self._hub.now_ms
        self._entity.meter.management_calls += 1
        self._observe(_OBSERVED_AS.get(_operation(request), observations.MANAGED))

    def _observe(self, what: int, size: int = 0) -> None:
        """Note what the client asked for (C1)."""
        observer = self._hub.kernel.observer
        if observer is not None:
            stream = self._entity.number << 2 | self._address.stream
            observer.count(what, stream, self._visitor.bridge.client(), size)

    def _admit(self, request: Request) -> Callable[[Body], Body | None]:
        """Give what does the operation, or refuse it, by the headers alone: to decode a body
        takes time and memory, which only those get who may ask for it."""
        name = _operation(request)
        known = self._operations.get(name)
        if known is None:
            raise BusError(errors.NOT_IMPLEMENTED, f"The operation '{name}' is not known here.")
        if self._entity.removed:
            raise errors.entity_not_found(self._entity.path)
        right, perform = known
        self._require(right)
        self._hub.check()
        if name in _NEED_ROOM:
            self._hub.check_sends()
        return perform

    def _require(self, right: str) -> None:
        node = f"{self._address.path}/{names.MANAGEMENT}"
        self._visitor.require(node, right, self._hub.now_ms // 1000)

    def _prepare(self, request: Request, body: Body | None) -> bytes:
        status = 204 if body is not None and not body else 200
        headers: Body = {"statusCode": Int(status), "statusDescription": "OK"}
        if status == 204:
            headers["statusDescription"] = "No Content"
            headers["errorCondition"] = Symbol(PREFIX + "message-not-found")
            body = None
        self._track(request, headers)
        return request.prepare(headers, body)

    def _reply(self, request: Request, answer: bytes, failure: BusError | None) -> None:
        if failure is not None:
            request.drop(answer)
            self._refuse(request, failure)
            return
        request.send(answer)
        self._visitor.bridge.touch()

    def _refuse(self, request: Request, error: BusError) -> None:
        request.send(self._refusal(request, error))
        self._visitor.bridge.touch()

    def _refusal(self, request: Request, error: BusError) -> bytes:
        text = self._hub.track(error, self._address.path)
        headers: Body = {
            "statusCode": Int(error.kind.status),
            "statusDescription": text,
            "errorCondition": Symbol(error.kind.condition),
        }
        self._track(request, headers)
        return request.prepare(headers, None)

    def _track(self, request: Request, headers: Body) -> None:
        tracking_id = request.headers.get(PREFIX + "tracking-id")
        if tracking_id is not None:
            headers[PREFIX + "tracking-id"] = str(tracking_id)

    def _holder(self) -> Holder:
        if not isinstance(self._entity, Holder):
            raise BusError(
                errors.NOT_ALLOWED,
                f"'{self._entity.path}' is a topic: nothing is received from it.",
            )
        return self._entity

    def _stream(self) -> Stream:
        return self._holder().stream(self._address.stream)

    def _subscription(self) -> Subscription:
        if not isinstance(self._entity, Subscription):
            raise BusError(errors.NOT_ALLOWED, f"'{self._entity.path}' has no rules.")
        return self._entity

    def _take_effort(self, looked_through: int) -> None:
        """A small request may look at all that there is: others come first before the next."""
        connection = self._visitor.bridge.connection
        if connection is not None:
            connection.add_effort(looked_through)

    # --- looking ----------------------------------------------------------------------

    def _peek(self, body: Body) -> Body:
        # A topic has scheduled messages to show, and no dead letters.
        is_topic = not isinstance(self._entity, Holder)
        at_main = self._address.stream == names.MAIN_STREAM
        stream = self._entity.main if is_topic and at_main else self._stream()
        states = browsing.ALL_STATES
        if "state" in body:
            states = _known(browsing.STATES, body["state"])
        if "state" in body or body.get("session-id") is not None:
            self._take_effort(stream.index.live)
        seqs = stream.browse(
            int(body["from-sequence-number"]),
            max(0, min(int(body["message-count"]), limits.PEEK_COUNT_MAX)),
            body.get("session-id"),
            states,
        )
        messages: list[Body] = []
        size = 0
        for seq in seqs:
            payload = self._readable(
                browsing.on_wire(stream, seq, bool(body.get("omit-message-body")))
            )
            size += len(payload)
            if messages and size > limits.PEEK_BYTES_MAX:
                break
            messages.append({"message": payload})
        return {"messages": messages} if messages else {}

    def _get_message_sessions(self, body: Body) -> Body:
        table = self._stream().sessions
        since_ms = int(body["last-updated-time"])
        found: list[str] = []
        if table is not None:
            self._take_effort(len(table.sessions))
            if since_ms >= _ANY_TIME_MS:
                found = [s.id for s in table.sessions.values() if s.live or s.state is not None]
            else:
                found = [s.id for s in table.sessions.values() if s.state_set_ms > since_ms]
        skip, top = int(body["skip"]), int(body["top"])
        page = sorted(found)[skip : skip + min(top, 100)]
        if not page:
            return {}
        return {"skip": Int(skip + len(page)), "sessions-ids": AmqpArray(page, ARRAY_OF_STRING)}

    # --- locks and settlement ---------------------------------------------------------

    def _lock(self, token: UUID) -> Lock:
        stream = self._stream()
        raw = token.bytes
        if raw[:8] != stream.token_high:
            raise stream.lock_lost(None)
        return stream.lock_by_low(int.from_bytes(raw[8:], "big"))

    def _renew_lock(self, body: Body) -> Body:
        locks = [self._lock(token) for token in body["lock-tokens"]]
        ends = [Timestamp(self._stream().renew(lock, self._hub.now_ms)) for lock in locks]
        return {"expirations": AmqpArray(ends, ARRAY_OF_TIMESTAMP)}

    def _update_disposition(self, body: Body) -> None:
        wanted = Settlement(_known(_SETTLEMENTS, body["disposition-status"]))
        wanted.take_properties(body.get("properties-to-modify"))
        wanted.reason = _text(body.get("deadletter-reason"))
        wanted.description = _text(body.get("deadletter-description"))
        holder = self._holder()
        stream = self._stream()
        # Each once. Tokens are a stranger's, and may be made to have one hash; locks are ours.
        locks = list(dict.fromkeys([self._lock(token) for token in body["lock-tokens"]]))
        for lock in locks:
            wanted.check(stream, lock, self._hub.now_ms)
            wanted.take_effort(stream, lock, self._hub.now_ms)
        for lock in locks:
            wanted.apply(holder, stream, lock, self._hub.now_ms)

    def _receive_deferred(self, body: Body) -> Body:
        stream = self._stream()
        now_ms = self._hub.now_ms
        peek_lock = int(body["receiver-settle-mode"]) == 1
        session = None
        if stream.sessions is not None:
            # Without a session there would be nothing that ends such a lock.
            session = self._session(body)
        consumer = session.holder if session is not None else None
        assert consumer is None or isinstance(consumer, Consumer)
        seqs = _numbers(body)
        _check_answer(stream, seqs)
        locks = stream.fetch_deferred(seqs, session, consumer, now_ms)
        if peek_lock and session is None:
            # No link holds these: they end with the connection.
            self._visitor.bridge.hold(stream, [*locks])
        messages: list[Body] = []
        for lock in locks:
            stored = stream.stored(lock.seq)
            enqueued_ms = stream.enqueued_ms(lock.seq)
            entry: Body = {}
            if peek_lock:
                low = lock.low.to_bytes(8, "big")
                entry["lock-token"] = UUID(bytes=stream.token_high + low)
                head = form.locked_head(
                    stored, lock.seq, enqueued_ms, lock.delivery_count, stream.token_high, lock.low,
                    lock.locked_until_ms, browsing.WIRE_STATE[DEFERRED],
                )  # fmt: skip
            else:
                head = form.free_head(
                    stored, lock.seq, enqueued_ms, lock.delivery_count,
                    browsing.WIRE_STATE[DEFERRED],
                )  # fmt: skip
                PLAIN_COMPLETE.apply(self._holder(), stream, lock, now_ms)
            entry["message"] = self._readable(head + stored[form.bare_start(stored) :])
            messages.append(entry)
        return {"messages": messages}

    def _readable(self, message: bytes) -> bytes:
        is_python_sdk = self._visitor.bridge.is_python_sdk
        return form.for_python_sdk(message) if is_python_sdk else message

    # --- sessions ---------------------------------------------------------------------

    def _session(self, body: Body) -> Session:
        """The session that a receiver of the one who asks holds (E6).

        Another may have got it meanwhile: whoever has lost it must hear of that, and neither
        renew nor change what is another's.
        """
        stream = self._stream()
        session = stream.check_session(str(body["session-id"]), self._hub.now_ms)
        holder = session.holder
        name = body["associated-link-name"]
        if (
            isinstance(holder, Receiver)
            and holder.bridge is self._visitor.bridge
            and (not isinstance(name, str) or name == holder.link.name)
        ):
            return session
        raise stream.lock_lost(None)

    def _renew_session_lock(self, body: Body) -> Body:
        session = self._session(body)
        until_ms = self._stream().renew_session(session.id, self._hub.now_ms)
        return {"expiration": Timestamp(until_ms)}

    def _get_session_state(self, body: Body) -> Body:
        """Anybody who may listen may look; a receiver that believes it holds it is told if not."""
        if body["associated-link-name"] is not None:
            return {"session-state": self._session(body).state}
        table = self._stream().sessions
        session = table.sessions.get(str(body["session-id"])) if table is not None else None
        return {"session-state": None if session is None else session.state}

    def _set_session_state(self, body: Body) -> None:
        state = body.get("session-state")
        if state is not None and not isinstance(state, bytes):
            raise ValueError("session-state must be binary or null")
        if state is not None and len(state) > limits.SESSION_STATE_BYTES_MAX:
            raise BusError(
                errors.MESSAGE_TOO_LARGE,
                f"A session's state may have {limits.SESSION_STATE_BYTES_MAX} bytes at most.",
            )
        if state is not None:
            self._hub.check_sends()
        session = self._session(body)
        self._stream().set_session_state(session.id, state, self._hub.now_ms)

    # --- scheduling -------------------------------------------------------------------

    def _schedule(self, body: Body) -> Body:
        bridge = self._visitor.bridge
        messages = [bridge.read(_binary(entry["message"])) for entry in body["messages"]]
        for message in messages:
            self._entity.check(message)
        seqs = [self._entity.publish_scheduled(message, self._hub.now_ms) for message in messages]
        for message in messages:
            what = observations.PINGED if message.is_ping else observations.SENT
            self._observe(what, message.wire_bytes)
        return {"sequence-numbers": AmqpArray(seqs, ARRAY_OF_LONG)}

    def _cancel(self, body: Body) -> None:
        self._entity.main.cancel(_numbers(body))

    # --- rules ------------------------------------------------------------------------

    def _add_rule(self, body: Body) -> None:
        rule = rules.from_map(str(body["rule-name"]), body["rule-description"])
        self._namespace.create_rule(self._subscription(), rule, self._hub.now_ms)

    def _remove_rule(self, body: Body) -> None:
        self._namespace.delete_rule(self._subscription(), str(body["rule-name"]))

    def _enumerate_rules(self, body: Body) -> Body:
        skip, top = int(body.get("skip") or 0), int(body.get("top") or 100)
        known = list(self._subscription().rules.values())[skip : skip + top]
        if not known:
            return {}
        return {"rules": [{"rule-description": rules.to_wire(rule.description)} for rule in known]}

    # --- deleting in bulk, and what is not Azure's ------------------------------------

    def _batch_delete(self, body: Body) -> Body:
        before_ms = int(body["enqueued-time-utc"])
        stream = self._stream()
        count_max = min(int(body["message-count"]), limits.PURGE_COUNT_MAX)
        self._take_effort(stream.index.live)
        seqs = stream.browse(1, count_max, body.get("session-id"), bytes((ACTIVE,)))
        old = [seq for seq in seqs if stream.enqueued_ms(seq) <= before_ms]
        for seq in old:
            stream.remove(seq, records.PURGED)
        return {"message-count": Int(len(old))} if old else {}

    def _purge(self, body: Body) -> Body:
        stream = self._stream()
        state = _known(_PURGED, body["state"])
        if state == SCHEDULED:
            # Those are their sender's to cancel.
            self._require(SEND)
        wanted = body.get("message-count")
        count_max: int = limits.PURGE_COUNT_MAX
        if wanted is not None:
            count_max = min(int(wanted), count_max)
        self._take_effort(stream.index.live)
        seqs = stream.browse(1, count_max, None, bytes((state,)))
        for seq in seqs:
            stream.remove(seq, records.PURGED)
        return {"message-count": Int(len(seqs))}

    def _undefer(self, body: Body) -> None:
        returning.undefer(self._holder(), self._stream(), _numbers(body), self._hub.now_ms)

    def _resubmit(self, body: Body) -> Body:
        holder = self._holder()
        seqs = _numbers(body)
        count = returning.resubmit(holder, self._stream(), seqs, self._hub.now_ms)
        return {"message-count": Int(count)}

    def _reservation(self, perform: reservations.Operation, body: Body) -> Body:
        return perform(self._holder(), self._stream(), body, self._hub.now_ms)


def _operation(request: Request) -> str:
    return str(request.headers.get("operation") or "").removeprefix(PREFIX)


def _arguments(request: Request, given: object) -> Body:
    """The request's map, with the link that it is about."""
    body: Body = {}
    if isinstance(given, dict):
        body = {str(key): value for key, value in given.items()}
    body["associated-link-name"] = request.headers.get("associated-link-name")
    return body


def _numbers(body: Body) -> list[int]:
    """The sequence numbers of a request, each of them once."""
    return list(dict.fromkeys(int(seq) for seq in body["sequence-numbers"]))


def _check_answer(stream: Stream, seqs: list[int]) -> None:
    """Refuse deferred messages that are too much for one answer."""
    for seq in seqs:
        stream.check_deferred(seq)
    size = sum(stream.size(seq) for seq in seqs)
    if len(seqs) > 1 and size > limits.DEFERRED_BYTES_MAX:
        raise BusError(
            errors.MESSAGE_TOO_LARGE,
            f"These {len(seqs)} messages have {size} bytes together; one answer takes"
            f" {limits.DEFERRED_BYTES_MAX}. Ask for fewer at once.",
        )


def _known(table: dict[str, Any], name: object) -> Any:
    if name not in table:
        raise ValueError(f"'{name}' is none of {', '.join(table)}")
    return table[str(name)]


def _binary(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a message must be binary")
    return value


def _text(value: object) -> str | None:
    return None if value is None else str(value)
