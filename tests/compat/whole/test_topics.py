"""Topics, subscriptions and rules through the blocking SDK and its admin client (E8, D3, D6)."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.compat.whole.kit import (
    DEAD_LETTER,
    Bus,
    assert_empty,
    bodies,
    drain,
    reason,
    receiver_of,
    send,
    take_one,
)

TRACE = uuid.UUID("0f8fad5b-d9cb-469f-a165-70867728950e")
MOMENT = datetime(2024, 5, 17, 12, 30, tzinfo=UTC)

MESSAGE: dict[str, Any] = {
    "body": "the one",
    "message_id": "m-1",
    "correlation_id": "c-1",
    "subject": "Order",
    "to": "warehouse",
    "reply_to": "shop",
    "reply_to_session_id": "rs-1",
    "session_id": "s-1",
    "content_type": "text/plain",
    "application_properties": {
        "colour": "red",
        "count": 7,
        "price": 12.5,
        "rush": True,
        "trace": TRACE,
        "odd name": "100%_sure",
    },
}

SQL_FILTERS = {
    "equal": ("colour = 'red'", True),
    "unequal": ("colour <> 'red'", False),
    "also unequal": ("colour != 'blue'", True),
    "greater": ("count > 6 AND count >= 7 AND count < 8 AND count <= 7", True),
    "or, not": ("NOT (colour = 'blue') AND (count = 0 OR price = 12.5)", True),
    "like": ("colour LIKE 'r_d' AND sys.Label LIKE 'Or%'", True),
    "not like": ("colour NOT LIKE '%e%'", False),
    "escape": (r"[odd name] LIKE '100\%\_s%' ESCAPE '\'", True),
    "in": ("colour IN ('green', 'red')", True),
    "not in": ("count NOT IN (1, 2, 3)", True),
    "is null": ("missing IS NULL AND colour IS NOT NULL", True),
    "exists": ("EXISTS(colour) AND NOT EXISTS(missing)", True),
    "arithmetic": ("count * 2 - 4 = 10 AND price / 2.5 = 5 AND count % 4 = 3 AND -count < 0", True),
    "text sum": ("colour + 'dish' = 'reddish'", True),
    "boolean": ("rush = TRUE", True),
    "unknown": ("missing = 'x' OR missing <> 'x'", False),
    "scopes": ("user.colour = 'red' AND sys.MessageId = 'm-1'", True),
    "quoted name": ('"odd name" IS NOT NULL', True),
    "system": (
        "sys.CorrelationId = 'c-1' AND sys.To = 'warehouse' AND sys.ReplyTo = 'shop'"
        " AND sys.SessionId = 's-1' AND sys.ContentType = 'text/plain'",
        True,
    ),
    "property()": ("property('colour') = 'red'", True),
    "newid()": ("newid() <> trace", True),
    "case of names": ("COLOUR = 'red' AND SYS.label = 'Order'", True),
    "case of texts": ("colour = 'RED'", False),
    "kinds do not mix": ("count = '7'", False),
}

CORRELATION_FILTERS = {
    "id": (CorrelationRuleFilter(correlation_id="c-1"), True),
    "all": (
        CorrelationRuleFilter(
            message_id="m-1",
            to="warehouse",
            reply_to="shop",
            label="Order",
            session_id="s-1",
            reply_to_session_id="rs-1",
            content_type="text/plain",
        ),
        True,
    ),
    "one differs": (CorrelationRuleFilter(correlation_id="c-1", label="Invoice"), False),
    "properties": (
        CorrelationRuleFilter(properties={"colour": "red", "count": 7, "rush": True}),
        True,
    ),
    "a property differs": (CorrelationRuleFilter(properties={"colour": "blue"}), False),
    "a property is missing": (CorrelationRuleFilter(properties={"missing": "red"}), False),
}

PARAMETRIZED = SqlRuleFilter(
    "count > @least AND colour = @colour AND price < @most AND rush = @rush",
    parameters={"@least": 5, "@colour": "red", "@most": 20.5, "@rush": True},
)


def all_filters() -> dict[str, tuple[Any, bool]]:
    found: dict[str, tuple[Any, bool]] = {
        f"sql {name}": (SqlRuleFilter(text), matches)
        for name, (text, matches) in SQL_FILTERS.items()
    }
    found |= {f"correlation {name}": given for name, given in CORRELATION_FILTERS.items()}
    found["true"] = (TrueRuleFilter(), True)
    found["false"] = (FalseRuleFilter(), False)
    found["sql parameters"] = (PARAMETRIZED, True)
    return found


def test_e8_every_kind_of_filter_chooses_its_messages(bus: Bus, client: ServiceBusClient) -> None:
    """E8: true, false, SQL with the documented grammar, correlation; one subscription each."""
    topic = bus.topic()
    names = {
        name: bus.subscription(topic, {"only": wanted})
        for name, (wanted, _) in all_filters().items()
    }
    send(client, topic, ServiceBusMessage(**MESSAGE))
    with bus.administration() as admin:
        chosen = {
            name: admin.get_subscription_runtime_properties(topic, sub).active_message_count == 1
            for name, sub in names.items()
        }
    assert chosen == {name: matches for name, (_, matches) in all_filters().items()}
    (copy,) = drain(client, f"{topic}/{names['true']}", 1)
    assert str(copy) == "the one"
    assert copy.application_properties[b"trace"] == TRACE


def test_e8_a_time_compares_with_a_parameter(bus: Bus, client: ServiceBusClient) -> None:
    """E8: typed parameters of a filter, here a time."""
    topic = bus.topic()
    later = SqlRuleFilter("at > @moment", parameters={"@moment": MOMENT})
    sub = bus.subscription(topic, {"later": later})
    for offset in (-1, 1):
        moment = MOMENT + timedelta(minutes=offset)
        message = ServiceBusMessage(str(offset), application_properties={"at": moment})
        send(client, topic, message)
    assert bodies(drain(client, f"{topic}/{sub}", 1)) == ["1"]


def test_e8_rules_come_back_as_they_were_made(bus: Bus) -> None:
    """E8: `$Default` is there by itself; every kind of rule reads back."""
    topic = bus.topic()
    sub = bus.subscription(topic)
    (default,) = bus.rules(topic, sub)
    assert default.name == "$Default"
    assert isinstance(default.filter, TrueRuleFilter)
    with bus.administration() as admin:
        admin.create_rule(topic, sub, "p", filter=PARAMETRIZED, action=SqlRuleAction("SET a = 1"))
        admin.create_rule(topic, sub, "c", filter=CORRELATION_FILTERS["properties"][0])
        with pytest.raises(ResourceExistsError):
            admin.create_rule(topic, sub, "C", filter=TrueRuleFilter())
    found = {rule.name: rule for rule in bus.rules(topic, sub)}
    assert sorted(found) == ["$Default", "c", "p"]
    assert found["p"].filter.sql_expression == PARAMETRIZED.sql_expression
    assert found["p"].filter.parameters == PARAMETRIZED.parameters
    assert found["p"].action.sql_expression == "SET a = 1"
    assert found["c"].filter.properties == {"colour": "red", "count": 7, "rush": True}


def test_e8_a_changed_rule_decides_at_once(bus: Bus, client: ServiceBusClient) -> None:
    """E8: rules are updated and deleted; without a rule nothing comes."""
    topic = bus.topic()
    sub = bus.subscription(topic, {"r": SqlRuleFilter("kind = 'a'")})

    def assert_chosen(*wanted: str) -> None:
        both = [ServiceBusMessage(kind, application_properties={"kind": kind}) for kind in "ab"]
        send(client, topic, *both)
        assert bodies(drain(client, f"{topic}/{sub}", len(wanted))) == list(wanted)

    assert_chosen("a")
    with bus.administration() as admin:
        rule = admin.get_rule(topic, sub, "r")
        rule.filter = SqlRuleFilter("kind = 'b'")
        admin.update_rule(topic, sub, rule)
    assert_chosen("b")
    with bus.administration() as admin:
        admin.delete_rule(topic, sub, "r")
    assert_chosen()


def test_e8_actions_set_and_remove(bus: Bus, client: ServiceBusClient) -> None:
    """E8: an action changes its own subscription's copy, user and system properties alike."""
    topic = bus.topic()
    action = SqlRuleAction(
        "SET price = price * 2; SET sys.Label = 'Changed'; SET new = 'n' + colour;"
        " REMOVE count; SET sys.CorrelationId = newid(); SET [odd name] = TRUE"
    )
    changed = bus.subscription(topic, {"act": (TrueRuleFilter(), action)})
    plain = bus.subscription(topic)
    send(client, topic, ServiceBusMessage(**MESSAGE))
    (copy,) = drain(client, f"{topic}/{changed}", 1)
    properties = copy.application_properties
    assert properties == {
        b"colour": b"red",
        b"price": 25.0,
        b"rush": True,
        b"trace": TRACE,
        b"odd name": True,
        b"new": b"nred",
        b"RuleName": b"act",
    }
    assert copy.subject == "Changed"
    assert copy.correlation_id is not None
    assert uuid.UUID(copy.correlation_id)
    assert (copy.message_id, str(copy)) == ("m-1", "the one")
    (other,) = drain(client, f"{topic}/{plain}", 1)
    assert other.application_properties[b"price"] == 12.5
    assert (other.subject, other.correlation_id) == ("Order", "c-1")


