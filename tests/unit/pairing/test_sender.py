"""The paired sender between two namespaces in memory, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from types import NoneType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
)

from tests.sim.loop import VirtualLoop
from tests.sim.pairing import virtual
from twinbus.pairing import (
    BacklogMessageTooLargeError,
    BacklogSendError,
    PairClosedError,
    SendWindow,
    UnsentError,
    rewrite,
)
from twinbus.pairing.events import (
    BacklogQueueDropped,
    EntityFailedOver,
    EntitySuspected,
    Event,
    PingSent,
)
from twinbus.pairing.observer import Observer
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.order import SessionOrder
from twinbus.pairing.pair import Pair
from twinbus.pairing.policy import BacklogQueue
from twinbus.pairing.sender import PairedSender

Answer = Callable[[], Coroutine[Any, Any, None]]


class Namespace:
    """Its senders do what `answer` does, and keep what was accepted."""

    def __init__(self) -> None:
        self.answer: Answer = self.accept
        self.accepted: list[Any] = []
        self.offered: list[Any] = []
        self.open: set[Sender] = set()
        self.makes_none = False
        #: How often somebody looked into a queue.
        self.looks = 0

    def get_queue_sender(self, name: str) -> "Sender":
        if self.makes_none:
            raise ValueError("The queue name does not match the connection string.")
        return Sender(self)

    def get_queue_receiver(self, name: str) -> "Browser":
        self.looks += 1
        return Browser(self)

    def reset(self) -> None:
        """Break every connection; new ones are let in."""
        for sender in self.open:
            sender.broken = True

    async def accept(self) -> None:
        await asyncio.sleep(0.01)

    async def refuse(self) -> None:
        raise ServiceBusConnectionError

    async def say_nothing(self) -> None:
        await asyncio.sleep(60)
        raise OperationTimeoutError


class Sender:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.broken = False
        namespace.open.add(self)

    async def send_messages(self, message: Any, *, timeout: float) -> None:
        if isinstance(message, list | ServiceBusMessageBatch) and not len(message):
            return
        if self.broken:
            raise ServiceBusConnectionError
        self._namespace.offered.append(message)
        await self._namespace.answer()
        self._namespace.accepted.append(message)

    async def schedule_messages(
        self, messages: Any, when: datetime, *, timeout: float
    ) -> list[int]:
        await self.send_messages(messages, timeout=timeout)
        return [1 for _ in messages]

    async def create_message_batch(self, max_size_in_bytes: int | None) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch(max_size_in_bytes)

    async def close(self) -> None:
        self._namespace.open.discard(self)


class Browser:
    """Peeks at everything that a namespace accepted, whichever queue it is in."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    async def __aenter__(self) -> "Browser":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def peek_messages(self, *, max_message_count: int, sequence_number: int) -> list[Any]:
        accepted = list(self._namespace.accepted)[sequence_number:]
        # The answer is on its way while others store.
        await asyncio.sleep(0.2)
        return [
            SimpleNamespace(
                sequence_number=number,
                application_properties={
                    name.encode(): value for name, value in each.application_properties.items()
                },
            )
            for number, each in enumerate(accepted, sequence_number)
        ]


