"""The audit's second half: what may be concluded about the messages of one stream.

Enters: ranges of sequence numbers with what happened to them (`audit_reading`) and what is
known of the node (`audit_survey`). Leaves: violations, and counts of what could not be proved
either way. A range of numbers with the same story is one violation. Nothing is concluded from
LSNs that are missing: those are a violation already, and everything they could explain is
counted as undecided.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from twinbus.spark.jobs.audit_survey import Range, Survey

VERDICTS: Final = (
    "node string, stream long, kind string, seq long, count long, lsns string, text string"
)
# Kinds that are counts, not violations.
PRESENT, AFTER_CENSUS, BEFORE_CAPTURE, UNDECIDED = (
    "present", "after_census", "before_capture", "undecided",
)  # fmt: skip
COUNTED: Final = (PRESENT, AFTER_CENSUS, BEFORE_CAPTURE, UNDECIDED)
# So many ranges of one kind in one stream are told apart; the rest is told as a number.
_TOLD_MAX: Final = 1000
_TEXTS: Final = {
    "lost": "accepted, never ended, and not in the last census",
    "invented": "ended or present, but never accepted",
    "accepted_twice": "accepted more than once",
    "settled_twice": "ended more than once",
    "still_present": "ended, yet still in the last census",
}

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Verdict(NamedTuple):
    kind: str
    seq: int | None
    number: int
    lsns: str
    text: str


@dataclass
class Runs:
    """The ranges of one stream, as columns. `census` is 0 for what happened, and a census's
    time for what was present then."""

    lo: Ints
    hi: Ints
    accepted: Ints
    ended: Ints
    lsn_lo: Ints
    lsn_hi: Ints
    census: Ints

    @classmethod
    def from_table(cls, table: pa.Table) -> "Runs":
        columns = {
            name: table[name].fill_null(0).to_numpy().astype(np.int64)
            for name in ("lo", "hi", "accepted", "ended", "lsn_lo", "lsn_hi", "census")
        }
        return cls(**columns)


class _Line:
    """The line of sequence numbers, cut wherever a range begins or ends."""

    def __init__(self, runs: Runs) -> None:
        self.edges: Ints = np.unique(np.concatenate([runs.lo, runs.hi + 1]))
        self._first = np.searchsorted(self.edges, runs.lo)
        self._after = np.searchsorted(self.edges, runs.hi + 1)
        self.widths: Ints = np.diff(self.edges)

    def sum(self, mask: Mask, weight: Ints | int = 1) -> Ints:
        """Of each piece of the line: the sum over the masked ranges that cover it."""
        steps = np.zeros(len(self.edges), dtype=np.int64)
        weights = np.broadcast_to(weight, mask.shape)[mask]
        np.add.at(steps, self._first[mask], weights)
        np.subtract.at(steps, self._after[mask], weights)
        return np.asarray(np.cumsum(steps)[:-1])


class Stream:
    """One stream before the judge."""

    def __init__(self, runs: Runs, survey: Survey, stream: int) -> None:
        self._runs, self._survey = runs, survey
        self._line = line = _Line(runs)
        happened = runs.census == 0
        last, first = survey.last_census, survey.first_census
        closing = last.lsns.lo if last else 0
        before = happened & (runs.lsn_hi < closing)
        self.accepted = line.sum(happened, runs.accepted)
        self.ended = line.sum(happened, runs.ended)
        self.accepted_before = line.sum(before, runs.accepted)
        self.ended_before = line.sum(before, runs.ended)
        self.present = line.sum(runs.census == last.time) if last else np.zeros_like(self.ended)
        self.inherited = np.zeros(len(line.widths), dtype=bool)
        self.forgiven = np.zeros(len(line.widths), dtype=bool)
        if survey.starts_late:
            opening = first.lsns.lo if first else np.iinfo(np.int64).max
            seen = line.sum(happened & (runs.lsn_lo < opening), runs.accepted)
            if first:
                self.inherited = (line.sum(runs.census == first.time) > 0) & (seen == 0)
            early = line.sum(happened & (runs.lsn_hi < opening), runs.ended)
            self.forgiven = (self.accepted == 0) & (early > 0)
        removed = survey.removed.get(stream >> 2)
        self._is_gone = removed is not None and removed < closing

    def verdicts(self) -> Iterator[Verdict]:
        existed = self.accepted + self.inherited
        unborn = (existed == 0) & (self.ended > 0) & ~self.forgiven
        yield from self._told("accepted_twice", existed > 1)
        yield from self._told("settled_twice", self.ended > 1)
        is_present = self.present > 0
        if self._survey.last_census:
            known = (self.accepted_before > 0) | self.inherited
            unborn |= is_present & ~known
            lost = known & (self.ended_before == 0) & ~is_present
            yield from self._told("lost", lost & (not self._is_gone))
            yield from self._told("still_present", is_present & (self.ended_before > 0))
        yield from self._told("invented", unborn)
        after = self.accepted - self.accepted_before + self.ended - self.ended_before
        widths = self._line.widths
        yield _counted(PRESENT, int((widths * is_present).sum()))
        yield _counted(AFTER_CENSUS, int((widths * (after > 0)).sum()))
        yield _counted(BEFORE_CAPTURE, int((widths * (self.inherited | self.forgiven)).sum()))

    def _told(self, kind: str, wrong: Mask) -> Iterator[Verdict]:
        """The pieces that are wrong, neighbours joined; or that nothing can be said."""
        pieces = np.flatnonzero(wrong)
        if not len(pieces):
            return
        begins = np.r_[True, np.diff(pieces) != 1]
        firsts = self._line.edges[pieces[begins]]
        lasts = self._line.edges[pieces[np.r_[begins[1:], True]] + 1] - 1
        for lo, hi in zip(firsts[:_TOLD_MAX].tolist(), lasts[:_TOLD_MAX].tolist(), strict=True):
            where = self._lsns(lo, hi)
            if self._is_decided(kind, lo, hi):
                yield Verdict(kind, lo, hi - lo + 1, where, _text(kind, lo, hi))
            else:
                yield _counted(UNDECIDED, hi - lo + 1)
        rest = int((lasts[_TOLD_MAX:] - firsts[_TOLD_MAX:] + 1).sum())
        if rest:
            undecided = self._survey.unknown or self._survey.overlaps
            text = f"{rest} more messages: {_TEXTS[kind]}."
            yield _counted(UNDECIDED, rest) if undecided else Verdict(kind, None, rest, "", text)

    def _touching(self, lo: int, hi: int) -> Mask:
        runs = self._runs
        return np.asarray((runs.lo <= hi) & (runs.hi >= lo) & (runs.census == 0))

    def _lsns(self, lo: int, hi: int) -> str:
        mask = self._touching(lo, hi)
        pairs = zip(self._runs.lsn_lo[mask].tolist(), self._runs.lsn_hi[mask].tolist(), strict=True)
        return ", ".join(str(Range(*pair)) for pair in sorted(pairs)[:4])

    def _is_decided(self, kind: str, lo: int, hi: int) -> bool:
        survey, runs = self._survey, self._runs
        if kind == "still_present":
            return True
        touching = self._touching(lo, hi)
        if kind in ("accepted_twice", "settled_twice"):
            lows, highs = runs.lsn_lo[touching], runs.lsn_hi[touching]
            return not any(((lows <= o.hi) & (highs >= o.lo)).any() for o in survey.overlaps)
        closing = survey.last_census.lsns.hi if survey.last_census else 0
        births = runs.lsn_lo[touching & (runs.accepted > 0)]
        since = int(births.min()) if kind == "lost" and len(births) else 0
        ends = runs.lsn_hi[touching & (runs.ended > 0)]
        until = int(ends.max()) if kind == "invented" and len(ends) else closing
        return not any(gap.lo <= until and gap.hi >= since for gap in survey.unknown)


def _counted(kind: str, count: int) -> Verdict:
    return Verdict(kind, None, count, "", "")


def _text(kind: str, lo: int, hi: int) -> str:
    which = f"Message {lo}" if lo == hi else f"Messages {lo} to {hi}"
    return f"{which}: {_TEXTS[kind]}."


def folded(runs: Runs, survey: Survey) -> Runs:
    """The same story in fewer ranges.

    Only what lies before the last census is folded, and only in a journal without holes: a
    file that comes late may still bring a census that parts ranges after it. What happened
    before the first census stays apart from what happened after."""
    last, first = survey.last_census, survey.first_census
    if last is None or first is None or survey.unknown:
        return runs
    settled = (
        (runs.census == 0) & (runs.lsn_hi < last.lsns.lo)
        & (runs.accepted <= 1) & (runs.ended <= 1)
    )  # fmt: skip
    early = runs.lsn_lo < first.lsns.lo
    parts = [_select(runs, ~settled)]
    for era in (settled & early, settled & ~early):
        if era.any():
            parts.append(_fold(_select(runs, era)))
    names = Runs.__dataclass_fields__
    return Runs(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


def _fold(runs: Runs) -> Runs:
    line = _Line(runs)
    everywhere = np.ones(len(runs.lo), dtype=bool)
    accepted, ended = line.sum(everywhere, runs.accepted), line.sum(everywhere, runs.ended)
    begins = np.r_[True, (np.diff(accepted) != 0) | (np.diff(ended) != 0)]
    last = np.r_[begins[1:], True]
    kept = (accepted[begins] > 0) | (ended[begins] > 0)
    count = int(kept.sum())
    return Runs(
        lo=line.edges[:-1][begins][kept],
        hi=line.edges[1:][last][kept] - 1,
        accepted=accepted[begins][kept],
        ended=ended[begins][kept],
        lsn_lo=np.full(count, runs.lsn_lo.min()),
        lsn_hi=np.full(count, runs.lsn_hi.max()),
        census=np.zeros(count, dtype=np.int64),
    )


def _select(runs: Runs, mask: Mask) -> Runs:
    names = Runs.__dataclass_fields__
    return Runs(**{name: getattr(runs, name)[mask] for name in names})


class _PerStream:
    """A table function over the ranges of one stream at a time."""

    surveys: dict[str, Survey]

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def eval(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
        self._batches.append(rows)
        return iter(())

    def terminate(self) -> Iterator[pa.Table]:
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            node, stream = table["node"][0].as_py(), table["stream"][0].as_py()
            yield self._answer(Runs.from_table(table), node, stream)

    def _answer(self, runs: Runs, node: str, stream: int) -> pa.Table:
        raise NotImplementedError


class Judge(_PerStream):
    """Ranges in, verdicts out."""

    def _answer(self, runs: Runs, node: str, stream: int) -> pa.Table:
        verdicts = [v for v in Stream(runs, self.surveys[node], stream).verdicts() if v.number]
        columns: dict[str, Any] = {name: [v[i] for v in verdicts] for i, name in _FIELDS}
        size = len(verdicts)
        return pa.table(
            {
                "node": pa.array([node] * size, pa.string()),
                "stream": pa.array([stream] * size, pa.int64()),
                "kind": pa.array(columns["kind"], pa.string()),
                "seq": pa.array(columns["seq"], pa.int64()),
                "count": pa.array(columns["number"], pa.int64()),
                "lsns": pa.array(columns["lsns"], pa.string()),
                "text": pa.array(columns["text"], pa.string()),
            }
        )


class Folder(_PerStream):
    """Ranges in, fewer ranges out."""

    def _answer(self, runs: Runs, node: str, stream: int) -> pa.Table:
        few = folded(runs, self.surveys[node])
        size = len(few.lo)
        is_run = few.census == 0
        return pa.table(
            {
                "node": pa.array([node] * size, pa.string()),
                "stream": pa.array([stream] * size, pa.int64()),
                "kind": pa.array(np.where(is_run, "run", "present").tolist(), pa.string()),
                "lo": pa.array(few.lo),
                "hi": pa.array(few.hi),
                "accepted": pa.array(few.accepted.astype(np.int32)),
                "ended": pa.array(few.ended.astype(np.int32)),
                "lsn_lo": pa.array(few.lsn_lo),
                "lsn_hi": pa.array(few.lsn_hi),
                "census": pa.array(few.census, mask=is_run),
            }
        )


_FIELDS: Final = list(enumerate(Verdict._fields))
FOLDED: Final = (
    "node string, stream long, kind string, lo long, hi long, accepted int, ended int, "
    "lsn_lo long, lsn_hi long, census long"
)
