"""The official Python administration client against the admin port, over https."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.servicebus.management import (
    ApiVersion,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from conftest import AdminPort
from memory_namespace import NOW_MS, ROOT_KEY, ROOT_KEY_NAME, Counts

from twinbus.core import sas
from twinbus.core.units import datetime_from_ms


def connect(
    admin: AdminPort, connection_string: str = "", **options: object
) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string or admin.connection_string,
        connection_verify=str(admin.ca),
        retry_total=0,
        **options,
    )


@pytest.fixture
def client(admin: AdminPort) -> Iterator[ServiceBusAdministrationClient]:
    with connect(admin) as made:
        yield made


def test_E1_a_queue_lives_from_creation_to_deletion(admin_port: AdminPort) -> None:
    with connect(admin_port) as client:
        made = client.create_queue("Orders/eu", lock_duration=timedelta(seconds=7))
        assert made.name == "Orders/eu"
        assert client.get_queue("ORDERS/EU").lock_duration == timedelta(seconds=7)
        assert [queue.name for queue in client.list_queues()] == ["Orders/eu"]
        client.delete_queue("orders/eu")
        assert list(client.list_queues()) == []


def test_E3_every_setting_of_a_queue_is_kept(client: ServiceBusAdministrationClient) -> None:
    given = {
        "lock_duration": timedelta(seconds=13),
        "max_size_in_megabytes": 2048,
        "requires_duplicate_detection": True,
        "requires_session": True,
        "default_message_time_to_live": timedelta(days=3, seconds=4),
        "dead_lettering_on_message_expiration": True,
        "duplicate_detection_history_time_window": timedelta(minutes=12),
        "max_delivery_count": 14,
        "enable_batched_operations": False,
        "user_metadata": "<what> & 'why' \"é\" ",
        "auto_delete_on_idle": timedelta(minutes=10),
        "enable_partitioning": True,
        "enable_express": True,
        "max_message_size_in_kilobytes": 2048,
    }
    client.create_queue("all", **given)
    found = client.get_queue("all")
    assert {name: getattr(found, name) for name in given} == given
    assert found.status == "Active"
    assert found.availability_status == "Available"


def test_E3_the_defaults_of_a_queue(client: ServiceBusAdministrationClient) -> None:
    found = client.create_queue("plain")
    assert found.lock_duration == timedelta(seconds=30)
    assert found.max_delivery_count == 10
    assert found.default_message_time_to_live > timedelta(days=10_000_000)
    assert found.requires_session is False
    assert found.forward_to is None


def test_E3_a_queue_that_was_read_can_be_changed_and_sent_back(
    client: ServiceBusAdministrationClient,
) -> None:
    client.create_queue("target")
    queue = client.create_queue("changing", user_metadata="old", forward_to="target")
    assert queue.forward_to == f"sb://{client.fully_qualified_namespace}/target"
    queue.max_delivery_count = 3
    queue.lock_duration = "PT45S"
    queue.user_metadata = None
    queue.status = "SendDisabled"
    client.update_queue(queue)
    found = client.get_queue("changing")
    assert (found.max_delivery_count, found.lock_duration) == (3, timedelta(seconds=45))
    assert found.user_metadata is None
    assert found.status == "SendDisabled"
    assert found.forward_to == queue.forward_to
    assert found.default_message_time_to_live == queue.default_message_time_to_live


def test_runtime_properties_are_the_counts_of_this_moment(
    admin: AdminPort, client: ServiceBusAdministrationClient
) -> None:
    client.create_queue("busy")
    assert client.get_queue_runtime_properties("busy").total_message_count == 0
    admin.namespace.held["busy"] = Counts(1, 2, 4, 8, 16, size_bytes=99, accessed_ms=NOW_MS)
    found = client.get_queue_runtime_properties("busy")
    assert found.total_message_count == 31
    assert (found.active_message_count, found.dead_letter_message_count) == (1, 2)
    assert (found.scheduled_message_count, found.transfer_message_count) == (4, 8)
    assert found.transfer_dead_letter_message_count == 16
    assert found.size_in_bytes == 99
    assert found.accessed_at_utc == datetime_from_ms(NOW_MS)
    assert [r.name for r in client.list_queues_runtime_properties()] == ["busy"]


@pytest.mark.parametrize("page_size", [1, 3, 7, 100])
def test_lists_come_in_pages_sorted_by_name(
    client: ServiceBusAdministrationClient, page_size: int
) -> None:
    names = [f"queue-{number}" for number in (3, 1, 7, 5, 2, 6, 4)]
    for name in names:
        client.create_queue(name)
    pages = [list(page) for page in client.list_queues(max_page_size=page_size).by_page()]
    assert [queue.name for page in pages for queue in page] == sorted(names)
    assert {len(page) for page in pages[:-1]} <= {page_size}


def test_more_than_a_hundred_entities_are_all_listed(
    client: ServiceBusAdministrationClient,
) -> None:
    for number in range(101):
        client.create_topic(f"topic-{number:03}")
    found = client.list_topics(max_page_size=1000)
    assert [topic.name for topic in found] == [f"topic-{number:03}" for number in range(101)]


def test_E1_topics_subscriptions_and_rules(client: ServiceBusAdministrationClient) -> None:
    client.create_topic("Fruit/fresh", requires_duplicate_detection=True, support_ordering=False)
    subscription = client.create_subscription(
        "fruit/FRESH",
        "Audit",
        lock_duration=timedelta(seconds=9),
        dead_lettering_on_filter_evaluation_exceptions=False,
    )
    assert subscription.lock_duration == timedelta(seconds=9)
    assert subscription.dead_lettering_on_filter_evaluation_exceptions is False
    assert [s.name for s in client.list_subscriptions("Fruit/fresh")] == ["Audit"]
    rules = list(client.list_rules("Fruit/fresh", "audit"))
    assert [rule.name for rule in rules] == ["$Default"]
    assert isinstance(rules[0].filter, TrueRuleFilter)
    client.delete_rule("Fruit/fresh", "Audit", "$Default")
    assert list(client.list_rules("Fruit/fresh", "Audit")) == []
    subscription.max_delivery_count = 2
    client.update_subscription("Fruit/fresh", subscription)
    assert client.get_subscription("Fruit/fresh", "Audit").max_delivery_count == 2
    topic = client.get_topic("Fruit/fresh")
    assert topic.requires_duplicate_detection is True
    assert topic.support_ordering is False
    topic.user_metadata = "ripe"
    client.update_topic(topic)
    assert client.get_topic("Fruit/fresh").user_metadata == "ripe"
    client.delete_subscription("Fruit/fresh", "Audit")
    client.delete_topic("Fruit/fresh")
    assert list(client.list_topics()) == []


def test_topics_and_subscriptions_have_runtime_properties(
    admin: AdminPort, client: ServiceBusAdministrationClient
) -> None:
    client.create_topic("t")
    client.create_subscription("t", "s")
    client.create_rule("t", "s", "mine", filter=CorrelationRuleFilter(label="x"))
    admin.namespace.held["t/subscriptions/s"] = Counts(active=5, dead_letter=1)
    admin.namespace.held["t"] = Counts(scheduled=3)
    found = client.get_subscription_runtime_properties("t", "s")
    assert (found.total_message_count, found.active_message_count) == (6, 5)
    topic = client.get_topic_runtime_properties("t")
    assert (topic.subscription_count, topic.scheduled_message_count) == (1, 3)


VALUES = {
    "string": "a <b> & 'c'",
    "int": 7,
    "long": 2**40,
    "double": 1.5,
    "boolean": True,
    "time": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
    "duration": timedelta(days=1, seconds=2),
}


def said_by(rule_filter: object) -> dict[str, object]:
    """What a filter says, without what it leaves out and what the service never returns."""
    said = {k: v for k, v in vars(rule_filter).items() if v not in (None, {})}
    said.pop("requires_preprocessing", None)
    return said


@pytest.mark.parametrize(
    "rule_filter",
    [
        TrueRuleFilter(),
        SqlRuleFilter("color = 'red' AND size > @size", parameters={"@size": 3}),
        SqlRuleFilter("a < b & c"),
        SqlRuleFilter("x = @string", parameters={f"@{k}": v for k, v in VALUES.items()}),
        CorrelationRuleFilter(label="x", correlation_id="y"),
        CorrelationRuleFilter(
            correlation_id="a",
            message_id="b",
            to="c",
            reply_to="d",
            label="e",
            session_id="f",
            reply_to_session_id="g",
            content_type="h",
            properties=VALUES,
        ),
    ],
    ids=["true", "sql", "sql-plain", "sql-typed", "correlation", "correlation-all"],
)
def test_E8_every_kind_of_filter_comes_back_as_sent(
    client: ServiceBusAdministrationClient, rule_filter: object
) -> None:
    client.create_topic("t")
    client.create_subscription("t", "s")
    client.create_rule("t", "s", "Mine", filter=rule_filter)
    rule = client.get_rule("t", "s", "mine")
    assert rule.name == "mine"
    assert type(rule.filter) is type(rule_filter)
    assert said_by(rule.filter) == said_by(rule_filter)
    listed = {r.name: r.filter for r in client.list_rules("t", "s")}
    assert said_by(listed["Mine"]) == said_by(rule_filter)


def test_E8_a_false_filter_stays_false(client: ServiceBusAdministrationClient) -> None:
    client.create_topic("t")
    client.create_subscription("t", "s")
    client.create_rule("t", "s", "never", filter=FalseRuleFilter())
    found = client.get_rule("t", "s", "never").filter
    assert isinstance(found, FalseRuleFilter)
    assert found.sql_expression == "1=0"


def test_E8_actions_come_back_and_rules_change(client: ServiceBusAdministrationClient) -> None:
    client.create_topic("t")
    client.create_subscription("t", "s")
    action = SqlRuleAction("SET priority = @p", parameters={"@p": "high"})
    rule = client.create_rule("t", "s", "r", filter=SqlRuleFilter("1=1"), action=action)
    assert rule.action.sql_expression == "SET priority = @p"
    assert rule.action.parameters == {"@p": "high"}
    rule.action = None
    rule.filter = CorrelationRuleFilter(label="only")
    client.update_rule("t", "s", rule)
    found = client.get_rule("t", "s", "r")
    assert found.action is None
    assert found.filter.label == "only"


def test_authorization_rules_come_back_and_open_their_entity_only(
    admin: AdminPort, client: ServiceBusAdministrationClient
) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=["Manage", "Send", "Listen"],
        key_name="mine",
        primary_key="cHJpbWFyeQ==",
        secondary_key="c2Vjb25kYXJ5",
    )
    listener = AuthorizationRule(rights=["Listen"], key_name="listener")
    client.create_queue("own", authorization_rules=[rule, listener])
    client.create_queue("other")
    found = {r.key_name: r for r in client.get_queue("own").authorization_rules}
    assert found["mine"].rights == ["Manage", "Send", "Listen"]
    assert found["mine"].primary_key == "cHJpbWFyeQ=="
    assert found["mine"].secondary_key == "c2Vjb25kYXJ5"
    assert found["mine"].created_at_utc.year >= 2025
    made_key = found["listener"].primary_key
    assert len(made_key) == 44
    for key in ("cHJpbWFyeQ==", "c2Vjb25kYXJ5"):
        with connect(admin, admin.connection_string_of("mine", key)) as narrow:
            assert narrow.get_queue("own").name == "own"
            with pytest.raises(ClientAuthenticationError):
                narrow.get_queue("other")
    with (
        connect(admin, admin.connection_string_of("listener", made_key)) as deaf,
        pytest.raises(HttpResponseError) as caught,
    ):
        deaf.get_queue("own")
    assert caught.value.status_code == 403
    queue = client.get_queue("own")
    queue.authorization_rules[1].primary_key = None
    client.update_queue(queue)
    assert client.get_queue("own").authorization_rules[1].primary_key == made_key


def test_namespace_properties(client: ServiceBusAdministrationClient) -> None:
    found = client.get_namespace_properties()
    assert (found.name, found.messaging_sku, found.namespace_type) == (
        "localhost",
        "Standard",
        "Messaging",
    )
    assert found.created_at_utc == found.modified_at_utc == datetime_from_ms(NOW_MS)


@pytest.mark.parametrize("version", list(ApiVersion))
def test_every_version_of_the_api_is_served(admin: AdminPort, version: ApiVersion) -> None:
    with connect(admin, api_version=version) as client:
        client.create_topic("t")
        assert client.get_topic("t").name == "t"


def test_a_ready_made_token_is_taken(admin: AdminPort) -> None:
    address = f"sb://localhost:{admin.port}"
    token = sas.make_token(address, ROOT_KEY_NAME, ROOT_KEY, int(time.time()) + 60)
    text = f"Endpoint={address}/;SharedAccessSignature={token}"
    with connect(admin, text) as client:
        assert client.create_queue("q").name == "q"


def test_other_tokens_are_refused(admin: AdminPort) -> None:
    class Token:
        def get_token(self, *scopes: str, **options: object) -> AccessToken:
            return AccessToken("eyJhbGciOiJub25lIn0.e30.", int(time.time()) + 60)

    with (
        ServiceBusAdministrationClient(
            f"localhost:{admin.port}", Token(), connection_verify=str(admin.ca)
        ) as client,
        pytest.raises(ClientAuthenticationError, match="TrackingId"),
    ):
        client.get_queue("q")


def test_refusals_are_the_exceptions_that_users_catch(
    admin: AdminPort, client: ServiceBusAdministrationClient
) -> None:
    client.create_queue("q")
    client.create_topic("t")
    client.create_subscription("t", "s")
    with pytest.raises(ResourceExistsError, match=r"Entity .*TrackingId"):
        client.create_queue("Q")
    with pytest.raises(ResourceExistsError):
        client.create_topic("q")
    with pytest.raises(ResourceExistsError):
        client.create_subscription("t", "s")
    with pytest.raises(ResourceExistsError):
        client.create_rule("t", "s", "$default", filter=TrueRuleFilter())
    for ask in (
        lambda: client.get_queue("none"),
        lambda: client.get_topic("none"),
        lambda: client.get_subscription("t", "none"),
        lambda: client.get_subscription("none", "s"),
        lambda: client.get_rule("t", "s", "none"),
        lambda: client.delete_queue("none"),
        lambda: client.delete_subscription("t", "none"),
        lambda: client.delete_rule("t", "s", "none"),
        lambda: list(client.list_subscriptions("none")),
        lambda: list(client.list_rules("t", "none")),
        lambda: client.create_subscription("none", "s"),
    ):
        with pytest.raises(ResourceNotFoundError, match="The messaging entity"):
            ask()
    wrong = admin.connection_string_of(ROOT_KEY_NAME, "d3Jvbmc=")
    with connect(admin, wrong) as stranger, pytest.raises(ClientAuthenticationError):
        stranger.get_queue("q")


def test_bad_values_are_refused_with_400(client: ServiceBusAdministrationClient) -> None:
    queue = client.create_queue("q")
    client.create_topic("t")
    for ask in (
        lambda: client.create_queue("long-lock", lock_duration=timedelta(minutes=6)),
        lambda: client.create_queue("bad name!"),
        lambda: client.create_queue("never", max_delivery_count=0),
        lambda: client.create_queue("huge", max_message_size_in_kilobytes=999),
        lambda: client.create_subscription("t", "x" * 51),
        lambda: client.update_queue(dict(queue, requires_session=True)),
        lambda: client.update_queue(dict(queue, status="Sleeping")),
    ):
        with pytest.raises(HttpResponseError, match="SubCode=40000") as caught:
            ask()
        assert caught.value.status_code == 400
    with pytest.raises(HttpResponseError) as caught:
        client.update_queue(dict(queue, name="none"))
    assert caught.value.status_code == 404


def test_a_failure_of_the_broker_is_a_500_with_a_tracking_id(
    admin: AdminPort,
    client: ServiceBusAdministrationClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin.namespace.failure = RuntimeError("a secret of the broker")
    with pytest.raises(HttpResponseError, match="TrackingId:") as caught:
        list(client.list_queues())
    assert caught.value.status_code == 500
    assert "secret" not in caught.value.message
    tracking_id = caught.value.message.partition("TrackingId:")[2].partition(",")[0]
    record = next(r for r in caplog.records if tracking_id in r.getMessage())
    assert record.exc_info is not None
    assert record.exc_info[1] is admin.namespace.failure


def test_without_the_certificate_there_is_no_connection(admin: AdminPort) -> None:
    with (
        ServiceBusAdministrationClient.from_connection_string(
            admin.connection_string, retry_total=0
        ) as client,
        pytest.raises(ServiceRequestError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.get_namespace_properties()
