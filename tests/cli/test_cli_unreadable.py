"""One message that cannot be read hides no other, and nothing throws it away unseen."""

from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine
from tests.support.broker import Broker
from twinbus.amqp.codec import encode_map
from twinbus.client import Client
from twinbus.forms.message_form import from_json

# The broker takes in what it need not read, such as a text in Latin-1.
ODD = b"\x00\x53\x74" + encode_map([("city", b"\xa1\x04K\xf6ln")]) + b"\x00\x53\x75\xa0\x01x"


@pytest.fixture
def filled(broker: Broker, queue: str) -> str:
    """A queue with an odd message between two others."""
    with Client.connect(broker.connection_string) as client, client.sender(queue) as sender:
        first, last = (from_json({"body": body}).payload for body in ("first", "last"))
        sender.send([first, ODD, last])
        sender.flush()
    return queue


def test_it_is_listed_as_what_it_is(run: CommandLine, filled: str, tmp_path: Path) -> None:
    first, odd, last = run("peek", filled).out.splitlines()
    assert first.endswith("  first")
    assert odd.startswith("2  cannot be read: ")
    assert last.endswith("  last")
    shown = run("peek", filled, "--state", "active", "--json").lines[1]
    assert (shown["sequence_number"], shown.keys()) == (2, {"sequence_number", "unreadable"})
    file = tmp_path / "all.jsonl"
    told = run("export", filled, str(file), "--json", code=1)
    assert told.json["exported"] == 2
    assert told.err == "twinbus: left out, for they cannot be read: 2\n"
    assert len(file.read_text().splitlines()) == 2
    assert run("import", filled, str(file), "--json").json == {"imported": 2}


def test_it_is_not_completed(run: CommandLine, filled: str) -> None:
    """Nor does it count: as many others come as were asked for."""
    told = run("receive", filled, "--count", "2", "--json", code=1)
    assert [message["body"] for message in told.lines] == ["first", "last"]
    assert told.err == f"twinbus: left in {filled}, for they cannot be read: 2\n"
    told = run("receive", filled, "--all", "--wait", "1", code=1)
    assert told.out.startswith("2  cannot be read: ")
    assert "0 received" in told.err
    # It can be put out of the way.
    told = run("receive", filled, "--settle", "dead-letter", "--json")
    assert (told.out, told.err) == ("", "These cannot be read: 2.\n")
    assert run("peek", filled).out == ""
    assert "cannot be read" in run("dead-letter", "list", filled).out
