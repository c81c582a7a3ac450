"""The broker's clock runs evenly, and follows the system's clock when that is set."""

from __future__ import annotations

from twinbus.server.clock import STEP_MS, Clock


class Machine:
    """A machine's two clocks."""

    def __init__(self) -> None:
        self.wall_s = 1_800_000_000.0
        self.elapsed_s = 5000.0

    def clock(self) -> Clock:
        return Clock(lambda: self.wall_s, lambda: self.elapsed_s)

    def wait(self, seconds: float, drift: float = 0.0) -> None:
        self.elapsed_s += seconds
        self.wall_s += seconds + drift


def test_it_starts_with_the_system_s_time_and_runs_by_what_passes() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock() == 1_800_000_000_000
    machine.wait(2.5)
    assert clock() == 1_800_000_002_500
    assert clock.follow() == 0


def test_a_step_is_taken_over_when_it_is_looked_for_not_before() -> None:
    machine = Machine()
    clock = machine.clock()
    for step_s in (3600, -3600, 86_400, -300):
        before = clock()
        machine.wait(1, drift=step_s)
        assert clock() == before + 1000
        assert clock.follow() == step_s * 1000
        assert clock() == int(machine.wall_s * 1000)
        assert clock.follow() == 0


def test_adjustments_are_no_steps_until_they_add_up() -> None:
    machine = Machine()
    clock = machine.clock()
    steps = []
    for _ in range(25):
        machine.wait(1, drift=0.1)
        steps.append(clock.follow())
        assert abs(clock() - machine.wall_s * 1000) < STEP_MS
    assert sum(step > 0 for step in steps) == 2
