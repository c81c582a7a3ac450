"""Sends messages to many entities over one connection, and tells what became of each.

Encoded messages go in by target; for each comes out that it was accepted, or the refusal. It
waits for the broker's answer, so that whoever asks knows the end and not a hope. When the
connection is lost it connects again for as long as it was told to be patient, and sends once
more what was not answered: that may then be there twice, under one message id, never not at all.
What is still not answered then has the loss for its fate; what was accepted before stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from twinbus.client import Client, ConnectionLost, Refused, Sender, SendRefused
from twinbus.spark.patience import Patience

# One transfer each: a refusal then speaks of these messages and of no others.
_TOGETHER_BYTES = 128 * 1024
_TOGETHER_MESSAGES = 500
_SENDERS_MAX = 32

#: None: accepted. Of what has a lost connection for its fate nobody knows.
Outcome = Refused | ConnectionLost | None


class Outbox:
    def __init__(self, connect: Callable[[], Client], patience_s: float) -> None:
        self._connect = connect
        self._patience_s = patience_s
        self._client: Client | None = None
        self._senders: dict[str, Sender] = {}

    def deliver(self, target: str, messages: Sequence[bytes]) -> list[Outcome]:
        """Send in order; gives for each message None, or why it was refused or not sent."""
        fates: list[Outcome] = []
        for together in _chunks(messages):
            fates += self._deliver_together(target, together)
            if isinstance(fates[-1], ConnectionLost):
                # Whoever was patient once is not so again for each of the rest.
                fates += [fates[-1]] * (len(messages) - len(fates))
                break
        return fates

    def close(self) -> None:
        self._senders.clear()
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Outbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _deliver_together(self, target: str, messages: list[bytes]) -> list[Outcome]:
        fates: list[Outcome] = []
        patience = Patience(self._patience_s)
        while len(fates) < len(messages):
            rest = messages[len(fates) :]
            before = 0
            try:
                sender = self._sender(target)
                before = sender.accepted
                sender.send(rest)
                sender.flush()
                fates += [None] * len(rest)
            except SendRefused as refused:
                # What comes after a refusal was not sent; a new sender takes it.
                self._drop(target)
                if refused.retryable:
                    fates += [refused] * len(rest)
                else:
                    fates += [None] * (refused.position - before) + [refused]
            except Refused as refused:
                self._drop(target)
                fates += [refused] * len(rest)
            except ConnectionLost as lost:
                self.close()
                if not patience.pause():
                    fates += [lost] * len(rest)
        return fates

    def _sender(self, target: str) -> Sender:
        if self._client is None:
            self._client = self._connect()
        sender = self._senders.get(target)
        if sender is None:
            if len(self._senders) >= _SENDERS_MAX:
                self._drop(next(iter(self._senders)))
            sender = self._senders[target] = self._client.sender(target)
        return sender

    def _drop(self, target: str) -> None:
        sender = self._senders.pop(target, None)
        if sender is not None:
            sender.close()


def _chunks(messages: Sequence[bytes]) -> Iterator[list[bytes]]:
    """As many as fit into one transfer each; a large message goes by itself."""
    chunk: list[bytes] = []
    size = 0
    for message in messages:
        if chunk and (size + len(message) > _TOGETHER_BYTES or len(chunk) >= _TOGETHER_MESSAGES):
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += len(message)
    if chunk:
        yield chunk
