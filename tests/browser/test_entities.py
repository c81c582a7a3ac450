"""The list of entities: live counts, rates, and a mark where dead letters pile up."""

from __future__ import annotations

import re

from tests.browser.console import Console, expect
from tests.browser.stage import Stage


def test_counts_follow_what_happens_without_a_reload(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    row = console.page.locator(f"tr[data-path='{queue}']")
    expect(row).to_be_visible()
    stage.send(queue, 7)
    expect(row.locator("[data-id=active]")).to_have_text("7")
    expect(row.locator("[data-id=in_rate]")).to_have_text(re.compile(r"/s$"))


def test_dead_letters_are_marked_and_can_be_picked_out(console: Console, stage: Stage) -> None:
    fine, broken = stage.queue(), stage.queue()
    stage.dead_letter(broken, 3)
    row = console.page.locator(f"tr[data-path='{broken}']")
    expect(row).to_have_class(re.compile("piled"))
    expect(row.locator("[data-id=dead_letter]")).to_have_text("3")
    console.picture("entities")
    console.page.locator("button.pile").click()
    expect(row).to_be_visible()
    expect(console.page.locator(f"tr[data-path='{fine}']")).to_have_count(0)
    row.locator("[data-id=dead_letter] a").click()
    expect(console.tab("Dead-letter")).to_have_attribute("aria-selected", "true")
    expect(console.rows()).to_have_count(3)


def test_the_list_is_filtered_and_sorted(console: Console, stage: Stage) -> None:
    names = [stage.queue(f"sorted-{letter}") for letter in "abc"]
    stage.send(names[1], 3)
    stage.send(names[2], 1)
    console.page.get_by_label("Filter entities by name").fill("sorted-")
    lines = console.page.locator("table.entities tbody tr")
    expect(lines).to_have_count(3)
    expect(lines.nth(0)).to_have_attribute("data-path", "sorted-a")
    expect(console.page.locator("tr[data-path='sorted-b'] [data-id=active]")).to_have_text("3")
    console.page.get_by_role("button", name="Active", exact=True).click()
    expect(lines.nth(0)).to_have_attribute("data-path", "sorted-b")
    expect(lines.nth(1)).to_have_attribute("data-path", "sorted-c")


def test_the_order_follows_the_counts_and_the_focus_stays(console: Console, stage: Stage) -> None:
    names = [stage.queue(f"moving-{letter}") for letter in "ab"]
    stage.send(names[0], 1)
    console.page.get_by_label("Filter entities by name").fill("moving-")
    console.page.get_by_role("button", name="Active", exact=True).click()
    lines = console.page.locator("table.entities tbody tr")
    expect(lines.nth(0)).to_have_attribute("data-path", "moving-a")
    lines.nth(0).locator("a.entity").focus()
    stage.send(names[1], 2)
    expect(lines.nth(0)).to_have_attribute("data-path", "moving-b")
    expect(console.page.locator("tr[data-path='moving-a'] a.entity")).to_be_focused()


def test_entities_are_made_changed_and_deleted(console: Console) -> None:
    page = console.page
    page.get_by_role("button", name="New entity").click()
    console.dialog().get_by_label("Name", exact=True).fill("made-here")
    page.get_by_label("requires sessions").check()
    console.dialog().get_by_role("button", name="Create").click()
    page.get_by_role("heading", level=1, name="made-here").wait_for()
    expect(console.tab("Sessions")).to_be_visible()
    console.tab("Settings").click()
    page.get_by_label("max delivery count").fill("3")
    page.get_by_label("lock duration").fill("PT1M30S")
    expect(page.get_by_label("auto delete on idle")).to_have_value("unlimited")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".toast")).to_have_text("Saved.")
    page.reload()
    expect(page.get_by_label("max delivery count")).to_have_value("3")
    expect(page.get_by_label("lock duration")).to_have_value("PT1M30S")
    console.picture("settings")
    page.get_by_role("button", name="Delete entity").click()
    console.dialog().get_by_role("button", name="Delete").click()
    page.get_by_role("heading", name="Entities").wait_for()
    expect(page.locator("tr[data-path='made-here']")).to_have_count(0)


def test_what_is_refused_is_said(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    console.page.get_by_role("button", name="New entity").click()
    console.dialog().get_by_label("Name", exact=True).fill(queue)
    console.dialog().get_by_role("button", name="Create").click()
    expect(console.dialog().get_by_role("alert")).to_contain_text("already exists")
