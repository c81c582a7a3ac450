"""Which failure counts (P4) and which one dead-letters in the syphon (P11): row by row."""

import logging

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import TokenAuthFailure
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from twinbus.pairing.failures import OnSend, OnSyphon, verdict_on

LOG = logging.getLogger("test")


def by_condition(condition: bytes) -> sdk.ServiceBusError:
    """The exception that the SDK makes of a refusal with this condition."""
    return PyamqpTransport._handle_amqp_exception_with_condition(
        LOG, condition, description="refused"
    )


def by_token_status(status: int) -> sdk.ServiceBusError:
    error = TokenAuthFailure(status, b"refused")
    return PyamqpTransport.create_servicebus_exception(LOG, error)


COUNTS = [
    sdk.OperationTimeoutError(),
    sdk.ServiceBusConnectionError(),
    sdk.ServiceBusCommunicationError(),
    sdk.MessagingEntityDisabledError(),
    sdk.MessagingEntityNotFoundError(),
    sdk.ServiceBusQuotaExceededError(),
    by_condition(b"com.microsoft:entity-disabled"),
    by_condition(b"com.microsoft:timeout"),
    by_condition(b"amqp:internal-error"),
    by_condition(b"amqp:resource-limit-exceeded"),
    by_condition(b"amqp:not-found"),
    by_condition(b"amqp:link:detach-forced"),
    by_condition(b"amqp:connection:forced"),
    by_token_status(404),
    ConnectionRefusedError(),
    TimeoutError(),
    RuntimeError("what nobody foresaw"),
]
RAISED = [
    sdk.ServiceBusAuthenticationError(),
    sdk.ServiceBusAuthorizationError(),
    ClientAuthenticationError(),
    by_condition(b"amqp:unauthorized-access"),
    by_token_status(401),
    sdk.MessageSizeExceededError(),
    by_condition(b"amqp:link:message-size-exceeded"),
    by_condition(b"amqp:not-allowed"),
    by_condition(b"com.microsoft:argument-error"),
    ValueError(),
    TypeError(),
    sdk.ServiceBusError("cannot be encoded", error=TypeError()),
]
BUSY = [sdk.ServiceBusServerBusyError(), by_condition(b"com.microsoft:server-busy")]

FOR_GOOD = [
    sdk.MessagingEntityNotFoundError(),
    by_token_status(404),
    sdk.MessageSizeExceededError(),
    by_condition(b"amqp:not-allowed"),
    by_condition(b"com.microsoft:argument-error"),
]
FOR_NOW = [
    *BUSY,
    sdk.OperationTimeoutError(),
    sdk.ServiceBusConnectionError(),
    sdk.ServiceBusQuotaExceededError(),
    sdk.MessagingEntityDisabledError(),
    sdk.ServiceBusAuthenticationError(),
    sdk.ServiceBusAuthorizationError(),
    by_condition(b"amqp:internal-error"),
]


@pytest.mark.parametrize("error", COUNTS, ids=repr)
def test_p4_counts(error: BaseException) -> None:
    assert verdict_on(error).on_send is OnSend.COUNT


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_p4_is_raised(error: BaseException) -> None:
    assert verdict_on(error).on_send is OnSend.RAISE


@pytest.mark.parametrize("error", BUSY, ids=repr)
def test_p4_busy_is_tried_again(error: BaseException) -> None:
    assert verdict_on(error).on_send is OnSend.WAIT


@pytest.mark.parametrize("error", FOR_GOOD, ids=repr)
def test_p11_refused_for_good(error: BaseException) -> None:
    assert verdict_on(error).on_syphon is OnSyphon.DEAD_LETTER


@pytest.mark.parametrize("error", FOR_NOW, ids=repr)
def test_p11_refused_for_now(error: BaseException) -> None:
    assert verdict_on(error).on_syphon is OnSyphon.LATER
