"""Descriptions to Atom XML and back (E3, E8), and what no client can talk us into."""

from contextlib import suppress
from types import SimpleNamespace
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.admin import reading, writing
from twinbus.admin.markup import parse
from twinbus.admin.writing import Origin, Page
from twinbus.core.descriptions import (
    STATUSES,
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.core.units import UNLIMITED_MS

ORIGIN = Origin("https", "localhost:5300", "local", "2024-05")
SB = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = SimpleNamespace(
    active=1,
    dead_letter=2,
    scheduled=4,
    transfer=8,
    transfer_dead_letter=16,
    size_bytes=4096,
    accessed_ms=0,
    subscription_count=3,
    sql_filter_count=5,
    correlation_filter_count=7,
)

# Everything that XML can hold, carriage returns and other planes included.
texts = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff")
    | st.sampled_from("\t\n\r<>&\"'"),
)
words = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)
durations = st.integers(1, 10**14) | st.just(UNLIMITED_MS)
counts = st.integers(-(2**40), 2**40)
maybe_texts = st.none() | texts.filter(bool)
maybe_paths = st.none() | st.lists(words, min_size=1, max_size=3).map("/".join)
typed_values = st.dictionaries(
    texts,
    st.tuples(
        st.sampled_from(["string", "int", "long", "double", "boolean", "dateTime", "duration"]),
        texts,
    ),
    max_size=3,
)
authorization_rules = st.lists(
    st.builds(
        AuthorizationRule,
        name=words,
        rights=st.lists(st.sampled_from(["Send", "Listen", "Manage"]), max_size=3),
        primary_key=words,
        secondary_key=words,
        # Those are written, and not read.
        created_ms=st.just(0),
        modified_ms=st.just(0),
    ),
    max_size=3,
)
common = {
    "default_message_time_to_live_ms": durations,
    "enable_batched_operations": st.booleans(),
    "status": st.sampled_from(STATUSES),
    "user_metadata": maybe_texts,
    "auto_delete_on_idle_ms": durations,
    "created_ms": st.just(0),
    "updated_ms": st.just(0),
}
stored = {
    "max_size_in_megabytes": counts,
    "requires_duplicate_detection": st.booleans(),
    "duplicate_detection_history_time_window_ms": durations,
    "enable_partitioning": st.booleans(),
    "enable_express": st.booleans(),
    "max_message_size_in_kilobytes": counts,
    "authorization_rules": authorization_rules,
}
received = {
    "lock_duration_ms": durations,
    "requires_session": st.booleans(),
    "dead_lettering_on_message_expiration": st.booleans(),
    "max_delivery_count": counts,
    "forward_to": maybe_paths,
    "forward_dead_lettered_messages_to": maybe_paths,
}
queues = st.builds(QueueDescription, name=words, **common, **stored, **received)
topics = st.builds(TopicDescription, name=words, support_ordering=st.booleans(), **common, **stored)
subscriptions = st.builds(
    SubscriptionDescription,
    topic=words,
    name=words,
    dead_lettering_on_filter_evaluation_exceptions=st.booleans(),
    **common,
    **received,
)


def rules_of(**kind: st.SearchStrategy[object]) -> st.SearchStrategy[RuleDescription]:
    return st.builds(RuleDescription, name=words, action=st.none() | texts, **kind)


rules = st.one_of(
    rules_of(),
    rules_of(filter=st.just("false"), expression=st.just("1=0")),
    rules_of(filter=st.just("sql"), expression=texts, parameters=typed_values),
    rules_of(
        filter=st.just("correlation"),
        expression=st.just(""),
        correlation=st.dictionaries(
            st.sampled_from(["correlation_id", "message_id", "to", "label", "content_type"]), texts
        ),
        properties=typed_values,
    ),
)


def element_names(entry: str) -> list[str]:
    return [child.tag.rpartition("}")[2] for child in reading.read_entry(entry.encode())[1]]


