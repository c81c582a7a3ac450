"""Sending and scheduling from the console: every field, every type, copies."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from tests.browser.console import Console, expect
from tests.browser.stage import Stage


def test_a_message_is_sent_with_its_properties(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    console.open_entity(queue)
    console.page.get_by_role("button", name="Send message").click()
    dialog = console.dialog()
    dialog.get_by_label("Body").fill('{"hello": "wörld"}')
    dialog.get_by_label("Message id").fill("by-hand")
    dialog.get_by_label("Subject").fill("greeting")
    dialog.get_by_label("Content type").fill("application/json")
    dialog.get_by_label("Time to live").fill("PT1H")
    dialog.get_by_label("Application properties").fill('{"n": {"int": 5}, "ok": true}')
    console.picture("send")
    dialog.get_by_role("button", name="Send").click()
    expect(console.rows()).to_have_count(1)
    (message,) = stage.peek(queue)
    assert str(message) == '{"hello": "wörld"}'
    assert (message.message_id, message.subject) == ("by-hand", "greeting")
    assert message.time_to_live == timedelta(hours=1)
    assert message.application_properties == {b"n": 5, b"ok": True}


def test_a_message_is_scheduled_and_cancelled(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    console.open_entity(queue)
    console.page.keyboard.press("s")
    due = (datetime.now() + timedelta(days=2)).replace(microsecond=0)
    console.dialog().get_by_label("Body").fill("later")
    console.dialog().get_by_label("Deliver at").fill(due.isoformat())
    console.dialog().get_by_role("button", name="Send").click()
    expect(console.count_of("scheduled")).to_have_text("1")
    (message,) = stage.peek(queue)
    assert message.scheduled_enqueue_time_utc == due.astimezone(UTC)
    console.tab("Scheduled").click()
    console.row(1).click()
    console.detail().get_by_role("button", name="Cancel").click()
    console.dialog().get_by_role("button", name="Cancel").last.click()
    expect(console.rows()).to_have_count(0)
    assert stage.peek(queue) == []


def test_many_are_sent_at_once(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    console.open_entity(queue)
    console.page.get_by_role("button", name="Send message").click()
    console.dialog().get_by_label("How many").fill("120")
    console.dialog().get_by_role("button", name="Send").click()
    expect(console.count_of("active")).to_have_text("120")
    assert len({message.message_id for message in stage.peek(queue)}) == 120


def test_the_whole_message_can_be_written_as_json(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    console.open_entity(queue)
    console.page.get_by_role("button", name="Send message").click()
    dialog = console.dialog()
    dialog.get_by_label("Subject").fill("kept")
    dialog.get_by_role("tab", name="JSON").click()
    whole = dialog.get_by_label("The whole message")
    message = json.loads(whole.input_value())
    assert message["subject"] == "kept"
    whole.fill(json.dumps(message | {"body": {"value": {"map": [["a", {"ulong": 7}]]}}}))
    dialog.get_by_role("button", name="Send").click()
    expect(console.rows()).to_have_count(1)
    console.row(1).click()
    expect(console.detail().locator("pre.body")).to_contain_text('"ulong": 7')


def test_a_copy_keeps_what_a_browser_would_round(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    own = {"big": 2**60 + 1, "point": 2.0, "nothing": {"double": "-0.0"}}
    stage.send_json(queue, {"body": "x", "application_properties": own})
    console.open_entity(queue)
    console.row(1).click()
    console.detail().get_by_role("button", name="Send a copy").click()
    console.dialog().get_by_role("button", name="Send").click()
    expect(console.rows()).to_have_count(2)
    first, second = stage.peek(queue)
    assert second.application_properties == first.application_properties
    kinds = [type(value) for value in second.application_properties.values()]
    assert kinds == [int, float, float]
    assert second.message_id == first.message_id


def test_what_is_wrong_with_a_message_is_said(console: Console, stage: Stage) -> None:
    queue = stage.queue(requires_session=True)
    console.open_entity(queue)
    console.page.get_by_role("button", name="Send message").click()
    failure = console.dialog().locator(".failure").last
    console.dialog().get_by_role("button", name="Send").click()
    expect(failure).to_contain_text("requires sessions")
    console.dialog().get_by_label("Application properties").fill("{oops")
    console.dialog().get_by_role("button", name="Send").click()
    expect(failure).to_contain_text("Application properties:")
    console.dialog().get_by_label("Application properties").fill('{"a": {"nope": 1}}')
    console.dialog().get_by_role("button", name="Send").click()
    expect(failure).to_contain_text("'nope' is no type")
