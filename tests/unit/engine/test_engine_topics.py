"""Topics, subscriptions, rules (E8, D3, D6)."""

from __future__ import annotations

import pytest
from engine_kit import Kit, payload, properties_of, refusal

from twinbus.core import errors, limits
from twinbus.core.descriptions import RuleDescription
from twinbus.engine import settlement
from twinbus.engine import stored as form
from twinbus.engine.message import take_in
from twinbus.engine.settlement import Settlement
from twinbus.engine.topics import Subscription

RED = RuleDescription("red", "sql", "color = 'red'")
BROKEN = RuleDescription("broken", "sql", "10 / n > 1")


def colored(color: str, body: bytes = b"x") -> bytes:
    return payload(body, properties={"color": color})


def properties(kit: Kit, subscription: Subscription, seq: int = 1) -> dict[str, object]:
    return properties_of(subscription.main.stored(seq))


def test_e8_each_matching_subscription_gets_its_own_copy() -> None:
    kit = Kit()
    topic = kit.topic()
    every, red = kit.subscription("all"), kit.subscription("red", rule=RED)
    kit.send(topic, colored("red", b"r"), colored("blue", b"b"))
    assert kit.bodies(every) == [b"r", b"b"]
    assert kit.bodies(red) == [b"r"]
    taker = kit.taker(every, peek_lock=False)
    assert taker.bodies == [b"r"]
    assert kit.bodies(red) == [b"r"]


def test_e8_a_new_subscription_takes_everything() -> None:
    kit = Kit()
    kit.topic()
    subscription = kit.subscription()
    assert [rule.description.filter for rule in subscription.rules.values()] == ["true"]
    assert list(subscription.rules) == ["$default"]


def test_e8_false_filters_and_correlation_filters() -> None:
    kit = Kit()
    topic = kit.topic()
    nothing = kit.subscription("nothing", rule=RuleDescription("none", "false"))
    by_label = kit.subscription(
        "label", rule=RuleDescription("label", "correlation", correlation={"label": "hello"})
    )
    by_number = kit.subscription(
        "number", rule=RuleDescription("n", "correlation", properties={"n": ("int", "7")})
    )
    kit.send(topic, payload(b"1", subject="hello"), payload(b"2", properties={"n": 7}))
    assert kit.bodies(nothing) == []
    assert kit.bodies(by_label) == [b"1"]
    assert kit.bodies(by_number) == [b"2"]


def test_e8_several_matching_rules_without_action_give_one_copy() -> None:
    kit = Kit()
    topic = kit.topic()
    subscription = kit.subscription()
    kit.namespace.create_rule(subscription, RED, kit.now_ms)
    kit.send(topic, colored("red"))
    assert len(kit.bodies(subscription)) == 1


def test_e8_rules_with_actions_give_a_copy_each() -> None:
    kit = Kit()
    topic = kit.topic()
    subscription = kit.subscription()
    for name in ("one", "two"):
        rule = RuleDescription(name, action=f"SET by = '{name}'; REMOVE color")
        kit.namespace.create_rule(subscription, rule, kit.now_ms)
    kit.send(topic, colored("red"))
    assert [properties(kit, subscription, seq) for seq in (1, 2, 3)] == [
        {"color": "red"},
        {"by": "one", "RuleName": "one"},
        {"by": "two", "RuleName": "two"},
    ]


def test_e8_an_action_changes_its_own_copy_only() -> None:
    kit = Kit()
    topic = kit.topic()
    marked = kit.subscription("marked", rule=RuleDescription("m", action="SET sys.Label = 'new'"))
    plain = kit.subscription("plain", rule=RuleDescription("l", "sql", "sys.Label = 'old'"))
    kit.send(topic, payload(subject="old"))
    assert len(kit.bodies(marked)) == 1
    assert len(kit.bodies(plain)) == 1


def test_d3_a_failing_filter_dead_letters_the_message() -> None:
    kit = Kit()
    topic = kit.topic()
    broken, fine = kit.subscription("broken", rule=BROKEN), kit.subscription("fine")
    kit.send(topic, payload(properties={"n": 0}))
    reason, description, source = kit.death(broken)
    assert reason == "FilterException"
    assert "Division by zero" in str(description)
    assert source == "t/Subscriptions/broken"
    assert len(kit.bodies(fine)) == 1


