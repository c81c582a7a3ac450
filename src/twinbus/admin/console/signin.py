"""Who is at the console: a SAS key becomes a session, a cookie stands for it.

Credentials go in, a `Visitor` comes out. The key itself is not kept, only tokens that it
signed; they are checked again on every request, so that a key which was taken back ends
its sessions. Nothing here is written to disk: a restart signs everybody out.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from twinbus.core import errors, names, sas
from twinbus.core.descriptions import LISTEN, MANAGE, SEND
from twinbus.core.errors import BusError
from twinbus.core.units import HOUR_MS, MINUTE_MS
from twinbus.engine.namespace import Namespace
from twinbus.server.authorization import Claim, Guard
from twinbus.server.lobby import address_of
from twinbus.server.service import Service

SESSION_MS = 12 * HOUR_MS
IDLE_MS = HOUR_MS
SESSIONS_MAX = 1_000
#: So many wrong keys from one address, and it has to wait.
FAILURES_MAX = 5
FAILURE_WAIT_MS = MINUTE_MS
_ADDRESSES_MAX = 10_000
_RIGHTS = (LISTEN, SEND, MANAGE)


@dataclass(frozen=True, slots=True)
class Pass:
    """A token for one address, and who can tell what it gives."""

    guard: Guard
    audience: str
    token: str = field(repr=False)

    def claim(self, now_ms: int) -> Claim:
        return self.guard.check_token(self.token, self.audience, now_ms // 1000)


@dataclass(slots=True)
class Visitor:
    """One signed-in browser."""

    namespace: Namespace
    policy: str
    own: Pass
    #: For each namespace of the broker; the same key need not be one of them.
    everywhere: list[Pass]
    #: Must come with everything that changes something, in a header (a stranger's page cannot).
    csrf: str = field(repr=False)
    expires_ms: int
    idle_ms: int

    def claim(self, now_ms: int) -> Claim:
        return self.own.claim(now_ms)

    def allows(self, path: str, right: str, now_ms: int) -> bool:
        return self.claim(now_ms).allows(names.fold(path), right, now_ms // 1000)

    def require(self, path: str, right: str, now_ms: int) -> None:
        if not self.allows(path, right, now_ms):
            raise BusError(
                errors.FORBIDDEN,
                f"The policy '{self.policy}' does not give '{right}' on '{path or '/'}'.",
            )

    def listens_everywhere(self, now_ms: int) -> bool:
        """Whether what is told of the whole broker is for this visitor."""
        try:
            return all(each.claim(now_ms).rights & {LISTEN, MANAGE} for each in self.everywhere)
        except BusError:
            return False

    def require_everywhere(self, now_ms: int) -> None:
        if not self.listens_everywhere(now_ms):
            raise BusError(
                errors.FORBIDDEN,
                "This is about the whole broker: it takes a policy that gives 'Listen', with the"
                " same key, in each of its namespaces.",
            )

    def rights(self, path: str, now_ms: int) -> list[str]:
        claim = self.claim(now_ms)
        folded = names.fold(path)
        return [r for r in _RIGHTS if claim.allows(folded, r, now_ms // 1000)]


@dataclass(frozen=True, slots=True)
class Credentials:
    policy: str
    key: str = field(repr=False)
    #: Host name, or the name of a namespace; empty for the one that the browser asked for.
    host: str = ""
    #: The entity whose policy it is; empty for the namespace's.
    entity: str = ""


def read_credentials(given: dict[str, object]) -> Credentials:
    """Take a policy's name and key, or a connection string; BusError says what is missing."""
    text = str(given.get("connection_string") or "").strip()
    if not text:
        return Credentials(str(given.get("policy") or ""), str(given.get("key") or ""))
    parts: dict[str, str] = {}
    for pair in text.strip(";").split(";"):
        name, _, value = pair.partition("=")
        parts[name.strip().casefold()] = value.strip()
    missing = [n for n in ("SharedAccessKeyName", "SharedAccessKey") if n.casefold() not in parts]
    if missing:
        raise BusError(
            errors.ARGUMENT_ERROR, f"The connection string lacks {' and '.join(missing)}."
        )
    if parts["sharedaccesskey"].startswith("$"):
        raise BusError(
            errors.ARGUMENT_ERROR,
            "The connection string tells where the key is, for a shell to put it in. Put in the"
            " key itself: it is the text of the file root.key.",
        )
    endpoint = parts.get("endpoint", "").partition("://")[2]
    host = endpoint.partition("/")[0].partition(":")[0]
    return Credentials(
        parts["sharedaccesskeyname"], parts["sharedaccesskey"], host, parts.get("entitypath", "")
    )


