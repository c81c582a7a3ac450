"""What the streams of a journal are called.

ENTITY_PUT records go in, facts and carried copies alike; out come namespace and path of a
stream. Names are only ever added: rows of an entity that is gone still need its name.
"""

from __future__ import annotations

import json
from typing import Any

from twinbus.core import names
from twinbus.engine import records
from twinbus.engine.entities import SUBSCRIPTION

_BACKLOG = "/x-servicebus-transfer/"


class Names:
    def __init__(self, entities: dict[int, tuple[str, str]] | None = None) -> None:
        #: Namespace and path of each entity, by number.
        self.entities = entities or {}
        #: Whether there is more to keep than was kept last.
        self.is_changed = False
        self._backlogs = {n for n, (_, path) in self.entities.items() if _BACKLOG in path}

    def put(self, record: bytes) -> None:
        """Take in an ENTITY_PUT record."""
        number, kind, body = records.read_entity_put(record)
        given: dict[str, Any] = json.loads(body)
        path: str = given["description"]["name"]
        if kind == SUBSCRIPTION:
            path = names.subscription_path(given["description"]["topic"], path)
        name = (given["namespace"], path)
        if self.entities.get(number) == name:
            return
        self.entities[number] = name
        self.is_changed = True
        if _BACKLOG in path:
            self._backlogs.add(number)

    def of(self, stream: int) -> tuple[str | None, str | None]:
        """Give (namespace, path with the sub-queue), both None if nobody ever said."""
        found = self.entities.get(stream >> 2)
        if found is None:
            return None, None
        return found[0], names.Address(found[1], stream & 3).path

    def is_backlog(self, stream: int) -> bool:
        """Tell whether it belongs to a backlog queue of paired namespaces (P2)."""
        return stream >> 2 in self._backlogs
