"""What is told of a failure is one line that helps, whatever the SDK says of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import typer
from azure.core.exceptions import ServiceRequestError
from azure.servicebus.exceptions import ServiceBusConnectionError

from twinbus.cli.failures import FAILURE, TRUST_ADVICE, one_line_errors

OPENSSL = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {} (_ssl.c:1006)"
OVER_AMQP = (
    f"Failed to initiate the connection due to exception: {OPENSSL}"
    "\nError condition: amqp:socket-error."
)


@pytest.mark.parametrize(
    "error",
    [
        lambda reason: ServiceRequestError(OPENSSL.format(reason)),
        lambda reason: ServiceBusConnectionError(message=OVER_AMQP.format(reason)),
    ],
    ids=["administration", "messages"],
)
@pytest.mark.parametrize(
    "reason",
    [
        "unable to get local issuer certificate",
        "Hostname mismatch, certificate is not valid for 'shop'.",
    ],
)
def test_a_certificate_that_is_not_trusted(
    error: Callable[[str], Exception], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, one_line_errors():
        raise error(reason)
    assert ended.value.exit_code == FAILURE
    said = reason.removesuffix(".")
    line = f"twinbus: the broker's certificate is not trusted: {said}. {TRUST_ADVICE}\n"
    assert capsys.readouterr().err == line