class World:
    def __init__(self, failover_s: float, queues: int, max_in_flight: int) -> None:
        self.primary, self.secondary = Namespace(), Namespace()
        self.events: list[Event] = []
        first: Any = self.primary
        then: Any = self.secondary
        options = SendAvailabilityPairedNamespaceOptions(
            secondary=then, administration=then, failover_interval=timedelta(seconds=failover_s)
        )
        known = [BacklogQueue(index, f"b/{index}") for index in range(queues)]
        self.pair = Pair(first, then, known, options, Observer(self.events.append))
        make = partial(first.get_queue_sender, "orders")
        self.order = SessionOrder(then)
        self.sender = PairedSender(self.pair, None, "orders", make, max_in_flight)
        self.in_order = PairedSender(self.pair, self.order, "orders", make, max_in_flight)

    async def send_in_order(self, body: str) -> None:
        await self.in_order.send_messages(ServiceBusMessage(body, session_id="s"))

    async def send(self, count: int = 1) -> None:
        await asyncio.gather(
            *(self.sender.send_messages(ServiceBusMessage("body")) for _ in range(count))
        )

    def seen(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


def in_virtual_time(
    case: Callable[[World], Coroutine[Any, Any, None]],
    failover_s: float = 0,
    queues: int = 3,
    max_in_flight: int = 10,
) -> None:
    loop = VirtualLoop()

    async def run() -> None:
        world = World(failover_s, queues, max_in_flight)
        async with asyncio.timeout(7200):
            await case(world)
            await world.pair.close("the test is over")
            await world.sender.close()
            await world.in_order.close()

    with ExitStack() as patches:
        for name, value in virtual(loop, Random(1)).items():
            patches.enter_context(mock.patch(name, value))
        loop.run_until_complete(run())
    loop.close()


def test_p6_a_send_ends_though_queues_come_back_while_others_time_out() -> None:
    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        world.secondary.answer = world.secondary.say_nothing
        with pytest.raises(BacklogSendError):
            await world.send()
        assert len(world.secondary.offered) == 3
        assert world.seen(BacklogQueueDropped) == 3
        # They are back: the next send tries them again.
        world.secondary.answer = world.secondary.accept
        await asyncio.sleep(60)
        await world.send()

    in_virtual_time(case)


def test_p6_cancelled_sends_leave_room_for_others() -> None:
    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        await world.send()
        world.secondary.answer = world.secondary.say_nothing
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(world.send(), 0.3)
        world.secondary.answer = world.secondary.accept
        await asyncio.wait_for(world.send(4), 5)
        assert len(world.secondary.accepted) == 5
        assert len(world.secondary.open) <= 2

    in_virtual_time(case, queues=1, max_in_flight=2)


def test_s4_a_sender_that_cannot_be_made_takes_no_place() -> None:
    async def case(world: World) -> None:
        world.primary.makes_none = True
        for _ in range(3):
            with pytest.raises(ValueError, match="does not match"):
                await asyncio.wait_for(world.send(), 5)
        world.primary.makes_none = False
        await asyncio.wait_for(world.send(4), 5)

    in_virtual_time(case, max_in_flight=2)


def test_p3_p5_a_reset_of_idle_connections_is_no_failure_of_the_entity() -> None:
    async def case(world: World) -> None:
        await world.send(10)
        assert len(world.primary.open) == 10
        world.primary.reset()
        await world.send()
        await asyncio.sleep(0)
        assert len(world.primary.open) == 1, "the others are as dead and must go, too"
        world.primary.reset()
        await world.send(10)
        assert len(world.primary.accepted) == 21
        assert world.events == []
        assert world.secondary.offered == []

    in_virtual_time(case)


def test_p5_a_fresh_connection_that_fails_counts_at_once() -> None:
    async def case(world: World) -> None:
        await world.send()
        world.primary.reset()
        world.primary.answer = world.primary.refuse
        with pytest.raises(ServiceBusConnectionError):
            await world.send()
        assert len(world.primary.offered) == 2, "tried once more, not over and over"
        with pytest.raises(ServiceBusConnectionError):
            await world.send()
        assert len(world.primary.offered) == 3
        assert world.seen(EntitySuspected) == 1

    in_virtual_time(case, failover_s=10)


def test_p4_a_time_out_counts_and_idle_connections_go_with_it() -> None:
    async def case(world: World) -> None:
        await world.send(3)
        world.primary.answer = world.primary.say_nothing
        with pytest.raises(OperationTimeoutError):
            await world.send()
        assert world.seen(EntitySuspected) == 1
        await asyncio.sleep(0)
        assert not world.primary.open

    in_virtual_time(case, failover_s=10)


def test_p5_making_a_batch_does_not_stop_the_failover_timer() -> None:
    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        for _ in range(10):
            batch = await world.sender.create_message_batch()
            batch.add_message(ServiceBusMessage("body"))
            with pytest.raises(ServiceBusConnectionError):
                await world.sender.send_messages(batch)
            await asyncio.sleep(1)
        await world.send()
        assert world.seen(EntitySuspected) == world.seen(EntityFailedOver) == 1
        assert len(world.secondary.accepted) == 1

    in_virtual_time(case, failover_s=9.5)


EMPTY_SENDS: dict[str, Callable[[PairedSender], Coroutine[Any, Any, Any]]] = {
    "list": lambda sender: sender.send_messages([]),
    "generator": lambda sender: sender.send_messages(message for message in ()),
    "batch": lambda sender: sender.send_messages(ServiceBusMessageBatch()),
    "schedule": lambda sender: sender.schedule_messages([], datetime(2030, 1, 1, tzinfo=UTC)),
}


@pytest.mark.parametrize("empty", EMPTY_SENDS)
def test_p5_sending_nothing_does_not_stop_the_failover_timer(empty: str) -> None:
    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        for _ in range(10):
            with pytest.raises(ServiceBusConnectionError):
                await world.send()
            assert not await EMPTY_SENDS[empty](world.sender)
            await asyncio.sleep(1)
        await world.send()
        assert world.seen(EntitySuspected) == world.seen(EntityFailedOver) == 1
        # While failed over there is nothing to store either.
        assert not await EMPTY_SENDS[empty](world.sender)
        assert len(world.secondary.offered) == 1

    in_virtual_time(case, failover_s=9.5)


@pytest.mark.parametrize(
    ("error", "raised", "dropped"),
    [(TypeError, TypeError, 0), (ServiceBusAuthenticationError, BacklogSendError, 3)],
)
def test_p6_a_wrong_call_is_raised_and_wrong_credentials_drop_the_queue(
    error: type[Exception], raised: type[Exception], dropped: int
) -> None:
    async def fail() -> None:
        raise error

    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        world.secondary.answer = fail
        with pytest.raises(raised):
            await world.send()
        assert world.seen(BacklogQueueDropped) == dropped

    in_virtual_time(case)


def test_p6_sends_that_wait_for_their_turn_go_over_with_the_others() -> None:
    async def case(world: World) -> None:
        world.primary.answer = world.primary.say_nothing
        began = asyncio.get_running_loop().time()
        await world.send(12)
        assert asyncio.get_running_loop().time() - began < 61
        assert len(world.primary.offered) == 2
        assert len(world.secondary.accepted) == 12

    in_virtual_time(case, max_in_flight=2)


def test_p6_sends_that_wait_for_their_turn_go_over_when_the_timer_ends() -> None:
    """Those that have their turn wait for an answer that does not come."""

    async def case(world: World) -> None:
        world.primary.answer = world.primary.say_nothing
        time = asyncio.get_running_loop().time
        began = time()
        sends = [asyncio.create_task(world.send()) for _ in range(8)]
        # At 60 s two sends fail and two more have their turn; at 70 s the interval is over.
        await asyncio.wait(sends, timeout=75)
        assert [send.done() for send in sends] == [True] * 2 + [False] * 2 + [True] * 4
        assert len(world.secondary.accepted) == 4
        await asyncio.wait(sends)
        assert 119 < time() - began < 122
        assert len(world.primary.accepted) == 0
        assert len(world.secondary.accepted) == 6
        world.primary.answer = world.primary.accept
        await asyncio.sleep(61)
        await world.send(8)
        assert len(world.secondary.accepted) == 6

    in_virtual_time(case, failover_s=10, max_in_flight=2)


def test_p12_sends_that_wait_for_their_turn_learn_of_a_close_at_once() -> None:
    async def case(world: World) -> None:
        world.primary.answer = world.primary.say_nothing
        sends = [asyncio.create_task(world.send()) for _ in range(4)]
        await asyncio.sleep(1)
        cancel = asyncio.create_task(world.sender.cancel_scheduled_messages(7))
        await asyncio.sleep(1)
        await world.pair.close("The pair has been closed.")
        await asyncio.sleep(1)
        assert [send.done() for send in sends] == [False] * 2 + [True] * 2
        for waited in (*sends[2:], cancel):
            with pytest.raises(PairClosedError):
                await waited
        await asyncio.wait(sends)

    in_virtual_time(case, failover_s=10, max_in_flight=2)


def test_p6_sends_that_wait_for_a_backlog_queue_learn_that_it_failed() -> None:
    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        world.secondary.answer = world.secondary.say_nothing
        began = asyncio.get_running_loop().time()
        ends = await asyncio.gather(*(world.send() for _ in range(12)), return_exceptions=True)
        assert asyncio.get_running_loop().time() - began < 61
        assert len(world.secondary.offered) == 2
        assert {type(end) for end in ends} == {BacklogSendError}

    in_virtual_time(case, queues=1, max_in_flight=2)


def test_p6_a_reset_of_idle_connections_drops_no_backlog_queue() -> None:
    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        await world.send(3)
        world.secondary.reset()
        await world.send()
        assert len(world.secondary.accepted) == 4
        assert world.seen(BacklogQueueDropped) == 0

    in_virtual_time(case, queues=1)


@pytest.mark.parametrize("form", [{"body": "b"}, [{"body": "b"}], ({"body": b} for b in "b")])
def test_r10_a_mapping_keeps_its_message_id_on_every_attempt(form: Any) -> None:
    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        await world.sender.send_messages(form)
        (offered,), (stored,) = world.primary.offered, world.secondary.accepted
        first = offered[0] if isinstance(offered, list) else offered
        assert stored.properties.message_id == first.message_id

    in_virtual_time(case)


def test_s4_a_drain_that_takes_too_long_cancels_no_send() -> None:
    async def case(world: World) -> None:
        async with SendWindow(world.sender) as window:
            for _ in range(3):
                await window.send(ServiceBusMessage("body"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(window.drain(), 0.001)
        assert len(world.primary.accepted) == 3

    in_virtual_time(case)


def test_s4_a_window_forgets_no_send_that_was_cancelled() -> None:
    async def case(world: World) -> None:
        messages = [ServiceBusMessage("body") for _ in range(3)]
        window = SendWindow(world.sender)
        for message in messages:
            await window.send(message)
        await asyncio.sleep(0.001)
        for task in asyncio.all_tasks():
            if task.get_name() == "windowed send":
                task.cancel()
        with pytest.raises(UnsentError) as unsent:
            await window.drain()
        failed = {message.message_id for message, _ in unsent.value.failures}
        assert failed == {message.message_id for message in messages}

    in_virtual_time(case)


def test_p12_sends_that_wait_for_their_turn_learn_that_the_pair_has_faulted() -> None:
    async def case(world: World) -> None:
        waiting = asyncio.gather(*(world.send() for _ in range(12)), return_exceptions=True)
        await asyncio.sleep(0.005)
        world.pair.fault("The secondary client was closed.")
        ends = await waiting
        assert [type(end) for end in ends] == [NoneType] * 2 + [PairClosedError] * 10
        assert len(world.primary.offered) == 2

    in_virtual_time(case, max_in_flight=2)


def test_p12_sends_that_wait_for_a_backlog_queue_learn_that_the_pair_has_faulted() -> None:
    """Those, too, would keep the client that is left from closing."""

    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        await world.send()
        waiting = asyncio.gather(*(world.send() for _ in range(12)), return_exceptions=True)
        await asyncio.sleep(0.005)
        world.pair.fault("The primary client was closed.")
        ends = await waiting
        assert [type(end) for end in ends] == [NoneType] * 2 + [PairClosedError] * 10
        assert len(world.secondary.offered) == 3

    in_virtual_time(case, queues=1, max_in_flight=2)


def test_p12_a_send_that_fails_because_the_pair_is_closed_tries_no_other_queue() -> None:
    async def case(world: World) -> None:
        async def close_and_fail() -> None:
            world.pair.fault("The primary client was closed.")
            raise ServiceBusConnectionError

        world.primary.answer = world.primary.refuse
        world.secondary.answer = close_and_fail
        with pytest.raises(PairClosedError):
            await world.send()
        assert len(world.secondary.offered) == 1

    in_virtual_time(case)


def test_p12_a_send_that_waits_for_its_session_learns_that_the_pair_is_closed() -> None:
    """Each look into the backlog is a new receiver: a client that is being closed breaks of it."""

    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        await world.send_in_order("before")
        world.primary.answer = world.primary.accept
        # A ping goes out after a minute; no syphon moves what is in the backlog.
        await asyncio.sleep(61)
        waiting = asyncio.create_task(world.send_in_order("after"))
        await asyncio.sleep(2)
        await world.pair.close("The pair has been closed.")
        looks = world.secondary.looks
        with pytest.raises(PairClosedError):
            await waiting
        assert world.secondary.looks == looks > 1
        assert len(world.primary.accepted) == 1, "the ping"

    in_virtual_time(case)


def test_p9_a_message_too_large_says_what_was_stored_before_it() -> None:
    """Where the order of sessions is kept they go one after another."""

    async def case(world: World) -> None:
        async def refuse_the_second() -> None:
            if len(world.secondary.offered) == 2:
                raise MessageSizeExceededError

        world.primary.answer = world.primary.refuse
        world.secondary.answer = refuse_the_second
        messages = [ServiceBusMessage("b", session_id=session) for session in "abc"]
        with pytest.raises(BacklogMessageTooLargeError, match="first 1 of the call") as error:
            await world.in_order.send_messages(messages)
        assert error.value.stored == len(world.secondary.accepted) == 1
        world.secondary.offered.clear()
        with pytest.raises(BacklogMessageTooLargeError, match="Nothing was sent") as error:
            await world.send(2)
        assert error.value.stored == 0

    in_virtual_time(case)


def test_what_is_stored_while_a_session_is_looked_for_is_not_forgotten() -> None:
    async def case(world: World) -> None:
        def store(session_id: str) -> None:
            message = rewrite.to_backlog(
                ServiceBusMessage("b", session_id=session_id).raw_amqp_message, "orders", 0
            )
            world.secondary.accepted.append(message)
            world.order.stored(entity, session_id, BacklogQueue(0, "b/0"))

        entity = world.pair.entity("orders")
        store("s")
        world.secondary.accepted.clear()
        waiting = asyncio.create_task(world.send_in_order("after"))
        await asyncio.sleep(0.1)
        # The look has begun and will find nothing; the entity was failed over for a moment.
        store("s")
        await asyncio.sleep(3)
        assert not waiting.done()
        world.secondary.accepted.clear()
        await asyncio.wait_for(waiting, 3)
        assert world.order.queue_of(entity, "s") is None

    in_virtual_time(case)


@pytest.mark.parametrize("failed_over", [False, True])
def test_s4_whoever_waits_has_a_turn_though_others_send_without_a_pause(failed_over: bool) -> None:
    async def case(world: World) -> None:
        if failed_over:
            world.primary.answer = world.primary.refuse
        sent = [0] * 5

        async def send_on_and_on(number: int) -> None:
            while True:
                await world.sender.send_messages(ServiceBusMessage("body"))
                sent[number] += 1

        senders = [asyncio.create_task(send_on_and_on(number)) for number in range(5)]
        await asyncio.sleep(10)
        for sender in senders:
            sender.cancel()
        await asyncio.wait(senders)
        assert min(sent) > max(sent) / 2

    in_virtual_time(case, max_in_flight=2)


def test_s4_a_turn_that_comes_to_a_cancelled_send_is_the_next_ones() -> None:
    async def case(world: World) -> None:
        for end_of_turn in (world.primary.accept, world.primary.say_nothing):
            world.primary.answer = end_of_turn
            first = asyncio.create_task(world.send())
            await asyncio.sleep(0)
            waiting = [asyncio.create_task(world.send()) for _ in range(3)]
            await asyncio.sleep(0.005)
            waiting[1].cancel()
            if end_of_turn == world.primary.accept:
                await first
            else:
                first.cancel()
                world.primary.answer = world.primary.accept
                await asyncio.wait([first])
            # The turn has come to the one that waited longest, which is cancelled just then.
            waiting[0].cancel()
            await asyncio.wait_for(asyncio.wait(waiting), 5)
            assert [one.cancelled() for one in waiting] == [True, True, False]
            await asyncio.wait_for(world.send(2), 5)

    in_virtual_time(case, max_in_flight=1)


def test_p12_a_send_that_outlasts_its_sender_leaves_no_connection_open() -> None:
    async def case(world: World) -> None:
        sends = asyncio.gather(*(world.send() for _ in range(5)))
        await asyncio.sleep(0.005)
        await world.sender.close()
        await sends
        await asyncio.sleep(1)
        assert len(world.primary.accepted) == 5
        assert not world.primary.open

    in_virtual_time(case, max_in_flight=2)


def test_p12_a_close_that_was_given_up_can_be_made_again() -> None:
    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        await world.send()
        world.primary.answer = world.primary.say_nothing
        # A ping goes out after a minute, and has no answer for another.
        await asyncio.sleep(61)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(world.pair.close("enough"), 2)
        await world.pair.close("enough")
        assert world.seen(PingSent) == 1

    in_virtual_time(case)


def test_s4_a_window_whose_block_ends_with_an_error_forgets_no_failed_send() -> None:
    async def case(world: World) -> None:
        world.primary.answer = world.primary.refuse
        message = ServiceBusMessage("body")
        window = SendWindow(world.sender)

        async def use_it() -> None:
            async with window:
                await window.send(message)
                raise KeyError("the application's own")

        with pytest.raises(KeyError) as caught:
            await use_it()
        assert "1 sends failed" in caught.value.__notes__[0]
        with pytest.raises(UnsentError) as unsent:
            await window.drain()
        assert [failed for failed, _ in unsent.value.failures] == [message]
        await window.drain()

    in_virtual_time(case, failover_s=10)
