"""A journal against a list: any sequence of appends, commits, crashes and drops gives the same."""

from __future__ import annotations

from pathlib import Path
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from journal_disks import MemoryDisk, WatchedDisk, power_cut

from twinbus.journal import Journal, read_segments

DIRECTORY = Path("journal")
SEGMENT_BYTES = 2048
Record = tuple[int, int, int, bytes]
records = st.one_of(st.binary(max_size=40), st.integers(0, 5000).map(lambda n: b"r" * n))


class JournalMachine(RuleBasedStateMachine):
    """`stored` is what must be replayed; `pending` what must not, until it is committed."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[Record] = []
        self.pending: list[tuple[int, int, bytes]] = []
        self.next_lsn = 1
        self.time_ms = 0
        self.disk = WatchedDisk(MemoryDisk())
        self.open()

    def open(self) -> None:
        self.found: list[Record] = []
        self.journal = Journal.open(DIRECTORY, disk=self.disk, segment_bytes=SEGMENT_BYTES)
        self.journal.replay(lambda *record: self.found.append(record))

    def stored_if_committed(self) -> list[Record]:
        batch = [(lsn, location, self.time_ms, data) for lsn, location, data in self.pending]
        return self.stored + batch

    def forget_pending(self) -> None:
        self.next_lsn -= sum(lsn > 0 for lsn, _, _ in self.pending)
        self.pending = []

    @rule(head=records, body=records)
    def append(self, head: bytes, body: bytes) -> None:
        self.pending.append((self.next_lsn, self.journal.append(head, body), head + body))
        self.next_lsn += 1

    @rule(record=records)
    def append_carried(self, record: bytes) -> None:
        self.pending.append((0, self.journal.append_carried(record), record))

    @rule(passed_ms=st.integers(0, 1000))
    def commit(self, passed_ms: int) -> None:
        self.time_ms += passed_ms
        self.journal.commit_now(self.time_ms)
        self.stored = self.stored_if_committed()
        self.pending = []

    @rule()
    def close_and_open(self) -> None:
        self.journal.close()
        self.forget_pending()
        self.open()
        assert self.found == self.stored

    @rule()
    def kill_and_open(self) -> None:
        assert isinstance(self.disk.inner, MemoryDisk)
        self.disk.inner.kill_holders()
        self.forget_pending()
        self.open()
        assert self.found == self.stored

    @precondition(lambda self: self.pending)
    @rule(random=st.randoms(use_true_random=False), share=st.floats(0, 1))
    def cut_power_while_committing(self, random: Random, share: float) -> None:
        """A batch is there as a whole or not at all."""
        before = len(self.disk.log)
        self.journal.commit_now(self.time_ms)
        place = before + round(share * (len(self.disk.log) - before))
        files = power_cut(self.disk, place, random)
        self.disk = WatchedDisk(MemoryDisk(files), before=files)
        self.open()
        if self.found == self.stored_if_committed():
            self.stored, self.pending = self.found, []
        self.forget_pending()
        assert self.found == self.stored

    @precondition(lambda self: self.journal.segments())
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        numbers = [number for number, _ in self.journal.segments()]
        oldest = data.draw(st.sampled_from(numbers))
        self.journal.drop_before(oldest)
        self.stored = [record for record in self.stored if record[1] >> 32 >= oldest]

    @precondition(lambda self: self.stored or self.pending)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        everything = [(location, record) for _, location, _, record in self.stored]
        everything += [(location, record) for _, location, record in self.pending]
        location, record = data.draw(st.sampled_from(everything))
        assert self.journal.read(location, len(record)) == record

    @rule(share=st.floats(0, 1))
    def read_beside(self, share: float) -> None:
        assert list(read_segments(DIRECTORY, disk=self.disk)) == self.stored
        from_lsn = 1 + round(share * self.next_lsn)
        facts = [entry for entry in read_segments(DIRECTORY, from_lsn, disk=self.disk) if entry[0]]
        assert facts == [record for record in self.stored if record[0] >= from_lsn]

    @invariant()
    def counts_agree(self) -> None:
        assert self.journal.next_lsn == self.next_lsn
        assert self.journal.pending_count == len(self.pending)
        assert self.journal.pending_bytes == sum(4 + len(data) for _, _, data in self.pending)
        assert not self.journal.in_flight
        assert self.journal.failed is None


TestJournalModel = JournalMachine.TestCase
TestJournalModel.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
