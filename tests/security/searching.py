"""Looks for secrets in whatever was written, in every form in which they might have got there."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from urllib.parse import quote, quote_plus

# Signatures and keys that nobody told us of.
_ANY = re.compile(rb"(?:sig=|SharedAccessKey=)[A-Za-z0-9+/%=]{8,}", re.IGNORECASE)
# What holds keys and messages by design: the disk is as secret as they are.
_STORES = ("root.key", "journal", "tls", "capture")


def forms(secret: str) -> set[bytes]:
    """How a secret may look in a log: as it is, quoted, in base64 at any offset, in hex."""
    raw = secret.encode()
    found = {raw, quote(secret, safe="").encode(), quote_plus(secret).encode(), raw.hex().encode()}
    found.add(json.dumps(secret)[1:-1].encode())
    for shift in range(3):
        # Only the middle is the same whatever stands before and after.
        whole = base64.b64encode(b"\0" * shift + raw)
        found.add(whole[4 : len(whole) - 4])
    return found


def leaks(written: bytes, secrets: dict[str, str]) -> list[str]:
    """Which secrets are in it, and where; signatures of any kind as well."""
    found = [
        f"{name}: …{written[max(0, at - 80) : at + 40]!r}"
        for name, secret in secrets.items()
        for form in forms(secret)
        if (at := written.find(form)) >= 0
    ]
    found += [f"unknown: {match[0]!r}" for match in _ANY.finditer(written)]
    return found


def written_by(directory: Path) -> bytes:
    """Everything in a directory's files, but for the stores themselves."""
    return b"\n".join(
        path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not any(part in _STORES for part in path.parts)
    )
