"""The clock was set: what counts elapsed time moves along, so that it lasts as long as it should.

Locks, delays, waits for a session, idle times and the windows of duplicate detection have so
much time left after the step as before it. Times to live and scheduled times are moments of the
world's time, and stay where they are.
"""

from twinbus.engine.engine import Engine
from twinbus.engine.stream import Stream


def shift(engine: Engine, step_ms: int, now_ms: int) -> None:
    """`now_ms` is the new time, `step_ms` how much later than the old one it is."""
    for entity in engine.registry.entities.values():
        entity.accessed_ms += step_ms
        if entity.history is not None:
            entity.history.shift(step_ms)
        for stream in entity.streams.values():
            _shift_stream(stream, step_ms)
    engine.kernel.look_again(now_ms)


def _shift_stream(stream: Stream, step_ms: int) -> None:
    for lock in stream.locked.values():
        lock.locked_until_ms += step_ms
    if stream.sessions is not None:
        for session in stream.sessions.held.values():
            session.locked_until_ms += step_ms
    if step_ms < 0:
        # What had expired, and was passed over, may have time again.
        stream.cursor = 1
    # The order stays as it was, so a heap stays a heap.
    stream.delayed = [(until_ms + step_ms, seq) for until_ms, seq in stream.delayed]
    for consumer in stream.seekers:
        stream.seekers[consumer] += step_ms
