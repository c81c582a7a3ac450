"""Transactions on the wire (E10): declared, worked in, discharged.

What happens with a commit is the engine's matter; here is decided who hears what, and when. A
settlement within a transaction is answered at once, but its delivery stays open until the commit
is on disk: after a rollback the receiver still holds the message, and settles it anew (AMQP 1.0
section 4.4.2). This module is compiled with the bridge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp import outcomes
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.outcomes import ACCEPTED, Outcome
from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.engine import settlement
from twinbus.engine.consumer import Lock

if TYPE_CHECKING:
    from twinbus.amqp.link import Link
    from twinbus.server.bridge import Bridge, Receiver, Sender


class Coordinator:
    """The link on which a client declares and discharges transactions.

    Those that it leaves open when it goes are rolled back, as AMQP has it.
    """


def send(
    bridge: Bridge, sender: Sender, message_format: int, payload: bytes, txn_id: bytes
) -> None:
    """Take what is sent with the commit."""
    transactions = bridge.transactions
    messages = bridge.messages(message_format, payload)
    transactions.check(txn_id, sender.entity, messages)
    for message in messages:
        transactions.add(txn_id, sender.entity, message, sender.tally(message))


def settle(
    bridge: Bridge, receiver: Receiver, lock: Lock, delivery_id: int, settled: bool,
    outcome: Outcome,
) -> None:  # fmt: skip
    """Take what is settled with the commit, and answer it. A refusal is raised."""
    transactions = bridge.transactions
    txn_id = outcome.txn_id
    within = transactions.settling.get(lock)
    if within is not None and settled and (txn_id is None or txn_id == within):
        # The client forgets the delivery. What becomes of it is said already.
        bridge.hold(receiver.stream, [lock])
        return
    if txn_id is None:
        raise BusError(
            errors.NOT_ALLOWED,
            "The message is settled in an open transaction: commit that or roll it back.",
        )
    state = outcomes.transactional(txn_id, settlement.answer_to(outcome))
    wanted = settlement.from_outcome(outcome)
    now_ms = bridge.hub.now_ms
    transactions.settle(txn_id, receiver.holder, receiver.stream, lock, wanted, now_ms)
    if settled:
        bridge.hold(receiver.stream, [lock])
    else:
        transactions.open[txn_id].answers[lock] = state
        receiver.link.session.answer_outgoing(delivery_id, state)


def coordinate(bridge: Bridge, link: Link, delivery_id: int, settled: bool, payload: bytes) -> None:
    """Declare a transaction, or discharge one."""
    hub = bridge.hub
    try:
        request = outcomes.read_coordinator_request(payload)
        if request.is_declare:
            txn_id = hub.kernel.dice(16)
            bridge.transactions.declare(txn_id, link.context)
            state = outcomes.declared(txn_id)
        else:
            transaction = bridge.transactions.end(request.txn_id)
            state = ACCEPTED
            if not request.fail:
                hub.check_sends()
                transaction.commit(hub.now_ms)
                # With the very state that was answered first: clients compare the two.
                for lock, answer in transaction.answers.items():
                    bridge.settle_delivery(lock, answer)
    except BusError as error:
        bridge.refuse_transfer(link, delivery_id, settled, error)
        return
    except DecodeError as fault:
        refusal = BusError(errors.DECODE_ERROR, f"Neither declare nor discharge: {fault}")
        bridge.refuse_transfer(link, delivery_id, settled, refusal)
        return
    if not settled:
        hub.replies.settle(bridge, link.session, delivery_id, state, True)
