"""Which message ids an entity has seen of late (E7).

There may be millions, and compaction goes through them while the broker works: the ids lie in
blocks, in the order in which they came, so that a walk can stop and go on.
"""

from array import array
from collections import deque
from typing import Final

from twinbus.engine import records
from twinbus.engine.index import NEVER
from twinbus.engine.records import Log

_BLOCK_BITS: Final = 9
_BLOCK_SIZE: Final = 512
_BLOCK_MASK: Final = 511
# What the journal holds of an id beside itself.
_RECORD_BYTES: Final = 17


class Block:
    """Up to 512 ids in a row: when each was seen, and where that is written."""

    def __init__(self) -> None:
        self.ids: list[bytes] = []
        self.at_ms = array("q")
        self.locations = array("Q")
        #: Nothing that counts lies below this place in the journal.
        self.location_min = NEVER


class DuplicateHistory:
    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        #: The number of each id that is known: where it lies in the blocks.
        self.ids: dict[bytes, int] = {}
        #: What the journal must keep for them.
        self.bytes = 0
        self._blocks: deque[Block] = deque()
        #: The number of the first block, of the first id in use and of the one to come.
        self._first_block = 0
        self._first = 0
        self._next = 0

    def seen(self, message_id: bytes, now_ms: int) -> bool:
        number = self.ids.get(message_id)
        return number is not None and now_ms - self._at_ms(number) < self.window_ms

    def _at_ms(self, number: int) -> int:
        return self._block(number).at_ms[number & _BLOCK_MASK]

    def _block(self, number: int) -> Block:
        return self._blocks[(number >> _BLOCK_BITS) - self._first_block]

    def known(self) -> dict[bytes, int]:
        """When each id was seen."""
        return {message_id: self._at_ms(number) for message_id, number in self.ids.items()}

    def remember(self, message_id: bytes, now_ms: int, log: Log, stream: int) -> None:
        location = log.append(records.remembered(stream, now_ms, message_id))
        self.note(message_id, now_ms, location)
        self._forget_old(now_ms)

    def note(self, message_id: bytes, at_ms: int, location: int) -> None:
        if message_id not in self.ids:
            self.bytes += len(message_id) + _RECORD_BYTES
        number = self._next
        self._next = number + 1
        if not number & _BLOCK_MASK:
            self._blocks.append(Block())
        block = self._blocks[-1]
        block.ids.append(message_id)
        block.at_ms.append(at_ms)
        block.locations.append(location)
        if location < block.location_min:
            block.location_min = location
        # The number that it had before is void.
        self.ids[message_id] = number

    def _forget_old(self, now_ms: int) -> None:
        # Two for each one that comes, so that the table shrinks after a burst, yet no
        # single send pays for it.
        for _ in range(2):
            if self._first == self._next:
                return
            block = self._blocks[0]
            offset = self._first & _BLOCK_MASK
            if self.ids.get(block.ids[offset]) == self._first:
                if now_ms - block.at_ms[offset] < self.window_ms:
                    return
                self._forget(block.ids[offset])
            self._first += 1
            if not self._first & _BLOCK_MASK:
                self._blocks.popleft()
                self._first_block += 1

    def _forget(self, message_id: bytes) -> None:
        del self.ids[message_id]
        self.bytes -= len(message_id) + _RECORD_BYTES

    def shift(self, step_ms: int) -> None:
        """The clock was set: the windows of what is known go on from there."""
        for block in self._blocks:
            block.at_ms = array("q", [at_ms + step_ms for at_ms in block.at_ms])

    # --- compaction -------------------------------------------------------------------

    def carry(
        self, from_number: int, limit: int, now_ms: int, log: Log, stream: int
    ) -> tuple[int, int]:
        """Write anew what still counts and lies below a place in the journal: one block of it.

        Give the number to go on from, 0 when all is done, and the bytes written.
        """
        number = max(from_number, self._first)
        while number < self._next:
            block = self._block(number)
            number = (number | _BLOCK_MASK) + 1
            if block.location_min < limit:
                first = number - _BLOCK_SIZE
                return number, self._carry_block(block, first, limit, now_ms, log, stream)
        return 0, 0

    def _carry_block(
        self, block: Block, first: int, limit: int, now_ms: int, log: Log, stream: int
    ) -> int:
        written = 0
        lowest: int = NEVER
        for offset in range(len(block.ids)):
            message_id = block.ids[offset]
            if self.ids.get(message_id) != first + offset:
                continue
            at_ms = block.at_ms[offset]
            if block.locations[offset] < limit:
                if now_ms - at_ms >= self.window_ms:
                    self._forget(message_id)
                    continue
                record = records.remembered(stream, at_ms, message_id)
                block.locations[offset] = log.append_carried(record)
                written += len(record)
            lowest = min(lowest, block.locations[offset])
        block.location_min = lowest
        return written
