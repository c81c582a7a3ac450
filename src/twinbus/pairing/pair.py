"""What all senders of one pair share: the policy, the clients, and the work in the background.

Senders report here what happened to their sends and ask where the next one goes. One task
keeps time: it lets failovers engage and sends the pings (P5, P6, P7, P10).
"""

import random
import time
import uuid
from collections.abc import Container
from weakref import WeakKeyDictionary

from azure.servicebus.aio import ServiceBusClient

from twinbus.pairing import rewrite
from twinbus.pairing.concurrency import Event, Task, guard
from twinbus.pairing.events import PingSent
from twinbus.pairing.observer import Observer
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions, milliseconds
from twinbus.pairing.policy import BacklogQueue, Entity, Policy, State
from twinbus.pairing.pool import SenderPool, close_quietly


def now_ms() -> int:
    """A clock that never goes back; the policy only compares its times with one another."""
    return time.monotonic_ns() // 1_000_000


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Pair:
    def __init__(
        self,
        primary: ServiceBusClient,
        secondary: ServiceBusClient,
        queues: list[BacklogQueue],
        options: SendAvailabilityPairedNamespaceOptions,
        observer: Observer,
    ) -> None:
        self.primary = primary
        self.secondary = secondary
        self.options = options
        self.observer = observer
        self.timeout_s = options.operation_timeout.total_seconds()
        self.policy = Policy(
            milliseconds(options.failover_interval),
            milliseconds(options.ping_primary_interval),
            queues,
        )
        self._guard = guard()
        self._wake = Event()
        #: Why no more sends are taken; None while they are.
        self.closed_because: str | None = None
        # Where sends wait for their turn on the primary, while somebody uses these pools.
        self._pools: WeakKeyDictionary[SenderPool, Entity] = WeakKeyDictionary()
        self._pings: list[Task] = []
        self._keeper = Task("pair keeper", self._keep)

    def fault(self, because: str) -> None:
        """A client of the pair is gone: every later send says so (P12)."""
        self.closed_because = because
        self._wake.set()

    def entity(self, path: str) -> Entity:
        with self._guard:
            return self.policy.entity(path)

    def pool_made(self, entity: Entity, pool: SenderPool) -> None:
        """Sends to this entity wait here, and are called off when it fails over (P6)."""
        with self._guard:
            self._pools[pool] = entity

    def send_succeeded(self, entity: Entity) -> None:
        with self._guard:
            events = self.policy.send_succeeded(entity, now_ms())
        self.observer.tell(events)

    def send_failed(self, entity: Entity, error: BaseException, began_ms: int) -> bool:
        """Take in a failure that counts; tell whether the send may be tried again.

        It may when the entity has failed over (to the backlog), and when it came back while
        the send was under way (to the primary).
        """
        with self._guard:
            events = self.policy.send_failed(entity, error, began_ms, now_ms())
            again = entity.state is not State.SUSPECT
        self.observer.tell(events)
        if events:
            self._wake.set()
        return again

    def choose_queue(self, current: int | None, tried: Container[int]) -> BacklogQueue | None:
        with self._guard:
            index = self.policy.choose_queue(current, tried, random.choice, now_ms())
        return next((queue for queue in self.policy.queues if queue.index == index), None)

    def queue_failed(self, queue: BacklogQueue, error: BaseException) -> None:
        with self._guard:
            events = self.policy.queue_failed(queue.index, error, now_ms())
        self.observer.tell(events)

    async def close(self, because: str) -> None:
        """Take no more sends, and stop the clock and the pings."""
        self.closed_because = because
        self._wake.set()
        await self._keeper.result()
        for ping in self._pings:
            await ping.result()

    async def _keep(self) -> None:
        while True:
            # Cleared before it is looked what there is to do: a close that comes in between
            # wakes the wait below.
            self._wake.clear()
            if self.closed_because is not None:
                self._call_off()
                return
            with self._guard:
                events = self.policy.advance(now_ms())
                due = self.policy.pings_due(now_ms())
                deadline_ms = self.policy.next_deadline_ms()
            self.observer.tell(events)
            if events:
                self._call_off()
            self._pings = [ping for ping in self._pings if not ping.done()]
            self._pings += [Task("ping", self._ping, entity) for entity in due]
            if deadline_ms is None:
                await self._wake.wait()
            else:
                await self._wake.wait(max(0, deadline_ms - now_ms()) / 1000)

    def _call_off(self) -> None:
        """Whoever waits to send where nobody sends any more goes on at once."""
        with self._guard:
            pools = [
                pool
                for pool, entity in self._pools.items()
                if self.closed_because is not None or entity.state is State.FAILED_OVER
            ]
        for pool in pools:
            pool.call_off()

    async def _ping(self, entity: Entity) -> None:
        """Send one ping on a connection of its own: an old one may be dead (P10)."""
        failure: Exception | None = None
        sender = self.primary.get_queue_sender(entity.path)
        try:
            await sender.send_messages(rewrite.ping(uuid.uuid4().hex), timeout=self.timeout_s)
        except Exception as error:
            failure = error
        with self._guard:
            events = self.policy.ping_ended(entity, failure is None, now_ms())
        self.observer.tell([PingSent(entity.path, None if failure is None else str(failure))])
        self.observer.tell(events)
        self._wake.set()
        await close_quietly(sender)
