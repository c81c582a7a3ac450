"""What the pairing library raises itself. Everything else is the SDK's own exception."""

from typing import Any

from azure.servicebus.exceptions import MessageSizeExceededError


class PairingError(Exception):
    """Something about the pair, not about one namespace."""


class NoBacklogQueueError(PairingError):
    """Pairing found no backlog queue in the secondary and could make none (P1)."""


class PairClosedError(PairingError):
    """The pair was closed, or faulted because one of its clients went away (P12)."""


class BacklogSendError(PairingError):
    """No backlog queue took the message; both errors are here (P6).

    `primary_error` is why the entity failed over, `backlog_error` what the last backlog
    queue said (None when no queue was left to ask).
    """

    def __init__(
        self, path: str, primary_error: BaseException | None, backlog_error: BaseException | None
    ) -> None:
        backlog = "no backlog queue is in rotation" if backlog_error is None else str(backlog_error)
        super().__init__(
            f"'{path}' has failed over and no backlog queue took the message. "
            f"Primary: {primary_error}. Backlog: {backlog}."
        )
        self.path = path
        self.primary_error = primary_error
        self.backlog_error = backlog_error


class BacklogMessageTooLargeError(MessageSizeExceededError):
    """The message fits its entity, but not with what the backlog must add to it (P9).

    `stored` of the messages given in the same call are in the backlog: those of sessions before
    its own, where their order is kept.
    """

    def __init__(self, path: str, added_bytes: int, stored: int, error: BaseException) -> None:
        self.stored = stored
        before = f"The first {stored} of the call were stored" if stored else "Nothing was sent"
        super().__init__(
            message=(
                f"'{path}' has failed over, and the message is too large for a backlog queue: "
                f"going there adds about {added_bytes} bytes of properties. {before}. "
                f"Make the message smaller, or wait for the primary to come back. ({error})"
            )
        )


class UnsentError(PairingError):
    """Some sends of a window failed; `failures` pairs each message with its error (S4)."""

    def __init__(self, failures: list[tuple[Any, BaseException]]) -> None:
        super().__init__(f"{len(failures)} sends failed; the first: {failures[0][1]}")
        self.failures = failures