@given(queues)
def test_E3_a_queue_reads_back_as_it_was_written(queue: QueueDescription) -> None:
    name, found = reading.read_entry(writing.queue_entry(queue, COUNTS, ORIGIN).encode())
    assert name == "QueueDescription"
    assert reading.read_queue(found, QueueDescription(queue.name)) == queue


@given(topics)
def test_E3_a_topic_reads_back_as_it_was_written(topic: TopicDescription) -> None:
    name, found = reading.read_entry(writing.topic_entry(topic, COUNTS, ORIGIN).encode())
    assert name == "TopicDescription"
    assert reading.read_topic(found, TopicDescription(topic.name)) == topic


@given(subscriptions)
def test_E3_a_subscription_reads_back_as_it_was_written(given_: SubscriptionDescription) -> None:
    entry = writing.subscription_entry(given_, COUNTS, ORIGIN)
    name, found = reading.read_entry(entry.encode())
    assert name == "SubscriptionDescription"
    base = SubscriptionDescription(given_.topic, given_.name)
    assert reading.read_subscription(found, base) == given_


@given(rules, typed_values)
def test_E8_a_rule_reads_back_as_it_was_written(
    rule: RuleDescription, parameters: dict[str, tuple[str, str]]
) -> None:
    if rule.action is not None:
        rule.action_parameters = parameters
    entry = writing.rule_entry("topic", "subscription", rule, ORIGIN)
    name, found = reading.read_entry(entry.encode())
    assert name == "RuleDescription"
    assert reading.read_rule(found, rule.name) == rule


@given(st.text(), st.text())
def test_any_text_whatever_makes_well_formed_xml(detail: str, title: str) -> None:
    assert fromstring(writing.error_body(400, detail)).findtext("Code") == "400"
    feed = writing.feed(title, title, [], Page(0, 1, True), 0, ORIGIN)
    assert fromstring(feed)[0].text in (title, None) or "\ufffd" in feed


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with suppress(BusError):
        parse(body)


def test_the_elements_stand_in_azures_order() -> None:
    queue = QueueDescription("q", forward_to="a", user_metadata="b")
    queue.forward_dead_lettered_messages_to = "c"
    assert element_names(writing.queue_entry(queue, COUNTS, ORIGIN)) == [
        "LockDuration",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DuplicateDetectionHistoryTimeWindow",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "SizeInBytes",
        "MessageCount",
        "IsAnonymousAccessible",
        "AuthorizationRules",
        "Status",
        "ForwardTo",
        "UserMetadata",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "SupportOrdering",
        "CountDetails",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EntityAvailabilityStatus",
        "ForwardDeadLetteredMessagesTo",
        "EnableExpress",
        "MaxMessageSizeInKilobytes",
    ]
    topic = TopicDescription("t", user_metadata="b")
    assert element_names(writing.topic_entry(topic, COUNTS, ORIGIN)) == [
        "DefaultMessageTimeToLive",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow",
        "EnableBatchedOperations",
        "SizeInBytes",
        "FilteringMessagesBeforePublishing",
        "IsAnonymousAccessible",
        "AuthorizationRules",
        "Status",
        "UserMetadata",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "SupportOrdering",
        "CountDetails",
        "SubscriptionCount",
        "SqlFilterCount",
        "CorrelationFilterCount",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EntityAvailabilityStatus",
        "EnableSubscriptionPartitioning",
        "EnableExpress",
        "MaxMessageSizeInKilobytes",
    ]
    subscription = SubscriptionDescription("t", "s")
    assert element_names(writing.subscription_entry(subscription, COUNTS, ORIGIN)) == [
        "LockDuration",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions",
        "MessageCount",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "Status",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "CountDetails",
        "AutoDeleteOnIdle",
        "EntityAvailabilityStatus",
    ]


def test_older_api_versions_do_not_hear_of_filter_counts() -> None:
    old = Origin("https", "localhost", "local", "2021-05")
    assert "SqlFilterCount" not in writing.topic_entry(TopicDescription("t"), COUNTS, old)


