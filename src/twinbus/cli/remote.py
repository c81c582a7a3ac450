"""The namespace at the other end, this broker's or Azure's, reached through the official SDK.

A connection string goes in, with where to find administration and whom to trust; the SDK's
clients come out. Nothing here knows what is done with them.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from twinbus.cli.failures import USAGE, CommandError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient
    from azure.servicebus.management import ServiceBusAdministrationClient

T = TypeVar("T")

CONNECTION_VARIABLE = "TWINBUS_CONNECTION"
ADMIN_VARIABLE = "TWINBUS_ADMIN_ENDPOINT"
CA_VARIABLE = "TWINBUS_CA"
DEFAULT_ADMIN_PORT = 5300
DEFAULT_CA = Path("twinbus-data") / "tls" / "ca.pem"
# A command has someone waiting for it: it gives up sooner than a service would.
_RETRIES = 1
#: For the SDK's senders and requests. Its keep-alive thread delays every end by up to a second,
#: and a command does not sit idle on a connection.
BRISK: dict[str, Any] = {"keep_alive": 0}


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a command goes; clients are made when they are asked for."""

    connection: str = field(repr=False)
    admin_endpoint: str | None = None
    ca: Path | None = None

    def parts(self) -> dict[str, str]:
        """The connection string's parts, by their names in lower case."""
        found = {}
        for part in self.connection.split(";"):
            name, separator, value = part.strip().partition("=")
            if separator:
                found[name.strip().casefold()] = value.strip()
        if "endpoint" not in found:
            raise CommandError(
                "the connection string has no Endpoint: it looks like"
                " Endpoint=sb://HOST;SharedAccessKeyName=NAME;SharedAccessKey=KEY",
                USAGE,
            )
        return found

    @property
    def host_and_port(self) -> str:
        return _without_scheme(self.parts()["endpoint"])

    @property
    def host(self) -> str:
        name, _, port = self.host_and_port.rpartition(":")
        return (name if name and port.isdigit() else self.host_and_port).strip("[]")

    @property
    def is_plain(self) -> bool:
        """Whether AMQP goes without TLS, as the SDKs' emulator mode does."""
        return self.parts().get("usedevelopmentemulator", "").casefold() == "true"

    @property
    def admin_host_and_port(self) -> str:
        """Azure has administration on the same host; this broker on a port of its own."""
        if self.admin_endpoint:
            return _checked_place(_without_scheme(self.admin_endpoint))
        _checked_place(self.host_and_port)
        if self.is_plain or is_loopback(self.host):
            return f"{self.host}:{DEFAULT_ADMIN_PORT}"
        return self.host

    @property
    def trusted(self) -> str | None:
        """The file of authorities to trust; None for the usual ones."""
        if self.ca is not None:
            if not self.ca.exists():
                raise CommandError(f"there is no certificate file {self.ca}", USAGE)
            _check_authorities(self.ca)
            return str(self.ca)
        return str(DEFAULT_CA) if is_loopback(self.host) and DEFAULT_CA.exists() else None

    def client(self) -> ServiceBusClient:
        need_sdk()
        from azure.servicebus import ServiceBusClient

        made = _checked(
            lambda: ServiceBusClient.from_connection_string(
                self.connection, connection_verify=self.trusted, retry_total=_RETRIES
            )
        )
        _checked_place(self.host_and_port)
        return made

    def admin(self) -> ServiceBusAdministrationClient:
        need_sdk()
        from azure.servicebus.management import ServiceBusAdministrationClient

        # Given only where there is one: the transport takes None for "trust anybody".
        trust = {} if self.trusted is None else {"connection_verify": self.trusted}
        kept = [
            part
            for part in self.connection.split(";")
            if part.strip() and not part.strip().casefold().startswith(_NOT_FOR_ADMIN)
        ]
        text = ";".join([f"Endpoint=sb://{self.admin_host_and_port}", *kept])
        return _checked(
            lambda: ServiceBusAdministrationClient.from_connection_string(
                text, retry_total=_RETRIES, **trust
            )
        )


# A name of labels, or an address in brackets; a port or none.
_PLACE = re.compile(r"(?:\[[^\s\[\]]+\]|[^\s:/.\[\]]+(?:\.[^\s:/.\[\]]+)*\.?)(?::([0-9]{1,5}))?")
_NOT_FOR_ADMIN = ("endpoint=", "usedevelopmentemulator=", "entitypath=")


def is_loopback(host: str) -> bool:
    if host.casefold() == "localhost" or host.casefold().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _without_scheme(endpoint: str) -> str:
    return endpoint.partition("://")[2].strip("/") if "://" in endpoint else endpoint.strip("/")


def _checked_place(place: str) -> str:
    found = _PLACE.fullmatch(place)
    if found is None or not 1 <= int(found[1] or 1) <= 65535:
        raise CommandError(
            f"'{place}' is no place to reach: it looks like HOST or HOST:PORT", USAGE
        )
    return place


def _check_authorities(file: Path) -> None:
    try:
        ssl.create_default_context(cafile=file)
    except ssl.SSLError as error:
        raise CommandError(
            f"{file} holds no certificate: for Twinbus it is tls/ca.pem in its data directory",
            USAGE,
        ) from error
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", USAGE) from error


def need_sdk() -> None:
    try:
        import azure.servicebus  # noqa: F401
    except ImportError as error:
        raise CommandError(
            "this command needs the official SDK: install it with  pip install 'twinbus[pairing]'"
        ) from error
    # The SDK tells of each retry on its own; what comes of them is told in our one line.
    logging.getLogger("azure").setLevel(logging.CRITICAL)


def _checked(make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise CommandError(f"the connection string cannot be used: {error}", USAGE) from error
