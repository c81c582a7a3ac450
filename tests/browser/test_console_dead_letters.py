"""Repairing dead letters: one, some, all; as they are or changed; and purging."""

from __future__ import annotations

from azure.servicebus import ServiceBusMessage

from tests.browser.console import Console, expect
from tests.browser.stage import Stage


def test_one_dead_letter_is_edited_and_sent_again(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.dead_letter(queue, 2)
    console.open_entity(queue, "dead-letter")
    console.row(1).click()
    expect(console.detail().locator(".reason")).to_contain_text("Broken")
    console.picture("dead-letter")
    console.detail().get_by_role("button", name="Edit and resubmit").click()
    dialog = console.dialog()
    dialog.get_by_label("Body").fill('{"order": 1, "total": 5}')
    dialog.get_by_label("Subject").fill("repaired")
    console.picture("edit-and-resubmit")
    dialog.get_by_role("button", name="Resubmit").click()
    expect(console.rows()).to_have_count(1)
    (message,) = stage.peek(queue)
    assert str(message) == '{"order": 1, "total": 5}'
    assert message.subject == "repaired"
    assert message.message_id == "m-1"
    assert message.application_properties == {b"number": 1, b"colour": b"red"}
    assert message.enqueued_sequence_number == 1
    assert len(stage.peek(queue, dead=True)) == 1


def test_what_was_not_edited_keeps_the_ends_of_its_lines(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    body = "MSH|LAB\rPID|1\r\nOBX|1\n"
    stage.dead_letter(queue, 2, make=lambda n: ServiceBusMessage(body, correlation_id="a\r\nb"))
    console.open_entity(queue, "dead-letter")
    for left, edit in ((1, "Subject"), (0, "Body")):
        console.rows().first.click()
        console.detail().get_by_role("button", name="Edit and resubmit").click()
        console.dialog().get_by_label(edit).fill("x\ny" if edit == "Body" else "repaired")
        console.dialog().get_by_role("button", name="Resubmit").click()
        expect(console.rows()).to_have_count(left)
    first, second = stage.peek(queue)
    assert (str(first), first.subject) == (body, "repaired")
    assert str(second) == "x\ny"
    assert first.correlation_id == second.correlation_id == "a\r\nb"


def test_a_refused_edit_leaves_the_dead_letter_alone(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.dead_letter(queue, 1)
    console.open_entity(queue, "dead-letter")
    console.row(1).click()
    console.detail().get_by_role("button", name="Edit and resubmit").click()
    dialog = console.dialog()
    dialog.get_by_label("Body").fill("x" * 300_000)
    dialog.get_by_role("button", name="Resubmit").click()
    expect(dialog.locator(".failure").last).to_contain_text("exceeds the limit")
    assert len(stage.peek(queue, dead=True)) == 1
    assert stage.peek(queue) == []


def test_selected_dead_letters_go_back_together(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.dead_letter(queue, 5)
    console.open_entity(queue, "dead-letter")
    for seq in (2, 4):
        console.page.get_by_label(f"Select message {seq}").check()
    console.page.get_by_role("button", name="Resubmit 2").click()
    console.dialog().get_by_role("button", name="Resubmit").click()
    expect(console.rows()).to_have_count(3)
    assert [message.message_id for message in stage.peek(queue)] == ["m-2", "m-4"]


def test_all_that_a_search_finds_is_changed_and_sent_again(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.dead_letter(queue, 20)
    console.open_entity(queue, "dead-letter")
    sql = console.page.get_by_label("SQL filter over properties")
    sql.fill("colour = 'red'")
    sql.press("Enter")
    expect(console.rows()).to_have_count(10)
    console.page.get_by_role("button", name="Resubmit all").click()
    dialog = console.dialog()
    expect(dialog.get_by_role("heading")).to_have_text(
        "Resubmit all messages that the search finds"
    )
    dialog.get_by_label("Change each on the way").fill(
        "SET colour = 'green'; SET sys.Label = 'two'"
    )
    console.picture("resubmit-all")
    dialog.get_by_role("button", name="Resubmit").click()
    expect(console.count_of("dead-letter")).to_have_text("10")
    moved = stage.peek(queue)
    assert [message.message_id for message in moved] == [f"m-{n}" for n in range(1, 21, 2)]
    assert {message.application_properties[b"colour"] for message in moved} == {b"green"}
    assert {message.subject for message in moved} == {"two"}
    assert not any(b"DeadLetterReason" in m.application_properties for m in moved)


def test_all_dead_letters_move_to_another_queue(console: Console, stage: Stage) -> None:
    queue, repair = stage.queue(), stage.queue()
    stage.dead_letter(queue, 30)
    console.open_entity(queue, "dead-letter")
    console.page.get_by_role("button", name="Resubmit all").click()
    console.dialog().get_by_label("Resubmit to").fill(repair)
    console.dialog().get_by_role("button", name="Resubmit").click()
    expect(console.count_of("dead-letter")).to_have_text("0")
    assert len(stage.peek(repair)) == 30
    assert stage.peek(queue) == []


def test_purging_asks_first_and_empties_the_queue(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.dead_letter(queue, 6)
    console.open_entity(queue, "dead-letter")
    console.page.get_by_role("button", name="Purge").click()
    expect(console.dialog()).to_contain_text("gone for good")
    console.dialog().get_by_role("button", name="Cancel").click()
    expect(console.rows()).to_have_count(6)
    console.page.get_by_role("button", name="Purge").click()
    console.dialog().get_by_role("button", name="Purge").click()
    expect(console.rows()).to_have_count(0)
    assert stage.peek(queue, dead=True) == []
