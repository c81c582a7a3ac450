"""Goal: a broker that runs out of something, or is crowded, says so, loses nothing and recovers.

Method: a tmpfs that is too small, a limit on file descriptors, and raw connections that do
what no SDK does; official SDK clients see whether the broker still serves.
"""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from tests.faults.conftest import broker_on
from tests.faults.ledger import QUEUE, Traffic, client_of
from tests.support.broker import Broker
from tests.support.raw_amqp import (
    FLOW,
    WINDOW_MAX,
    RawLink,
    RawReceiver,
    RawSender,
    described,
    frame,
    transfer,
    uint,
)

# The SDK leaves the socket of a connection that broke under it to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CONNECTIONS = 1000
# Two segments fit: the second is not for sends.
SMALL_DISK_MB = 160


def mount(directory: Path, *options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(directory)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "small"
    directory.mkdir()
    if not mount(directory, f"size={SMALL_DISK_MB}m"):
        pytest.skip("mounting a tmpfs is not permitted here")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def serves(client: ServiceBusClient, queue: str = "other") -> None:
    """A message goes in and comes out."""
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage(b"hello"), timeout=10)
        (message,) = receiver.receive_messages(max_wait_time=10)
        receiver.complete_message(message)


def send_until_busy(sender: ServiceBusSender, body: bytes, count_max: int = 1000) -> int:
    """Send until the broker is busy, or so many; give how many it took."""
    for sent in range(count_max):
        try:
            sender.send_messages(ServiceBusMessage(body), timeout=10)
        except ServiceBusServerBusyError:
            return sent
    return count_max


def test_a_full_disk_refuses_sends_and_recovers_S1_S2(small_disk: Path) -> None:
    """Sends are refused as 'busy' while there is still room for settlements, and only so long."""
    with broker_on(small_disk) as broker, client_of(broker) as client:
        sender = client.get_queue_sender(QUEUE)
        sent = send_until_busy(sender, b"x" * 250_000)
        assert 100 < sent < 1000
        with client.get_queue_receiver(QUEUE) as receiver:
            (first,) = receiver.receive_messages(max_wait_time=5)
            receiver.complete_message(first)
        assert mount(small_disk, "remount", f"size={4 * SMALL_DISK_MB}m")
        deadline = time.monotonic() + 15
        while not send_until_busy(sender, b"room", count_max=1):
            assert time.monotonic() < deadline, "still refused, long after there is room"
            time.sleep(0.2)
        broker.kill()
        broker.start()
        # One was completed, one came when there was room again.
        assert count_held(broker) == sent - 1 + 1


def test_receiving_makes_room_on_a_full_disk_S1_R4(small_disk: Path) -> None:
    """As the refusal says: nobody has to free anything else."""
    with broker_on(small_disk) as broker, client_of(broker) as client:
        sender = client.get_queue_sender(QUEUE)
        left = send_until_busy(sender, b"x" * 250_000)
        with client.get_queue_receiver(QUEUE) as receiver:
            while left:
                for message in receiver.receive_messages(20, max_wait_time=5):
                    receiver.complete_message(message)
                    left -= 1
        wait_until(
            lambda: send_until_busy(sender, b"room", count_max=1), "a send goes on when all is done"
        )


def test_a_disk_that_fills_under_senders_loses_nothing_acknowledged_S1(small_disk: Path) -> None:
    """They are refused, again and again, until there is room; then they go on."""
    with broker_on(small_disk) as broker:
        with Traffic(broker, senders=3, receivers=0, body_bytes=200_000) as traffic:
            wait_until(lambda: traffic.refused, "a send is refused")
            refused_at = traffic.sent
            assert mount(small_disk, "remount", f"size={4 * SMALL_DISK_MB}m")
            wait_until(lambda: traffic.sent > refused_at + 20, "sends go on when there is room")
            broker.kill()
            broker.start()
            traffic.wait_for(5)
        traffic.check()


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def count_held(broker: Broker) -> int:
    """What the ledger queue holds, by peeking, which takes nothing out."""
    with client_of(broker) as client, client.get_queue_receiver(QUEUE) as receiver:
        total, next_seq = 0, 1
        while found := receiver.peek_messages(250, sequence_number=next_seq):
            total += len(found)
            next_seq = (found[-1].sequence_number or 0) + 1
    return total


@pytest.mark.parametrize("reads", ["a receiver", "a peek"])
def test_a_message_that_rots_on_the_disk_is_not_lost_S1_S2(broker: Broker, reads: str) -> None:
    """Whoever needs it is told, then everybody: nothing is accepted until the disk is mended."""
    with client_of(broker) as client, client.get_queue_sender("other") as sender:
        for body in (b"first", b"second", b"third"):
            sender.send_messages(ServiceBusMessage(body))
    # A broker that has just started has no message in memory.
    broker.options = ("--admin-port", "0")
    broker.restart()
    assert health(broker) == (200, {"status": "healthy"})
    turn_a_bit(broker, b"second")
    with client_of(broker) as client:
        receiver = client.get_queue_receiver("other", max_wait_time=10)
        ask = receiver.peek_messages if reads == "a peek" else receiver.receive_messages
        with pytest.raises(ServiceBusError, match="cannot use its disk"):
            exhaust(ask)
        sender = client.get_queue_sender(QUEUE)
        with pytest.raises(ServiceBusError, match="cannot use its disk"):
            sender.send_messages(ServiceBusMessage(b"refused"), timeout=10)
    status, said = health(broker)
    assert (status, said["status"]) == (503, "failing")
    assert "cannot use its disk" in said["reason"]
    broker.kill()
    with pytest.raises(RuntimeError, match=r"Restore this file"):
        broker.start()
    turn_a_bit(broker, b"recond")
    broker.start()
    with client_of(broker) as client, client.get_queue_receiver("other") as receiver:
        found = [str(message) for message in receiver.receive_messages(3, max_wait_time=5)]
    assert found == ["first", "second", "third"]


