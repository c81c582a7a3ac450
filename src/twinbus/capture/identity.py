"""Whether a root and a journal belong together: the capture's past must be the journal's."""

from __future__ import annotations

from pathlib import Path

from twinbus.capture.files import CaptureError, captured_lsn, newest_mark, read_sidecar
from twinbus.capture.mark import is_contradicted
from twinbus.journal.tail import JournalGap, reached_lsn


def check_identity(root: Path, journal: Path, node: str) -> None:
    """Refuse a root that holds another journal's capture, or this one's future.

    LSNs alone do not tell for long: a journal that was restored from an older backup soon has
    as many as were captured, but not those records.
    """
    sidecar = read_sidecar(root)
    if sidecar is not None and sidecar.node != node:
        raise CaptureError(
            f"{root} holds the capture of {sidecar.journal} (node {sidecar.node}),"
            f" not of {journal} (node {node}): use another directory"
        )
    last_lsn = captured_lsn(root)
    if not last_lsn:
        return
    try:
        reached = reached_lsn(journal, last_lsn)
    except JournalGap:
        # What follows the captured records is there; a real gap shows when it is read.
        reached = last_lsn
    mark = newest_mark(root)
    if reached < last_lsn:
        what = f"ends at {reached}"
    elif mark is not None and is_contradicted(journal, mark):
        what = "has other records under these numbers"
    else:
        return
    raise CaptureError(
        f"{root} holds records up to LSN {last_lsn}, but the journal in {journal} {what}: it was"
        " replaced or restored from an older backup. Capture it to another directory."
    )