def test_d3_a_failing_action_dead_letters_the_message_as_it_was() -> None:
    kit = Kit()
    topic = kit.topic()
    rule = RuleDescription("r", action="SET done = 1; SET share = 1 / n")
    subscription = kit.subscription(rule=rule)
    kit.send(topic, payload(properties={"n": 0}))
    assert kit.death(subscription)[0] == "RuleActionException"
    given = properties_of(subscription.stream(1).stored(1))
    assert "done" not in given


def test_d6_a_failing_filter_with_the_switch_off_is_counted() -> None:
    kit = Kit()
    topic = kit.topic()
    subscription = kit.subscription(
        rule=BROKEN, dead_lettering_on_filter_evaluation_exceptions=False
    )
    kit.send(topic, payload(properties={"n": 0}), payload(b"ok", properties={"n": 2}))
    assert kit.bodies(subscription) == [b"ok"]
    assert kit.bodies(subscription, 1) == []
    assert subscription.filter_failures_total == 1


class Faulty:
    """A filter with a fault of ours in it."""

    def matches(self, view: object) -> bool:
        raise RuntimeError("a fault of the test's")


def test_d7_a_fault_in_a_rule_loses_no_message_that_is_being_moved() -> None:
    """Whatever the switch says: that is for filters that fail as they may."""
    kit = Kit()
    kit.topic()
    subscription = kit.subscription(dead_lettering_on_filter_evaluation_exceptions=False)
    subscription.rules["$default"].filter = Faulty()
    queue = kit.queue(forward_dead_lettered_messages_to="t")
    kit.send(queue, payload(b"dead"))
    (lock,) = kit.taker(queue).locks
    kit.settle(queue, queue.main, lock, Settlement(settlement.DEAD_LETTER))
    assert kit.bodies(subscription, 1) == [b"dead"]
    assert "a fault of the test" in str(kit.death(subscription))


def test_d3_an_action_may_not_make_the_properties_too_large() -> None:
    kit = Kit()
    topic = kit.topic()
    rule = RuleDescription("double", action="SET b = a; SET c = a; SET d = a")
    subscription = kit.subscription(rule=rule)
    kit.send(topic, payload(properties={"a": "x" * 20_000}))
    assert kit.bodies(subscription) == []
    assert kit.death(subscription)[:2] == (
        "HeaderSizeExceeded",
        "The size quota for this stream has been exceeded.",
    )


def test_e4_a_copy_remembers_the_number_that_it_had_in_the_topic() -> None:
    kit = Kit()
    topic = kit.topic()
    red = kit.subscription(rule=RED)
    kit.send(topic, colored("blue"), colored("red"))
    stored = red.main.stored(1)
    assert form.annotation(stored, "x-opt-enqueue-sequence-number") == 2


def test_e8_rules_come_and_go_and_are_kept() -> None:
    kit = Kit()
    kit.topic()
    subscription = kit.subscription()
    namespace = kit.namespace
    namespace.create_rule(subscription, RED, kit.now_ms)
    again = refusal(lambda: namespace.create_rule(subscription, RED, kit.now_ms))
    assert again.kind is errors.ALREADY_EXISTS
    namespace.delete_rule(subscription, "$Default")
    gone = refusal(lambda: namespace.delete_rule(subscription, "$default"))
    assert gone.kind is errors.NOT_FOUND
    namespace.update_rule(subscription, RuleDescription("RED", "sql", "color = 'crimson'"))
    kit.restart()
    kept = kit.namespace.subscription("t", "s")
    assert [(r.description.name, r.description.expression) for r in kept.rules.values()] == [
        ("red", "color = 'crimson'")
    ]
    kit.send(kit.namespace.topic("t"), colored("crimson", b"yes"), colored("red", b"no"))
    assert kit.bodies(kept) == [b"yes"]


