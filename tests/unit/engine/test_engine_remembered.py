"""Duplicate detection (E7): which ids are kept while the journal is read."""

from __future__ import annotations

from engine_kit import Kit, ListLog
from hypothesis import example, given
from hypothesis import strategies as st

from twinbus.core.units import DAY_MS, MINUTE_MS
from twinbus.engine import records
from twinbus.engine.engine import Engine
from twinbus.engine.remembered import RememberedIds

WINDOW_MS = 10 * MINUTE_MS
START_MS = 1_700_000_000_000


def description(window_ms: int) -> bytes:
    """The record of a queue, the first entity that there is."""
    kit = Kit()
    kit.queue(
        requires_duplicate_detection=True, duplicate_detection_history_time_window_ms=window_ms
    )
    return kit.log.records[-1][1]


SHORT = description(20_000)


def seen(at_ms: int, message_id: bytes) -> bytes:
    return records.remembered(4, at_ms, message_id)


def read(history: list[tuple[int, bytes]], now_ms: int) -> Engine:
    """An engine that read records, each with the time of its batch."""
    engine = Engine(ListLog(), 0, bytes)
    engine.begin_replay(now_ms)
    for number, (time_ms, record) in enumerate(history, 1):
        engine.replay(number, number << 8, time_ms, record)
    return engine


def known(engine: Engine, now_ms: int) -> dict[bytes, int]:
    """When each id was seen."""
    engine.finish_replay(now_ms)
    history = engine.namespace("test", now_ms).queue("q").history
    assert history is not None
    return history.known()


def test_e7_ids_that_are_too_old_are_not_kept_while_the_journal_is_read() -> None:
    second = [START_MS + 1_000 * n for n in range(20_000)]
    ids = [(at_ms, seen(at_ms, b"%032d" % at_ms)) for at_ms in second]
    engine = read([(START_MS, description(WINDOW_MS)), *ids], second[-1])
    held = list(engine._remembered[4])
    assert len(held) == WINDOW_MS // 1_000
    assert list(known(engine, second[-1]).values()) == second[-len(held) :]
    # Compaction may have put the description behind them: then the longest window counts.
    days = [START_MS + 60_000 * n for n in range(20_000)]
    ids = [(at_ms, seen(at_ms, b"%032d" % at_ms)) for at_ms in days]
    engine = read(ids, days[-1])
    assert len(list(engine._remembered[4])) == 7 * DAY_MS // 60_000


_STEPS = st.sampled_from([0, 1, 19_999, 20_000, 20_001, -1, -20_000, -DAY_MS, DAY_MS, 8 * DAY_MS])


@given(
    events=st.lists(st.tuples(_STEPS, st.integers(0, 30_000), st.integers(0, 9)), max_size=40),
    described_at=st.integers(0, 40),
    now_step=_STEPS,
)
@example(events=[(0, 0, 1), (DAY_MS, 0, 2)], described_at=0, now_step=-DAY_MS)
@example(events=[(0, 0, 1), (-DAY_MS, 0, 2), (DAY_MS, 0, 3)], described_at=0, now_step=0)
def test_e7_what_is_dropped_early_would_be_dropped_in_the_end(
    events: list[tuple[int, int, int]], described_at: int, now_step: int
) -> None:
    """Whatever the clock did meanwhile, and wherever the description was found."""
    history: list[tuple[int, bytes]] = []
    time_ms = START_MS
    for step_ms, age_ms, number in events:
        time_ms += step_ms
        history.append((time_ms, seen(time_ms - age_ms, b"%d" % number)))
    history.insert(min(described_at, len(history)), (time_ms, SHORT))
    now_ms = time_ms + now_step
    wanted: dict[bytes, int] = {}
    for _, record in history:
        if record is not SHORT:
            _, at_ms, message_id = records.read_remembered(record)
            if now_ms - at_ms < 20_000:
                wanted[message_id] = min(at_ms, now_ms)
    assert known(read(history, now_ms), now_ms) == wanted


def test_e7_a_window_made_longer_holds_for_what_was_in_it() -> None:
    later_ms = START_MS + DAY_MS
    history = [
        (START_MS, SHORT),
        (START_MS, seen(START_MS, b"over")),
        (START_MS + 20_000, seen(START_MS + 20_000, b"known")),
        (START_MS + 39_999, description(7 * DAY_MS)),
        (later_ms, seen(later_ms, b"new")),
    ]
    assert list(known(read(history, later_ms), later_ms)) == [b"known", b"new"]


def test_e7_an_id_read_from_the_journal_takes_few_bytes() -> None:
    ids = RememberedIds()
    for n in range(1_000):
        ids.add(START_MS + n, b"%032d" % n, n << 32)
    assert len(ids._packed) == 1_000 * (20 + 32)
    ids.drop_until(START_MS + 997)
    assert list(ids) == [(START_MS + n, b"%032d" % n, n << 32) for n in (998, 999)]
