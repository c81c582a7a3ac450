"""Counts the values in a stranger's bytes before any of them is built.

One byte can become a list of its own, which takes seventy in memory. Bytes enter; a
`DecodeError` leaves where there are too many values. Whether they are well-formed is for
the decoder to say.
"""

from __future__ import annotations

from twinbus.amqp.codec import NESTING_MAX, ZERO_WIDTH_COUNT_MAX, skip
from twinbus.amqp.errors import DecodeError


def check_values(buf: bytes, values_max: int) -> None:
    """Refuse bytes that hold more values than that, those of all levels together."""
    # An array inside an array is the tightest: three bytes, itself and what takes none.
    if len(buf) * 2 <= values_max:
        return
    try:
        found = _count(buf, 0, len(buf), values_max, 0)
    except (DecodeError, IndexError):
        # The decoder stops there too, and has built no more than was counted.
        return
    if found > values_max:
        raise DecodeError(f"more than {values_max} values", 0)


def _count(buf: bytes, pos: int, end: int, most: int, depth: int) -> int:
    """The values from `pos` to `end`; beyond `most` the count is not carried on."""
    found = 0
    while pos < end and found <= most:
        found += 1
        code = buf[pos]
        group = code >> 4
        if code == 0:
            # Descriptor and value follow.
            pos += 1
        elif group == 0xC:
            # Past size and count: the elements stand in line with all others.
            pos += 3
        elif group == 0xD:
            pos += 9
        elif group > 0xD:
            after = skip(buf, pos)
            width = 1 if group == 0xE else 4
            found += _count_array(buf, pos + 1, after, width, most - found, depth + 1)
            pos = after
        else:
            pos = skip(buf, pos)
    return found


def _count_array(buf: bytes, pos: int, end: int, width: int, most: int, depth: int) -> int:
    """The values in an array whose size stands at `pos`; size and count have that width."""
    if depth > NESTING_MAX:
        return 0
    count = int.from_bytes(buf[pos + width : pos + 2 * width], "big")
    pos += 2 * width
    found = 0
    if buf[pos] == 0:
        start = pos + 1
        pos = skip(buf, start)
        found = _count(buf, start, pos, most, depth)
    group = buf[pos] >> 4
    pos += 1
    if count > (ZERO_WIDTH_COUNT_MAX if group == 4 else end - pos):
        # More than the decoder takes.
        return found
    found += count
    if group < 0xC:
        return found
    # Elements with elements, each after its size and count.
    width = 4 if group & 1 else 1
    for _ in range(count):
        if found > most:
            break
        after = pos + width + int.from_bytes(buf[pos : pos + width], "big")
        if group > 0xD:
            found += _count_array(buf, pos, after, width, most - found, depth + 1)
        else:
            found += _count(buf, pos + 2 * width, after, most - found, depth)
        pos = after
    return found
