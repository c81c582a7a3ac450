"""Paired namespaces seen from the broker, and the pipeline's reports."""

from __future__ import annotations

from azure.servicebus import ServiceBusMessage

from tests.browser.console import Console, expect
from tests.browser.plain_http import Http
from tests.browser.stage import Stage
from tests.support.broker import Broker
from twinbus.pairing.event_file import EventFile
from twinbus.pairing.events import (
    EntityFailedOver,
    EntityRecovered,
    EntitySuspected,
    MessagesBacklogged,
    MessageSyphoned,
    PingSent,
)


def test_the_backlog_shows_depth_destinations_and_what_is_moved(
    console: Console, stage: Stage
) -> None:
    queues = [stage.queue(f"west/x-servicebus-transfer/{index}") for index in range(2)]

    def parked(number: int) -> ServiceBusMessage:
        path = "orders" if number % 3 else "billing"
        return ServiceBusMessage("{}", application_properties={"x-ms-path": path})

    for queue in queues:
        stage.send(queue, 30, parked)
    console.open_page("Pairs")
    card = console.page.locator("[data-primary=west]")
    expect(card).to_contain_text("60 parked")
    expect(card).to_contain_text("no syphon is running")
    card.get_by_role("button", name="Count by destination").click()
    destinations = card.locator(".destinations table")
    expect(destinations.locator("tr").nth(0)).to_contain_text("40")
    expect(destinations.locator("tr").nth(1)).to_contain_text("20")
    console.picture("pairs")
    with stage.receiver(queues[0]) as receiver:
        for message in receiver.receive_messages(30, max_wait_time=10):
            receiver.complete_message(message)
    expect(card).to_contain_text("30 parked")


def test_the_state_of_each_entity_is_told_by_the_applications(
    console: Console, broker: Broker
) -> None:
    path = broker.directory / "twinbus-events" / "web.jsonl"
    with EventFile(path, pair="shop", client="web-1") as events:
        events(EntitySuspected("orders", "timed out"))
        events(EntityFailedOver("orders", "connection refused"))
        events(MessagesBacklogged("Orders", "west/x-servicebus-transfer/0", 40))
        events(EntitySuspected("billing", "timed out"))
        console.open_page("Pairs")
        orders = console.page.locator("tr[data-told=orders]")
        expect(orders).to_contain_text("failed over")
        expect(orders).to_contain_text("connection refused")
        expect(orders).to_contain_text("40")
        expect(console.page.locator("tr[data-told=billing]")).to_contain_text("suspect")
        console.picture("pairs-told")
        events(PingSent("orders", None))
        events(EntityRecovered("orders", 1200))
        events(MessageSyphoned("orders", "west/x-servicebus-transfer/0"))
        expect(orders).to_contain_text("healthy")
        expect(orders).not_to_contain_text("connection refused")
    path.rename(path.with_suffix(".jsonl.1"))
    with EventFile(path, pair="shop", client="web-1") as events:
        events(EntityFailedOver("orders", "again"))
        expect(orders).to_contain_text("failed over")


def test_the_pairs_are_asked_for_again_after_an_outage(console: Console, stage: Stage) -> None:
    queue = stage.queue("north/x-servicebus-transfer/0")
    stage.send(queue, 1)
    console.open_page("Pairs")
    card = console.page.locator("[data-primary=north]")
    expect(card).to_contain_text("1 parked")
    failure = console.page.get_by_role("main").get_by_role("alert")
    console.page.context.set_offline(True)
    expect(failure).to_have_text("The broker cannot be reached.")
    stage.send(queue, 1)
    console.page.context.set_offline(False)
    expect(card).to_contain_text("2 parked")
    expect(failure).not_to_be_visible()


def test_pinged_entities_are_listed(console: Console, stage: Stage) -> None:
    queue = stage.queue()
    stage.send(
        queue,
        3,
        lambda _: ServiceBusMessage("", content_type="application/vnd.ms-servicebus-ping"),
    )
    console.open_page("Pairs")
    expect(console.page.locator(f"tr[data-path='{queue}']")).to_contain_text("3 pings")


def test_reports_are_listed_and_shown_without_their_scripts(
    console: Console, broker: Broker
) -> None:
    console.open_page("Reports")
    expect(console.page.locator("main")).to_contain_text("None yet")
    directory = broker.directory / "twinbus-reports" / "cost"
    directory.mkdir(parents=True)
    (directory / "report.html").write_text(
        "<!doctype html><title>Cost</title><style>h1 { color: rgb(1, 2, 3) }</style>"
        "<h1>Cost of a day</h1><svg width='40' height='20'><rect width='40' height='20'/></svg>"
        "<script>document.querySelector('h1').textContent = 'taken'</script>"
    )
    console.page.reload()
    frame = console.page.frame_locator("iframe")
    expect(frame.locator("h1")).to_have_text("Cost of a day")
    expect(frame.locator("h1")).to_have_css("color", "rgb(1, 2, 3)")
    console.picture("reports")
    with Http(broker.ready["ports"]["admin"]) as http:
        answer = http.sign_in().get("report", name="../data/root.key")
        assert answer.status == 404
