"""The one table of what a failed send means: for the sender (P4) and for the syphon (P11).

An exception goes in, a row comes out. The SDK's exception types alone are too coarse, so
the AMQP condition and the error inside are looked at as well.
"""

import enum
import struct
from dataclasses import dataclass

from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import exceptions as sdk

from twinbus.pairing.sdk import failed_on_reading


class OnSend(enum.Enum):
    """What the sender does."""

    COUNT = "counts towards failover"
    RAISE = "is raised, and says nothing about the entity's health"
    WAIT = "is tried again on the primary after a pause"


class OnSyphon(enum.Enum):
    """What the syphon does with the message."""

    LATER = "stays in the backlog for later"
    DEAD_LETTER = "can never be delivered"


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """A row of the table. Two rows may say the same, so they are told apart by identity."""

    on_send: OnSend
    on_syphon: OnSyphon


UNAVAILABLE = Verdict(OnSend.COUNT, OnSyphon.LATER)
GONE = Verdict(OnSend.COUNT, OnSyphon.DEAD_LETTER)
CREDENTIALS = Verdict(OnSend.RAISE, OnSyphon.LATER)
BUSY = Verdict(OnSend.WAIT, OnSyphon.LATER)
#: The message is at fault: another place would only hide that from the application.
BAD_MESSAGE = Verdict(OnSend.RAISE, OnSyphon.DEAD_LETTER)
#: A wrong call (a closed sender, a value of the wrong type), found before anything was sent. It
#: says nothing about a message that the syphon sends: that one was encoded long ago.
BAD_CALL = Verdict(OnSend.RAISE, OnSyphon.LATER)

#: Conditions that the SDK has no exception for.
BY_CONDITION = {
    "amqp:not-found": GONE,
    "amqp:link:message-size-exceeded": BAD_MESSAGE,
    "amqp:not-allowed": BAD_MESSAGE,
    "amqp:not-implemented": BAD_MESSAGE,
    "amqp:decode-error": BAD_MESSAGE,
    "amqp:invalid-field": BAD_MESSAGE,
    "amqp:precondition-failed": BAD_MESSAGE,
    "com.microsoft:argument-error": BAD_MESSAGE,
    "com.microsoft:argument-out-of-range": BAD_MESSAGE,
    "com.microsoft:precondition-failed": BAD_MESSAGE,
}

BAD_CALL_TYPES = (ValueError, TypeError, AttributeError, LookupError, struct.error)

CONNECTION_TYPES = (sdk.ServiceBusConnectionError, sdk.ServiceBusCommunicationError, OSError)

#: The first row whose type fits decides, so the narrow types come first.
BY_TYPE: tuple[tuple[type[BaseException], Verdict], ...] = (
    (sdk.OperationTimeoutError, UNAVAILABLE),
    (sdk.ServiceBusConnectionError, UNAVAILABLE),
    (sdk.ServiceBusCommunicationError, UNAVAILABLE),
    # An entity that is disabled or full can be enabled or emptied: the syphon waits for that.
    (sdk.MessagingEntityDisabledError, UNAVAILABLE),
    (sdk.ServiceBusQuotaExceededError, UNAVAILABLE),
    (sdk.MessagingEntityNotFoundError, GONE),
    (sdk.ServiceBusAuthenticationError, CREDENTIALS),
    (sdk.ServiceBusAuthorizationError, CREDENTIALS),
    (ClientAuthenticationError, CREDENTIALS),
    (sdk.ServiceBusServerBusyError, BUSY),
    (sdk.MessageSizeExceededError, BAD_MESSAGE),
    (sdk.ServiceBusError, UNAVAILABLE),
    (OSError, UNAVAILABLE),
    *((kind, BAD_CALL) for kind in BAD_CALL_TYPES),
)


def verdict_on(error: BaseException) -> Verdict:
    """Look an error up; what no row fits counts towards failover.

    Three kinds hide inside another exception. A token for an entity that does not exist is
    refused with 404, which the SDK calls an authentication error. A message that cannot be
    encoded ends as a plain ServiceBusError, and so does an answer that is not AMQP: a load
    balancer that says in HTTP that nobody is there means an outage.
    """
    inner = getattr(error, "inner_exception", None)
    if isinstance(error, sdk.ServiceBusAuthenticationError) and _status(inner) == 404:
        return GONE
    if type(error) is sdk.ServiceBusError and isinstance(inner, BAD_CALL_TYPES):
        return UNAVAILABLE if failed_on_reading(inner) else BAD_CALL
    by_condition = BY_CONDITION.get(_condition(error))
    if by_condition is not None:
        return by_condition
    return next((row for kind, row in BY_TYPE if isinstance(error, kind)), UNAVAILABLE)


def connection_is_lost(error: BaseException) -> bool:
    """Tell whether the connection broke, which says nothing about the entity behind it.

    A time-out does not: it is the entity that may be silent.
    """
    if isinstance(error, sdk.OperationTimeoutError):
        return False
    inner = getattr(error, "inner_exception", None)
    return isinstance(error, CONNECTION_TYPES) or isinstance(inner, OSError)


def reason_and_description(error: BaseException) -> tuple[str, str]:
    """What to write on a message that is dead-lettered because of this error (P11)."""
    if isinstance(error, sdk.ServiceBusAuthenticationError) and verdict_on(error) is GONE:
        return sdk.MessagingEntityNotFoundError.__name__, str(error.inner_exception)
    return type(error).__name__, str(error)


def _condition(error: BaseException) -> str:
    condition = getattr(error, "_condition", None)
    return condition.decode() if isinstance(condition, bytes) else str(condition)


def _status(error: BaseException | None) -> object:
    return getattr(error, "status_code", None)
