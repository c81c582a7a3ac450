"""What is served on the HTTP port, by path."""

from collections.abc import Callable

from aiohttp import web

from twinbus.admin import websocket
from twinbus.admin.api import BODY_BYTES_MAX, AdminApi
from twinbus.admin.ports import Namespaces
from twinbus.admin.websocket import ProtocolFactory, WebSocketDoor


def make_application(
    namespaces: Namespaces, amqp_connection: ProtocolFactory, clock_ms: Callable[[], int]
) -> web.Application:
    """Put the admin API, health and AMQP over WebSocket together.

    `amqp_connection` makes the protocol of one AMQP connection, as for a TCP listener.
    """
    api = AdminApi(namespaces, clock_ms)
    door = WebSocketDoor(amqp_connection)

    async def health(request: web.Request) -> web.Response:
        # A queue may be called "health": requests about entities name an API version.
        if "api-version" in request.query:
            return await api.answer(request)
        return web.json_response({"status": "healthy"})

    application = web.Application(client_max_size=BODY_BYTES_MAX)
    application.router.add_get("/health", health)
    application.router.add_get(websocket.PATH, door.enter)
    # Not ".*": a path may even hold a line feed, and is to be refused like any other.
    application.router.add_route("*", r"/{path:[\s\S]*}", api.answer)
    application.on_shutdown.append(door.close)
    return application
