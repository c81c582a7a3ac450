"""E8: a filter can neither hang nor crash the broker, nor make it slow to start."""

import subprocess
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from filter_message import DictMessage

from twinbus.filters import EvaluationError, FilterError, sql_action, sql_filter
from twinbus.filters.like import PATTERN_CHARS_MAX, compile_like

LONG_TEXT = "a" * 32 * 1024


def test_e8_an_expression_may_have_1024_characters() -> None:
    longest = "a = '" + "x" * 1018 + "'"
    assert len(longest) == 1024
    assert sql_filter(longest).matches(DictMessage({"a": "x" * 1018}))
    with pytest.raises(FilterError, match="1025 characters") as raised:
        sql_filter(longest + " ")
    assert raised.value.position == 1024
    with pytest.raises(FilterError, match="2000 characters"):
        sql_action("S" * 2000)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 500 + "1=1" + ")" * 500,
        "(" * 500 + "a" + ")" * 500 + "=1",
        "NOT " * 200 + "a=1",
        "a=1" + " OR a=1" * 140,
        "a=1" + " AND a=1" * 120,
        "1=a" + "-0" * 500,
        "1=a" + "*1" * 500,
        "a IN (" + "7," * 500 + "1)",
        "(" * 60 + "a=1" + " OR a=2)" * 60,
    ],
    ids=lambda expression: expression[:12],
)
def test_e8_what_is_long_but_flat_works(expression: str) -> None:
    assert sql_filter(expression).matches(DictMessage({"a": 1}))


@pytest.mark.parametrize(
    "expression",
    [
        "1=" + "-" * 500 + "a",
        "1=" + "p(" * 300 + "a" + ")" * 300,
        "(" * 80 + "a=1" + " OR a=2)AND a=1" * 40 + " OR a=2)" * 40,
        "NOT(a=1 OR " * 80 + "a=1" + ")" * 80,
        "1=" + "a-(a*(" * 100 + "a" + "))" * 100,
    ],
    ids=lambda expression: expression[:12],
)
def test_e8_what_nests_too_deep_is_refused(expression: str) -> None:
    with pytest.raises(FilterError, match="Nested more than 64 deep"):
        sql_filter(expression)


def test_e8_an_action_may_have_32_statements() -> None:
    message = DictMessage({"n": 0})
    sql_action("SET n = n + 1;" * 32).apply(message)
    assert message.user_properties["n"] == 32
    with pytest.raises(FilterError, match="at most 32 statements") as raised:
        sql_action("SET n = n + 1;" * 33)
    assert raised.value.position == 32 * len("SET n = n + 1;") + len("SET ")


def test_e8_texts_do_not_grow_without_bound() -> None:
    """Doubling in every statement would make 2**32 characters."""
    with pytest.raises(EvaluationError, match="at most 32768 characters"):
        sql_action("SET s = s + s;" * 32).apply(DictMessage({"s": "x"}))


def test_e8_system_texts_keep_their_bounds() -> None:
    message = DictMessage({"s": "x" * 129})
    with pytest.raises(EvaluationError, match="session_id may have at most 128 characters"):
        sql_action("SET sys.SessionId = s").apply(message)
    sql_action("SET sys.Label = s").apply(message)
    assert message.system_properties == {"label": "x" * 129}


def test_e8_a_pattern_from_a_property_is_bounded() -> None:
    like = sql_filter("a LIKE b")
    assert like.matches(DictMessage({"a": LONG_TEXT, "b": "%" * PATTERN_CHARS_MAX}))
    with pytest.raises(EvaluationError, match="at most 1024 characters"):
        like.matches(DictMessage({"a": "a", "b": "%" * (PATTERN_CHARS_MAX + 1)}))


@pytest.mark.parametrize(
    "pattern",
    ["%a" * 500 + "%b", "%_" * 500 + "%b", "a%" * 500 + "_b", "%" + "a_" * 500 + "b%", "_%" * 512],
    ids=lambda pattern: pattern[:6],
)
def test_e8_like_takes_steps_in_proportion_to_the_text(pattern: str) -> None:
    """These patterns take time without end in a matcher that backtracks."""
    matcher = compile_like(pattern)
    steps = _count_lines(lambda: matcher(LONG_TEXT))
    assert steps < 5 * (len(LONG_TEXT) + 4 * len(pattern))


def _count_lines(work: Callable[[], object]) -> int:
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def test_e8_lark_is_imported_by_the_first_sql_rule_only() -> None:
    program = (
        "import sys, twinbus.filters as f;"
        "f.correlation_filter(label='x');"
        "assert 'lark' not in sys.modules;"
        "f.sql_filter('1=1');"
        "assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