def test_e8_several_matching_rules_give_several_copies(bus: Bus, client: ServiceBusClient) -> None:
    """E8: rules without action give one copy together, each with an action its own, named."""
    topic = bus.topic()
    sub = bus.subscription(
        topic,
        {
            "plain": TrueRuleFilter(),
            "also-plain": SqlRuleFilter("colour = 'red'"),
            "x": (SqlRuleFilter("colour = 'red'"), SqlRuleAction("SET via = 'x'")),
            "y": (TrueRuleFilter(), SqlRuleAction("SET via = 'y'")),
            "not": (FalseRuleFilter(), SqlRuleAction("SET via = 'z'")),
        },
    )
    send(client, topic, ServiceBusMessage(**MESSAGE))
    copies = drain(client, f"{topic}/{sub}", 3)
    properties = [copy.application_properties for copy in copies]
    assert [(found.get(b"via"), found.get(b"RuleName")) for found in properties] == [
        (None, None),
        (b"x", b"x"),
        (b"y", b"y"),
    ]


def test_e8_each_subscription_has_its_own_copy(bus: Bus, client: ServiceBusClient) -> None:
    """E8 E4: copies have their own sequence number and remember the topic's."""
    topic = bus.topic()
    first = bus.subscription(topic)
    send(client, topic, "a")
    second = bus.subscription(topic)
    send(client, topic, "b")
    a, b = drain(client, f"{topic}/{first}", 2)
    (other,) = drain(client, f"{topic}/{second}", 1)
    assert [str(m) for m in (a, b, other)] == ["a", "b", "b"]
    assert (a.sequence_number, b.sequence_number, other.sequence_number) == (1, 2, 1)
    assert b.enqueued_sequence_number == other.enqueued_sequence_number == 2


