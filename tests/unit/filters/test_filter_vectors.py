"""E8, D3: the vector files, expression by expression."""

from typing import Any

import pytest
from filter_message import DictMessage, read_values, read_vectors

from twinbus.filters import EvaluationError, FilterError, sql_action, sql_filter

OUTCOMES = ("true", "false", "unknown", "error")
GROUPS = read_vectors("sql_filters.toml")["group"]
FILTER_CASES = [
    pytest.param(group, outcome, expression, id=f"{outcome}: {expression}")
    for group in GROUPS
    for outcome in OUTCOMES
    for expression in group.get(outcome, ())
]
REFUSED = read_vectors("refused.toml")
ACTIONS = read_vectors("actions.toml")


@pytest.mark.parametrize(("group", "outcome", "expression"), FILTER_CASES)
def test_e8_sql_filter(group: dict[str, Any], outcome: str, expression: str) -> None:
    """Unknown shows in that neither the expression nor its negation matches."""
    message = DictMessage(read_values(group.get("user", {})), read_values(group.get("sys", {})))
    parameters = read_values(group.get("parameters", {}))
    given = sql_filter(expression, parameters)
    negated = sql_filter(f"NOT ({expression})", parameters)
    if outcome == "error":
        for either in (given, negated):
            with pytest.raises(EvaluationError) as raised:
                either.matches(message)
            assert raised.value.kind == "FilterException"
        return
    matched = (given.matches(message), negated.matches(message))
    assert matched == {
        "true": (True, False),
        "false": (False, True),
        "unknown": (False, False),
    }.get(outcome)


@pytest.mark.parametrize(("expression", "position", "words"), REFUSED["filters"])
def test_e8_bad_filter_is_refused(expression: str, position: int, words: str) -> None:
    with pytest.raises(FilterError) as raised:
        sql_filter(expression)
    assert raised.value.position == position
    assert words in str(raised.value)


@pytest.mark.parametrize(("expression", "position", "words"), REFUSED["actions"])
def test_e8_bad_action_is_refused(expression: str, position: int, words: str) -> None:
    with pytest.raises(FilterError) as raised:
        sql_action(expression)
    assert raised.value.position == position
    assert words in str(raised.value)


@pytest.mark.parametrize("case", ACTIONS["case"], ids=lambda case: str(case["action"]))
def test_e8_action(case: dict[str, Any]) -> None:
    before = ACTIONS["message"]
    message = DictMessage(read_values(before["user"]), read_values(before["sys"]))
    action = sql_action(case["action"], read_values(case.get("parameters", {})))
    if "error" in case:
        with pytest.raises(EvaluationError, match=case["error"]) as raised:
            action.apply(message)
        assert raised.value.kind == "RuleActionException"
        return
    action.apply(message)
    assert _typed(message.user_properties) == _typed(_changed(before["user"], case.get("user", {})))
    assert _typed(message.system_properties) == _typed(_changed(before["sys"], case.get("sys", {})))


def _changed(before: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    after = {**before, **changes}
    return read_values({name: v for name, v in after.items() if v != {"missing": True}})


def _typed(values: dict[str, Any]) -> dict[str, tuple[type, Any]]:
    """Give the values with their types, since 3 equals 3.0."""
    return {name: (type(value), value) for name, value in values.items()}
