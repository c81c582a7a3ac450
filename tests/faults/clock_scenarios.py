"""What `test_clocks.py` does while the clock is set: each function runs in a process of its own.

Broker and official SDK clients share the clock, as they would on a machine whose time is
corrected. A function gets an empty directory and the clock; it fails by raising.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import SessionCannotBeLockedError

from tests.faults.conftest import FORM
from tests.faults.ledger import QUEUE, Traffic, client_of
from tests.faults.wall_clock import WallClock
from tests.support.broker import Broker
from tests.support.raw_amqp import RawSender

HOUR_S, DAY_S = 3600, 86_400
QUEUES: dict[str, dict[str, object]] = {
    QUEUE: {"LockDuration": "PT1M"},
    "brief": {"LockDuration": "PT5S"},
    "sessions": {"LockDuration": "PT5S", "RequiresSession": True},
    "idle": {"AutoDeleteOnIdle": "PT5M"},
    "once": {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT1M"},
}
_PATIENCE_S = 20.0


def broker_in(directory: Path) -> Broker:
    return Broker(directory / "broker", QUEUES, FORM)


def set_clock(broker: Broker, clock: WallClock, seconds: float) -> None:
    """Set the clock, and wait until the broker has noticed."""
    known = broker.log.count("clock was set")
    clock.jump(seconds)
    wait_until(lambda: broker.log.count("clock was set") > known, "the broker follows the clock")


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def received(client: ServiceBusClient, queue: str, seconds: float = 0.5) -> list[str]:
    """What comes to another receiver; it is left as it was."""
    with client.get_queue_receiver(queue) as receiver:
        found = receiver.receive_messages(10, max_wait_time=seconds)
        for message in found:
            receiver.abandon_message(message)
    return [str(message.message_id) for message in found]


def send(client: ServiceBusClient, queue: str, *names: str, session: str | None = None) -> None:
    with client.get_queue_sender(queue) as sender:
        for name in names:
            message = ServiceBusMessage(b"x", message_id=name, session_id=session)
            sender.send_messages(message, timeout=10)


def traffic_goes_on(directory: Path, clock: WallClock) -> None:
    with broker_in(directory) as broker:
        with Traffic(broker) as traffic:
            traffic.wait_for(20)
            wanted: list[int] = []
            for seconds in (HOUR_S, -HOUR_S, DAY_S, -300):
                set_clock(broker, clock, seconds)
                traffic.wait_for(20)
                wanted.append(traffic.completed + 10)
                wait_until(lambda: traffic.completed >= wanted[-1], "completions go on")
            for _ in range(50):
                clock.jump(0.1)
                time.sleep(0.02)
            traffic.wait_for(20)
        traffic.check()


def locks_last_as_long_as_they_should_R2(directory: Path, clock: WallClock) -> None:
    with broker_in(directory) as broker, client_of(broker) as client:
        send(client, QUEUE, "long")
        send(client, "brief", "short")
        with (
            client.get_queue_receiver(QUEUE) as keeper,
            client.get_queue_receiver("brief") as loser,
        ):
            (long,) = keeper.receive_messages(1, max_wait_time=5)
            loser.receive_messages(1, max_wait_time=5)
            for seconds in (DAY_S, -DAY_S, -HOUR_S):
                set_clock(broker, clock, seconds)
                with client_of(broker) as other:
                    assert received(other, QUEUE) == [], "two receivers hold one message"
            with client_of(broker) as other:
                # Five seconds are over, whatever the clock says.
                wait_until(lambda: received(other, "brief") == ["short"], "the lock expires")
            keeper.renew_message_lock(long)
            keeper.complete_message(long)


def session_locks_last_as_long_as_they_should_E6(directory: Path, clock: WallClock) -> None:
    with broker_in(directory) as broker, client_of(broker) as client:
        send(client, "sessions", "one", session="s")
        holder = client.get_queue_receiver("sessions", session_id="s")
        with holder, client_of(broker) as other:
            wanted = other.get_queue_receiver("sessions", session_id="s")
            set_clock(broker, clock, HOUR_S)
            with pytest.raises(SessionCannotBeLockedError):
                wanted.__enter__()
            set_clock(broker, clock, -2 * HOUR_S)

            def is_free() -> bool:
                try:
                    with other.get_queue_receiver("sessions", session_id="s") as receiver:
                        return bool(receiver.receive_messages(1, max_wait_time=1))
                except SessionCannotBeLockedError:
                    return False

            wait_until(is_free, "the session lock expires")


def scheduled_messages_come_at_their_time_E5(directory: Path, clock: WallClock) -> None:
    with broker_in(directory) as broker, client_of(broker) as client:
        due = datetime.now(UTC) + timedelta(hours=1)
        with client.get_queue_sender(QUEUE) as sender:
            sender.schedule_messages(ServiceBusMessage(b"x", message_id="later"), due)
        set_clock(broker, clock, -300)
        set_clock(broker, clock, HOUR_S)
        with client_of(broker) as other:
            assert received(other, QUEUE) == []
        # Nothing else happens in the broker: it must come by itself.
        set_clock(broker, clock, 301)
        with client_of(broker) as other:
            assert received(other, QUEUE, _PATIENCE_S) == ["later"]


def nobody_is_taken_for_idle(directory: Path, clock: WallClock) -> None:
    with broker_in(directory) as broker:
        raw = RawSender(broker.amqp_port, QUEUE)
        raw.send_up_to(1, "round-0")
        for seconds in (HOUR_S, DAY_S, -2 * DAY_S):
            set_clock(broker, clock, seconds)
            wanted = len(raw.acknowledged) + 1
            while len(raw.acknowledged) < wanted:
                raw.send_up_to(wanted, "round-0")
            # A new client as well: its token is of the new time.
            with client_of(broker) as client:
                send(client, "idle", f"{seconds}")
        raw.close()


def duplicates_are_known_for_as_long_as_they_should_E7(directory: Path, clock: WallClock) -> None:
    with broker_in(directory) as broker:
        for seconds in (HOUR_S, -2 * HOUR_S):
            with client_of(broker) as client:
                send(client, "once", f"{seconds}")
            set_clock(broker, clock, seconds)
            with client_of(broker) as client:
                send(client, "once", f"{seconds}")
        with client_of(broker) as client:
            assert received(client, "once", 2) == [f"{HOUR_S}", f"{-2 * HOUR_S}"]


def a_broker_starts_with_a_clock_that_is_behind(directory: Path, clock: WallClock) -> None:
    """As on a machine that boots with a wrong time, and gets the right one later."""
    broker = broker_in(directory)
    with broker:
        with client_of(broker) as client, client.get_queue_sender(QUEUE) as sender:
            lasting = timedelta(minutes=30)
            sender.send_messages(ServiceBusMessage(b"x", message_id="old", time_to_live=lasting))
            send(client, "once", "known")
        broker.kill()
        clock.jump(-DAY_S)
        broker.start()
        with Traffic(broker, receivers=0) as traffic:
            traffic.wait_for(20)
        with client_of(broker) as client:
            send(client, "once", "known", "new")
            assert received(client, "once", 2) == ["known", "new"]
        set_clock(broker, clock, DAY_S)
        with client_of(broker) as client:
            assert "old" in received(client, QUEUE, 2)
        traffic.ledger.sending("old")
        traffic.check()