def test_e2_both_spellings_of_a_subscription(bus: Bus, client: ServiceBusClient) -> None:
    """E1 E2: any case, `Subscription` and `Subscriptions`, sub-queues in any case."""
    topic = bus.topic()
    sub = bus.subscription(topic)
    send(client, topic.upper(), "a", "b", "c")
    with bus.proton() as connection:
        for path in (
            f"{topic}/Subscription/{sub}",
            f"{topic.upper()}/SUBSCRIPTIONS/{sub.upper()}",
        ):
            receiver = connection.create_receiver(path)
            receiver.receive()
            receiver.reject()
            receiver.close()
        receiver = connection.create_receiver(f"{topic}/subscriptions/{sub}/$DEADLETTERQUEUE")
        assert receiver.receive().id == "a"
        receiver.accept()
    assert bodies(drain(client, f"{topic}/{sub}", 1)) == ["c"]


# --- what can go wrong with a rule ----------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "colour = ",
        "colour LIKE 'a' ESCAPE 'ab'",
        "(((a = 1)",
        "sys.NoSuchProperty = 1",
        "a = 1 AND AND b = 2",
        "a = " + "1 + " * 300 + "1",
        "NOT " * 255 + "(a = 1",
        "nosuchfunction(a) = 1",
    ],
)
def test_e8_a_bad_filter_is_refused_with_its_position(bus: Bus, expression: str) -> None:
    """E8 S2: when the rule is made, not when a message comes."""
    topic = bus.topic()
    sub = bus.subscription(topic)
    with bus.administration() as admin:
        with pytest.raises(HttpResponseError) as refused:
            admin.create_rule(topic, sub, "bad", filter=SqlRuleFilter(expression))
        assert refused.value.status_code == 400
        assert "TrackingId:" in str(refused.value)
        assert "position" in str(refused.value) or "1024" in str(refused.value)
        bad = SqlRuleAction("SET = 3")
        with pytest.raises(HttpResponseError):
            admin.create_rule(topic, sub, "bad", filter=TrueRuleFilter(), action=bad)
    assert [rule.name for rule in bus.rules(topic, sub)] == ["$Default"]


def test_e8_a_costly_filter_does_not_hold_anybody_up(bus: Bus, client: ServiceBusClient) -> None:
    """E8: neither a pattern nor deep nesting can keep the broker busy."""
    topic = bus.topic()
    sub = bus.subscription(topic, {"r": SqlRuleFilter(f"text LIKE '{'%a' * 200}b'")})
    nested = bus.subscription(topic, {"r": SqlRuleFilter("(" * 500 + "1 = 1" + ")" * 500)})
    text = "a" * 20_000
    began = datetime.now(UTC)
    send(client, topic, ServiceBusMessage("x", application_properties={"text": text}))
    assert datetime.now(UTC) - began < timedelta(seconds=10)
    assert_empty(client, f"{topic}/{sub}")
    drain(client, f"{topic}/{nested}", 1)


