"""A pool of declared queues, so that every test has one that nobody used before.

Enters: variants (a name and its properties). Leaves: what to declare when the broker
starts, and one fresh name at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.broker import Properties

VARIANTS: dict[str, Properties] = {
    "q": {"LockDuration": "PT1M"},
    "session": {"LockDuration": "PT1M", "RequiresSession": True},
    "unique": {"LockDuration": "PT1M", "RequiresDuplicateDetection": True},
}


@dataclass
class QueuePool:
    """Names are `<variant>-000` and up; a name is handed out once."""

    each: int = 60
    taken: dict[str, int] = field(default_factory=dict)

    def declared(self) -> dict[str, Properties]:
        return {
            f"{variant}-{number:03}": properties
            for variant, properties in VARIANTS.items()
            for number in range(self.each)
        }

    def take(self, variant: str = "q") -> str:
        number = self.taken.get(variant, 0)
        assert number < self.each, f"the pool of {variant} queues is empty: raise `each`"
        self.taken[variant] = number + 1
        return f"{variant}-{number:03}"
