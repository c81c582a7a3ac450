"""Times and durations in the forms of the protocols."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.core import units
from twinbus.core.units import UNLIMITED_ISO, UNLIMITED_MS


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT30S", 30_000),
        ("PT5M", 300_000),
        ("P14D", 14 * 86_400_000),
        ("P1DT2H3M4S", 93_784_000),
        ("PT0.5S", 500),
        ("PT1.2345678S", 1_234),
        ("PT0S", 0),
        (" PT1S ", 1_000),
        (UNLIMITED_ISO, UNLIMITED_MS),
        ("P99999999D", UNLIMITED_MS),
    ],
)
def test_durations_are_read(text: str, duration_ms: int) -> None:
    assert units.duration_from_iso(text) == duration_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "30", "PT-5S", "P1Y", "PT1.S", "1D"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        units.duration_from_iso(text)


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "PT0S"),
        (30_000, "PT30S"),
        (60_000, "PT1M"),
        (86_400_000, "P1D"),
        (90_061_001, "P1DT1H1M1.001S"),
        (UNLIMITED_MS, UNLIMITED_ISO),
        (UNLIMITED_MS + 1, UNLIMITED_ISO),
    ],
)
def test_durations_are_written_as_service_bus_does(duration_ms: int, text: str) -> None:
    assert units.duration_to_iso(duration_ms) == text


@given(st.integers(0, UNLIMITED_MS))
def test_durations_read_back(duration_ms: int) -> None:
    assert units.duration_from_iso(units.duration_to_iso(duration_ms)) == duration_ms


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_times_read_back(unix_ms: int) -> None:
    moment = units.datetime_from_ms(unix_ms)
    assert moment.tzinfo is UTC
    assert units.ms_from_datetime(moment) == unix_ms
    assert units.ms_from_datetime(units.time_from_iso(units.time_to_iso(unix_ms))) == unix_ms


def test_times_beyond_all_calendars_are_written_too() -> None:
    assert units.time_to_iso(-62_135_596_800_001) == "0001-01-01T00:00:00.000000Z"
    assert units.time_to_iso(2**63 - 1) == "9999-12-31T23:59:59.999000Z"


def test_times_without_an_offset_are_utc() -> None:
    naive = datetime(2026, 1, 2, 3, 4, 5)
    aware = naive.replace(tzinfo=UTC)
    assert units.ms_from_datetime(naive) == units.ms_from_datetime(aware)
    assert units.time_from_iso("2026-01-02T03:04:05") == aware
    east = naive.replace(tzinfo=timezone(timedelta(hours=2)))
    assert units.time_from_iso("2026-01-02T03:04:05+02:00") == east


def test_times_beyond_the_calendar_are_held_inside_it() -> None:
    assert units.datetime_from_ms(2**62).year == 9999
    assert units.datetime_from_ms(-(2**62)).year == 1


def test_ticks_count_from_the_year_one() -> None:
    assert units.ticks_from_ms(0) == 621_355_968_000_000_000
    assert units.ticks_from_ms(1) - units.ticks_from_ms(0) == 10_000
