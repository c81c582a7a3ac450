"""The decision of P5, P6 and P7, in virtual time."""

from collections.abc import Sequence

import pytest

from twinbus.pairing.events import (
    BacklogQueueDropped,
    EntityCleared,
    EntityFailedOver,
    EntityRecovered,
    EntitySuspected,
)
from twinbus.pairing.policy import BacklogQueue, Entity, Policy, State

INTERVAL_MS = 10_000
PING_MS = 60_000
BROKEN = RuntimeError("broken")


def a_policy(interval_ms: int = INTERVAL_MS, queues: int = 3) -> Policy:
    return Policy(interval_ms, PING_MS, [BacklogQueue(i, f"b/{i}") for i in range(queues)])


def fail(policy: Policy, entity: Entity, now_ms: int, began_ms: int | None = None) -> list[object]:
    began = now_ms if began_ms is None else began_ms
    return list(policy.send_failed(entity, BROKEN, began, now_ms))


def first(options: Sequence[int]) -> int:
    return options[0]


def test_p5_the_first_failure_starts_the_timer() -> None:
    policy = a_policy()
    entity = policy.entity("orders")
    assert fail(policy, entity, 5) == [EntitySuspected("orders", "broken")]
    assert entity.state is State.SUSPECT
    assert policy.next_deadline_ms() == 5 + INTERVAL_MS
    assert fail(policy, entity, 6) == []
    assert policy.next_deadline_ms() == 5 + INTERVAL_MS


@pytest.mark.parametrize(("later_ms", "engaged"), [(-1, False), (0, True), (1, True)])
def test_p5_failover_engages_when_the_interval_is_over(later_ms: int, engaged: bool) -> None:
    policy = a_policy()
    entity = policy.entity("orders")
    fail(policy, entity, 5)
    events = policy.advance(5 + INTERVAL_MS + later_ms)
    assert events == ([EntityFailedOver("orders", "broken")] if engaged else [])
    assert (entity.state is State.FAILED_OVER) is engaged


def test_p5_a_failure_after_the_interval_engages_by_itself() -> None:
    policy = a_policy()
    entity = policy.entity("orders")
    fail(policy, entity, 5)
    assert fail(policy, entity, 5 + INTERVAL_MS) == [EntityFailedOver("orders", "broken")]


def test_p5_a_success_stops_the_timer() -> None:
    policy = a_policy()
    entity = policy.entity("orders")
    fail(policy, entity, 5)
    assert policy.send_succeeded(entity, 6) == [EntityCleared("orders")]
    assert policy.next_deadline_ms() is None
    assert policy.advance(5 + 2 * INTERVAL_MS) == []


def test_p5_zero_interval_engages_at_the_first_failure() -> None:
    policy = a_policy(interval_ms=0)
    entity = policy.entity("orders")
    assert fail(policy, entity, 5) == [EntityFailedOver("orders", "broken")]


def test_p5_other_entities_stay_healthy() -> None:
    policy = a_policy(interval_ms=0)
    fail(policy, policy.entity("orders"), 5)
    assert policy.entity("invoices").state is State.HEALTHY


def test_e1_one_entity_whatever_the_case_of_its_name() -> None:
    policy = a_policy()
    assert policy.entity("Orders") is policy.entity("oRDERS")


def test_p6_a_ping_runs_every_interval_and_never_twice_at_once() -> None:
    policy = a_policy(interval_ms=0)
    entity = policy.entity("orders")
    fail(policy, entity, 0)
    assert policy.pings_due(PING_MS - 1) == []
    assert policy.pings_due(PING_MS) == [entity]
    assert policy.pings_due(3 * PING_MS) == []
    assert policy.next_deadline_ms() is None
    assert policy.ping_ended(entity, False, 3 * PING_MS) == []
    assert policy.pings_due(3 * PING_MS) == [entity]


def test_p6_only_a_ping_leads_back() -> None:
    policy = a_policy(interval_ms=0)
    entity = policy.entity("orders")
    fail(policy, entity, 0)
    assert policy.send_succeeded(entity, 1) == []
    assert entity.state is State.FAILED_OVER


def test_p7_a_ping_that_succeeds_ends_failover_and_pings() -> None:
    policy = a_policy(interval_ms=0)
    entity = policy.entity("orders")
    fail(policy, entity, 10)
    policy.pings_due(10 + PING_MS)
    assert policy.ping_ended(entity, True, 10 + PING_MS + 5) == [
        EntityRecovered("orders", PING_MS + 5)
    ]
    assert entity.state is State.HEALTHY
    assert entity.error is None
    assert policy.pings_due(100 * PING_MS) == []


def test_p5_a_send_from_before_the_recovery_does_not_start_the_next_failover() -> None:
    policy = a_policy(interval_ms=0)
    entity = policy.entity("orders")
    fail(policy, entity, 10)
    policy.pings_due(PING_MS + 10)
    policy.ping_ended(entity, True, PING_MS + 20)
    assert fail(policy, entity, PING_MS + 30, began_ms=9) == []
    assert entity.state is State.HEALTHY
    assert fail(policy, entity, PING_MS + 40, began_ms=PING_MS + 20) != []


def test_p6_a_sender_keeps_its_queue_while_that_serves() -> None:
    policy = a_policy()
    assert policy.choose_queue(None, (), first, 0) == 0
    assert policy.choose_queue(2, (), first, 0) == 2


def test_p6_a_queue_that_fails_leaves_the_rotation_for_every_sender() -> None:
    policy = a_policy()
    assert policy.queue_failed(2, BROKEN, 0) == [BacklogQueueDropped("b/2", "broken")]
    assert policy.queue_failed(2, BROKEN, 1) == []
    assert policy.choose_queue(2, (), first, 1) == 0


def test_p6_no_queue_left() -> None:
    policy = a_policy(queues=2)
    policy.queue_failed(0, BROKEN, 0)
    policy.queue_failed(1, BROKEN, 0)
    assert policy.choose_queue(1, (), first, 1) is None


def test_p6_a_dropped_queue_is_tried_again_after_the_ping_interval() -> None:
    policy = a_policy(queues=1)
    policy.queue_failed(0, BROKEN, 0)
    assert policy.choose_queue(0, (), first, PING_MS - 1) is None
    assert policy.choose_queue(0, (), first, PING_MS) == 0
