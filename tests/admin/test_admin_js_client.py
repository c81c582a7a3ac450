"""The official JavaScript administration client against the admin port, over https."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import AdminPort
from memory_namespace import NOW_MS, ROOT_KEY_NAME, Counts

from twinbus.core.errors import QUOTA_EXCEEDED, SERVER_BUSY, BusError
from twinbus.core.units import datetime_from_ms

HERE = Path(__file__).parent
NODE_MODULES = Path(os.environ.get("NODE_PATH", HERE.parent / "compat" / "js" / "node_modules"))
NOW = datetime_from_ms(NOW_MS).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def run_client(admin: AdminPort) -> Any:
    node = shutil.which("node")
    if node is None or not (NODE_MODULES / "@azure" / "service-bus").is_dir():
        pytest.skip("needs node, and `npm ci` in tests/compat/js (or NODE_PATH)")
    finished = subprocess.run(
        [
            node,
            HERE / "admin_client.cjs",
            admin.connection_string,
            admin.connection_string_of(ROOT_KEY_NAME, "d3Jvbmc="),
        ],
        env={
            "PATH": os.environ["PATH"],
            "NODE_PATH": str(NODE_MODULES),
            "NODE_EXTRA_CA_CERTS": str(admin.ca),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_E1_E3_E8_the_javascript_client_finds_all_as_it_left_it(admin: AdminPort) -> None:
    admin.namespace.held["target"] = Counts(1, 2, 4, 8, 16, size_bytes=99, accessed_ms=NOW_MS)
    admin.namespace.held["fruit/fresh"] = Counts(scheduled=3)
    admin.namespace.held["fruit/fresh/subscriptions/audit"] = Counts(active=5, dead_letter=1)
    admin.namespace.refusals["quota"] = BusError(QUOTA_EXCEEDED, "There are too many queues.")
    admin.namespace.refusals["busy"] = BusError(SERVER_BUSY, "Come back later.")
    seen = run_client(admin)
    assert seen["namespace"] == ["localhost", "Standard", NOW]
    assert seen["queueName"] == "all/settings"
    assert seen["queueKept"] is True
    target = f"sb://localhost:{admin.port}/target"
    assert (seen["forwardTo"], seen["changedTarget"]) == (target, target)
    assert seen["changed"] == [3, "SendDisabled", None]
    assert seen["runtime"] == [31, 1, 2, 4, 8, 16, 99, NOW, NOW]
    assert seen["queues"] == ["all/settings", "changing", "target"]
    assert seen["pages"] == [["all/settings", "changing"], ["target"]]
    assert seen["existence"] == [True, False]
    assert seen["queuesAfter"] == ["all/settings", "changing"]
    assert seen["topic"] == ["Fruit/fresh", "a", False]
    assert seen["subscription"] == ["Fruit/fresh", "Audit", "PT9S", False]
    assert seen["subscriptionRuntime"] == [6, "Audit"]
    assert seen["topicRuntime"] == [1, 3]
    assert (seen["topics"], seen["subscriptions"]) == (["Fruit/fresh"], ["Audit"])
    expected = [True, "SET y = @text", {"text": "z"}]
    assert seen["filters"] == dict.fromkeys(("sql", "plain", "correlation"), expected)
    assert seen["changedRule"] == ["plain", "only", None]
    assert seen["rules"] == ["correlation", "first", "plain", "sql"]
    assert seen["rulesAfter"] == ["correlation", "plain", "sql"]
    assert seen["end"] == []
    codes = {name: refusal["code"] for name, refusal in seen["refusals"].items()}
    assert codes == {
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
        "busy": "ServerBusyError",
        "quota": "QuotaExceededError",
    }
    for refusal in seen["refusals"].values():
        assert refusal["message"].startswith(("The messaging entity", "Entity", "SubCode"))
        assert "TrackingId:" in refusal["message"]
