"""What connections and the broker itself have observed: metering (C1), pulse, compaction (L1)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.journal_disks import MemoryDisk
from tests.unit.amqp.amqp_client import DETACH, Peer, accepted, source, target
from tests.unit.engine.engine_kit import Kit, payload, section
from tests.unit.server.server_kit import DIRECTORY, Machine, connected
from twinbus.amqp.sections import BATCH_FORMAT
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong
from twinbus.core import errors
from twinbus.core.descriptions import QueueDescription
from twinbus.core.errors import BusError
from twinbus.engine import observations, records
from twinbus.engine.message import take_in
from twinbus.engine.observations import Observation
from twinbus.journal import read_segments
from twinbus.server import broker as broker_module
from twinbus.server.pulse import CENSUS_BEATS, HEARTBEAT_S

PING = "application/vnd.ms-servicebus-ping"


@pytest.fixture
def kit() -> Kit:
    kit = Kit(observing=True)
    kit.queue()
    return kit


def metered(kit: Kit, what: int) -> list[tuple[str, int, int, int]]:
    """Client, count, bytes and units of each observation of one kind, this commit's included."""
    kit.settle_down()
    found = [Observation(record) for _, record in kit.log.records if record[0] == records.OBSERVED]
    return [(o.client, o.count, o.bytes, o.units) for o in found if o.what == what]


def ping() -> bytes:
    return section(0x73, ["ping", *[None] * 5, Symbol(PING)]) + section(0x75, b"")


def send(peer: Peer, *messages: bytes) -> None:
    peer.attach(0, receiver=False)
    for number, message in enumerate(messages):
        peer.transfer(0, number, message)


def send_batch(peer: Peer, *messages: bytes) -> None:
    peer.attach(0, receiver=False)
    parts = b"".join(section(0x75, message) for message in messages)
    fields = [UInt(0), UInt(0), b"tag", UInt(BATCH_FORMAT), False, False]
    peer.send(0x14, fields, payload=parts)


# --- sending ----------------------------------------------------------------------------


def test_c1_sends_and_pings_are_metered_by_client(kit: Kit) -> None:
    peer, _ = connected(kit)
    one, large = payload(b"x"), payload(b"x" * 70_000)
    send(peer, one, ping())
    peer.transfer(0, 2, large[:40_000], more=True)
    peer.transfer(0, 2, large[40_000:])
    assert metered(kit, observations.SENT) == [("client", 2, len(one) + len(large), 3)]
    assert metered(kit, observations.PINGED) == [("client", 1, len(ping()), 1)]


def test_c1_each_message_of_a_batch_is_a_send(kit: Kit) -> None:
    peer, _ = connected(kit)
    send_batch(peer, payload(b"a"), payload(b"b"), ping())
    assert [count for _, count, _, _ in metered(kit, observations.SENT)] == [2]
    assert [count for _, count, _, _ in metered(kit, observations.PINGED)] == [1]


def test_c1_a_duplicate_is_sent_and_a_refused_message_is_not(kit: Kit) -> None:
    kit.queue("unique", requires_duplicate_detection=True)
    peer, _ = connected(kit)
    peer.attach(0, receiver=False, target=target("unique"))
    peer.transfer(0, 0, payload())
    peer.transfer(0, 1, payload())
    peer.transfer(0, 2, b"no message")
    assert [count for _, count, _, _ in metered(kit, observations.SENT)] == [2]
    assert len(metered(kit, observations.DUPLICATE_DROPPED)) == 1


def test_e10_what_a_transaction_sends_counts_with_its_commit(kit: Kit) -> None:
    peer, bridge = connected(kit)
    coordinator = Described(ULong(0x30), [None])
    peer.attach(0, receiver=False)
    peer.attach(1, receiver=False, name="control", target=coordinator)
    for number, fails in ((0, True), (3, False)):
        peer.transfer(1, number, section(0x77, Described(ULong(0x31), [None])))
        (txn_id,) = bridge.transactions.open
        within = Described(ULong(0x34), [txn_id, None])
        peer.transfer(0, number + 1, payload(), state=within)
        assert metered(kit, observations.SENT) == []
        discharge = section(0x77, Described(ULong(0x32), [txn_id, fails]))
        peer.transfer(1, number + 2, discharge)
    assert [count for _, count, _, _ in metered(kit, observations.SENT)] == [1]


# --- receiving --------------------------------------------------------------------------


def in_vain(kit: Kit) -> int:
    return sum(count for _, count, _, _ in metered(kit, observations.RECEIVED_NOTHING))


def test_c1_a_poll_in_vain_is_known_by_the_next_one_or_the_links_end(kit: Kit) -> None:
    peer, _ = connected(kit)
    peer.attach(0, receiver=True)
    peer.flow(0, 10)
    assert in_vain(kit) == 0
    peer.flow(0, 10)
    assert in_vain(kit) == 1
    peer.send(DETACH, [UInt(0), True])
    assert metered(kit, observations.RECEIVED_NOTHING) == [("client", 1, 0, 1)] * 2


