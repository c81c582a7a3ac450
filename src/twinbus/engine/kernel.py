"""What all streams of a broker share: the log, the memory budget, timers, who is ready.

The server drives it: `seal` before a commit, `committed` after it, `run_timers` when the
earliest deadline has come, `dispatch_ready` at the end of each turn of its loop.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from mypy_extensions import mypyc_attr

from twinbus.engine.observer import Observer
from twinbus.engine.records import Log

# So few timers are never worth a sweep.
_TIMERS_MIN: Final = 64
# What streams may do unasked in one batch, in bytes that are read and written (see upkeep.py).
# Some ten milliseconds of work: others are served in between.
_EFFORT_MAX: Final = 1024 * 1024
# What clients may ask for beyond that.
ASKED_EFFORT_MAX: Final = 64 * 1024 * 1024
# A time that has come, whatever the time is.
_AT_ONCE: Final = 1


@mypyc_attr(allow_interpreted_subclasses=True)
class Wakeable:
    """Something with work to do: at a time, or as soon as the turn ends."""

    def __init__(self) -> None:
        #: The time for which a timer is set; 0 when there is none.
        self.timer_ms = 0
        self.is_ready = False
        self.is_touched = False
        self.is_put_off = False

    def on_timer(self, now_ms: int) -> None:
        raise NotImplementedError

    def dispatch(self, now_ms: int) -> None:
        raise NotImplementedError

    def write_run(self) -> None:
        """Write the settlements gathered since the last seal."""
        raise NotImplementedError

    def last_seq(self) -> int:
        raise NotImplementedError

    def on_durable(self, seq: int) -> None:
        """Everything up to `seq` is on disk."""
        raise NotImplementedError


class Sealed:
    """Which streams a batch touched, and how far each had come."""

    def __init__(self, streams: list[tuple[Wakeable, int]]) -> None:
        self.streams = streams


class Kernel:
    def __init__(self, log: Log, memory_bytes_max: int, dice: Callable[[int], bytes]) -> None:
        self.log = log
        self.memory_bytes_max = memory_bytes_max
        #: Payload bytes that are kept in memory now.
        self.cached_bytes = 0
        #: Payload bytes that the journal must keep: what several messages share counts once.
        self.live_bytes = 0
        #: By place in the journal: how many messages more than one use the payload there.
        self.sharers: dict[int, int] = {}
        #: Gives random bytes; the engine has no dice of its own.
        self.dice = dice
        #: Gathers what happens; None where nobody captures it.
        self.observer: Observer | None = None
        self.effort_max: int = _EFFORT_MAX
        #: What streams may still do unasked in this batch.
        self.effort_left: int = _EFFORT_MAX
        #: The disk is full: no message is written anew, as a dead letter is.
        self.is_full = False
        self._put_off: list[Wakeable] = []
        self._short_of_room: dict[Wakeable, None] = {}
        self._ready: list[Wakeable] = []
        self._touched: list[Wakeable] = []
        self._runs: list[Wakeable] = []
        self._timers: list[tuple[int, int, Wakeable]] = []
        self._timer_order = 0
        #: How long the heap may become before timers that were set anew are swept out of it.
        self._timers_max: int = _TIMERS_MIN

    # --- payloads that several messages share -----------------------------------------

    def share(self, location: int) -> None:
        """One more message uses a payload that is live."""
        self.sharers[location] = self.sharers.get(location, 0) + 1

    def let_go(self, location: int, size: int) -> None:
        """A message uses its payload no more; once nobody does the journal need not keep it."""
        others = self.sharers.get(location, 0)
        if others == 0:
            self.live_bytes -= size
        elif others == 1:
            del self.sharers[location]
        else:
            self.sharers[location] = others - 1

    # --- who has something to deliver -------------------------------------------------

    def wake(self, stream: Wakeable) -> None:
        if not stream.is_ready:
            stream.is_ready = True
            self._ready.append(stream)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def dispatch_ready(self, now_ms: int) -> None:
        while self._ready:
            ready = self._ready
            self._ready = []
            for stream in ready:
                stream.is_ready = False
                stream.dispatch(now_ms)

    # --- commits ----------------------------------------------------------------------

    def touch(self, stream: Wakeable) -> None:
        """A stream got a message that is not on disk yet."""
        stream.is_touched = True
        self._touched.append(stream)

    def run_begun(self, stream: Wakeable) -> None:
        self._runs.append(stream)

    def write_runs(self) -> None:
        """Write the settlements that are still gathered."""
        if self._runs:
            runs = self._runs
            self._runs = []
            for stream in runs:
                stream.write_run()

    def seal(self) -> Sealed:
        """Write what is still gathered; say what the batch that ends here makes durable."""
        self.write_runs()
        self._begin_effort()
        touched = self._touched
        self._touched = []
        for stream in touched:
            stream.is_touched = False
        return Sealed([(stream, stream.last_seq()) for stream in touched])

    def put_off(self, stream: Wakeable) -> None:
        """The effort is used up: let the stream go on with the next batch."""
        if not stream.is_put_off:
            stream.is_put_off = True
            self._put_off.append(stream)

    def _begin_effort(self) -> None:
        self.effort_left = self.effort_max
        late = self._put_off
        if late:
            self._put_off = []
            # The first to be put off is the one that had its share: it comes last now.
            late.append(late.pop(0))
            for stream in late:
                stream.is_put_off = False
                self.call_at(_AT_ONCE, stream)

    def takes_effort(self, size: int) -> bool:
        """Count what a client asks to be written anew; tell whether this batch has room for it.

        A range of settlements, or a list of numbers, is a small frame, and may stand for more
        than a batch can hold.
        """
        if self.effort_left < -ASKED_EFFORT_MAX:
            return False
        self.effort_left -= size
        return True

    def wait_for_room(self, stream: Wakeable) -> None:
        """The disk is full: let the stream go on once it is not."""
        self._short_of_room[stream] = None

    def set_full(self, is_full: bool) -> None:
        self.is_full = is_full
        if not is_full and self._short_of_room:
            waiting = self._short_of_room
            self._short_of_room = {}
            for stream in waiting:
                self.call_at(_AT_ONCE, stream)

    def committed(self, sealed: Sealed) -> None:
        for stream, seq in sealed.streams:
            stream.on_durable(seq)
            self.wake(stream)

    @property
    def has_runs(self) -> bool:
        return bool(self._runs)

    # --- timers -----------------------------------------------------------------------

    def call_at(self, when_ms: int, stream: Wakeable) -> None:
        """See that `on_timer` comes at `when_ms` or before."""
        if stream.timer_ms and stream.timer_ms <= when_ms:
            return
        stream.timer_ms = when_ms
        self._timer_order += 1
        heappush(self._timers, (when_ms, self._timer_order, stream))
        if len(self._timers) > self._timers_max:
            self._sweep_timers()

    def _sweep_timers(self) -> None:
        """Keep one timer for each who waits.

        Whoever asks for an earlier time and then for the old one again leaves a timer behind
        each time, and that would stay until its date, weeks ahead. When to sweep depends on
        what was asked for and nothing else, so that a replay rings in the same order. The next
        sweep comes when the heap has doubled: each timer pays for one.
        """
        kept: list[tuple[int, int, Wakeable]] = []
        waiting: set[Wakeable] = set()
        for timer in sorted(self._timers):
            stream = timer[2]
            if stream.timer_ms == timer[0] and stream not in waiting:
                waiting.add(stream)
                kept.append(timer)
        self._timers = kept  # in order, and so a heap
        self._timers_max = max(_TIMERS_MIN, 2 * len(kept))

    def look_again(self, now_ms: int) -> None:
        """The time was set: everyone who waits for a moment finds out anew when that is."""
        timers = self._timers
        self._timers = []
        for when_ms, _, stream in timers:
            if stream.timer_ms == when_ms:
                stream.timer_ms = 0
                self.call_at(now_ms, stream)

    def deadline_ms(self) -> int:
        """The earliest timer, 0 when there is none."""
        while self._timers:
            when_ms, _, stream = self._timers[0]
            if stream.timer_ms == when_ms:
                return when_ms
            heappop(self._timers)
        return 0

    def run_timers(self, now_ms: int) -> None:
        while self._timers and self._timers[0][0] <= now_ms:
            when_ms, _, stream = heappop(self._timers)
            if stream.timer_ms == when_ms:
                stream.timer_ms = 0
                stream.on_timer(now_ms)
