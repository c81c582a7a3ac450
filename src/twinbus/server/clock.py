"""The broker's time: Unix time that runs evenly and follows the system's clock when that is set.

Between two looks at the system's clock time passes as the monotonic clock says, so nothing that
lasts for a while gets shorter or longer. `follow` tells by how much the time was set; whoever
calls it moves along what counts elapsed time (docs/adr/0011).
"""

import time
from collections.abc import Callable

# Less than this is no step: clocks are read one after the other, and are adjusted all the time.
STEP_MS = 1000


class Clock:
    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._elapsed = elapsed
        self._offset_ms = self._gap_ms()

    def _gap_ms(self) -> int:
        return int((self._wall() - self._elapsed()) * 1000)

    def __call__(self) -> int:
        return int(self._elapsed() * 1000) + self._offset_ms

    def follow(self) -> int:
        """Take over the system's time if it was set; give by how many milliseconds."""
        step_ms = self._gap_ms() - self._offset_ms
        if abs(step_ms) < STEP_MS:
            return 0
        self._offset_ms += step_ms
        return step_ms
