"""What each entity was asked to do, counted since start (C1).

A billable unit is 64 KB or a part of it: a message of one byte costs what one of 64 KB does.
"""

from typing import Final

UNIT_BYTES: Final = 64 * 1024


class Meter:
    def __init__(self) -> None:
        self.sends = 0
        self.send_units = 0
        self.send_bytes = 0
        #: Pings are ordinary sends as well, and are counted there too (P10).
        self.pings = 0
        #: How often a receiver asked for messages, whether or not there were any.
        self.receive_calls = 0
        self.deliveries = 0
        self.delivery_units = 0
        self.delivery_bytes = 0
        self.settlements = 0
        self.management_calls = 0

    def sent(self, size: int) -> None:
        self.sends += 1
        self.send_bytes += size
        self.send_units += units(size)

    def delivered(self, size: int) -> None:
        self.deliveries += 1
        self.delivery_bytes += size
        self.delivery_units += units(size)


def units(size: int) -> int:
    return 1 if size <= UNIT_BYTES else -(-size // UNIT_BYTES)