def test_the_bytes_of_an_entry_are_those_that_clients_want() -> None:
    entry = writing.queue_entry(QueueDescription("a/b"), COUNTS, ORIGIN)
    assert entry.startswith(
        '<entry xmlns="http://www.w3.org/2005/Atom">'
        "<id>https://localhost:5300/a/b?api-version=2024-05</id>"
        '<title type="text">a/b</title><published>'
    )
    assert f'<QueueDescription xmlns="{SB}" xmlns:i="http://www.w3.org/2001/XMLSchema-' in entry
    assert "<LockDuration>PT30S</LockDuration><MaxSizeInMegabytes>1024<" in entry
    assert "<MessageCount>31</MessageCount>" in entry
    assert (
        '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
        "<d2p1:ActiveMessageCount>1</d2p1:ActiveMessageCount>" in entry
    )
    assert "<AccessedAt>0001-01-01T00:00:00Z</AccessedAt>" in entry
    assert "> <" not in entry
    assert "\n" not in entry


def test_typed_values_have_a_prefix_of_four_letters() -> None:
    rule = RuleDescription("r", "sql", "@a = 1", parameters={"@a": ("int", "1")})
    assert (
        '<Value i:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">1</Value>'
        in writing.rule_entry("t", "s", rule, ORIGIN)
    )


def test_what_xml_cannot_hold_is_replaced() -> None:
    rule = RuleDescription("r", "sql", "a = '\x00\ud800'")
    assert "<SqlExpression>a = '\ufffd\ufffd'</SqlExpression>" in writing.rule_entry(
        "t", "s", rule, ORIGIN
    )


def test_the_next_link_is_the_second_and_names_both_numbers() -> None:
    feed = writing.feed("Queues", "$Resources/queues", [], Page(10, 5, True), 0, ORIGIN)
    links = fromstring(feed).findall("{http://www.w3.org/2005/Atom}link")
    assert [link.get("rel") for link in links] == ["self", "next"]
    assert links[1].get("href") == (
        "https://localhost:5300/$Resources/queues?$skip=15&$top=5&api-version=2024-05"
    )
    assert "next" not in writing.feed(
        "Queues", "$Resources/queues", [], Page(0, 5, False), 0, ORIGIN
    )


def entry_of(description: str) -> bytes:
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f"{description}</content></entry>"
    ).encode()


def queue_from(settings: str, base: QueueDescription) -> QueueDescription:
    body = entry_of(f'<QueueDescription xmlns="{SB}">{settings}</QueueDescription>')
    return reading.read_queue(reading.read_entry(body)[1], base)


def test_an_update_resets_what_is_absent_but_not_what_is_chosen_for_good() -> None:
    old = QueueDescription(
        "q",
        lock_duration_ms=5000,
        requires_session=True,
        requires_duplicate_detection=True,
        enable_partitioning=True,
        auto_delete_on_idle_ms=3_600_000,
        forward_to="x",
        user_metadata="note",
        authorization_rules=[AuthorizationRule("key", ["Send"], "a", "b")],
        created_ms=7,
    )
    new = queue_from("<MaxDeliveryCount>3</MaxDeliveryCount>", old)
    assert new == QueueDescription(
        "q",
        max_delivery_count=3,
        requires_session=True,
        requires_duplicate_detection=True,
        enable_partitioning=True,
        created_ms=7,
    )


def test_a_rules_times_are_not_read() -> None:
    queue = queue_from(
        "<AuthorizationRules><AuthorizationRule><CreatedTime>0001-01-01T00:00:00+01:00"
        "</CreatedTime><KeyName>key</KeyName></AuthorizationRule></AuthorizationRules>",
        QueueDescription("q"),
    )
    assert queue.authorization_rules == [AuthorizationRule("key", [], "", "")]


def test_pythons_largest_duration_is_unlimited() -> None:
    queue = queue_from(
        "<AutoDeleteOnIdle>P10675199DT2H48M5.477539S</AutoDeleteOnIdle>", QueueDescription("q")
    )
    assert queue.auto_delete_on_idle_ms == UNLIMITED_MS


