"""Dead letters sent again as on Azure, with locks that end in the middle (R10)."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusConnectionError

from twinbus.amqp import codec
from twinbus.amqp.types import Symbol
from twinbus.cli import dead_letter
from twinbus.cli.dead_letter import Wanted, _move, send_again
from twinbus.cli.node import Node
from twinbus.cli.printer import Printer
from twinbus.forms.message_form import to_json


class Azure:
    """A dead-letter queue with its own clock: each send and each settlement takes one tick."""

    def __init__(self, numbers: range, lock_ticks: int) -> None:
        self.now = 0
        self.sent: list[int] = []
        self.ids: list[str] = []
        self.left = dict.fromkeys(numbers, 0)
        self.lock_ticks = lock_ticks
        self._handler = SimpleNamespace(
            _link=SimpleNamespace(_incoming_transfer=lambda frame: None)
        )

    def get_queue_receiver(self, path: str) -> "Azure":
        return self

    def get_queue_sender(self, path: str, **_: Any) -> "Azure":
        return self

    def __enter__(self) -> "Azure":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def receive_messages(self, count: int, max_wait_time: float) -> list[Any]:
        """The first that are free, waiting for the end of a lock if need be."""
        free = [number for number, until in self.left.items() if until <= self.now]
        if not free:
            soonest = min(self.left.values(), default=self.now + 1_000_000)
            if soonest > self.now + max_wait_time:
                return []
            self.now = soonest
            return self.receive_messages(count, max_wait_time)
        return [self._deliver(number) for number in free[:count]]

    def _deliver(self, number: int) -> Any:
        until = self.left[number] = self.now + self.lock_ticks
        tag = f"{number} until {until}".encode()
        self._handler._link._incoming_transfer({1: 0, 2: tag, 5: False, 11: self.payload(number)})
        return SimpleNamespace(_delivery_tag=tag, number=number, until=until)

    def payload(self, number: int) -> bytes:
        return payload(number)

    def complete_message(self, message: Any) -> None:
        self._check(message)
        del self.left[message.number]

    def abandon_message(self, message: Any) -> None:
        self._check(message)
        self.left[message.number] = 0

    def _check(self, message: Any) -> None:
        self.now += 1
        if self.now >= message.until:
            raise MessageLockLostError

    def create_message_batch(self) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch()

    def send_messages(self, batch: ServiceBusMessageBatch) -> None:
        self.now += 1
        (encoded,) = batch._message[5]
        self.ids.append(to_json(encoded)["message_id"])
        self.sent.append(int(encoded.partition(b"number ")[2]))


class Hopeless(Azure):
    """Whatever is sent dies at once, under another number."""

    def __init__(self, numbers: range, lock_ticks: int) -> None:
        super().__init__(numbers, lock_ticks)
        self.id_of: dict[int, str] = {}

    def payload(self, number: int) -> bytes:
        return payload(number, self.id_of.get(number, "order"))

    def send_messages(self, batch: ServiceBusMessageBatch) -> None:
        super().send_messages(batch)
        assert len(self.sent) < 100, "it never ends"
        number = max(*self.left, 1_000) + 7
        self.left[number] = 0
        self.id_of[number] = self.ids[-1]


class Twinbus(Node):
    """A dead-letter queue to which what leaves it comes back, since its receiver always fails."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.moved: list[int] = []
        self.peeks = 0

    def peek(self, from_sequence_number: int = 1, count_max: int = 250, **_: Any) -> list[bytes]:
        self.peeks += 1
        found = [number for number in self.numbers if number >= from_sequence_number]
        return [payload(number) for number in found[:count_max]]

    def resubmit(self, sequence_numbers: Sequence[int]) -> int:
        assert len(self.moved) < 10_000, "it never ends"
        left = [number for number in self.numbers if number not in sequence_numbers]
        last = self.numbers[-1]
        self.moved += sequence_numbers
        self.numbers = left + [last + n for n in range(1, len(sequence_numbers) + 1)]
        return len(sequence_numbers)


def payload(number: int, message_id: str = "order") -> bytes:
    annotation = (Symbol("x-opt-sequence-number"), codec.encode(number))
    reason = ("DeadLetterReason", codec.encode("odd" if number % 7 == 1 else "wanted"))
    body = codec.encode(f"number {number}".encode())
    parts = (
        (0x72, codec.encode_map([annotation])), (0x73, codec.encode([message_id])),
        (0x74, codec.encode_map([reason])), (0x75, body),
    )  # fmt: skip
    return b"".join(bytes((0x00, 0x53, code)) + value for code, value in parts)


