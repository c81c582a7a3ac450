"""The envelope of every frame, and the headers that open a connection.

Cuts bytes into frames, for either end of a connection; does not know what is inside them.
"""

from __future__ import annotations

import struct
from typing import Final

from mypy_extensions import mypyc_attr

from twinbus.amqp.errors import FRAMING_ERROR, ProtocolError

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


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameReader:
    """Bytes cut anywhere go in, whole protocol headers and frames come out.

    A base class, and not an object that is asked: a call per frame is what there is room for.
    """

    def __init__(self, max_frame_size: int) -> None:
        self.finished = False
        self.awaits_header = True
        # Set by who takes the frames, to be given no more of them for now.
        self.is_weary = False
        self._max_frame_size = max_frame_size
        # The head of a frame whose rest has not come, and how long that frame is.
        self._cut = bytearray()
        self._needed = 0

    def take_header(self, header: bytes) -> None:
        raise NotImplementedError

    def take_frame(self, kind: int, channel: int, data: bytes, pos: int, end: int) -> None:
        """A frame, with its body in `data` from `pos` to `end`."""
        raise NotImplementedError

    def read_frames(self, data: bytes) -> None:
        """Hand over what is complete until `finished` or weary, and keep the rest."""
        if self._needed:
            self._cut += data
            if len(self._cut) < self._needed:
                return
            data = bytes(self._cut)
            self._cut.clear()
            self._needed = 0
        pos = 0
        available = len(data)
        size = FRAME_HEADER_BYTES
        while not self.finished and not self.is_weary and available - pos >= size:
            if self.awaits_header:
                self.take_header(data[pos : pos + PROTOCOL_HEADER_BYTES])
                pos += PROTOCOL_HEADER_BYTES
                continue
            size = data[pos] << 24 | data[pos + 1] << 16 | data[pos + 2] << 8 | data[pos + 3]
            if size < FRAME_HEADER_BYTES or size > self._max_frame_size:
                raise ProtocolError(FRAMING_ERROR, f"frame of {size} bytes")
            if available - pos < size:
                break
            end = pos + size
            body = pos + 4 * data[pos + 4]
            if body < pos + FRAME_HEADER_BYTES or body > end:
                raise ProtocolError(FRAMING_ERROR, "data offset outside of the frame")
            channel = data[pos + 6] << 8 | data[pos + 7]
            self.take_frame(data[pos + 5], channel, data, body, end)
            pos = end
            size = FRAME_HEADER_BYTES
        if pos < available and not self.finished:
            self._needed = size
            self._cut += data[pos:]
