"""The same work as client.c over qpid-proton's Python binding, where no compiler is at hand.

Same arguments, same JSON line. It costs the machine far more than a fast broker does, so
its messages/s measure itself; the broker's CPU per message stays meaningful.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import AtLeastOnce, Container


class Worker(MessagingHandler):
    """Sends, receives, or both, until `count` of each is done."""

    def __init__(self, options: argparse.Namespace) -> None:
        prefetch = options.window if options.mode in ("receive", "both") else 0
        super().__init__(prefetch=prefetch, auto_settle=True)
        self.options = options
        self.sends = options.mode != "receive"
        self.receives = options.mode in ("receive", "both")
        self.window = 1 if options.mode == "lone" else options.window
        self.started = self.acknowledged = self.received = 0
        self.begun = self.ended = 0.0
        self.sent_at: dict[str, float] = {}
        self.latencies_ms: list[float] = []

    def on_start(self, event: Any) -> None:
        where = f"127.0.0.1:{self.options.port}"
        given = {
            "user": self.options.user,
            "password": os.environ.get("BENCH_PASSWORD", ""),
            "allowed_mechs": "PLAIN",
            "allow_insecure_mechs": True,
            "reconnect": False,
        }
        if self.receives:
            receiving = event.container.connect(where, **given)
            event.container.create_receiver(receiving, self.options.address, options=AtLeastOnce())
        if self.sends:
            sending = event.container.connect(where, **given)
            event.container.create_sender(sending, self.options.address, options=AtLeastOnce())

    def on_link_opened(self, event: Any) -> None:
        self.begun = self.begun or time.monotonic()

    def on_sendable(self, event: Any) -> None:
        link = event.sender
        body = b"x" * self.options.size
        while (
            link.credit
            and self.started < self.options.count
            and self.started - self.acknowledged < self.window
        ):
            message = Message(id=f"{self.started:020}", body=body, durable=True, inferred=True)
            self.started += 1
            self.sent_at[link.send(message).tag] = time.monotonic()

    def on_accepted(self, event: Any) -> None:
        sent_at = self.sent_at.pop(event.delivery.tag)
        self.latencies_ms.append((time.monotonic() - sent_at) * 1000)
        self.acknowledged += 1
        self.on_sendable(event)
        if self.acknowledged == self.options.count:
            event.connection.close()

    def on_rejected(self, event: Any) -> None:
        raise SystemExit(f"send refused: {event.delivery.remote.condition}")

    def on_message(self, event: Any) -> None:
        self.received += 1
        if self.received == self.options.count:
            event.connection.close()

    def on_connection_closed(self, event: Any) -> None:
        self.ended = time.monotonic()

    def on_transport_error(self, event: Any) -> None:
        raise SystemExit(f"transport: {event.transport.condition}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["send", "receive", "both", "lone"])
    for name, default in (("port", "5672"), ("address", "bench"), ("user", "guest")):
        parser.add_argument(f"--{name}", default=default)
    for name, number in (("count", 1000), ("size", 1024), ("window", 1000)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    worker = Worker(options)
    Container(worker).run()
    line: dict[str, object] = {"mode": options.mode, "count": options.count}
    line["seconds"] = worker.ended - worker.begun
    if worker.latencies_ms:
        ordered = sorted(worker.latencies_ms)
        ranks = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        line["acknowledged_ms"] = {
            name: ordered[int(share * (len(ordered) - 1))] for name, share in ranks.items()
        }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
