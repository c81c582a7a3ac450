"""The admin port as raw HTTP: what no official client would send, and what all rely on."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any
from xml.etree.ElementTree import fromstring

import aiohttp
import pytest
from conftest import AdminPort
from memory_namespace import ROOT_KEY, ROOT_KEY_NAME

from twinbus.core import sas

ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<{0} xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">{1}</{0}>'
    "</content></entry>"
)
QUEUE = ENTRY.format("QueueDescription", "")


class Caller:
    """Sends requests with a good token, unless told otherwise."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._base = f"http://localhost:{port}"

    async def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, str]:
        given = {"Authorization": self.token(), **headers}
        async with self._session.request(
            method, self._base + path, data=body, headers={k: v for k, v in given.items() if v}
        ) as response:
            return response.status, await response.text()

    def token(self, expiry_s: int = 0, resource: str = "") -> str:
        expiry_s = expiry_s or int(time.time()) + 60
        return sas.make_token(resource or self._base, ROOT_KEY_NAME, ROOT_KEY, expiry_s)


@pytest.fixture
async def http(admin: AdminPort) -> AsyncIterator[Caller]:
    async with aiohttp.ClientSession() as session:
        yield Caller(session, admin.port)


def detail_of(body: str) -> str:
    return fromstring(body).findtext("Detail") or ""


async def test_plain_http_is_served_on_the_same_port(http: Caller) -> None:
    status, body = await http.ask("PUT", "/q?api-version=2021-05", QUEUE)
    assert status == 201
    assert "<id>http://localhost:" in body


async def test_health_is_for_everyone(http: Caller) -> None:
    assert await http.ask("GET", "/health", Authorization="") == (200, '{"status": "healthy"}')


async def test_a_queue_may_be_called_health(http: Caller) -> None:
    status, _ = await http.ask("PUT", "/health?api-version=2021-05", QUEUE)
    assert status == 201
    status, body = await http.ask("GET", "/health?api-version=2021-05")
    assert status == 200
    assert "QueueDescription" in body


async def test_the_content_types_name_xml(admin: AdminPort) -> None:
    address = f"http://localhost:{admin.port}"
    token = sas.make_token(address, ROOT_KEY_NAME, ROOT_KEY, int(time.time()) + 60)
    async with aiohttp.ClientSession(headers={"Authorization": token}) as session:
        found = {}
        for path in ("/$namespaceinfo", "/$Resources/queues", "/none"):
            async with session.get(address + path) as response:
                found[path] = (response.status, response.headers["Content-Type"])
    assert found == {
        "/$namespaceinfo": (200, "application/atom+xml;type=entry;charset=utf-8"),
        "/$Resources/queues": (200, "application/atom+xml;type=feed;charset=utf-8"),
        "/none": (404, "application/xml;charset=utf-8"),
    }


async def test_S2_every_refusal_ends_with_a_tracking_id_that_is_logged(
    http: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "twinbus.admin")
    status, body = await http.ask("GET", "/none%0Aforged?api-version=2021-05")
    assert status == 404
    detail = detail_of(body)
    assert detail.startswith("The messaging entity 'sb://localhost:")
    tracking_id = detail.partition("TrackingId:")[2].partition(",")[0]
    logged = [r.getMessage() for r in caplog.records if tracking_id in r.getMessage()]
    assert len(logged) == 1
    assert "SystemTracker:localhost:" in detail
    assert "Timestamp:20" in detail


@pytest.mark.parametrize(
    "header",
    ["", "Basic YTpi", "Bearer abc", "SharedAccessSignature ", "SharedAccessSignature sr=a&sig=b"],
)
async def test_without_a_good_token_there_is_401(http: Caller, header: str) -> None:
    status, body = await http.ask("GET", "/q", Authorization=header)
    assert status == 401
    assert "TrackingId:" in detail_of(body)


async def test_tokens_expire_and_cover_one_place_only(http: Caller) -> None:
    old = http.token(int(time.time()) - 1)
    assert (await http.ask("GET", "/$namespaceinfo", Authorization=old))[0] == 401
    elsewhere = http.token(resource="https://elsewhere/")
    assert (await http.ask("GET", "/$namespaceinfo", Authorization=elsewhere))[0] == 401
    narrow = http.token(resource="https://localhost/other")
    assert (await http.ask("GET", "/$namespaceinfo", Authorization=narrow))[0] == 401
    exact = http.token(resource="https://localhost/$namespaceinfo?api-version=2021-05")
    assert (await http.ask("GET", "/$namespaceinfo", Authorization=exact))[0] == 200


async def test_a_stranger_learns_nothing_of_what_exists(http: Caller) -> None:
    await http.ask("PUT", "/q", QUEUE)
    for path in ("/q", "/none", "/", "/$Resources/nothing"):
        assert (await http.ask("GET", path, Authorization=""))[0] == 401


