"""What `twinbus doctor` looks at where the journal is captured: has capture come as far?

The options of a broker go in, findings come out. Nothing is changed, and no lock is taken.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from twinbus.cli.capture import NOT_INSTALLED, is_installed
from twinbus.cli.checks import FAULT, OK, WARNING, Finding, Installation
from twinbus.journal import JournalError, read_segments
from twinbus.journal.tail import Tail

# What a busy machine may take longer than capture itself would.
_SLACK_S = 120.0
# A captured broker writes more often than this; what is longer it was not running, or its clock
# was set.
_PAUSE_MS_MAX = 10_000


def check_capture(installation: Installation, in_use: bool) -> list[Finding]:
    """Compare what is captured with the journal; nothing to say where capture is off."""
    root = installation.capture_root()
    if root is None or not installation.journal.is_dir():
        return []
    if not is_installed():
        return [Finding("capture", FAULT, NOT_INSTALLED, "Install it, or switch capture off.")]
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        advice = "Make it a directory that the broker's user may write to."
        return [Finding("capture", FAULT, f"{existing} cannot be written to", advice)]
    from twinbus.capture.files import CaptureError, captured_lsn
    from twinbus.capture.identity import check_identity

    try:
        node = installation.data_dir / "node"
        if node.exists():
            check_identity(root, installation.journal, node.read_text().strip())
        done = captured_lsn(root) or _before_start(installation.journal)
        if done is None:
            return [Finding("capture", OK, f"it begins in {root} when the broker starts with it")]
        behind, seconds = _waiting(installation.journal, done)
    except (CaptureError, JournalError, OSError) as error:
        advice = "docs/capture.md tells what it refuses and why; until then the journal grows."
        return [Finding("capture", FAULT, str(error), advice)]
    return [_finding(installation, root, behind, seconds, in_use)]


def _finding(
    installation: Installation, root: Path, behind: int, seconds: float, in_use: bool
) -> Finding:
    from twinbus.capture.capturer import IDLE_FACTOR, ROLL_SECONDS

    if not behind:
        return Finding("capture", OK, f"everything is in {root}")
    if not in_use:
        advice = f"Start the broker, or: twinbus capture run {installation.data_dir} {root} --once"
        return Finding("capture", WARNING, f"{behind:,} records are not in {root} yet", advice)
    wanted = installation.config().capture
    roll_s = (wanted.roll_seconds if wanted is not None else None) or ROLL_SECONDS
    if seconds <= roll_s * IDLE_FACTOR + _SLACK_S:
        return Finding("capture", OK, f"{root} is {behind:,} records behind")
    what = (
        f"{root} is {behind:,} records and {timedelta(seconds=int(seconds))} behind: the journal"
        " keeps them, and grows"
    )
    advice = "The broker's log says why: look for 'capture cannot go on'."
    return Finding("capture", FAULT, what, advice)


def _before_start(journal: Path) -> int | None:
    """The LSN before the one where a new capture begins; None if no broker was captured yet."""
    from twinbus.capture.capturer import is_start

    for lsn, _, _, record in read_segments(journal):
        if is_start(record):
            return lsn - 1
    return None


def _waiting(journal: Path, done: int) -> tuple[int, float]:
    """How many records came after `done`, and for how long the broker has written them."""
    tail = Tail(journal, done + 1)
    lsn, worked_ms, before_ms = done, 0, None
    try:
        while found := tail.read():
            for one in found:
                if before_ms is not None:
                    worked_ms += min(max(0, one.batch.time_ms - before_ms), _PAUSE_MS_MAX)
                before_ms = one.batch.time_ms
            lsn = found[-1].batch.next_lsn - 1
        last = tail.pending()
        return max(lsn, 0 if last is None else last.next_lsn - 1) - done, worked_ms / 1000
    finally:
        tail.close()
