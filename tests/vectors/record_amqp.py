"""Records what real AMQP clients send, as golden bytes for the tests.

    python tests/vectors/record_amqp.py azure proton rhea --rhea-modules DIR/node_modules

Plays a small broker on loopback with the protocol engine itself, lets each client run one
scenario, and keeps for every connection the client's bytes (`.bin`) and what they mean
(`.json`): the calls that they led to, and what the scenario told the client to do.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

VECTORS = Path(__file__).parent / "amqp"
sys.path.insert(0, str(VECTORS))

from amqp_scribe import NOW_MS, Scribe, server_connection  # noqa: E402


class Recording:
    def __init__(self) -> None:
        self.scribe = Scribe()
        self.sent = bytearray()


class Server:
    """Accepts connections on a free port; every one is recorded."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            recording = Recording()
            self.recordings.append(recording)
            self._start(self._serve, peer, recording)

    def _serve(self, peer: socket.socket, recording: Recording) -> None:
        connection = server_connection(recording.scribe)
        with peer:
            while not connection.finished:
                data = peer.recv(65536)
                if not data:
                    connection.abort()
                    return
                recording.sent += data
                connection.receive(data, NOW_MS)
                peer.sendall(connection.take_output())

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)


def azure(port: int, _: str) -> dict[str, list[str]]:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

    text = (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=k;SharedAccessKey=secret;"
        "UseDevelopmentEmulator=true"
    )
    # The SDK announces the machine it runs on, which is nobody's business here.
    anywhere = patch("platform.platform", return_value="anywhere")
    with anywhere, ServiceBusClient.from_connection_string(text) as client:
        with client.get_queue_sender("q") as sender:
            properties = {"text": "é", "number": 7, "flag": True, "ratio": 1.5}
            sender.send_messages(
                ServiceBusMessage(
                    "hello",
                    message_id="one",
                    subject="greeting",
                    session_id="s",
                    application_properties=properties,
                )
            )
            sender.send_messages(
                [ServiceBusMessage(f"item {i}", message_id=f"item-{i}") for i in range(3)]
            )
            sender.send_messages(ServiceBusMessage(b"y" * 10_000, message_id="large"))
        with client.get_queue_receiver("q", prefetch_count=0) as receiver:
            found: list[Any] = []
            while len(found) < 5:
                found += receiver.receive_messages(5 - len(found), max_wait_time=5)
            receiver.complete_message(found[0])
            receiver.abandon_message(found[1])
            receiver.dead_letter_message(found[2], reason="why", error_description="because")
            receiver.defer_message(found[3])
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with client.get_queue_receiver("q", receive_mode=mode) as receiver:
            receiver.receive_messages(2, max_wait_time=5)
    return {
        "send": ["send hello", "send a batch of 3", "send 10000 bytes"],
        "receive": ["complete 1", "abandon 2", "dead-letter 3", "defer 4", "leave 5"],
        "delete": ["receive and delete 2"],
    }


def proton(port: int, _: str) -> dict[str, list[str]]:
    from proton import Message
    from proton.utils import BlockingConnection

    connection = BlockingConnection(f"127.0.0.1:{port}", timeout=10, allowed_mechs="ANONYMOUS")
    sender = connection.create_sender("q")
    sender.send(Message("hello", id="one", subject="greeting", properties={"number": 7}))
    sender.send(Message(b"y" * 10_000, id="large"))
    receiver = connection.create_receiver("q", credit=5)
    for settle in (receiver.accept, receiver.reject, receiver.release, receiver.accept):
        receiver.receive(timeout=10)
        settle()
    receiver.receive(timeout=10)
    receiver.close()
    connection.close()
    return {"both": ["send hello", "send 10000 bytes", "accept, reject, release, accept, leave"]}


RHEA = """
const rhea = require('rhea');
const container = rhea.create_container({id: 'rhea-client'});
const connection = container.connect({
  host: '127.0.0.1', port: Number(process.argv[2]), username: 'user', password: 'secret',
  idle_time_out: 60000,
});
connection.on('disconnected', () => process.exit(0));
const sender = connection.open_sender({target: {address: 'q'}});
let settled = 0;
sender.once('sendable', () => {
  sender.send({message_id: 'one', subject: 'greeting', body: 'hello',
               application_properties: {text: 'é', number: 7, flag: true}});
  sender.send({message_id: 'large', body: 'y'.repeat(10000)});
});
sender.on('accepted', () => { if (++settled === 2) receive(); });
function receive() {
  const receiver = connection.open_receiver({
    source: {address: 'q', filter: {'com.microsoft:session-filter': 's'}}, autoaccept: false,
    credit_window: 0, rcv_settle_mode: 1,
  });
  receiver.on('receiver_open', () => receiver.add_credit(10));
  // One turn for each settlement: rhea merges the first two of a turn, whatever they say.
  const settle = [
    (delivery) => delivery.update(false, rhea.message.accepted().described()),
    (delivery) => delivery.modified({undeliverable_here: true}),
    (delivery) => delivery.reject({condition: 'com.microsoft:dead-letter', info: {a: 'b'}}),
    (delivery) => delivery.release(),
    () => receiver.drain_credit(),
  ];
  let count = 0;
  receiver.on('message', ({delivery}) => {
    const step = settle[count];
    setTimeout(() => step(delivery), 50 * count++);
  });
  receiver.on('receiver_drained', () => { receiver.close(); });
  receiver.on('receiver_close', () => connection.close());
}
"""


def rhea(port: int, modules: str) -> dict[str, list[str]]:
    environment = {**os.environ, "NODE_PATH": modules}
    command = ["node", "-e", RHEA, "rhea", str(port)]
    subprocess.run(command, env=environment, check=True, timeout=30)
    return {
        "both": ["send hello", "send 10000 bytes", "accept, defer, reject, release, drain"],
    }


CLIENTS: dict[str, Callable[[int, str], dict[str, list[str]]]] = {
    "azure": azure,
    "proton": proton,
    "rhea": rhea,
}


def record(client: str, modules: str) -> None:
    server = Server()
    scenarios = CLIENTS[client](server.port, modules)
    server.stop()
    assert len(scenarios) == len(server.recordings), "a connection more or less than planned"
    for (name, told), recording in zip(scenarios.items(), server.recordings, strict=True):
        path = VECTORS / f"{client}-{name}"
        path.with_suffix(".bin").write_bytes(recording.sent)
        content = {"client": client, "told": told, "calls": recording.scribe.calls}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        path.with_suffix(".json").write_text(text)
        print(f"{path.name}: {len(recording.sent)} bytes, {len(recording.scribe.calls)} calls")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="+", choices=sorted(CLIENTS))
    parser.add_argument("--rhea-modules", default="node_modules", help="where npm put rhea")
    arguments = parser.parse_args()
    for client in arguments.clients:
        record(client, arguments.rhea_modules)


if __name__ == "__main__":
    main()
