"""Signing in: a SAS key opens the console, a wrong one does not, claims are followed."""

from __future__ import annotations

from collections.abc import Callable

from tests.browser.console import Console, expect
from tests.browser.stage import LISTENER_KEY, SENDER_KEY, Stage
from tests.support.broker import KEY, Broker


def test_a_policy_and_its_key_open_the_console(open_console: Callable[..., Console]) -> None:
    console = open_console()
    console.page.goto(console.url)
    expect(console.page.get_by_role("button", name="Sign in")).to_be_visible()
    console.picture("sign-in")
    console.sign_in()
    expect(console.page.get_by_role("heading", name="Entities")).to_be_visible()
    expect(console.page.locator("#bar .namespace")).to_have_text("shop")


def test_a_connection_string_opens_the_console(
    open_console: Callable[..., Console], broker: Broker
) -> None:
    console = open_console()
    console.page.goto(console.url)
    console.page.get_by_label("Connection string").fill(broker.connection_string)
    console.page.get_by_role("button", name="Sign in").click()
    expect(console.page.get_by_role("heading", name="Entities")).to_be_visible()


def test_a_wrong_key_is_refused_in_words(open_console: Callable[..., Console]) -> None:
    console = open_console()
    console.page.goto(console.url)
    console.page.get_by_label("Key", exact=True).fill("wrong")
    console.page.get_by_role("button", name="Sign in").click()
    expect(console.page.get_by_role("alert")).to_have_text("No policy of that name has that key.")
    expect(console.page.locator("#bar")).to_be_hidden()


def test_a_session_lasts_over_a_reload_and_ends_with_signing_out(console: Console) -> None:
    console.page.reload()
    expect(console.page.get_by_role("heading", name="Entities")).to_be_visible()
    assert KEY not in console.page.content()
    console.page.get_by_role("button", name="Sign out").click()
    expect(console.page.get_by_role("button", name="Sign in")).to_be_visible()
    console.page.reload()
    expect(console.page.get_by_role("button", name="Sign in")).to_be_visible()


def test_a_listener_sees_messages_and_cannot_send_or_resubmit(
    open_console: Callable[..., Console], stage: Stage
) -> None:
    queue = stage.queue()
    stage.dead_letter(queue, 2)
    console = open_console().sign_in("listener", LISTENER_KEY)
    console.open_entity(queue, "dead-letter")
    expect(console.rows()).to_have_count(2)
    expect(console.page.get_by_role("button", name="Send message")).to_have_count(0)
    expect(console.page.get_by_role("button", name="Resubmit")).to_have_count(0)
    expect(console.page.get_by_role("button", name="Purge")).to_be_visible()


def test_a_sender_may_send_and_sees_no_message(
    open_console: Callable[..., Console], stage: Stage
) -> None:
    queue = stage.queue()
    stage.send(queue, 1)
    console = open_console().sign_in("sender", SENDER_KEY)
    console.open_entity(queue)
    expect(console.page.get_by_role("button", name="Send message")).to_be_visible()
    expect(console.page.locator("table.messages")).to_contain_text("does not give 'Listen'")
