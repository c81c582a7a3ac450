"""The own client beside the official SDK: sending and reading 1 KB messages in bulk.

Enters: the broker's form and how many messages. Leaves: a table of rates, and of processor
time per message of client and broker. The client runs in this process, in the form in which
this process finds the package. Encoding and decoding (Arrow columns) count as the client's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from rich.table import Table

from bench import processes, twinbus
from tests.support.broker import Broker
from twinbus.amqp import codec
from twinbus.client import Client
from twinbus.spark.messages import to_batch, to_messages

BODY = b"x" * 1024
ROWS = 10_000
READ_BYTES = 4 * 1024 * 1024
# The SDK is slower by an order of magnitude: a part of the messages tells as much.
SDK_SHARE = 10
PEEK_COUNT = 250


def run(form: str, count: int) -> Table:
    compiled = not codec.__file__.endswith(".py")
    table = Table(title=f"client {'compiled' if compiled else 'interpreted'}, broker {form}")
    for heading in ("what", "messages/s", "client µs/message", "broker µs/message"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    with (
        tempfile.TemporaryDirectory(prefix="bench-client-") as directory,
        twinbus.broker(form, Path(directory)) as live,
    ):
        for what, work in (
            ("SDK, send in batches", lambda: _sdk_send(live, count // SDK_SHARE)),
            ("SDK, peek", lambda: _sdk_peek(live, count // SDK_SHARE)),
            ("own client, send", lambda: _send(live, count)),
            ("own client, read", lambda: _read(live, count)),
        ):
            table.add_row(what, *_measured(live, work))
    return table


def _measured(live: Broker, work: Callable[[], int]) -> Iterator[str]:
    broker_s, client_s, begun_s = (
        processes.cpu_seconds(live.pid),
        time.process_time(),
        time.perf_counter(),
    )
    done = work()
    yield f"{done / (time.perf_counter() - begun_s):,.0f}"
    yield f"{(time.process_time() - client_s) / done * 1e6:.1f}"
    yield f"{(processes.cpu_seconds(live.pid) - broker_s) / done * 1e6:.1f}"


def _send(live: Broker, count: int) -> int:
    batch = pa.RecordBatch.from_pydict({"body": [BODY] * ROWS})
    with Client.connect(live.connection_string) as client:
        sender = client.sender(twinbus.QUEUE)
        for start in range(0, count, ROWS):
            rows = batch.slice(0, min(ROWS, count - start))
            sender.send(to_messages(rows, lambda row, start=start: f"bench-{start + row}"))
        sender.flush()
    return count


def _read(live: Broker, count: int) -> int:
    done, low = 0, 1
    with Client.connect(live.connection_string) as client:
        while done < count:
            body = {"from": low, "to": 2**62, "byte-count": READ_BYTES}
            batch = to_batch(client.request(twinbus.QUEUE, "twinbus:read", body).body["messages"])
            done += batch.num_rows
            low = batch["sequence_number"][-1].as_py() + 1
    return done


def _sdk_send(live: Broker, count: int) -> int:
    with (
        ServiceBusClient.from_connection_string(live.connection_string) as client,
        client.get_queue_sender(twinbus.QUEUE) as sender,
    ):
        batch = sender.create_message_batch()
        for number in range(count):
            message = ServiceBusMessage(BODY, message_id=f"sdk-{number}")
            try:
                batch.add_message(message)
            except ValueError:
                sender.send_messages(batch)
                batch = sender.create_message_batch()
                batch.add_message(message)
        sender.send_messages(batch)
    return count


def _sdk_peek(live: Broker, count: int) -> int:
    done, low = 0, 1
    with (
        ServiceBusClient.from_connection_string(live.connection_string) as client,
        client.get_queue_receiver(twinbus.QUEUE) as receiver,
    ):
        while done < count:
            found = receiver.peek_messages(PEEK_COUNT, sequence_number=low)
            done += len([b"".join(message.body) for message in found])
            low = found[-1].sequence_number + 1
    return done
