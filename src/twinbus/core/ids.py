"""Random ids and keys, in one place so that tests can give their own."""

import base64
import secrets
import uuid


def new_tracking_id() -> str:
    return str(uuid.uuid4())


def new_key() -> str:
    """A SAS key like Azure's: 32 random bytes, base64."""
    return base64.b64encode(secrets.token_bytes(32)).decode()


def is_key(text: str) -> bool:
    """Whether what a file held can be a key at all."""
    return bool(text) and text.isprintable() and "\ufffd" not in text
