"""`/metrics` tells what happened, to whom it may, and the dashboard asks for what there is."""

import base64
import json
import re
import urllib.error
import urllib.request

import pytest

from tests.cli.command_line import CommandLine
from tests.support.broker import KEY, KEY_NAME, PROJECT, Broker

DASHBOARD = PROJECT / "deploy" / "grafana-dashboard.json"


def page(broker: Broker, **headers: str) -> str:
    url = f"http://localhost:{broker.ready['ports']['admin']}/metrics"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text: str = answer.read().decode()
        return text


def value(text: str, name: str, **labels: str) -> float:
    wanted = "".join(f',{key}="{label}"' for key, label in sorted(labels.items()))
    pattern = "^" + re.escape(name + (f"{{{wanted[1:]}}}" if labels else "")) + r" (\S+)$"
    (found,) = re.findall(pattern, text, re.MULTILINE)
    return float(found)


def test_messages_are_counted_by_entity(run: CommandLine, broker: Broker, queue: str) -> None:
    """C1: in, out, held by state; and the journal's batches."""
    run("send", queue, "a", "b", "c")
    run("send", queue, "later", "--schedule", "PT1H")
    run("receive", queue, "--settle", "dead-letter")
    text = page(broker)
    where = {"entity": queue, "namespace": "sbemulatorns"}
    assert value(text, "twinbus_messages_in_total", **where) == 4
    assert value(text, "twinbus_messages_out_total", **where) >= 1
    assert value(text, "twinbus_messages", **where, state="active") == 2
    assert value(text, "twinbus_messages", **where, state="scheduled") == 1
    assert value(text, "twinbus_messages", **where, state="dead_letter") == 1
    assert value(text, "twinbus_locks_lost_total", **where) == 0
    assert value(text, "twinbus_journal_commits_total") > 0
    assert value(text, "twinbus_journal_commit_seconds_total") > 0
    assert value(text, "twinbus_accepting") == 1
    assert value(text, "process_resident_memory_bytes") > 0


def test_d6_what_a_failing_filter_keeps_out_is_counted(run: CommandLine, broker: Broker) -> None:
    run("topic", "create", "picky")
    run(
        "subscription",
        "create",
        "picky",
        "s",
        "--no-dead-lettering-on-filter-evaluation-exceptions",
    )
    run("rule", "delete", "picky", "s", "$Default", "--yes")
    run("rule", "create", "picky", "s", "broken", "--sql", "10 / n > 1")
    run("send", "picky", "x", "--property", "n:int=0")
    where = {"entity": "picky/Subscriptions/s", "namespace": "sbemulatorns"}
    assert value(page(broker), "twinbus_filter_failures_total", **where) == 1


def test_strangers_need_a_key(broker: Broker) -> None:
    """A proxy on this machine speaks for somebody else."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        page(broker, **{"X-Forwarded-For": "192.0.2.1"})
    with refused.value as answer:
        assert answer.code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic")
    right = base64.b64encode(f"{KEY_NAME}:{KEY}".encode()).decode()
    assert "twinbus_info" in page(
        broker, **{"X-Forwarded-For": "192.0.2.1", "Authorization": f"Basic {right}"}
    )
    for wrong in ("Basic eDp5", "Basic ???", "Bearer x"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            page(broker, **{"X-Forwarded-For": "192.0.2.1", "Authorization": wrong})
        refused.value.close()


def test_a_queue_may_be_called_metrics(run: CommandLine) -> None:
    run("queue", "create", "metrics")
    assert run("queue", "show", "metrics", "--json").json["name"] == "metrics"


def test_the_dashboard_asks_for_metrics_that_exist(broker: Broker, queue: str) -> None:
    known = set(re.findall(r"^([a-z_]+)[{ ]", page(broker), re.MULTILINE))
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert asked
    used = {name for expr in asked for name in re.findall(r"\b(?:twinbus|process)_[a-z_]+", expr)}
    assert used <= known, used - known
