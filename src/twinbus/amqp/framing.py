"""The envelope of every frame, and the headers that open a connection.

Says how bytes are cut into frames; does not know what is inside them.
"""

from __future__ import annotations

import struct
from typing import Final

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
PROTOCOL_HEADER_BYTES: Final = 8
FRAME_HEADER_BYTES: Final = 8

# What every peer must be able to take (AMQP 1.0 §2.4.1); a peer that announces less would
# leave no room for payload beside the performative.
FRAME_BYTES_MIN: Final = 512

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_ENVELOPE: Final = struct.Struct(">IBBH")


def frame(channel: int, body: bytes) -> bytes:
    return _ENVELOPE.pack(FRAME_HEADER_BYTES + len(body), 2, AMQP_FRAME, channel) + body


def sasl_frame(body: bytes) -> bytes:
    return _ENVELOPE.pack(FRAME_HEADER_BYTES + len(body), 2, SASL_FRAME, 0) + body
