"""What a browser reads and writes again is what was there: no number is rounded (E4)."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.admin.console.shown import browser_safe, message_json
from twinbus.amqp import codec
from twinbus.amqp.types import Float32, Int, Timestamp, ULong
from twinbus.engine.message import take_in
from twinbus.forms import message_form, values

WHOLE = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.text(),
    st.binary(),
    st.floats(),
    st.floats(width=32, allow_nan=False).map(Float32),
    WHOLE,
    WHOLE.map(Timestamp),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    # Where doubles end, and where they stop being whole.
    st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 1.0, -0.0, 1e300, 2.0**60]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


def through_a_browser(text: str) -> Any:
    """What JSON.stringify(JSON.parse(text)) makes of a text: every number is a double."""

    def again(value: Any) -> Any:
        if isinstance(value, float):
            # A whole number is written without a point, and minus nought without its sign.
            return int(value) if value.is_integer() and abs(value) < 1e21 else value
        if isinstance(value, list):
            return [again(item) for item in value]
        if isinstance(value, dict):
            return {key: again(item) for key, item in value.items()}
        return value

    return again(json.loads(text, parse_int=float))


@given(VALUES)
def test_every_value_survives_a_browser(value: object) -> None:
    shown = json.dumps(browser_safe(values.to_json(value)))
    again = values.from_json(through_a_browser(shown))
    assert codec.encode(again) == codec.encode(value)


@pytest.mark.parametrize("name", ["timestamp", "long", "double", "map"])
@pytest.mark.parametrize("value", [2**60 + 1, 5.0, "x"])
def test_a_property_may_be_called_like_a_type(name: str, value: object) -> None:
    sent = message_form.from_json({"body": "x", "application_properties": {name: value}}).payload
    shown = json.dumps(message_json(take_in(sent, lambda: "id")))
    again = message_form.to_json(message_form.from_json(through_a_browser(shown)).payload)
    assert again["application_properties"] == {name: value}
    assert type(again["application_properties"][name]) is type(value)


def test_a_browser_would_round_without_it() -> None:
    assert through_a_browser(json.dumps(2**53 + 1)) == 2**53
    assert type(through_a_browser("1.0")) is int
    assert math.copysign(1, through_a_browser('{"double": -0.0}')["double"]) == 1
