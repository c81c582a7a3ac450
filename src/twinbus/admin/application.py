"""What is served on the HTTP port, by path."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from twinbus.admin import websocket
from twinbus.admin.api import BODY_BYTES_MAX, AdminApi
from twinbus.admin.console.application import Console
from twinbus.admin.metrics import MetricsPage
from twinbus.admin.ports import Namespaces
from twinbus.admin.websocket import ProtocolFactory, WebSocketDoor
from twinbus.server.service import Service

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def broker_application(service: Service, reports: Path, events: Path) -> web.Application:
    """All that a broker serves; the console finds reports and pairs' events in the directories."""
    return make_application(
        service,
        service.amqp.make_protocol,
        service.broker.clock,
        MetricsPage(service).answer,
        service.broker.why_refusing,
        Console(service, reports, events),
    )


def make_application(
    namespaces: Namespaces,
    amqp_connection: ProtocolFactory,
    clock_ms: Callable[[], int],
    metrics: Answer | None = None,
    failing: Callable[[], str | None] = lambda: None,
    console: Console | None = None,
) -> web.Application:
    """Put the admin API, health, metrics, console and AMQP over WebSocket together.

    `amqp_connection` makes the protocol of one AMQP connection, as for a TCP listener;
    `failing` says why the broker accepts nothing, None while it does.
    """
    api = AdminApi(namespaces, clock_ms)
    door = WebSocketDoor(amqp_connection)

    async def health(request: web.Request) -> web.StreamResponse:
        reason = failing()
        if reason is None:
            return web.json_response({"status": "healthy"})
        return web.json_response({"status": "failing", "reason": reason}, status=503)

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
