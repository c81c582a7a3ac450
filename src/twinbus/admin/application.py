"""What is served on the HTTP port, by path."""

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from aiohttp import web
from yarl import URL

from twinbus.admin import websocket
from twinbus.admin.api import BODY_BYTES_MAX, AdminApi
from twinbus.admin.connection import bare_host, is_loopback
from twinbus.admin.console.application import Console
from twinbus.admin.metrics import MetricsPage
from twinbus.admin.ports import Namespaces
from twinbus.admin.websocket import ProtocolFactory, WebSocketDoor
from twinbus.capture.supervisor import Supervisor
from twinbus.server.service import Service

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def broker_application(
    service: Service, reports: Path, events: Path, capture: Supervisor | None = None
) -> web.Application:
    """All that a broker serves; the console finds reports and pairs' events in the directories."""
    application = make_application(
        service,
        service.amqp.make_protocol,
        service.broker.clock,
        MetricsPage(service, capture).answer,
        service.broker.why_refusing,
        Console(service, reports, events),
        lambda: None if capture is None else capture.warning,
    )
    if not service.checks:
        application.middlewares.append(_only_this_machine(service.hosts()))
    return application


def _only_this_machine(hosts: Collection[str]) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Where nobody has to show a key, a page of another site could use the broker through the
    browser of somebody here. It says whose it is (Origin), or its host name leads here (Host)."""
    known = {host.casefold() for host in hosts}

    def is_own(host: str | None) -> bool:
        return host is not None and (host.casefold() in known or is_loopback(host.casefold()))

    @web.middleware
    async def check(request: web.Request, handler: Answer) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if is_own(bare_host(request.host)) and (origin is None or is_own(_host_of(origin))):
            return await handler(request)
        raise web.HTTPForbidden(
            text="In development mode only this machine is served: use localhost, or list the"
            " host in the configuration."
        )

    return check


def _host_of(origin: str) -> str | None:
    try:
        return URL(origin).host
    except ValueError:
        return None


def make_application(
    namespaces: Namespaces,
    amqp_connection: ProtocolFactory,
    clock_ms: Callable[[], int],
    metrics: Answer | None = None,
    failing: Callable[[], str | None] = lambda: None,
    console: Console | None = None,
    warning: Callable[[], str | None] = lambda: None,
) -> web.Application:
    """Put the admin API, health, metrics, console and AMQP over WebSocket together.

    `amqp_connection` makes the protocol of one AMQP connection, as for a TCP listener;
    `failing` says why the broker accepts nothing, None while it does; `warning` what somebody
    should look at although it serves.
    """
    api = AdminApi(namespaces, clock_ms)
    door = WebSocketDoor(amqp_connection)

    async def health(request: web.Request) -> web.StreamResponse:
        reason, warned = failing(), warning()
        answer = {"status": "healthy"}
        if reason is not None:
            answer = {"status": "failing", "reason": reason}
        if warned is not None:
            # Not another status: who asks would restart a broker that serves.
            answer["warning"] = warned
        return web.json_response(answer, status=200 if reason is None else 503)

    def unless_entity(page: Answer) -> Answer:
        # A queue may have a page's name: requests about entities name an API version.
        async def answer(request: web.Request) -> web.StreamResponse:
            return await (api.answer if "api-version" in request.query else page)(request)

        return answer

    application = web.Application(client_max_size=BODY_BYTES_MAX)
    application.router.add_get("/health", unless_entity(health))
    if metrics is not None:
        application.router.add_get("/metrics", unless_entity(metrics))
    if console is not None:
        console.add_routes(application.router, unless_entity)
    application.router.add_get(websocket.PATH, door.enter)
    # Not ".*": a path may even hold a line feed, and is to be refused like any other.
    application.router.add_route("*", r"/{path:[\s\S]*}", api.answer)
    application.on_shutdown.append(door.close)
    return application
