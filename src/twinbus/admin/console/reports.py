"""The pipeline's reports: HTML pages in a directory that the pipeline's jobs write to.

Only pages that the listing finds are shown, so no path from outside reaches the disk. They are
shown without scripts and apart from the console.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinbus.core import errors
from twinbus.core.errors import BusError

DEPTH_MAX = 3
PAGES_MAX = 500
#: A report is a page of its own: its styles and pictures, no scripts, nothing from elsewhere.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
)

Json = dict[str, Any]


def list_reports(directory: Path) -> list[Json]:
    """Pages by name, with their time; an absent directory has none."""
    pages = {
        str(path.relative_to(directory)): path
        for depth in range(DEPTH_MAX)
        for path in sorted(directory.glob("*/" * depth + "*.html"))
        if path.is_file()
    }
    return [
        {"name": name, "modified": int(path.stat().st_mtime * 1000), "size": path.stat().st_size}
        for name, path in sorted(pages.items())[:PAGES_MAX]
    ]


def find_report(directory: Path, name: str) -> Path:
    if not any(report["name"] == name for report in list_reports(directory)):
        raise BusError(errors.NOT_FOUND, f"There is no report '{name}'.")
    return directory / name
