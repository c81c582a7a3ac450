"""A transaction on a blocking proton connection, step by step (E10).

Enters: a connection. Leaves: sends and settlements within the transaction, each answered by
the broker before the next, and what became of the whole.
"""

from __future__ import annotations

from typing import Any

from proton import Delivery, Link, Message, symbol
from proton.handlers import TransactionHandler
from proton.reactor import SenderOption, Transaction
from proton.utils import BlockingConnection, BlockingReceiver, BlockingSender

VIA = symbol("com.microsoft:transfer-destination-address")


class Ledger(TransactionHandler):
    """What became of a transaction."""

    transaction: Transaction | None = None
    outcome = ""
    condition: str | None = None

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction

    def on_transaction_committed(self, event: Any) -> None:
        self.outcome = "committed"

    def on_transaction_aborted(self, event: Any) -> None:
        self.outcome = "aborted"

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.outcome = "failed"
        self.condition = event.delivery.remote.condition.name


class Work:
    """One open transaction on a blocking connection."""

    def __init__(self, connection: BlockingConnection) -> None:
        self.connection = connection
        self.ledger = Ledger()
        connection.container.declare_transaction(connection.conn, handler=self.ledger)
        connection.wait(lambda: self.ledger.transaction is not None)
        assert self.ledger.transaction is not None
        self.transaction = self.ledger.transaction

    def send(self, sender: BlockingSender, text: str) -> Delivery:
        """Send, and wait until the broker has answered."""
        delivery = self.transaction.send(sender.link, Message(body=text, id=text))
        self.connection.wait(lambda: delivery.remote_state != 0)
        return delivery

    def complete(self, receiver: BlockingReceiver) -> Message:
        """Receive one message and accept it within the transaction."""
        message = receiver.receive()
        self.settle(receiver)
        return message

    def settle(self, receiver: BlockingReceiver, state: int = Delivery.ACCEPTED) -> None:
        delivery = receiver.fetcher.unsettled.popleft()
        self.transaction.update(delivery, state)
        self.connection.wait(lambda: delivery.remote_state != 0)

    def commit(self) -> str:
        return self._end(self.transaction.commit)

    def abort(self) -> str:
        return self._end(self.transaction.abort)

    def _end(self, discharge: Any) -> str:
        discharge()
        self.connection.wait(lambda: bool(self.ledger.outcome))
        return self.ledger.outcome


class Via(SenderOption):
    """Send via the link's own entity to another one."""

    def __init__(self, destination: str) -> None:
        self.destination = destination

    def apply(self, sender: Link) -> None:
        sender.properties = {VIA: self.destination}
