"""Where a namespace is and with which key to enter it, read from a connection string.

Text goes in, an `Endpoint` comes out, or a ValueError that says what is wrong with the text
(and never shows the key).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_AMQP_PORT: Final = 5672
_AMQPS_PORT: Final = 5671
_FORM: Final = "Endpoint=sb://HOST;SharedAccessKeyName=NAME;SharedAccessKey=KEY"


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int
    tls: bool
    key_name: str = ""
    key: str = field(default="", repr=False)
    #: A signature made by somebody else, used instead of a key.
    signature: str = field(default="", repr=False)


def parse_connection_string(text: str) -> Endpoint:
    """Read a Service Bus connection string; the emulator's form means TCP without TLS."""
    parts = {}
    for part in text.split(";"):
        name, separator, value = part.strip().partition("=")
        if separator:
            parts[name.strip().casefold()] = value.strip()
    if "endpoint" not in parts:
        raise ValueError(f"the connection string has no Endpoint: it looks like {_FORM}")
    plain = parts.get("usedevelopmentemulator", "").casefold() == "true"
    host, port = _host_and_port(parts["endpoint"])
    signature = parts.get("sharedaccesssignature", "")
    key_name, key = parts.get("sharedaccesskeyname", ""), parts.get("sharedaccesskey", "")
    if not signature and not (key_name and key):
        raise ValueError(
            "the connection string has neither SharedAccessKeyName and SharedAccessKey nor"
            f" SharedAccessSignature: it looks like {_FORM}"
        )
    default = _AMQP_PORT if plain else _AMQPS_PORT
    return Endpoint(host, port or default, not plain, key_name, key, signature)


def _host_and_port(endpoint: str) -> tuple[str, int]:
    bare = endpoint.partition("://")[2] if "://" in endpoint else endpoint
    place = bare.partition("/")[0]
    host, colon, port = place.rpartition(":")
    if not colon or (place.startswith("[") and place.endswith("]")):
        host, port = place, ""
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"the connection string's Endpoint has a bad port: '{place}'")
    if not host.strip("[]"):
        raise ValueError(f"the connection string's Endpoint names no host: '{endpoint}'")
    return host.strip("[]"), int(port or 0)
