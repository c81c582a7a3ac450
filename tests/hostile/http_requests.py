"""Requests that are nearly right: every route's own request, with something changed in it.

The routes are the router's own table, and the names of the console's arguments are read off its
source: what is added to either is generated without anybody thinking of it. Entities are made and
removed among a few names; the canary's is not one of them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

import twinbus.admin.console.application as console_application
from tests.hostile.http_routes import Route
from twinbus.admin import forms

QUEUES, TOPICS, NAMES = ("q1", "q2", "a/b"), ("t1", "t2"), ("s1", "s2", "$Default", "r1")
ODD_TEXTS = (
    "", " ", "\0", "\r\n\r\n", "%00", "%0d%0aX-Planted: 1", "..", "../../etc/passwd", "a//b", "é",
    "\ud7ff\U0001f600", "$", "$cbs", "$management", "'", '"', "<a>", "&amp;", "]]>", "1=1", "NaN",
    "-1", "0", "9" * 30, "1e999", "true", "null", "P1D", "PT", "-PT5S", "P99999999D", "x" * 300,
    "x" * 9000, "{", "[]", "SharedAccessSignature", "q1/$DeadLetterQueue", "q1/Subscriptions",
    "2021-05", "9" * 5000,
)  # fmt: skip
METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "put",
           "BREW", "")  # fmt: skip
ATOM_NS = "http://www.w3.org/2005/Atom"
BUS_NS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_ARGUMENT = re.compile(r'call\.(?:text|number|object|entity|holder)\([^()]*?"([\w-]+)"')
ARGUMENTS = sorted(
    set(_ARGUMENT.findall(Path(console_application.__file__).read_text()))
    | {"entity", "stream", "text", "sql", "seqs", "from", "to", "messages", "api-version"}
)

odd_texts = st.sampled_from(ODD_TEXTS) | st.text(max_size=20)
odd_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | odd_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_texts, inner, max_size=3),
    max_leaves=6,
)


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    #: Bytes put between the head's lines, or cut off the end: then it is no whole request.
    noise: bytes = b""
    missing: int = 0
    #: False when nobody may expect an answer.
    is_whole: bool = field(default=True)

    def raw(self, host: str, credentials: dict[str, str]) -> bytes:
        """The bytes, with whatever credentials the headers ask for."""
        query = "&".join(f"{quote(k)}={quote(v)}" for k, v in self.query)
        target = self.path + ("?" + query if query else "")
        lines = [f"{self.method} {target} HTTP/1.1"]
        given = {name.casefold() for name, _ in self.headers}
        if "host" not in given:
            lines.append(f"Host: {host}")
        if "content-length" not in given and "transfer-encoding" not in given:
            lines.append(f"Content-Length: {len(self.body)}")
        lines += [f"{name}: {credentials.get(value, value)}" for name, value in self.headers]
        head = "\r\n".join(lines).encode("utf-8", "surrogatepass") + self.noise + b"\r\n\r\n"
        whole = head + self.body
        return whole[: len(whole) - self.missing]


def requests(routes: tuple[Route, ...]) -> st.SearchStrategy[Request]:
    return st.one_of(atom(), atom(), console(routes), console(routes), pages(routes)).flatmap(
        lambda right: st.just(right) | mutated(right)
    )


# --- right ones -----------------------------------------------------------------------


@st.composite
def atom(draw: st.DrawFn) -> Request:
    kind = draw(st.sampled_from(("queue", "topic", "subscription", "rule", "list", "namespace")))
    topic, name = draw(st.sampled_from(TOPICS)), draw(st.sampled_from(NAMES))
    path, body = f"/{topic}/Subscriptions/{name}", b""
    if kind == "queue":
        path = "/" + draw(st.sampled_from(QUEUES))
        body = entry("QueueDescription", draw(settings(forms.QUEUE)))
    elif kind == "topic":
        path, body = "/" + topic, entry("TopicDescription", draw(settings(forms.TOPIC)))
    elif kind == "subscription":
        body = entry("SubscriptionDescription", draw(settings(forms.SUBSCRIPTION)))
    elif kind == "rule":
        path += "/Rules/" + draw(st.sampled_from(NAMES))
        body = entry("RuleDescription", draw(filters()))
    elif kind == "list":
        lists = ("/$Resources/queues", "/$Resources/topics", f"/{topic}/Subscriptions")
        path = draw(st.sampled_from((*lists, f"/{topic}/Subscriptions/{name}/Rules")))
    else:
        path = "/$namespaceinfo"
    usual = ("GET",) if kind in ("list", "namespace") else ("PUT", "PUT", "PUT", "GET", "DELETE")
    method = draw(st.sampled_from(usual))
    headers = [("Authorization", "{token}")]
    if draw(st.booleans()):
        headers.append(("If-Match", "*"))
    query = [("api-version", "2021-05")]
    if kind == "list":
        query += [("$skip", draw(odd_texts)), ("$top", "10")]
    return Request(method, path, tuple(query), tuple(headers), body if method == "PUT" else b"")


def settings(table: tuple[Any, ...]) -> st.SearchStrategy[str]:
    """Some of an entity's elements, with values that may suit them."""
    names = [each if isinstance(each, str) else each.element for each in table]
    values = odd_texts.map(escape) | st.sampled_from(
        ("PT1M", "P10675199DT2H48M5.4775807S", "true", "false", "10", "Active", "q1",
         "<Key/>", f"<x xmlns='{BUS_NS}'><AuthorizationRule/></x>")
    )  # fmt: skip
    pairs = st.lists(st.tuples(st.sampled_from(names), values), max_size=5)
    return st.just("") | pairs.map(
        lambda found: "".join(f"<{name}>{value}</{name}>" for name, value in found)
    )


