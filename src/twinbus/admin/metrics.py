"""`/metrics`: what the broker is doing, in the form that Prometheus reads.

Everything is read off the broker when somebody asks; the path of a message counts nothing for
it. The numbers tell names and counts, not contents, so a client on this machine may read them
as it is. Any other needs HTTP basic authentication with a policy's name and key that gives
Listen (or Manage): it is what Prometheus can send.

There may be ten thousand entities, and each has some twenty numbers. Their lines are written here,
some at a time, so that nobody's message waits for a page to be whole.
"""

import asyncio
import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from twinbus import __version__
from twinbus.admin.connection import bare_host, is_loopback
from twinbus.capture.supervisor import Supervisor
from twinbus.core import names
from twinbus.core.descriptions import LISTEN, MANAGE
from twinbus.engine.entities import Entity
from twinbus.engine.index import SCHEDULED
from twinbus.engine.namespace import Namespace
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Subscription
from twinbus.server.service import Service

#: Entities whose lines are written before others have their turn.
_STRIDE = 200
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

# Attribute of the meter, name of the metric, help.
_METERED = (
    ("sends", "messages_in", "Messages that clients sent."),
    ("send_bytes", "bytes_in", "Bytes of messages that clients sent."),
    ("send_units", "units_in", "Billable units of 64 KB that were sent."),
    ("deliveries", "messages_out", "Messages that were delivered to receivers."),
    ("delivery_bytes", "bytes_out", "Bytes of messages that were delivered."),
    ("delivery_units", "units_out", "Billable units of 64 KB that were delivered."),
    ("receive_calls", "receive_calls", "How often receivers asked for messages."),
    ("settlements", "settlements", "Messages that receivers settled."),
    ("pings", "pings", "Pings of paired namespaces."),
    ("management_calls", "management_calls", "Requests to $management."),
)


