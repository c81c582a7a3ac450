"""What the broker does by itself, turn by turn: what is due, and compaction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.store.journal_disks import MemoryDisk
from tests.unit.engine.engine_kit import Kit, Taker, payload
from tests.unit.server.server_kit import Machine
from twinbus.core import errors
from twinbus.core.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.core.errors import BusError
from twinbus.engine import records
from twinbus.engine.entities import Queue
from twinbus.engine.index import ACTIVE
from twinbus.engine.message import take_in
from twinbus.server import broker as broker_module
from twinbus.server.administration import NamespaceAdministration
from twinbus.server.authorization import Guard
from twinbus.server.broker import Broker


class OneQueue(Machine):
    def __init__(
        self, segment_bytes: int, disk: MemoryDisk | None = None, **settings: object
    ) -> None:
        super().__init__(disk, segment_bytes=segment_bytes)
        now_ms = self.broker.begin_turn()
        description = QueueDescription("q", **settings)  # type: ignore[arg-type]
        namespace = self.broker.engine.namespace("n", now_ms)
        self.queue: Queue = namespace.queues.get("q") or namespace.create_queue(description, now_ms)
        self.run()

    def send(self, *payloads: bytes) -> None:
        now_ms = self.broker.begin_turn()
        for one in payloads:
            self.queue.publish(take_in(one, str), now_ms)
        self.run()


def test_e5_what_is_due_goes_on_batch_by_batch_while_nothing_else_happens() -> None:
    machine = OneQueue(1 << 20)
    due_ms = machine.loop.now_ms() + 1_000
    machine.send(*[payload(b"%d" % n, due_ms=due_ms) for n in range(3_000)])
    commits = machine.broker.commits_total
    machine.run(1)
    assert len(machine.queue.main.due) == 0
    assert machine.queue.main.durable_seq == 6_000
    assert machine.broker.commits_total - commits >= 3
    machine.close()


# --- compaction -------------------------------------------------------------------------


@pytest.fixture
def thrifty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage is swept from the first kilobytes on."""
    monkeypatch.setattr(broker_module, "_GARBAGE_BYTES_MIN", 10_000)


def is_at_rest(machine: Machine) -> bool:
    """Nobody does anything: tell whether the broker does nothing either."""
    machine.run(1)
    commits, segments = machine.broker.commits_total, machine.broker.journal.segments()
    machine.broker.begin_turn()
    machine.run(10)
    return (commits, segments) == (machine.broker.commits_total, machine.broker.journal.segments())


@pytest.mark.usefixtures("thrifty")
def test_e6_session_states_are_no_garbage() -> None:
    machine = OneQueue(20_000, requires_session=True)
    stream = machine.queue.main
    for number in range(50):
        now_ms = machine.broker.begin_turn()
        taker = Taker(Kit(), stream, 0, True)
        stream.accept_session(taker, f"s{number}", now_ms)
        stream.set_session_state(f"s{number}", bytes(4_000), now_ms)
        stream.detach(taker, now_ms)
        machine.run()
    assert len(machine.broker.journal.segments()) > 5
    assert is_at_rest(machine)
    machine.close()


@pytest.mark.usefixtures("thrifty")
def test_e7_remembered_ids_are_no_garbage() -> None:
    machine = OneQueue(20_000, requires_duplicate_detection=True)
    for first in range(0, 5_000, 100):
        machine.send(*[payload(b"", message_id=f"{'x' * 100}{first + n}") for n in range(100)])
        machine.queue.main.remove_range(first + 1, first + 100, records.COMPLETED)
        machine.broker.begin_turn()
    machine.run(1)
    assert is_at_rest(machine)
    machine.close()


@pytest.mark.usefixtures("thrifty")
def test_small_messages_are_no_garbage() -> None:
    machine = OneQueue(20_000)
    for _ in range(50):
        machine.send(*[payload(b"") for _ in range(100)])
    assert is_at_rest(machine)
    machine.close()


