"""`twinbus doctor` for somebody who may not look into the broker's directory."""

import os
from pathlib import Path

import pytest

from twinbus.cli import reach
from twinbus.cli.checks import FAULT, Installation
from twinbus.cli.examination import examine


@pytest.mark.parametrize("refused", ["directory", "its parent"])
def test_a_directory_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Where systemd keeps it, only root and the broker may go."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "root.key").write_text("a key")
    # Root, who may run the tests, may look everywhere.
    real_access, real_stat = os.access, os.stat

    def stat(path: object, *args: object, **named: object) -> os.stat_result:
        inside = str(path).startswith(str(data))
        if inside and (refused == "its parent" or str(path) != str(data)):
            raise PermissionError(13, "Permission denied", str(path))
        return real_stat(path, *args, **named)  # type: ignore[arg-type, call-overload, no-any-return]

    def access(path: object, mode: int) -> bool:
        return not str(path).startswith(str(data)) and real_access(str(path), mode)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(reach, "_bind_failure", lambda host, port: OSError(98, "in use"))
    monkeypatch.setitem(reach._SPEAKERS, "amqp", lambda host, port: True)
    found = examine(Installation(data, None), "127.0.0.1", {"amqp": 5672}, None)
    (fault,) = [finding for finding in found if finding.level == FAULT]
    assert fault.check == "data directory"
    assert fault.what == f"this user may not look into {data}"
    assert "as root" in fault.advice
