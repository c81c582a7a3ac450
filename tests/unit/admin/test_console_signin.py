"""Who may try keys at the console, and how often."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from twinbus.admin.console.signin import Credentials, SignIn
from twinbus.core.errors import BusError
from twinbus.server.config import Config
from twinbus.server.service import Service


async def test_a_network_of_ipv6_has_no_more_tries_than_an_address(tmp_path: Path) -> None:
    service = Service(tmp_path, Config(), "a key")
    sign_in = SignIn(service, lambda: 1_000_000)

    def attempt(address: str) -> None:
        request: Any = SimpleNamespace(remote=address, host="localhost")
        sign_in.enter(request, Credentials("RootManageSharedAccessKey", "a guess"))

    for number in range(5):
        with pytest.raises(BusError):
            attempt(f"2001:db8:0:1::{number}")
    with pytest.raises(web.HTTPTooManyRequests):
        attempt("2001:db8:0:1:ffff::1")
    for other in ("2001:db8:0:2::1", "192.0.2.1", ""):
        with pytest.raises(BusError):
            attempt(other)
    await service.close()
