"""Which failure counts (P4) and which one dead-letters in the syphon (P11): row by row."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus import aio as sdk_aio
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import TokenAuthFailure
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from twinbus.pairing.failures import UNAVAILABLE, OnSend, OnSyphon, verdict_on

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
    # The syphon's messages are encoded already.
    ValueError(),
    sdk.ServiceBusError("a wrong call", error=TypeError()),
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


NOT_AMQP = {
    "http": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "zeros": bytes(64),
    "no_sasl": b"AMQP\x00\x01\x00\x00",
}


@pytest.fixture(params=NOT_AMQP)
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """The connection string of a peer that answers each connection, but not as a broker does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(8)
                    connection.sendall(NOT_AMQP[request.param])

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield (
            f"Endpoint=sb://127.0.0.1:{listener.getsockname()[1]};SharedAccessKeyName=n;"
            "SharedAccessKey=k;UseDevelopmentEmulator=true"
        )
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


# The SDK leaves the socket of a connection that broke to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_p4_p11_a_peer_that_does_not_speak_amqp_is_an_outage(place: str) -> None:
    with ServiceBusClient.from_connection_string(place, retry_total=0) as client:
        sender = client.get_queue_sender("q")
        with pytest.raises(sdk.ServiceBusError) as caught:
            sender.send_messages(ServiceBusMessage("body"))
    assert verdict_on(caught.value) is UNAVAILABLE


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_p4_p11_to_an_asynchronous_client_too(place: str) -> None:
    async with sdk_aio.ServiceBusClient.from_connection_string(place, retry_total=0) as client:
        sender = client.get_queue_sender("q")
        with pytest.raises(sdk.ServiceBusError) as caught:
            await sender.send_messages(ServiceBusMessage("body"))
    assert verdict_on(caught.value) is UNAVAILABLE


def _outgoing_transfer() -> None:
    raise TypeError("cannot be encoded")


def _read_frame(then: Callable[[], None]) -> None:
    then()


def test_p4_a_message_that_is_encoded_when_credit_comes_is_at_fault_itself() -> None:
    with pytest.raises(TypeError) as caught:
        _read_frame(_outgoing_transfer)
    error = sdk.ServiceBusError("cannot be encoded", error=caught.value)
    assert verdict_on(error).on_send is OnSend.RAISE
