"""A broker with its namespaces and AMQP ports, from a configuration: what `serve` runs."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from twinbus.core import errors
from twinbus.core.descriptions import (
    LISTEN,
    MANAGE,
    SEND,
    AuthorizationRule,
    QueueDescription,
    SubscriptionDescription,
)
from twinbus.core.errors import BusError
from twinbus.core.units import DAY_MS
from twinbus.engine.namespace import Namespace
from twinbus.journal import Journal
from twinbus.server.administration import NamespaceAdministration
from twinbus.server.authorization import ROOT_POLICY, Guard
from twinbus.server.broker import Broker
from twinbus.server.clock import Clock
from twinbus.server.config import Config, NamespaceConfig
from twinbus.server.door import FrontDoor
from twinbus.server.listener import AmqpListener
from twinbus.server.lobby import Lobby, fit

log = logging.getLogger(__name__)

D = TypeVar("D", QueueDescription, SubscriptionDescription)

# How often the system's clock is looked at.
_LOOK_S = 1.0
# After a step clients have this long to show new tokens: their clocks may have been set as well.
_TOKEN_GRACE_MS = 30_000
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]", "")


class Service:
    """Also tells namespaces apart by host name, for AMQP (`resolve`) and HTTP alike."""

    def __init__(
        self,
        data_dir: Path,
        config: Config,
        key: str,
        *,
        checks: bool = True,
        observing: bool = False,
        captured: Callable[[], int] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = Clock()
        journal = Journal.open(data_dir / "journal", notify=self._loop.call_soon_threadsafe)
        self.broker = Broker(
            journal, config.memory_bytes_max, self._loop, self._clock,
            observing=observing, captured=captured,
        )  # fmt: skip
        root = AuthorizationRule(ROOT_POLICY, [MANAGE, SEND, LISTEN], key, "")
        self._namespaces: list[tuple[NamespaceConfig, Namespace, Guard]] = []
        now_ms = self.broker.begin_turn()
        for wanted in config.namespaces:
            namespace = self.broker.engine.namespace(wanted.name, now_ms)
            guard = Guard(namespace, [root, *wanted.policies], checks=checks)
            self._namespaces.append((wanted, namespace, guard))
        self.door = FrontDoor(self, self._call_later)
        self.lobby = Lobby(self.broker.clock, *_places(config))
        self.amqp = AmqpListener(self.broker, self.door, self.lobby)
        self._look = self._loop.call_later(_LOOK_S, self._follow_clock)

    def _follow_clock(self) -> None:
        step_ms = self._clock.follow()
        if step_ms:
            log.warning("the system's clock was set by %+.1f s: following it", step_ms / 1000)
            self.broker.shift(step_ms)
            self.amqp.shift(step_ms)
            self._call_later(_TOKEN_GRACE_MS, self.door.recheck)
        self._look = self._loop.call_later(_LOOK_S, self._follow_clock)

    def _call_later(self, delay_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        timer: asyncio.TimerHandle | None = None

        def wait(left_ms: int) -> None:
            nonlocal timer
            # Far-off times are reached in steps: event loops do not wait for years.
            if left_ms > DAY_MS:
                timer = self._loop.call_later(DAY_MS / 1000, wait, left_ms - DAY_MS)
            else:
                timer = self._loop.call_later(left_ms / 1000, run)

        def run() -> None:
            self.broker.begin_turn()
            call()

        def call_off() -> None:
            if timer is not None:
                timer.cancel()

        wait(delay_ms)
        return call_off

    # --- namespaces -------------------------------------------------------------------

    def resolve(self, host: str | None) -> tuple[Namespace, Guard]:
        """Find the namespace that a host name means.

        Its own hosts, or a first label equal to its name. A loopback name, or any name where
        there is but one namespace, means the first.
        """
        name = _bare(host or "")
        for wanted, namespace, guard in self._namespaces:
            if name.strip("[]") in [h.casefold() for h in wanted.hosts]:
                return namespace, guard
        for _, namespace, guard in self._namespaces:
            if name.partition(".")[0] == namespace.name.casefold():
                return namespace, guard
        if len(self._namespaces) == 1 or name in _LOOPBACK:
            return self._namespaces[0][1], self._namespaces[0][2]
        known = ", ".join(namespace.name for _, namespace, _ in self._namespaces)
        raise BusError(
            errors.NOT_FOUND,
            f"No service is hosted at '{host}': the namespaces here are {known}. Use"
            " <namespace>.<domain> as the host name, or list the host in the configuration.",
        )

    @property
    def checks(self) -> bool:
        """Whether clients have to show a key."""
        return all(guard.checks for _, _, guard in self._namespaces)

    def all(self) -> list[tuple[Namespace, Guard]]:
        return [(namespace, guard) for _, namespace, guard in self._namespaces]

    def namespace_for(self, host: str) -> NamespaceAdministration:
        namespace, guard = self.resolve(host)
        return NamespaceAdministration(self.broker, namespace, guard)

    def hosts(self) -> list[str]:
        """Every host name that a certificate should hold."""
        named = [host for wanted, _, _ in self._namespaces for host in wanted.hosts]
        return named + [f"{namespace.name}.localhost" for _, namespace, _ in self._namespaces]

    # --- starting and stopping --------------------------------------------------------

    async def make_entities(self) -> None:
        """Make what the configuration names and the journal does not know yet: all or nothing.

        What was made of a file that is refused would be there at the next start, and be left as
        it is: without its forwarding, or some of its rules.
        """
        now_ms = self.broker.begin_turn()
        try:
            for wanted, namespace, _ in self._namespaces:
                _make_entities(wanted, namespace, now_ms)
        except BusError as error:
            self.broker.give_up(error, error)
            raise
        await self.broker.durable()

    async def listen(self, host: str | None, port: int, tls: ssl.SSLContext | None = None) -> int:
        return await self.amqp.listen(host, port, tls)

    async def close(self) -> None:
        self._look.cancel()
        await self.amqp.close()
        if self.broker.journal.failed is None:
            await self.broker.durable()
        self.broker.close()


def _make_entities(wanted: NamespaceConfig, namespace: Namespace, now_ms: int) -> None:
    """Forwarding is set in a second step: its target may be made after its source."""
    forwarding: list[QueueDescription | SubscriptionDescription] = []
    for topic in wanted.topics:
        if namespace.find(topic.name) is None:
            namespace.create_topic(topic, now_ms)
    for queue in wanted.queues:
        if namespace.find(queue.name) is None:
            namespace.create_queue(_unforwarded(queue), now_ms)
            forwarding.append(queue)
    for subscription, rules in wanted.subscriptions:
        known = namespace.topic(subscription.topic).subscriptions
        if subscription.name.casefold() in known:
            continue
        first = rules[0] if rules else None
        made = namespace.create_subscription(_unforwarded(subscription), first, now_ms)
        for rule in rules[1:]:
            namespace.create_rule(made, rule, now_ms)
        forwarding.append(subscription)
    for description in forwarding:
        if description.forward_to or description.forward_dead_lettered_messages_to:
            if isinstance(description, QueueDescription):
                namespace.update_queue(description, now_ms)
            else:
                namespace.update_subscription(description, now_ms)


def _places(config: Config) -> tuple[int, int]:
    """How many strangers and how many clients there may be: what is configured, or as many as
    the system lets this process have."""
    wanted = config.max_unauthenticated, config.max_connections
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    strangers, known = fit(*wanted, files)
    if (strangers, known) != wanted:
        log.warning(
            "the system allows %d open files, so there may be %d clients and %d connections that"
            " have shown no key yet; `twinbus doctor` says how to raise it",
            files,
            known,
            strangers,
        )
    return strangers, known


def _unforwarded(description: D) -> D:
    return replace(description, forward_to=None, forward_dead_lettered_messages_to=None)


def _bare(host: str) -> str:
    """A host name without port, in lower case."""
    host = host.casefold()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0] if host.count(":") <= 1 else host
