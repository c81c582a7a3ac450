"""What goes wrong every minute: to the broker, to connections, and by clients that misbehave.

Enters: a live broker and the load. Leaves: a fault done and undone; each takes well under half a
minute. Faults have queues of their own, so that the ledger's hold what the ledger sent.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.soak import admin
from bench.soak.load import Load
from tests.support import raw_amqp
from tests.support.broker import Broker
from tests.support.raw_amqp import RawReceiver, RawSender

FLOODED, SLOW, REMADE = "flooded", "slow", "remade"
QUEUES = (FLOODED, SLOW, REMADE)
STOP_S = 2.0
FLOOD_S = 10.0
CUT = 200
SLOW_COUNT = 20_000
SLOW_S = 15.0
REMADE_COUNT = 1_000
GARBAGE_BYTES = 64 * 1024
GARBAGE_SOCKETS = 50


class Fault(NamedTuple):
    name: str
    do: Callable[[Broker, Load], None]


def kill(broker: Broker, load: Load) -> None:
    broker.kill()
    broker.start()


def stop(broker: Broker, load: Load) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    time.sleep(STOP_S)
    os.kill(broker.pid, signal.SIGCONT)


def cut(broker: Broker, load: Load) -> None:
    load.tell(f"cut {CUT}")


def flood(broker: Broker, load: Load) -> None:
    """One sender writes as fast as the socket takes it, whatever its credit."""
    sender = RawSender(broker.amqp_port, FLOODED)
    block = b"".join(raw_amqp.transfer(number, "round-0") for number in range(1000))
    left = memoryview(b"")
    sender.socket.setblocking(False)
    until = time.monotonic() + FLOOD_S
    try:
        while time.monotonic() < until:
            readable, writable, _ = select.select([sender.socket], [sender.socket], [], 1.0)
            if readable and not sender.socket.recv(1 << 16):
                break
            if writable:
                left = left or memoryview(block)
                left = left[sender.socket.send(left) :]
    finally:
        sender.close()
    _make_again(broker, FLOODED)


def slow_receiver(broker: Broker, load: Load) -> None:
    """A receiver asks for a whole queue and then does not read."""
    sender = RawSender(broker.amqp_port, SLOW)
    while len(sender.acknowledged) < SLOW_COUNT:
        sender.send_up_to(SLOW_COUNT, "round-0")
    sender.close()
    receiver = RawReceiver(broker.amqp_port, SLOW)
    receiver.ask(SLOW_COUNT)
    time.sleep(SLOW_S)
    receiver.close()
    _make_again(broker, SLOW)


def delete_and_make_again(broker: Broker, load: Load) -> None:
    """A queue goes under its sender and its receiver, and a new one takes its name."""
    sender = RawSender(broker.amqp_port, REMADE)
    while len(sender.acknowledged) < REMADE_COUNT:
        sender.send_up_to(REMADE_COUNT, "round-0")
    receiver = RawReceiver(broker.amqp_port, REMADE)
    receiver.ask(REMADE_COUNT)
    _make_again(broker, REMADE)
    for link in (sender, receiver):
        link.close()
    found = RawReceiver(broker.amqp_port, REMADE)
    held = found.drain()
    found.close()
    if held:
        raise RuntimeError(f"{len(held)} messages outlived their queue")


def garbage(broker: Broker, load: Load) -> None:
    """Somebody without a key connects again and again and writes what is not AMQP."""
    until = time.monotonic() + FLOOD_S
    rubbish = os.urandom(GARBAGE_BYTES)
    while time.monotonic() < until:
        with contextlib.ExitStack() as stack:
            for number in range(GARBAGE_SOCKETS):
                # Half of them begin as a client would.
                start = b"AMQP\x03\x01\x00\x00" if number % 2 else b""
                one = stack.enter_context(socket.create_connection(("127.0.0.1", broker.amqp_port)))
                with contextlib.suppress(OSError):
                    one.sendall(start + rubbish)
            time.sleep(0.05)


def _make_again(broker: Broker, queue: str) -> None:
    admin.delete_queue(broker, queue)
    admin.make_queue(broker, queue)


# The kill first: what follows shows how the next life's memory fills and stays.
FAULTS = (
    Fault("kill -9, restart", kill),
    Fault("a sender floods", flood),
    Fault("a receiver does not read", slow_receiver),
    Fault("SIGSTOP for 2 s", stop),
    Fault("200 connections reset", cut),
    Fault("a queue deleted, made again", delete_and_make_again),
    Fault("garbage on the port", garbage),
)
