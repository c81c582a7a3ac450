"""What each entity was asked to do, counted since start (C1).

A billable unit is 64 KB or a part of it: a message of one byte costs what one of 64 KB does.
"""

from typing import Final

UNIT_BYTES: Final = 64 * 1024


class Meter:
    """The path of a message adds to these by hand: a call for each would cost too much."""

    def __init__(self) -> None:
        self.sends = 0
        self.send_bytes = 0
        #: Units beyond the first one of each message.
        self.send_extra_units = 0
        #: Pings are ordinary sends as well, and are counted there too (P10).
        self.pings = 0
        #: How often a receiver asked for messages, whether or not there were any.
        self.receive_calls = 0
        self.deliveries = 0
        self.delivery_bytes = 0
        self.delivery_extra_units = 0
        self.settlements = 0
        self.management_calls = 0

    @property
    def send_units(self) -> int:
        return self.sends + self.send_extra_units

    @property
    def delivery_units(self) -> int:
        return self.deliveries + self.delivery_extra_units


def extra_units(size: int) -> int:
    """Units of a message beyond its first."""
    return (size - 1) // UNIT_BYTES
