"""Request and response over a pair of links: what `$cbs` and `$management` share.

A request comes in as a message; the answer goes out on the link that the request's reply-to
names, or on the only one the client has opened to the same node.
"""

from collections import deque
from collections.abc import Callable, Mapping

from twinbus.amqp import codec, sections
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.link import Link
from twinbus.amqp.properties import Properties, decode_properties, encode_properties
from twinbus.server.bridge import Bridge, Node


class Request:
    """One request, decoded."""

    def __init__(self, payload: bytes, node: "RequestNode", link: Link) -> None:
        self.node = node
        self.link = link
        found = sections.locate(payload)
        self.properties = (
            decode_properties(payload, found.properties_at)
            if found.properties_at >= 0
            else Properties()
        )
        self.headers: dict[str, object] = {}
        if found.application_properties_at >= 0:
            pairs = codec.map_pairs(payload, found.application_properties_at)
            self.headers = {str(key): codec.decode_whole(raw) for key, raw in pairs}
        self.body: object = None
        if found.body_start >= 0 and payload[found.body_start + 2] == sections.AMQP_VALUE:
            self.body = codec.decode_whole(payload[found.body_start + 3 : found.body_end])

    def reply(self, headers: Mapping[str, object], body: object) -> None:
        """Answer: headers with their AMQP types, body as an amqp-value."""
        answer = Properties()
        answer.correlation_id = self.properties.message_id
        pairs: list[tuple[object, bytes]] = [
            (key, codec.encode(value)) for key, value in headers.items()
        ]
        payload = b"".join(
            (
                encode_properties(answer),
                b"\x00\x53\x74", codec.encode_map(pairs),
                b"\x00\x53\x77", codec.encode(body),
            )
        )  # fmt: skip
        self.node.send(self, payload)


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