class BrokerCollector(Collector):
    """Makes metrics of a service's present state, but for those of its entities."""

    def __init__(self, service: Service, capture: Supervisor | None) -> None:
        self._service = service
        self._capture = capture

    def collect(self) -> Iterable[Metric]:
        yield from self._broker()
        if self._capture is not None:
            yield from self._captured(self._capture)

    def _broker(self) -> Iterable[Metric]:
        broker = self._service.broker
        info = GaugeMetricFamily("twinbus_info", "The broker's version.", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info
        yield _gauge("connections", "Open AMQP connections.", len(self._service.amqp.connections))
        yield from self._lobby()
        yield _gauge(
            "accepting", "1; 0 when the disk is full or broken.", broker.hub.refusing is None
        )
        yield _counter("journal_commits", "Batches written and synced.", broker.commits_total)
        yield _counter(
            "journal_commit_seconds",
            "Time that they took; by commits: the mean time of a sync.",
            broker.commit_seconds_total,
        )
        yield _counter(
            "journal_records",
            "Records written; by commits: the mean size of a batch.",
            broker.journal.next_lsn - 1,
        )
        segments = broker.journal.segments()
        yield _gauge("journal_segments", "Segment files of the journal.", len(segments))
        yield _gauge("journal_bytes", "Their size.", sum(size for _, size in segments))
        live_text = "Payload of all messages that exist; what several share counts once."
        yield _gauge("live_bytes", live_text, broker.kernel.live_bytes)
        yield _gauge("cached_bytes", "How much of it is in memory.", broker.kernel.cached_bytes)

    def _captured(self, capture: Supervisor) -> Iterable[Metric]:
        yield _gauge(
            "capture_up",
            "1; 0 from when capture fails until it has written a file again.",
            capture.warning is None,
        )
        yield _gauge(
            "capture_lag_lsns",
            "Records that are not captured yet; the journal keeps them.",
            self._service.broker.journal.next_lsn - 1 - capture.captured_lsn,
        )

    def _lobby(self) -> Iterable[Metric]:
        lobby = self._service.lobby
        yield _gauge("clients", "Connections of all ports that showed a key.", lobby.known)
        yield _gauge("strangers", "Connections that have shown no key yet.", lobby.strangers)
        yield _counter(
            "strangers_evicted", "Closed because too many came after them.", lobby.evicted_total
        )
        yield _counter(
            "strangers_expelled", "Closed for taking too long or too much.", lobby.expelled_total
        )
        yield _counter(
            "clients_refused", "Refused because all places were taken.", lobby.refused_total
        )


@dataclass(frozen=True, slots=True)
class Family:
    """One metric of every entity: what is read, and what stands behind the entity's labels."""

    name: str
    kind: str
    help: str
    read: Callable[[Entity], Iterable[tuple[str, int]]]

    def head(self) -> str:
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"

    def lines(self, found: Iterable[tuple[str, Entity]]) -> str:
        return "".join(
            f"{self.name}{{{labels}{more}}} {value}\n"
            for labels, entity in found
            for more, value in self.read(entity)
        )


def _metered(attribute: str) -> Callable[[Entity], Iterable[tuple[str, int]]]:
    return lambda entity: (("", getattr(entity.meter, attribute)),)


def _locks_lost(entity: Entity) -> Iterable[tuple[str, int]]:
    return (("", sum(stream.locks_lost_total for stream in entity.streams.values())),)


def _filter_failures(entity: Entity) -> Iterable[tuple[str, int]]:
    return (("", entity.filter_failures_total),) if isinstance(entity, Subscription) else ()


def _messages(entity: Entity) -> Iterable[tuple[str, int]]:
    return ((f',state="{state}"', count) for state, count in _counts(entity.streams).items())


def _size(entity: Entity) -> Iterable[tuple[str, int]]:
    return (("", entity.size_bytes()),)


_FAMILIES = (
    *(Family(f"twinbus_{name}_total", "counter", text, _metered(attribute))
      for attribute, name, text in _METERED),
    Family("twinbus_locks_lost_total", "counter", "Locks that were lost.", _locks_lost),
    Family(
        "twinbus_filter_failures_total", "counter",
        "Messages that a failing filter kept out of a subscription.", _filter_failures,
    ),
    Family("twinbus_messages", "gauge", "Messages held, by state.", _messages),
    Family("twinbus_size_bytes", "gauge", "Payload held.", _size),
)  # fmt: skip


class MetricsPage:
    """Answers requests for `/metrics`."""

    def __init__(self, service: Service, capture: Supervisor | None) -> None:
        self._service = service
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BrokerCollector(service, capture))
        ProcessCollector(registry=self._registry)

    async def answer(self, request: web.Request) -> web.Response:
        if not _is_local(request) and not self._may_read(request):
            raise web.HTTPUnauthorized(
                text="Use a policy's name and key that gives Listen.",
                headers={"WWW-Authenticate": 'Basic realm="twinbus"'},
            )
        return web.Response(body=await self.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def text(self) -> bytes:
        """The page; others have their turns while it is written."""
        parts = [generate_latest(self._registry)]
        found = [
            (f'entity="{_escaped(entity.path)}",namespace="{_escaped(namespace.name)}"', entity)
            for namespace, _ in self._service.all()
            for entity in _entities_of(namespace)
        ]
        for family in _FAMILIES:
            parts.append(family.head().encode())
            for start in range(0, len(found), _STRIDE):
                parts.append(family.lines(found[start : start + _STRIDE]).encode())
                await asyncio.sleep(0)
        return b"".join(parts)

    def _may_read(self, request: web.Request) -> bool:
        scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
        if scheme.casefold() != "basic":
            return False
        try:
            user, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
        except ValueError:
            return False
        for _, guard in self._service.all():
            claim = guard.check_password(user, password)
            if claim is None or not claim.rights & {LISTEN, MANAGE}:
                return False
        return True


def _is_local(request: web.Request) -> bool:
    # A proxy on this machine speaks for clients elsewhere, and says so.
    if "X-Forwarded-For" in request.headers or "Forwarded" in request.headers:
        return False
    # So does a page in a browser here, if its own host name leads here.
    return is_loopback(request.remote or "") and is_loopback(bare_host(request.host))


def _escaped(label: str) -> str:
    return label.translate(_ESCAPES)


def _entities_of(namespace: Namespace) -> list[Entity]:
    subscriptions = [s for topic in namespace.topics.values() for s in topic.subscriptions.values()]
    return [*namespace.queues.values(), *namespace.topics.values(), *subscriptions]


def _counts(streams: dict[int, Stream]) -> dict[str, int]:
    main = streams[names.MAIN_STREAM]
    scheduled = main.count_state(SCHEDULED)
    return {
        "active": main.index.live - scheduled,
        "scheduled": scheduled,
        "dead_letter": _live(streams.get(names.DEAD_LETTER_STREAM)),
        "transfer_dead_letter": _live(streams.get(names.TRANSFER_STREAM)),
    }


def _live(stream: Stream | None) -> int:
    return 0 if stream is None else stream.index.live


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"twinbus_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"twinbus_{name}", text, value=value)