def health(broker: Broker) -> tuple[int, dict[str, str]]:
    """What a supervisor that asks over HTTP is told."""
    with closing(HTTPConnection("127.0.0.1", broker.ready["ports"]["admin"])) as http:
        http.request("GET", "/health")
        answer = http.getresponse()
        return answer.status, json.loads(answer.read())


def exhaust(ask: Callable[[int], object]) -> None:
    while ask(1):
        pass


def turn_a_bit(broker: Broker, content: bytes) -> None:
    """Turn the lowest bit of what is somewhere in the journal: `s` and `r` become each other."""
    (segment,) = (broker.directory / "data" / "journal").glob("*.seg")
    with segment.open("r+b") as file:
        at = file.read().index(content)
        file.seek(at)
        file.write(bytes((content[0] ^ 1,)))


def test_without_file_descriptors_the_broker_lives_on(broker: Broker) -> None:
    """Connections it has go on; new ones wait, and are served once there is room again."""
    with client_of(broker) as client, client.get_queue_sender("other") as sender:
        sender.send_messages(ServiceBusMessage(b"before"))
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (48, hard))
        crowd = [socket.create_connection(("127.0.0.1", broker.amqp_port)) for _ in range(80)]
        time.sleep(0.5)
        sender.send_messages(ServiceBusMessage(b"during"), timeout=10)
        for one in crowd:
            one.close()
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
        deadline = time.monotonic() + 20
        while True:
            try:
                with client_of(broker) as another:
                    serves(another)
                break
            except ServiceBusError:
                assert time.monotonic() < deadline, "no new connection is served any more"
                time.sleep(0.5)
    with Traffic(broker) as traffic:
        traffic.wait_for(20)
    traffic.check()


def test_without_file_descriptors_the_journal_goes_on_S1(broker: Broker) -> None:
    """A new segment is begun, and its directory synced, while connections have them all."""
    with client_of(broker) as client, client.get_queue_sender("other") as sender:
        sender.send_messages(ServiceBusMessage(b"before"))
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        in_use = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (in_use + 10, hard))
        with ExitStack() as crowd:
            for _ in range(40):
                address = ("127.0.0.1", broker.amqp_port)
                crowd.enter_context(socket.create_connection(address))
            journal = broker.directory / "data" / "journal"
            before = set(journal.glob("*.seg"))
            while len(set(journal.glob("*.seg")) - before) < 2:
                sender.send_messages(ServiceBusMessage(b"x" * 200_000), timeout=10)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
    with client_of(broker) as another:
        serves(another, QUEUE)


def test_a_thousand_connections_are_served(broker: Broker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CONNECTIONS:
        pytest.skip(f"only {hard} file descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CONNECTIONS), hard))
    with ExitStack() as crowd:
        senders = [RawSender(broker.amqp_port, QUEUE) for _ in range(CONNECTIONS)]
        for sender in senders:
            crowd.callback(sender.close)
        for number, sender in enumerate(senders):
            while not sender.acknowledged:
                sender.send_up_to(1, f"round-{number}")
        with client_of(broker) as client:
            serves(client)
    assert count_held(broker) == CONNECTIONS


def test_a_receiver_that_does_not_read_holds_up_nobody(broker: Broker) -> None:
    """It gets what its socket takes; the rest is for the others, and memory stays as it was."""
    silent = RawReceiver(broker.amqp_port, QUEUE)
    windows = (uint(0), uint(WINDOW_MAX), uint(0), uint(WINDOW_MAX))
    silent.socket.sendall(frame(described(FLOW, *windows, uint(0), uint(0), uint(100_000))))
    before = memory_bytes(broker)
    sender = RawSender(broker.amqp_port, QUEUE)
    count = 40_000
    while len(sender.acknowledged) < count:
        sender.send_up_to(count, "round-0")
    held_bytes = memory_bytes(broker) - before
    other = RawReceiver(broker.amqp_port, QUEUE)
    taken = len(other.drain())
    for link in (silent, sender, other):
        link.close()
    assert taken > count // 2
    # The messages themselves are in memory once; a second copy for the silent one is not.
    assert held_bytes < 2 * count * 1100 + (32 << 20)


def test_a_sender_that_floods_holds_up_nobody(broker: Broker) -> None:
    """Far more than its credit, without reading a single answer."""
    flood = RawLink(broker.amqp_port, QUEUE, sends=True)
    flood.socket.settimeout(2)
    with client_of(broker) as client:
        try:
            for start in range(0, 50_000, 500):
                numbers = range(start, start + 500)
                flood.socket.sendall(b"".join(transfer(n, "round-0") for n in numbers))
        except OSError:
            # Cut off, or not read any further: both are in order.
            pass
        serves(client)
    flood.close()
    with Traffic(broker) as traffic:
        traffic.wait_for(20)


def memory_bytes(broker: Broker) -> int:
    pages = int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()
