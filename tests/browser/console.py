"""The console in a browser, as a person uses it: sign in, open things, take pictures.

Enters: a page of a real Chromium and a live broker. Leaves: few words for what a person does.
It must not reach into the broker: what it sees is what the page shows.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.support.broker import KEY, KEY_NAME, PROJECT, Broker

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

PICTURES = PROJECT / "artifacts" / "browser"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def expect(what: Any) -> Any:
    """Playwright's own; imported late, so that a fixture can say when it is missing."""
    from playwright.sync_api import expect as wait_for_it

    return wait_for_it(what)


def find_chromium() -> str | None:
    given = os.environ.get("TWINBUS_CHROMIUM")
    return given or next((path for name in CHROMIUM if (path := shutil.which(name))), None)


@dataclass
class Console:
    page: Page
    broker: Broker

    @property
    def url(self) -> str:
        return f"http://localhost:{self.broker.ready['ports']['admin']}/console/"

    def sign_in(self, policy: str = KEY_NAME, key: str = KEY) -> Console:
        self.page.goto(self.url)
        self.page.get_by_label("Policy").fill(policy)
        self.page.get_by_label("Key", exact=True).fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.locator("#bar nav").wait_for()
        return self

    def open_page(self, name: str) -> None:
        self.page.locator("#bar nav").get_by_role("link", name=name).click()

    def open_entity(self, path: str, tab: str = "") -> None:
        query = f"?tab={tab}" if tab else ""
        self.page.goto(f"{self.url}#/entity/{quote(path, safe='')}{query}")
        self.page.get_by_role("heading", level=1, name=path).wait_for()

    def tab(self, name: str) -> Locator:
        return self.page.locator("main [role=tab]").filter(has_text=name).first

    def rows(self) -> Locator:
        return self.page.locator("table.messages tbody tr[data-seq]")

    def row(self, seq: int) -> Locator:
        return self.page.locator(f"table.messages tr[data-seq='{seq}']")

    def detail(self) -> Locator:
        return self.page.locator("aside.detail")

    def dialog(self) -> Locator:
        return self.page.locator("dialog[open]")

    def picture(self, name: str) -> Path:
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        self.page.screenshot(path=path)
        return path

    def count_of(self, tab: str) -> Locator:
        return self.page.locator(f"[data-count='{tab}']")


def browser_settings() -> dict[str, Any]:
    """How Chromium is started: headless, asking nobody anything."""
    return {"executable_path": find_chromium(), "headless": True, "args": FLAGS}
