"""A second broker, as plain as can be: lists and dicts, every rule a loop over all messages.

It is told what is asked of the engine and says what must become of it (E1–E11, R1–R10,
D1–D9). It chooses nothing that the rules leave open: which of several receivers gets a message,
when exactly an expired message goes, in what order things due at the same moment happen. Those
it is told, and checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine_content import RULES, Content, FilterFails
from naive_entities import (
    DEAD,
    MAIN,
    TRANSFER,
    Described,
    NaiveEntity,
    NaiveLock,
    NaiveMessage,
    NaiveSession,
    NaiveStream,
)

from twinbus.core import errors
from twinbus.core.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import ErrorKind
from twinbus.core.units import UNLIMITED_MS

HOPS_MAX = 4
#: Any text will do: the broker's own words for an error are not the model's business.
SOME_TEXT = "*"


class Refused(Exception):
    def __init__(self, kind: ErrorKind) -> None:
        super().__init__(kind.condition)
        self.kind = kind


class NaiveBroker:
    def __init__(self) -> None:
        self.entities: dict[str, NaiveEntity] = {}
        self.now_ms = 0
        self._rank = 0
        #: Receivers that must have been told so since the last look.
        self.sessions_lost: list[str] = []
        self.sessions_not_found: list[str] = []
        self.detached: list[str] = []
        #: Through which entities the message at hand has come.
        self._way: list[NaiveEntity] = []

    def step_on(self) -> None:
        """What is placed from now on comes after what was placed before."""
        self._rank += 1

    def streams(self) -> Iterator[NaiveStream]:
        for entity in self.entities.values():
            yield from entity.streams

    def entity(self, path: str) -> NaiveEntity:
        if path not in self.entities:
            raise Refused(errors.NOT_FOUND)
        return self.entities[path]

    def subscriptions(self, topic: NaiveEntity) -> list[NaiveEntity]:
        start = f"{topic.path}/Subscriptions/"
        return [e for path, e in self.entities.items() if path.startswith(start)]

    # --- sending ----------------------------------------------------------------------

    def check(self, entity: NaiveEntity, content: Content, coming: int = 0) -> None:
        """`coming` bytes are sent there in the same transaction before it."""
        d = entity.description
        if self.entities.get(entity.path) is not entity:
            raise Refused(errors.NOT_FOUND)
        if entity.sends_off:
            raise Refused(errors.ENTITY_DISABLED)
        if isinstance(d, QueueDescription | TopicDescription):
            parts = [entity, *(self.subscriptions(entity) if entity.is_topic else [])]
            if sum(e.body_bytes for e in parts) + coming >= d.max_size_in_megabytes << 20:
                raise Refused(errors.QUOTA_EXCEEDED)
        if isinstance(d, QueueDescription) and d.requires_session and content.session_id is None:
            raise Refused(errors.NOT_ALLOWED)

    def send(self, path: str, batch: list[tuple[Content, int]]) -> None:
        """Take in a batch of messages, each with the time for which it is scheduled, or 0."""
        entity = self.entity(path)
        for content, _ in batch:
            self.check(entity, content)
        for content, due_ms in batch:
            self.publish(entity, content, due_ms)

    def publish(self, entity: NaiveEntity, content: Content, due_ms: int) -> None:
        self._rank += 1
        if self._is_duplicate(entity, content):
            return
        if due_ms > self.now_ms:
            message = NaiveMessage(content, "scheduled", self.now_ms, due_ms=due_ms)
            self._place(entity.streams[MAIN], message)
        else:
            self._accept(entity, content, content.ttl_ms or UNLIMITED_MS, 0)

    def _is_duplicate(self, entity: NaiveEntity, content: Content) -> bool:
        d = entity.description
        if not getattr(d, "requires_duplicate_detection", False):
            return False
        assert isinstance(d, QueueDescription | TopicDescription)
        key = (content.message_id, content.resubmission)
        seen_ms = entity.history.get(key)
        window_ms = d.duplicate_detection_history_time_window_ms
        if seen_ms is not None and self.now_ms - seen_ms < window_ms:
            return True
        entity.history[key] = self.now_ms
        return False

    def _place(self, stream: NaiveStream, message: NaiveMessage | None) -> None:
        stream.fresh.append((self._rank, message))

    def _accept(
        self, entity: NaiveEntity, content: Content, ttl_ms: int, hops: int,
        was_due: tuple[int, int, int] | None = None,
    ) -> None:  # fmt: skip
        ttl_ms = min(ttl_ms, entity.description.default_message_time_to_live_ms)
        if entity.is_topic:
            self._fan_out(entity, content, ttl_ms, hops)
        elif entity.forward_to is not None:
            self._hand_on(entity, entity.forward_to, content, ttl_ms, hops)
        else:
            expires_ms = 0
            if ttl_ms < UNLIMITED_MS:
                content = replace(content, ttl_ms=ttl_ms)
                expires_ms = self.now_ms + ttl_ms
            message = NaiveMessage(content, "active", self.now_ms, expires_ms, was_due=was_due)
            self._place(entity.streams[MAIN], message)

    def _fan_out(self, topic: NaiveEntity, content: Content, ttl_ms: int, hops: int) -> None:
        self._place(topic.streams[MAIN], None)
        self._way.append(topic)
        for subscription in self.subscriptions(topic):
            if subscription.sends_off:
                continue
            d = subscription.description
            assert isinstance(d, SubscriptionDescription)
            try:
                copies = _copies(subscription, content)
            except FilterFails as failure:
                if d.dead_lettering_on_filter_evaluation_exceptions:
                    self.bury(subscription, content, failure.kind, SOME_TEXT, {}, 0, hops)
                continue
            for copy in copies:
                if d.requires_session and copy.session_id is None:
                    reason = "Session id is null."
                    self.bury(subscription, copy, reason, SOME_TEXT, {}, 0, hops)
                else:
                    self._accept(subscription, copy, ttl_ms, hops)
        self._way.pop()

    def _hand_on(
        self, entity: NaiveEntity, path: str, content: Content, ttl_ms: int, hops: int
    ) -> None:
        if hops == HOPS_MAX:
            self._bury_transfer(entity, content, "MaxTransferHopCountExceeded")
            return
        try:
            target = self.entity(path)
            self.check(target, content)
        except Refused as refused:
            self._bury_transfer(entity, content, _transfer_reason(refused.kind))
            return
        self._way.append(entity)
        # Dead letters, and what comes back in a circle, are not dropped (E7).
        is_new = content.source is not None or target in self._way
        if is_new or not self._is_duplicate(target, content):
            self._accept(target, content, ttl_ms, hops + 1)
        self._way.pop()

    # --- dead letters -----------------------------------------------------------------

    def _bury_transfer(self, entity: NaiveEntity, content: Content, reason: str) -> None:
        content = content.buried(reason, SOME_TEXT, {}, entity.path)
        self._place(entity.streams[TRANSFER], NaiveMessage(content, "active", self.now_ms))

    def bury(
        self, entity: NaiveEntity, content: Content, reason: str | None, description: str | None,
        properties: dict[str, object], count: int, hops: int = 0,
    ) -> None:  # fmt: skip
        content = content.buried(reason, description, properties, entity.path)
        path: str | None = getattr(entity.description, "forward_dead_lettered_messages_to", None)
        if path is None:
            message = NaiveMessage(content, "active", self.now_ms, count=count)
            self._place(entity.streams[DEAD], message)
        else:
            self._hand_on(entity, path, content, UNLIMITED_MS, hops)

    def expire(self, stream: NaiveStream, message: NaiveMessage) -> None:
        """The engine says that an expired message is gone."""
        assert message.is_free
        assert message.is_over(self.now_ms)
        stream.messages.remove(message)
        d = stream.entity.description
        assert stream.which == MAIN
        assert isinstance(d, QueueDescription | SubscriptionDescription)
        if d.dead_lettering_on_message_expiration:
            self.bury(
                stream.entity, message.content, "TTLExpiredException", SOME_TEXT, {}, message.count
            )

    # --- locks ------------------------------------------------------------------------

    def deliver(self, stream: NaiveStream, consumer: str, seq: int, peek_lock: bool) -> NaiveLock:
        """The engine gave a message to a receiver: was it the right one? (R1, R2, E6)"""
        assert consumer in stream.consumers
        assert not stream.entity.receives_off
        session = self.session_of(stream, consumer)
        assert stream.has_sessions == (session is not None)
        first = stream.deliverable(self.now_ms, session)[0]
        assert first.seq == seq, f"{seq} came before {first.seq}"
        if not peek_lock:
            stream.messages.remove(first)
            return NaiveLock(0, consumer)
        return self._lock(stream, first, consumer, session)

    def _lock(
        self, stream: NaiveStream, message: NaiveMessage, consumer: str | None, session: str | None
    ) -> NaiveLock:
        d = stream.entity.description
        assert isinstance(d, QueueDescription | SubscriptionDescription)
        assert message.lock is None
        message.lock = NaiveLock(self.now_ms + d.lock_duration_ms, consumer, session)
        return message.lock

    def held(self, stream: NaiveStream, lock: NaiveLock) -> NaiveMessage:
        """The message that a lock still holds; refused if it holds none any more (R5)."""
        message = next((m for m in stream.messages if m.lock is lock), None)
        alive = self.entities.get(stream.entity.path) is stream.entity
        if message is not None and alive:
            if lock.session is None and self.now_ms < lock.until_ms:
                return message
            if lock.session is not None:
                session = stream.session(lock.session)
                if session.holder == lock.consumer and self.now_ms < session.until_ms:
                    return message
        kind = errors.SESSION_LOCK_LOST if stream.has_sessions else errors.MESSAGE_LOCK_LOST
        raise Refused(kind)

    def complete(self, stream: NaiveStream, lock: NaiveLock) -> None:
        stream.messages.remove(self.held(stream, lock))

    def abandon(
        self, stream: NaiveStream, lock: NaiveLock, properties: dict[str, object], delay_ms: int
    ) -> None:
        message = self.held(stream, lock)
        message.content = message.content.with_properties(properties)
        self._give_back(stream, message, message.count + 1)
        if message in stream.messages and message.state == "active":
            message.delayed_until_ms = self.now_ms + delay_ms if delay_ms else 0

    def release(self, stream: NaiveStream, lock: NaiveLock) -> None:
        message = self.held(stream, lock)
        self._give_back(stream, message, message.count)

    def defer(self, stream: NaiveStream, lock: NaiveLock, properties: dict[str, object]) -> None:
        message = self.held(stream, lock)
        message.content = message.content.with_properties(properties)
        message.lock = None
        message.count += 1
        message.state = "deferred"

    def dead_letter(
        self, stream: NaiveStream, lock: NaiveLock, reason: str | None, description: str | None,
        properties: dict[str, object],
    ) -> None:  # fmt: skip
        message = self.held(stream, lock)
        if stream.which != MAIN:
            raise Refused(errors.NOT_ALLOWED)
        self._rank += 1
        stream.messages.remove(message)
        self.bury(stream.entity, message.content, reason, description, properties, message.count)

    def renew(self, stream: NaiveStream, lock: NaiveLock) -> None:
        self.held(stream, lock)
        d = stream.entity.description
        assert isinstance(d, QueueDescription | SubscriptionDescription)
        lock.until_ms = self.now_ms + d.lock_duration_ms

    def _give_back(self, stream: NaiveStream, message: NaiveMessage, count: int) -> None:
        message.lock = None
        message.count = count
        d = stream.entity.description
        assert isinstance(d, QueueDescription | SubscriptionDescription)
        if message.state == "active" and stream.which == MAIN and count >= d.max_delivery_count:
            stream.messages.remove(message)
            self.bury(
                stream.entity, message.content, "MaxDeliveryCountExceeded", SOME_TEXT, {}, count
            )

    # --- deferred, scheduled, browsing ------------------------------------------------

    def fetch_deferred(
        self, stream: NaiveStream, seqs: list[int], session: str | None
    ) -> list[NaiveLock]:
        consumer = None
        if stream.has_sessions:
            if session is None:
                raise Refused(errors.SESSION_LOCK_LOST)
            consumer = self.held_session(stream, session).holder
        found: list[NaiveMessage] = []
        for seq in seqs:
            message = stream.find(seq)
            if message is None or message.state != "deferred" or message.lock is not None:
                raise Refused(errors.MESSAGE_NOT_FOUND)
            if seq > stream.durable_seq or (session and message.content.session_id != session):
                raise Refused(errors.MESSAGE_NOT_FOUND)
            found.append(message)
        return [self._lock(stream, m, consumer, session) for m in found]

    def undefer(self, stream: NaiveStream, seq: int) -> None:
        message = stream.find(seq)
        if message is None or message.state != "deferred" or message.lock is not None:
            raise Refused(errors.MESSAGE_NOT_FOUND)
        if seq > stream.durable_seq:
            raise Refused(errors.MESSAGE_NOT_FOUND)
        message.state = "active"
        self.made_active(stream)

    def cancel(self, stream: NaiveStream, seqs: list[int]) -> None:
        found = [stream.find(seq) for seq in seqs]
        if any(m is None or m.state != "scheduled" for m in found):
            raise Refused(errors.MESSAGE_NOT_FOUND)
        stream.messages = [m for m in stream.messages if m not in found]

    def browse(self, stream: NaiveStream, from_seq: int, count_max: int) -> list[int]:
        seqs = [m.seq for m in stream.messages if from_seq <= m.seq <= stream.durable_seq]
        return seqs[:count_max]

    def resubmit(self, stream: NaiveStream, seqs: list[int], number: int) -> int:
        """`number` is what the engine calls the stream."""
        if stream.which == MAIN:
            raise Refused(errors.NOT_ALLOWED)
        count = 0
        for seq in seqs:
            message = stream.find(seq)
            if message is None or not message.is_free or seq > stream.durable_seq:
                continue
            content = message.content.revived(f"{number}:{seq}")
            if stream.entity.streams[MAIN].has_sessions and content.session_id is None:
                continue
            stream.messages.remove(message)
            self._rank += 1
            self._accept(stream.entity, content, content.ttl_ms or UNLIMITED_MS, 0)
            count += 1
        return count

    # --- sessions ---------------------------------------------------------------------

    def session_of(self, stream: NaiveStream, consumer: str) -> str | None:
        return next((i for i, s in stream.sessions.items() if s.holder == consumer), None)

    def held_session(self, stream: NaiveStream, session_id: str) -> NaiveSession:
        session = stream.session(session_id)
        if session.holder is None or self.now_ms >= session.until_ms:
            raise Refused(
                errors.SESSION_LOCK_LOST if stream.has_sessions else errors.MESSAGE_LOCK_LOST
            )
        return session

    def accept_session(self, stream: NaiveStream, consumer: str, session_id: str) -> None:
        session = stream.session(session_id)
        if session.holder is not None and self.now_ms < session.until_ms:
            raise Refused(errors.SESSION_CANNOT_BE_LOCKED)
        if stream.reserving(session_id):
            raise Refused(errors.SESSION_CANNOT_BE_LOCKED)
        if session.holder is not None:
            self._lose_session(stream, session_id)
        self._seat(stream, consumer, session_id)

    def _seat(self, stream: NaiveStream, consumer: str, session_id: str) -> None:
        d = stream.entity.description
        assert isinstance(d, QueueDescription | SubscriptionDescription)
        session = stream.sessions.setdefault(session_id, NaiveSession())
        session.holder = consumer
        session.until_ms = self.now_ms + d.lock_duration_ms

    def session_found(self, stream: NaiveStream, consumer: str, session_id: str) -> None:
        """The engine gave a waiting receiver a session: was it there to be given?"""
        del stream.seekers[consumer]
        assert session_id in stream.waiting_sessions(self.now_ms)
        self._seat(stream, consumer, session_id)

    def renew_session(self, stream: NaiveStream, session_id: str) -> int:
        session = self.held_session(stream, session_id)
        d = stream.entity.description
        assert isinstance(d, QueueDescription | SubscriptionDescription)
        session.until_ms = self.now_ms + d.lock_duration_ms
        return session.until_ms

    def set_session_state(self, stream: NaiveStream, session_id: str, state: bytes | None) -> None:
        self.held_session(stream, session_id).state = state

    def _release_session(self, stream: NaiveStream, session_id: str, *, failed: bool) -> None:
        stream.sessions[session_id].holder = None
        for message in list(stream.messages):
            if message.lock is not None and message.lock.session == session_id:
                self._give_back(stream, message, message.count + failed)

    def _lose_session(self, stream: NaiveStream, session_id: str, *, failed: bool = True) -> None:
        holder = stream.sessions[session_id].holder
        assert holder is not None
        self._release_session(stream, session_id, failed=failed)
        self.sessions_lost.append(holder)

    # --- receivers come and go --------------------------------------------------------

    def attach(self, stream: NaiveStream, consumer: str) -> None:
        stream.consumers.add(consumer)

    def detach(self, stream: NaiveStream, consumer: str) -> None:
        stream.consumers.discard(consumer)
        stream.seekers.pop(consumer, None)
        session_id = self.session_of(stream, consumer)
        if session_id is not None:
            self._release_session(stream, session_id, failed=False)

    def connection_lost(self, stream: NaiveStream, consumer: str) -> None:
        self._rank += 1
        self.detach(stream, consumer)
        for message in list(stream.messages):
            if message.lock is not None and message.lock.consumer == consumer:
                self._give_back(stream, message, message.count + 1)

    # --- entities ---------------------------------------------------------------------

    def create(self, description: Described, rule: RuleDescription | None = None) -> None:
        entity = NaiveEntity(description)
        if isinstance(description, SubscriptionDescription):
            rule = rule or RuleDescription("$Default", created_ms=self.now_ms)
            entity.rules = {rule.name: rule}
        self.entities[entity.path] = entity

    def update(self, path: str, description: Described) -> None:
        entity = self.entities[path]
        entity.description = description
        self._rank += 1
        for stream in entity.streams:
            self._drop_locks(stream)
            off = stream.which == MAIN and entity.forward_to is not None
            if entity.receives_off or off:
                for consumer in sorted(stream.consumers):
                    self.detach(stream, consumer)
                    self.detached.append(consumer)
        self.made_active(entity.streams[MAIN])

    def _drop_locks(self, stream: NaiveStream) -> None:
        """Every lock is void (R7)."""
        for session_id, session in stream.sessions.items():
            if session.holder is not None:
                self._lose_session(stream, session_id, failed=False)
        for message in list(stream.messages):
            message.delayed_until_ms = 0
            if message.lock is not None:
                self._give_back(stream, message, message.count)

    def made_active(self, stream: NaiveStream) -> None:
        """Something that was set aside is back: what forwards hands it on (E9)."""
        if stream.which == MAIN and stream.entity.forward_to is not None:
            self.forward_waiting(stream.entity)

    def forward_waiting(self, entity: NaiveEntity) -> None:
        stream = entity.streams[MAIN]
        for message in [m for m in stream.messages if m.is_free]:
            self._rank += 1
            if message.is_over(self.now_ms):
                self.expire(stream, message)
                continue
            stream.messages.remove(message)
            left_ms = message.expires_ms - self.now_ms if message.expires_ms else UNLIMITED_MS
            self._accept(entity, message.content, left_ms, 0)

    def delete(self, path: str) -> None:
        entity = self.entity(path)
        for doomed in [entity, *(self.subscriptions(entity) if entity.is_topic else [])]:
            del self.entities[doomed.path]
            for stream in doomed.streams:
                self.detached += sorted(stream.consumers)

    # --- time -------------------------------------------------------------------------

    def run_timers(self) -> None:
        self._rank += 1
        for stream in list(self.streams()):
            self._lapse_locks(stream)
            self._end_seeking(stream)
            for message in list(stream.messages):
                if message.delayed_until_ms and message.delayed_until_ms <= self.now_ms:
                    message.delayed_until_ms = 0
                if message.state == "scheduled" and message.due_ms <= self.now_ms:
                    stream.messages.remove(message)
                    was_due = (id(stream), message.due_ms, message.seq)
                    ttl_ms = message.content.ttl_ms or UNLIMITED_MS
                    self._accept(stream.entity, message.content, ttl_ms, 0, was_due)

    def _end_seeking(self, stream: NaiveStream) -> None:
        """Whoever has waited long enough goes without, unless there is one now (R9)."""
        late = [name for name, at_ms in stream.seekers.items() if at_ms <= self.now_ms]
        if late:
            # In the order in which they came; the engine says who gets which.
            seated = list(stream.seekers)[: len(stream.waiting_sessions(self.now_ms))]
            for consumer in late:
                if consumer not in seated:
                    del stream.seekers[consumer]
                    self.sessions_not_found.append(consumer)

    def _lapse_locks(self, stream: NaiveStream) -> None:
        for session_id, session in stream.sessions.items():
            if session.holder is not None and session.until_ms <= self.now_ms:
                self._lose_session(stream, session_id)
        for message in list(stream.messages):
            lock = message.lock
            if lock is not None and lock.session is None and lock.until_ms <= self.now_ms:
                self._give_back(stream, message, message.count + 1)

    def deadlines(self) -> list[int]:
        """When something must happen by itself."""
        found: list[int] = []
        for stream in self.streams():
            found += stream.seekers.values()
            found += [s.until_ms for s in stream.sessions.values() if s.holder is not None]
            for m in stream.messages:
                found += [m.delayed_until_ms] if m.delayed_until_ms else []
                found += [m.due_ms] if m.state == "scheduled" else []
                if m.lock is not None and m.lock.session is None:
                    found.append(m.lock.until_ms)
        return found


def _copies(subscription: NaiveEntity, content: Content) -> list[Content]:
    """The copies that a subscription gets of a message: one for each rule with an action that
    matches, one for all the others together (E8)."""
    plain: list[Content] = []
    changed: list[Content] = []
    for rule in subscription.rules.values():
        if not RULES[rule.name].matches(content):
            continue
        if rule.action is None:
            plain = [content]
        else:
            changed.append(RULES[rule.name].act(content).with_properties({"RuleName": rule.name}))
    return plain + changed


def _transfer_reason(kind: ErrorKind) -> str:
    if kind is errors.NOT_FOUND:
        return "MessagingEntityNotFound"
    if kind is errors.ENTITY_DISABLED:
        return "MessagingEntityDisabled"
    if kind is errors.QUOTA_EXCEEDED:
        return "QuotaExceeded"
    return "ForwardingFailed"