def filters() -> st.SearchStrategy[str]:
    expressions = st.sampled_from(("1=1", "a > 3", "a LIKE 'x%' ESCAPE '\\'", "((((a", "@p = 1"))
    kinds = st.sampled_from(("SqlFilter", "TrueFilter", "CorrelationFilter", "NoFilter", ""))
    values = st.tuples(st.sampled_from(("string", "int", "dateTime", "guid", "zz")), odd_texts)
    return st.builds(
        lambda kind, expression, value: (
            f'<Filter xmlns:i="http://www.w3.org/2001/XMLSchema-instance" i:type="{kind}">'
            f"<SqlExpression>{escape(expression)}</SqlExpression><Parameters>"
            f'<KeyValueOfstringanyType><Key>p</Key><Value i:type="d:{value[0]}">{escape(value[1])}'
            "</Value></KeyValueOfstringanyType></Parameters></Filter>"
        ),
        kinds,
        expressions | odd_texts,
        values,
    )


def entry(name: str, inner: str) -> bytes:
    return (
        f'<entry xmlns="{ATOM_NS}"><content type="application/xml">'
        f'<{name} xmlns="{BUS_NS}">{inner}</{name}></content></entry>'
    ).encode("utf-8", "surrogatepass")


def escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


@st.composite
def console(draw: st.DrawFn, routes: tuple[Route, ...]) -> Request:
    ours = [route for route in routes if route.path.startswith("/console/api/")]
    route = draw(st.sampled_from(ours))
    likely = st.sampled_from(
        (*QUEUES, *TOPICS, "t1/Subscriptions/s1", "main", "dead-letter", "active", "queue", 1, 5)
    )
    arguments = draw(st.dictionaries(st.sampled_from(ARGUMENTS), likely | odd_values, max_size=4))
    if draw(st.booleans()):
        arguments["entity"] = draw(st.sampled_from((*QUEUES, *TOPICS)))
    headers = [("X-Twinbus-Csrf", "{csrf}")]
    if not route.path.endswith(("sign-in", "sign-out")):
        headers.append(("Cookie", "{cookie}"))
    if route.method != "POST":
        query = tuple((name, str(value)) for name, value in arguments.items())
        return Request(route.method, route.path, safe(query), tuple(headers))
    headers.append(("Content-Type", "application/json"))
    body = json.dumps(arguments).encode("utf-8", "surrogatepass")
    return Request("POST", route.path, (), tuple(headers), body)


@st.composite
def pages(draw: st.DrawFn, routes: tuple[Route, ...]) -> Request:
    others = [route for route in routes if not route.path.startswith("/console/api/")]
    route = draw(st.sampled_from(others))
    path = re.sub(r"\{[^}]*\}", lambda _: draw(st.sampled_from(("app.js", "q1", "nope.css"))),
                  route.path)  # fmt: skip
    headers = [("Authorization", "{token}")]
    if "websocket" in path:
        given = {"Version": ("13", "12", ""), "Key": ("c3R1ZmZzdHVmZnN0dWZmcw==", "x"),
                 "Protocol": ("AMQPWSB10", "chat")}  # fmt: skip
        headers += [("Upgrade", "websocket"), ("Connection", "Upgrade")]
        headers += [(f"Sec-WebSocket-{k}", draw(st.sampled_from(v))) for k, v in given.items()]
    method = route.method if route.method != "*" else draw(st.sampled_from(METHODS[:7]))
    return Request(method, path, (), tuple(headers))


# --- and what becomes of them ---------------------------------------------------------