@pytest.mark.parametrize("left", [0, 3])
def test_e11_receiving_makes_room_on_a_full_disk(left: int) -> None:
    """However little garbage that is: there is no room for the segment that would show more."""
    machine = OneQueue(20_000, MemoryDisk(capacity_bytes=120_000))
    while machine.broker.why_refusing() is None:
        machine.send(payload(bytes(2_000)))
    machine.run(5)
    assert machine.broker.why_refusing() is not None
    stream = machine.queue.main
    stream.remove_range(1, stream.durable_seq - left, records.COMPLETED)
    machine.broker.begin_turn()
    machine.run(5)
    assert machine.broker.why_refusing() is None
    assert machine.broker.journal.failed is None
    assert stream.index.live == left
    machine.close()


def test_e11_receiving_a_part_makes_room_on_a_full_disk() -> None:
    """What was received first lay in segments of its own, though most of the journal lives.

    Where nothing has to be carried out of one, no commit comes after which it could go.
    """
    machine = OneQueue(20_000, MemoryDisk(capacity_bytes=240_000))
    while machine.broker.why_refusing() is None:
        machine.send(payload(bytes(2_000)))
    machine.run(5)
    assert machine.broker.why_refusing() is not None
    stream = machine.queue.main
    count = stream.durable_seq
    for seq in range(1, count // 4):
        stream.remove_range(seq, seq, records.COMPLETED)
        machine.broker.begin_turn()
        machine.run(1.1)
    assert machine.broker.why_refusing() is None
    assert machine.broker.journal.failed is None
    # As much can come as has gone, but for what a segment has around it.
    while machine.broker.why_refusing() is None:
        machine.send(payload(bytes(2_000)))
        machine.run(2)
    assert count - 10 <= stream.index.live <= count
    machine.close()


@pytest.mark.parametrize("segments", [2, 3])
def test_e11_a_disk_that_is_full_to_the_last_byte_takes_settlements(segments: int) -> None:
    """Also after a restart; and sends are refused from its first moment on."""
    disk = MemoryDisk(capacity_bytes=segments * 20_000 * 9 // 8)
    machine = OneQueue(20_000, disk)
    while machine.broker.why_refusing() is None:
        machine.send(payload(bytes(2_000)))
    count = machine.queue.main.durable_seq
    assert count > 5
    disk.kill_holders()
    machine = OneQueue(20_000, disk)
    assert machine.broker.why_refusing() is not None
    for seq in range(1, count + 1):
        machine.queue.main.remove_range(seq, seq, records.COMPLETED)
        machine.broker.begin_turn()
        machine.run(1.1)
        assert machine.broker.journal.failed is None
    assert machine.broker.why_refusing() is None
    machine.close()


def test_e11_on_a_full_disk_entities_can_be_changed_and_removed() -> None:
    """That is a way out of it; there is only no room for new ones."""
    machine = OneQueue(20_000, MemoryDisk(capacity_bytes=50_000))
    while machine.broker.why_refusing() is None:
        machine.send(payload(bytes(2_000)))
    namespace = machine.broker.engine.namespace("n", machine.loop.now_ms())
    admin = NamespaceAdministration(machine.broker, namespace, Guard(namespace, [], checks=False))
    perform = machine.loop.run_until_complete
    perform(admin.update_queue(replace(machine.queue.description, status="SendDisabled")))
    with pytest.raises(BusError) as refused:
        perform(admin.create_queue(QueueDescription("another")))
    assert refused.value.kind is errors.SERVER_BUSY
    perform(admin.delete("q"))
    machine.run(2)
    assert machine.broker.why_refusing() is None
    perform(admin.create_queue(QueueDescription("another")))
    machine.close()


@pytest.mark.parametrize("case", ["due in a topic", "due with a new time to live", "handed on"])
def test_e11_what_the_broker_moves_unasked_leaves_a_full_disk_to_settlements(case: str) -> None:
    """What would be written anew on its way waits for room, also after a restart."""
    disk = MemoryDisk(capacity_bytes=120_000)
    machine = OneQueue(20_000, disk)
    now_ms = machine.broker.begin_turn()
    namespace = machine.broker.engine.namespace("n", now_ms)
    topic = namespace.create_topic(TopicDescription("t"), now_ms)
    namespace.create_subscription(SubscriptionDescription("t", "s"), None, now_ms)
    entity = topic if case == "due in a topic" else machine.queue
    due_ms = None if case == "handed on" else now_ms + 60_000
    while machine.broker.why_refusing() is None:
        message = take_in(payload(bytes(2_000), due_ms=due_ms), str)
        entity.publish(message, machine.broker.begin_turn())
        machine.run()
    sent = entity.main.index.live
    changed = replace(machine.queue.description, forward_to="t" if case == "handed on" else None)
    if case == "due with a new time to live":
        changed.default_message_time_to_live_ms = 86_400_000
    namespace.update_queue(changed, machine.broker.begin_turn())
    for _ in range(2):
        machine.run(120)
        assert machine.broker.journal.failed is None
        assert machine.broker.kernel.deadline_ms() == 0, "it would turn and turn"
        assert sum(stream.index.live for stream in machine.broker.engine.streams()) == sent
        disk.kill_holders()
        machine = OneQueue(20_000, disk)
    disk.kill_holders()
    disk.capacity_bytes = 1_000_000
    machine = OneQueue(20_000, disk)
    machine.run(120)
    arrived = machine.queue.main
    if case != "due with a new time to live":
        arrived = machine.broker.engine.namespace("n", 0).subscription("t", "s").main
    assert arrived.index.live == arrived.count_state(ACTIVE) == sent
    machine.close()


def test_compaction_that_frees_little_rests_after_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = OneQueue(20_000)
    for _ in range(50):
        machine.send(payload(bytes(4_000)))
    # Whatever is thought of it: everything lives.
    monkeypatch.setattr(Broker, "_has_garbage", lambda self, segments: True)
    for _ in range(5):
        machine.send(payload(bytes(4_000)))
    machine.run(10)
    after = machine.broker.journal.segments()
    # Each segment was rewritten once.
    assert 11 <= after[0][0] <= 12
    assert is_at_rest(machine)
    # It looks again when twice as much is there.
    for _ in range(60):
        machine.send(payload(bytes(4_000)))
    assert machine.broker.journal.segments()[0][0] > after[0][0]
    machine.close()


@pytest.mark.usefixtures("thrifty")
def test_garbage_behind_what_lives_is_reached_while_nobody_does_anything() -> None:
    machine = OneQueue(20_000)
    machine.send(*[payload(bytes(4_000)) for _ in range(10)])
    for _ in range(30):
        machine.send(payload(bytes(4_000)))
    machine.queue.main.remove_range(11, 40, records.COMPLETED)
    # It is noticed with the next segment.
    machine.send(*[payload(bytes(4_000)) for _ in range(5)])
    machine.send(payload())
    machine.run(10)
    segments = machine.broker.journal.segments()
    assert sum(size for _, size in segments) < 3 * machine.broker.engine.kept_bytes()
    assert is_at_rest(machine)
    machine.close()


@pytest.mark.usefixtures("thrifty")
def test_e8_copies_of_a_topic_do_not_hide_garbage() -> None:
    """Twenty subscriptions share each payload: that is live once, and the rest can go."""
    machine = OneQueue(20_000)
    now_ms = machine.broker.begin_turn()
    namespace = machine.broker.engine.namespace("n", now_ms)
    topic = namespace.create_topic(TopicDescription("t"), now_ms)
    for number in range(20):
        description = SubscriptionDescription("t", f"s{number}")
        namespace.create_subscription(description, None, now_ms)
    for _ in range(20):
        topic.publish(take_in(payload(bytes(4_000)), str), machine.broker.begin_turn())
        machine.run()
    for first in range(1, 201, 5):
        machine.send(*[payload(bytes(4_000)) for _ in range(5)])
        machine.queue.main.remove_range(first, first + 4, records.COMPLETED)
    machine.run(10)
    live_bytes = 20 * (4_000 + 20 * 100)
    assert machine.broker.engine.kept_bytes() < live_bytes
    segments = machine.broker.journal.segments()
    # Twice what lives, what is no garbage yet, and the segments that are still open to more.
    assert sum(size for _, size in segments) < 2 * live_bytes + 10_000 + 3 * 25_000
    machine.close()
