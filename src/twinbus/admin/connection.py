"""One HTTP connection: a place in the lobby, and a limit on how long a request's head may take.

aiohttp's own protocol does the work. Refusals of what is no HTTP at all get the form of all
refusals: what was wrong, and a tracking id.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from ipaddress import ip_address
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from twinbus.core import limits
from twinbus.core.errors import ARGUMENT_ERROR, TIMEOUT, BusError, tracked
from twinbus.core.ids import new_tracking_id
from twinbus.core.units import time_to_iso
from twinbus.server.lobby import Lobby, Place

# From the first byte of a request to the last of its head.
HEAD_WAIT_S = 10.0
HEADER_BYTES_MAX = 8190
HEADERS_MAX = 64
BODY_WAIT_S = 30
# A body that nobody wants is taken and thrown away for so long, so that its sender hears why.
UNWANTED_WAIT_S = 3.0
# What a stranger may send over WebSocket: as much as over TCP, and what goes around it. Other
# than there, bytes can wait for the rest of their message.
CARRIED_BYTES_MAX = 2 * limits.STRANGER_BYTES_MAX
# A name or an address, maybe a port, and nothing else: tokens are checked against host and path
# together, so that a host which holds a path could be taken for one.
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")

logger = logging.getLogger(__name__)


class HttpProtocol(web.RequestHandler):
    """What the event loop talks to; `attending` tells it when a request's head is complete."""

    __slots__ = (
        "_carried_bytes", "_clock_ms", "_head_timer", "_is_attended", "_is_stranger", "_lobby",
        "place",
    )  # fmt: skip

    def __init__(
        self, server: web.Server, lobby: Lobby, clock_ms: Callable[[], int], idle_wait_s: float
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=idle_wait_s,
            lingering_time=UNWANTED_WAIT_S,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
            # No client compresses what it sends; a bomb cannot go off that is not unpacked.
            auto_decompress=False,
        )
        self._lobby = lobby
        self._clock_ms = clock_ms
        self.place: Place | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_attended = False
        #: Asks whoever was handed the connection.
        self._is_stranger: Callable[[], bool] | None = None
        self._carried_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        abort = cast(asyncio.Transport, transport).abort
        self.place = self._lobby.enter(transport.get_extra_info("peername"), abort)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_stranger is not None and not self._may_go_on(len(data)):
            return
        if not self._is_attended and self._head_timer is None:
            loop = asyncio.get_running_loop()
            self._head_timer = loop.call_later(HEAD_WAIT_S, self._give_up)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        if self.place is not None:
            self.place.leave()
        super().connection_lost(exc)

    def hand_on(self, is_stranger: Callable[[], bool]) -> None:
        """The connection is no longer HTTP's: whoever has it now has a place of their own."""
        self._is_stranger = is_stranger
        if self.place is not None:
            self.place.leave()

    def _may_go_on(self, count: int) -> bool:
        """Count what a stranger sends; False when it is more than showing a key takes."""
        assert self._is_stranger is not None
        if not self._is_stranger():
            self._is_stranger = None
            return True
        self._carried_bytes += count
        if self._carried_bytes <= CARRIED_BYTES_MAX:
            return True
        self._lobby.note_expelled()
        self.force_close()
        return False

    def attend(self, *, begins: bool) -> None:
        """A request goes to its handler, or comes back from it."""
        self._is_attended = begins
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        """The head has not come in time."""
        self._head_timer = None
        transport = self.transport
        if transport is None:
            return
        self._lobby.note_expelled()
        # Not into the middle of an answer that is still being read.
        if not transport.get_write_buffer_size():
            text = self._track(f"The request's head did not come within {HEAD_WAIT_S:g} seconds.")
            transport.write(_bare_answer(HTTPStatus.REQUEST_TIMEOUT, text))
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no request, or one that has failed where nothing else could answer."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun: no other can be given")
        if status < 500:
            answered, problem = _judge(exc)
            text = self._track(problem)
            # What the peer sent may hold a key: the log is told the kind of fault only.
            logger.info("no HTTP request (%s): %s", type(exc).__name__, text)
        else:
            answered = HTTPStatus(status)
            text = self._track("The broker failed; its log has the details")
            logger.error("a request failed: %s", text, exc_info=exc)
        response = web.Response(status=answered, text=text + "\n")
        response.force_close()
        return response

    def refuse(self, request: web.BaseRequest, refusal: web.HTTPException) -> web.Response:
        """Give a refusal that a handler raised a tracking id."""
        text = self._track(refusal.text or refusal.reason)
        logger.info("%s %s", request.method, ascii(f"{request.rel_url.raw_path} refused: {text}"))
        response = web.Response(status=refusal.status, text=text + "\n")
        for name in ("Retry-After", "WWW-Authenticate", "Allow"):
            if name in refusal.headers:
                response.headers[name] = refusal.headers[name]
        return response

    def _track(self, text: str) -> str:
        return tracked(text, new_tracking_id(), "http", time_to_iso(self._clock_ms()))


