"""The root key is made once, durably."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twinbus.cli import serve
from twinbus.journal import RealDisk


@pytest.fixture(autouse=True)
def no_key_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(serve.KEY_VARIABLE, raising=False)


def test_the_names_of_a_new_directory_and_key_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was told the key can use it after a power cut."""
    synced: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(
        RealDisk,
        "sync_directory",
        lambda _, directory: synced.append((directory, os.listdir(directory))),
    )
    data = tmp_path / "new" / "data"
    serve._need_directory(data)
    key, is_new = serve._key(data)
    assert is_new
    assert synced == [(tmp_path, ["new"]), (data.parent, ["data"]), (data, ["root.key"])]
    assert serve._key(data) == (key, False)