def test_a_forwarding_target_may_be_an_address_or_a_path() -> None:
    for given_ in ("sb://localhost:5300/a/b", "https://ns.example/a/b", "a/b"):
        queue = queue_from(f"<ForwardTo>{given_}</ForwardTo>", QueueDescription("q"))
        assert queue.forward_to == "a/b"


def test_a_nil_element_counts_as_absent() -> None:
    nil = 'xmlns:z="http://www.w3.org/2001/XMLSchema-instance" z:nil="true"'
    queue = queue_from(f"<RequiresSession {nil}/>", QueueDescription("q", requires_session=True))
    assert queue.requires_session


@pytest.mark.parametrize(
    "settings",
    [
        "<LockDuration>soon</LockDuration>",
        "<LockDuration>P</LockDuration>",
        "<LockDuration/>",
        "<MaxDeliveryCount>1_0</MaxDeliveryCount>",
        "<MaxDeliveryCount>many</MaxDeliveryCount>",
        "<MaxDeliveryCount>99999999999999999999999</MaxDeliveryCount>",
        "<RequiresSession>perhaps</RequiresSession>",
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_element(settings: str) -> None:
    with pytest.raises(BusError, match=r"cannot be read") as caught:
        queue_from(settings, QueueDescription("q"))
    assert caught.value.kind.status == 400
    assert caught.value.text.startswith(settings[1:].partition(">")[0].strip("/"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<entry",
        b"<entry/>",
        b'<entry xmlns="http://www.w3.org/2005/Atom"/>',
        entry_of(""),
        entry_of("<QueueDescription/>"),
        entry_of(f'<QueueDescription xmlns="{SB}"/><TopicDescription xmlns="{SB}"/>'),
        f'<QueueDescription xmlns="{SB}"/>'.encode(),
        b'<?xml version="1.0" encoding="nobody-knows"?><entry/>',
    ],
)
def test_a_body_that_is_no_entry_is_refused(body: bytes) -> None:
    with pytest.raises(BusError) as caught:
        reading.read_entry(body)
    assert caught.value.kind.status == 400


@pytest.mark.parametrize(
    "body",
    [
        b'<!DOCTYPE e [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><e>&b;</e>',
        b'<!DOCTYPE e [<!ENTITY a SYSTEM "file:///etc/passwd">]><e>&a;</e>',
        b'<!DOCTYPE e SYSTEM "http://127.0.0.1/e.dtd"><e/>',
        b"<!DOCTYPE e><e/>",
    ],
)
def test_entities_and_document_types_are_refused(body: bytes) -> None:
    with pytest.raises(BusError, match="document type or entities"):
        parse(body)


def test_a_body_nested_to_its_full_size_harms_nothing() -> None:
    deep = b"<a>" * 140_000 + b"</a>" * 140_000
    with pytest.raises(BusError, match="Atom entry"):
        reading.read_entry(deep)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("<Filter/>", "not a kind of filter"),
        ('<Filter i:type="RegexFilter"/>', "not a kind of filter"),
        ('<Filter i:type="SqlFilter"/>', "needs an SqlExpression"),
        ('<Action i:type="PythonAction"/>', "not a kind of action"),
        ('<Action i:type="SqlRuleAction"/>', "needs an SqlExpression"),
        (
            '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType>'
            "<Key>a</Key></KeyValueOfstringanyType></Properties></Filter>",
            "needs a Key and a Value",
        ),
        (
            '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType>'
            '<Key>a</Key><Value i:type="x:shape">1</Value>'
            "</KeyValueOfstringanyType></Properties></Filter>",
            "has type 'shape'",
        ),
    ],
)
def test_a_rule_that_says_nothing_known_is_refused(rule: str, text: str) -> None:
    instance = "http://www.w3.org/2001/XMLSchema-instance"
    body = entry_of(f'<RuleDescription xmlns="{SB}" xmlns:i="{instance}">{rule}</RuleDescription>')
    with pytest.raises(BusError, match=text):
        reading.read_rule(reading.read_entry(body)[1], "r")
