"""A made-up capture of any size, as the broker would have written it, and ways to spoil it.

Enters: a directory, a number of rows, a seed. Leaves: Parquet files whose story is known to
the message: queues that are sent to, read and settled, dead letters, an outage's backlog,
censuses, heartbeats. The same arguments give the same files. It must not use the code that
it helps to test: only the column names are shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twinbus.capture.schema import SCHEMA

DAY_US = 86_400_000_000
START_US = 1_790_000_000_000_000 // DAY_US * DAY_US + 22 * 3_600_000_000
NODE = "node-a"
QUEUES = ("orders", "invoices", "audit/events")
BACKLOG = "primary/x-servicebus-transfer/0"
DEAD_LETTERS = "/$DeadLetterQueue"
# (reason, description) of dead letters, in turn.
DEATHS = (
    ("MaxDeliveryCountExceeded", "Message could not be consumed after 10 delivery attempts."),
    ("TTLExpiredException", "The message expired and was dead lettered."),
    ("bad order", "Order 4711 of customer 'ACME' was refused: code 0x1f."),
)
_NUMBERS = (
    "lsn", "part", "parts", "ts", "stream", "seq", "count", "size", "units", "delivery_count",
    "enqueued_ts", "first_delivered_ts", "epoch",
)  # fmt: skip
# Stands for null in the columns of numbers; none of them is ever this negative.
NULL = -(2**62)
_INT32 = {"part", "parts", "count", "units", "delivery_count"}


@dataclass
class Story:
    """What the capture tells, for tests to compare with."""

    rows: int = 0
    files: list[Path] = field(default_factory=list)
    sent: int = 0
    completed: int = 0
    dead_lettered: int = 0
    backlogged: int = 0
    last_lsn: int = 0
    # Of each stream: what is in it now, as sequence numbers.
    present: dict[int, set[int]] = field(default_factory=dict)


class _Writer:
    """Collects rows as arrays and writes a file whenever there are enough of them."""

    def __init__(self, root: Path, rows_per_file: int, story: Story, namespace: str) -> None:
        self._root, self._limit, self._story = root, rows_per_file, story
        self._namespace = namespace
        self._names: dict[int, str] = {}
        self._blocks: list[dict[str, object]] = []
        self._pending = 0
        self._lsn = 1

    def name(self, stream: int, entity: str) -> None:
        self._names[stream] = entity

    def add(
        self, op: str, ts: int, *, stream: int = NULL, one_record: bool = True, **columns: object
    ) -> None:
        """Add the rows of one record, or of one record each."""
        n = max((len(c) for c in columns.values() if isinstance(c, np.ndarray)), default=1)
        block: dict[str, object] = dict.fromkeys(_NUMBERS, NULL)
        block |= {"count": 1, "ts": ts, "stream": stream, **columns}
        block["op"], block["n"] = op, n
        if one_record:
            block.update(lsn=self._lsn, part=np.arange(n), parts=n)
            self._lsn += 1
        else:
            block.update(lsn=np.arange(self._lsn, self._lsn + n), part=0, parts=1)
            self._lsn += n
        self._blocks.append(block)
        self._pending += n
        if self._pending >= self._limit:
            self.flush()

    def flush(self) -> None:
        if not self._blocks:
            return
        table = self._table()
        first, last = table["lsn"][0].as_py(), table["lsn"][-1].as_py()
        day = table["ts"][0].as_py().date().isoformat()
        path = self._root / f"date={day}" / f"{NODE}-{first:020}-{last:020}.parquet"
        write(table, path)
        self._story.files.append(path)
        self._story.rows += table.num_rows
        self._story.last_lsn = last
        self._blocks, self._pending = [], 0

    def _table(self) -> pa.Table:
        lengths = [block["n"] for block in self._blocks]
        columns: dict[str, pa.Array] = {}
        for name in _NUMBERS:
            parts = [np.broadcast_to(b[name], (b["n"],)) for b in self._blocks]
            numbers = np.concatenate(parts).astype(np.int64)
            array = pa.array(numbers, mask=numbers == NULL)
            columns[name] = array.cast(pa.int32()) if name in _INT32 else array
        for name in ("op", "consumer", "reason", "description", "correlation"):
            values = [block.get(name) for block in self._blocks]
            columns[name] = _repeated(values, lengths)
        entities = [self._names.get(int(block["stream"])) for block in self._blocks]
        columns["entity"] = _repeated(entities, lengths)
        spaces = [self._namespace if entity else None for entity in entities]
        columns["namespace"] = _repeated(spaces, lengths)
        with_id = np.repeat([b["op"] == "enqueued" for b in self._blocks], lengths)
        ids = pc.binary_join_element_wise("m", columns["stream"].cast(pa.string()),
                                          columns["seq"].cast(pa.string()), "-")  # fmt: skip
        columns["message_id"] = pc.if_else(pa.array(with_id), ids, pa.scalar(None, pa.string()))
        columns["session_id"] = pa.nulls(len(ids), pa.string())
        return pa.table([columns[f.name].cast(f.type) for f in SCHEMA], schema=SCHEMA)


def _repeated(values: list[object], lengths: list[object]) -> pa.Array:
    known = sorted({str(value) for value in values if value is not None})
    index = {name: number for number, name in enumerate(known)}
    codes = [index.get(str(value), -1) if value is not None else -1 for value in values]
    wide = np.repeat(np.array(codes, dtype=np.int32), np.array(lengths, dtype=np.int64))
    return pa.DictionaryArray.from_arrays(
        pa.array(wide, mask=wide < 0), pa.array(known, pa.string())
    )


def write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd", row_group_size=262_144)


def generate(
    root: Path,
    rows: int,
    *,
    rows_per_file: int = 500_000,
    burst: int = 1000,
    namespace: str = "primary",
    files_left_out: int = 0,
) -> Story:
    """Write about `rows` rows under `root`. The first `files_left_out` files
    are removed again, as retention would."""
    story = Story()
    out = _Writer(root, rows_per_file, story, namespace)
    streams = _streams(out)
    out.add("started", START_US)
    _census(out, story, START_US, streams)
    for step, ts in _steps(rows, burst):
        stream = streams[step % len(QUEUES)]
        _burst(out, story, ts, stream, burst, step)
        if step % 50 == 49:
            out.add("heartbeat", ts)
            _outage(out, story, ts, streams[-1], burst // 10)
        if step % 400 == 399:
            _census(out, story, ts, streams)
        if story.rows + out._pending >= rows:
            break
    _census(out, story, ts + 1000, streams)
    out.add("heartbeat", ts + 2000)
    out.flush()
    for path in story.files[:files_left_out]:
        path.unlink()
    del story.files[:files_left_out]
    return story


def _steps(rows: int, burst: int) -> Iterator[tuple[int, int]]:
    # Four hours over midnight, whatever the size.
    total = max(2, rows // (3 * burst))
    for step in range(total * 2):
        yield step, START_US + step * (4 * 3_600_000_000 // total) // 1000 * 1000


def _streams(out: _Writer) -> list[int]:
    streams = []
    for number, entity in enumerate((*QUEUES, BACKLOG), start=1):
        stream = number << 2
        out.name(stream, entity)
        out.name(stream | 1, entity + DEAD_LETTERS)
        streams.append(stream)
    return streams


def _census(out: _Writer, story: Story, ts: int, streams: list[int]) -> None:
    for stream in [s | which for s in streams for which in (0, 1)]:
        present = np.array(sorted(story.present.get(stream, set())), dtype=np.int64)
        if not len(present):
            out.add("present", ts, stream=stream, count=0)
            continue
        starts = np.flatnonzero(np.r_[True, np.diff(present) != 1])
        counts = np.diff(np.r_[starts, len(present)])
        out.add("present", ts, stream=stream, seq=present[starts], count=counts)


def _burst(out: _Writer, story: Story, ts: int, stream: int, burst: int, step: int) -> None:
    """`burst` messages come in; those that came last time are handed out and settled, but
    for a few that stay and a few that die."""
    present = story.present.setdefault(stream, set())
    first = step // len(QUEUES) * burst + 1
    seqs = np.arange(first, first + burst)
    sizes = 200 + (seqs * 7919) % 70_000
    out.add("enqueued", ts, stream=stream, one_record=False, seq=seqs, size=sizes, enqueued_ts=ts)
    out.add("sent", ts, stream=stream, count=burst, size=int(sizes.sum()),
            units=int(_units(sizes).sum()), consumer=f"sender-{step % 4}")  # fmt: skip
    story.sent += burst
    before = seqs - burst
    ready = before[(before > 0) & (before % 997 != 0)]
    present.update(seqs.tolist())
    if not len(ready):
        out.add("received_nothing", ts, stream=stream, units=1, consumer="receiver-0")
        return
    client = f"receiver-{step % 3}"
    delivered, settled = ts + 5_000, ts + 12_000 + step % 90 * 1000
    sizes = 200 + (ready * 7919) % 70_000
    enqueued = ts - 60_000_000 - ready % 1000 * 1000
    again = (ready % 211 == 0).astype(np.int64)
    out.add("delivered", delivered, stream=stream, seq=ready, size=sizes, units=_units(sizes),
            delivery_count=again, consumer=client)  # fmt: skip
    if again.any():
        out.add("lock_expired", delivered, stream=stream, seq=ready[again == 1])
    out.add("settled", settled, stream=stream, count=len(ready), units=len(ready), consumer=client)
    dies = ready % 499 == 0
    times = {"enqueued_ts": enqueued, "first_delivered_ts": enqueued + ready % 5000 * 1000}
    done = {name: value[~dies] for name, value in times.items()}
    out.add("completed", settled, stream=stream, seq=ready[~dies], size=sizes[~dies], **done)
    story.completed += int((~dies).sum())
    present.difference_update(ready.tolist())
    for seq, size in zip(ready[dies].tolist(), sizes[dies].tolist(), strict=True):
        _die(out, story, settled, stream, seq, size)


def _die(out: _Writer, story: Story, ts: int, stream: int, seq: int, size: int) -> None:
    entity = QUEUES[(stream >> 2) - 1]
    story.dead_lettered += 1
    reason, description = DEATHS[story.dead_lettered % len(DEATHS)]
    out.add("dead_lettered", ts, stream=stream, seq=seq, size=size, enqueued_ts=ts - 60_000_000)
    grave = story.present.setdefault(stream | 1, set())
    number = story.dead_lettered
    out.add("enqueued", ts, stream=stream | 1, seq=number, size=size, enqueued_ts=ts,
            reason=reason, description=description, correlation=entity)  # fmt: skip
    grave.add(number)
    if number % 4 == 0:
        oldest = min(grave)
        grave.remove(oldest)
        out.add("completed", ts + 1000, stream=stream | 1, seq=oldest, size=size,
                enqueued_ts=ts - 3_600_000_000)  # fmt: skip


def _outage(out: _Writer, story: Story, ts: int, stream: int, count: int) -> None:
    """Some messages go through a backlog queue, there and home at once; a few stay."""
    first = story.backlogged + 1
    seqs = np.arange(first, first + count)
    story.backlogged += count
    out.add("enqueued", ts, stream=stream, one_record=False, seq=seqs, size=500, enqueued_ts=ts,
            correlation=QUEUES[0])  # fmt: skip
    out.add("sent", ts, stream=stream, count=count, units=count, size=500 * count,
            consumer="sender-0")  # fmt: skip
    out.add("delivered", ts + 1000, stream=stream, seq=seqs, size=500, units=1, delivery_count=0,
            consumer="syphon")  # fmt: skip
    home = seqs[seqs % 50 != 0]
    out.add("completed", ts + 2000, stream=stream, seq=home, size=500, enqueued_ts=ts,
            first_delivered_ts=ts + 1000)  # fmt: skip
    out.add("received_nothing", ts + 3000, stream=stream, units=1, consumer="syphon")
    story.present.setdefault(stream, set()).update(set(seqs.tolist()) - set(home.tolist()))


def _units(sizes: np.ndarray) -> np.ndarray:
    return np.maximum(1, -(-sizes // 65_536))
