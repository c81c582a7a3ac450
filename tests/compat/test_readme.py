"""The README's example, and a configured policy, do what the documents say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthorizationError

from tests.support.broker import KEY, KEY_NAME, PROJECT, Broker

README = (PROJECT / "README.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_example_sends_and_receives(tmp_path: Path) -> None:
    config = tmp_path / "twinbus.toml"
    config.write_text(block("toml"))
    options = ("--admin-port", "off", "--config", str(config))
    form = os.environ.get("TWINBUS_FORM")
    with Broker(tmp_path / "broker", form=form, options=options) as broker:
        ran = subprocess.run(
            [sys.executable, "-c", block("python")],
            env=os.environ | {"CONNECTION": broker.connection_string},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["1", "order", "one", "coffee"]


POLICY = """
[namespaces.shop.policies.reader]
rights = ["Listen"]
primary_key = "only-to-read"

[namespaces.shop.queues.orders]
"""


def test_a_namespaces_own_policy_gives_its_rights_and_no_more(tmp_path: Path) -> None:
    """S2: a policy from the configuration may listen on every entity, and send to none."""
    config = tmp_path / "twinbus.toml"
    config.write_text(POLICY)
    options = ("--admin-port", "off", "--config", str(config))
    form = os.environ.get("TWINBUS_FORM")
    with Broker(tmp_path / "broker", form=form, options=options) as broker:
        text = broker.connection_string.replace(KEY_NAME, "reader").replace(KEY, "only-to-read")
        with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
            with client.get_queue_receiver("orders") as receiver:
                assert receiver.peek_messages(1) == []
            with (
                pytest.raises(ServiceBusAuthorizationError),
                client.get_queue_sender("orders") as sender,
            ):
                sender.send_messages(ServiceBusMessage("no"))
