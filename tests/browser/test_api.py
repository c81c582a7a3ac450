"""The console's API without a browser: sessions, claims, forged requests, bounds."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest

from tests.browser.plain_http import Http
from tests.browser.stage import LISTENER_KEY, SENDER_KEY, Stage
from tests.support.broker import KEY, KEY_NAME, Broker
from twinbus.amqp.codec import encode_map
from twinbus.client import Client

READS = (
    "session", "entities", "entity", "messages", "message", "body", "search", "timeline",
    "sessions", "session-state", "pairs", "destinations", "reports", "report",
)  # fmt: skip
WRITES = (
    "send", "resubmit", "resubmit-edited", "delete", "undefer", "test-rules", "put-rule",
    "delete-rule", "create-entity", "update-entity", "delete-entity",
)  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_nothing_is_read_without_signing_in(http: Http, name: str) -> None:
    assert http.get(name).status == 401


@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_changed_without_the_token_of_the_session(http: Http, name: str) -> None:
    http.csrf = "guess"
    assert http.post(name).status == 401
    http.sign_in()
    token, http.csrf = http.csrf, "guess"
    assert http.post(name).status == 403
    http.csrf = token
    answer = http.post(name)
    assert answer.status != 401
    assert b"X-Twinbus-Csrf" not in answer.body


def test_a_session_belongs_to_its_cookie_which_scripts_cannot_read(http: Http) -> None:
    answer = http.post("sign-in", policy=KEY_NAME, key=KEY)
    cookie = str(answer.headers["Set-Cookie"])
    for part in ("HttpOnly", "SameSite=Strict", "Path=/console"):
        assert part in cookie
    assert KEY not in cookie + answer.body.decode()
    http.sign_in()
    assert http.get("session").status == 200
    assert http.post("sign-out").status == 200
    assert http.get("session").status == 401


def test_a_connection_string_that_only_tells_where_the_key_is_gets_an_explanation(
    http: Http,
) -> None:
    """It is what `serve` prints from its second start on."""
    string = f"Endpoint=sb://localhost;SharedAccessKeyName={KEY_NAME};SharedAccessKey=$(cat it)"
    answer = http.post("sign-in", connection_string=string)
    assert answer.status == 400
    assert b"root.key" in answer.body


def test_over_https_the_cookie_stays_on_https(broker: Broker) -> None:
    tls = ssl.create_default_context(cafile=broker.directory / "data" / "tls" / "ca.pem")
    with Http(broker.ready["ports"]["admin"], tls) as http:
        answer = http.post("sign-in", policy=KEY_NAME, key=KEY)
        assert "; Secure" in str(answer.headers["Set-Cookie"])


def test_pages_tell_browsers_to_run_nothing_else(http: Http) -> None:
    for path in ("/console/", "/console/static/app.js", "/console/api/session"):
        policy = str(http.ask("GET", path).headers["Content-Security-Policy"])
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
    page = http.ask("GET", "/console/").body.decode()
    assert "<script>" not in page
    assert "style=" not in page


def test_the_root_leads_to_the_console_and_entities_keep_their_names(
    http: Http, stage: Stage
) -> None:
    assert http.ask("GET", "/").headers["Location"] == "/console/"
    stage.queue("console")
    answer = http.ask("GET", "/console?api-version=2021-05")
    assert answer.status == 401
    assert b"<Error>" in answer.body


@pytest.mark.parametrize("path", ["../application.py", "..%2fapplication.py", "app.py", "x.js"])
def test_only_the_pages_own_parts_are_served(http: Http, path: str) -> None:
    assert http.ask("GET", f"/console/static/{path}").status in (401, 404)


def test_a_sign_in_that_is_no_json_of_this_page_is_refused(http: Http) -> None:
    form = {"Content-Type": "text/plain"}
    answer = http.ask("POST", "/console/api/sign-in", {"policy": KEY_NAME, "key": KEY}, form)
    assert answer.status == 400
    assert "Set-Cookie" not in answer.headers


def test_claims_are_followed(broker: Broker, stage: Stage) -> None:
    queue = stage.queue()
    stage.dead_letter(queue, 1)
    port = broker.ready["ports"]["admin"]
    with Http(port) as listener, Http(port) as sender:
        listener.sign_in("listener", LISTENER_KEY)
        sender.sign_in("sender", SENDER_KEY)
        dead = {"entity": queue, "stream": "dead-letter"}
        message = {"body": "x"}
        assert listener.get("messages", entity=queue).status == 200
        assert sender.get("messages", entity=queue).status == 403
        assert sender.get("search", entity=queue, text="x").status == 403
        assert sender.get("message", **dead, seq=1).status == 403
        assert sender.get("pairs").status == 403
        assert sender.post("send", entity=queue, messages=[message]).status == 200
        assert listener.post("send", entity=queue, messages=[message]).status == 403
        for client in (listener, sender):
            assert client.post("resubmit", **dead, seqs=[1]).status == 403
            edited = client.post("resubmit-edited", **dead, seq=1, message=message)
            assert edited.status == 403
            assert client.post("delete-entity", entity=queue).status == 403
            assert client.post("update-entity", entity=queue, settings={}).status == 403
        assert sender.post("delete", **dead, seqs=[1]).status == 403
        assert listener.post("delete", **dead, seqs=[1]).json["done"] == 1


def test_scheduled_messages_are_their_senders_to_cancel(broker: Broker, stage: Stage) -> None:
    queue = stage.queue()
    stage.schedule(queue, 2)
    port = broker.ready["ports"]["admin"]
    with Http(port) as listener, Http(port) as sender:
        listener.sign_in("listener", LISTENER_KEY)
        sender.sign_in("sender", SENDER_KEY)
        cancel = {"entity": queue, "state": "scheduled", "seqs": [1]}
        assert listener.post("delete", **cancel).status == 403
        # Naming no state does not get around it.
        assert listener.post("delete", entity=queue, seqs=[1]).json["done"] == 0
        assert sender.post("delete", **cancel).json["done"] == 1
    assert len(stage.peek(queue)) == 1


def test_forwarding_takes_rights_at_both_ends(http: Http, stage: Stage) -> None:
    """E9: it sends to its target. An entity's key is not for others below its name, either."""
    target, own = stage.queue(), stage.queue()
    below = stage.queue(f"{own}/below")
    key = "ZW50aXR5LWtleS1vZi0zMi1ieXRlcy1sb25nLi4uLi4="
    stage.add_policy(own, "owner", ["Manage", "Send", "Listen"], key)
    string = f"Endpoint=sb://localhost;SharedAccessKeyName=owner;SharedAccessKey={key}"
    http.sign_in(connection_string=f"{string};EntityPath={own}")
    for name in ("forward_to", "forward_dead_lettered_messages_to"):
        assert http.post("update-entity", entity=own, settings={name: target}).status == 403
    assert http.post("update-entity", entity=own, settings={"max_delivery_count": 3}).status == 200
    assert http.post("delete-entity", entity=below).status == 403
    for path in (f"{own}/new", "other"):
        made = http.post("create-entity", kind="queue", entity=path, settings={})
        assert made.status == 403


