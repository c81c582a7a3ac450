"""One call of the console's API: who asks, about what; and the frame around all calls.

Checks the session, the CSRF token and the claims before anything is looked at. Refusals become
JSON with a text that is meant to be read; no exception comes out.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

from twinbus.admin.connection import admit, read_whole
from twinbus.admin.console.changes import Selection, UnreadableMessage
from twinbus.admin.console.signin import SignIn, Visitor
from twinbus.admin.console.streams import Query, find_stream
from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.core.ids import new_tracking_id
from twinbus.engine.entities import Entity, Holder
from twinbus.engine.stream import Stream

CSRF_HEADER = "X-Twinbus-Csrf"
#: Nothing from elsewhere, no script in the page itself, shown in no other site's frame.
CONTENT_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none';"
    " object-src 'none'"
)
# Sequence numbers, times and counts are below this.
NUMBER_MAX = 2**63 - 1
BODY_BYTES_MAX = 1024 * 1024
_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

logger = logging.getLogger(__name__)

Json = dict[str, Any]
Response = TypeVar("Response", bound=web.StreamResponse)


@dataclass(slots=True)
class Call:
    """A request that may go on. `given` is the query, or the body of what changes something."""

    request: web.Request
    visitor: Visitor
    now_ms: int
    given: Json = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        value = self.given.get(name, default)
        if not isinstance(value, str):
            raise BusError(errors.ARGUMENT_ERROR, f"'{name}' must be a text.")
        return value

    def number(self, name: str, default: int = 0) -> int:
        value = self.given.get(name, default)
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            raise BusError(errors.ARGUMENT_ERROR, f"'{name}' must be a whole number.") from None
        if not -NUMBER_MAX <= number <= NUMBER_MAX:
            raise BusError(errors.ARGUMENT_ERROR, f"'{name}' is beyond all sequence numbers.")
        return number

    def object(self, name: str) -> Json:
        value = self.given.get(name) or {}
        if not isinstance(value, dict):
            raise BusError(errors.ARGUMENT_ERROR, f"'{name}' must be an object.")
        return value

    def entity(self, right: str, name: str = "entity") -> Entity:
        """The entity that the call names, if the visitor has the right."""
        path = self.text(name)
        self.visitor.require(path, right, self.now_ms)
        entity = self.visitor.namespace.find(path)
        if entity is None:
            raise errors.entity_not_found(path)
        return entity

    def holder(self, right: str) -> Holder:
        entity = self.entity(right)
        if not isinstance(entity, Holder):
            raise BusError(
                errors.NOT_ALLOWED, f"'{entity.path}' is a topic: nothing is received from it."
            )
        return entity

    def stream_of(self, entity: Entity) -> Stream:
        stream = find_stream(entity, self.text("stream", "main"))
        if stream is None:
            raise BusError(errors.NOT_FOUND, f"'{entity.path}' has nothing there.")
        return stream

    def query(self) -> Query:
        return Query(self.text("text"), self.text("sql"))

    def selection(self) -> Selection:
        """Named messages, or all (of a state, of a search) in a range."""
        seqs = self.given.get("seqs")
        if seqs is not None and not (
            isinstance(seqs, list) and all(type(seq) is int for seq in seqs)
        ):
            raise BusError(errors.ARGUMENT_ERROR, "'seqs' must be a list of sequence numbers.")
        return Selection(
            None if seqs is None else tuple(seqs),
            self.text("state"),
            self.query(),
            self.number("from", 1),
            self.number("to"),
        )


Handler = Callable[[Call], Awaitable[Json | web.StreamResponse]]
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def framed(
    handler: Handler, sign_in: SignIn, clock_ms: Callable[[], int], *, writes: bool
) -> Answer:
    """Put the checks in front of a handler, and its answer or refusal into JSON."""

    async def answer(request: web.Request) -> web.StreamResponse:
        async def perform() -> web.StreamResponse:
            visitor = sign_in.find(request)
            admit(request)
            given: Json = dict(request.query)
            if writes:
                _check_csrf(request, visitor)
                given = await read_body(request)
            found = await handler(Call(request, visitor, clock_ms(), given))
            return found if isinstance(found, web.StreamResponse) else json_response(found)

        return await guarded(perform, request)

    return answer


async def guarded(
    perform: Callable[[], Awaitable[web.StreamResponse]], request: web.Request
) -> web.StreamResponse:
    """Turn whatever goes wrong into an answer."""
    try:
        return await perform()
    except UnreadableMessage as refusal:
        return _refusal(refusal.kind.status, refusal.text, logged="The message is not valid.")
    except BusError as refusal:
        return _refusal(refusal.kind.status, refusal.text)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(413, "That is too much for the console: use the command line for it.")
    except web.HTTPException as error:
        retry_after = error.headers.get("Retry-After")
        return _refusal(error.status, error.text or error.reason, retry_after=retry_after)
    except Exception:
        logger.exception("%s %s failed", request.method, ascii(request.rel_url.raw_path))
        return _refusal(500, "The broker failed; its log has the details.")


def _check_csrf(request: web.Request, visitor: Visitor) -> None:
    given = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(given.encode(), visitor.csrf.encode()):
        raise BusError(errors.FORBIDDEN, f"The request lacks its {CSRF_HEADER}: sign in again.")


async def read_body(request: web.Request, bytes_max: int = BODY_BYTES_MAX) -> Json:
    # A form of another site cannot send this type without asking first.
    if request.content_type != "application/json":
        raise BusError(errors.ARGUMENT_ERROR, "The body must come as application/json.")
    given = await read_whole(request, bytes_max)
    try:
        body = json.loads(given or b"{}")
    except RecursionError:
        raise BusError(errors.ARGUMENT_ERROR, "The body is nested too deeply.") from None
    except ValueError as error:
        raise BusError(errors.ARGUMENT_ERROR, f"The body is no JSON: {error}.") from None
    if not isinstance(body, dict):
        raise BusError(errors.ARGUMENT_ERROR, "The body must be a JSON object.")
    return body


def json_response(body: Json, status: int = 200) -> web.Response:
    return secured(web.json_response(body, status=status, headers={"Cache-Control": "no-store"}))


def _refusal(
    status: int, text: str, *, logged: str | None = None, retry_after: str | None = None
) -> web.Response:
    tracking_id = new_tracking_id()
    logger.info(
        "the console refused with %d: %s",
        status,
        ascii(logged or text),
        extra={"tracking_id": tracking_id},
    )
    response = json_response({"error": text, "tracking_id": tracking_id}, status)
    if retry_after is not None:
        response.headers["Retry-After"] = retry_after
    return response


def secured(response: Response) -> Response:
    """Give any answer of the console the headers that keep others out."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response