def test_c1_a_poll_that_brought_something_was_not_in_vain(kit: Kit) -> None:
    peer, _ = connected(kit)
    peer.attach(0, receiver=True)
    for number in range(3):
        peer.flow(0, 1, count=number)
        kit.send(kit.namespace.queue("q"), payload())
    peer.send(DETACH, [UInt(0), True])
    assert in_vain(kit) == 0
    delivered = metered(kit, observations.DELIVERED)
    assert [(client, count) for client, count, _, _ in delivered] == [("client", 1)] * 3


def test_c1_a_drain_ends_a_poll_and_is_none_by_itself(kit: Kit) -> None:
    peer, _ = connected(kit)
    peer.attach(0, receiver=True)
    peer.flow(0, 2)
    peer.flow(0, 2, drain=True)
    assert in_vain(kit) == 1
    peer.flow(0, 2, count=2)
    kit.send(kit.namespace.queue("q"), payload())
    peer.flow(0, 1, count=3, drain=True)
    peer.send(DETACH, [UInt(0), True])
    assert in_vain(kit) == 1


def test_c1_a_client_may_poll_by_drain_alone(kit: Kit) -> None:
    peer, _ = connected(kit)
    peer.attach(0, receiver=True)
    for number in range(3):
        peer.flow(0, 1, count=number, drain=True)
    assert in_vain(kit) == 3


def test_c1_settlements_are_metered_refused_ones_too(kit: Kit) -> None:
    peer, _ = connected(kit)
    kit.send(kit.namespace.queue("q"), payload(), payload(), payload())
    peer.attach(0, receiver=True)
    peer.flow(0, 3)
    kit.settle_down()
    peer.disposition(0, 1, settled=False, state=accepted())
    assert metered(kit, observations.SETTLED) == [("client", 2, 0, 2)]
    kit.namespace.queue("q").main.drop_locks(kit.now_ms)
    peer.disposition(2, 2, settled=False, state=accepted())
    assert metered(kit, observations.SETTLED) == [("client", 2, 0, 2), ("client", 1, 0, 1)]


# --- management -------------------------------------------------------------------------


def ask(peer: Peer, number: int, operation: str, body: dict[str, object]) -> None:
    headers = section(0x74, {"operation": operation})
    peer.transfer(7, number, section(0x73, ["id"]) + headers + section(0x77, body))


def test_c1_requests_are_metered_by_what_they_ask_for(kit: Kit) -> None:
    peer, _ = connected(kit)
    peer.attach(7, receiver=False, name="m", target=target("q/$management"))
    peek: dict[str, object] = {"from-sequence-number": 1, "message-count": Int(1)}
    ask(peer, 0, "com.microsoft:peek-message", peek)
    ask(peer, 1, "com.microsoft:peek-message", peek)
    ask(peer, 2, "com.microsoft:renew-lock", {"lock-tokens": []})
    ask(peer, 3, "com.microsoft:renew-session-lock", {"session-id": "s"})
    ask(peer, 4, "com.microsoft:enumerate-rules", {})
    ask(peer, 5, "nonsense", {})
    due = Timestamp(kit.now_ms + 60_000)
    later = section(0x72, {Symbol("x-opt-scheduled-enqueue-time"): due}) + payload()
    ask(peer, 6, "com.microsoft:schedule-message", {"messages": [{"message": later}]})
    assert metered(kit, observations.PEEKED) == [("client", 2, 0, 2)]
    assert metered(kit, observations.LOCK_RENEWED) == [("client", 2, 0, 2)]
    assert metered(kit, observations.MANAGED) == [("client", 3, 0, 3)]
    assert metered(kit, observations.SENT) == [("client", 1, len(later), 1)]


def test_c1_requests_to_a_sub_queue_are_its_own(kit: Kit) -> None:
    peer, _ = connected(kit)
    address = "q/$DeadLetterQueue/$management"
    peer.attach(7, receiver=False, name="m", target=target(address), source=source(address))
    ask(peer, 0, "com.microsoft:peek-message", {"from-sequence-number": 1})
    kit.settle_down()
    seen = Observation(kit.log.records[-1][1])
    assert seen.what == observations.PEEKED
    assert seen.stream == kit.namespace.queue("q").stream(1).number


# --- the broker's own -------------------------------------------------------------------


class Observed(Machine):
    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.captured = 1 << 60
        super().__init__(self.disk, observing=True, captured=lambda: self.captured)

    def send(self, body: bytes = b"x") -> None:
        now_ms = self.broker.begin_turn()
        namespace = self.broker.engine.namespace("n", now_ms)
        if namespace.find("q") is None:
            namespace.create_queue(QueueDescription("q"), now_ms)
        namespace.queue("q").publish(take_in(payload(body), str), now_ms)

    def purge(self) -> None:
        now_ms = self.broker.begin_turn()
        stream = self.broker.engine.namespace("n", now_ms).queue("q").main
        for seq in stream.browse(1, 1_000, None, bytes((1,))):
            stream.remove(seq, records.PURGED)

    def told(self) -> list[tuple[int, int]]:
        """Time and kind of each observation in the journal."""
        entries = list(read_segments(DIRECTORY, disk=self.disk))
        return [(time_ms, record[1]) for _, _, time_ms, record in entries if record[0] == 9]

    def count(self, what: int) -> int:
        return [kind for _, kind in self.told()].count(what)


