"""The example files do what they say."""

from pathlib import Path

from tests.cli.command_line import CommandLine, Warm, clean_environment
from tests.support.broker import PROJECT, Broker

EXAMPLES = PROJECT / "examples"


class ShopBroker(Broker):
    """A broker with the example's configuration in place of one of its own."""

    def start(self) -> Broker:
        self.options = (*self.options, "--config", str(EXAMPLES / "shop.toml"))
        return super().start()


def test_the_orders_go_into_the_shop(tmp_path: Path, warm: Warm) -> None:
    with ShopBroker(tmp_path, options=("--admin-port", "0")) as broker:
        connection = {"TWINBUS_CONNECTION": broker.connection_string}
        run = CommandLine(clean_environment() | connection, warm)
        lines = str(EXAMPLES / "orders.jsonl")
        assert run("send", "orders", "--lines", lines, "--json").json == {"sent": 3}
        run("send", "events", "--lines", lines)
        states = [
            message.get("state", "active") for message in run("peek", "orders", "--json").lines
        ]
        assert states == ["active", "active", "scheduled"]
        large = run("peek", "events/Subscriptions/large", "--json").lines
        assert [message["message_id"] for message in large] == ["order-2"]
