"""Queues, topics, subscriptions and rules from the command line (E1, E3, E8)."""

import json
import os
from pathlib import Path

from tests.cli.command_line import CommandLine
from twinbus.cli.settings import QUEUE_CREATE


def test_a_queue_is_made_shown_listed_changed_and_removed(run: CommandLine) -> None:
    """E3: settings go in by option and come back as they are."""
    run("queue", "create", "made", "--lock-duration", "PT2M", "--requires-session")
    shown = run("queue", "show", "made", "--json").json
    assert shown["lock_duration"] == "PT2M"
    assert shown["requires_session"] is True
    assert shown["active_message_count"] == 0
    run("queue", "update", "made", "--max-delivery-count", "4", "--status", "SendDisabled")
    listed = {one["name"]: one for one in run("queue", "list", "--json").json}
    assert listed["made"]["max_delivery_count"] == 4
    assert listed["made"]["status"] == "SendDisabled"
    assert listed["made"]["lock_duration"] == "PT2M"
    assert "made" in run("queue", "list").out
    assert "--yes" in run("queue", "delete", "made", code=2).err
    run("queue", "delete", "made", "--yes")
    gone = run("queue", "show", "made", code=3)
    assert gone.err.startswith("twinbus: The messaging entity")
    assert gone.err.count("\n") == 1


def test_an_entity_is_called_by_the_name_it_has(run: CommandLine) -> None:
    assert run("queue", "create", "/slashed/").out == "Queue slashed was made.\n"
    assert run("queue", "delete", "/slashed", "--yes").out == "Queue slashed was removed.\n"


def test_a_topic_with_a_subscription_and_rules(run: CommandLine) -> None:
    """E8: filters and actions of every kind."""
    run("topic", "create", "events", "--max-size-in-megabytes", "2048")
    run("topic", "update", "events", "--user-metadata", "mine")
    assert run("topic", "show", "events", "--json").json["user_metadata"] == "mine"
    assert "events" in [one["name"] for one in run("topic", "list", "--json").json]
    run("subscription", "create", "events", "audit", "--max-delivery-count", "3")
    run("subscription", "update", "events", "audit", "--lock-duration", "PT45S")
    shown = run("subscription", "show", "events", "audit", "--json").json
    assert (shown["max_delivery_count"], shown["lock_duration"]) == (3, "PT45S")
    sql = ("--sql", "amount > 10", "--action", "SET big = true")
    run("rule", "create", "events", "audit", "big", *sql)
    matching = ("--match", "subject=order", "--property", "region=north", "--property", "n:int=5")
    run("rule", "create", "events", "audit", "orders", *matching)
    run("rule", "update", "events", "audit", "big", "--sql", "amount > 20")
    rules = {one["name"]: one for one in run("rule", "list", "events", "audit", "--json").json}
    assert rules["big"]["filter"] == {"kind": "sql", "sql_expression": "amount > 20"}
    assert rules["big"]["action"] == "SET big = true"
    assert rules["orders"]["filter"]["properties"] == {"region": "north", "n": 5}
    run("rule", "delete", "events", "audit", "$Default", "--yes")
    one = run("rule", "show", "events", "audit", "orders", "--json").json
    assert one["filter"]["label"] == "order"
    run("send", "events", "seen", "--subject", "order", "--property", "region=north",
        "--property", "n:int=5")  # fmt: skip
    run("send", "events", "unseen", "--subject", "order", "--property", "region=south")
    got = run("peek", "events/Subscriptions/audit", "--json").lines
    assert [message["body"] for message in got] == ["seen"]
    listed = run("subscription", "list", "events", "--json").json
    assert listed[0]["active_message_count"] == 1
    run("subscription", "delete", "events", "audit", "--yes")
    run("topic", "delete", "events", "--yes")


def test_what_goes_wrong_is_one_line_and_a_code(run: CommandLine, queue: str) -> None:
    """S2: the refusal's own words, and codes that a script can tell apart."""
    exists = run("queue", "create", queue, code=5)
    assert "already exists" in exists.err
    assert exists.err.count("\n") == 1
    missing = run("send", "no-such-queue", "x", code=3)
    assert "could not be found" in missing.err
    assert run("queue", "show", code=2).out == ""
    key = run.environment["TWINBUS_CONNECTION"]
    wrong = key.replace("SharedAccessKey=", "SharedAccessKey=x")
    refused = run("queue", "list", "--connection", wrong, code=4)
    assert refused.err.count("\n") == 1
    assert "malformed" in run("queue", "list", "--connection", "nonsense", code=2).err
    nobody = run("queue", "list", "--admin-endpoint", "localhost:1", code=1)
    assert "refused" in nobody.err


def test_help_names_every_command(run: CommandLine) -> None:
    told = run("--help").out
    for name in ("serve", "queue", "topic", "subscription", "rule", "send", "receive", "peek",
                 "dead-letter", "purge", "undefer", "export", "import", "syphon",
                 "doctor"):  # fmt: skip
        assert f" {name} " in told
    assert "Exit codes" in told


def test_help_cuts_no_option_off(run: CommandLine) -> None:
    """On a terminal of the usual width."""
    run.environment["COLUMNS"] = "80"
    told = run("queue", "create", "--help").out
    for setting in QUEUE_CREATE:
        assert setting.option in told
        if setting.kind is bool:
            assert setting.option.replace("--", "--no-", 1) in told


def test_it_starts_as_users_start_it(run: CommandLine) -> None:
    started = run.start("queue", "list", "--json")
    out, err = started.communicate(timeout=60)
    assert (started.returncode, err) == (0, "")
    assert isinstance(json.loads(out), list)


def test_the_shell_completes_commands(run: CommandLine) -> None:
    run.environment |= {
        "_TWINBUS_COMPLETE": "complete_bash", "COMP_WORDS": "twinbus dead-letter re",
        "COMP_CWORD": "2",
    }  # fmt: skip
    assert run().out.split() == ["resubmit"]


def test_without_the_sdk_it_says_what_to_install(run: CommandLine, tmp_path: Path) -> None:
    """The broker does not need it; commands that do say so in one line."""
    # Found before the real one, and no package: importing azure.servicebus fails.
    (tmp_path / "azure.py").write_text("")
    paths = [str(tmp_path), run.environment.get("PYTHONPATH", "")]
    run.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    for arguments in (
        ("queue", "list"),
        ("receive", "q"),
        ("syphon", "--primary=x", "--secondary=x"),
    ):
        started = run.start(*arguments)
        _, err = started.communicate(timeout=60)
        assert started.returncode == 1
        assert "twinbus[pairing]" in err
        assert err.count("\n") == 1