def resubmit(azure: Azure, wait_ticks: int = 3) -> int:
    client: Any = azure
    return sum(
        send_again(client, "q/$DeadLetterQueue", "q", Wanted("wanted", frozenset()), wait_ticks)
    )


def test_r10_each_wanted_one_is_sent_once_though_locks_end_in_the_middle() -> None:
    numbers = range(1, 121)
    wanted = [number for number in numbers if number % 7 != 1]
    for lock_ticks in range(7, 40):
        azure = Azure(numbers, lock_ticks)
        assert resubmit(azure) == len(wanted)
        assert azure.sent == wanted
        assert sorted(azure.left) == [number for number in numbers if number % 7 == 1]


def test_r10_a_lock_too_short_to_settle_anything_ends_and_loses_nothing() -> None:
    azure = Azure(range(2, 7), lock_ticks=1)
    assert resubmit(azure) == 5
    assert azure.sent == [2, 3, 4, 5, 6]
    assert sorted(azure.left) == [2, 3, 4, 5, 6]


def test_e7_r10_a_dead_letter_gets_an_id_of_its_own_that_is_the_same_in_every_run() -> None:
    """What detects duplicates knows the old id, and knows the new one after a run that was
    killed before it completed anything."""
    first, second = Azure(range(2, 7), lock_ticks=1), Azure(range(2, 7), lock_ticks=20)
    resubmit(first)
    resubmit(second)
    assert len(set(first.ids)) == 5
    assert first.ids == second.ids
    assert all(one.startswith("order-resubmitted-") for one in first.ids)


@pytest.mark.parametrize("old", ["x" * 128, {"uuid": "12345678-1234-5678-1234-567812345678"}, None])
def test_e7_a_new_id_is_no_longer_than_an_id_may_be(old: object) -> None:
    shown = {"sequence_number": 3, "enqueued_time_utc": "then", "message_id": old}
    new = dead_letter._new_id(shown, "q/$DeadLetterQueue")
    assert len(new) <= 128
    again = dead_letter._new_id(shown | {"sequence_number": 4, "message_id": new}, "q")
    assert again != new
    assert (len(again), again.count("resubmitted")) == (len(new), 1)


def test_what_was_resubmitted_is_told_also_of_a_run_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    azure = Azure(range(2, 7), lock_ticks=20)
    send = azure.send_messages

    def send_three(batch: ServiceBusMessageBatch) -> None:
        if len(azure.sent) == 3:
            raise ServiceBusConnectionError
        send(batch)

    monkeypatch.setattr(azure, "send_messages", send_three)
    monkeypatch.setattr(dead_letter, "Node", lambda *_: SimpleNamespace(is_twinbus=lambda: False))
    remote: Any = SimpleNamespace(client=lambda: azure)
    with pytest.raises(ServiceBusConnectionError):
        dead_letter.resubmit(remote, Printer(json_output=True), "q", yes=True)
    assert json.loads(capsys.readouterr().out) == {"resubmitted": 3, "atomic": False}
    assert sorted(azure.left) == [5, 6]


def test_what_dies_again_meanwhile_is_left_for_the_next_run_elsewhere_too() -> None:
    azure = Hopeless(range(2, 7), lock_ticks=1_000)
    assert resubmit(azure) == 5
    assert azure.sent == [2, 3, 4, 5, 6]
    assert len(azure.left) == 5


@pytest.mark.parametrize("numbers", [[], [1], [3, 700], list(range(5, 1_500, 3))])
def test_what_dies_again_meanwhile_is_left_for_the_next_run(numbers: list[int]) -> None:
    """Else a receiver that always fails would keep the command, and itself, busy for ever."""
    node = Twinbus(list(numbers))
    assert sum(_move(node, Wanted(None, frozenset()))) == len(numbers)
    assert node.moved == numbers


@pytest.mark.parametrize("numbers", [[], [1], [2], [3, 700], [2**40], list(range(5, 1_500, 3))])
def test_the_last_number_is_found_in_few_steps(numbers: list[int]) -> None:
    node = Twinbus(numbers)
    assert node.last_number() == max(numbers, default=0)
    assert node.peeks < 50
