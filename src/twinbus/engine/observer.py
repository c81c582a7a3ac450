"""Gathers what happens between two commits, and writes it as few records.

Bridges and streams tell it what clients did; `write` puts that into the journal's batch, so
that what was answered and what was charged for it become durable together. It keeps one tally
for each link and kind, and one run for neighbours that went to the same receiver; it decides
nothing, and there is none of it where nobody captures.
"""

from array import array

from twinbus.engine import observations
from twinbus.engine.index import CHUNK_MASK, Chunk
from twinbus.engine.metering import UNIT_BYTES, extra_units
from twinbus.engine.records import Log

# A client chooses its own name: records are to stay small.
_CLIENT_CHARS_MAX = 256


class Tally:
    """What one client asked of one stream since the last commit, of one kind (C1)."""

    def __init__(self, observer: "Observer", what: int, stream: int, client: str) -> None:
        self._observer = observer
        self._what = what
        self._stream = stream
        self._client = client[:_CLIENT_CHARS_MAX].encode()
        self._count = 0
        self._bytes = 0
        self._units = 0

    def add(self, size: int) -> None:
        """Count one operation; one without a size is one unit."""
        if self._count == 0:
            self._observer.tallies.append(self)
        self._count += 1
        self._bytes += size
        self._units += 1 if size <= UNIT_BYTES else 1 + extra_units(size)

    def take(self) -> bytes:
        """Give the record of what was counted, and begin anew."""
        record = observations.observed(
            self._what, self._stream, 0, self._count, 0, self._bytes, self._units, self._client
        )
        self._count = 0
        self._bytes = 0
        self._units = 0
        return record


class DeliveryRun:
    """Consecutive messages of one chunk, delivered equally often before, that went to one
    receiver. Only their number is kept as they go; `note` writes down the rest in one go."""

    def __init__(
        self, stream: int, chunk: Chunk, first: int, delivery_count: int, now_ms: int, client: str
    ) -> None:
        self._stream = stream
        self._first = first
        self._client = client[:_CLIENT_CHARS_MAX].encode()
        self._sizes = array("I")
        #: Where the messages are; None once the run is written.
        self.chunk: Chunk | None = chunk
        self.delivery_count = delivery_count
        #: When those were delivered that are not noted yet.
        self.now_ms = now_ms
        #: The sequence number that would lengthen the run.
        self.next_seq = first
        self.is_noted = True

    def note(self) -> None:
        """Take sizes, and set first times, of what came since the last note."""
        self.is_noted = True
        chunk = self.chunk
        assert chunk is not None
        start = (self._first & CHUNK_MASK) + len(self._sizes)
        end = (self._first & CHUNK_MASK) + self.next_seq - self._first
        self._sizes += chunk.sizes[start:end]
        chunk.note_delivered(start, end, self.now_ms)

    def take(self) -> bytes:
        """Give the record; the run is over."""
        self.chunk = None
        sizes = self._sizes
        count = len(sizes)
        units = count
        if max(sizes) > UNIT_BYTES:
            units += sum([extra_units(size) for size in sizes])
        return observations.observed(
            observations.DELIVERED, self._stream, self._first, count, self.delivery_count,
            sum(sizes), units, self._client, observations.little_endian(sizes),
        )  # fmt: skip


class Observer:
    def __init__(self, log: Log) -> None:
        self._log = log
        #: Those that have something to write.
        self.tallies: list[Tally] = []
        self._runs: list[DeliveryRun] = []
        self._unnoted: list[DeliveryRun] = []
        self._told: list[bytes] = []
        #: Tallies of operations too rare to have one of their own.
        self._rare: dict[tuple[int, int, str], Tally] = {}

    def count(self, what: int, stream: int, client: str, size: int = 0) -> None:
        """Count an operation of which a link does not keep a tally."""
        key = (what, stream, client)
        tally = self._rare.get(key)
        if tally is None:
            tally = self._rare[key] = Tally(self, what, stream, client)
        tally.add(size)

    def begin_run(self, run: DeliveryRun) -> None:
        self._runs.append(run)

    def run_grew(self, run: DeliveryRun) -> None:
        """There is something to note of a run."""
        run.is_noted = False
        self._unnoted.append(run)

    def note_deliveries(self) -> None:
        """Bring what is known of the messages up to date, before it is read or changes."""
        for run in self._unnoted:
            run.note()
        self._unnoted = []

    def tell(
        self, what: int, stream: int, seq: int = 0, delivery_count: int = 0, client: str = "",
        text: str = "",
    ) -> None:  # fmt: skip
        """Something happened to one message, or to one session."""
        name = client[:_CLIENT_CHARS_MAX].encode()
        record = observations.observed(
            what, stream, seq, 1, delivery_count, 0, 0, name, text.encode()
        )
        self._told.append(record)

    def write(self) -> None:
        """Add everything gathered to the log."""
        log = self._log
        self.note_deliveries()
        runs = self._runs
        self._runs = []
        for run in runs:
            log.append(run.take())
        tallies = self.tallies
        self.tallies = []
        for tally in tallies:
            log.append(tally.take())
        self._rare = {}
        told = self._told
        self._told = []
        for record in told:
            log.append(record)
