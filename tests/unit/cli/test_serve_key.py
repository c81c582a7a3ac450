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


@pytest.mark.parametrize("has_links", [True, False])
def test_a_first_start_that_was_cut_short_leaves_no_half_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    """A broker that was killed starts again; nobody was told of the key yet."""

    def cut_short(*_: object) -> None:
        raise KeyboardInterrupt

    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as dying:
        dying.setattr(os, "fdopen", cut_short)
        with pytest.raises(KeyboardInterrupt):
            serve._key(tmp_path)
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    key, is_new = serve._key(tmp_path)
    assert is_new
    assert serve._key(tmp_path) == (key, False)
    assert (tmp_path / "root.key").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["root.key"]


def test_a_key_that_another_start_made_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_start() -> str:
        (tmp_path / "root.key").write_text("the other's")
        return "ours"

    monkeypatch.setattr(serve, "new_key", other_start)
    with pytest.raises(FileExistsError):
        serve._key(tmp_path)
    assert (tmp_path / "root.key").read_text() == "the other's"
    assert os.listdir(tmp_path) == ["root.key"]
