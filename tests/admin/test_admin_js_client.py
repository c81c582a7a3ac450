"""The official JavaScript administration client against the admin port, over https."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import AdminPort
from memory_namespace import NOW_MS, ROOT_KEY, ROOT_KEY_NAME, Counts

from tests.support.broker import KEY, Broker
from twinbus.core.errors import QUOTA_EXCEEDED, SERVER_BUSY, BusError
from twinbus.core.units import datetime_from_ms

HERE = Path(__file__).parent
NODE_MODULES = Path(os.environ.get("NODE_PATH", HERE.parent / "compat" / "js" / "node_modules"))
NOW = datetime_from_ms(NOW_MS).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def run_client(port: int, ca: Path, key: str) -> Any:
    node = shutil.which("node")
    if node is None or not (NODE_MODULES / "@azure" / "service-bus").is_dir():
        pytest.skip("needs node, and `npm ci` in tests/compat/js (or NODE_PATH)")
    good, wrong = (
        f"Endpoint=sb://localhost:{port}/;SharedAccessKeyName={ROOT_KEY_NAME};SharedAccessKey={k}"
        for k in (key, "d3Jvbmc=")
    )
    finished = subprocess.run(
        [node, HERE / "admin_client.cjs", good, wrong],
        env={
            "PATH": os.environ["PATH"],
            "NODE_PATH": str(NODE_MODULES),
            "NODE_EXTRA_CA_CERTS": str(ca),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def check_entities(seen: Any, port: int) -> None:
    assert seen["namespace"][:2] == ["localhost", "Standard"]
    assert seen["queueName"] == "all/settings"
    assert seen["queueKept"] is True
    target = f"sb://localhost:{port}/target"
    assert (seen["forwardTo"], seen["changedTarget"]) == (target, target)
    assert seen["changed"] == [3, "SendDisabled", None]
    assert seen["queues"] == ["all/settings", "changing", "target"]
    assert seen["pages"] == [["all/settings", "changing"], ["target"]]
    assert seen["existence"] == [True, False]
    assert seen["queuesAfter"] == ["all/settings", "changing"]
    assert seen["topic"] == ["Fruit/fresh", "a", False]
    assert seen["subscription"] == ["Fruit/fresh", "Audit", "PT9S", False]
    assert (seen["topics"], seen["subscriptions"]) == (["Fruit/fresh"], ["Audit"])
    expected = [True, "SET y = @text", {"text": "z"}]
    assert seen["filters"] == dict.fromkeys(("sql", "plain", "correlation"), expected)
    assert seen["changedRule"] == ["plain", "only", None]
    assert seen["rules"] == ["correlation", "first", "plain", "sql"]
    assert seen["rulesAfter"] == ["correlation", "plain", "sql"]
    assert seen["end"] == []


def check_refusals(refusals: Any) -> None:
    assert {name: refusal["code"] for name, refusal in refusals.items()} == {
        "existing": "MessageEntityAlreadyExistsError",
        "topicOverQueue": "MessageEntityAlreadyExistsError",
        "missing": "MessageEntityNotFoundError",
        "missingRule": "MessageEntityNotFoundError",
        "deleted": "MessageEntityNotFoundError",
        "updated": "MessageEntityNotFoundError",
        "longLock": "ServiceError",
        "immutable": "ServiceError",
        "noDuration": "ServiceError",
        "stranger": "UnauthorizedRequestError",
    }
    for refusal in refusals.values():
        assert refusal["message"].startswith(("The messaging entity", "Entity", "SubCode"))
        assert "TrackingId:" in refusal["message"]


def test_E1_E3_E8_the_javascript_client_finds_all_as_it_left_it(admin: AdminPort) -> None:
    admin.namespace.held["target"] = Counts(1, 2, 4, 8, 16, size_bytes=99, accessed_ms=NOW_MS)
    admin.namespace.held["fruit/fresh"] = Counts(scheduled=3)
    admin.namespace.held["fruit/fresh/subscriptions/audit"] = Counts(active=5, dead_letter=1)
    admin.namespace.refusals["quota"] = BusError(QUOTA_EXCEEDED, "There are too many queues.")
    admin.namespace.refusals["busy"] = BusError(SERVER_BUSY, "Come back later.")
    seen = run_client(admin.port, admin.ca, ROOT_KEY)
    assert seen["namespace"] == ["localhost", "Standard", NOW]
    assert seen["runtime"] == [31, 1, 2, 4, 8, 16, 99, NOW, NOW]
    assert seen["subscriptionRuntime"] == [6, "Audit"]
    assert seen["topicRuntime"] == [1, 3]
    assert seen["refusals"].pop("busy")["code"] == "ServerBusyError"
    assert seen["refusals"].pop("quota")["code"] == "QuotaExceededError"
    check_entities(seen, admin.port)
    check_refusals(seen["refusals"])


def test_E1_E3_E8_the_same_against_a_live_broker(tmp_path: Path) -> None:
    with Broker(tmp_path, options=("--admin-port", "0")) as broker:
        port = broker.ready["ports"]["admin"]
        seen = run_client(port, tmp_path / "data" / "tls" / "ca.pem", KEY)
    del seen["refusals"]["busy"], seen["refusals"]["quota"]
    check_entities(seen, port)
    check_refusals(seen["refusals"])
