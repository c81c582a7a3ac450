"""The policy against a naive model that keeps the whole history (P5, P6, P7)."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from twinbus.pairing.events import EntityFailedOver, EntityRecovered, Event
from twinbus.pairing.policy import BacklogQueue, Policy, State

PING_MS = 1_000
PATHS = st.sampled_from(["orders", "Orders", "invoices"])
#: Steps at the edges of both intervals.
STEPS = st.sampled_from([1, 99, 100, 101, PING_MS - 1, PING_MS, PING_MS + 1])


class PolicyMachine(RuleBasedStateMachine):
    interval_ms = 100

    def __init__(self) -> None:
        super().__init__()
        self.now = 1
        self.policy = Policy(
            self.interval_ms, PING_MS, [BacklogQueue(i, f"b/{i}") for i in range(2)]
        )
        # The model: per entity the first failure since it was last well, and whether the
        # backlog has it; per queue when it failed last.
        self.first_failure: dict[str, int] = {}
        self.failed_over: dict[str, int] = {}
        self.last_ping: dict[str, int] = {}
        self.queue_failures: dict[int, int] = {}

    def tell(self, events: list[Event]) -> None:
        """The events are the only news of a change that the model accepts."""
        over = {event.path.casefold() for event in events if isinstance(event, EntityFailedOver)}
        back = {event.path.casefold() for event in events if isinstance(event, EntityRecovered)}
        assert over == {
            path
            for path, at in self.first_failure.items()
            if path not in self.failed_over and self.now >= at + self.interval_ms
        }
        for path in over:
            self.failed_over[path] = self.last_ping[path] = self.now
        for path in back:
            del self.failed_over[path]
            del self.first_failure[path]

    @rule(step=STEPS)
    def pass_time(self, step: int) -> None:
        self.now += step
        self.tell(self.policy.advance(self.now))

    @rule(path=PATHS)
    def fail(self, path: str) -> None:
        if path.casefold() not in self.failed_over:
            self.first_failure.setdefault(path.casefold(), self.now)
        error = RuntimeError("down")
        self.tell(self.policy.send_failed(self.policy.entity(path), error, self.now, self.now))

    @rule(path=PATHS)
    def succeed(self, path: str) -> None:
        key = path.casefold()
        if key not in self.failed_over:
            self.first_failure.pop(key, None)
        self.policy.send_succeeded(self.policy.entity(path), self.now)

    @rule(works=st.booleans())
    def ping(self, works: bool) -> None:
        due = self.policy.pings_due(self.now)
        assert {entity.path.casefold() for entity in due} == {
            path for path in self.failed_over if self.now >= self.last_ping[path] + PING_MS
        }
        for entity in due:
            self.last_ping[entity.path.casefold()] = self.now
            events = self.policy.ping_ended(entity, works, self.now)
            assert bool(events) is works
            self.tell(events)

    @rule(index=st.integers(0, 1))
    def queue_fails(self, index: int) -> None:
        if self.policy.queue_failed(index, RuntimeError("full"), self.now):
            self.queue_failures[index] = self.now

    @invariant()
    def states_agree(self) -> None:
        for key, entity in self.policy.entities.items():
            if key in self.failed_over:
                assert entity.state is State.FAILED_OVER
            elif key in self.first_failure:
                assert entity.state is State.SUSPECT
            else:
                assert entity.state is State.HEALTHY

    @invariant()
    def rotation_agrees(self) -> None:
        serving = {
            index
            for index in range(2)
            if index not in self.queue_failures or self.now >= self.queue_failures[index] + PING_MS
        }
        for current in (None, 0, 1):
            chosen = self.policy.choose_queue(current, (), max, self.now)
            assert chosen == (current if current in serving else max(serving, default=None))

    @invariant()
    def something_is_due_exactly_when_the_deadline_says_so(self) -> None:
        deadline = self.policy.next_deadline_ms()
        waiting = bool(self.failed_over) or bool(self.first_failure)
        assert (deadline is not None) is waiting


class ImmediateMachine(PolicyMachine):
    interval_ms = 0


for machine in (PolicyMachine, ImmediateMachine):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPolicy = PolicyMachine.TestCase
TestImmediatePolicy = ImmediateMachine.TestCase
