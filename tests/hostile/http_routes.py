"""The HTTP side's own table of routes, as the broker builds it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from twinbus.admin.application import broker_application
from twinbus.server.config import Config
from twinbus.server.service import Service


@dataclass(frozen=True)
class Route:
    method: str
    #: As the router prints it: parts in braces stand for anything.
    path: str


def all_routes(directory: Path) -> tuple[Route, ...]:
    async def look() -> tuple[Route, ...]:
        service = Service(directory, Config(), "key")
        try:
            application = broker_application(service, directory, directory)
            found = [
                Route(route.method, route.resource.canonical)
                for route in application.router.routes()
                if route.resource is not None
            ]
        finally:
            await service.close()
        return tuple(dict.fromkeys(found))

    return asyncio.run(look())
