"""Latencies as counts in buckets: 64 steps in each power of two of microseconds.

Enters: buckets as the generator reports them. Leaves: percentiles in milliseconds, too high by
at most 1.6 %. It must not keep single values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

STEPS = 64


class Latencies:
    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, buckets: Iterable[tuple[int, int]]) -> None:
        for bucket, count in buckets:
            self._counts[bucket] += count

    @property
    def count(self) -> int:
        return self._counts.total()

    def percentile_ms(self, share: float) -> float:
        """The latency that this share of all stayed within; NaN if there were none."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return _upper_us(bucket) / 1000
        return float("nan")

    @property
    def max_ms(self) -> float:
        return self.percentile_ms(1.0)


def _upper_us(bucket: int) -> int:
    """The first value beyond a bucket."""
    shift = max(0, bucket // STEPS - 1)
    return (bucket - shift * STEPS + 1) << shift
