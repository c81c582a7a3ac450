"""E8: correlation filters, the constant filters, and what rules may hold."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from filter_message import DictMessage

from twinbus.filters import (
    FALSE_FILTER,
    MISSING,
    TRUE_FILTER,
    EvaluationError,
    FilterError,
    correlation_filter,
    sql_filter,
    value_key,
)

FIELDS = (
    "correlation_id",
    "message_id",
    "to",
    "reply_to",
    "label",
    "session_id",
    "reply_to_session_id",
    "content_type",
)


def test_e8_true_and_false_filters() -> None:
    assert TRUE_FILTER.matches(DictMessage())
    assert not FALSE_FILTER.matches(DictMessage())


@pytest.mark.parametrize("field", FIELDS)
def test_e8_each_system_field_is_compared_with_case(field: str) -> None:
    wanted = correlation_filter(**{field: "Red"})  # type: ignore[arg-type]
    assert wanted.matches(DictMessage(system={field: "Red"}))
    assert not wanted.matches(DictMessage(system={field: "red"}))
    assert not wanted.matches(DictMessage(user={field: "Red"}))
    assert not wanted.matches(DictMessage())


def test_e8_all_given_fields_must_match() -> None:
    wanted = correlation_filter(label="red", correlation_id="high", properties={"Color": "red"})
    system = {"label": "red", "correlation_id": "high"}
    assert wanted.matches(DictMessage({"color": "red", "other": 1}, {**system, "to": "x"}))
    assert not wanted.matches(DictMessage({"color": "red"}, {"label": "red"}))
    assert not wanted.matches(DictMessage({"color": "blue"}, system))
    assert not wanted.matches(DictMessage({}, system))


def test_e8_without_fields_everything_matches() -> None:
    assert correlation_filter().matches(DictMessage({"a": 1}))


@pytest.mark.parametrize(
    ("wanted", "found", "matches"),
    [
        (2, 2, True),
        (2, 2.0, True),
        (2, Decimal(2), True),
        (2, 3, False),
        (2, "2", False),
        ("2", 2, False),
        (True, True, True),
        (True, 1, False),
        (1, True, False),
        (False, 0, False),
        (None, None, True),
        (None, MISSING, False),
        ("", MISSING, False),
        (b"x", b"x", True),
        (b"x", "x", False),
        (UUID(int=1), UUID(int=1), True),
        (UUID(int=1), str(UUID(int=1)), False),
        (timedelta(days=1), timedelta(hours=24), True),
        (datetime(2020, 7, 5), datetime(2020, 7, 5, tzinfo=UTC), True),
        (Decimal("sNaN"), Decimal("sNaN"), False),
        (1, Decimal("sNaN"), False),
        (1, [1], False),
    ],
)
def test_e8_kinds_must_agree(wanted: Any, found: Any, matches: bool) -> None:
    asked = correlation_filter(properties={"a": wanted})
    message = DictMessage({} if found is MISSING else {"a": found})
    assert asked.matches(message) == matches
    if not isinstance(found, list):
        assert (("user.a", value_key(found)) in asked.key()) == matches


def test_e8_key_names_every_field_and_value() -> None:
    asked = correlation_filter(label="red", to="x", properties={"Color": "blue", "N": 1})
    key = asked.key()
    assert {field for field, _ in key} == {"sys.label", "sys.to", "user.color", "user.n"}
    same = correlation_filter(to="x", label="red", properties={"n": 1.0, "COLOR": "blue"})
    assert same.key() == key
    assert hash(same.key()) == hash(key)
    assert correlation_filter(label="red").key() != key


def test_e8_bad_values_are_refused() -> None:
    unusable: Any = ["list"]
    with pytest.raises(FilterError, match="'a' has a value of a type"):
        correlation_filter(properties={"a": unusable})
    with pytest.raises(FilterError, match="'@p' has a value of a type"):
        sql_filter("a = @p", {"@p": unusable})
    with pytest.raises(FilterError, match="given twice"):
        correlation_filter(properties={"a": 1, "A": 2})


def test_e8_a_value_of_a_strange_type_never_matches() -> None:
    strange: Any = {"a": [1], "b": {"x": 1}, "n": Decimal("sNaN")}
    message = DictMessage(strange)
    for expression in ("a = a", "a = 'x'", "a < b", "a IN (1)", "a LIKE '%'", "n < 1", "n = n"):
        assert not sql_filter(expression).matches(message)


def test_e8_subclasses_count_as_what_they_are() -> None:
    class Symbol(str):
        pass

    class Long(int):
        pass

    message = DictMessage({"s": Symbol("red"), "n": Long(5)})
    for expression in ("s = 'red'", "s LIKE 'r%'", "s IN ('red')", "n = 5", "n + 1 = 6", "n > 4.5"):
        assert sql_filter(expression).matches(message), expression


def test_e8_a_time_without_zone_is_utc() -> None:
    message = DictMessage({"t": datetime(2024, 1, 1), "u": datetime(2024, 1, 1, tzinfo=UTC)})
    for expression in ("t = u", "t <= u", "t = '2024-01-01'", "t - u = 'PT0S'", "u - t = 'PT0S'"):
        assert sql_filter(expression).matches(message), expression


@pytest.mark.parametrize("zero", [0, 0.0, Decimal(0)])
@pytest.mark.parametrize("one", [0, 1, 1.5, Decimal(1), Decimal(0)])
@pytest.mark.parametrize("symbol", ["/", "%"])
def test_d3_division_by_zero_says_so(symbol: str, one: Any, zero: Any) -> None:
    with pytest.raises(EvaluationError, match="Division by zero"):
        sql_filter(f"a {symbol} b = 1").matches(DictMessage({"a": one, "b": zero}))
