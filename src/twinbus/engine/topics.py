"""Topics and their subscriptions: which copies of a message are made, and for whom (E8)."""

from dataclasses import asdict
from typing import Final

from twinbus.core import errors, limits, names
from twinbus.core.descriptions import RuleDescription, SubscriptionDescription, TopicDescription
from twinbus.core.errors import BusError
from twinbus.engine import observations, records
from twinbus.engine.entities import SUBSCRIPTION, TOPIC, Directory, Entity, Holder
from twinbus.engine.kernel import Kernel
from twinbus.engine.message import Message
from twinbus.engine.rules import Rule
from twinbus.engine.sessions import SessionTable
from twinbus.engine.view import View
from twinbus.filters import EvaluationError

_NO_LIMIT: Final = 2**62


class Subscription(Holder):
    kind = SUBSCRIPTION

    def __init__(
        self, kernel: Kernel, directory: Directory, number: int,
        description: SubscriptionDescription, rules: list[RuleDescription],
    ) -> None:  # fmt: skip
        path = names.subscription_path(description.topic, description.name)
        super().__init__(kernel, directory, number, path)
        self.description = description
        self.rules: dict[str, Rule] = {}
        for rule in rules:
            self.rules[names.fold(rule.name)] = Rule(rule)
        #: Messages that a failing filter kept out, with dead-lettering of those off (D6).
        self.filter_failures_total = 0
        # A subscription's size counts as its topic's.
        self.bytes_max = _NO_LIMIT
        self.settings_changed()

    def describe(self) -> dict[str, object]:
        rules = [asdict(rule.description) for rule in self.rules.values()]
        return {"description": asdict(self.description), "rules": rules}

    def settings_changed(self) -> None:
        d = self.description
        self.set_status(d.status)
        self.time_to_live_ms = d.default_message_time_to_live_ms
        self.forward_to = d.forward_to
        self.dead_letters_to = d.forward_dead_lettered_messages_to
        if d.requires_session and self.main.sessions is None:
            self.main.sessions = SessionTable()
        self.apply_to_streams(
            d.lock_duration_ms, d.max_delivery_count, d.dead_lettering_on_message_expiration
        )

    def receive_copies(
        self, message: Message, view: View, now_ms: int, ttl_ms: int, hops: int
    ) -> None:
        """Take the copies of a topic's message that this subscription's rules call for (E8)."""
        if self.send_disabled:
            return
        try:
            copies = self._called_for(message, view)
        except EvaluationError as failure:
            self._filter_failed(message, failure.kind, str(failure), now_ms, hops)
            return
        except Exception as fault:
            # One of ours. To break off here could lose a message that is being moved.
            dead = message.buried(EvaluationError.kind, repr(fault), self.path)
            self.place_dead_letter(dead, now_ms, 0, hops)
            return
        for copy in copies:
            # An action may have set a time to live. What the message was sent with is past: its
            # time runs on from before, or is no matter any more, as with a dead letter (D1).
            is_set = copy.ttl_ms != message.ttl_ms
            self._receive_copy(copy, now_ms, min(ttl_ms, copy.ttl_ms) if is_set else ttl_ms, hops)

    def takes(self, message: Message, view: View) -> bool:
        """Whether a copy of a topic's message would be here, alive or dead."""
        if self.send_disabled:
            return False
        try:
            return bool(self._called_for(message, view))
        except EvaluationError:
            return self.description.dead_lettering_on_filter_evaluation_exceptions

    def _called_for(self, message: Message, view: View) -> list[Message]:
        """The message, once, if rules without an action match; and what the others make of it."""
        plain = False
        copies: list[Message] = []
        for rule in self.rules.values():
            if not rule.matches(view):
                continue
            if rule.action is None:
                plain = True
            else:
                copies.append(rule.act(message, self.directory.new_uuid))
        if plain:
            copies.insert(0, message)
        return copies

    def _receive_copy(self, message: Message, now_ms: int, ttl_ms: int, hops: int) -> None:
        if self.main.sessions is not None and message.session_id() is None:
            reason = "Session id is null."
            text = (
                "Session enabled entity doesn't allow a message whose session identifier is null."
            )
        elif message.header_bytes > limits.HEADER_BYTES_MAX:
            reason = "HeaderSizeExceeded"
            text = "The size quota for this stream has been exceeded."
        else:
            self.accept(message, now_ms, ttl_ms, hops)
            return
        self.place_dead_letter(message.buried(reason, text, self.path), now_ms, 0, hops)

    def _filter_failed(
        self, message: Message, name: str, text: str, now_ms: int, hops: int
    ) -> None:
        observer = self.kernel.observer
        if observer is not None:
            observer.tell(observations.FILTER_FAILED, self.main.number, text=f"{name}: {text}")
        if self.description.dead_lettering_on_filter_evaluation_exceptions:
            self.place_dead_letter(message.buried(name, text, self.path), now_ms, 0, hops)
        else:
            self.filter_failures_total += 1