class SignIn:
    """All sessions of the console, and the addresses that guessed wrong of late."""

    def __init__(self, service: Service, clock_ms: Callable[[], int]) -> None:
        self._service = service
        self._clock_ms = clock_ms
        self._sessions: dict[str, Visitor] = {}
        #: By address: how many wrong keys, and until when they count.
        self._failures: dict[str, tuple[int, int]] = {}

    def enter(self, request: web.Request, given: Credentials) -> tuple[str, Visitor]:
        """Open a session; gives its id, which only the cookie knows."""
        now_ms = self._clock_ms()
        address = address_of((request.remote or "",))
        self._check_failures(address, now_ms)
        namespace, guard = self._service.resolve(given.host or request.host)
        audience = f"sb://{namespace.name}/{given.entity}".rstrip("/")
        expires_ms = now_ms + SESSION_MS

        def sign(guard: Guard, audience: str) -> Pass:
            token = sas.make_token(audience, given.policy, given.key, expires_ms // 1000)
            return Pass(guard, audience, token)

        try:
            own = sign(guard, audience)
            own.claim(now_ms)
            everywhere = [sign(each, f"sb://{other.name}") for other, each in self._service.all()]
        except (BusError, UnicodeEncodeError):
            self._note_failure(address, now_ms)
            raise BusError(errors.UNAUTHORIZED, "No policy of that name has that key.") from None
        self._failures.pop(address, None)
        self._drop_expired(now_ms)
        session_id = secrets.token_urlsafe(32)
        self._sessions[session_id] = visitor = Visitor(
            namespace, given.policy, own, everywhere, secrets.token_urlsafe(24),
            expires_ms, now_ms + IDLE_MS,
        )  # fmt: skip
        return session_id, visitor

    def find(self, request: web.Request) -> Visitor:
        """Give the visitor that a request's cookie stands for; UNAUTHORIZED if there is none."""
        now_ms = self._clock_ms()
        visitor = self._sessions.get(request.cookies.get(cookie_name(request), ""))
        if visitor is None or now_ms >= min(visitor.expires_ms, visitor.idle_ms):
            raise BusError(errors.UNAUTHORIZED, "You are not signed in, or no longer.")
        visitor.claim(now_ms)
        visitor.idle_ms = now_ms + IDLE_MS
        return visitor

    def leave(self, request: web.Request) -> None:
        self._sessions.pop(request.cookies.get(cookie_name(request), ""), None)

    def _check_failures(self, address: str, now_ms: int) -> None:
        count, until_ms = self._failures.get(address, (0, 0))
        if count >= FAILURES_MAX and now_ms < until_ms:
            wait_s = -(-(until_ms - now_ms) // 1000)
            raise web.HTTPTooManyRequests(
                text=f"Too many wrong keys: try again in {wait_s} seconds.",
                headers={"Retry-After": str(wait_s)},
            )

    def _note_failure(self, address: str, now_ms: int) -> None:
        count, until_ms = self._failures.get(address, (0, 0))
        if len(self._failures) >= _ADDRESSES_MAX:
            self._failures.clear()
        self._failures[address] = (count + 1 if now_ms < until_ms else 1, now_ms + FAILURE_WAIT_MS)

    def _drop_expired(self, now_ms: int) -> None:
        over = [key for key, v in self._sessions.items() if now_ms >= min(v.expires_ms, v.idle_ms)]
        # Those that were opened first go first when there are too many.
        over += list(self._sessions)[: max(0, len(self._sessions) - SESSIONS_MAX + 1)]
        for key in over:
            self._sessions.pop(key, None)


def cookie_name(request: web.Request) -> str:
    """Browsers share cookies between the ports of a host; two brokers must not."""
    return f"twinbus-console-{request.url.port}"


def set_cookie(request: web.Request, response: web.StreamResponse, session_id: str) -> None:
    response.set_cookie(
        cookie_name(request), session_id, path="/console", httponly=True, samesite="Strict",
        secure=request.secure,
    )  # fmt: skip
