"""How a connection comes in: which namespace it means, what it may do, which links it gets.

One door serves all connections of a broker; what it knows of one is in its `Visitor`.
"""

from collections.abc import Callable
from typing import Protocol

from twinbus.amqp.link import ATTACHED, Link
from twinbus.amqp.types import Symbol
from twinbus.core import errors, limits, names
from twinbus.core.descriptions import LISTEN, SEND
from twinbus.core.errors import BusError
from twinbus.core.units import ticks_from_ms
from twinbus.engine.entities import Entity, Holder
from twinbus.engine.namespace import Namespace
from twinbus.engine.sessions import Session
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Topic
from twinbus.server import cbs
from twinbus.server.authorization import Claim, Guard
from twinbus.server.bridge import Bridge, Door, Receiver, Sender
from twinbus.server.management import Management
from twinbus.server.requests import Request, RequestNode
from twinbus.server.transacting import Coordinator

SESSION_FILTER = "com.microsoft:session-filter"
_TIMEOUT = "com.microsoft:timeout"
_LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
# Links remembered, before those that ended are sorted out; later twice as many as were left.
_GRANTED_MAX = 1_000
_VIA = "com.microsoft:transfer-destination-address"

#: Calls something in so many milliseconds; gives what calls it off.
CallLater = Callable[[int, Callable[[], None]], Callable[[], None]]


