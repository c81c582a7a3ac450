"""L1: files are written once, whatever dies in between; gaps are told, old files removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.capture.captured import assert_complete, read_rows
from tests.capture.journals import DAY_MS, NOON_MS, WrittenJournal
from tests.capture.naive import expand
from twinbus.capture import capturer
from twinbus.capture.capturer import Capturer, Settings
from twinbus.capture.compacting import compact
from twinbus.capture.files import (
    CaptureError,
    captured_lsn,
    held,
    list_files,
    missing_lsns,
    newest_mark,
    node_of,
    remove_old,
    write_file,
)
from twinbus.capture.status import status

DAY = datetime.fromtimestamp(NOON_MS / 1000, UTC).date()


class Crash(BaseException):
    """The process ends here; no handler of an ordinary error runs."""


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenJournal]:
    journal = WrittenJournal(tmp_path / "journal")
    journal.begin()
    yield journal
    journal.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def settings(written: WrittenJournal, root: Path, **given: Any) -> Settings:
    return Settings(written.directory, root, "node", **given)


def capture(written: WrittenJournal, root: Path, **given: Any) -> None:
    with held(root):
        capturer = Capturer(settings(written, root, **given))
        try:
            capturer.drain()
        finally:
            capturer.close()


# --- exactly once ---------------------------------------------------------------------


def test_l1_files_go_on_where_the_last_one_ended(written: WrittenJournal, root: Path) -> None:
    for _ in range(5):
        written.place(30)
        capture(written, root)
    written.close()
    capture(written, root)
    capture(written, root)
    assert_complete(root, 1, written.last_lsn)
    assert read_rows(root) == expand(written.directory)


def test_l1_a_file_says_in_its_name_and_footer_what_it_holds(
    written: WrittenJournal, root: Path
) -> None:
    written.place(8)
    written.close()
    capture(written, root)
    (file,) = list_files(root)
    assert file.path == root / (
        f"date={DAY}/node-00000000000000000001-00000000000000000010.parquet"
    )
    parquet = pq.ParquetFile(file.path)
    footer = parquet.metadata.metadata
    assert footer[b"twinbus.first_lsn"] == b"1"
    assert footer[b"twinbus.last_lsn"] == b"10"
    assert footer[b"twinbus.node"] == b"node"
    assert parquet.metadata.row_group(0).column(0).compression == "ZSTD"


class Fuse:
    """Lets so many system calls that change names or sync through, then crashes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
        self.left = calls
        for name in ("fsync", "rename", "unlink"):
            monkeypatch.setattr(os, name, self._guarded(getattr(os, name)))

    def _guarded(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.left == 0:
                raise Crash
            self.left -= 1
            return real(*arguments, **named)

        return call


@pytest.mark.parametrize("merge", [False, True], ids=["capture", "compact"])
def test_l1_a_crash_between_any_two_steps_loses_and_repeats_nothing(
    merge: bool, written: WrittenJournal, tmp_path: Path
) -> None:
    """Capture, or merging, is ended at its first, second, third … step, and run again."""
    for _ in range(6):
        written.place(10)
    written.close()
    rows = expand(written.directory)
    source = tmp_path / "source"
    capture(written, source, roll_rows=20)

    def run(root: Path) -> None:
        if merge:
            compact(source, root, rows_max=40)
        else:
            capture(written, root, roll_rows=20)

    for steps in range(200):
        root = tmp_path / f"root-{steps}"
        with pytest.MonkeyPatch.context() as monkeypatch:
            Fuse(monkeypatch, steps)
            try:
                run(root)
                ended = True
            except Crash:
                ended = False
        if ended:
            break
        run(root)
        assert_complete(root, 1, written.last_lsn)
        assert read_rows(root) == rows
        assert not list(root.rglob("_tmp-*"))
    assert ended
    assert steps > 8


# --- when a file is due ---------------------------------------------------------------


def test_files_are_rolled_by_rows_and_by_time(written: WrittenJournal, root: Path) -> None:
    now = 0.0
    with held(root):
        capturer = Capturer(
            settings(written, root, roll_rows=100, roll_seconds=60), clock=lambda: now
        )
        written.place(90)
        written.heartbeat()
        capturer.step()
        assert list_files(root) == []
        now = 59.9
        capturer.step()
        assert list_files(root) == []
        now = 60.0
        capturer.step()
        assert [file.last_lsn for file in list_files(root)] == [92]
        written.place(120)
        written.heartbeat()
        capturer.step()
        assert [file.last_lsn for file in list_files(root)] == [92, 213]
        assert capturer.captured_lsn == 213
        capturer.close()


def test_heartbeats_alone_make_a_file_only_now_and_then(
    written: WrittenJournal, root: Path
) -> None:
    now = 0.0
    with held(root):
        capturer = Capturer(settings(written, root, roll_seconds=60), clock=lambda: now)
        written.heartbeat()
        capturer.drain()
        for _ in range(119):
            now += 5
            written.heartbeat()
            capturer.step()
        assert [file.last_lsn for file in list_files(root)] == [2]
        now += 5
        capturer.step()
        now += 5
        capturer.step()
        assert len(list_files(root)) == 2
        capturer.close()


# --- where to begin -------------------------------------------------------------------


def test_l1_a_capture_begins_where_the_broker_was_first_observed(
    tmp_path: Path, root: Path
) -> None:
    """What happened before was told only in part: a census says what was there."""
    old = WrittenJournal(tmp_path / "journal")
    old.place(5)
    old.begin()
    old.place(5)
    old.close()
    capture(old, root)
    assert_complete(root, 6, old.last_lsn)


def test_l1_a_gap_is_never_passed_over_silently(tmp_path: Path, root: Path) -> None:
    written = WrittenJournal(tmp_path / "journal", segment_bytes=4096)
    written.begin()
    written.place(3)
    capture(written, root)
    for _ in range(60):
        written.place(1, 300)
    segment = written.journal.segments()[-2][0]
    written.journal.drop_before(segment)
    written.heartbeat()
    with pytest.raises(CaptureError, match=r"LSNs 3 to \d+ are missing.*--accept-gap"):
        capture(written, root)
    assert captured_lsn(root) == 2
    written.close()
    capture(written, root, accept_gap=True)
    ((first, last),) = missing_lsns(list_files(root))
    assert first == 3
    kept = [(row["lsn"], row["op"]) for row in expand(written.directory) if row["lsn"] > last]
    assert [(row["lsn"], row["op"]) for row in read_rows(root) if row["lsn"] > 2] == kept
    assert status(root)["missing_lsns"] == [[3, last]]


def test_segments_dropped_up_to_what_was_captured_are_no_gap(tmp_path: Path, root: Path) -> None:
    written = WrittenJournal(tmp_path / "journal", segment_bytes=4096)
    written.begin()
    for _ in range(60):
        written.place(1, 300)
    written.heartbeat()
    capture(written, root)
    written.journal.drop_before(written.journal.current_segment)
    written.place(2)
    written.close()
    capture(written, root)
    assert_complete(root, 1, written.last_lsn)


def test_a_root_takes_one_journal_and_one_writer(written: WrittenJournal, root: Path) -> None:
    written.place(2)
    written.heartbeat()
    capture(written, root)
    with held(root), pytest.raises(CaptureError, match=rf"another process \({os.getpid()}\)"):
        capture(written, root)
    with held(root), pytest.raises(CaptureError, match="use another directory"):
        Capturer(Settings(written.directory, root, "stranger"))


def test_a_journal_older_than_its_capture_is_refused(
    written: WrittenJournal, root: Path, tmp_path: Path
) -> None:
    written.place(20)
    written.close()
    capture(written, root)
    restored = WrittenJournal(tmp_path / "restored")
    restored.begin()
    restored.place(3)
    restored.close()
    with pytest.raises(CaptureError, match=r"up to LSN 22, but the journal .* ends at 5"):
        capture(restored, root)


@pytest.mark.parametrize("segment_bytes", [4096, 64 << 20], ids=["many segments", "one segment"])
def test_l1_a_restored_journal_is_refused_also_when_it_has_come_as_far_again(
    tmp_path: Path, root: Path, segment_bytes: int
) -> None:
    directory, backup = tmp_path / "data", tmp_path / "backup"
    written = WrittenJournal(directory, segment_bytes)
    written.begin()
    for _ in range(30):
        written.place(1, 300)
    written.close()
    shutil.copytree(directory, backup)
    written = WrittenJournal(directory, segment_bytes)
    for _ in range(20):
        written.place(1, 300)
    written.close()
    capture(written, root)
    files = list_files(root)
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    restored = WrittenJournal(directory, segment_bytes)
    for _ in range(25):
        restored.place(1, 301)
    restored.close()
    assert restored.last_lsn > written.last_lsn == captured_lsn(root)
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"up to LSN 52, but .* has other records"):
            capture(restored, root)
    assert list_files(root) == files
    capture(restored, tmp_path / "another root")
    assert_complete(tmp_path / "another root", 1, restored.last_lsn)


