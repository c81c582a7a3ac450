"""The capturing process is kept alive, listened to, and let go when the broker stops."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from twinbus.capture import supervisor
from twinbus.capture.supervisor import Supervisor
from twinbus.server.config import CaptureConfig, ConfigError, load

# Counts its starts in a file; dies at once the first two times, then says how far it is, waits
# for its input to end, and leaves a mark.
CHILD = """
import pathlib, sys
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x")
count = len(starts.read_text())
print('{"captured_lsn": %d}' % (count * 10), flush=True)
if count <= int(sys.argv[2]):
    sys.exit(1)
sys.stdin.read()
pathlib.Path(sys.argv[1] + ".drained").touch()
"""


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(supervisor, "_BACK_OFF_S_MIN", 0.01)
    path = tmp_path / "starts"
    path.write_text("")
    return path


def make(starts: Path, failures: int) -> Supervisor:
    return Supervisor([sys.executable, "-c", CHILD, str(starts), str(failures)])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_l1_a_dead_child_is_started_again_and_let_go_in_the_end(starts: Path) -> None:
    watched = make(starts, failures=2)
    watched.start()
    await until(lambda: watched.captured_lsn == 30)
    await watched.stop()
    assert starts.with_name("starts.drained").exists()
    assert starts.read_text() == "xxx"


async def test_l1_a_stop_between_two_attempts_still_captures_the_rest(
    starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_BACK_OFF_S_MIN", 60.0)
    watched = make(starts, failures=1)
    watched.start()
    await until(lambda: watched.captured_lsn == 10)
    await asyncio.sleep(0.2)
    await watched.stop()
    assert starts.with_name("starts.drained").exists()
    assert watched.captured_lsn == 20


# Says nothing, or the same each time, and dies, until a file lets it come farther.
FAILING = """
import pathlib, sys
if pathlib.Path(sys.argv[1]).exists():
    print('{"captured_lsn": 8}', flush=True)
    sys.stdin.read()
elif sys.argv[2]:
    print('{"captured_lsn": 7}', flush=True)
sys.exit(1)
"""


@pytest.mark.parametrize("says", ["", "how far it is"])
async def test_l1_a_capture_that_fails_shows_until_it_has_come_farther(
    says: str, starts: Path, tmp_path: Path
) -> None:
    room = tmp_path / "room"
    watched = Supervisor([sys.executable, "-c", FAILING, str(room), says])
    assert watched.warning is None
    watched.start()
    await until(lambda: watched.failures >= 3)
    assert f"({watched.failures} times)" in str(watched.warning)
    room.touch()
    await until(lambda: watched.captured_lsn == 8)
    assert watched.warning is None
    await watched.stop()


async def test_a_child_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_DRAIN_S_MAX", 0.2)
    script = "import time; print('{\"captured_lsn\": 7}', flush=True); time.sleep(600)"
    watched = Supervisor([sys.executable, "-c", script])
    watched.start()
    await until(lambda: watched.captured_lsn == 7)
    async with asyncio.timeout(20):
        await watched.stop()


# --- the configuration ----------------------------------------------------------------


def configured(tmp_path: Path, text: str) -> CaptureConfig | None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    return load(path).capture


def test_capture_is_configured_in_the_file(tmp_path: Path) -> None:
    assert configured(tmp_path, "") is None
    found = configured(tmp_path, '[capture]\ndirectory = "c"\nroll_seconds = 5\nkeep_days = 7\n')
    assert found == CaptureConfig(Path("c"), roll_seconds=5, keep_days=7)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('capture = "c"', "needs a 'directory'"),
        ("[capture]\nkeep_days = 3", "needs a 'directory'"),
        ('[capture]\ndirectory = "c"\nkeep_days = 0', "keep_days is a number from 1 to 36500"),
        ('[capture]\ndirectory = "c"\nroll_seconds = "1m"', "roll_seconds is a number"),
        ('[capture]\ndirectory = "c"\nkeep = 3', "unknown in capture: keep"),
    ],
)
def test_a_wrong_capture_section_is_refused_clearly(text: str, wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=wrong):
        configured(tmp_path, text)
