"""One made-up capture for the tests that only read it, and answers that are worked out once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.jobs import synthetic
from twinbus.spark.jobs.catalogue import Tables


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, synthetic.Story]:
    root = tmp_path_factory.mktemp("clean")
    return root, synthetic.generate(root, 60_000, rows_per_file=15_000, burst=200)


def kept(tables: Tables) -> Tables:
    """Tables that many tests read: a frame is a recipe, which each `collect` would follow anew."""
    return {name: table.cache() for name, table in tables.items()}
