"""How long work waits for a broker that is away, and how far apart it tries again.

Enters: how many seconds it may take, counted from the first failure. Leaves: the pauses.
Knows nothing of what is tried.
"""

from __future__ import annotations

import time
from typing import Final

# A broker that was killed reads its journal when it comes back; give it the time.
PATIENCE_S: Final = 60.0
_PAUSE_S, _PAUSE_S_MAX = 0.05, 2.0


class Patience:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline_s: float | None = None
        self._pause_s = _PAUSE_S

    def pause(self) -> bool:
        """Wait a while, and longer each time; False at once when patience is at its end."""
        now_s = time.monotonic()
        if self._deadline_s is None:
            self._deadline_s = now_s + self._seconds
        if now_s + self._pause_s > self._deadline_s:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)
        return True
