"""The audit's view of a node as a whole: which LSNs are there, which files are double, and
which censuses count.

Enters: the findings about stretches, gaps and censuses of all files (a few rows each). Leaves:
per node a survey, which says what may be concluded about messages. Plain Python, on the driver.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from twinbus.spark.jobs.capture_frames import parse_file_name

# Kinds of findings that a survey is made from; the others are about messages.
SURVEYED: Final = ("stretch", "cover", "gap", "double", "census", "removed", "fault")


class Range(NamedTuple):
    """LSNs from `lo` to `hi`, both included."""

    lo: int
    hi: int

    def __str__(self) -> str:
        return f"{self.lo}" if self.lo == self.hi else f"{self.lo} to {self.hi}"


class Census(NamedTuple):
    time: int
    lsns: Range


class Fault(NamedTuple):
    """Something wrong with the capture's files."""

    kind: str
    lsns: Range
    text: str


@dataclass
class Survey:
    """What is known of one node's journal."""

    node: str
    # The LSNs that files cover, joined where they touch.
    covers: list[Range] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    # LSNs that a file holds less of than it should, found inside files.
    gaps: list[Range] = field(default_factory=list)
    # LSNs that two files hold, neither of them a copy of what was there.
    overlaps: list[Range] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    # Files whose LSNs were all there already: their rows do not count.
    copies: set[str] = field(default_factory=set)
    censuses: list[Census] = field(default_factory=list)
    # When each entity (the number of its stream without the last two bits) was removed.
    removed: dict[int, int] = field(default_factory=dict)

    @property
    def first_census(self) -> Census | None:
        return self.censuses[0] if self.censuses else None

    @property
    def last_census(self) -> Census | None:
        return self.censuses[-1] if self.censuses else None

    @property
    def starts_late(self) -> bool:
        """Whether messages may have come before the capture begins."""
        return bool(self.covers) and self.covers[0].lo > 1

    @property
    def missing(self) -> list[Range]:
        """LSNs between files that no file has."""
        return [Range(before.hi + 1, after.lo - 1) for before, after in pairwise(self.covers)]

    @property
    def unknown(self) -> list[Range]:
        """All LSNs whose story is not known in full."""
        return sorted([*self.missing, *self.gaps])

    def all_faults(self) -> list[Fault]:
        missing = [
            Fault("missing_file", lsns, f"No file holds LSNs {lsns}.") for lsns in self.missing
        ]
        return [*self.faults, *missing]


def survey(findings: Iterable[Any]) -> dict[str, Survey]:
    """Rows of findings about files, as a survey of each node."""
    by_node: dict[str, list[Any]] = defaultdict(list)
    for finding in findings:
        by_node[finding["node"]].append(finding)
    return {node: _survey_node(node, rows) for node, rows in sorted(by_node.items())}


def _survey_node(node: str, rows: list[Any]) -> Survey:
    seen = Survey(node)
    by_file: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        lsns = Range(row["lsn_lo"], row["lsn_hi"])
        if row["kind"] == "stretch":
            by_file[row["file"]].append(row)
        elif row["kind"] == "cover":
            seen.covers.append(lsns)
            seen.files += row["parts"]
            seen.rows += row["rows"]
        elif row["kind"] == "fault":
            seen.faults.append(Fault(row["op"], lsns, row["text"]))
            if row["op"] == "lsn_gap":
                seen.gaps.append(lsns)
            elif row["op"] == "duplicated_lsn":
                seen.overlaps.append(lsns)
    seen.covers.sort()
    _add_files(seen, by_file)
    _add_details(seen, [row for row in rows if row["file"] not in seen.copies])
    return seen


