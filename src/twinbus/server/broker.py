"""The broker: journal, engine and connections, turned by one event loop.

Bytes come in and the engine decides at once, in memory. At the end of each turn of the loop
everything that must last goes to the journal in one commit, which a thread writes; answers
wait for it. While one commit is on its way the next one gathers.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from twinbus.core import errors
from twinbus.core.errors import BusError, tracked
from twinbus.core.ids import new_tracking_id
from twinbus.core.units import DAY_MS, time_to_iso
from twinbus.engine.carrying import Carrier
from twinbus.engine.census import take_census
from twinbus.engine.engine import Engine
from twinbus.engine.kernel import Sealed
from twinbus.engine.records import UnknownKindError
from twinbus.engine.shifting import shift
from twinbus.journal import Journal, JournalFailed, JournalNewer
from twinbus.server.bridge import Hub
from twinbus.server.pulse import Pulse
from twinbus.server.replies import Replies
from twinbus.server.turnstile import Turnstile

log = logging.getLogger(__name__)

# Appends that wait for a commit, before what connections send is held. It bounds how long an
# answer takes when more is sent than can be done, and is enough to keep a disk busy.
PENDING_BYTES_MAX = 2 * 1024 * 1024
# As little as this goes past those who are held, up to twice as many appends: settlements make
# room, and a client that sends now and then need not wait behind those who flood.
_SMALL_BYTES = 4 * 1024
# What may be held. Beyond it sends are refused: server busy.
_HELD_BYTES_MAX = 64 * 1024 * 1024
# A journal is compacted when it is this much longer than what is live in it.
_GARBAGE_BYTES_MIN = 256 * 1024 * 1024
_CARRY_STEP_BYTES = 1024 * 1024
# How often a full disk is looked at again, whether or not anything is written.
_SPACE_RETRY_S = 1.0
_BUSY = BusError(
    errors.SERVER_BUSY,
    "The broker has more to do than it can; the message was not accepted. Send it again in some"
    " seconds.",
)


class Broker:
    """Journal, clock and dice come from outside, so that a simulation can hold them all."""

    def __init__(
        self,
        journal: Journal,
        memory_bytes_max: int,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        dice: Callable[[int], bytes] = secrets.token_bytes,
        *,
        observing: bool = False,
        captured: Callable[[], int] | None = None,
    ) -> None:
        """`captured` tells the LSN up to which somebody has copied the journal: what is beyond
        it is not dropped."""
        self.clock = clock
        self._loop = loop
        self.journal = journal
        self.engine = Engine(journal, memory_bytes_max, dice, observing)
        self.kernel = self.engine.kernel
        self.hub = Hub(self.kernel, self.track, _new_message_id)
        self._turn_ending = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._space_timer: asyncio.TimerHandle | None = None
        self._carrier: Carrier | None = None
        #: Nothing has to be compacted before this segment is begun.
        self._compact_from = 0
        #: A round of compaction goes once through all segments before this one.
        self._round_end = 0
        self._round_freed = 0
        self._round_carried = 0
        #: Connections that wait for room, with the bytes they hold.
        self._turnstile = Turnstile()
        self.commits_total = 0
        self.commit_seconds_total = 0.0
        self._captured = captured
        self._replay()
        self._check_space()
        self._pulse: Pulse | None = None
        if observing:
            self._pulse = Pulse(self.engine, journal, loop, self.hub, self.begin_turn)

    def _replay(self) -> None:
        self.hub.now_ms = self.clock()
        self.engine.begin_replay(self.hub.now_ms)
        try:
            self.journal.replay(self.engine.replay)
        except UnknownKindError as error:
            raise JournalNewer(str(error)) from error
        self.engine.finish_replay(self.hub.now_ms)

    def track(self, error: BusError, subject: str) -> str:
        """Give a refusal's text its tracking id; the log has it under the same one."""
        tracking_id = new_tracking_id()
        log.info(
            "refused",
            extra={
                "tracking_id": tracking_id,
                "condition": error.kind.condition,
                "subject": subject,
                "text": error.text,
            },
        )
        return tracked(error.text, tracking_id, subject, time_to_iso(self.hub.now_ms))

    # --- turns ------------------------------------------------------------------------

    def begin_turn(self) -> int:
        """Something happened: take the time, and see that the turn ends properly."""
        if not self._turn_ending:
            self._turn_ending = True
            self.hub.now_ms = self.clock()
            self._loop.call_soon(self._end_turn)
        return self.hub.now_ms

    def shift(self, step_ms: int) -> None:
        """The clock was set by so much: move along what counts elapsed time."""
        self.begin_turn()
        # Also for whatever else this turn brings.
        self.hub.now_ms = self.clock()
        shift(self.engine, step_ms, self.hub.now_ms)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = 0

    def _end_turn(self) -> None:
        self._turn_ending = False
        hub = self.hub
        hub.now_ms = now_ms = self.clock()
        kernel = self.kernel
        journal = self.journal
        if journal.failed is None:
            try:
                if kernel.deadline_ms() and kernel.deadline_ms() <= now_ms:
                    kernel.run_timers(now_ms)
                kernel.dispatch_ready(now_ms)
                self._commit()
            except JournalFailed:
                pass  # a record could not be read back: see below
            except Exception as error:
                self._stop(error)
        if journal.failed is not None and not journal.in_flight:
            self._fail(hub.replies, journal.failed)
        self._write_out()
        self._let_in()
        # A timer that is never run would come again at once, for ever.
        if journal.failed is None:
            self._set_timer()

    def _write_out(self) -> None:
        dirty = self.hub.dirty
        self.hub.dirty = []
        for bridge in dirty:
            bridge.is_dirty = False
            bridge.write_out()
        # Writing lets stalled receivers take more. That is for another turn, or one that reads
        # fast would have the broker to itself for as long as there are messages.
        if self.hub.dirty or (self.kernel.has_ready and self.journal.failed is None):
            self.begin_turn()

    def _set_timer(self) -> None:
        deadline_ms = self.kernel.deadline_ms()
        if deadline_ms == self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = deadline_ms
        if deadline_ms:
            # Never longer than a day: event loops do not wait for years.
            delay_s = min(max(0, deadline_ms - self.clock()), DAY_MS) / 1000
            self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_ms = 0
        self.begin_turn()

    # --- commits ----------------------------------------------------------------------

    def _commit(self) -> None:
        """Send what has gathered to disk, unless a commit is on its way already."""
        journal = self.journal
        if journal.in_flight:
            return
        self._compact()
        sealed = self.kernel.seal()
        replies = self.hub.replies
        if not journal.pending_count:
            # Nothing to wait for: what was asked changed nothing.
            if replies.any:
                self.hub.replies = Replies()
                replies.release()
            if self._carrier is not None:
                # Nothing had to be carried: no commit will come that goes on with it.
                self._drop_carried()
                self.begin_turn()
            return
        if self.kernel.observer is not None:
            self.kernel.observer.write()
        self.hub.replies = Replies()
        started = time.perf_counter()

        def done(error: Exception | None) -> None:
            self.commits_total += 1
            self.commit_seconds_total += time.perf_counter() - started
            self._committed(sealed, replies, error)

        try:
            journal.commit(self.hub.now_ms, done)
        except JournalFailed as error:
            # Its other work, on the other thread, failed just now.
            done(error)

    def _committed(self, sealed: Sealed, replies: Replies, error: Exception | None) -> None:
        self.hub.now_ms = self.clock()
        if error is not None:
            self._fail(replies, error)
        else:
            self.kernel.committed(sealed)
            replies.release()
            self._check_space()
            self._drop_carried()
        self.begin_turn()

    def _fail(self, replies: Replies, error: Exception) -> None:
        """The disk let us down. Nobody knows what is on it, so nothing is accepted any more.

        What had been acknowledged before is safe; a restart reads what is there.
        """
        failed = self.hub.failed
        if failed is None:
            log.critical("the journal failed; restart the broker", exc_info=error)
            failed = errors.disk_failed(error)
            self.hub.refusing = self.hub.failed = failed
        late, self.hub.replies = self.hub.replies, Replies()
        replies.fail(failed)
        if late is not replies:
            late.fail(failed)
        # Those who wait for a message would wait for nothing.
        for stream in self.engine.streams():
            for receiver in list(stream.attached):
                receiver.detach(failed)

    def _stop(self, error: Exception) -> None:
        """A fault of ours, in what streams do unasked: accept nothing more, and say so.

        It may have come in the middle of a change, half of which must not be committed (ADR 12).
        """
        log.critical("the broker met an error of its own; restart it", exc_info=error)
        self.give_up(error, errors.broken(error))
        self.begin_turn()

    def give_up(self, error: Exception, told: BusError) -> None:
        """Accept nothing any more; what is not on its way to disk yet never goes there."""
        self.hub.refusing = self.hub.failed = told
        self.journal.give_up(error)

    def _check_space(self) -> None:
        """Refuse sends while the disk is full; settlements go on, and make room."""
        is_full = not self.journal.has_reserve()
        self.kernel.set_full(is_full)
        if is_full:
            if self.hub.refusing is None:
                log.error("the disk is full: sends are refused until there is room")
            self.hub.refusing = BusError(
                errors.SERVER_BUSY,
                "The broker's disk is full; nothing new is accepted. Free some space, or"
                " receive messages, and send again.",
            )
            self._watch_space()
        elif self.hub.refusing is not None and self.journal.failed is None:
            log.warning("the disk has room again: sends are accepted")
            self.hub.refusing = None

    def _watch_space(self) -> None:
        """Look again soon: a refused send commits nothing, so no commit would notice the room."""
        if self._space_timer is None:
            self._space_timer = self._loop.call_later(_SPACE_RETRY_S, self._look_for_space)

    def _look_for_space(self) -> None:
        self._space_timer = None
        if self.journal.failed is None:
            # A full disk gets no new segment: what was received meanwhile is what counts.
            self._compact_from = 0
            self.begin_turn()
            self._check_space()

    def why_refusing(self) -> str | None:
        """Say why nothing is accepted; None while things are."""
        return None if self.hub.refusing is None else self.hub.refusing.text

    # --- back-pressure ----------------------------------------------------------------

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether so many bytes of a connection can be taken in now."""
        pending_bytes = self.journal.pending_bytes
        if pending_bytes < PENDING_BYTES_MAX:
            return True
        if self.journal.failed is not None:
            return True  # nothing waits any more: what comes is refused
        return size_bytes <= _SMALL_BYTES and pending_bytes < 2 * PENDING_BYTES_MAX

    def hold(self, mark: int, size_bytes: int, resume: Callable[[], None]) -> int:
        """Call `resume` when there is room, and give the connection's new mark (`Turnstile`);
        0 if too much is held already."""
        if self._turnstile.held_bytes + size_bytes > _HELD_BYTES_MAX:
            return 0
        return self._turnstile.hold(mark, size_bytes, resume)

    def _let_in(self) -> None:
        turnstile = self._turnstile
        while turnstile and self.has_room(turnstile.next_bytes()):
            turnstile.let_in()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Refuse sends meanwhile; all else goes on."""
        refusing = self.hub.refusing
        self.hub.refusing = refusing or _BUSY
        try:
            yield
        finally:
            self.hub.refusing = refusing

    async def durable(self) -> None:
        """Wait until everything done so far is on disk."""
        done: asyncio.Future[None] = self._loop.create_future()

        def reply(error: BusError | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.hub.replies.call(reply)
        self.begin_turn()
        await done

    # --- compaction -------------------------------------------------------------------

    def _compact(self) -> None:
        """Carry what is live out of the oldest segments while there is too much garbage."""
        if self._carrier is None:
            # Only a new segment can have made a difference, as long as the disk is not full.
            if self.journal.current_segment < self._compact_from:
                return
            segments = self.journal.segments()
            if len(segments) < (2 if self.kernel.is_full else 3) or not self._has_garbage(segments):
                self._compact_from = self.journal.current_segment + 1
                return
            if self._captured and self._captured() < self.journal.last_lsn(segments[0][0]):
                return
            self._begin_carrying(segments)
        if self._carrier is not None and not self._carrier.finished:
            self._carrier.step(_CARRY_STEP_BYTES, self.hub.now_ms)

    def _begin_carrying(self, segments: list[tuple[int, int]]) -> None:
        """Take on the oldest segment, unless the last round brought too little."""
        number, size = segments[0]
        if number >= self._round_end:
            in_vain = 2 * self._round_carried > self._round_freed
            self._round_end = self.journal.current_segment
            self._round_freed = self._round_carried = 0
            if in_vain:
                # Most of it lives, whatever was thought: not again before as much has come.
                self._compact_from = self.journal.current_segment + len(segments)
                return
        self._round_freed += size
        self._carrier = Carrier(self.engine, number + 1)

    def _drop_carried(self) -> None:
        """Give up what was carried from, once all that lived in it is on disk elsewhere."""
        carrier = self._carrier
        if carrier is not None and carrier.finished and self.journal.failed is None:
            self.journal.drop_before(carrier.segment)
            self._round_carried += carrier.carried_bytes
            self._carrier = None

    def _has_garbage(self, segments: list[tuple[int, int]]) -> bool:
        total = sum(size for _, size in segments)
        kept_bytes = self.engine.kept_bytes()
        if self.kernel.is_full:
            # Whatever makes room is welcome, but what lives must fit into what is left. A little
            # is risked for a whole segment: a disk without room for one is seldom full to the
            # last byte. Who receives in order leaves garbage at the front, however much lives.
            number, size = segments[0]
            carried_bytes = min(kept_bytes, size, self.engine.kept_before((number + 1) << 32))
            room_bytes = max(self.journal.space_left() // 2, _CARRY_STEP_BYTES)
            is_worth_it = total > 2 * kept_bytes or size > 2 * carried_bytes
            return is_worth_it and carried_bytes <= room_bytes
        return total > 2 * kept_bytes + _GARBAGE_BYTES_MIN

    # --- stopping ---------------------------------------------------------------------

    def close(self) -> None:
        """Put on disk whatever is left, and let go of the directory."""
        for timer in (self._timer, self._space_timer):
            if timer is not None:
                timer.cancel()
        if self._pulse is not None:
            self._pulse.stop()
        if self.journal.failed is None:
            self.kernel.seal()
            if self.kernel.observer is not None:
                self.kernel.observer.write()
                take_census(self.engine)
            self.journal.commit_now(self.clock())
        self.journal.close()


def _new_message_id() -> str:
    return secrets.token_hex(16)
