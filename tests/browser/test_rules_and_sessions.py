"""Rules with the filter tester; sessions with their state."""

from __future__ import annotations

import re

from azure.servicebus import ServiceBusMessage

from tests.browser.console import Console, expect
from tests.browser.stage import Stage


def test_rules_are_made_changed_and_deleted(console: Console, stage: Stage) -> None:
    topic = stage.topic("audit")
    console.open_entity(f"{topic}/Subscriptions/audit", "rules")
    console.page.get_by_role("button", name="New rule").click()
    dialog = console.dialog()
    dialog.get_by_label("Name", exact=True).fill("large")
    dialog.get_by_label("SQL filter").fill("amount >")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.locator(".failure").last).to_contain_text("cannot be made")
    dialog.get_by_label("SQL filter").fill("amount > 100")
    dialog.get_by_label("Action").fill("SET large = TRUE")
    dialog.get_by_role("button", name="Save").click()
    row = console.page.locator("tr[data-rule=large]")
    expect(row).to_contain_text("amount > 100")
    console.picture("rules")
    row.get_by_role("button", name="Edit").click()
    console.dialog().get_by_label("SQL filter").fill("amount > 200")
    console.dialog().get_by_role("button", name="Save").click()
    expect(row).to_contain_text("amount > 200")
    console.page.locator("tr[data-rule='$Default']").get_by_role("button", name="Delete").click()
    console.dialog().get_by_role("button", name="Delete").click()
    expect(console.page.locator("tr[data-rule]")).to_have_count(1)


def test_the_tester_tells_which_rules_match_and_what_actions_do(
    console: Console, stage: Stage
) -> None:
    topic = stage.topic("red", "large", "broken")
    for name, rule in {
        "red": {"filter": "correlation", "properties": {"colour": "red"}},
        "large": {"filter": "sql", "expression": "amount > 100"},
        "broken": {"filter": "sql", "expression": "amount / 0 > 1"},
    }.items():
        stage.rule(f"{topic}/Subscriptions/{name}", name="own", **rule)
    console.page.goto(f"{console.url}#/tester?entity={topic}")
    page = console.page
    page.get_by_label("Application properties").fill('{"colour": "red", "amount": 5}')
    page.get_by_label("SQL filter").fill("amount < 10")
    page.get_by_label("Action").fill("SET amount = amount * 2; REMOVE colour")
    page.get_by_role("button", name="Try", exact=True).click()
    results = page.locator(".results")
    section = lambda name: results.locator("section").filter(has_text=name)  # noqa: E731
    own = section("Your rule").locator(".verdict")
    expect(own).to_have_class(re.compile("good"))
    expect(own.locator("pre")).to_contain_text('"amount": 10')
    expect(own.locator("pre")).not_to_contain_text("colour")
    expect(section(f"{topic}/Subscriptions/red").locator("[data-rule=own]")).to_have_class(
        re.compile("good")
    )
    expect(section(f"{topic}/Subscriptions/large").locator("[data-rule=own]")).to_have_class(
        re.compile("off")
    )
    expect(section(f"{topic}/Subscriptions/broken").locator("[data-rule=own]")).to_have_class(
        re.compile("bad")
    )
    console.picture("tester")
    assert stage.messages_of(f"{topic}/Subscriptions/red") == 0


def test_sessions_show_their_messages_and_state(console: Console, stage: Stage) -> None:
    queue = stage.queue(requires_session=True)
    stage.send(queue, 6, lambda n: ServiceBusMessage(f"{n}", session_id=f"s{n % 2}"))
    stage.set_session_state(queue, "s1", '{"step": 3}')
    console.open_entity(queue, "sessions")
    row = console.page.locator("tr[data-session=s1]")
    expect(row).to_contain_text("3")
    expect(row).to_contain_text("11 B")
    row.click()
    expect(console.detail().locator("pre")).to_have_text('{\n  "step": 3\n}')
    console.picture("sessions")