def test_a_policy_of_an_entity_reaches_that_entity_only(http: Http, stage: Stage) -> None:
    other, own = stage.queue(), stage.queue()
    key = "ZW50aXR5LWtleS1vZi0zMi1ieXRlcy1sb25nLi4uLi4="
    stage.add_policy(own, "reader", ["Listen"], key)
    string = f"Endpoint=sb://localhost;SharedAccessKeyName=reader;SharedAccessKey={key}"
    assert http.post("sign-in", connection_string=string).status == 401
    answer = http.post("sign-in", connection_string=f"{string};EntityPath={own}")
    assert answer.status == 200
    http.cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
    assert http.get("messages", entity=own).status == 200
    assert http.get("messages", entity=other).status == 403
    assert [row["path"] for row in http.get("entities").json["rows"]] == [own]
    # A key that is taken back ends its sessions.
    stage.add_policy(own, "reader", ["Listen"], "b3RoZXIta2V5LW9mLTMyLWJ5dGVzLWxvbmcuLi4uLi4=")
    assert http.get("messages", entity=own).status == 401


def test_keys_never_leave(http: Http, stage: Stage) -> None:
    queue = stage.queue()
    key = "c2VjcmV0LWtleS1vZi0zMi1ieXRlcy1sb25nLi4uLi4="
    stage.add_policy(queue, "secret", ["Send"], key)
    answer = http.sign_in().get("entity", entity=queue)
    assert answer.json["policies"] == [{"name": "secret", "rights": ["Send"]}]
    assert key.encode() not in answer.body


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("send", {"messages": []}, "1 to 1000"),
        ("send", {"messages": "x"}, "list of objects"),
        ("send", {"messages": [{"nope": 1}]}, "unknown: nope"),
        ("delete", {"seqs": ["1"]}, "list of sequence numbers"),
        ("delete", {"seqs": list(range(1001))}, "at most 1000"),
        ("delete", {"state": "locked"}, "cannot be deleted"),
        ("delete", {"state": "odd"}, "none of active"),
        ("delete", {"sql": "a >", "from": 1}, "filter is not valid"),
        ("delete", {"stream": "odd"}, "none of main"),
        ("resubmit", {"seqs": [1]}, "no dead letters"),
        ("update-entity", {"settings": {"name": "x"}}, "no setting"),
        ("update-entity", {"settings": {"max_delivery_count": "3"}}, "must be a int"),
        ("create-entity", {"kind": "table"}, "none of queue"),
    ],
)
def test_bad_input_is_refused_in_words(
    http: Http, stage: Stage, name: str, body: dict[str, object], words: str
) -> None:
    queue = stage.queue()
    answer = http.sign_in().post(name, **{"entity": queue} | body)
    assert answer.status in (400, 404), answer.body
    assert words in answer.json["error"]


