"""The synchronous twins of what the asynchronous tests prove, and the command over them."""

import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage

from tests.pairing.live import wait_until
from tests.pairing.pairs import LiveWorld, seen
from twinbus.pairing.events import (
    EntityFailedOver,
    EntityRecovered,
    MessageDeadLettered,
    MessageSyphoned,
    PingSent,
    SyphonDeferred,
)
from twinbus.pairing.sync import SendWindow, UnsentError

# The SDK leaves the socket of a connection that broke to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_failover_syphon_and_recovery(world: LiveWorld) -> None:
    queue = world.queue
    client, events = world.threads_pair(enable_syphon=True)
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("0"))
        world.proxy.refuse()
        sender.send_messages(ServiceBusMessage("1"))
        sender.send_messages([ServiceBusMessage("2"), ServiceBusMessage("3")])
        assert len(seen(events, EntityFailedOver)) == 1
        world.proxy.heal()
        wait_until(lambda: seen(events, EntityRecovered))
        wait_until(lambda: len(seen(events, MessageSyphoned)) == 3)
        sender.send_messages(ServiceBusMessage("4"))
        assert client.status().healthy
        receiver = client.get_queue_receiver(queue)
        received = receiver.receive_messages(5, max_wait_time=5)
        assert sorted(map(str, received)) == ["0", "1", "2", "3", "4"]
    assert threading.active_count() < 10


def test_p4_p7_a_primary_that_falls_silent_hangs_nothing(world: LiveWorld) -> None:
    client, events = world.threads_pair(operation_timeout=timedelta(seconds=2))
    with client, client.get_queue_sender(world.queue) as sender:
        sender.send_messages(ServiceBusMessage("0"))
        world.proxy.black_hole()
        # One on the connection that was there, one that must open its own.
        with SendWindow(sender) as window:
            window.send(ServiceBusMessage("1"))
            window.send(ServiceBusMessage("2"))
        assert world.backlog_count() == 2
        wait_until(lambda: seen(events, PingSent))
        world.proxy.heal()
        wait_until(lambda: seen(events, EntityRecovered))
        # Left while a ping waits for an answer.
        world.proxy.black_hole()
        sender.send_messages(ServiceBusMessage("3"))
        time.sleep(1.2)
        began = time.monotonic()
    assert time.monotonic() - began < 10


def test_p4_p11_a_primary_that_answers_in_http_is_down(world: LiveWorld) -> None:
    world.proxy.answer_in_http()
    client, events = world.threads_pair(enable_syphon=True)
    with client, client.get_queue_sender(world.queue) as sender:
        sender.send_messages(ServiceBusMessage("parked"))
        wait_until(lambda: seen(events, SyphonDeferred))
        world.proxy.heal()
        wait_until(lambda: seen(events, MessageSyphoned))
        assert not seen(events, MessageDeadLettered)
    assert world.near.count(world.queue) == 1


def test_s4_a_window_overlaps_sends_and_forgets_none(world: LiveWorld) -> None:
    queue = world.queue
    client, _ = world.threads_pair()
    with client, client.get_queue_sender(queue, max_in_flight=5) as sender:
        with SendWindow(sender, 5) as window:
            for number in range(20):
                window.send(ServiceBusMessage(str(number)))
        assert world.near.count(queue) == 20
        too_large = ServiceBusMessage(b"x" * 300_000)
        window.send(ServiceBusMessage("fits"))
        window.send(too_large)
        with pytest.raises(UnsentError) as caught:
            window.drain()
        assert [message for message, _ in caught.value.failures] == [too_large]
        window.drain()
    assert world.near.count(queue) == 21


def test_p11_the_command_moves_and_reports(world: LiveWorld) -> None:
    queue = world.queue
    client, _ = world.threads_pair()
    world.near.set_status(queue, "SendDisabled")
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(7)])
    world.near.set_status(queue, "Active")
    command = [sys.executable, "-m", "twinbus", "syphon", "--backlog-queues", "2", "--retry", "0.5"]
    command += ["--primary", world.primary, "--secondary", world.far.connection_string()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: world.near.count(queue) == 7)
            wait_until(lambda: world.backlog_count() == 0)
        finally:
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert re.search(rf"{queue}\s+│ 7 ", said)
