"""Request and response over a pair of links: what `$cbs` and `$management` share.

A request comes in as a message; the answer goes out on the link that the request's reply-to
names, or on the only one the client has opened to the same node.
"""

from collections import deque
from collections.abc import Callable, Mapping

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.exchange import decode_exchange, encode_exchange
from twinbus.amqp.link import Link
from twinbus.amqp.properties import Properties
from twinbus.server.bridge import Bridge, Node


class Request:
    """One request, decoded."""

    def __init__(self, payload: bytes, node: "RequestNode", link: Link) -> None:
        self.node = node
        self.link = link
        self.properties, self.headers, self.body = decode_exchange(payload)

    def reply(self, headers: Mapping[str, object], body: object) -> None:
        """Answer: headers with their AMQP types, body as an amqp-value."""
        answer = Properties()
        answer.correlation_id = self.properties.message_id
        self.node.send(self, encode_exchange(answer, headers, body))


class RequestNode(Node):
    """All links of one connection to one node."""

    def __init__(self, bridge: Bridge, answer: Callable[[Request], None]) -> None:
        self._bridge = bridge
        self._answer = answer
        self._replies: dict[Link, deque[bytes]] = {}
        self._tag = 0

    def add_reply_link(self, link: Link) -> None:
        self._replies[link] = deque()

    def on_request(self, link: Link, payload: bytes) -> None:
        try:
            request = Request(payload, self, link)
        except DecodeError as error:
            link.detach("amqp:decode-error", f"The request cannot be read: {error}")
            return
        self._answer(request)

    def send(self, request: Request, payload: bytes) -> None:
        link = self._reply_link(request)
        if link is not None:
            self._replies[link].append(payload)
            self.on_credit(link)

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
        while waiting and link.attached and link.credit > 0 and link.session.can_send():
            self._tag += 1
            tag = self._tag.to_bytes(4, "big")
            link.deliver(tag, 0, True, b"", waiting.popleft(), None)
        if waiting is not None and link.drain and not waiting:
            link.drained()
        self._bridge.touch()

    def on_gone(self, link: Link) -> None:
        self._replies.pop(link, None)
