"""A message held in two dictionaries, and the reader of the vector files."""

import tomllib
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from twinbus.core.units import duration_from_iso
from twinbus.filters import MISSING, Missing, Value

VECTORS = Path(__file__).parents[2] / "vectors" / "filters"


class DictMessage:
    """The message that filters read and actions change."""

    def __init__(
        self, user: Mapping[str, Value] | None = None, system: Mapping[str, Value] | None = None
    ) -> None:
        self.user_properties = dict(user or {})
        self.system_properties = dict(system or {})
        self.ids_given = 0

    def system(self, name: str) -> Value:
        return self.system_properties.get(name)

    def user(self, name: str) -> Value | Missing:
        written = self._written(name)
        return MISSING if written is None else self.user_properties[written]

    def new_id(self) -> UUID:
        self.ids_given += 1
        return UUID(int=self.ids_given)

    def set_user(self, name: str, value: Value) -> None:
        self.remove_user(name.casefold())
        self.user_properties[name] = value

    def remove_user(self, name: str) -> None:
        written = self._written(name)
        if written is not None:
            del self.user_properties[written]

    def set_system(self, name: str, value: Value) -> None:
        self.system_properties[name] = value
        if value is None:
            del self.system_properties[name]

    def _written(self, folded: str) -> str | None:
        return next((name for name in self.user_properties if name.casefold() == folded), None)


def read_vectors(name: str) -> dict[str, Any]:
    return tomllib.loads((VECTORS / name).read_text("utf-8"))


def read_values(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _read_value(value) for name, value in table.items()}


def _read_value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    (kind, text), *_ = value.items()
    readers: dict[str, Any] = {
        "null": lambda _: None,
        "missing": lambda _: MISSING,
        "guid": UUID,
        "decimal": Decimal,
        "binary": bytes.fromhex,
        "duration": lambda iso: timedelta(milliseconds=duration_from_iso(iso)),
    }
    return readers[kind](text)
