"""The one table of errors: what is said, to whom, and whether trying again may help.

A refusal is raised as `BusError` anywhere below the protocols. The AMQP bridge turns it
into a condition and a text, the admin API into a status and a text. Each refusal ends
with a tracking id that is also in the log (S2).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One row of the table."""

    #: AMQP condition, as the clients know it.
    condition: str
    #: Status of the admin API and of `$management` answers.
    status: int
    #: Whether the same request may succeed later.
    retryable: bool


NOT_FOUND = ErrorKind("amqp:not-found", 404, False)
UNAUTHORIZED = ErrorKind("amqp:unauthorized-access", 401, False)
FORBIDDEN = ErrorKind("amqp:unauthorized-access", 403, False)
QUOTA_EXCEEDED = ErrorKind("amqp:resource-limit-exceeded", 403, False)
MESSAGE_TOO_LARGE = ErrorKind("amqp:link:message-size-exceeded", 403, False)
NOT_ALLOWED = ErrorKind("amqp:not-allowed", 400, False)
NOT_IMPLEMENTED = ErrorKind("amqp:not-implemented", 501, False)
DECODE_ERROR = ErrorKind("amqp:decode-error", 400, False)
INTERNAL_ERROR = ErrorKind("amqp:internal-error", 500, True)
CONNECTION_FORCED = ErrorKind("amqp:connection:forced", 503, True)
TRANSACTION_UNKNOWN = ErrorKind("amqp:transaction:unknown-id", 400, False)
MESSAGE_LOCK_LOST = ErrorKind("com.microsoft:message-lock-lost", 410, False)
SESSION_LOCK_LOST = ErrorKind("com.microsoft:session-lock-lost", 410, False)
SESSION_CANNOT_BE_LOCKED = ErrorKind("com.microsoft:session-cannot-be-locked", 409, True)
MESSAGE_NOT_FOUND = ErrorKind("com.microsoft:message-not-found", 404, False)
ENTITY_DISABLED = ErrorKind("com.microsoft:entity-disabled", 403, False)
ALREADY_EXISTS = ErrorKind("com.microsoft:entity-already-exists", 409, False)
SERVER_BUSY = ErrorKind("com.microsoft:server-busy", 503, True)
TIMEOUT = ErrorKind("com.microsoft:timeout", 408, True)
EPOCH_FENCED = ErrorKind("twinbus:epoch-fenced", 410, False)
ARGUMENT_ERROR = ErrorKind("com.microsoft:argument-error", 400, False)


class BusError(Exception):
    """A refusal: which row of the table, and what was wrong and what to do about it."""

    def __init__(self, kind: ErrorKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


def entity_not_found(address: str) -> BusError:
    """Say that an entity is missing, in the words that the JS client looks for."""
    return BusError(NOT_FOUND, f"The messaging entity '{address}' could not be found.")


def disk_failed(reason: Exception) -> BusError:
    """Say that the journal cannot be written or read any more."""
    return BusError(
        INTERNAL_ERROR,
        f"The broker cannot use its disk ({reason}); nothing was accepted. It must be restarted"
        " once the disk is in order.",
    )


def broken(fault: Exception) -> BusError:
    """Say that the broker met an error of its own and does not go on."""
    return BusError(
        INTERNAL_ERROR,
        f"The broker met an error of its own ({fault!r}); nothing was accepted. It must be"
        " restarted; its log has the details.",
    )


def tracked(text: str, tracking_id: str, subject: str, time_iso: str) -> str:
    """End a refusal's text as Azure does, so that it can be found in the log."""
    end = "" if text.endswith(".") else "."
    return f"{text}{end} TrackingId:{tracking_id}, SystemTracker:{subject}, Timestamp:{time_iso}"


def transfer_reason(error: BusError) -> str:
    """Name the refusal of a forwarded message as the transfer dead-letter queue does."""
    if error.kind is NOT_FOUND:
        return "MessagingEntityNotFound"
    if error.kind is ENTITY_DISABLED:
        return "MessagingEntityDisabled"
    if error.kind is QUOTA_EXCEEDED:
        return "QuotaExceeded"
    return "ForwardingFailed"