def test_l1_a_restored_journal_is_refused_where_it_has_dropped_the_captured_lsns(
    tmp_path: Path, root: Path
) -> None:
    """The place of the last captured batch is still in the journal; what is there is another."""
    directory = tmp_path / "data"
    old = WrittenJournal(directory, segment_bytes=4096)
    old.begin()
    for _ in range(60):
        old.place(1, 300)
    old.close()
    capture(old, root)
    shutil.rmtree(directory)
    # Its records are small, so that it has given out as many LSNs in fewer segments.
    other = WrittenJournal(directory, segment_bytes=4096)
    other.begin()
    for _ in range(16):
        other.place(5, 40)
    other.journal.drop_before(other.journal.current_segment)
    other.heartbeat()
    with pytest.raises(CaptureError, match="has other records under these numbers"):
        capture(other, root, accept_gap=True)
    other.close()


def test_a_restored_journal_goes_on_in_its_capture_if_that_was_no_farther(
    tmp_path: Path, root: Path
) -> None:
    directory, backup = tmp_path / "data", tmp_path / "backup"
    written = WrittenJournal(directory)
    written.begin()
    written.place(5)
    written.heartbeat()
    capture(written, root)
    written.place(5)
    written.close()
    shutil.copytree(directory, backup)
    written = WrittenJournal(directory)
    written.place(7)
    written.close()
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    restored = WrittenJournal(directory)
    restored.place(9)
    restored.close()
    capture(restored, root)
    assert_complete(root, 1, restored.last_lsn)


