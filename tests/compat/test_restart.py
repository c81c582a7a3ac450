"""What survives a restart, seen through the official SDK: messages do, locks do not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

from tests.support.broker import Broker

WAIT = 5.0


@pytest.mark.parametrize("ending", ["terminate", "kill"])
def test_state_after_a_restart(own_broker: Broker, ending: str) -> None:
    """S1 R7 E5 D2: counts, deferred, scheduled and dead letters are there; locks are dropped."""
    due = datetime.now(UTC) + timedelta(hours=1)
    with client(own_broker) as sdk:
        with sdk.get_queue_sender("q") as sender:
            for body in ("abandoned", "locked", "deferred", "dead", "done"):
                sender.send_messages(ServiceBusMessage(body))
            (scheduled,) = sender.schedule_messages(ServiceBusMessage("scheduled"), due)
        with sdk.get_queue_receiver("q") as receiver:
            got = []
            while len(got) < 5:
                got += receiver.receive_messages(max_message_count=5, max_wait_time=WAIT)
            receiver.abandon_message(got[0])
            receiver.defer_message(got[2])
            receiver.dead_letter_message(got[3], reason="unfit")
            receiver.complete_message(got[4])
    # After the client: this SDK leaves the socket of a lost connection open.
    getattr(own_broker, ending)()
    own_broker.start()
    with client(own_broker) as sdk, sdk.get_queue_receiver("q") as receiver:
        seen = {}
        while len(seen) < 2:
            messages = receiver.receive_messages(max_message_count=5, max_wait_time=WAIT)
            assert messages
            seen |= {str(message): message for message in messages}
        assert list(seen) == ["abandoned", "locked"]
        assert seen["abandoned"].delivery_count == 1
        assert got[2].sequence_number is not None
        (deferred,) = receiver.receive_deferred_messages(got[2].sequence_number)
        assert (str(deferred), deferred.delivery_count) == ("deferred", 1)
        states = {str(m): m.state.name for m in receiver.peek_messages(10, sequence_number=1)}
        assert states["scheduled"] == "SCHEDULED"
        with sdk.get_queue_sender("q") as sender:
            sender.cancel_scheduled_messages(scheduled)
        dead_letters = sdk.get_queue_receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        with dead_letters:
            (dead,) = dead_letters.receive_messages(max_wait_time=WAIT)
            assert (str(dead), dead.dead_letter_reason) == ("dead", "unfit")


def client(broker: Broker) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)
