"""One live broker in another process, one Chromium, a fresh profile for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.console import Console, browser_settings, find_chromium
from tests.browser.plain_http import Http
from tests.browser.stage import LISTENER_KEY, SENDER_KEY, Stage
from tests.support.broker import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FORM = os.environ.get("TWINBUS_FORM")
VIEWPORT = {"width": 1360, "height": 860}
CONFIG = f"""
[namespaces.shop.policies.listener]
rights = ["Listen"]
primary_key = "{LISTENER_KEY}"
[namespaces.shop.policies.sender]
rights = ["Send"]
primary_key = "{SENDER_KEY}"
"""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("console")
    config = directory / "twinbus.toml"
    config.write_text(CONFIG)
    options = ("--admin-port", "0", "--config", str(config))
    with Broker(directory, {}, FORM, options) as live:
        yield live


@pytest.fixture(scope="session")
def stage(broker: Broker) -> Iterator[Stage]:
    with Stage(broker) as made:
        yield made


@pytest.fixture
def http(broker: Broker) -> Iterator[Http]:
    with Http(broker.ready["ports"]["admin"]) as client:
        yield client


def _missing() -> str | None:
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "the Python package playwright is not installed"
    return None if find_chromium() else "no Chromium is in PATH (apt-get install chromium)"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    missing = _missing()
    if missing is not None:
        if os.environ.get("TWINBUS_BROWSER") == "required":
            pytest.fail(f"TWINBUS_BROWSER=required, but {missing}")
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running, running.chromium.launch(**browser_settings()) as browser:
        yield browser


@pytest.fixture
def open_console(chromium: Browser, broker: Broker) -> Iterator[Callable[..., Console]]:
    """Opens windows with any settings, each with a fresh profile; fails a test whose page threw
    or reached elsewhere."""
    contexts: list[Any] = []
    faults: list[str] = []

    def open_one(live: Broker = broker, **settings: Any) -> Console:
        context = chromium.new_context(**({"viewport": VIEWPORT} | settings))
        contexts.append(context)
        context.set_default_timeout(15_000)
        page = context.new_page()
        console = Console(page, live)
        page.on("pageerror", lambda error: faults.append(f"the page threw {error}"))
        origin = console.url.removesuffix("/console/")
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((origin, "data:", "blob:"))
                else faults.append(f"the page asked {request.url}")
            ),
        )
        return console

    yield open_one
    for context in contexts:
        context.close()
    assert not faults


@pytest.fixture
def console(open_console: Callable[..., Console]) -> Console:
    return open_console().sign_in()
