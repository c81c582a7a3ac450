"""Correlation filters (E8): equality of fields, made for speed.

All given fields must be equal. Case counts in values and not in property names, and kinds
must agree: the text '2' is not the number 2, but 2 and 2.0 are one number. A filter
without fields matches everything.
"""

from collections.abc import Hashable, Mapping

from twinbus.filters.errors import FilterError
from twinbus.filters.filter import Filter
from twinbus.filters.message import MessageView
from twinbus.filters.values import Missing, Value, checked_value, kind_of, plain_number


class CorrelationFilter(Filter):
    """Wanted values of system and application properties."""

    __slots__ = ("_system", "_user")

    def __init__(self, system: Mapping[str, str], user: Mapping[str, Value]) -> None:
        self._system = tuple(system.items())
        self._user = tuple((name, value_key(value)) for name, value in user.items())

    def matches(self, view: MessageView) -> bool:
        for name, wanted in self._system:
            if view.system(name) != wanted:
                return False
        for name, key in self._user:
            found = view.user(name)
            # A text is its own key.
            if found != key if type(found) is str else value_key(found) != key:
                return False
        return True

    def key(self) -> frozenset[tuple[str, Hashable]]:
        """Give what must hold, as pairs of field and value key.

        Fields are `sys.` + canonical name or `user.` + case-folded name. A message matches
        if and only if each of its fields has that `value_key`, so filters on the same fields
        can be found by one look-up.
        """
        pairs: list[tuple[str, Hashable]] = [(f"sys.{n}", wanted) for n, wanted in self._system]
        pairs += [(f"user.{name}", key) for name, key in self._user]
        return frozenset(pairs)


def value_key(value: Value | Missing) -> Hashable:
    """Give a key that is equal for values which a correlation filter takes as equal."""
    return value if type(value) is str else (kind_of(value), plain_number(value))


def correlation_filter(
    *,
    correlation_id: str | None = None,
    message_id: str | None = None,
    to: str | None = None,
    reply_to: str | None = None,
    label: str | None = None,
    session_id: str | None = None,
    reply_to_session_id: str | None = None,
    content_type: str | None = None,
    properties: Mapping[str, Value] | None = None,
) -> CorrelationFilter:
    """Make a correlation filter; a field that is None does not matter."""
    fields = {
        "correlation_id": correlation_id,
        "message_id": message_id,
        "to": to,
        "reply_to": reply_to,
        "label": label,
        "session_id": session_id,
        "reply_to_session_id": reply_to_session_id,
        "content_type": content_type,
    }
    system = {name: value for name, value in fields.items() if value is not None}
    user: dict[str, Value] = {}
    for name, value in (properties or {}).items():
        if name.casefold() in user:
            raise FilterError(f"Property '{name}' is given twice; names differ in case only.")
        user[name.casefold()] = checked_value(name, value)
    return CorrelationFilter(system, user)