def _add_files(seen: Survey, by_file: dict[str, list[Any]]) -> None:
    named = []
    for file, stretches in by_file.items():
        stretches.sort(key=lambda row: (row["lsn_lo"], row["part_lo"]))
        content = Range(stretches[0]["lsn_lo"], max(row["lsn_hi"] for row in stretches))
        name = parse_file_name(file)
        claimed = Range(name.first_lsn, name.last_lsn) if name else content
        span = Range(min(content.lo, claimed.lo), max(content.hi, claimed.hi))
        named.append((span, file, claimed, content))
    for span, file, claimed, content in sorted(named):
        common = _common(seen.covers, span)
        if common == [span]:
            seen.copies.add(file)
            text = f"{file} holds LSNs {span}, which other files hold already."
            seen.faults.append(Fault("duplicated_file", span, text))
            continue
        for lsns in common:
            seen.overlaps.append(lsns)
            text = f"{file} holds LSNs {lsns}, which another file holds already."
            seen.faults.append(Fault("duplicated_lsn", lsns, text))
        if parse_file_name(file) is None:
            text = f"{file}: the name does not say which LSNs it holds."
            seen.faults.append(Fault("name_differs", content, text))
        elif claimed != content:
            text = f"{file} holds LSNs {content}; its name says {claimed}."
            seen.faults.append(Fault("name_differs", content, text))
        _check_seams(seen, file, by_file[file])
        seen.covers = _joined([*seen.covers, span])
        seen.files += 1
        seen.rows += sum(row["rows"] for row in by_file[file])


def _check_seams(seen: Survey, file: str, stretches: list[Any]) -> None:
    """A file may have been read in several stretches; they must touch, and not overlap."""
    first, last = stretches[0], stretches[-1]
    broken = []
    for before, after in pairwise(stretches):
        if (after["lsn_lo"], after["part_lo"]) <= (before["lsn_hi"], before["part_hi"]):
            _add_double(seen, file, Range(after["lsn_lo"], before["lsn_hi"]))
            seen.overlaps.append(Range(after["lsn_lo"], before["lsn_hi"]))
        elif not _touch(before, after):
            broken.append(Range(before["lsn_hi"], after["lsn_lo"]))
    if first["part_lo"] != 0:
        broken.append(Range(first["lsn_lo"], first["lsn_lo"]))
    if last["part_hi"] + 1 != last["parts"]:
        broken.append(Range(last["lsn_hi"], last["lsn_hi"]))
    for lsns in broken:
        _add_gap(seen, file, lsns)


def _add_gap(seen: Survey, file: str, lsns: Range) -> None:
    seen.gaps.append(lsns)
    seen.faults.append(Fault("lsn_gap", lsns, f"{file}: rows of LSNs {lsns} are missing."))


def _add_double(seen: Survey, file: str, lsns: Range) -> None:
    seen.faults.append(Fault("duplicated_lsn", lsns, f"{file}: LSNs {lsns} come more than once."))


def _touch(before: Any, after: Any) -> bool:
    if before["part_hi"] + 1 == before["parts"]:
        return bool(after["lsn_lo"] == before["lsn_hi"] + 1 and after["part_lo"] == 0)
    same = after["lsn_lo"] == before["lsn_hi"]
    return bool(same and after["part_lo"] == before["part_hi"] + 1)


def _add_details(seen: Survey, rows: list[Any]) -> None:
    censuses: dict[int, Range] = {}
    for row in rows:
        lsns = Range(row["lsn_lo"], row["lsn_hi"])
        if row["kind"] == "gap":
            _add_gap(seen, row["file"], lsns)
        elif row["kind"] == "double":
            _add_double(seen, row["file"], lsns)
        elif row["kind"] == "removed":
            entity = row["stream"] >> 2
            seen.removed[entity] = min(lsns.lo, seen.removed.get(entity, lsns.lo))
        elif row["kind"] == "census":
            # A census may lie across two stretches; its time tells that it is one.
            known = censuses.get(row["census"], lsns)
            censuses[row["census"]] = Range(min(known.lo, lsns.lo), max(known.hi, lsns.hi))
    by_lsn = sorted(censuses.items(), key=lambda item: item[1])
    seen.censuses = [Census(time, lsns) for time, lsns in by_lsn]


def _common(covers: list[Range], span: Range) -> list[Range]:
    cut = [Range(max(c.lo, span.lo), min(c.hi, span.hi)) for c in covers]
    return [c for c in cut if c.lo <= c.hi]


def _joined(covers: list[Range]) -> list[Range]:
    joined: list[Range] = []
    for cover in sorted(covers):
        if joined and cover.lo <= joined[-1].hi + 1:
            joined[-1] = Range(joined[-1].lo, max(joined[-1].hi, cover.hi))
        else:
            joined.append(cover)
    return joined