def test_e8_a_rule_that_cannot_be_made_is_refused() -> None:
    kit = Kit()
    kit.topic()
    subscription = kit.subscription()
    for rule in (
        RuleDescription("bad", "sql", "color = "),
        RuleDescription("bad", "unheard of"),
        RuleDescription("bad", action="SET = 1"),
        RuleDescription("bad", "correlation", properties={"n": ("int", "seven")}),
        RuleDescription("bad name!", "true"),
    ):
        error = refusal(lambda made=rule: kit.namespace.create_rule(subscription, made, 0))
        assert error.kind is errors.ARGUMENT_ERROR
    assert list(subscription.rules) == ["$default"]


def test_e8_a_subscription_that_takes_no_sends_is_passed_over() -> None:
    kit = Kit()
    topic = kit.topic()
    subscription = kit.subscription(status="Disabled")
    kit.send(topic, payload())
    assert kit.bodies(subscription) == []


def test_e11_a_topic_is_as_full_as_its_subscriptions() -> None:
    kit = Kit()
    topic = kit.topic(max_size_in_megabytes=1)
    kit.subscription()
    for _ in range(5):
        kit.send(topic, payload(b"x" * 250_000))
    assert refusal(lambda: kit.send(topic, payload())).kind is errors.QUOTA_EXCEEDED


def test_copies_share_one_payload_in_the_journal() -> None:
    kit = Kit(memory_bytes_max=0)
    topic = kit.topic()
    subscriptions = [kit.subscription(name) for name in ("a", "b", "c")]
    kit.send(topic, payload(b"x" * 1_000))
    assert len({s.main.location(1) for s in subscriptions}) == 1
    assert sum(len(record) for _, record in kit.log.records[4:]) < 2_000
    kit.restart()
    for name in ("a", "b", "c"):
        assert kit.bodies(kit.namespace.subscription("t", name)) == [b"x" * 1_000]


def test_e8_e4_a_message_of_which_too_much_would_be_written_is_refused() -> None:
    """All its copies go into one batch of the journal; one that is too large stops the broker."""
    kit = Kit()
    topic = kit.topic(max_message_size_in_kilobytes=100 * 1024)
    rule = RuleDescription("r", action="SET done = 1")
    changed = [kit.subscription(f"changed{n}", rule=rule) for n in range(9)]
    for n in range(20):
        kit.subscription(f"like{n}")
    largest = take_in(payload(), str)
    # One payload for those that are alike, nine that an action changes.
    largest.wire_bytes = 100 * 1024 * 1024
    topic.check(largest)
    kit.namespace.create_rule(changed[0], RuleDescription("r2", action="SET done = 2"), kit.now_ms)
    error = refusal(lambda: topic.check(largest))
    assert error.kind is errors.MESSAGE_TOO_LARGE
    largest.wire_bytes //= 2
    topic.check(largest)


def wordy(name: str, chars: int) -> RuleDescription:
    return RuleDescription(name, "correlation", "", properties={"a": ("string", "x" * chars)})


def test_e8_rules_say_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a subscription's are one record, and a batch of the journal holds only so much."""
    monkeypatch.setattr(limits, "RULES_CHARS_MAX", 200_000)
    kit = Kit()
    kit.topic()
    subscription = kit.subscription()
    namespace, now_ms = kit.namespace, kit.now_ms
    error = refusal(lambda: namespace.create_rule(subscription, wordy("r", 65_537), now_ms))
    assert error.kind is errors.QUOTA_EXCEEDED
    refusal(lambda: kit.subscription("other", rule=wordy("r", 65_537)))
    assert list(namespace.topic("t").subscriptions) == ["s"]
    for name in ("a", "b", "c"):
        namespace.create_rule(subscription, wordy(name, 65_000), now_ms)
    full = refusal(lambda: namespace.create_rule(subscription, wordy("d", 65_000), now_ms))
    assert "together" in full.text
    refusal(lambda: namespace.update_rule(subscription, wordy("$Default", 65_000)))
    # One that is there can be written anew, and made shorter to make room for others.
    namespace.update_rule(subscription, wordy("b", 65_000))
    namespace.update_rule(subscription, wordy("b", 5))
    namespace.create_rule(subscription, wordy("d", 60_000), now_ms)
    # What was taken before there was a limit is kept.
    monkeypatch.setattr(limits, "RULES_CHARS_MAX", 10)
    kit.restart()
    assert len(kit.namespace.subscription("t", "s").rules) == 5
