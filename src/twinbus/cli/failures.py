"""How a command ends: the exit codes, and one clear line for whatever went wrong."""

import html
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from twinbus.amqp.errors import DecodeError
from twinbus.forms.plain import printable

FAILURE = 1
USAGE = 2
NOT_FOUND = 3
REFUSED = 4
EXISTS = 5
INTERRUPTED = 130
# What administration says of a request; 400 is a setting that the broker does not take.
_HTTP_CODES = {400: USAGE, 401: REFUSED, 403: REFUSED}

CODES = (
    "Exit codes: 0 done, 1 failure, 2 wrong usage, 3 not found, 4 not authorized, 5 exists already."
)


TRUST_ADVICE = "Give --ca: for Twinbus it is tls/ca.pem in its data directory."


class CommandError(Exception):
    """What the user is told, and the code to exit with."""

    def __init__(self, text: str, code: int = FAILURE) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn every failure that can be foreseen into one line on standard error and a code."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not flush into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except Exception as error:
        code = code_of(error)
        if code is None:
            raise
        typer.echo(f"twinbus: {printable(_line(error))}", err=True)
        raise typer.Exit(code) from error


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    # The administration client shows the whole answer; people want what it says.
    detail = re.search(r"<Detail>(.*?)</Detail>", text)
    if detail is not None:
        return html.unescape(detail[1])
    inner = _refused_token(error)
    if inner is not None:
        return inner[1]
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    # The SDK says which function of OpenSSL failed, and not what to do.
    untrusted = re.search(r"certificate verify failed: (.*?)\.?(?: \(_ssl|$)", text)
    if untrusted is not None:
        return f"the broker's certificate is not trusted: {untrusted[1]}. {TRUST_ADVICE}"
    return text


def _refused_token(error: Exception) -> tuple[int, str] | None:
    """Status and text of a token that was refused.

    A broker says so too where there is no such entity, and the SDK keeps it to itself.
    """
    inner = " ".join(str(getattr(error, "inner_exception", None)).split())
    found = re.search(r"Status code: (\d+) Description: (.*)", inner)
    return None if found is None else (int(found[1]), found[2])


def code_of(error: Exception) -> int | None:
    """The exit code; None for what nobody foresaw, which keeps its traceback."""
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, DecodeError):
        # A message that its broker need not have read.
        return FAILURE
    if isinstance(error, OSError):
        return NOT_FOUND if isinstance(error, FileNotFoundError) else FAILURE
    return _sdk_code(error)


def _sdk_code(error: Exception) -> int | None:
    try:
        from azure.core import exceptions as core
        from azure.servicebus import exceptions as bus
    except ImportError:
        return None
    refused = _refused_token(error)
    if isinstance(error, core.ResourceNotFoundError | bus.MessagingEntityNotFoundError) or (
        refused is not None and refused[0] == 404
    ):
        return NOT_FOUND
    if isinstance(error, core.ResourceExistsError | bus.MessagingEntityAlreadyExistsError):
        return EXISTS
    if isinstance(
        error,
        core.ClientAuthenticationError
        | bus.ServiceBusAuthenticationError
        | bus.ServiceBusAuthorizationError,
    ):
        return REFUSED
    if isinstance(error, core.SerializationError):
        # A value that the SDK could not put into its request.
        return USAGE
    if isinstance(error, core.HttpResponseError) and error.status_code in _HTTP_CODES:
        return _HTTP_CODES[error.status_code]
    return FAILURE if isinstance(error, core.AzureError) else None
