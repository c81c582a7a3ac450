"""Makes and deletes queues over the admin API, as any client would.

Enters: names. Leaves: queues, once the broker has answered. Plain HTTP and a token of its own
making: nothing of the broker's code is used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from tests.support.broker import KEY, KEY_NAME, Broker

VERSION = "?api-version=2021-05"
WORKERS = 8
# Locks outlast every fault, and no number of faults makes a dead letter.
SETTINGS = {
    "LockDuration": "PT5M",
    "MaxSizeInMegabytes": "5120",
    "MaxDeliveryCount": "2000",
}
NAMESPACE = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


def make_queues(broker: Broker, names: Iterable[str]) -> None:
    """Make many, over a few connections at once."""
    shares: list[list[str]] = [[] for _ in range(WORKERS)]
    for number, name in enumerate(names):
        shares[number % WORKERS].append(name)
    with ThreadPoolExecutor(WORKERS) as workers:
        for _ in workers.map(lambda share: _ask_all(broker, "PUT", share), shares):
            pass


def make_queue(broker: Broker, name: str) -> None:
    _ask_all(broker, "PUT", [name])


def delete_queue(broker: Broker, name: str) -> None:
    _ask_all(broker, "DELETE", [name])


def _ask_all(broker: Broker, method: str, names: list[str]) -> None:
    body = _description() if method == "PUT" else None
    headers = {"Authorization": _token(), "Content-Type": "application/atom+xml"}
    connection = http.client.HTTPConnection("localhost", broker.ready["ports"]["admin"], timeout=60)
    try:
        for name in names:
            connection.request(method, f"/{name}{VERSION}", body, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status not in (200, 201):
                raise RuntimeError(f"{method} {name}: {answer.status} {text[:300]!r}")
    finally:
        connection.close()


def _description() -> str:
    settings = "".join(f"<{name}>{value}</{name}>" for name, value in SETTINGS.items())
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<QueueDescription xmlns="{NAMESPACE}">{settings}</QueueDescription></content></entry>'
    )


def _token() -> str:
    resource, expiry = quote("http://localhost/", safe=""), int(time.time()) + 3600
    digest = hmac.new(KEY.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest), safe="")
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={KEY_NAME}"
