"""The root key is made once, durably."""

from __future__ import annotations

import errno
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


def test_a_broker_that_is_killed_while_it_makes_its_key_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that nobody was told is made anew; half of one is never taken for damage."""

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("fdopen", "fsync", "link"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, kill)
            with pytest.raises(KeyboardInterrupt):
                serve._key(tmp_path)
    key, is_new = serve._key(tmp_path)
    assert is_new
    assert serve._key(tmp_path) == (key, False)
    assert os.listdir(tmp_path) == ["root.key"]
    assert (tmp_path / "root.key").stat().st_mode & 0o777 == 0o600


def test_where_files_have_one_name_only_the_key_is_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    key, is_new = serve._key(tmp_path)
    assert is_new
    assert serve._key(tmp_path) == (key, False)
    assert os.listdir(tmp_path) == ["root.key"]
