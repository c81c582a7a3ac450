"""L3: options are checked before anything is asked of a broker; sets of sequence numbers."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.spark.options import CONNECTION_STRING, OptionError, batch_options, stream_options
from twinbus.spark.ranges import Ranges

GOOD = {"connectionString": "Endpoint=sb://here;", "entity": "orders", "consumer": "copy"}
BATCH = {key: GOOD[key] for key in ("connectionString", "entity")}


def test_l3_what_is_left_out_has_a_value() -> None:
    options = stream_options(GOOD)
    assert (options.mode, options.messages_max, options.failures_max) == ("reserve", 50_000, 5)
    assert options.include_body
    assert "sb://here" not in repr(options), "a key must not get into a log"


def test_l3_names_come_in_any_case_as_spark_hands_them_over() -> None:
    options = batch_options({key.lower(): value for key, value in BATCH.items()})
    assert options.entity == "orders"


def test_l3_the_connection_string_may_be_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CONNECTION_STRING, "Endpoint=sb://there;")
    assert batch_options({"entity": "orders"}).connection_string == "Endpoint=sb://there;"


def test_l3_times_are_utc_unless_they_say_otherwise() -> None:
    options = batch_options(BATCH | {"fromTime": "2026-01-31T12:00:00", "toTime": "2026-02-01"})
    assert options.from_time == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert options.to_time == datetime(2026, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("includeBody", "maybe", "'true' or 'false'"),
        ("partitions", "0", "from 1 to"),
        ("partitions", "many", "whole number"),
        ("states", "active,gone", "'gone' is none of them"),
        ("fromSequence", "-1", "from 0 to"),
        ("toTime", "yesterday", "2026-01-31T12:00:00Z"),
        ("consumer", "x", "not one of a batch read"),
        ("prefetch", "9", "not one of a batch read"),
    ],
)
def test_l3_a_wrong_option_of_a_batch_read_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(said)) as caught:
        batch_options(BATCH | {name.lower(): value})
    assert f"'{name}'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("mode", "lock", "'reserve' (on this broker) or 'defer'"),
        ("maxMessagesPerTrigger", "0", "from 1 to"),
        ("maxBatchFailures", "x", "whole number"),
        ("consumer", " ", "1 to 128"),
        ("fromSequence", "5", "not one of a stream read"),
    ],
)
def test_l3_a_wrong_option_of_a_stream_read_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(said)) as caught:
        stream_options(GOOD | {name: value})
    assert f"'{name}'" in str(caught.value)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_l3_a_missing_option_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONNECTION_STRING, raising=False)
    with pytest.raises(OptionError, match=f"'{name}' is missing"):
        stream_options({key: value for key, value in GOOD.items() if key != name})


# --- sets of sequence numbers ----------------------------------------------------------------

numbers = st.sets(st.integers(1, 60))


@given(numbers)
def test_l3_ranges_hold_the_numbers_they_were_made_of(given: set[int]) -> None:
    ranges = Ranges.from_numbers(given)
    assert list(ranges.numbers()) == sorted(given)
    assert len(ranges) == len(given)
    assert Ranges.from_flat([end for pair in ranges.pairs for end in pair]) == ranges


@given(numbers, st.integers(1, 9))
def test_l3_ranges_split_evenly_and_lose_nothing(given: set[int], parts: int) -> None:
    pieces = Ranges.from_numbers(given).split(parts)
    assert [number for piece in pieces for number in piece.numbers()] == sorted(given)
    sizes = [len(piece) for piece in pieces]
    assert len(pieces) == min(parts, len(given))
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(numbers, st.integers(1, 9))
def test_l3_a_cover_is_short_and_holds_the_set(given: set[int], pairs_max: int) -> None:
    ranges = Ranges.from_numbers(given)
    cover = ranges.cover(pairs_max)
    assert len(cover.pairs) <= pairs_max
    assert not ranges.without(cover)


@given(numbers, numbers, st.integers(1, 60), st.integers(1, 60))
def test_l3_ranges_do_what_sets_do(one: set[int], other: set[int], low: int, high: int) -> None:
    ranges, others = Ranges.from_numbers(one), Ranges.from_numbers(other)
    assert set(ranges.without(others).numbers()) == one - other
    assert set(ranges.between(low, high).numbers()) == {n for n in one if low <= n <= high}
    if one:
        asked = np.array(sorted(other), dtype=np.int64)
        assert ranges.mask(asked).tolist() == [n in one for n in sorted(other)]
