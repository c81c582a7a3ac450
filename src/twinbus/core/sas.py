"""Shared access signatures: made and checked. The time is an argument.

The text that is signed is the raw, still percent-encoded `sr` of the token, a line feed
and the expiry; clients differ in how they encode it, so it is taken as it came.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

PREFIX = "SharedAccessSignature "


@dataclass(frozen=True, slots=True)
class SasToken:
    """A token cut into its parts; nothing in it is believed until `signed_by` says so."""

    resource: str
    signature: str = field(repr=False)
    expiry_s: int
    key_name: str
    raw_resource: str
    raw_expiry: str

    def signed_by(self, key: str) -> bool:
        """Tell whether the key made this signature, in time that tells nothing."""
        return hmac.compare_digest(
            sign(self.raw_resource, self.raw_expiry, key).encode(), self.signature.encode()
        )

    def covers(self, audience: str) -> bool:
        """Tell whether the token's resource is the audience or a path above it."""
        scope = _without_scheme(self.resource)
        target = _without_scheme(audience)
        return target == scope or target.startswith(scope + "/")


def sign(raw_resource: str, raw_expiry: str, key: str) -> str:
    text = f"{raw_resource}\n{raw_expiry}".encode()
    return base64.b64encode(hmac.new(key.encode(), text, hashlib.sha256).digest()).decode()


def make_token(resource: str, key_name: str, key: str, expiry_s: int) -> str:
    encoded = quote(resource, safe="")
    signature = quote(sign(encoded, str(expiry_s), key), safe="")
    return f"{PREFIX}sr={encoded}&sig={signature}&se={expiry_s}&skn={quote(key_name, safe='')}"


def parse_token(token: str) -> SasToken:
    """Cut a token into its parts; ValueError says which part is wrong."""
    try:
        token.encode()
    except UnicodeEncodeError:
        raise ValueError("the token holds bytes that are no text") from None
    if not token.startswith(PREFIX):
        raise ValueError("the token does not begin with 'SharedAccessSignature '")
    parts: dict[str, str] = {}
    for pair in token[len(PREFIX) :].split("&"):
        name, separator, value = pair.partition("=")
        if separator:
            parts[name.strip()] = value
    missing = [name for name in ("sr", "sig", "se", "skn") if name not in parts]
    if missing:
        raise ValueError(f"the token lacks {', '.join(missing)}")
    if not (parts["se"].isascii() and parts["se"].isdigit()):
        raise ValueError("the token's expiry (se) is not a number of seconds")
    return SasToken(
        resource=unquote(parts["sr"]),
        signature=unquote(parts["sig"]),
        expiry_s=int(parts["se"]),
        key_name=unquote(parts["skn"]),
        raw_resource=parts["sr"],
        raw_expiry=parts["se"],
    )


def _without_scheme(address: str) -> str:
    """The host and path of an address; ports do not count, since clients drop them at will."""
    rest = address.partition("://")[2] or address
    host, slash, path = rest.partition("/")
    host = host.partition(":")[0]
    return (host + slash + path.partition("?")[0]).rstrip("/").casefold()


def equal(given: str, known: str) -> bool:
    """Compare secrets in time that tells nothing."""
    return hmac.compare_digest(given.encode(), known.encode())