async def test_a_host_without_namespace_is_not_found(http: Caller) -> None:
    status, body = await http.ask("GET", "/q", Host="nobody.localhost:5300")
    assert status == 404
    assert detail_of(body).startswith("No service is hosted at 'nobody.localhost'")


async def test_an_address_by_number_is_named_by_the_namespace(admin: AdminPort) -> None:
    token = sas.make_token("http://127.0.0.1", ROOT_KEY_NAME, ROOT_KEY, int(time.time()) + 60)
    url = f"http://127.0.0.1:{admin.port}/$namespaceinfo"
    async with aiohttp.request("GET", url, headers={"Authorization": token}) as response:
        assert "<Name>memory</Name>" in await response.text()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no xml",
        "<entry",
        ENTRY.format("MapDescription", ""),
        ENTRY.format("RuleDescription", ""),
        ENTRY.format("QueueDescription", "<LockDuration>x</LockDuration>"),
        '<!DOCTYPE e [<!ENTITY a "a"><!ENTITY b "&a;&a;">]><entry>&b;</entry>',
        b"\xff\xfe\x00",
    ],
)
async def test_a_body_that_cannot_be_read_is_400(http: Caller, body: Any) -> None:
    status, answer = await http.ask("PUT", "/q", body)
    assert status == 400
    assert detail_of(answer).startswith("SubCode=40000. ")
    assert (await http.ask("GET", "/q"))[0] == 404


async def test_a_body_of_more_than_a_quarter_of_a_mebibyte_is_413(http: Caller) -> None:
    status, answer = await http.ask("PUT", "/q", BytesIO(b" " * (256 * 1024 + 1)))
    assert status == 413
    assert "TrackingId:" in detail_of(answer)


async def test_a_packed_body_is_not_unpacked(http: Caller) -> None:
    for packed in (gzip.compress(b" " * 50_000_000), b"not gzip"):
        status, answer = await http.ask("PUT", "/q", packed, **{"Content-Encoding": "gzip"})
        assert status == 400
        assert "The body is packed (gzip)" in detail_of(answer)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/q"),
        ("PATCH", "/q"),
        ("POST", "/q/messages"),
        ("PUT", "/$Resources/queues"),
        ("DELETE", "/$namespaceinfo"),
        ("DELETE", "/t/Subscriptions/s/Rules"),
    ],
)
async def test_what_cannot_be_done_at_an_address_is_405(
    http: Caller, method: str, path: str
) -> None:
    status, body = await http.ask(method, path, QUEUE)
    assert status == 405
    assert "TrackingId:" in detail_of(body)


@pytest.mark.parametrize("query", ["$skip=-1", "$top=many", "$skip=1e3", "$top=99999999999"])
async def test_bad_page_numbers_are_400(http: Caller, query: str) -> None:
    assert (await http.ask("GET", f"/$Resources/queues?{query}"))[0] == 400


async def test_a_page_beyond_the_end_is_empty(http: Caller) -> None:
    status, body = await http.ask("GET", "/$Resources/queues?$skip=5&$top=5")
    assert status == 200
    assert "<entry" not in body
    assert "next" not in body


async def test_E1_a_creation_without_a_name_is_refused(http: Caller) -> None:
    status, body = await http.ask("PUT", "/", QUEUE)
    assert status == 400
    assert "needs a name" in detail_of(body)
    assert (await http.ask("GET", "/"))[0] == 404


async def test_a_new_subscription_may_name_its_first_rule(http: Caller, admin: AdminPort) -> None:
    await http.ask("PUT", "/t", ENTRY.format("TopicDescription", ""))
    rule = (
        '<DefaultRuleDescription xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        '<Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>'
        "<Name>first</Name></DefaultRuleDescription>"
    )
    body = ENTRY.format("SubscriptionDescription", rule)
    status, _ = await http.ask("PUT", "/t/Subscriptions/s", body)
    assert status == 201
    found = admin.namespace.list_rules("t", "s")
    assert [(r.name, r.filter, r.expression) for r in found] == [("first", "sql", "a = 1")]


async def test_a_client_that_leaves_in_the_middle_harms_nobody(
    http: Caller, admin: AdminPort, caplog: pytest.LogCaptureFixture
) -> None:
    _, writer = await asyncio.open_connection("localhost", admin.port)
    head = (
        f"PUT /q HTTP/1.1\r\nHost: localhost\r\nAuthorization: {http.token()}\r\n"
        "Content-Length: 100\r\n\r\nhalf a bo"
    )
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await http.ask("GET", "/$namespaceinfo"))[0] == 200
    assert not [r for r in caplog.records if r.levelname == "ERROR"]