def safe(query: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Lone surrogates cannot be quoted."""
    return tuple((k, v.encode("utf-8", "replace").decode()) for k, v in query)


@st.composite
def mutated(draw: st.DrawFn, right: Request) -> Request:
    kinds = ("method", "path", "query", "header", "drop", "body", "framing", "credentials")
    found = right
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3)):
        found = draw(_CHANGES[kind](found))
    return found


def _method(found: Request) -> st.SearchStrategy[Request]:
    return st.sampled_from(METHODS).map(
        lambda method: replace(found, method=method, is_whole=found.is_whole and bool(method))
    )


_PIECES = ("/", "//", "/../", "?", "#", ";", "%", "%zz", "%ff", "/Subscriptions", "/Rules", "*",
           "\x7f")  # fmt: skip


def _path(found: Request) -> st.SearchStrategy[Request]:
    raw = odd_texts.map(lambda text: text.encode("utf-8", "replace").decode())
    pieces = raw.map(quote) | st.sampled_from(_PIECES)
    at = st.integers(0, len(found.path))
    return st.builds(
        lambda n, piece: replace(found, path=found.path[:n] + piece + found.path[n:]), at, pieces
    )


def _query(found: Request) -> st.SearchStrategy[Request]:
    names = st.sampled_from((*ARGUMENTS, "$skip", "$top", "enrich"))
    return st.builds(
        lambda name, value: replace(found, query=safe((*found.query, (name, value)))),
        names, odd_texts,
    )  # fmt: skip


_HEADER_NAMES = (
    "Host", "Content-Type", "If-Match", "Cookie", "Authorization", "Accept", "Range", "Expect",
    "X-Forwarded-For", "Forwarded", "Connection", "Upgrade", "Content-Encoding", "Origin",
    "If-Modified-Since", "If-None-Match", "Sec-WebSocket-Extensions",
    "ServiceBusDlqSupplementaryAuthorization",
)  # fmt: skip
_HEADER_VALUES = (
    "", "*", "localhost", "no.such.host:99999", "[::1", "[::1]:80", "a b", "text/plain", "gzip",
    "application/json; charset=utf-16", "application/json; charset=nonsense", "bytes=5-2",
    "bytes=0-9999999", "100-continue", "twinbus-console-1=x; y", "Basic Og==", "Basic é",
    "SharedAccessSignature sr=x&sig=y&se=99999999999&skn=RootManageSharedAccessKey",
    "SharedAccessSignature sr=%zz&sig=%&se=" + "9" * 400 + "&skn=x", "Thu, 99 Foo", "x" * 8000,
    "x" * 9000, "127.0.0.1", "close", "h2c", "é", "\t", "deflate", "br",
    "permessage-deflate; server_max_window_bits=99",
)  # fmt: skip


def _header(found: Request) -> st.SearchStrategy[Request]:
    return st.builds(
        lambda name, value: replace(found, headers=(*found.headers, (name, value))),
        st.sampled_from(_HEADER_NAMES), st.sampled_from(_HEADER_VALUES),
    )  # fmt: skip


def _drop(found: Request) -> st.SearchStrategy[Request]:
    return st.integers(0, 5).map(
        lambda n: replace(found, headers=found.headers[:n] + found.headers[n + 1 :])
    )


def _body(found: Request) -> st.SearchStrategy[Request]:
    cut = st.integers(0, len(found.body)).map(lambda n: found.body[:n])
    odd = st.sampled_from(
        (b"", b"\xff\xfe", b"[" * 50_000, b"{" * 900, b'{"a":' * 2_000, b"<a>" * 50_000, b"null",
         b"[]", b'{"entity": "q1", "settings": []}', b"x" * 1_200_000,
         b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', found.body.decode("utf-8", "replace")
         .encode("utf-16"), b'<?xml version="1.0" encoding="nonsense"?><a/>')
    )  # fmt: skip
    flipped = st.tuples(st.integers(0, max(0, len(found.body) - 1)), st.integers(0, 255)).map(
        lambda where: found.body[: where[0]] + bytes([where[1]]) + found.body[where[0] + 1 :]
    )
    put = st.sampled_from((found.method, "PUT", "POST"))
    return st.builds(
        lambda body, method: replace(found, body=body, method=method), cut | odd | flipped, put
    )


def _framing(found: Request) -> st.SearchStrategy[Request]:
    broken = st.sampled_from(
        (("Content-Length", "5"), ("Content-Length", "-1"), ("Content-Length", "1, 2"),
         ("Content-Length", "99999999999999999999"), ("Transfer-Encoding", "chunked"),
         ("Transfer-Encoding", "gzip"), ("Transfer-Encoding", "chunked, chunked"))
    ).map(lambda line: replace(found, headers=(*found.headers, line), is_whole=False))  # fmt: skip
    noise = st.sampled_from((b"\r\n folded", b"\r\nno colon", b"\nX: y", b"\r\n: z", b"\r\nA\0: b",
                             b"\r\nX: " + b"y" * 20_000, b"\r\nX: y" * 200))  # fmt: skip
    return (
        broken
        | noise.map(lambda piece: replace(found, noise=piece, is_whole=False))
        | st.integers(1, 50).map(lambda n: replace(found, missing=n, is_whole=False))
    )


def _credentials(found: Request) -> st.SearchStrategy[Request]:
    """None, or another namespace's or entity's."""
    return st.sampled_from(("{bad token}", "{narrow token}", "")).map(
        lambda value: replace(
            found,
            headers=tuple(
                (name, value if name in ("Authorization", "Cookie") else old)
                for name, old in found.headers
            ),
        )
    )


_CHANGES = {
    "method": _method, "path": _path, "query": _query, "header": _header, "drop": _drop,
    "body": _body, "framing": _framing, "credentials": _credentials,
}  # fmt: skip
