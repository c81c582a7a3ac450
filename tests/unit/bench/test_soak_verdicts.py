"""The soak's verdicts: latencies from buckets, and what counts as growth."""

from __future__ import annotations

import math

from bench.soak.latencies import Latencies
from bench.soak.watch import Sample, growth, warm_lives

MB = 1_000_000
LIFE_S = 420


def samples(leak_mb: float = 0.0, disk_mb: float = 0.0, files: float = 0.0) -> list[Sample]:
    """Half an hour in lives of seven minutes; what grows does so by the minute."""
    found = []
    for second in range(0, 1800, 2):
        life, age_s = divmod(second, LIFE_S)
        # A fresh process fills its caches first.
        memory = (200 + min(age_s, 120) + leak_mb * age_s / 60) * MB
        disk = (400 + disk_mb * second / 60) * MB
        descriptors = 2000 + int(files * second / 60)
        found.append(Sample(float(second), life, int(memory), descriptors, int(disk), 0.0))
    return found


def test_filling_caches_is_no_growth() -> None:
    assert growth(samples()) == []
    assert len(warm_lives(samples())) == 4


def test_growth_of_each_kind_is_told() -> None:
    assert any("memory grew" in reason for reason in growth(samples(leak_mb=5)))
    assert any("disk use grew" in reason for reason in growth(samples(disk_mb=20)))
    assert any("descriptors grew" in reason for reason in growth(samples(files=5)))


def test_a_short_run_says_nothing_about_memory() -> None:
    assert warm_lives(samples()[:60]) == []
    assert growth(samples(leak_mb=50)[:60]) == []


def test_percentiles_are_those_of_the_buckets() -> None:
    latencies = Latencies()
    assert math.isnan(latencies.percentile_ms(0.5))
    # Bucket 10 holds 10 µs; bucket 192 is the first of four microseconds' width: 256 to 259 µs.
    latencies.add([(10, 99), (192, 1)])
    assert latencies.percentile_ms(0.5) == 0.011
    assert latencies.percentile_ms(0.99) == 0.011
    assert latencies.max_ms == 0.26
