"""Request and response over a pair of links: what `$cbs` and `$management` share.

A request comes in as a message; the answer goes out on the link that the request's reply-to
names, or on the only one the client has opened to the same node. A request may be small and its
answer large: while a client takes no answers, its further requests wait.
"""

from collections import deque
from collections.abc import Callable, Mapping

from twinbus.amqp.counting import check_values
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.exchange import decode_body, decode_heads, encode_exchange, heads_bytes
from twinbus.amqp.link import Link
from twinbus.amqp.properties import Properties
from twinbus.amqp.sections import locate
from twinbus.core import errors, limits
from twinbus.core.errors import BusError
from twinbus.server.bridge import Bridge, Node

# What a request takes that waits, beyond its bytes: it may have none.
_WAITING_BYTES = 128
# Of those that wait so many are taken in a turn: others come in between.
_TAKEN_A_TURN = 200

#: Calls something in a turn of its own, soon.
Soon = Callable[[Callable[[], None]], object]


class Request:
    """One request. Its body may be large, and is decoded for those only who may ask for that."""

    def __init__(self, payload: bytes, node: "RequestNode", link: Link) -> None:
        self.node = node
        self.link = link
        check_values(payload, limits.REQUEST_VALUES_MAX)
        self._found = locate(payload)
        if heads_bytes(self._found) > limits.HEADER_BYTES_MAX:
            raise DecodeError(f"headers of more than {limits.HEADER_BYTES_MAX} bytes", 0)
        self._payload = payload
        self.properties, self.headers = decode_heads(payload, self._found)

    def take_body(self) -> object:
        """Decode the body, once. A `DecodeError` is the node's to answer."""
        payload, self._payload = self._payload, b""
        return decode_body(payload, self._found)

    def prepare(self, headers: Mapping[str, object], body: object) -> bytes:
        """Make an answer that is to be sent later: headers with their AMQP types, body as an
        amqp-value. From now on it counts as owed."""
        answer = Properties()
        answer.correlation_id = self.properties.message_id
        payload = encode_exchange(answer, headers, body)
        self.node.owed_bytes += len(payload)
        return payload

    def send(self, answer: bytes) -> None:
        self.node.send(self, answer)

    def drop(self, answer: bytes) -> None:
        """It does not hold any more; another one is sent."""
        self.node.owed_bytes -= len(answer)

    def reply(self, headers: Mapping[str, object], body: object) -> None:
        self.send(self.prepare(headers, body))


class RequestNode(Node):
    """All links of one connection to one node."""

    def __init__(self, bridge: Bridge, answer: Callable[[Request], None], soon: Soon) -> None:
        self._bridge = bridge
        self._answer = answer
        self._soon = soon
        self._replies: dict[Link, deque[bytes]] = {}
        self._tag = 0
        #: Answers that are made and not written: they wait for the disk, for credit, for the
        #: client's window or for its socket.
        self.owed_bytes = 0
        #: Requests that wait until fewer answers do, by the link that they came on. A client may
        #: have thousands of links, and a thousand requests on each.
        self._waiting: dict[Link, deque[bytes]] = {}
        self._will_go_on = False

    def add_reply_link(self, link: Link) -> None:
        self._replies[link] = deque()
        self._bridge.reply_links[link] = self

    def on_request(self, link: Link, payload: bytes) -> None:
        if self._waiting or self.owed_bytes > limits.OWED_BYTES_MAX:
            self._put_off(link, payload)
        else:
            self._take(link, payload)

    def _take(self, link: Link, payload: bytes) -> None:
        try:
            self._answer(Request(payload, self, link))
        except DecodeError as error:
            link.detach("amqp:decode-error", f"The request cannot be read: {error}")

    def _put_off(self, link: Link, payload: bytes) -> None:
        """Let a request wait, as many as the link had credit for."""
        waiting = self._waiting.setdefault(link, deque())
        waiting.append(payload)
        self._bridge.waiting_bytes += len(payload) + _WAITING_BYTES
        link.hold_credit = True
        bytes_max = limits.LARGE_MESSAGE_BYTES_MAX + limits.REQUEST_BYTES_AROUND + _WAITING_BYTES
        if self._bridge.waiting_bytes > bytes_max or (
            link.credit == 0 and len(waiting) > limits.SENDER_CREDIT
        ):
            error = BusError(
                errors.SERVER_BUSY,
                "Too many requests wait because their answers are not taken: give the link for"
                " answers credit, and read them.",
            )
            self._bridge.detach_link(link, error)

    def _plan_to_go_on(self) -> None:
        # Not at once: what is asked is answered with the commit of a turn.
        if self._waiting and not self._will_go_on and self.owed_bytes <= limits.OWED_BYTES_MAX:
            self._will_go_on = True
            self._soon(self._go_on)

    def _go_on(self) -> None:
        """Some answers are gone: take requests that waited."""
        self._will_go_on = False
        for _ in range(_TAKEN_A_TURN):
            if not self._waiting or self.owed_bytes > limits.OWED_BYTES_MAX:
                break
            link, waiting = next(iter(self._waiting.items()))
            payload = waiting.popleft()
            if not waiting:
                del self._waiting[link]
            self._bridge.waiting_bytes -= len(payload) + _WAITING_BYTES
            # An earlier request may have ended the link.
            if link.attached:
                self._take(link, payload)
            if not waiting:
                link.hold_credit = False
                link.grant(limits.SENDER_CREDIT)
        self._plan_to_go_on()
        self._bridge.touch()

    def send(self, request: Request, payload: bytes) -> None:
        link = self._reply_link(request)
        if link is not None:
            self._replies[link].append(payload)
            self.on_credit(link)
        else:
            self.owed_bytes -= len(payload)
            self._plan_to_go_on()

    def _reply_link(self, request: Request) -> Link | None:
        wanted = request.properties.reply_to
        session = request.link.session
        for link in self._replies:
            if wanted and link.target.address == wanted and link.source.address != wanted:
                return link
        for link in self._replies:
            if link.session is session:
                return link
        return next(iter(self._replies), None)

    def on_credit(self, link: Link) -> None:
        waiting = self._replies.get(link)
        bridge = self._bridge
        while waiting and link.attached and link.credit > 0 and link.session.can_send():
            if not bridge.takes_more():
                break
            payload = waiting.popleft()
            self.owed_bytes -= len(payload)
            bridge.output_bytes += len(payload)
            self._tag += 1
            tag = self._tag.to_bytes(4, "big")
            link.deliver(tag, 0, True, b"", payload, None)
        if link.drain and (link.credit == 0 or not link.session.is_midway(link)):
            link.drained()
        self._plan_to_go_on()
        bridge.touch()

    def on_gone(self, link: Link) -> None:
        self._bridge.reply_links.pop(link, None)
        for payload in self._replies.pop(link, ()):
            self.owed_bytes -= len(payload)
        for payload in self._waiting.pop(link, ()):
            self._bridge.waiting_bytes -= len(payload) + _WAITING_BYTES
        self._plan_to_go_on()
