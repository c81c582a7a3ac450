"""Goal: no key, signature, session cookie or message body gets into anything that is written.

Method: a live broker at the most talkative level is used rightly and wrongly over every port,
and so are the command line and the pairing library; then everything they wrote is searched.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import logging
import pkgutil
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AccessRights, AuthorizationRule

import twinbus
from tests.security.conftest import FORM, ports
from tests.security.official import WAYS, administration, client_over, round_trip
from tests.security.pairing_talk import use_a_pair_badly
from tests.security.searching import forms, leaks, written_by
from tests.support.broker import KEY, KEY_NAME, PROJECT, Broker, form_environment
from twinbus.client.endpoint import parse_connection_string
from twinbus.core.ids import new_key
from twinbus.core.sas import make_token

QUEUE = "orders"
BODY = "the-body-" + secrets.token_hex(12)
WRONG_KEY, ROTATED_KEY, READER_KEY = new_key(), new_key(), new_key()
CONFIG = f"""
[namespaces.sbemulatorns.policies.reader]
rights = ["Listen"]
primary_key = "{READER_KEY}"
[namespaces.sbemulatorns.queues.{QUEUE}]
"""


@contextmanager
def talkative(directory: Path, config: Path, module: str = "twinbus") -> Iterator[Broker]:
    """A broker at the most talkative level; its configuration is where nobody searches, since
    its writer put a key there."""
    config.write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWINBUS_LOG", "DEBUG")
        options = ports("--config", str(config))
        with Broker(directory, form=FORM, options=options, module=module) as live:
            yield live


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = tmp_path_factory.mktemp("config") / "twinbus.toml"
    with talkative(tmp_path_factory.mktemp("talkative"), config) as live:
        yield live


def everything(broker: Broker) -> bytes:
    """What the broker wrote, but for the line that tells its starter the key (`--json`)."""
    ready = json.dumps(broker.ready).encode()
    return written_by(broker.directory).replace(ready, b"")


async def over_amqp(broker: Broker) -> None:
    for way in WAYS:
        async with client_over(broker, way) as client:
            await round_trip(client, QUEUE, BODY.encode())
        for queue, key in ((QUEUE, WRONG_KEY), ("no-such-queue", KEY)):
            with suppress(ServiceBusError):
                async with (
                    client_over(broker, way, key) as client,
                    client.get_queue_sender(queue) as sender,
                ):
                    await sender.send_messages(ServiceBusMessage(BODY))


def over_http(broker: Broker) -> dict[str, str]:
    """Administration and console, rightly and wrongly; gives the secrets that came about."""
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule", claim_type="SharedAccessKey", claim_value="None",
        rights=[AccessRights.SEND], key_name="mine", primary_key=ROTATED_KEY,
        secondary_key=ROTATED_KEY[::-1],
    )  # fmt: skip
    with administration(broker) as admin:
        queue = admin.get_queue(QUEUE)
        queue.authorization_rules = [rule]
        admin.update_queue(queue)
        rule.primary_key = WRONG_KEY[::-1]
        admin.update_queue(queue)
    with administration(broker, WRONG_KEY) as admin, suppress(AzureError):
        admin.get_queue(QUEUE)
    port = broker.ready["ports"]["admin"]
    found: dict[str, str] = {}
    for number, key in enumerate((KEY, WRONG_KEY)):
        http = HTTPConnection("localhost", port)
        token = make_token(f"http://localhost:{port}/", KEY_NAME, key, int(time.time()) + 600)
        found[f"signature {number}"] = token.partition("sig=")[2].partition("&")[0]
        for path, method, body in (
            (f"/{QUEUE}?api-version=2021-05", "GET", ""),
            (f"/{QUEUE}?sig={quote(token)}", "PUT", f"<a>{BODY}</a>"),
            ("/metrics", "GET", ""),
        ):
            http.request(method, path, body, {"Authorization": token, "X-Forwarded-For": "x"})
            http.getresponse().read()
        http.request("GET", "/health", headers={"Authorization": token + "x" * 9000})
        http.getresponse().read()
        http.close()
        http.request("POST", "/console/api/sign-in", json.dumps({"policy": KEY_NAME, "key": key}),
                     {"Content-Type": "application/json"})  # fmt: skip
        answer = http.getresponse()
        told = json.loads(answer.read())
        if "csrf" in told:
            cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
            found |= {"csrf": told["csrf"], "cookie": cookie.partition("=")[2]}
            for given in (told["csrf"], "wrong"):
                http.request(
                    "POST", "/console/api/send",
                    json.dumps({"entity": QUEUE, "messages": [{"body": BODY}, {"body": [BODY]}]}),
                    {"Content-Type": "application/json", "Cookie": cookie, "X-Twinbus-Csrf": given},
                )  # fmt: skip
                http.getresponse().read()
        http.close()
    return found


def malformed(broker: Broker) -> None:
    """Frames and requests that break off, or are none, around a secret."""
    for port in broker.ready["ports"].values():
        for words in (
            b"AMQP\x03\x01\x00\x00\x00\x00\x00\xff\x02\x01\x00\x00\x00S\x41\xc0\xff" + KEY.encode(),
            b"AMQP\x03\x01\x00\x00\x00\x00\x00\x40\x02\x01\x00\x00" + KEY.encode() + b"x" * 60,
            b"GET / HTTP/1.1\r\nAuthorization: " + KEY.encode() + b"\x00\r\n\r\n",
            b"GET /" + KEY.encode() + b" HTTP/9\r\nSharedAccessKey " + KEY.encode() + b"\r\n\r\n",
        ):
            with socket.create_connection(("localhost", port), 5) as one, suppress(OSError):
                one.sendall(words)
                one.shutdown(socket.SHUT_WR)
                one.recv(1000)


def command_lines(broker: Broker) -> bytes:
    """What commands print when they are given keys, right and wrong, and run into errors."""
    good = broker.connection_string
    commands = [
        ["queue", "list", "--connection", good.replace(KEY, WRONG_KEY)],
        ["send", QUEUE, "hello", "--connection", good.replace(KEY, WRONG_KEY)],
        ["send", "no-such-queue", "hello", "--connection", good],
        ["send", QUEUE, "hello", "--connection", f"SharedAccessKey={KEY}"],
        ["doctor", "--data-dir", str(broker.directory / "data")],
    ]
    environment = form_environment(FORM) | {"TWINBUS_LOG": "DEBUG", "COLUMNS": "500"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "twinbus", *command], env=environment, cwd=PROJECT,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for command in commands
    ]  # fmt: skip
    return b"".join(one.communicate(timeout=120)[0] for one in running)


@pytest.mark.slow
async def test_no_secret_is_written_S2(broker: Broker) -> None:
    await over_amqp(broker)
    told = over_http(broker)
    malformed(broker)
    printed = command_lines(broker)
    known = told | {
        "root key": KEY, "wrong key": WRONG_KEY, "rotated key": ROTATED_KEY, "body": BODY,
        "secondary key": ROTATED_KEY[::-1], "new key": WRONG_KEY[::-1], "reader": READER_KEY,
    }  # fmt: skip
    written = everything(broker)
    assert b'"level": "debug"' in written, "the log is at its most talkative"
    assert b"refused" in written
    assert leaks(written, known) == []
    assert printed
    assert leaks(printed, known) == []


async def test_the_pairing_library_and_the_client_tell_no_key(broker: Broker) -> None:
    """Not in what they log, nor as text of themselves or of their errors."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    # What the SDK logs of its own frames is the SDK's; ours is looked at.
    handler.addFilter(lambda record: record.name.startswith("twinbus"))
    try:
        texts = await use_a_pair_badly(broker, WRONG_KEY, BODY)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    endpoint = parse_connection_string(broker.connection_string)
    texts += [repr(endpoint), str(endpoint)]
    written = "\n".join([stream.getvalue(), *texts]).encode()
    assert leaks(written, {"root key": KEY, "wrong key": WRONG_KEY, "body": BODY}) == []