def test_files_without_a_mark_are_gone_on_from(
    written: WrittenJournal, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions before did not write down which batch a file ends with."""
    written.place(5)
    written.heartbeat()
    with monkeypatch.context() as patched:
        patched.setattr(capturer, "write_file", lambda *given: write_file(*given[:5]))
        capture(written, root)
    assert newest_mark(root) is None
    written.place(5)
    written.close()
    capture(written, root)
    assert newest_mark(root) is not None
    assert_complete(root, 1, written.last_lsn)


def test_a_damaged_newest_file_is_named(written: WrittenJournal, root: Path) -> None:
    written.place(5)
    written.heartbeat()
    capture(written, root)
    (file,) = list_files(root)
    file.path.write_bytes(file.path.read_bytes()[:-6])
    with pytest.raises(CaptureError, match=f"{file.path.name} cannot be read"):
        capture(written, root)
    file.path.unlink()
    written.close()
    capture(written, root)
    assert_complete(root, 1, written.last_lsn)


def test_a_data_directory_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    name = node_of(tmp_path / "a")
    assert node_of(tmp_path / "a") == name
    assert node_of(tmp_path / "b") != name


# --- retention and merging ------------------------------------------------------------


def files_on_days(written: WrittenJournal, root: Path, days: int) -> None:
    """Three files on each day, beginning with DAY."""
    for day in range(days):
        written.now_ms = NOON_MS + day * DAY_MS
        for _ in range(3):
            written.place(10)
            written.heartbeat()
            capture(written, root)


def test_old_files_are_removed_by_age(written: WrittenJournal, root: Path) -> None:
    files_on_days(written, root, 5)
    before = list_files(root)
    removed = remove_old(root, DAY + timedelta(days=4), days_max=2)
    assert [*removed, *list_files(root)] == before
    assert len({file.day for file in list_files(root)}) == 3
    assert {path.name for path in root.glob("date=*")} == {
        f"date={file.day}" for file in list_files(root)
    }


@pytest.mark.parametrize(
    ("days", "kept"),
    [
        # A clock that was far ahead for once, in the middle, twice, and from the beginning.
        (["01-01", "2099-01-01", "01-02", "01-03", "05-31", "06-01"], ["05-31", "06-01"]),
        (["2099-01-01", "2098-01-01", "01-02", "2099-01-01", "06-01"], ["2099-01-01", "06-01"]),
        (["2099-01-01", "2099-01-02"], ["2099-01-01", "2099-01-02"]),
        # One that was far behind takes nothing with it that is not old itself.
        (["01-01", "05-30", "1970-01-01", "06-01"], ["05-30", "1970-01-01", "06-01"]),
    ],
)
def test_a_clock_that_was_wrong_for_once_does_not_keep_or_remove_what_others_wrote(
    root: Path, days: list[str], kept: list[str]
) -> None:
    for number, day in enumerate(days):
        directory = root / f"date={day if len(day) > 5 else f'2026-{day}'}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"node-{number + 1:020}-{number + 1:020}.parquet").touch()
    remove_old(root, date(2026, 6, 1), days_max=7)
    assert [str(file.day).removeprefix("2026-") for file in list_files(root)] == kept


def test_old_files_are_removed_by_size_but_never_the_newest(
    written: WrittenJournal, root: Path
) -> None:
    files_on_days(written, root, 2)
    before = list_files(root)
    room = sum(file.path.stat().st_size for file in before[-2:])
    remove_old(root, DAY, bytes_max=room)
    assert list_files(root) == before[-2:]
    remove_old(root, date.max, days_max=1, bytes_max=0)
    assert list_files(root) == before[-1:]


def test_capture_removes_old_files_itself_and_still_knows_where_to_go_on(
    written: WrittenJournal, root: Path
) -> None:
    for _ in range(5):
        written.place(10)
        written.heartbeat()
        capture(written, root, keep_gigabytes=0.0)
        assert len(list_files(root)) == 1
    written.close()
    capture(written, root)
    files = list_files(root)
    assert missing_lsns(files) == []
    assert files[-1].last_lsn == written.last_lsn


def test_l1_small_files_are_merged_without_loss(
    written: WrittenJournal, root: Path, tmp_path: Path
) -> None:
    files_on_days(written, root, 2)
    to = tmp_path / "merged"
    assert len(compact(root, to)) == 2
    assert compact(root, to) == []
    assert read_rows(to) == read_rows(root)
    assert_complete(to, 1, captured_lsn(root))
    written.place(5)
    written.close()
    capture(written, root)
    assert len(compact(root, to)) == 1
    assert read_rows(to) == read_rows(root)


def test_files_rolled_a_little_late_still_pair_up(
    written: WrittenJournal, root: Path, tmp_path: Path
) -> None:
    for _ in range(4):
        written.place(53)
        written.heartbeat()
        capture(written, root)
    merged = compact(root, tmp_path / "merged", rows_max=100)
    assert len(list_files(root)) == 4
    assert [file.last_lsn for file in merged] == [109, 217]


def test_merging_hides_no_gap(written: WrittenJournal, root: Path, tmp_path: Path) -> None:
    files_on_days(written, root, 1)
    files = list_files(root)
    first, last = files[1].first_lsn, files[1].last_lsn
    files[1].path.unlink()
    to = tmp_path / "merged"
    with pytest.raises(CaptureError, match=f"LSNs {first} to {last} are missing"):
        compact(root, to)
    compact(root, to, accept_gap=True)
    assert missing_lsns(list_files(to)) == [(first, last)]


@pytest.mark.parametrize("to", [".", "merged", "date=2026-03-01", "../link/merged", ".."])
def test_l1_merging_refuses_a_root_that_readers_of_the_other_would_see(
    to: str, written: WrittenJournal, root: Path
) -> None:
    """Every row would be read twice."""
    files_on_days(written, root, 1)
    (root.parent / "link").symlink_to(root)
    before = sorted(root.parent.rglob("*"))
    with pytest.raises(CaptureError, match="root of their own"):
        compact(root, root / to)
    assert sorted(root.parent.rglob("*")) == before


def test_merging_refuses_a_copied_file(written: WrittenJournal, root: Path, tmp_path: Path) -> None:
    files_on_days(written, root, 1)
    file = list_files(root)[1]
    name = f"node-{file.first_lsn - 1:020}-{file.last_lsn:020}.parquet"
    (file.path.parent / name).write_bytes(file.path.read_bytes())
    with pytest.raises(CaptureError, match="copied or renamed"):
        compact(root, tmp_path / "merged")


def test_status_tells_how_far_behind_a_capture_is(written: WrittenJournal, root: Path) -> None:
    with pytest.raises(CaptureError, match="holds no captured files"):
        status(root)
    written.place(10)
    capture(written, root)
    found = status(root)
    assert (found["last_lsn"], found["lag_lsns"], found["lag_seconds"]) == (2, 10, 1.0)
    written.close()
    capture(written, root)
    found = status(root)
    assert (found["last_lsn"], found["files"], found["rows"]) == (12, 2, 12)
    assert (found["lag_lsns"], found["lag_seconds"]) == (0, 0.0)