class Topic(Entity):
    kind = TOPIC

    def __init__(
        self, kernel: Kernel, directory: Directory, number: int, description: TopicDescription
    ) -> None:
        super().__init__(kernel, directory, number, description.name)
        self.description = description
        self.subscriptions: dict[str, Subscription] = {}
        self.settings_changed()

    def describe(self) -> dict[str, object]:
        return {"description": asdict(self.description)}

    def settings_changed(self) -> None:
        self.take_settings(self.description)

    def size_bytes(self) -> int:
        return self.bytes_used + sum([s.bytes_used for s in self.subscriptions.values()])

    def copies(self) -> int:
        return max(1, len(self.subscriptions))

    def check(self, message: Message) -> None:
        super().check(message)
        if self.size_bytes() >= self.bytes_max:
            raise self._full()
        if message.wire_bytes > limits.COPIES_UNCHECKED_BYTES:
            self._check_copies(message.wire_bytes)
        # Filters read them: what cannot be read must be refused before any copy is placed.
        message.properties()
        if (session_id := message.session_id()) is not None:
            # A subscription may require sessions, and then it is too late to refuse it.
            self._check_session(session_id)

    def _check_copies(self, size: int) -> None:
        """Refuse a message whose different copies, by time to live and action, are too much."""
        subscriptions = self.subscriptions.values()
        count = len({s.time_to_live_ms for s in subscriptions})
        count += len([1 for s in subscriptions for r in s.rules.values() if r.action is not None])
        if count * size > limits.COPIES_BYTES_MAX:
            raise BusError(
                errors.MESSAGE_TOO_LARGE,
                f"The message (size {size} bytes) may become {count} different copies in"
                f" '{self.path}': they may have {limits.COPIES_BYTES_MAX} bytes together.",
            )

    def accept(self, message: Message, now_ms: int, ttl_ms: int, hops: int) -> None:
        """Fan out: each subscription whose rules match gets its own copy (E8)."""
        ttl_ms = min(ttl_ms, self.time_to_live_ms)
        stream = self.main
        seq = stream.next_seq
        stream.next_seq = seq + 1
        self.kernel.log.append(records.sequence_reached(stream.number, seq + 1))
        message.keep_original_sequence(seq)
        message.fans_out = True
        view = View(message, self.directory.new_uuid)
        came_back = self.is_handing_on
        self.is_handing_on = True
        try:
            for subscription in self.subscriptions.values():
                subscription.receive_copies(message, view, now_ms, ttl_ms, hops)
        finally:
            self.is_handing_on = came_back

    def reaches_anybody(self, message: Message) -> bool:
        """Whether any subscription would take a message; a topic itself keeps nothing."""
        view = View(message, self.directory.new_uuid)
        return any(s.takes(message, view) for s in self.subscriptions.values())
