"""The console's API without a browser: plain requests, with the cookie and token or without.

Enters: a port. Leaves: statuses, headers and JSON.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.support.broker import KEY, KEY_NAME


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Http:
    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._connection: http.client.HTTPConnection
        if tls is None:
            self._connection = http.client.HTTPConnection("localhost", port, timeout=30)
        else:
            self._connection = http.client.HTTPSConnection(
                "localhost", port, timeout=30, context=tls
            )
        self.cookie = ""
        self.csrf = ""

    def __enter__(self) -> Http:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        sent = {"Content-Type": "application/json"}
        if self.cookie:
            sent["Cookie"] = self.cookie
        payload = None if body is None else json.dumps(body)
        self._connection.request(method, path, payload, sent | (headers or {}))
        response = self._connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
        # The next request may come after the server has given an idle connection up.
        self._connection.close()
        return answer

    def get(self, name: str, /, **parameters: Any) -> Answer:
        query = f"?{urlencode(parameters)}" if parameters else ""
        return self.ask("GET", f"/console/api/{name}{query}")

    def post(self, name: str, /, **body: Any) -> Answer:
        return self.ask("POST", f"/console/api/{name}", body, {"X-Twinbus-Csrf": self.csrf})

    def sign_in(self, policy: str = KEY_NAME, key: str = KEY, **more: str) -> Http:
        answer = self.post("sign-in", policy=policy, key=key, **more)
        assert answer.status == 200, answer.body
        self.cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
        self.csrf = answer.json["csrf"]
        return self
