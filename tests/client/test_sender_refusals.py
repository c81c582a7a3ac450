"""What a sender makes of refusals, from a peer that refuses as no live broker can be made to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.peer import served
from twinbus.amqp.codec import encode, encode_map
from twinbus.amqp.handler import Handler
from twinbus.amqp.link import Link
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, rejected
from twinbus.amqp.properties import Properties, decode_properties, encode_properties
from twinbus.amqp.sections import BATCH_FORMAT, locate, split_batch
from twinbus.amqp.types import Int
from twinbus.client import Client, SendRefused

BUSY = rejected("com.microsoft:server-busy", "Later.")
WRONG = rejected("amqp:not-allowed", "Never.")


class Choosy(Handler):
    """Takes tokens, and messages but those that hold one of some words."""

    def __init__(self, refusals: dict[bytes, bytes]) -> None:
        self.refusals = refusals
        self.accepted: list[bytes] = []
        self.replies: Link | None = None

    def on_attach(self, link: Link) -> None:
        link.accept(max_message_size=4096)
        if link.is_sender:
            self.replies = link
        else:
            link.grant(100)

    def on_transfer(self, link: Link, *rest: Any) -> None:
        delivery_id, _, message_format, _, payload, _ = rest
        if link.target.address == "$cbs":
            link.session.settle_incoming(delivery_id, delivery_id, ACCEPTED)
            self._take_token(payload)
            return
        batch = split_batch(payload) if message_format == BATCH_FORMAT else [payload]
        states = [self.refusals.get(message[-3:], ACCEPTED) for message in batch]
        state = next((state for state in states if state != ACCEPTED), ACCEPTED)
        if state == ACCEPTED:
            self.accepted += batch
        link.session.settle_incoming(delivery_id, delivery_id, state)

    def _take_token(self, payload: bytes) -> None:
        answer = Properties()
        answer.correlation_id = decode_properties(payload, locate(payload).properties_at).message_id
        status = encode_map([("status-code", encode(Int(202)))])
        assert self.replies is not None
        reply = encode_properties(answer) + b"\x00\x53\x74" + status
        self.replies.deliver(b"t", 0, True, b"", reply + b"\x00\x53\x77\x40", None)


def message(number: int) -> bytes:
    """56 to a batch, by the link's size; the last three bytes are the number."""
    return b"\x00\x53\x75\xa0\x3c" + b"x" * 57 + f"{number:03}".encode()


def send(handler: Handler, count: int) -> tuple[SendRefused, list[int]]:
    """The refusal of a run of messages, and the positions left to send again."""
    with served(handler) as text, Client.connect(text) as client:
        sender = client.sender("q")
        messages = [message(number) for number in range(count)]
        with pytest.raises(SendRefused) as refusal:
            deliver(sender, messages)
        rest = sender.unacknowledged()
        assert [entry for _, entry in rest] == [messages[position] for position, _ in rest]
        return refusal.value, [position for position, _ in rest] + list(range(sender.given, count))


def deliver(sender: Any, messages: list[bytes]) -> None:
    sender.send(messages)
    sender.flush()


@pytest.mark.parametrize("state", [BUSY, RELEASED])
def test_a_batch_refused_for_the_moment_can_be_sent_again(state: bytes) -> None:
    """Nothing of it is lost: what was not accepted is what is left."""
    handler = Choosy({b"070": state})
    refusal, rest = send(handler, 300)
    assert refusal.retryable
    accepted = {int(entry[-3:]) for entry in handler.accepted}
    assert 70 not in accepted
    assert accepted | set(rest) == set(range(300))
    assert rest == sorted(rest)


def test_a_message_refused_for_good_is_found_in_its_batch() -> None:
    handler = Choosy({b"070": WRONG})
    refusal, _ = send(handler, 300)
    assert (refusal.position, refusal.retryable) == (70, False)
    assert [int(entry[-3:]) for entry in handler.accepted if int(entry[-3:]) < 71] == list(
        range(70)
    )


class Slow(Choosy):
    """Answers the first three batches together."""

    def __init__(self, refusals: dict[bytes, bytes]) -> None:
        super().__init__(refusals)
        self.held: list[Any] = []

    def on_transfer(self, link: Link, *rest: Any) -> None:
        if link.target.address == "$cbs" or len(self.held) == 3:
            super().on_transfer(link, *rest)
            return
        self.held.append(rest)
        if len(self.held) == 3:
            for each in self.held:
                super().on_transfer(link, *each)


def test_a_busy_moment_hides_no_refusal_for_good() -> None:
    """While the batch with the one waits to be gone through, another is turned away: both are
    left to be sent again, and then the one is met again."""
    handler = Slow({b"070": WRONG, b"150": BUSY})
    refusal, rest = send(handler, 300)
    assert refusal.retryable
    accepted = {int(entry[-3:]) for entry in handler.accepted}
    assert accepted | set(rest) == set(range(300))
    assert {*range(56, 112), 150} <= set(rest)


class BusyInBetween(Choosy):
    """Has no time for one message when it comes alone; its batch is refused for another."""

    def __init__(self, refusals: dict[bytes, bytes], alone: bytes) -> None:
        super().__init__(refusals)
        self.alone = alone

    def on_transfer(self, link: Link, *rest: Any) -> None:
        delivery_id, _, _, _, payload, _ = rest
        if len(payload) < 100 and payload.endswith(self.alone):
            link.session.settle_incoming(delivery_id, delivery_id, BUSY)
        else:
            super().on_transfer(link, *rest)


@pytest.mark.parametrize("alone", [56, 65])
def test_no_message_is_blamed_for_another_of_its_batch(alone: int) -> None:
    """The broker is busy while a refused batch is gone through. The first of the batch would be
    dead-lettered, or its row named, for what it is not."""
    handler = BusyInBetween({b"070": WRONG}, f"{alone:03}".encode())
    refusal, rest = send(handler, 112)
    assert (refusal.position, refusal.retryable) == (alone, True)
    assert rest == list(range(alone, 112))
    assert [int(entry[-3:]) for entry in handler.accepted] == list(range(alone))


class NoBatches(Choosy):
    """Refuses batches as such; each message alone is fine."""

    def on_transfer(self, link: Link, *rest: Any) -> None:
        delivery_id, _, message_format, _, _, _ = rest
        if message_format == BATCH_FORMAT:
            link.session.settle_incoming(delivery_id, delivery_id, WRONG)
        else:
            super().on_transfer(link, *rest)


def test_a_batch_whose_messages_are_all_taken_alone_is_sent() -> None:
    handler = NoBatches({})
    with served(handler) as text, Client.connect(text) as client:
        sender = client.sender("q")
        deliver(sender, [message(number) for number in range(120)])
        assert (sender.given, sender.accepted, sender.unacknowledged()) == (120, 120, [])
    assert [int(entry[-3:]) for entry in handler.accepted] == list(range(120))
