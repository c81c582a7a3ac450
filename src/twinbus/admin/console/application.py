"""The console's addresses: the page and its parts, signing in, and the API by task.

`/console/` is the page, `/console/static/…` its parts, `/console/api/…` what it asks. Each
call says which right it needs; `calls.py` checks the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from twinbus import __version__
from twinbus.admin.console import pairs, reports, shown, streams, tester
from twinbus.admin.console.calls import (
    Answer,
    Call,
    Handler,
    Json,
    framed,
    guarded,
    json_response,
    read_body,
    secured,
)
from twinbus.admin.console.changes import DELETE_STEP, Changes, select
from twinbus.admin.console.entities import Entities, details, list_sessions, session_state
from twinbus.admin.console.events import PairEvents
from twinbus.admin.console.overview import Overview
from twinbus.admin.console.signin import (
    SignIn,
    Visitor,
    cookie_name,
    read_credentials,
    set_cookie,
)
from twinbus.admin.forwards import new_forwards
from twinbus.core import errors, names
from twinbus.core.descriptions import LISTEN, MANAGE, SEND
from twinbus.core.errors import BusError
from twinbus.engine.entities import Entity, Holder, Queue
from twinbus.engine.namespace import Namespace
from twinbus.engine.rules import Rule
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Subscription
from twinbus.server.administration import NamespaceAdministration
from twinbus.server.service import Service

STATIC = Path(__file__).parent / "static"
PAGE_MAX = 200
# Anybody may try to sign in.
SIGN_IN_BYTES_MAX = 16 * 1024


class Console:
    """The web console of a service.

    `reports_dir` is where the pipeline's jobs put theirs, `events_dir` where applications keep
    the events of their pairs; neither need exist.
    """

    def __init__(self, service: Service, reports_dir: Path, events_dir: Path) -> None:
        self._broker = service.broker
        self._clock_ms = service.broker.clock
        self._sign_in = SignIn(service, self._clock_ms)
        self._changes = Changes(service.broker)
        self._reports_dir = reports_dir
        self._pair_events = PairEvents(events_dir)
        self._overviews: dict[str, Overview] = {}

    def add_routes(
        self, router: web.UrlDispatcher, unless_entity: Callable[[Answer], Answer]
    ) -> None:
        """`unless_entity` lets requests through that are about a queue named like a page."""
        pages: dict[str, Answer] = {
            "/": self._to_page,
            "/console": self._to_page,
            "/console/": self._page,
            r"/console/static/{name:[a-z_]+\.(?:js|css|svg)}": self._static,
        }
        for path, page in pages.items():
            router.add_get(path, unless_entity(page))
        router.add_post("/console/api/sign-in", self._enter)
        router.add_post("/console/api/sign-out", self._leave)
        reads: dict[str, Handler] = {
            "session": self._session,
            "entities": self._entities,
            "entity": self._entity,
            "messages": self._messages,
            "message": self._message,
            "body": self._body,
            "search": self._search,
            "timeline": self._timeline,
            "sessions": self._sessions,
            "session-state": self._session_state,
            "pairs": self._pairs,
            "destinations": self._destinations,
            "reports": self._reports,
            "report": self._report,
        }
        changes: dict[str, Handler] = {
            "send": self._send,
            "resubmit": self._resubmit,
            "resubmit-edited": self._resubmit_edited,
            "delete": self._delete,
            "undefer": self._undefer,
            "test-rules": self._test_rules,
            "put-rule": self._put_rule,
            "delete-rule": self._delete_rule,
            "create-entity": self._create_entity,
            "update-entity": self._update_entity,
            "delete-entity": self._delete_entity,
        }
        for name, handler in reads.items():
            answer = framed(handler, self._sign_in, self._clock_ms, writes=False)
            router.add_get(f"/console/api/{name}", unless_entity(answer))
        for name, handler in changes.items():
            answer = framed(handler, self._sign_in, self._clock_ms, writes=True)
            router.add_post(f"/console/api/{name}", answer)

    # --- the page ---------------------------------------------------------------------

    async def _to_page(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/console/")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return secured(
            web.FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})
        )

    async def _static(self, request: web.Request) -> web.StreamResponse:
        path = STATIC / request.match_info["name"]
        if not path.is_file():
            raise web.HTTPNotFound
        return secured(web.FileResponse(path, headers={"Cache-Control": "no-cache"}))

    # --- signing in -------------------------------------------------------------------

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        async def perform() -> web.StreamResponse:
            given = read_credentials(await read_body(request, SIGN_IN_BYTES_MAX))
            session_id, visitor = self._sign_in.enter(request, given)
            response = json_response(self._about(visitor))
            set_cookie(request, response, session_id)
            return response

        return await guarded(perform, request)

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        # Harmless when forged: a stranger could at most sign somebody out, and the cookie
        # does not come along from another site.
        self._sign_in.leave(request)
        response = json_response({})
        response.del_cookie(cookie_name(request), path="/console")
        return response

    def _about(self, visitor: Visitor) -> Json:
        now_ms = self._clock_ms()
        return {
            "namespace": visitor.namespace.name,
            "policy": visitor.policy,
            "rights": visitor.rights(visitor.claim(now_ms).path, now_ms),
            "scope": visitor.claim(now_ms).path,
            "csrf": visitor.csrf,
            "version": __version__,
            "time": now_ms,
        }

    async def _session(self, call: Call) -> Json:
        return self._about(call.visitor)

    # --- entities ---------------------------------------------------------------------

    def _overview(self, namespace: Namespace) -> Overview:
        known = self._overviews.get(namespace.name)
        if known is None:
            known = self._overviews[namespace.name] = Overview(namespace, self._clock_ms)
        return known

    async def _entities(self, call: Call) -> Json:
        claim = call.visitor.claim(call.now_ms)
        right = next(iter(claim.rights), LISTEN)
        now_s = call.now_ms // 1000
        overview = self._overview(call.visitor.namespace)
        return {
            **await overview.changes(
                call.number("since"), lambda path: claim.allows(names.fold(path), right, now_s)
            ),
            "refusing": self._broker.why_refusing(),
        }

    async def _entity(self, call: Call) -> Json:
        entity = call.entity(_any_right(call))
        rights = call.visitor.rights(entity.path, call.now_ms)
        return {**details(entity), "rights": rights, "time": call.now_ms}

    def _admin(self, call: Call) -> Entities:
        visitor = call.visitor
        return Entities(NamespaceAdministration(self._broker, visitor.namespace, visitor.own.guard))

    async def _create_entity(self, call: Call) -> Json:
        path = call.text("entity")
        call.visitor.require(path, MANAGE, call.now_ms)
        _check_forwarding(call, None)
        await self._admin(call).create(call.text("kind"), path, call.object("settings"))
        return {}

    async def _update_entity(self, call: Call) -> Json:
        entity = call.entity(MANAGE)
        _check_forwarding(call, entity)
        await self._admin(call).update(entity, call.object("settings"))
        return {}

    async def _delete_entity(self, call: Call) -> Json:
        await self._admin(call).delete(call.entity(MANAGE))
        return {}

    # --- looking at messages ----------------------------------------------------------

    async def _messages(self, call: Call) -> Json:
        entity = call.entity(LISTEN)
        stream = streams.find_stream(entity, call.text("stream", "main"))
        states = streams.states_of(call.text("state"))
        if stream is None:
            return {"messages": [], "total": 0, "first": 0, "last": 0, "time": call.now_ms}
        count = max(1, min(call.number("count", 50), PAGE_MAX))
        backwards = call.text("backwards") == "true"
        start = call.number("from", stream.durable_seq if backwards else 1)
        seqs = streams.page(stream, states, start, count, backwards=backwards)
        return {
            "messages": [shown.line(stream, seq) for seq in seqs],
            "total": sum(stream.count_state(state) for state in states),
            "first": streams.next_seq(stream, states, 1),
            "last": streams.previous_seq(stream, states, stream.durable_seq),
            "time": call.now_ms,
        }

    async def _search(self, call: Call) -> Json:
        stream = call.stream_of(call.entity(LISTEN))
        found = await streams.search(
            stream,
            streams.states_of(call.text("state")),
            call.query(),
            call.number("from", 1),
            stream.durable_seq,
            PAGE_MAX,
        )
        present = [seq for seq in found.seqs if streams.state_name(stream, seq) != "gone"]
        return {
            "messages": [shown.line(stream, seq) for seq in present],
            "scanned": found.scanned,
            "next": found.next_seq,
            "last": stream.durable_seq,
            "time": call.now_ms,
        }

    async def _message(self, call: Call) -> Json:
        stream = call.stream_of(call.entity(LISTEN))
        return {**shown.whole(stream, _present(call, stream)), "time": call.now_ms}

    async def _body(self, call: Call) -> web.StreamResponse:
        stream = call.stream_of(call.entity(LISTEN))
        seq = _present(call, stream)
        return secured(
            web.Response(
                body=shown.body_of(stream, seq),
                content_type="application/octet-stream",
                headers={"Content-Disposition": f'attachment; filename="message-{seq}.bin"'},
            )
        )

    async def _timeline(self, call: Call) -> Json:
        """When scheduled messages are due: how many in each of so many equal spans."""
        stream = call.stream_of(call.entity(LISTEN))
        return {**await streams.timeline(stream, call.now_ms), "time": call.now_ms}

    async def _sessions(self, call: Call) -> Json:
        return list_sessions(call.holder(LISTEN).main, call.text("after"))

    async def _session_state(self, call: Call) -> Json:
        return session_state(call.holder(LISTEN).main, call.text("session"))

    # --- changing messages ------------------------------------------------------------

    async def _send(self, call: Call) -> Json:
        entity = call.entity(SEND)
        if isinstance(entity, Subscription):
            raise BusError(errors.NOT_ALLOWED, "Messages are sent to the topic, not to this.")
        given = call.given.get("messages")
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise BusError(errors.ARGUMENT_ERROR, "'messages' must be a list of objects.")
        return {"scheduled": [seq for seq in await self._changes.send(entity, given) if seq]}

    async def _resubmit(self, call: Call) -> Json:
        holder = call.holder(MANAGE)
        stream = _dead_letters(call, holder)
        target = call.entity(SEND, "target") if call.text("target") else holder
        step = await select(stream, call.selection())
        done = await self._changes.resubmit(holder, stream, step, target, call.text("action"))
        return done.answer()

    async def _resubmit_edited(self, call: Call) -> Json:
        holder = call.holder(MANAGE)
        stream = _dead_letters(call, holder)
        target = call.entity(SEND, "target") if call.text("target") else holder
        await self._changes.resubmit_edited(
            stream, call.number("seq"), call.object("message"), target
        )
        return {}

    async def _delete(self, call: Call) -> Json:
        # A scheduled message is its sender's to cancel, everything else its receiver's.
        right = SEND if call.text("state") == "scheduled" else LISTEN
        entity = call.entity(right)
        stream = call.stream_of(entity)
        step = await select(stream, call.selection(), DELETE_STEP)
        return (await self._changes.delete(stream, step, call.text("state"))).answer()

    async def _undefer(self, call: Call) -> Json:
        holder = call.holder(LISTEN)
        stream = call.stream_of(holder)
        step = await select(stream, call.selection())
        return (await self._changes.undefer(holder, stream, step)).answer()

    # --- rules ------------------------------------------------------------------------

    async def _test_rules(self, call: Call) -> Json:
        message = self._changes.read(call.object("message"))
        answer: Json = {"subscriptions": [], "draft": None}
        if call.text("entity"):
            answer["subscriptions"] = tester.try_entity(call.entity(LISTEN), message)
        if call.given.get("rule"):
            rule = Rule(tester.read_rule(call.object("rule")))
            answer["draft"] = tester.try_rule(rule, message)
        return answer

    async def _put_rule(self, call: Call) -> Json:
        subscription = _subscription(call)
        await self._admin(call).put_rule(subscription, tester.read_rule(call.object("rule")))
        return {}

    async def _delete_rule(self, call: Call) -> Json:
        await self._admin(call).delete_rule(_subscription(call), call.text("rule"))
        return {}

    # --- pairs and reports ------------------------------------------------------------

    async def _pairs(self, call: Call) -> Json:
        call.visitor.require("", LISTEN, call.now_ms)
        namespace = call.visitor.namespace
        # Applications tell of pairs in any namespace.
        may_hear = call.visitor.listens_everywhere(call.now_ms)
        return {
            "queues": pairs.backlog_queues(namespace),
            "pinged": pairs.pinged_entities(namespace),
            "told": self._pair_events.look() if may_hear else None,
            "time": call.now_ms,
        }

    async def _destinations(self, call: Call) -> Json:
        return await pairs.destinations(call.holder(LISTEN).main, call.number("from", 1))

    async def _reports(self, call: Call) -> Json:
        call.visitor.require_everywhere(call.now_ms)
        return {"reports": reports.list_reports(self._reports_dir)}

    async def _report(self, call: Call) -> web.StreamResponse:
        call.visitor.require_everywhere(call.now_ms)
        path = reports.find_report(self._reports_dir, call.text("name"))
        policy = {"Content-Security-Policy": reports.POLICY, "Cache-Control": "no-store"}
        return secured(web.FileResponse(path, headers=policy))


def _check_forwarding(call: Call, entity: Entity | None) -> None:
    known = entity.description if isinstance(entity, Queue | Subscription) else None
    for _, target in new_forwards(call.object("settings"), known):
        call.visitor.require(target, MANAGE, call.now_ms)


def _any_right(call: Call) -> str:
    return next(iter(call.visitor.claim(call.now_ms).rights), LISTEN)


def _present(call: Call, stream: Stream) -> int:
    seq = call.number("seq")
    if seq > stream.durable_seq or streams.state_name(stream, seq) == "gone":
        raise BusError(errors.MESSAGE_NOT_FOUND, f"Message {seq} is not there (any more).")
    return seq


def _dead_letters(call: Call, holder: Holder) -> Stream:
    stream = call.stream_of(holder)
    if stream.is_main:
        raise BusError(errors.NOT_ALLOWED, f"'{stream.path}' holds no dead letters.")
    return stream


def _subscription(call: Call) -> Subscription:
    entity = call.entity(MANAGE)
    if not isinstance(entity, Subscription):
        raise BusError(errors.NOT_ALLOWED, f"'{entity.path}' has no rules.")
    return entity
