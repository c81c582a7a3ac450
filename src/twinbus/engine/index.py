"""Where each message of a stream is, in some thirty bytes a message.

A stream may hold millions of waiting messages, so there is no object for each: chunks of
parallel arrays, the sequence number implied by the place. Payloads are kept in memory
while the broker's budget lasts and are otherwise read back from the journal.
"""

from array import array
from bisect import bisect_left
from typing import Final

from twinbus.engine.observations import little_endian

CHUNK_BITS: Final = 9
CHUNK_SIZE: Final = 512
CHUNK_MASK: Final = 511

# States of a message in its stream.
GONE: Final = 0
ACTIVE: Final = 1
LOCKED: Final = 2
DEFERRED: Final = 3
SCHEDULED: Final = 4
# Deferred, and locked by someone who fetched it by number.
DEFERRED_LOCKED: Final = 5
# Set aside for a consumer: see reservations.py.
RESERVED: Final = 6

NEVER: Final = 2**62


class Chunk:
    """Up to 512 consecutive sequence numbers; the arrays grow as they are used."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.states = bytearray()
        self.locations = array("Q")
        self.sizes = array("I")
        self.enqueued = array("q")
        # Only where some message of the chunk can expire.
        self.expires: array[int] | None = None
        self.expires_min = NEVER
        # When each was first delivered (0: not yet), as far as that is observed.
        self.delivered = array("q")
        self.payloads: list[bytes | None] = []
        # No live payload of the chunk lies below this place in the journal.
        self.location_min = NEVER
        self.live = 0

    def reach(self, offset: int) -> None:
        """Make the arrays long enough to hold a message at `offset`."""
        gap = offset + 1 - len(self.states)
        if gap <= 0:
            return
        self.states += bytes(gap)
        self.locations.frombytes(bytes(8 * gap))
        self.sizes.frombytes(bytes(4 * gap))
        self.enqueued.frombytes(bytes(8 * gap))
        self.payloads += [None] * gap
        if self.expires is not None:
            self.expires.frombytes(bytes(8 * gap))

    def places(self, start: int, end: int) -> list[tuple[int, int]]:
        """Where in the journal the payloads of a part of the chunk are, and how large."""
        return [
            (self.locations[offset], self.sizes[offset])
            for offset in range(start, end)
            if self.states[offset] != GONE
        ]

    def set_expiry(self, offset: int, expires_ms: int) -> None:
        expires = self.expires
        if expires is None:
            expires = self.expires = array("q", bytes(8 * len(self.states)))
        expires[offset] = expires_ms
        if 0 < expires_ms < self.expires_min:
            self.expires_min = expires_ms

    def note_delivered(self, start: int, end: int, now_ms: int) -> None:
        """Neighbours were delivered; the first time is kept."""
        delivered = self.delivered
        if end > len(delivered):
            delivered.frombytes(bytes(8 * (end - len(delivered))))
        if delivered[start:end].count(0) == end - start:
            delivered[start:end] = array("q", [now_ms]) * (end - start)
            return
        for offset in range(start, end):
            if delivered[offset] == 0:
                delivered[offset] = now_ms

    def columns(self, offset: int, count: int) -> bytes:
        """Enqueued and first delivered times and sizes of neighbours, present or just gone."""
        end = offset + count
        enqueued = little_endian(self.enqueued[offset:end])
        delivered = little_endian(self.delivered[offset:end]).ljust(8 * count, b"\0")
        return enqueued + delivered + little_endian(self.sizes[offset:end])


class Index:
    """The messages of one stream, by sequence number."""

    def __init__(self) -> None:
        self.chunks: dict[int, Chunk] = {}
        self.order: list[int] = []
        self.last: Chunk | None = None
        self.live = 0
        self.bytes = 0
        #: No message expires before this, those that are deferred aside.
        self.expires_min = NEVER

    def chunk(self, seq: int) -> Chunk | None:
        return self.chunks.get(seq >> CHUNK_BITS)

    def chunk_for(self, seq: int) -> Chunk:
        """Give the chunk that holds `seq`, made if need be and long enough."""
        number = seq >> CHUNK_BITS
        chunk = self.chunks.get(number)
        if chunk is None:
            chunk = self.chunks[number] = Chunk(number)
            order = self.order
            if not order or number > order[-1]:
                last = self.last
                if last is not None and last.live == 0:
                    # It was kept for the numbers that were to come; those went elsewhere.
                    del self.chunks[last.number]
                    order.pop()
                order.append(number)
                self.last = chunk
            else:
                order.insert(bisect_left(order, number), number)
        chunk.reach(seq & CHUNK_MASK)
        return chunk

    def put(
        self, seq: int, state: int, location: int, size: int, enqueued_ms: int, expires_ms: int,
        payload: bytes | None,
    ) -> None:  # fmt: skip
        """Place a message; one that is there already is replaced."""
        offset = seq & CHUNK_MASK
        chunk = self.last
        if chunk is not None and chunk.number == seq >> CHUNK_BITS and offset == len(chunk.states):
            # The common case: the next number of the last chunk.
            chunk.states.append(state)
            chunk.locations.append(location)
            chunk.sizes.append(size)
            chunk.enqueued.append(enqueued_ms)
            chunk.payloads.append(payload)
            if chunk.expires is not None:
                chunk.expires.append(0)
            chunk.live += 1
            self.live += 1
            self.bytes += size
        else:
            chunk = self.chunk_for(seq)
            if chunk.states[offset] == GONE:
                chunk.live += 1
                self.live += 1
            else:
                self.bytes -= chunk.sizes[offset]
            self.bytes += size
            chunk.states[offset] = state
            chunk.locations[offset] = location
            chunk.sizes[offset] = size
            chunk.enqueued[offset] = enqueued_ms
            chunk.payloads[offset] = payload
        if location < chunk.location_min:
            chunk.location_min = location
        if expires_ms:
            chunk.set_expiry(offset, expires_ms)
            if expires_ms < self.expires_min:
                self.expires_min = expires_ms

    def state(self, seq: int) -> int:
        chunk = self.chunks.get(seq >> CHUNK_BITS)
        offset = seq & CHUNK_MASK
        if chunk is None or offset >= len(chunk.states):
            return GONE
        return chunk.states[offset]

    def set_state(self, seq: int, state: int) -> None:
        self.chunks[seq >> CHUNK_BITS].states[seq & CHUNK_MASK] = state

    def remove(self, seq: int) -> int:
        """Forget a message; give the number of payload bytes that memory got back."""
        number = seq >> CHUNK_BITS
        chunk = self.chunks.get(number)
        offset = seq & CHUNK_MASK
        if chunk is None or offset >= len(chunk.states) or chunk.states[offset] == GONE:
            return 0
        chunk.states[offset] = GONE
        freed = 0
        payload = chunk.payloads[offset]
        if payload is not None:
            freed = len(payload)
            chunk.payloads[offset] = None
        self.bytes -= chunk.sizes[offset]
        self.live -= 1
        chunk.live -= 1
        if chunk.live == 0:
            self._drop_if_done(chunk)
        return freed

    def remove_run(self, first: int, last: int) -> int:
        """Forget neighbours that are all there, in one chunk; give the payload bytes freed."""
        chunk = self.chunks[first >> CHUNK_BITS]
        start, end = _within(chunk, first, last)
        count = end - start
        freed = sum([len(p) for p in chunk.payloads[start:end] if p is not None])
        chunk.payloads[start:end] = [None] * count
        chunk.states[start:end] = bytes(count)
        self.bytes -= sum(chunk.sizes[start:end])
        self.live -= count
        chunk.live -= count
        if chunk.live == 0:
            self._drop_if_done(chunk)
        return freed

    def _drop_if_done(self, chunk: Chunk) -> None:
        """The last chunk may still get messages; every other one is done when it is empty."""
        if chunk is self.last and len(chunk.states) < CHUNK_SIZE:
            return
        del self.chunks[chunk.number]
        order = self.order
        if order[0] == chunk.number:
            order.pop(0)
        else:
            order.pop(bisect_left(order, chunk.number))
        if chunk is self.last:
            self.last = None

    def find_state(self, state: int, seq: int, seq_max: int) -> int:
        """Give the first message in `state` from `seq` to `seq_max`, or 0."""
        number = seq >> CHUNK_BITS
        chunk = self.chunks.get(number)
        offset = seq & CHUNK_MASK
        if chunk is not None:
            found = chunk.states.find(state, offset)
            if found >= 0:
                found += number << CHUNK_BITS
                return found if found <= seq_max else 0
        order = self.order
        at = bisect_left(order, number + 1)
        while at < len(order):
            number = order[at]
            if number << CHUNK_BITS > seq_max:
                return 0
            found = self.chunks[number].states.find(state)
            if found >= 0:
                found += number << CHUNK_BITS
                return found if found <= seq_max else 0
            at += 1
        return 0

    def find_run(self, state: int, seq: int, seq_max: int) -> tuple[int, int]:
        """Give first and last of the first neighbours in `state`, (0, 0) when there are none.

        A run ends with its chunk at the latest.
        """
        first = self.find_state(state, seq, seq_max)
        if first == 0:
            return 0, 0
        rest = self.chunks[first >> CHUNK_BITS].states[first & CHUNK_MASK :]
        length = len(rest) - len(rest.lstrip(bytes((state,))))
        return first, min(first + length - 1, seq_max)

    def change_states(self, first: int, last: int, state: int, new_state: int) -> None:
        """Put those of a range that are in one state into another."""
        before, after = bytes((state,)), bytes((new_state,))
        for number in range(first >> CHUNK_BITS, (last >> CHUNK_BITS) + 1):
            chunk = self.chunks.get(number)
            if chunk is not None:
                start, end = _within(chunk, first, last)
                chunk.states[start:end] = chunk.states[start:end].replace(before, after)

    def bytes_between(self, first: int, last: int) -> int:
        """Payload bytes of a range in which no message is missing."""
        total = 0
        for number in range(first >> CHUNK_BITS, (last >> CHUNK_BITS) + 1):
            chunk = self.chunks[number]
            start, end = _within(chunk, first, last)
            total += sum(chunk.sizes[start:end])
        return total

    def may_expire(self, seq: int, now_ms: int) -> bool:
        """Tell whether the time of a message in the chunk of `seq` may be over."""
        chunk = self.chunks.get(seq >> CHUNK_BITS)
        return chunk is not None and chunk.expires_min <= now_ms

    def next_present(self, seq: int) -> int:
        """Give the first message of any state from `seq` on, or 0."""
        at = bisect_left(self.order, seq >> CHUNK_BITS)
        while at < len(self.order):
            chunk = self.chunks[self.order[at]]
            base = chunk.number << CHUNK_BITS
            states = chunk.states
            for offset in range(max(0, seq - base), len(states)):
                if states[offset] != GONE:
                    return base + offset
            at += 1
        return 0

    def note_expiry(self, seq: int, expires_ms: int) -> None:
        """A message that was deferred counts again among those that expire."""
        self.chunks[seq >> CHUNK_BITS].set_expiry(seq & CHUNK_MASK, expires_ms)
        self.expires_min = min(self.expires_min, expires_ms)

    def expired(self, now_ms: int, seq_max: int, count_max: int) -> list[int]:
        """List the active messages up to `seq_max` whose time is over, oldest first; as many as
        `count_max` at most.

        A deferred message stays until it is settled (E5); one that is locked still counts as
        expiring then, since its lock may end first.
        """
        found: list[int] = []
        if self.expires_min > now_ms:
            return found
        expires_min: int = NEVER
        for number in self.order:
            chunk = self.chunks[number]
            if chunk.expires_min > now_ms or chunk.expires is None:
                expires_min = min(expires_min, chunk.expires_min)
                continue
            earliest: int = NEVER
            for offset in range(len(chunk.expires)):
                expires_ms = chunk.expires[offset]
                state = chunk.states[offset]
                if not expires_ms or (state != ACTIVE and state != LOCKED):
                    continue
                seq = (number << CHUNK_BITS) + offset
                if expires_ms <= now_ms and state == ACTIVE and seq <= seq_max:
                    if len(found) == count_max:
                        # This one is left: it expires no later than was known before.
                        return found
                    found.append(seq)
                else:
                    earliest = min(earliest, expires_ms)
            chunk.expires_min = earliest
            expires_min = min(expires_min, earliest)
        self.expires_min = expires_min
        return found

    def bytes_before(self, location_max: int) -> tuple[int, int]:
        """Count the messages whose payload lies below a place in the journal, and its bytes."""
        count = size = 0
        for number in self.order:
            chunk = self.chunks[number]
            if chunk.location_min >= location_max:
                continue
            lowest: int = NEVER
            for offset in range(len(chunk.states)):
                if chunk.states[offset] == GONE:
                    continue
                location = chunk.locations[offset]
                lowest = min(lowest, location)
                if location < location_max:
                    count += 1
                    size += chunk.sizes[offset]
            # Those that are gone need not be looked at again.
            chunk.location_min = lowest
        return count, size

    def located_before(self, location_max: int) -> list[int]:
        """List the messages whose payload lies below a place in the journal."""
        found: list[int] = []
        for number in self.order:
            chunk = self.chunks[number]
            if chunk.location_min >= location_max:
                continue
            states = chunk.states
            locations = chunk.locations
            lowest: int = NEVER
            for offset in range(len(states)):
                if states[offset] == GONE:
                    continue
                if locations[offset] < location_max:
                    found.append((number << CHUNK_BITS) + offset)
                else:
                    lowest = min(lowest, locations[offset])
            # The caller moves what was found; the moves lower this again as need be.
            chunk.location_min = lowest
        return found


def _within(chunk: Chunk, first: int, last: int) -> tuple[int, int]:
    """The part of a chunk that a range covers: its first place, and the one after its last."""
    base = chunk.number << CHUNK_BITS
    return max(first - base, 0), min(last - base + 1, len(chunk.states))
