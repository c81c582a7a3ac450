"""A broker killed in the middle of sending loses nothing that it acknowledged.

The test process keeps the ledger: an id is in it only when the broker's answer was read.
"""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from tests.support.broker import Broker
from tests.support.raw_amqp import RawReceiver, RawSender

MESSAGES = 100_000
ROUNDS = 20
ROUNDS_LONG = 200


def send_until_killed(broker: Broker, prefix: str, dice: random.Random) -> RawSender:
    """Send at full speed; kill -9 at a random moment; read what had still been answered."""
    kill_after = dice.randrange(MESSAGES)
    sender = RawSender(broker.amqp_port, "q")
    killer: threading.Timer | None = None
    try:
        while len(sender.acknowledged) < MESSAGES:
            if killer is None and len(sender.acknowledged) >= kill_after:
                # Somewhere inside a commit, not always right after an answer.
                killer = threading.Timer(dice.uniform(0, 0.01), broker.kill)
                killer.start()
            sender.send_up_to(MESSAGES, prefix)
    except ConnectionError:
        if killer is None:
            raise
        take_last_answers(sender)
    finally:
        if killer is not None:
            killer.join()
        broker.kill()
        sender.close()
    return sender


def take_last_answers(sender: RawSender) -> None:
    """What the broker had put on the wire before it died counts as acknowledged."""
    try:
        while True:
            sender.take_answers()
    except ConnectionError:
        return


def check_rounds(broker: Broker, rounds: int) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    interrupted = 0
    for number in range(rounds):
        prefix = f"round-{number}"
        sender = send_until_killed(broker, prefix, dice)
        interrupted += len(sender.acknowledged) < sender.sent
        broker.start()
        receiver = RawReceiver(broker.amqp_port, "q")
        held = Counter(receiver.drain())
        receiver.close()
        where = f"round {number} of seed {seed}"
        acknowledged = {f"{prefix}-{sent:08}" for sent in sender.acknowledged}
        sent = {f"{prefix}-{sent:08}" for sent in range(sender.sent)}
        lost = acknowledged - held.keys()
        twice = [name for name, times in held.items() if times > 1]
        # Ids of earlier rounds among them would be completed messages that came back.
        invented = held.keys() - sent
        assert not lost, f"{len(lost)} acknowledged messages lost, {where}: {sorted(lost)[:5]}"
        assert not twice, f"{len(twice)} messages twice, {where}: {twice[:5]}"
        assert not invented, f"{len(invented)} unexpected, {where}: {sorted(invented)[:5]}"
    assert interrupted > rounds // 2, "the kills came when nothing was in flight: no proof"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_by_kill_9(own_broker: Broker) -> None:
    """S1 R5 R10: 20 rounds of up to 100,000 messages of 1 KB, killed while sending."""
    check_rounds(own_broker, ROUNDS)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_nothing_acknowledged_is_lost_by_kill_9_long(own_broker: Broker) -> None:
    """S1 R5 R10: the same, 200 rounds."""
    check_rounds(own_broker, ROUNDS_LONG)
