"""`twinbus doctor` compares what is captured with the journal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.capture.journals import WrittenJournal
from twinbus.capture.capturer import Capturer, Settings
from twinbus.capture.files import held, node_of
from twinbus.cli.capture_checks import check_capture
from twinbus.cli.checks import FAULT, OK, WARNING, Installation

MINUTE_MS = 60_000


@pytest.fixture
def broker(tmp_path: Path) -> Installation:
    (tmp_path / "data").mkdir()
    node_of(tmp_path / "data")
    return Installation(tmp_path / "data", None, tmp_path / "root")


def begun(broker: Installation) -> WrittenJournal:
    journal = WrittenJournal(broker.journal)
    journal.begin()
    return journal


def beat(journal: WrittenJournal, minutes: int) -> None:
    """Be at work for so long: a captured broker writes every five seconds."""
    for _ in range(minutes * 12):
        journal.now_ms += 4_000
        journal.heartbeat()


def capture(broker: Installation) -> None:
    assert broker.capture is not None
    with held(broker.capture):
        capturer = Capturer(Settings(broker.journal, broker.capture, node_of(broker.data_dir)))
        capturer.drain()
        capturer.close()


def look(broker: Installation, *, in_use: bool = True) -> tuple[str, str]:
    (found,) = check_capture(broker, in_use)
    assert found.level == OK or found.advice
    return found.level, found.what


def test_l1_a_capture_far_behind_a_running_broker_is_a_fault(broker: Installation) -> None:
    journal = begun(broker)
    beat(journal, 1)
    capture(broker)
    beat(journal, 11)
    level, what = look(broker)
    assert (level, "133 records behind" in what) == (OK, True)
    beat(journal, 3)
    level, what = look(broker)
    assert level == FAULT
    assert "169 records and 0:13:55 behind: the journal keeps them, and grows" in what
    journal.close()
    capture(broker)
    level, what = look(broker)
    assert (level, "everything is in" in what) == (OK, True)


def test_a_capture_that_never_began_is_a_fault_once_the_broker_was_captured(
    broker: Installation,
) -> None:
    """What the broker did before capture was on is not missed."""
    journal = WrittenJournal(broker.journal)
    beat(journal, 60)
    assert look(broker)[0] == OK
    journal.begin()
    assert look(broker) == (OK, f"{broker.capture} is 2 records behind")
    beat(journal, 15)
    assert look(broker)[0] == FAULT
    journal.close()
    assert look(broker, in_use=False) == (WARNING, f"182 records are not in {broker.capture} yet")


def test_time_in_which_no_broker_ran_is_no_delay(broker: Installation) -> None:
    journal = begun(broker)
    beat(journal, 1)
    capture(broker)
    for hours in (5, -3, 7):
        journal.now_ms += hours * 60 * MINUTE_MS
        journal.heartbeat()
    assert look(broker)[0] == OK
    journal.close()


def test_l1_a_restored_journal_and_dropped_records_are_faults(
    broker: Installation, tmp_path: Path
) -> None:
    begun(broker).close()
    shutil.copytree(broker.journal, tmp_path / "backup")
    journal = WrittenJournal(broker.journal)
    journal.place(3)
    journal.close()
    capture(broker)
    shutil.rmtree(broker.journal)
    shutil.copytree(tmp_path / "backup", broker.journal)
    journal = WrittenJournal(broker.journal, segment_bytes=4096)
    for _ in range(40):
        journal.place(1, 300)
    level, what = look(broker)
    assert (level, "restored from an older backup" in what) == (FAULT, True)
    assert broker.capture is not None
    shutil.rmtree(broker.capture)
    capture(broker)
    for _ in range(40):
        journal.place(1, 300)
    journal.journal.drop_before(journal.journal.current_segment)
    level, what = look(broker)
    assert level == FAULT
    assert "the journal in" in what
    assert "has dropped the segments" in what
    journal.close()


def test_a_place_that_is_no_directory_is_a_fault(broker: Installation) -> None:
    begun(broker).close()
    assert broker.capture is not None
    broker.capture.write_text("")
    assert look(broker) == (FAULT, f"{broker.capture} cannot be written to")


def test_where_capture_is_off_nothing_is_said(broker: Installation, tmp_path: Path) -> None:
    begun(broker).close()
    assert check_capture(Installation(broker.data_dir, None), in_use=True) == []
    config = tmp_path / "twinbus.toml"
    config.write_text(f'[capture]\ndirectory = "{broker.capture}"\n')
    assert check_capture(Installation(broker.data_dir, config), in_use=True) != []
