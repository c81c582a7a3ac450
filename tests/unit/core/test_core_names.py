"""Names and paths of entities (E1, E2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.core import errors, limits, names
from twinbus.core.errors import BusError
from twinbus.core.names import DEAD_LETTER_STREAM, MAIN_STREAM, TRANSFER_STREAM, Address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("orders", Address("orders")),
        ("Orders/New", Address("Orders/New")),
        ("/orders/", Address("orders")),
        ("amqps://host:5671/orders", Address("orders")),
        ("sb://host/orders%2Fnew", Address("orders/new")),
        ("sb://host", Address("")),
        ("q/$DeadLetterQueue", Address("q", DEAD_LETTER_STREAM)),
        ("q/$deadletterqueue", Address("q", DEAD_LETTER_STREAM)),
        ("q/$Transfer/$DeadLetterQueue", Address("q", TRANSFER_STREAM)),
        ("q/$transfer/$DEADLETTERQUEUE", Address("q", TRANSFER_STREAM)),
        ("q/$management", Address("q", MAIN_STREAM, True)),
        ("q/$DeadLetterQueue/$management", Address("q", DEAD_LETTER_STREAM, True)),
        ("$management", Address("", MAIN_STREAM, True)),
        ("t/Subscriptions/s", Address("t/Subscriptions/s")),
        ("t/subscription/s", Address("t/Subscriptions/s")),
        ("t/SUBSCRIPTIONS/s/$DeadLetterQueue", Address("t/Subscriptions/s", DEAD_LETTER_STREAM)),
    ],
)
def test_e2_addresses(text: str, address: Address) -> None:
    assert names.parse_address(text) == address


@given(
    st.text("abcXYZ/", min_size=1, max_size=9).filter(lambda text: text.strip("/") == text),
    st.sampled_from([MAIN_STREAM, DEAD_LETTER_STREAM, TRANSFER_STREAM]),
)
def test_e2_a_path_reads_back_as_what_it_points_at(entity: str, stream: int) -> None:
    address = Address(entity, stream)
    assert names.parse_address(address.path) == address


def test_e2_the_path_of_a_subscription() -> None:
    path = names.subscription_path("Topic", "Sub")
    assert path == "Topic/Subscriptions/Sub"
    assert names.split_subscription(path) == ("Topic", "Sub")
    assert names.split_subscription("Topic/subscription/Sub") == ("Topic", "Sub")
    assert names.split_subscription("Topic") is None
    assert names.split_subscription("Topic/Subscriptions/") is None


def test_e1_names_are_compared_without_case() -> None:
    assert names.fold("Orders") == names.fold("oRDERS")


@pytest.mark.parametrize("name", ["q", "Q.1", "a-b_c", "a/b/c", "x-servicebus-transfer/0", "_q"])
def test_e1_good_names(name: str) -> None:
    names.check_entity_name(name)
    names.check_entity_name("q" * limits.ENTITY_NAME_MAX)
    names.check_subscription_name("s" * limits.SUBSCRIPTION_NAME_MAX)
    names.check_rule_name("$Default")


@pytest.mark.parametrize(
    "name",
    [
        "", "q" * 261, "/q", "q/", "a//b", "a b", "ä", "q?", "q\n", "$cbs", "$management",
        "q/$DeadLetterQueue", "t/Subscriptions/s", "T/subscription/x",
    ],
)  # fmt: skip
def test_e1_bad_names(name: str) -> None:
    with pytest.raises(BusError) as raised:
        names.check_entity_name(name)
    assert raised.value.kind is errors.ARGUMENT_ERROR


@pytest.mark.parametrize("name", ["", "s" * 51, "a/b", "a b"])
def test_e1_bad_names_of_subscriptions_and_rules(name: str) -> None:
    for check in (names.check_subscription_name, names.check_rule_name):
        with pytest.raises(BusError):
            check(name)
