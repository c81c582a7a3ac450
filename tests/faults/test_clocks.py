"""Goal: a clock that is set, forwards or back, costs nobody a message, a lock or a connection.

Method: the scenarios run on live brokers with the official SDK, in processes whose clock is
theirs alone. What lasts for a while counts elapsed time; what is to happen at a moment happens
at that moment of the world's time (docs/adr/0011).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import clock_scenarios as scenarios
from tests.faults.wall_clock import WallClock, run_with_clock


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.traffic_goes_on,
        scenarios.locks_last_as_long_as_they_should_R2,
        scenarios.session_locks_last_as_long_as_they_should_E6,
        scenarios.scheduled_messages_come_at_their_time_E5,
        scenarios.nobody_is_taken_for_idle,
        scenarios.duplicates_are_known_for_as_long_as_they_should_E7,
        scenarios.a_broker_starts_with_a_clock_that_is_behind,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_a_clock_that_is_set(scenario: Callable[[Path, WallClock], None], tmp_path: Path) -> None:
    run_with_clock(scenario, tmp_path)
