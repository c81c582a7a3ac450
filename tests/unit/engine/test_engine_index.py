"""The index of a stream against a dict, and its housekeeping."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twinbus.engine.index import (
    ACTIVE,
    CHUNK_SIZE,
    DEFERRED,
    GONE,
    LOCKED,
    NEVER,
    RESERVED,
    Index,
)

states = st.sampled_from([ACTIVE, LOCKED, DEFERRED])
times = st.integers(0, 20)
# Steps that stay in a chunk, cross into the next one, and leap over some.
gaps = st.sampled_from([1, 1, 1, 1, 2, 255, 511, 512, 513, 2_000])


@dataclass
class Entry:
    state: int
    location: int
    size: int
    enqueued_ms: int
    expires_ms: int
    payload: bytes | None


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = Index()
        self.entries: dict[int, Entry] = {}
        self.next_seq = 1
        self.now_ms = 0
        self.location = 0

    def _put(self, seq: int, state: int, size: int, expires_ms: int, kept: bool) -> None:
        self.location += 10
        payload = bytes(size) if kept else None
        entry = Entry(state, self.location, size, self.now_ms, expires_ms, payload)
        self.index.put(seq, state, self.location, size, self.now_ms, expires_ms, payload)
        known = self.entries.get(seq)
        if known is not None and not expires_ms and known.expires_ms:
            entry.expires_ms = known.expires_ms
            self.index.note_expiry(seq, known.expires_ms)
        self.entries[seq] = entry

    @rule(gap=gaps, count=st.sampled_from([1, 3, 600]), state=states, expires_ms=times,
          kept=st.booleans())  # fmt: skip
    def put_new(self, gap: int, count: int, state: int, expires_ms: int, kept: bool) -> None:
        self.next_seq += gap - 1
        for _ in range(count):
            self._put(self.next_seq, state, 3, expires_ms, kept)
            self.next_seq += 1

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), state=states, kept=st.booleans(), expires_ms=times)
    def put_again(self, data: st.DataObject, state: int, kept: bool, expires_ms: int) -> None:
        self._put(data.draw(st.sampled_from(sorted(self.entries))), state, 5, expires_ms, kept)

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), state=states)
    def set_state(self, data: st.DataObject, state: int) -> None:
        seq = data.draw(st.sampled_from(sorted(self.entries)))
        entry = self.entries[seq]
        if entry.state in (DEFERRED, RESERVED) and entry.expires_ms:
            self.index.note_expiry(seq, entry.expires_ms)
        self.index.set_state(seq, state)
        entry.state = state

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), count=st.sampled_from([1, 2, 700]))
    def remove(self, data: st.DataObject, count: int) -> None:
        first = data.draw(st.sampled_from(sorted(self.entries)))
        for seq in [s for s in sorted(self.entries) if s >= first][:count]:
            payload = self.entries.pop(seq).payload
            assert self.index.remove(seq) == (0 if payload is None else len(payload))
        assert self.index.remove(first) == 0

    @rule(state=states, from_seq=st.integers(1, 3_000), reach=st.integers(0, 3_000))
    def find_state(self, state: int, from_seq: int, reach: int) -> None:
        found = [s for s, e in self.entries.items() if e.state == state]
        wanted = min((s for s in found if from_seq <= s <= from_seq + reach), default=0)
        assert self.index.find_state(state, from_seq, from_seq + reach) == wanted

    def _run(self, state: int, from_seq: int, seq_max: int) -> tuple[int, int]:
        """The first neighbours in a state that share a chunk."""
        found = {s for s, e in self.entries.items() if e.state == state and s <= seq_max}
        first = min((s for s in found if s >= from_seq), default=0)
        last = first
        while first and last + 1 in found and (last + 1) % CHUNK_SIZE:
            last += 1
        return first, last

    @rule(state=states, from_seq=st.integers(1, 3_000), reach=st.integers(0, 3_000))
    def find_run(self, state: int, from_seq: int, reach: int) -> None:
        first, last = self.index.find_run(state, from_seq, from_seq + reach)
        assert (first, last) == self._run(state, from_seq, from_seq + reach)
        if first:
            wanted = sum(self.entries[seq].size for seq in range(first, last + 1))
            assert self.index.bytes_between(first, last) == wanted

    @rule(first=st.integers(1, 3_000), reach=st.integers(0, 3_000), back=st.booleans())
    def change_states(self, first: int, reach: int, back: bool) -> None:
        before, after = (RESERVED, LOCKED) if back else (LOCKED, RESERVED)
        self.index.change_states(first, first + reach, before, after)
        for seq, entry in self.entries.items():
            if first <= seq <= first + reach and entry.state == before:
                entry.state = after
                if back and entry.expires_ms:
                    self.index.note_expiry(seq, entry.expires_ms)
                assert self.index.state(seq) == after

    @rule(state=st.sampled_from([ACTIVE, RESERVED]), from_seq=st.integers(1, 3_000))
    def remove_run(self, state: int, from_seq: int) -> None:
        first, last = self._run(state, from_seq, self.next_seq)
        if first:
            gone = [self.entries.pop(seq).payload for seq in range(first, last + 1)]
            freed = sum(len(payload) for payload in gone if payload is not None)
            assert self.index.remove_run(first, last) == freed

    @rule(from_seq=st.integers(0, 3_000))
    def next_present(self, from_seq: int) -> None:
        wanted = min((s for s in self.entries if s >= from_seq), default=0)
        assert self.index.next_present(from_seq) == wanted

    @rule(
        passed_ms=st.integers(0, 5),
        seq_max=st.integers(0, 3_000),
        count_max=st.integers(1, 5) | st.just(NEVER),
    )
    def expired(self, passed_ms: int, seq_max: int, count_max: int) -> None:
        self.now_ms += passed_ms
        wanted = [
            seq
            for seq, e in sorted(self.entries.items())
            if e.state == ACTIVE and 0 < e.expires_ms <= self.now_ms and seq <= seq_max
        ]
        wanted = wanted[:count_max]
        assert self.index.expired(self.now_ms, seq_max, count_max) == wanted
        for seq in wanted:
            self.index.remove(seq)
            del self.entries[seq]

    @rule(share=st.floats(0, 1))
    def move_low_ones(self, share: float) -> None:
        """As compaction does."""
        limit = round(share * self.location)
        wanted = [seq for seq, e in sorted(self.entries.items()) if e.location < limit]
        size = sum(self.entries[seq].size for seq in wanted)
        assert self.index.bytes_before(limit) == (len(wanted), size)
        assert self.index.located_before(limit) == wanted
        for seq in wanted:
            entry = self.entries[seq]
            self._put(seq, entry.state, entry.size, entry.expires_ms, entry.payload is not None)

    @invariant()
    def holds_what_it_should(self) -> None:
        index = self.index
        assert index.live == len(self.entries)
        assert index.bytes == sum(e.size for e in self.entries.values())
        for seq in (*list(self.entries)[:5], *list(self.entries)[-5:]):
            entry = self.entries[seq]
            chunk = index.chunk(seq)
            assert chunk is not None
            at = seq & (CHUNK_SIZE - 1)
            expires = 0 if chunk.expires is None else chunk.expires[at]
            assert (index.state(seq), chunk.locations[at], chunk.sizes[at]) == (
                entry.state, entry.location, entry.size,
            )  # fmt: skip
            assert (chunk.enqueued[at], expires) == (entry.enqueued_ms, entry.expires_ms)
            assert chunk.payloads[at] == entry.payload
        assert index.state(self.next_seq) == GONE

    @invariant()
    def knows_when_to_look(self) -> None:
        """No message that can expire does so before the index says that one may."""
        earliest = min(
            (
                e.expires_ms
                for e in self.entries.values()
                if e.expires_ms and e.state not in (DEFERRED, RESERVED)
            ),
            default=NEVER,
        )
        assert self.index.expires_min <= earliest

    @invariant()
    def keeps_no_empty_chunk_but_the_last(self) -> None:
        assert self.index.order == sorted(self.index.chunks)
        empty = [c for c in self.index.chunks.values() if c.live == 0]
        assert empty in ([], [self.index.last])


TestIndexModel = IndexMachine.TestCase
TestIndexModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_million_messages_take_little_memory() -> None:
    """Some thirty bytes a message, as arrays, and no object for each."""
    index = Index()
    for seq in range(1, 50_001):
        index.put(seq, ACTIVE, seq * 100, 50, 1, 0, None)
    arrays = sum(
        len(c.states) + 8 * len(c.locations) + 4 * len(c.sizes) + 8 * len(c.enqueued)
        + 8 * len(c.payloads)
        for c in index.chunks.values()
    )  # fmt: skip
    assert arrays / 50_000 < 32
    for seq in range(1, 50_001):
        index.remove(seq)
    assert len(index.chunks) <= 1