def _judge(fault: BaseException | None) -> tuple[HTTPStatus, str]:
    if isinstance(fault, LineTooLong) or "Too many headers" in str(fault):
        text = f"A head has at most {HEADERS_MAX} fields of {HEADER_BYTES_MAX} bytes."
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text
    return HTTPStatus.BAD_REQUEST, "This is not a request of HTTP 1.1; see RFC 9112."


def _bare_answer(status: HTTPStatus, text: str) -> bytes:
    body = f"{text}\n".encode()
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body


Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def attending(handler: Answer) -> Answer:
    """Put what every request needs around the server's own handler; it is outside of all else."""

    async def attend(request: web.BaseRequest) -> web.StreamResponse:
        protocol = request.protocol
        assert isinstance(protocol, HttpProtocol)
        protocol.attend(begins=True)
        try:
            _check_url(request)
            return await handler(request)
        except web.HTTPException as refusal:
            if refusal.status < 400:
                raise
            return protocol.refuse(request, refusal)
        finally:
            protocol.attend(begins=False)

    return attend


def _check_url(request: web.BaseRequest) -> None:
    """Handlers ask for the host and the URL's port, which a client can make impossible."""
    try:
        if not all(_HOST.fullmatch(host) for host in request.headers.getall("Host", [])):
            raise ValueError
        request.url.port  # noqa: B018
    except ValueError:
        raise web.HTTPBadRequest(text="The Host header is no host name with a port.") from None


def bare_host(host: str) -> str:
    """A host as the Host header has it, without its port, in lower case."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).strip("[]").casefold()


def is_loopback(host: str) -> bool:
    """Whether a name, or an address, can only mean this machine. Others may be made to mean it
    by whoever owns them, so that a browser lets their pages ask it."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def admit(request: web.Request) -> None:
    """A request has shown a key: its connection is no stranger's any more."""
    protocol = request.protocol
    if isinstance(protocol, HttpProtocol) and protocol.place is not None:
        protocol.place.know()


async def read_whole(request: web.Request, bytes_max: int) -> bytes:
    """Give the body; BusError says why there is none, HTTPRequestEntityTooLarge that it is long."""
    packed = request.headers.get("Content-Encoding", "identity")
    if packed.casefold() != "identity":
        raise BusError(ARGUMENT_ERROR, f"The body is packed ({packed[:20]}): send it as it is.")
    try:
        async with asyncio.timeout(BODY_WAIT_S):
            return await request.clone(client_max_size=bytes_max).read()
    except TimeoutError:
        raise BusError(TIMEOUT, f"The body did not come within {BODY_WAIT_S} seconds.") from None
    except ConnectionError:
        raise BusError(ARGUMENT_ERROR, "The client left before the body was whole.") from None
    except web.RequestPayloadError as error:
        raise BusError(ARGUMENT_ERROR, f"The body cannot be read: {error}") from None
