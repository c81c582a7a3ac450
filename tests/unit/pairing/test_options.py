"""Options are checked when they are made (P1), and names are agreed on (P2)."""

from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient

from twinbus.cli.remote import Remote
from twinbus.core import names
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.names import backlog_queue_name, namespace_name
from twinbus.pairing.sync import PairedServiceBusClient


def test_p1_defaults() -> None:
    options = SendAvailabilityPairedNamespaceOptions(secondary="Endpoint=sb://b/")
    assert options.backlog_queue_count == 10
    assert options.enable_syphon is False
    assert options.ping_primary_interval == timedelta(seconds=60)
    assert options.syphon_poll == timedelta(minutes=15)
    assert options.keep_session_order is False
    assert options.assign_message_ids is False


@pytest.mark.parametrize(
    "wrong",
    [
        {"backlog_queue_count": 0},
        {"failover_interval": timedelta(seconds=-1)},
        {"ping_primary_interval": timedelta(milliseconds=999)},
        {"ping_primary_interval": timedelta(minutes=30, milliseconds=1)},
        {"syphon_retry_interval": timedelta(0)},
        {"syphon_poll": timedelta(0)},
        {"operation_timeout": timedelta(0)},
    ],
    ids=str,
)
def test_p1_wrong_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SendAvailabilityPairedNamespaceOptions(secondary="Endpoint=sb://b/", **wrong)


@pytest.mark.parametrize("seconds", [1, 60, 1800])
def test_p1_edges_of_the_ping_interval(seconds: int) -> None:
    SendAvailabilityPairedNamespaceOptions(
        secondary="Endpoint=sb://b/", ping_primary_interval=timedelta(seconds=seconds)
    )


@pytest.mark.parametrize(("given", "retries"), [({}, 0), ({"retry_total": 2}, 2)])
def test_p1_client_options_go_before_the_settings_of_attempts(
    given: dict[str, Any], retries: int
) -> None:
    somewhere = "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=k"
    client = PairedServiceBusClient.from_connection_strings(
        somewhere, somewhere, client_options=given
    )
    assert client._sending._config.retry_total == retries
    assert client._secondary._config.retry_total == retries
    client.close()


def test_p1_a_client_needs_an_administration_client_beside_it() -> None:
    with pytest.raises(ValueError, match="administration"):
        SendAvailabilityPairedNamespaceOptions(secondary=object())


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("contoso.servicebus.windows.net", "contoso"),
        ("sb://contoso.servicebus.windows.net/", "contoso"),
        ("localhost:5672", "localhost"),
        ("localhost", "localhost"),
    ],
)
def test_p2_the_name_is_the_first_label_of_the_host(host: str, name: str) -> None:
    assert namespace_name(host) == name
    assert backlog_queue_name(host, 0) == f"{name}/x-servicebus-transfer/0"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("sb://10.0.0.6:5671/", "10.0.0.6"),
        ("[2001:db8::1]", "2001-0db8-0000-0000-0000-0000-0000-0001"),
        ("sb://[2001:0DB8::1]:5672/", "2001-0db8-0000-0000-0000-0000-0000-0001"),
        ("2001:db8::1", "2001-0db8-0000-0000-0000-0000-0000-0001"),
    ],
)
def test_p2_an_address_is_taken_whole(host: str, name: str) -> None:
    """Cut at the first dot, two primaries in one network would have one backlog."""
    assert namespace_name(host) == name
    names.check_entity_name(backlog_queue_name(host, 0))


@pytest.mark.parametrize("place", ["contoso.example", "10.0.0.5:5672", "[::1]", "[::1]:5672"])
def test_p2_commands_and_clients_call_the_backlog_queues_alike(place: str) -> None:
    string = f"Endpoint=sb://{place}/;SharedAccessKeyName=n;SharedAccessKey=k"
    with ServiceBusClient.from_connection_string(string) as client:
        host = client.fully_qualified_namespace
    assert backlog_queue_name(Remote(string).host, 3) == backlog_queue_name(host, 3)
