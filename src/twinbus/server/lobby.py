"""Who has come in and who has shown a key: how many of each there may be (SECURITY.md).

Connections of every port enter here when their socket is accepted, as strangers. One that shows
a key leaves the strangers and is counted with the known. When there are too many strangers, one
goes for each that comes: the oldest from the address that has the most, so that a crowd pushes
out its own. Strangers therefore never keep a client with a key outside. Nothing here sees bytes.
"""

import logging
from collections.abc import Callable
from ipaddress import IPv4Address, ip_address

from twinbus.core import limits

# A crowd is told of once in so long, not once for each that came.
_TELL_EVERY_MS = 60_000

log = logging.getLogger(__name__)


class Place:
    """One connection's place, from its first moment to its last."""

    __slots__ = ("_lobby", "address", "evict", "is_known", "is_stranger")

    def __init__(self, lobby: "Lobby", address: str, evict: Callable[[], object]) -> None:
        self._lobby = lobby
        self.address = address
        #: Ends the connection at once.
        self.evict = evict
        self.is_stranger = True
        self.is_known = False

    def know(self) -> bool:
        """A key was shown; False if there are as many clients as there may be."""
        return self.is_known or self._lobby.know(self)

    def leave(self) -> None:
        """The connection is over, or another place stands for it now."""
        self._lobby.leave(self)


class Lobby:
    def __init__(
        self,
        clock: Callable[[], int],
        strangers_max: int = limits.STRANGERS_MAX,
        known_max: int = limits.CONNECTIONS_MAX,
    ) -> None:
        self._clock = clock
        self.strangers_max = strangers_max
        self.known_max = known_max
        #: By address, and there by age.
        self._waiting: dict[str, dict[Place, None]] = {}
        self.strangers = 0
        self.known = 0
        self.evicted_total = 0
        self.expelled_total = 0
        self.refused_total = 0
        self._told_ms: dict[str, int] = {}

    def enter(self, peer: object, evict: Callable[[], object]) -> Place:
        """Give a place to a connection from this address (a socket's peer name)."""
        if self.strangers >= self.strangers_max:
            self._make_room()
        place = Place(self, address_of(peer), evict)
        self._waiting.setdefault(place.address, {})[place] = None
        self.strangers += 1
        return place

    def _make_room(self) -> None:
        crowd = max(self._waiting.values(), key=len)
        oldest = next(iter(crowd))
        self._drop(oldest)
        self.evicted_total += 1
        self._tell(
            "There are %d connections that have shown no key, the oldest are closed for new ones:"
            " %d so far. Is somebody flooding the ports?",
            self.strangers_max,
            self.evicted_total,
        )
        oldest.evict()

    def know(self, place: Place) -> bool:
        if self.known >= self.known_max:
            self.refused_total += 1
            self._tell(
                "All %d places for clients are taken: %d were refused so far. Raise"
                " max_connections, or see who opens so many.",
                self.known_max,
                self.refused_total,
            )
            return False
        self._drop(place)
        place.is_known = True
        self.known += 1
        return True

    def note_expelled(self) -> None:
        """Count one that took too long, or sent more than showing a key takes.

        It keeps its place until its socket is closed.
        """
        self.expelled_total += 1
        self._tell(
            "Connections that showed no key were closed, for they took too long or sent too much:"
            " %d so far.",
            self.expelled_total,
        )

    def leave(self, place: Place) -> None:
        self._drop(place)
        if place.is_known:
            place.is_known = False
            self.known -= 1

    def _drop(self, place: Place) -> None:
        if not place.is_stranger:
            return
        place.is_stranger = False
        self.strangers -= 1
        others = self._waiting[place.address]
        del others[place]
        if not others:
            del self._waiting[place.address]

    def _tell(self, text: str, *given: int) -> None:
        now_ms = self._clock()
        if now_ms >= self._told_ms.get(text, 0):
            self._told_ms[text] = now_ms + _TELL_EVERY_MS
            log.warning(text, *given)


def fit(strangers_max: int, known_max: int, descriptors: int) -> tuple[int, int]:
    """Lower both limits until the process can have so many sockets, and some files besides.

    Where they are scarce three quarters are for clients: strangers come and go.
    """
    places = max(2, descriptors - limits.DESCRIPTORS_RESERVED)
    if strangers_max + known_max <= places:
        return strangers_max, known_max
    known_max = min(known_max, max(places * 3 // 4, places - strangers_max))
    return min(strangers_max, places - known_max), known_max


def address_of(peer: object) -> str:
    """Whose connection it is: an IPv4 address, or the network of an IPv6 address, since one
    machine has as many of those as it likes."""
    if not (isinstance(peer, tuple) and peer):
        return ""
    host = str(peer[0]).partition("%")[0]
    try:
        found = ip_address(host)
    except ValueError:
        return host
    if isinstance(found, IPv4Address) or found.ipv4_mapped is not None:
        return host
    return found.exploded[:19]