class Visitor:
    """What the server knows of one connection."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.namespace: Namespace | None = None
        self.guard: Guard | None = None
        self.claims: dict[str, Claim] = {}
        #: What a SASL PLAIN password gives in each namespace, until the host name is known.
        self.passwords: dict[str, Claim] = {}
        self.nodes: dict[str, RequestNode] = {}
        #: What each open link needed: looked at again when a token expires.
        self.granted: dict[Link, list[tuple[str, str]]] = {}
        self._granted_max = _GRANTED_MAX
        self._call_off: Callable[[], None] | None = None

    @property
    def is_known(self) -> bool:
        """Whether it has shown a key, or need not."""
        return self.guard is not None and (bool(self.claims) or not self.guard.checks)

    def require_known(self) -> None:
        """Refuse a stranger: until a token was accepted there is nothing but `$cbs`."""
        if not self.is_known:
            raise BusError(
                errors.UNAUTHORIZED,
                "Unauthorized access. Put a token to $cbs, or log in with SASL PLAIN, first.",
            )

    def require(self, path: str, right: str, now_s: int) -> None:
        """Refuse what no claim of this connection allows."""
        assert self.guard is not None
        folded = names.fold(path)
        if not self.guard.checks:
            return
        if not any(claim.allows(folded, right, now_s) for claim in self.claims.values()):
            raise BusError(
                errors.UNAUTHORIZED,
                f"Unauthorized access. '{right}' claim(s) are required to perform this operation"
                f" on '{path}'.",
            )

    def recheck(self, now_s: int) -> None:
        """Detach the links whose token has expired and was not renewed."""
        self.forget_ended()
        for link, needs in list(self.granted.items()):
            try:
                for path, right in needs:
                    self.require(path, right, now_s)
            except BusError as error:
                del self.granted[link]
                self.bridge.detach_link(link, error)

    def watch(self, call_later: CallLater) -> None:
        """Look again when the next token expires."""
        self.stop_watching()
        now_ms = self.bridge.hub.now_ms
        expiries_ms = [claim.expires_s * 1000 for claim in self.claims.values()]
        ahead_ms = [expiry_ms - now_ms for expiry_ms in expiries_ms if expiry_ms > now_ms]
        if ahead_ms:
            self._call_off = call_later(min(ahead_ms), lambda: self.look(call_later))

    def look(self, call_later: CallLater) -> None:
        self.recheck(self.bridge.hub.now_ms // 1000)
        # Also at those that have just not expired: the clock may have been set back.
        self.watch(call_later)

    def stop_watching(self) -> None:
        if self._call_off is not None:
            self._call_off()
            self._call_off = None

    def grant(self, link: Link, path: str, right: str) -> None:
        """Remember what a link needed."""
        if len(self.granted) >= self._granted_max:
            self.forget_ended()
            self._granted_max = max(_GRANTED_MAX, 2 * len(self.granted))
        self.granted.setdefault(link, []).append((path, right))

    def forget_ended(self) -> None:
        self.granted = {
            link: needs for link, needs in self.granted.items() if link.state <= ATTACHED
        }


class Hosts(Protocol):
    """How a host name is turned into a namespace."""

    def resolve(self, host: str | None) -> tuple[Namespace, Guard]: ...

    def all(self) -> list[tuple[Namespace, Guard]]: ...


class FrontDoor(Door):
    def __init__(self, hosts: Hosts, call_later: CallLater) -> None:
        self._hosts = hosts
        self._call_later = call_later
        self.visitors: dict[Bridge, Visitor] = {}

    def recheck(self) -> None:
        """See whose tokens have expired: after the clock was set no timer knows."""
        for visitor in list(self.visitors.values()):
            if visitor.guard is not None:
                visitor.look(self._call_later)

    def leave(self, bridge: Bridge) -> None:
        """A connection is over. Its tokens may last for years: nothing is to wait for them."""
        visitor = self.visitors.pop(bridge, None)
        if visitor is not None:
            visitor.stop_watching()

    # --- coming in --------------------------------------------------------------------

    def check_password(self, bridge: Bridge, user: str, password: str) -> bool:
        """SASL comes before the host name: the key itself tells whose it is."""
        visitor = self.visitors[bridge]
        visitor.passwords = {
            namespace.name: claim
            for namespace, guard in self._hosts.all()
            if (claim := guard.check_password(user, password)) is not None
        }
        return bool(visitor.passwords)

    def on_open(self, bridge: Bridge) -> None:
        connection = bridge.connection
        assert connection is not None
        visitor = self.visitors[bridge]
        product = str(connection.remote_properties.get("product"))
        bridge.is_python_sdk = product.startswith("azsdk-python")
        try:
            namespace, visitor.guard = self._hosts.resolve(connection.hostname)
            visitor.namespace = namespace
            if connection.user is not None:
                claim = visitor.passwords.get(namespace.name)
                if claim is None:
                    raise BusError(
                        errors.UNAUTHORIZED, f"The key is not one of namespace '{namespace.name}'."
                    )
                visitor.claims[""] = claim
        except BusError as error:
            text = bridge.hub.track(error, connection.hostname or "connection")
            connection.close(error.kind.condition, text)

    def on_attach(self, bridge: Bridge, link: Link) -> None:
        visitor = self.visitors[bridge]
        if link.is_coordinator:
            visitor.require_known()
            link.context = Coordinator()
            link.accept()
            link.grant(limits.SENDER_CREDIT)
            return
        raw = link.source.address if link.is_sender else link.target.address
        if not raw:
            raise BusError(errors.NOT_ALLOWED, "The link has no address; name a queue or topic.")
        path = names.strip_authority(raw)
        if names.fold(path) == "$cbs":
            answer = cbs.answer(visitor, self._hosts, self._call_later)
            self._attach_node(visitor, link, "$cbs", answer, limits.TOKEN_BYTES_MAX)
            return
        assert visitor.namespace is not None
        visitor.require_known()
        address = names.parse_address(raw)
        if names.fold(address.entity) == "$management" or (
            address.management and not address.entity
        ):
            raise errors.entity_not_found(raw)
        entity = visitor.namespace.find(address.entity)
        if entity is None:
            raise errors.entity_not_found(raw)
        if address.management:
            management = Management(visitor, visitor.namespace, entity, address)
            bytes_max = max(
                entity.message_bytes_max + limits.REQUEST_BYTES_AROUND, limits.REQUEST_BYTES_MIN
            )
            self._attach_node(visitor, link, names.fold(path), management.answer, bytes_max)
        elif link.is_sender:
            self._attach_receiver(visitor, link, entity, address)
        else:
            self._attach_sender(visitor, link, entity, address)

    def _attach_node(
        self,
        visitor: Visitor,
        link: Link,
        key: str,
        answer: Callable[[Request], None],
        request_bytes_max: int,
    ) -> None:
        node = visitor.nodes.get(key)
        if node is None:
            node = visitor.nodes[key] = RequestNode(visitor.bridge, answer, self._soon)
        link.context = node
        if link.is_sender:
            node.add_reply_link(link)
            link.accept()
        else:
            link.accept(max_message_size=request_bytes_max)
            link.grant(limits.SENDER_CREDIT)

    def _soon(self, call: Callable[[], None]) -> None:
        self._call_later(0, call)

    # --- senders ----------------------------------------------------------------------

    def _attach_sender(
        self, visitor: Visitor, link: Link, entity: Entity, address: names.Address
    ) -> None:
        now_s = visitor.bridge.hub.now_ms // 1000
        if address.stream != names.MAIN_STREAM or not _takes_sends(entity):
            raise BusError(
                errors.NOT_ALLOWED,
                f"Nothing can be sent to '{address.path}'; send to its queue or topic instead.",
            )
        visitor.require(entity.path, SEND, now_s)
        visitor.grant(link, entity.path, SEND)
        via = _property(link, _VIA)
        if isinstance(via, str):
            assert visitor.namespace is not None
            target = visitor.namespace.find(names.parse_address(via).entity)
            if target is None:
                raise errors.entity_not_found(via)
            if not _takes_sends(target):
                raise BusError(errors.NOT_ALLOWED, f"Nothing can be sent to '{via}'.")
            visitor.require(target.path, SEND, now_s)
            visitor.grant(link, target.path, SEND)
            entity = target
        entity.check_send()
        sender = Sender(visitor.bridge, link, entity)
        entity.senders[sender] = None
        link.context = sender
        link.accept(max_message_size=entity.message_bytes_max)
        link.grant(limits.SENDER_CREDIT)

    # --- receivers --------------------------------------------------------------------

    def _attach_receiver(
        self, visitor: Visitor, link: Link, entity: Entity, address: names.Address
    ) -> None:
        bridge = visitor.bridge
        now_ms = bridge.hub.now_ms
        if not isinstance(entity, Holder):
            raise BusError(
                errors.NOT_ALLOWED,
                f"'{entity.path}' is a topic: receive from one of its subscriptions.",
            )
        visitor.require(address.path, LISTEN, now_ms // 1000)
        visitor.grant(link, address.path, LISTEN)
        bridge.hub.check()
        entity.check_receive()
        if entity.forward_to is not None and address.stream == names.MAIN_STREAM:
            raise BusError(
                errors.NOT_ALLOWED,
                f"'{entity.path}' forwards to '{entity.forward_to}': receive from there.",
            )
        stream = entity.stream(address.stream)
        receiver = Receiver(bridge, link, entity, stream, link.snd_settle_mode != 1)
        entity.accessed_ms = now_ms
        has_filter = any(str(key) == SESSION_FILTER for key in link.source.filter)
        if has_filter != (stream.sessions is not None):
            raise BusError(
                errors.NOT_ALLOWED,
                f"'{stream.path}' requires sessions: accept a session of it."
                if stream.sessions is not None
                else f"'{stream.path}' has no sessions: receive from it without a session id.",
            )
        if has_filter:
            self._attach_session(bridge, link, stream, receiver)
            return
        self._seat(bridge, link, stream, receiver)
        link.accept()

    def _seat(self, bridge: Bridge, link: Link, stream: Stream, receiver: Receiver) -> None:
        stream.attach(receiver, bridge.hub.now_ms)
        link.context = receiver
        bridge.receivers[link] = receiver

    def _attach_session(
        self, bridge: Bridge, link: Link, stream: Stream, receiver: Receiver
    ) -> None:
        wanted = next(v for k, v in link.source.filter.items() if str(k) == SESSION_FILTER)
        wanted = getattr(wanted, "value", wanted)
        now_ms = bridge.hub.now_ms
        if wanted is not None and not isinstance(wanted, str):
            raise BusError(errors.NOT_ALLOWED, "A session id is a text, or null for the next one.")
        if wanted is not None and len(wanted) > limits.SESSION_ID_CHARS_MAX:
            raise BusError(
                errors.NOT_ALLOWED,
                f"A session id has at most {limits.SESSION_ID_CHARS_MAX} characters.",
            )
        if wanted is None:
            self._seat(bridge, link, stream, receiver)
            wait = _property(link, _TIMEOUT)
            wait_ms = int(wait) if isinstance(wait, int) else limits.NEXT_SESSION_WAIT_MS
            stream.seek_session(receiver, now_ms + wait_ms)
            return
        session = stream.accept_session(receiver, wanted, now_ms)
        self._seat(bridge, link, stream, receiver)
        self.on_session_found(bridge, receiver, session)

    def on_session_found(self, bridge: Bridge, receiver: Receiver, session: Session) -> None:
        receiver.link.accept(
            properties={_LOCKED_UNTIL: ticks_from_ms(session.locked_until_ms)},
            source_filter={Symbol(SESSION_FILTER): session.id},
        )
        bridge.touch()

    def on_session_lost(self, bridge: Bridge, receiver: Receiver) -> None:
        error = BusError(
            errors.SESSION_LOCK_LOST,
            f"The session lock on '{receiver.stream.path}' has expired. Accept the session again.",
        )
        self._call_later(
            limits.SESSION_LOST_NOTICE_MS, lambda: bridge.detach_link(receiver.link, error)
        )


def _takes_sends(entity: Entity) -> bool:
    return isinstance(entity, Topic) or names.split_subscription(entity.path) is None


def _property(link: Link, name: str) -> object:
    """A link property, whether its key came as a symbol or as a string."""
    for key, value in link.properties.items():
        if str(key) == name:
            return value
    return None