@pytest.fixture
def machine() -> Iterator[Observed]:
    machine = Observed()
    yield machine
    machine.close()


@pytest.fixture
def thrifty(machine: Observed, monkeypatch: pytest.MonkeyPatch) -> Observed:
    """Garbage is swept from the first kilobyte on."""
    monkeypatch.setattr(broker_module, "_GARBAGE_BYTES_MIN", 1_000)
    return machine


def test_l1_a_start_is_told_first_and_a_census_follows_in_its_batch(machine: Observed) -> None:
    machine.send()
    machine.run(0.1)
    machine.close()
    again = Observed(machine.disk)
    again.run(0.1)
    started_ms = again.loop.now_ms() - 100
    last = [kind for time_ms, kind in again.told() if time_ms == started_ms][-2:]
    assert last == [observations.STARTED, observations.PRESENT]
    again.close()


def test_l1_time_is_told_while_nothing_happens(machine: Observed) -> None:
    machine.run(HEARTBEAT_S * 10 + 1)
    assert machine.count(observations.HEARTBEAT) == 10


def test_l1_a_census_comes_while_things_change(machine: Observed) -> None:
    interval_s = HEARTBEAT_S * CENSUS_BEATS
    machine.run(interval_s * 3)
    assert machine.count(observations.PRESENT) == 0
    machine.send()
    machine.run(interval_s * 3)
    assert machine.count(observations.PRESENT) == 1
    machine.send()
    machine.run(interval_s)
    assert machine.count(observations.PRESENT) == 2
    machine.close()
    assert machine.count(observations.PRESENT) == 3


def test_l1_what_changed_nothing_waits_for_the_next_commit(machine: Observed) -> None:
    machine.run(1)
    commits = machine.broker.commits_total
    observer = machine.broker.kernel.observer
    assert observer is not None
    machine.broker.begin_turn()
    observer.count(observations.PEEKED, 4, "idle")
    machine.run(1)
    assert machine.broker.commits_total == commits
    machine.run(HEARTBEAT_S)
    assert machine.broker.commits_total == commits + 1
    assert machine.count(observations.PEEKED) == 1
    observer.count(observations.PEEKED, 4, "late")
    machine.close()
    assert machine.count(observations.PEEKED) == 2


def test_l1_a_full_disk_is_left_to_settlements(machine: Observed) -> None:
    machine.run(1)
    machine.broker.hub.refusing = BusError(errors.SERVER_BUSY, "full")
    machine.run(HEARTBEAT_S * 3)
    assert machine.count(observations.HEARTBEAT) == 0
    machine.broker.hub.refusing = None
    machine.run(HEARTBEAT_S)
    assert machine.count(observations.HEARTBEAT) == 1


def fill(machine: Observed) -> None:
    """Make several segments of garbage."""
    for _ in range(6):
        for _ in range(5):
            machine.send(b"x" * 2_000)
            machine.run()
        machine.purge()
        machine.run()


def test_l1_what_is_not_captured_is_not_dropped(thrifty: Observed) -> None:
    machine = thrifty
    machine.captured = 0
    journal = machine.broker.journal
    fill(machine)
    segments = journal.segments()
    assert len(segments) > 3
    assert segments[0][0] == 1

    machine.captured = journal.last_lsn(2)
    machine.run(10 * HEARTBEAT_S)
    assert journal.segments()[0][0] == 3
    lsns = [lsn for lsn, _, _, _ in read_segments(DIRECTORY, disk=machine.disk) if lsn]
    assert lsns[0] == machine.captured + 1


def test_l1_what_is_captured_is_dropped(thrifty: Observed) -> None:
    fill(thrifty)
    assert thrifty.broker.journal.segments()[0][0] > 3


def test_the_last_lsn_of_a_segment_is_known_after_a_restart(machine: Observed) -> None:
    fill(machine)
    journal = machine.broker.journal
    wanted = {number: journal.last_lsn(number) for number, _ in journal.segments()[:-1]}
    assert len(wanted) > 2
    machine.close()
    found: dict[int, int] = {}
    for lsn, location, _, _ in read_segments(DIRECTORY, disk=machine.disk):
        found[location >> 32] = max(found.get(location >> 32, 0), lsn)
    assert {number: found[number] for number in wanted} == wanted
    again = Observed(machine.disk)
    journal = again.broker.journal
    assert {number: journal.last_lsn(number) for number in wanted} == wanted
    again.close()
