"""Outages, as the pairing library's events tell them.

Enters: events of any number of clients. Leaves: the outages of each entity of each pair, from
the first failure to the recovery. Clients notice an outage at different moments and each has
its own failover; what overlaps is one outage. A client that is killed never tells of its end:
it is over for it, too, when it was over for the others. Plain Python: there are few such events.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

# Events that move an outage along; the others are about messages.
TOLD: Final = (
    "EntitySuspected", "EntityFailedOver", "EntityCleared", "EntityRecovered", "PingSent",
)  # fmt: skip
# An entity that has failed over is pinged every 30 minutes at least (P1), and the answer may be
# a minute late. Who says nothing for longer is gone.
SILENCE_MAX: Final = timedelta(minutes=31)


@dataclass
class Outage:
    pair: str
    path: str
    suspected: datetime
    # When a client last told something of it.
    heard: datetime
    error: str = ""
    engaged: datetime | None = None
    # Sends go to the primary again, or never stopped (`cleared`).
    recovered: datetime | None = None
    cleared: datetime | None = None
    clients: set[str] = field(default_factory=set)
    # Those that told no end: they are still failed over, or were killed meanwhile.
    not_back: set[str] = field(default_factory=set)
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
        if _begins_anew(kind, current):
            error = event["error"] or ""
            current = Outage(pair, path, at, at, error, clients={client}, not_back={client})
            found.append(current)
        if current is None:
            continue
        current.heard = at
        if kind == "EntityFailedOver":
            current.engaged = current.engaged or at
        elif kind == "PingSent":
            current.pings.append((at, event["error"] is None))
        elif kind in ("EntityRecovered", "EntityCleared"):
            if kind == "EntityRecovered":
                current.recovered = at
            else:
                current.cleared = at
            current.not_back, current = set(), None
    return found


def _begins_anew(kind: str, current: Outage | None) -> bool:
    """A process tells each of these once an outage. Twice: it was killed, and the next one goes
    by its name."""
    if kind == "EntitySuspected":
        return True
    return kind == "EntityFailedOver" and (current is None or current.engaged is not None)


def _united(outages: list[Outage]) -> list[Outage]:
    """Outages of one entity, in order, those that overlap as one."""
    groups: list[list[Outage]] = []
    for outage in outages:
        if groups and outage.suspected <= _reach(groups[-1]):
            groups[-1].append(outage)
        else:
            groups.append([outage])
    return [_one(group) for group in groups]


def _end(group: list[Outage]) -> datetime | None:
    """When it was over: for the last client that said so, if no other was heard of later."""
    ends = [outage.over for outage in group if outage.over]
    end = max(ends, default=None)
    goes_on = [outage for outage in group if not outage.over and (not end or outage.heard > end)]
    return None if goes_on else end


def _reach(group: list[Outage]) -> datetime:
    """Until when a suspicion belongs to the same outage."""
    return _end(group) or max(outage.heard for outage in group) + SILENCE_MAX


def _one(group: list[Outage]) -> Outage:
    first, end = group[0], _end(group)
    recovered = [outage.recovered for outage in group if outage.recovered]
    return Outage(
        first.pair,
        first.path,
        first.suspected,
        max(outage.heard for outage in group),
        first.error,
        engaged=min((outage.engaged for outage in group if outage.engaged), default=None),
        recovered=max(recovered) if end and recovered else None,
        cleared=end if not recovered else None,
        clients=set().union(*(outage.clients for outage in group)),
        not_back=set().union(*(outage.not_back for outage in group)),
        pings=sorted(ping for outage in group for ping in outage.pings),
    )