FAILING = {"fails": SqlRuleFilter("1 / zero = 1")}
ZERO = ServiceBusMessage("a", application_properties={"zero": 0})


def test_d3_a_failing_filter_dead_letters(bus: Bus, client: ServiceBusClient) -> None:
    """D3 D2: reason is the error's type, description its message; others get their copy."""
    topic = bus.topic()
    sub = bus.subscription(topic, FAILING)
    other = bus.subscription(topic)
    send(client, topic, ZERO)
    (dead,) = drain(client, f"{topic}/{sub}", 1, sub_queue=DEAD_LETTER)
    assert reason(dead)[0] == "FilterException"
    assert "zero" in (reason(dead)[1] or "")
    assert dead.dead_letter_source == f"{topic}/Subscriptions/{sub}"
    assert_empty(client, f"{topic}/{sub}")
    assert bodies(drain(client, f"{topic}/{other}", 1)) == ["a"]


def test_d3_a_failing_action_dead_letters(bus: Bus, client: ServiceBusClient) -> None:
    """D3: the action's own error type."""
    topic = bus.topic()
    act = {"fails": (TrueRuleFilter(), SqlRuleAction("SET x = 1 / zero"))}
    sub = bus.subscription(topic, act)
    send(client, topic, ZERO)
    (dead,) = drain(client, f"{topic}/{sub}", 1, sub_queue=DEAD_LETTER)
    assert reason(dead)[0] == "RuleActionException"


def test_d6_a_failing_filter_with_the_switch_off(bus: Bus, client: ServiceBusClient) -> None:
    """D6: not delivered there and not dead-lettered."""
    topic = bus.topic()
    sub = bus.subscription(topic, FAILING, dead_lettering_on_filter_evaluation_exceptions=False)
    send(client, topic, ZERO)
    assert_empty(client, f"{topic}/{sub}")
    assert_empty(client, f"{topic}/{sub}", sub_queue=DEAD_LETTER)


def test_d3_no_session_id_for_a_session_subscription(bus: Bus, client: ServiceBusClient) -> None:
    """D3 E6: the send succeeds, the subscription's copy is dead-lettered."""
    topic = bus.topic()
    sub = bus.subscription(topic, requires_session=True)
    send(client, topic, "a")
    (dead,) = drain(client, f"{topic}/{sub}", 1, sub_queue=DEAD_LETTER)
    assert (reason(dead)[0] or "").startswith("Session id is null")
    assert "session identifier is null" in (reason(dead)[1] or "")


def test_d3_header_over_its_quota(bus: Bus, client: ServiceBusClient) -> None:
    """D3: an action that makes the properties larger than 64 KB."""
    topic = bus.topic()
    grow = {"grow": (TrueRuleFilter(), SqlRuleAction("SET b = a; SET c = a"))}
    sub = bus.subscription(topic, grow)
    send(client, topic, ServiceBusMessage("a", application_properties={"a": "x" * 30_000}))
    (dead,) = drain(client, f"{topic}/{sub}", 1, sub_queue=DEAD_LETTER)
    assert reason(dead)[0] == "HeaderSizeExceeded"
    assert "size quota for this stream has been exceeded" in (reason(dead)[1] or "")


# --- many -----------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_e8_a_topic_with_1000_subscriptions(bus: Bus, client: ServiceBusClient) -> None:
    """E8: each matching one gets its copy; the list comes in pages; all go with the topic."""
    topic = bus.topic()
    with bus.administration() as admin:

        def make(number: int) -> None:
            admin.create_subscription(topic, f"s{number:04}")

        with ThreadPoolExecutor(2) as workers:
            list(workers.map(make, range(1000)))
        names = [found.name for found in admin.list_subscriptions(topic)]
        assert names == [f"s{number:04}" for number in range(1000)]
        assert admin.get_topic_runtime_properties(topic).subscription_count == 1000
        send(client, topic, "a", "b", "c")
        counts = [
            found.active_message_count
            for found in admin.list_subscriptions_runtime_properties(topic)
        ]
        assert counts == [3] * 1000
        for number in (0, 500, 999):
            assert bodies(drain(client, f"{topic}/s{number:04}", 3)) == ["a", "b", "c"]
        with receiver_of(client, f"{topic}/s0001") as receiver:
            receiver.dead_letter_message(take_one(receiver), reason="unfit")
        admin.delete_topic(topic)
        assert topic not in [found.name for found in admin.list_topics()]