SECRET_FIELDS = ("key", "primary_key", "secondary_key", "signature", "token", "csrf", "password",
                 "connection_string", "sas_key")  # fmt: skip


def test_no_record_shows_its_secret_fields() -> None:
    """A record's text ends in logs and tracebacks by accident."""
    shown = []
    for module in pkgutil.walk_packages(twinbus.__path__, "twinbus."):
        if module.name.endswith("__main__"):
            continue
        for found in vars(importlib.import_module(module.name)).values():
            if isinstance(found, type) and dataclasses.is_dataclass(found):
                shown += [
                    f"{found.__module__}.{found.__qualname__}.{field.name}"
                    for field in dataclasses.fields(found)
                    if field.name in SECRET_FIELDS and field.repr and field.type in ("str", str)
                ]
    assert sorted(set(shown)) == []


async def test_a_broker_that_leaks_is_found_out(tmp_path: Path) -> None:
    config = tmp_path / "twinbus.toml"
    leaky = "tests.security.leaky_broker"
    with talkative(tmp_path / "broker", config, leaky) as broker:
        async with client_over(broker, "amqp") as client:
            await round_trip(client, QUEUE)
        assert any("sig=" in leak for leak in leaks(everything(broker), {}))


@pytest.mark.parametrize("form", sorted(forms("planted-secret-of-some-length")))
def test_a_planted_leak_is_found(form: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"message": "x", "text": "' + form + b'"}')
    assert leaks(written_by(tmp_path), {"planted": "planted-secret-of-some-length"})


def test_a_signature_of_anybody_is_found(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"SharedAccessSignature sr=x&sig=abcDEF123%2b%3d&se=1")
    assert leaks(written_by(tmp_path), {})
