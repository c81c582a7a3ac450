"""The two ends of a link as a peer describes them in its attach.

The wire form enters; what the broker needs of it leaves, beside the bytes to echo: a
client recognises its own link only by an echo that is exact.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.codec import NULL, decode_whole, encode, encode_list
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.performatives import Fields, descriptor_at

_SOURCE: Final = 0x28
_TARGET: Final = 0x29
_COORDINATOR: Final = 0x30

_FILTER: Final = 7
_SOURCE_FIELDS: Final = 11


class Source:
    """Where messages of a link come from."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.dynamic = False
        self.filter: dict[object, object] = {}
        # Encoded for an echo; null where the peer sent none.
        self.raw = NULL
        self._fields: list[bytes] = []

    def with_filter(self, replacement: dict[object, object]) -> bytes:
        """This source, encoded, with another filter and everything else untouched."""
        fields = self._fields + [NULL] * (_FILTER + 1 - len(self._fields))
        fields[_FILTER] = encode(replacement)
        return b"\x00\x53\x28" + encode_list(fields)


class Target:
    """Where messages of a link go to."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.dynamic = False
        self.is_coordinator = False
        self.raw = NULL


def read_source(attach: Fields, index: int) -> Source:
    source = Source()
    if not attach.present(index):
        return source
    code, fields, source.raw = _described(attach, index)
    if code != _SOURCE:
        raise DecodeError("not a source", attach.start(index))
    source.address = _address(fields)
    source.dynamic = fields.boolean(4, False)
    source.filter = fields.mapping(_FILTER)
    source._fields = [fields.raw(i) for i in range(min(fields.count(), _SOURCE_FIELDS))]
    return source


def read_target(attach: Fields, index: int) -> Target:
    target = Target()
    if not attach.present(index):
        return target
    code, fields, target.raw = _described(attach, index)
    if code == _COORDINATOR:
        target.is_coordinator = True
    elif code == _TARGET:
        target.address = _address(fields)
        target.dynamic = fields.boolean(4, False)
    else:
        raise DecodeError("not a target", attach.start(index))
    return target


def _described(attach: Fields, index: int) -> tuple[int, Fields, bytes]:
    """Code, fields and the bytes to echo, with the descriptor in its short spelling."""
    code, at = descriptor_at(attach.buf, attach.start(index))
    fields = Fields(attach.buf, at, attach.after)
    if not 0 <= code < 256:
        raise DecodeError("not a source or target", at)
    echo = bytes((0x00, 0x53, code)) + attach.buf[at : fields.after]
    # Also what we do not look at: what goes back must be readable.
    decode_whole(echo)
    return code, fields, echo


def _address(fields: Fields) -> str | None:
    # AMQP leaves the type of an address open; the broker knows only text.
    address = fields.value(0)
    return address if isinstance(address, str) else None
