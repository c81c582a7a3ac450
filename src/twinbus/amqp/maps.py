"""Maps of a stranger: keys and values, decoded, become a `dict`, or a `DecodeError`."""

from __future__ import annotations

import uuid
from typing import Final

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.types import Described

# A map with more keys is looked at before it is built.
_KEYS_UNCHECKED_MAX: Final = 16


def to_map(items: list[object], position: int) -> dict[object, object]:
    """Make a map of keys and values in turn, which stood at that position."""
    if len(items) % 2:
        raise DecodeError("map with a key without value", position)
    if len(items) > 2 * _KEYS_UNCHECKED_MAX:
        _check_hashes(items, position)
    pairs: dict[object, object] = {}
    for i in range(0, len(items), 2):
        key = items[i]
        if isinstance(key, (list, dict, Described)):
            raise DecodeError("map key of a compound type", position)
        pairs[key] = items[i + 1]
    return pairs


def _check_hashes(items: list[object], position: int) -> None:
    """Refuse keys that are made to have one hash: each would be compared with all before it.

    Only a uuid has more bits than its hash, which can be worked out; those of texts and bytes
    nobody knows, and few numbers share one.
    """
    hashes = [hash(key) for key in items[::2] if isinstance(key, uuid.UUID)]
    if len(set(hashes)) < len(hashes):
        raise DecodeError("map with keys that are alike", position)
