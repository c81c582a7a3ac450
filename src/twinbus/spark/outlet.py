"""Sends the rows of one task, and goes on after what can be mended: a lost connection, a
broker that restarts or is busy.

Encoded messages go in, in the order of their rows; a refusal comes out as an error that names
the row. After a mend everything unacknowledged is sent again, so the broker may get some of it
twice: duplicate detection at the target drops that by message id.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from twinbus.client import Client, ClientError, Sender, SendRefused
from twinbus.spark.messages import to_batch
from twinbus.spark.patience import PATIENCE_S, Patience

CLIENT_NAME: Final = "twinbus-spark-sink"


class RefusedRowError(Exception):
    """A row that the broker does not take."""

    def __init__(self, row: int, message_id: str | None, why: str) -> None:
        super().__init__(why)
        self.row = row
        self.message_id = message_id


class Outlet:
    def __init__(
        self, connection_string: str, entity: str, window_messages: int, window_bytes: int
    ) -> None:
        self._connection_string = connection_string
        self._entity = entity
        self._window_messages = window_messages
        self._window_bytes = window_bytes
        self._client: Client | None = None
        self._sender: Sender | None = None
        self._rows = 0
        # What the present sender was not given yet: the first row, and messages from it on.
        self._unsent: deque[tuple[int, list[bytes]]] = deque()
        # Where the present sender's positions begin to be rows from another one on.
        self._runs: list[tuple[int, int]] = []
        self._chunk_at = 0

    def send(self, messages: list[bytes]) -> None:
        """Send the next rows; waits while too much is under way."""
        self._unsent.append((self._rows, messages))
        self._rows += len(messages)
        self._push(flush=False)

    def flush(self) -> None:
        """Return once the broker has acknowledged every row."""
        self._push(flush=True)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._sender = None

    def __enter__(self) -> Outlet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -----------------------------------------------------------------------------------

    def _push(self, *, flush: bool) -> None:
        patience = Patience(PATIENCE_S)
        while True:
            try:
                self._give(self._sender or self._open(), flush)
                return
            except ClientError as error:
                if isinstance(error, SendRefused) and not error.retryable:
                    message_id = to_batch([error.message])["message_id"][0].as_py()
                    row = self._row_of(error.position)
                    raise RefusedRowError(row, message_id, str(error)) from error
                self._take_back()
                if not error.retryable or not patience.pause():
                    raise

    def _open(self) -> Sender:
        self._client = Client.connect(self._connection_string, container_id=CLIENT_NAME)
        self._sender = self._client.sender(
            self._entity, window_messages=self._window_messages, window_bytes=self._window_bytes
        )
        self._runs = []
        return self._sender

    def _give(self, sender: Sender, flush: bool) -> None:
        while self._unsent:
            row, messages = self._unsent[0]
            self._chunk_at = sender.given
            if not self._runs or self._row_of(sender.given) != row:
                self._runs.append((sender.given, row))
            sender.send(messages)
            self._unsent.popleft()
        if flush:
            sender.flush()

    def _row_of(self, position: int) -> int:
        start, row = next(run for run in reversed(self._runs) if run[0] <= position)
        return row + position - start

    def _take_back(self) -> None:
        """Leave the sender; what it did not get through is unsent again, in order."""
        sender = self._sender
        if sender is not None:
            if self._unsent:
                row, messages = self._unsent.popleft()
                taken = sender.given - self._chunk_at
                self._unsent.appendleft((row + taken, messages[taken:]))
            back = [(self._row_of(at), [message]) for at, message in sender.unacknowledged()]
            self._unsent.extendleft(reversed(back))
        self.close()
