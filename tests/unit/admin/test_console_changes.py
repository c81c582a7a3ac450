"""What the console changes in bulk, on a broker in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.unit.engine.engine_kit import payload
from tests.unit.server.server_kit import Machine
from twinbus.admin.console.changes import Changes, Step
from twinbus.admin.console.streams import Query
from twinbus.admin.console.tester import read_rule
from twinbus.core import names
from twinbus.core.descriptions import (
    DISABLED,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.engine.entities import Entity
from twinbus.engine.message import take_in


def test_a_step_of_large_messages_is_more_than_one_batch() -> None:
    """Each is written anew, and a batch holds only so much."""
    machine = Machine(segment_bytes=64 << 20)
    broker = machine.broker
    now_ms = broker.begin_turn()
    large = QueueDescription("q", max_message_size_in_kilobytes=100 << 10)
    queue = broker.engine.namespace("n", now_ms).create_queue(large, now_ms)
    for seq in range(1, 6):
        queue.publish(take_in(payload(bytes(20 << 20)), str), broker.begin_turn())
        machine.run()
        queue.dead_letter(queue.main, seq, "dead", "", 0, broker.begin_turn())
        machine.run()
    commits = broker.commits_total
    step = Step([1, 2, 3, 4, 5], 0, 5)
    dead = queue.stream(names.DEAD_LETTER_STREAM)
    changed = Changes(broker).resubmit(queue, dead, step, queue, "SET a = 1")
    machine.loop.run_until_complete(changed)
    assert (step.done, step.failures) == (5, [])
    assert queue.main.index.live == 5
    assert broker.commits_total - commits == 2
    machine.close()


class Place:
    """A queue with one dead letter, whose id it knows, and something else to send that to."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.broker = self.machine.broker
        now_ms = self.broker.begin_turn()
        self.namespace = self.broker.engine.namespace("n", now_ms)
        described = QueueDescription("q", requires_duplicate_detection=True)
        self.queue = self.namespace.create_queue(described, now_ms)
        self.queue.publish(take_in(payload(message_id="id"), str), now_ms)
        self.machine.run()
        self.queue.dead_letter(self.queue.main, 1, "dead", "", 0, self.broker.begin_turn())
        self.machine.run()
        self.dead = self.queue.stream(names.DEAD_LETTER_STREAM)
        self.changes = Changes(self.broker)

    def resubmit(self, target: Entity, action: str = "") -> Step:
        step = Step([1], 0, 1)
        done = self.changes.resubmit(self.queue, self.dead, step, target, action)
        return self.machine.loop.run_until_complete(done)

    @property
    def held(self) -> tuple[int, int]:
        return self.dead.index.live, self.queue.main.index.live


def test_e7_a_dead_letter_that_comes_home_another_way_is_no_duplicate_of_itself() -> None:
    place = Place()
    now_ms = place.broker.begin_turn()
    way = place.namespace.create_queue(QueueDescription("way", forward_to="q"), now_ms)
    assert place.resubmit(way).done == 1
    assert place.held == (0, 1)
    place.machine.close()


def test_e7_nor_by_way_of_a_topic_whose_rule_changes_it() -> None:
    place = Place()
    now_ms = place.broker.begin_turn()
    topic = place.namespace.create_topic(TopicDescription("t"), now_ms)
    rule = RuleDescription("r", action="SET a = 1")
    described = SubscriptionDescription("t", "s", forward_to="q")
    place.namespace.create_subscription(described, rule, now_ms)
    assert place.resubmit(topic).done == 1
    assert place.held == (0, 1)
    place.machine.close()


def test_e7_e9_nor_when_it_waited_on_the_way() -> None:
    """Nothing but what is stored with it can still tell that it was dead."""
    place = Place()
    now_ms = place.broker.begin_turn()
    way = place.namespace.create_queue(QueueDescription("way"), now_ms)
    assert place.resubmit(way).done == 1
    assert place.held == (0, 0)
    forwards = replace(way.description, forward_to="q")
    place.namespace.update_queue(forwards, place.broker.begin_turn())
    place.machine.run()
    assert (way.main.index.live, place.held) == (0, (0, 1))
    place.machine.close()


def test_e7_e8_nor_when_it_was_put_off() -> None:
    place = Place()
    now_ms = place.broker.begin_turn()
    way = place.namespace.create_queue(QueueDescription("way", forward_to="q"), now_ms)
    later = datetime.fromtimestamp(now_ms / 1000 + 60, UTC).isoformat()
    given = {"body": "mended", "message_id": "id", "scheduled_enqueue_time_utc": later}
    edited = place.changes.resubmit_edited(place.dead, 1, given, way)
    place.machine.loop.run_until_complete(edited)
    assert (way.main.index.live, place.held) == (1, (0, 0))
    place.machine.run(61)
    assert (way.main.index.live, place.held) == (0, (0, 1))
    place.machine.close()


@pytest.mark.parametrize("state", ["no subscription", "no match", "disabled", "fails"])
def test_a_dead_letter_that_a_topic_would_give_to_nobody_stays(state: str) -> None:
    """It would be in neither place: a topic keeps nothing."""
    place = Place()
    now_ms = place.broker.begin_turn()
    topic = place.namespace.create_topic(TopicDescription("t"), now_ms)
    described = SubscriptionDescription("t", "s")
    rule = RuleDescription("r", "sql", "kept = 1")
    if state == "disabled":
        described.status, rule = DISABLED, RuleDescription("r")
    elif state == "fails":
        described.dead_lettering_on_filter_evaluation_exceptions = False
        rule = RuleDescription("r", action="SET a = sys.MessageId / 2")
    if state != "no subscription":
        place.namespace.create_subscription(described, rule, now_ms)
    step = place.resubmit(topic)
    assert step.done == 0
    assert step.failures == ["1: No subscription of 't' would take the message."]
    assert place.held == (1, 0)
    edited = place.changes.resubmit_edited(place.dead, 1, {"body": "b"}, topic)
    with pytest.raises(BusError, match="No subscription"):
        place.machine.loop.run_until_complete(edited)
    assert place.held == (1, 0)
    if state == "no match":
        assert place.resubmit(topic, "SET kept = 1").done == 1
        assert place.held == (0, 0)
        assert topic.subscriptions["s"].main.index.live == 1
    place.machine.close()


def test_what_cannot_be_used_is_refused_and_no_failure_of_the_broker() -> None:
    place = Place()
    nested: object = 1
    for _ in range(600):
        nested = [nested]
    with pytest.raises(BusError, match="not valid"):
        place.changes.read({"body": {"value": nested}})
    assert not Query("\ud800").matcher()(b"\xed\xa0")
    for field in ("subject", "properties"):
        with pytest.raises(BusError, match=f"Unknown in a correlation filter: {field}"):
            read_rule({"filter": "correlation", "correlation": {field: "x"}})
    place.machine.close()
