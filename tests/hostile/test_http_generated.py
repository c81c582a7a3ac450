"""Goal: no request to the HTTP side, however odd, harms it or goes without a proper answer.

Method: requests generated from the router's own table, right ones and nearly right ones, over
bare sockets to a live broker. Each answer is whole, in time and no failure of the broker; each
refusal says what was wrong and has a tracking id. At the end a canary queue is as it was, other
clients are served, memory has not grown and no traceback is in the log.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.hostile.http_requests import Request, requests
from tests.hostile.http_routes import Route, all_routes
from tests.hostile.http_talk import Answer, read_answer, talk
from tests.support.broker import KEY, KEY_NAME, Broker
from tests.support.raw_amqp import RawReceiver, RawSender
from twinbus.core.sas import make_token

FORM = os.environ.get("TWINBUS_FORM")
CANARY, OTHER = "canary", "other"
CANARY_MESSAGES = 3
#: What a broker of some minutes may grow by: caches, the entities that were made.
GROWTH_BYTES_MAX = 96 << 20
# An answer to a request that is not whole is not waited for.
PATIENCE_S = 0.3
CONFIG = f"""
[namespaces.sbemulatorns.queues.{CANARY}]
[namespaces.sbemulatorns.queues.{OTHER}]
[namespaces.sbemulatorns.queues.q1]
requires_session = true
[namespaces.sbemulatorns.topics.t1.subscriptions.s1]
"""


@dataclass
class Stage:
    broker: Broker
    routes: tuple[Route, ...]
    credentials: dict[str, str]
    canary: bytes = b""
    memory_bytes: int = 0
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def port(self) -> int:
        return int(self.broker.ready["ports"]["admin"])

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"

    def describe_canary(self) -> bytes:
        """Its description, without the time at which it was looked at."""
        request = Request("GET", f"/{CANARY}", (("api-version", "2021-05"),),
                          (("Authorization", "{token}"),))  # fmt: skip
        answer = read_answer(
            talk(self.port, request.raw(self.host, self.credentials)), is_head=False
        )
        assert answer.status == 200
        return answer.body[answer.body.index(b"<content") :]

    def memory(self) -> int:
        pages = int(Path(f"/proc/{self.broker.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def ask(self, request: Request) -> None:
        raw = request.raw(self.host, self.credentials)
        said = talk(self.port, raw, 20.0 if request.is_whole else PATIENCE_S)
        if not said and not request.is_whole:
            return
        answer = read_answer(said, is_head=request.method == "HEAD")
        self.statuses[answer.status] += 1
        check(answer, request)


def check(answer: Answer, request: Request) -> None:
    assert answer.status < 500 or answer.status == 501, (answer, request)
    if answer.status < 400 or request.method == "HEAD":
        return
    if answer.status in (412, 416):
        # Conditions and ranges on the console's files: the status says it all.
        return
    if answer.headers["content-type"].startswith("application/json"):
        told = json.loads(answer.body)
        assert told["error"]
        assert told["tracking_id"]
    else:
        text = answer.body.decode()
        assert "TrackingId:" in text, (answer, request)
        assert not text.startswith("TrackingId"), "what was wrong is said as well"


def sign_in(port: int) -> dict[str, str]:
    connection = HTTPConnection("localhost", port)
    body = json.dumps({"policy": KEY_NAME, "key": KEY})
    connection.request("POST", "/console/api/sign-in", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    told: dict[str, Any] = json.loads(answer.read())
    cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
    connection.close()
    return {"{csrf}": told["csrf"], "{cookie}": cookie}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("hostile")
    config = directory / "twinbus.toml"
    config.write_text(CONFIG)
    options = ("--admin-port", "0", "--config", str(config))
    with Broker(directory, form=FORM, options=options) as broker:
        port = broker.ready["ports"]["admin"]
        expiry_s = int(time.time()) + 86_400
        credentials = sign_in(port) | {
            "{token}": make_token(f"http://localhost:{port}/", KEY_NAME, KEY, expiry_s),
            "{narrow token}": make_token(f"http://localhost:{port}/q2", KEY_NAME, KEY, expiry_s),
            "{bad token}": make_token(f"http://localhost:{port}/", KEY_NAME, "wrong", expiry_s),
        }
        stage = Stage(broker, all_routes(tmp_path_factory.mktemp("table")), credentials)
        sender = RawSender(broker.amqp_port, CANARY)
        while len(sender.acknowledged) < CANARY_MESSAGES:
            sender.send_up_to(CANARY_MESSAGES, "round-0")
        sender.close()
        stage.canary = stage.describe_canary()
        yield stage
        unharmed(stage)


def unharmed(stage: Stage) -> None:
    broker = stage.broker
    assert stage.describe_canary() == stage.canary
    sender = RawSender(broker.amqp_port, OTHER)
    while not sender.acknowledged:
        sender.send_up_to(1, "round-1")
    sender.close()
    for queue, count in ((OTHER, 1), (CANARY, CANARY_MESSAGES)):
        receiver = RawReceiver(broker.amqp_port, queue)
        assert len(receiver.drain()) == count
        receiver.close()
    assert "Traceback" not in broker.log
    assert stage.memory() - stage.memory_bytes < GROWTH_BYTES_MAX
    print(f"{stage.statuses.total()} answers: {dict(sorted(stage.statuses.items()))}")


def run(stage: Stage, count: int) -> None:
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests(stage.routes))
    def ask(request: Request) -> None:
        stage.ask(request)

    ask()
    stage.memory_bytes = stage.memory_bytes or stage.memory()


def test_every_route_answers_its_own_request(stage: Stage) -> None:
    for route in stage.routes:
        path = route.path.split("{")[0]
        stage.ask(Request("GET" if route.method == "*" else route.method, path))


_SIGNED_IN = (("X-Twinbus-Csrf", "{csrf}"), ("Cookie", "{cookie}"),
              ("Content-Type", "application/json"))  # fmt: skip
_PACKED = (*_SIGNED_IN, ("Content-Encoding", "deflate"))
_UPDATE, _DELETE, _SEND = (f"/console/api/{n}" for n in ("update-entity", "delete", "send"))
#: What once made the broker fail, or answer without a tracking id.
FOUND = (
    Request("POST", "/console/api/sign-out", headers=(("Host", "no.such.host:99999"),)),
    Request("GET", "/q1", headers=(("Host", "[::1"),)),
    Request("GET", "/console/api/sign-in", headers=(("Expect", "*"),)),
    Request("POST", _UPDATE, (), _SIGNED_IN, b'{"entity": "q1"}', b"", 3, False),
    Request("POST", _SEND, (), _SIGNED_IN, b"[" * 50_000),
    Request("POST", _SEND, (), _SIGNED_IN, b'{"a":' * 50_000),
    Request("POST", _DELETE, (), _SIGNED_IN, b'{"entity": "q1", "from": 1e999}'),
    Request("POST", _DELETE, (), _PACKED, b"x"),
    Request("GET", "/console/api/messages", (("entity", "q1"), ("from", "9" * 400)), _SIGNED_IN),
)


@pytest.mark.parametrize("request_found", FOUND, ids=range(len(FOUND)))
def test_what_was_found_is_answered_now(stage: Stage, request_found: Request) -> None:
    stage.ask(request_found)
    assert "Traceback" not in stage.broker.log


def test_generated_requests(stage: Stage) -> None:
    run(stage, 150)
    run(stage, 350)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_generated_requests(stage: Stage) -> None:
    run(stage, 1_000)
    for _ in range(int(os.environ.get("TWINBUS_HTTP_ROUNDS", "10"))):
        run(stage, 2_000)
