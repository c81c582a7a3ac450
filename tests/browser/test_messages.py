"""A queue's messages by state: pages, search, views of the body, traces."""

from __future__ import annotations

import re

from azure.servicebus import ServiceBusMessage

from tests.browser.console import Console, expect
from tests.browser.stage import TRACE, Stage


def test_every_state_has_its_tab(console: Console, stage: Stage) -> None:
    gone = stage.queue()
    queue = stage.queue(lock_duration_ms=60_000)
    forwarding = stage.queue(forward_to=gone)
    stage.dead_letter(queue, 4)
    stage.defer(queue, 3)
    stage.schedule(queue, 5)
    stage.send(queue, 2)
    with stage.receiver(queue) as receiver:
        assert receiver.receive_messages(1, max_wait_time=10)
        console.open_entity(queue)
        expected = {"active": 1, "locked": 1, "scheduled": 5, "deferred": 3, "dead-letter": 4}
        for tab, count in expected.items():
            expect(console.count_of(tab)).to_have_text(str(count))
            console.page.locator(f"#tab-{tab}").click()
            expect(console.rows()).to_have_count(count)
            console.picture(f"state-{tab}")
    stage.delete(gone)
    stage.send(forwarding, 2)
    console.open_entity(forwarding, "transfer")
    expect(console.rows()).to_have_count(2)
    expect(console.rows().first).to_contain_text("MessagingEntityNotFound")


def test_scheduled_messages_stand_on_a_time_line(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.schedule(queue, 12)
    console.open_entity(queue, "scheduled")
    bars = console.page.locator(".timeline .bars i")
    expect(bars).to_have_count(48)
    heights = bars.evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().height)")
    assert sum(height > 1 for height in heights) == 12
    console.picture("scheduled")


def test_pages_go_forwards_backwards_and_anywhere(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.send(queue, 130)
    console.open_entity(queue)
    where = console.page.locator(".pager .where")
    expect(where).to_have_text("#1 – #50 of 130")
    console.page.get_by_role("button", name="Next page").click()
    expect(where).to_have_text("#51 – #100 of 130")
    console.page.get_by_role("button", name="Last page").click()
    expect(where).to_have_text("#81 – #130 of 130")
    expect(console.page.get_by_role("button", name="Next page")).to_be_disabled()
    console.page.get_by_role("button", name="Previous page").click()
    expect(where).to_have_text("#31 – #80 of 130")
    console.page.get_by_label("Go to sequence number").fill("77")
    console.page.keyboard.press("Enter")
    expect(where).to_have_text("#77 – #126 of 130")
    console.page.get_by_role("button", name="First page").click()
    expect(where).to_have_text("#1 – #50 of 130")


def test_search_looks_at_properties_and_bodies(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.send(queue, 60)
    console.open_entity(queue)
    text = console.page.get_by_label("Search properties and body")
    text.fill('"ORDER": 42')
    text.press("Enter")
    expect(console.rows()).to_have_count(1)
    expect(console.row(42)).to_be_visible()
    text.fill("m-5")
    text.press("Enter")
    expect(console.rows()).to_have_count(11)
    text.fill("")
    sql = console.page.get_by_label("SQL filter over properties")
    sql.fill("number > 10 AND colour = 'red' AND sys.Label LIKE 'ord%'")
    sql.press("Enter")
    expect(console.rows()).to_have_count(25)
    expect(console.page.locator(".pager")).to_contain_text("in the whole queue")
    console.picture("search")
    sql.fill("number >")
    sql.press("Enter")
    expect(console.page.locator(".toast.error")).to_contain_text("The filter is not valid")
    console.page.get_by_role("button", name="Clear search").click()
    expect(console.rows()).to_have_count(50)


def test_a_body_is_shown_as_json_xml_text_and_hex(console: Console, stage: Stage) -> None:
    bodies = [
        b'{"a":[1,{}],"big":12345678901234567890}',
        b"<order><line no='1'>two</line><empty/></order>",
        b"plain <b>words</b>",
        bytes(range(256)),
    ]
    queue = stage.queue()
    stage.send(queue, 4, lambda number: ServiceBusMessage(bodies[number - 1]))
    console.open_entity(queue)
    body = console.detail().locator("pre.body")
    expected = [
        ("json", '{\n  "a": [\n    1,\n    {}\n  ],\n  "big": 12345678901234567890\n}'),
        ("xml", "<order>\n  <line no='1'>two</line>\n  <empty/>\n</order>"),
        ("text", "plain <b>words</b>"),
    ]
    for seq, (view, text) in enumerate(expected, 1):
        console.row(seq).click()
        expect(body).to_have_attribute("data-view", view)
        assert body.text_content() == text
    console.row(4).click()
    expect(body).to_have_attribute("data-view", "hex")
    expect(body).to_contain_text("00000000  00 01 02 03 04 05 06 07  08 09")
    console.picture("message-hex")
    with console.page.expect_download() as download:
        console.detail().get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == bodies[3]


def test_properties_keep_their_types_and_the_trace_is_shown(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.send_json(
        queue,
        {
            "body": "{}",
            "correlation_id": "c-1",
            "application_properties": {"Diagnostic-Id": TRACE, "amount": 2.0, "big": 2**60 + 1},
        },
    )
    console.open_entity(queue)
    expect(console.row(1).locator(".traced")).to_be_visible()
    console.row(1).click()
    trace = console.detail().locator(".trace")
    expect(trace).to_contain_text("4bf92f3577b34da6a3ce929d0e0e4736")
    expect(trace).to_contain_text("00f067aa0ba902b7")
    properties = console.detail().locator("table.properties").filter(has_text="amount")
    expect(properties.locator("tr").filter(has_text="big")).to_contain_text("1152921504606846977")
    expect(properties.locator("tr").filter(has_text="amount")).to_contain_text("double")
    expect(console.detail()).to_contain_text("c-1")
    console.picture("message-trace")


def test_markup_in_a_message_stays_text(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    evil = "<img src=x onerror=\"document.title='taken'\">"
    stage.send(
        queue,
        1,
        lambda _: ServiceBusMessage(evil, subject=evil, application_properties={evil: evil}),
    )
    console.open_entity(queue)
    console.row(1).click()
    expect(console.detail().locator("pre.body")).to_have_text(re.compile("onerror"))
    assert console.page.locator("main img").count() == 0
    assert console.page.title() == "Twinbus"


def test_what_a_reader_in_bulk_has_reserved_is_seen_and_left_alone(
    console: Console, stage: Stage
) -> None:
    queue = stage.queue()
    stage.send(queue, 5)
    console.open_entity(queue)
    expect(console.tab("Reserved")).to_have_count(0)
    stage.reserve(queue, 3)
    expect(console.count_of("reserved")).to_have_text("3")
    expect(console.count_of("active")).to_have_text("2")
    console.tab("Reserved").click()
    expect(console.rows()).to_have_count(3)
    expect(console.page.get_by_role("button", name="Purge")).to_have_count(0)


def test_deferred_messages_are_made_active_again(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.defer(queue, 3)
    console.open_entity(queue, "deferred")
    console.page.get_by_label("Select all on this page").check()
    console.page.get_by_role("button", name="Make 3 active").click()
    expect(console.count_of("active")).to_have_text("3")
    with stage.receiver(queue) as receiver:
        assert len(receiver.receive_messages(3, max_wait_time=10)) == 3
