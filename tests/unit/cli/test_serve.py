"""What `twinbus serve` asks of its directory before it begins."""

import os
from pathlib import Path

import pytest

from twinbus.cli import serve
from twinbus.cli.failures import CommandError


def test_a_directory_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root, who may run the tests, may write everywhere.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CommandError, match=r"cannot be written to: .*chown .* --data-dir"):
        serve._need_directory(tmp_path)