def test_what_a_message_says_is_not_logged(broker: Broker, http: Http, stage: Stage) -> None:
    queue = stage.queue()
    message = {"body": {"value": {"int": "card 4111-1111"}}}
    answer = http.sign_in().post("send", entity=queue, messages=[message])
    assert answer.status == 400
    assert "this is no int: 'card 4111-1111'" in answer.json["error"]
    log = broker.log
    assert answer.json["tracking_id"] in log
    assert "4111" not in log


def test_a_message_that_cannot_be_read_is_shown_all_the_same(
    broker: Broker, http: Http, stage: Stage
) -> None:
    """The broker does not look into bodies and properties."""
    queue = stage.queue()
    text_as_data = b"\x00\x53\x75\xa1\x01x"
    latin = b"\x00\x53\x74" + encode_map([("city", b"\xa1\x04K\xf6ln")])
    half = b"\x73\x00\x00\xd8\x3d"
    halves = b"\x00\x53\x74" + encode_map([("c", half)]) + b"\x00\x53\x77" + half
    odd = [text_as_data, latin + b"\x00\x53\x75\xa0\x01x", halves]
    with Client.connect(broker.connection_string) as client, client.sender(queue) as sender:
        sender.send(odd)
        sender.flush()
    http.sign_in()
    listed = http.get("messages", entity=queue, state="active")
    assert listed.status == 200, listed.body
    assert len(listed.json["messages"]) == len(odd)
    for number in range(1, len(odd) + 1):
        answer = http.get("message", entity=queue, seq=number, state="active")
        assert answer.status == 200, answer.body
        # Of a character that programs with 16 bits for one send as two, each half can be shown.
        assert ("unreadable" in answer.json) == (number < len(odd))


def test_what_is_told_of_the_whole_broker_takes_rights_in_all_of_it(
    broker: Broker, tmp_path: Path
) -> None:
    config = tmp_path / "twinbus.toml"
    config.write_text(
        f"""
        [namespaces.alpha.policies.watch]
        rights = ["Listen"]
        primary_key = "{LISTENER_KEY}"
        [namespaces.alpha.policies.both]
        rights = ["Listen"]
        primary_key = "{SENDER_KEY}"
        [namespaces.beta.policies.both]
        rights = ["Listen"]
        primary_key = "{SENDER_KEY}"
        """
    )
    reports = tmp_path / "twinbus-reports"
    reports.mkdir()
    (reports / "cost.html").write_text("<h1>beta</h1>")
    options = ("--admin-port", "0", "--config", str(config))
    with Broker(tmp_path, {}, broker.form, options) as live:
        for policy, key, status in (
            ("watch", LISTENER_KEY, 403), ("both", SENDER_KEY, 200), (KEY_NAME, KEY, 200)
        ):  # fmt: skip
            with Http(live.ready["ports"]["admin"]) as http:
                http.sign_in(connection_string=f"Endpoint=sb://alpha.localhost/;"
                             f"SharedAccessKeyName={policy};SharedAccessKey={key}")  # fmt: skip
                assert http.get("reports").status == status
                assert http.get("report", name="cost.html").status == status
                assert http.get("pairs").json["told"] == (None if status == 403 else [])


def test_what_is_woken_in_an_entity_that_forwards_goes_on_E9(http: Http, stage: Stage) -> None:
    target = stage.queue()
    queue = stage.queue()
    stage.defer(queue, 2)
    http.sign_in()
    assert http.post("update-entity", entity=queue, settings={"forward_to": target}).status == 200
    assert http.post("undefer", entity=queue, seqs=[1, 2]).json["done"] == 2
    assert len(stage.peek(target)) == 2


def test_only_rows_that_changed_come_again(http: Http, stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue()
    http.sign_in()
    first = http.get("entities").json
    while other not in [row["path"] for row in first["rows"]]:
        # One look serves everybody for a second.
        first = http.get("entities").json
    stage.send(queue, 1)
    stage.delete(other)
    since = first["version"]
    while True:
        changes = http.get("entities", since=since).json
        if changes["rows"]:
            break
        since = changes["version"]
    assert [row["path"] for row in changes["rows"]] == [queue]
    assert http.get("entities", since=first["version"]).json["gone"] == [other]
    assert not changes["whole"]


def test_wrong_keys_must_wait(broker: Broker, tmp_path: Path) -> None:
    # A broker of its own: the others of this session come from the same address.
    options = ("--admin-port", "0")
    with (
        Broker(tmp_path, {}, broker.form, options) as guarded,
        Http(guarded.ready["ports"]["admin"]) as guesser,
    ):
        for _ in range(5):
            assert guesser.post("sign-in", policy=KEY_NAME, key="guess").status == 401
        answer = guesser.post("sign-in", policy=KEY_NAME, key=KEY)
        assert answer.status == 429
        assert 0 < int(str(answer.headers["Retry-After"])) <= 60
        assert "seconds" in json.loads(answer.body)["error"]
