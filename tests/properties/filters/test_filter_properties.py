"""E8: filters against a naive evaluator, and hostile texts."""

import contextlib
from itertools import product
from typing import Any

import filter_reference as reference
import pytest
from filter_reference import Fault, Message, Node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinbus.filters import EvaluationError, FilterError, sql_action, sql_filter
from twinbus.filters.like import compile_like
from twinbus.filters.values import MIRRORED, RELATIONS, arithmetic, compare

ROUNDS = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

WORDS = [
    *("AND", "or", "NOT", "LIKE", "ESCAPE", "IN", "IS", "NULL", "EXISTS", "TRUE", "SET", "REMOVE"),
    *("=", "<>", "<", ">=", "+", "-", "*", "/", "%", "(", ")", ",", ".", ";", "@p", "'"),
    *("a", "sys", "user", "Label", "[x y]", '"q"', "p", "newid", "'t%'", "'!'", "1", "2.5", "1e9"),
]
SOUP = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)
HOSTILE = st.text(max_size=1100) | SOUP | st.text("'()[]\"%_@.;, aN-9e", max_size=200)
SPACES = st.sampled_from([" ", "  ", "\n", "\t "])


@given(reference.TESTS, reference.MESSAGES, st.booleans(), SPACES)
@ROUNDS
def test_e8_filter_agrees_with_naive_evaluator(
    node: Node, message: Message, lower: bool, space: str
) -> None:
    text = reference.write(node)
    if lower:
        for keyword in ("AND", "OR", "NOT", "LIKE", "IN", "IS", "NULL", "EXISTS", "TRUE", "FALSE"):
            text = text.replace(keyword, keyword.lower())
    if "'" not in text:
        text = text.replace(" ", space)
    if len(text) > 1024:
        return
    wanted = sql_filter(text)
    unwanted = sql_filter(f"NOT ({text})") if len(text) < 1018 else None
    try:
        outcome = reference.outcome_of(node, message)
    except Fault:
        with pytest.raises(EvaluationError):
            wanted.matches(message)
        return
    assert wanted.matches(message) == (outcome is True)
    if unwanted is not None:
        assert unwanted.matches(message) == (outcome is False)


@given(reference.VARIABLES, reference.MESSAGES)
@ROUNDS
def test_e8_constants_and_properties_give_the_same(node: Node, message: Message) -> None:
    """Worked out when the rule is made or for each message: the outcome is one."""

    def as_constants(part: Node) -> Node:
        if part.operator == "property":
            return Node("constant", (message.properties.get(part.parts[0]),), part.parentheses)
        if part.operator == "constant":
            return part
        return Node(part.operator, tuple(as_constants(p) for p in part.parts), part.parentheses)

    at_run_time = sql_filter(f"{reference.write(node)} = {reference.write(node)}")
    folded = f"{reference.write(as_constants(node))} = {reference.write(as_constants(node))}"
    try:
        expected = at_run_time.matches(message)
    except EvaluationError:
        with pytest.raises(FilterError):
            sql_filter(folded)
        return
    assert sql_filter(folded).matches(message) == expected


@given(st.sampled_from("+-*/%"), reference.VALUES, reference.VALUES)
@settings(max_examples=1000, deadline=None)
def test_e8_arithmetic_agrees_with_naive_calculator(symbol: str, left: Any, right: Any) -> None:
    try:
        expected = reference.calculate(symbol, left, right)
    except Fault:
        with pytest.raises(EvaluationError):
            arithmetic(symbol, left, right)
        return
    found = arithmetic(symbol, left, right)
    assert (type(found), found) == (type(expected), expected)


@given(st.sampled_from(sorted(RELATIONS)), reference.VALUES, reference.VALUES)
@settings(max_examples=1000, deadline=None)
def test_e8_comparison_agrees_with_naive_one(symbol: str, left: Any, right: Any) -> None:
    expected = reference.compare(symbol, left, right)
    assert compare(RELATIONS[symbol], left, right) is expected
    assert compare(RELATIONS[MIRRORED[symbol]], right, left) is expected


@given(HOSTILE, reference.MESSAGES)
@ROUNDS
def test_e8_any_text_is_a_filter_or_refused_with_a_position(text: str, message: Message) -> None:
    faults = []
    try:
        with contextlib.suppress(EvaluationError):
            assert sql_filter(text, {"@p": 1}).matches(message) in (True, False)
    except FilterError as fault:
        faults.append(fault)
    try:
        sql_action(text, {"@p": 1})
    except FilterError as fault:
        faults.append(fault)
    assert all(0 <= fault.position <= len(text) for fault in faults)


def test_e8_like_agrees_with_naive_matcher_on_all_short_patterns() -> None:
    texts = ["".join(letters) for n in range(5) for letters in product("ab", repeat=n)]
    for length in range(7):
        for letters in product("ab%_", repeat=length):
            pattern = "".join(letters)
            matcher = compile_like(pattern)
            for text in texts:
                assert matcher(text) == reference.like(text, pattern), (pattern, text)


@given(
    st.text("ab%_!", max_size=10),
    st.text("ab%_!\n", max_size=12),
    st.sampled_from([None, "!", "%"]),
)
@settings(max_examples=1000, deadline=None)
def test_e8_like_with_escape_agrees_with_naive_matcher(
    pattern: str, text: str, escape: str | None
) -> None:
    if reference.dangling(pattern, escape):
        with pytest.raises(ValueError, match="ends with its escape character"):
            compile_like(pattern, escape)
    else:
        assert compile_like(pattern, escape)(text) == reference.like(text, pattern, escape)


@given(st.text(max_size=40), st.data())
@ROUNDS
def test_e8_like_matches_what_its_pattern_was_made_from(text: str, data: st.DataObject) -> None:
    """Put wildcards in the place of some characters: the text still matches."""
    parts = [data.draw(st.sampled_from(["!" + character, "_", "%"])) for character in text]
    assert compile_like("".join(parts), "!")(text)
