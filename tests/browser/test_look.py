"""The console by keyboard, on a phone, light and dark, and for those who hear it."""

from __future__ import annotations

from collections.abc import Callable

from tests.browser.console import Console, expect
from tests.browser.stage import Stage

# Everything that can be used must have a name, and every picture a text.
UNNAMED = """() => [...document.querySelectorAll("button, a, input, select, textarea, img, iframe")]
  .filter((e) => e.checkVisibility())
  .filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.title
    || e.labels?.length || e.getAttribute("alt") !== null))
  .map((e) => e.outerHTML)"""
WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def test_the_keyboard_is_enough(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.dead_letter(queue, 3)
    page = console.page
    page.keyboard.press("/")
    page.keyboard.type(queue)
    expect(page.locator("table.entities tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name=queue).wait_for()
    expect(console.rows()).to_have_count(3)
    for key in ("j", "x", "j", "x", "r"):
        page.keyboard.press(key)
    expect(console.dialog().get_by_role("heading")).to_have_text("Resubmit 2 messages")
    console.dialog().get_by_role("button", name="Resubmit").press("Enter")
    expect(console.rows()).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(console.detail()).to_be_visible()
    page.keyboard.press("Escape")
    expect(console.detail()).to_be_hidden()
    page.keyboard.press("?")
    expect(console.dialog()).to_contain_text("resubmit what is selected")
    console.picture("keys")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", level=1)).to_have_text("Filter tester")


def test_it_is_readable_on_a_phone(open_console: Callable[..., Console], stage: Stage) -> None:
    topic = stage.topic("audit")
    queue = stage.queue()
    stage.dead_letter(queue, 3)
    console = open_console(viewport={"width": 390, "height": 780}, has_touch=True).sign_in()
    expect(console.page.locator(f"tr[data-path='{topic}']")).to_be_visible()
    assert console.page.evaluate(WIDER) <= 0
    console.picture("phone-entities")
    console.open_entity(queue, "dead-letter")
    expect(console.rows()).to_have_count(3)
    assert console.page.evaluate(WIDER) <= 0
    console.picture("phone-messages")
    console.row(1).tap()
    expect(console.detail().get_by_role("button", name="Resubmit", exact=True)).to_be_visible()
    box = console.detail().bounding_box()
    assert box is not None
    assert box["width"] == 390
    console.picture("phone-message")


def test_it_is_dark_when_asked(open_console: Callable[..., Console], stage: Stage) -> None:
    queue = stage.queue()
    stage.dead_letter(queue, 4)
    console = open_console(color_scheme="dark").sign_in()
    background = "() => getComputedStyle(document.body).backgroundColor"
    assert console.page.evaluate(background) == "rgb(18, 24, 27)"
    console.picture("dark-entities")
    console.open_entity(queue, "dead-letter")
    console.row(2).click()
    expect(console.detail()).to_be_visible()
    console.picture("dark-message")
    console.page.get_by_role("button", name="Light or dark").click()
    assert console.page.evaluate(background) == "rgb(246, 247, 248)"
    console.page.reload()
    assert console.page.evaluate(background) == "rgb(246, 247, 248)"


def test_everything_that_can_be_used_has_a_name(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.dead_letter(queue, 2)
    assert console.page.evaluate(UNNAMED) == []
    console.open_entity(queue, "dead-letter")
    console.row(1).click()
    console.detail().locator("pre").wait_for()
    assert console.page.evaluate(UNNAMED) == []
    console.detail().get_by_role("button", name="Edit and resubmit").click()
    assert console.page.evaluate(UNNAMED) == []
    for name in ("Filter tester", "Pairs", "Reports"):
        console.page.goto(f"{console.url}#/entities")
        console.open_page(name)
        console.page.get_by_role("heading", level=1).wait_for()
        assert console.page.evaluate(UNNAMED) == []
