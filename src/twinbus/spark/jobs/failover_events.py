"""Outages, as the pairing library's events tell them.

Enters: events of any number of clients. Leaves: the outages of each entity of each pair, from
the first failure to the recovery. Clients notice an outage at different moments and each has
its own failover; what overlaps is one outage. Plain Python: there are few such events.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

# Events that move an outage along; the others are about messages.
TOLD: Final = (
    "EntitySuspected", "EntityFailedOver", "EntityCleared", "EntityRecovered", "PingSent",
)  # fmt: skip


@dataclass
class Outage:
    pair: str
    path: str
    suspected: datetime
    error: str = ""
    engaged: datetime | None = None
    # Sends go to the primary again, or never stopped (`cleared`).
    recovered: datetime | None = None
    cleared: datetime | None = None
    clients: set[str] = field(default_factory=set)
    pings: list[tuple[datetime, bool]] = field(default_factory=list)
    # When the next outage of the same entity begins: what is counted for this one ends there.
    until: datetime | None = None

    @property
    def over(self) -> datetime | None:
        return self.recovered or self.cleared


def outages(events: Iterable[Any]) -> list[Outage]:
    """Events (with `ts`, `pair`, `client`, `event`, `path`, `error`) as outages in order."""
    by_client: dict[tuple[str, str, str], list[Any]] = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        key = (event["pair"] or "", event["path"] or "", event["client"] or "")
        by_client.setdefault(key, []).append(event)
    found: dict[tuple[str, str], list[Outage]] = {}
    for (pair, path, client), told in sorted(by_client.items()):
        found.setdefault((pair, path), []).extend(_of_client(pair, path, client, told))
    whole = []
    for same in found.values():
        united = _united(sorted(same, key=lambda outage: outage.suspected))
        for outage, following in pairwise(united):
            outage.until = following.suspected
        whole.extend(united)
    return sorted(whole, key=lambda outage: (outage.suspected, outage.pair, outage.path))


def _of_client(pair: str, path: str, client: str, events: list[Any]) -> list[Outage]:
    found: list[Outage] = []
    current: Outage | None = None
    for event in events:
        kind, at = event["event"], event["ts"]
        if kind in ("EntitySuspected", "EntityFailedOver") and current is None:
            current = Outage(pair, path, at, event["error"] or "", clients={client})
            found.append(current)
        if current is None:
            continue
        if kind == "EntityFailedOver":
            current.engaged = current.engaged or at
        elif kind == "PingSent":
            current.pings.append((at, event["error"] is None))
        elif kind == "EntityRecovered":
            current.recovered, current = at, None
        elif kind == "EntityCleared":
            current.cleared, current = at, None
    return found


def _united(outages: list[Outage]) -> list[Outage]:
    """Outages of one entity that overlap, as one."""
    united: list[Outage] = []
    for outage in outages:
        last = united[-1] if united else None
        if last is None or (last.over is not None and outage.suspected > last.over):
            united.append(outage)
            continue
        both_over = last.over is not None and outage.over is not None
        engaged = [at for at in (last.engaged, outage.engaged) if at]
        recovered = [at for at in (last.recovered, outage.recovered) if at]
        cleared = [at for at in (last.cleared, outage.cleared) if at]
        last.engaged = min(engaged, default=None)
        last.recovered = max(recovered) if both_over and recovered else None
        last.cleared = max(cleared) if both_over and not recovered else None
        last.clients |= outage.clients
        last.pings = sorted([*last.pings, *outage.pings])
    return united
