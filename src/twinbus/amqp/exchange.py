"""The messages of request and response: properties, headers, and one value as the body.

Both ways are the same form. What headers and value mean is for the ends to know.
"""

from __future__ import annotations

from collections.abc import Mapping

from twinbus.amqp.codec import decode_whole, encode, encode_map, map_pairs
from twinbus.amqp.properties import Properties, decode_properties, encode_properties
from twinbus.amqp.sections import AMQP_VALUE, Sections, locate


def encode_exchange(properties: Properties, headers: Mapping[str, object], body: object) -> bytes:
    """Headers and body keep their AMQP types."""
    pairs: list[tuple[object, bytes]] = [(key, encode(value)) for key, value in headers.items()]
    return b"".join(
        (
            encode_properties(properties),
            b"\x00\x53\x74", encode_map(pairs),
            b"\x00\x53\x77", encode(body),
        )
    )  # fmt: skip


def decode_exchange(payload: bytes) -> tuple[Properties, dict[str, object], object]:
    """Properties, headers and body; what is not there is empty or None."""
    found = locate(payload)
    properties, headers = decode_heads(payload, found)
    return properties, headers, decode_body(payload, found)


def decode_heads(payload: bytes, found: Sections) -> tuple[Properties, dict[str, object]]:
    """What stands before the body: enough to tell what is asked, and by whom."""
    headers: dict[str, object] = {}
    if found.application_properties_at >= 0:
        pairs = map_pairs(payload, found.application_properties_at)
        headers = {str(key): decode_whole(raw) for key, raw in pairs}
    return decode_properties(payload, found.properties_at), headers


def heads_bytes(found: Sections) -> int:
    """The size of what `decode_heads` reads."""
    properties = found.properties_end - found.properties_start
    return properties + found.application_properties_end - found.application_properties_start


def decode_body(payload: bytes, found: Sections) -> object:
    if found.body_start >= 0 and payload[found.body_start + 2] == AMQP_VALUE:
        return decode_whole(payload[found.body_start + 3 : found.body_end])
    return None
