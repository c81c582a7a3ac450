"""Keys, policies and tokens as a user makes them, apart from the broker's own code."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from urllib.parse import quote

from azure.servicebus.management import AccessRights, AuthorizationRule

PRIMARY = base64.b64encode(b"p" * 32).decode()
SECONDARY = base64.b64encode(b"s" * 32).decode()

RIGHTS = {
    "send": [AccessRights.SEND],
    "listen": [AccessRights.LISTEN],
    "manage": [AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN],
}


def policies(**keys: str) -> list[AuthorizationRule]:
    """One policy for each kind of right, all with the same two keys."""
    return [
        AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=rights,
            key_name=name,
            primary_key=keys.get("primary", PRIMARY),
            secondary_key=SECONDARY,
        )
        for name, rights in RIGHTS.items()
    ]


def token(resource: str, name: str, key: str, expires_in_s: float, *, encode: bool = True) -> str:
    expiry = str(int(time.time() + expires_in_s))
    raw = quote(resource, safe="") if encode else resource
    digest = hmac.new(key.encode(), f"{raw}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest), safe="")
    return f"SharedAccessSignature sr={raw}&sig={signature}&se={expiry}&skn={quote(name)}"
