"""Goal: what happens to the broker's process costs nobody an acknowledged message.

Method: official SDK clients send and receive while the process is stopped, or meets a second
one; the ledger compares what they were told with what comes out at the end. What `kill -9` does
is in test_kills.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError

from tests.faults.conftest import BRIEF, BRIEF_LOCK_S
from tests.faults.ledger import Traffic, client_of
from tests.support.broker import KEY, PROJECT, Broker, form_environment

# The SDK leaves the socket of a connection that broke under it to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_a_stopped_process_goes_on_where_it_was_S1(broker: Broker) -> None:
    with Traffic(broker) as traffic:
        for seconds in (0.5, 3):
            traffic.wait_for(50)
            os.kill(broker.pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(broker.pid, signal.SIGCONT)
        traffic.wait_for(50)
    traffic.check()


def test_a_lock_that_ended_while_the_process_was_stopped_is_lost_R3(broker: Broker) -> None:
    """Time went on: the message is another receiver's, and its first one knows."""
    with client_of(broker) as client, client_of(broker) as other:
        with client.get_queue_sender(BRIEF) as sender:
            sender.send_messages(ServiceBusMessage(b"x", message_id="one"), timeout=10)
        with client.get_queue_receiver(BRIEF) as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=5)
            os.kill(broker.pid, signal.SIGSTOP)
            time.sleep(BRIEF_LOCK_S + 1)
            os.kill(broker.pid, signal.SIGCONT)
            with other.get_queue_receiver(BRIEF) as second:
                (again,) = second.receive_messages(1, max_wait_time=10)
                assert (again.message_id, again.delivery_count) == ("one", 1)
                with pytest.raises(MessageLockLostError):
                    receiver.complete_message(message)
                second.complete_message(again)
        with other.get_queue_receiver(BRIEF) as last:
            assert not last.peek_messages(1)


def test_a_second_broker_on_the_same_directory_is_refused(broker: Broker) -> None:
    """It says why and touches nothing; the first one does not notice."""
    with Traffic(broker) as traffic:
        traffic.wait_for(20)
        command = [sys.executable, "-m", "twinbus", "serve", "--json", "--amqp-port", "0"]
        command += ["--amqps-port", "off", "--admin-port", "off"]
        command += ["--data-dir", str(broker.directory / "data")]
        environment = form_environment(broker.form) | {"TWINBUS_SAS_KEY": KEY}
        second = subprocess.run(
            command, env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=30
        )
        assert second.returncode != 0
        assert f"process {broker.pid}" in second.stderr + second.stdout
        traffic.wait_for(20)
    traffic.check()
