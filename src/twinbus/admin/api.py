"""The Atom administration API: HTTP requests in, answers out.

Every request needs a token that gives Manage. Refusals become an error body that ends with
a tracking id, and the same id is in the log (S2). All decisions are the namespace's.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TypeVar

from aiohttp import web

from twinbus.admin import reading, writing
from twinbus.admin.connection import admit, bare_host, read_whole
from twinbus.admin.forwards import FORWARDS, new_forwards
from twinbus.admin.ports import Administration, Namespaces
from twinbus.admin.targets import Kind, Target, parse_target
from twinbus.admin.writing import Origin, Page
from twinbus.core.descriptions import (
    MANAGE,
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import (
    ARGUMENT_ERROR,
    BusError,
    entity_not_found,
    tracked,
)
from twinbus.core.ids import new_key, new_tracking_id
from twinbus.core.names import subscription_path
from twinbus.core.units import time_to_iso

# A description has some kilobytes. A body is parsed in one go, and the broker waits for it.
BODY_BYTES_MAX = 256 * 1024
PAGE_SIZE_MAX = 100

_ENTRY = "application/atom+xml;type=entry;charset=utf-8"
_FEED = "application/atom+xml;type=feed;charset=utf-8"
_ERROR = "application/xml;charset=utf-8"
_DEFAULT_API_VERSION = "2021-05"
# The header with the token for where an entity hands messages on to.
_FORWARD_TOKENS = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_lettered_messages_to": "ServiceBusDlqSupplementaryAuthorization",
}

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Call:
    """One request that may go on: who is asked, about what."""

    request: web.Request
    namespace: Administration
    target: Target
    origin: Origin

    @property
    def is_update(self) -> bool:
        return "If-Match" in self.request.headers

    def missing(self) -> BusError:
        return entity_not_found(f"sb://{self.origin.host}/{self.target.path}")


class AdminApi:
    """The API of all namespaces that a broker holds."""

    def __init__(self, namespaces: Namespaces, clock_ms: Callable[[], int]) -> None:
        self._namespaces = namespaces
        self._clock_ms = clock_ms
        self._handlers: dict[tuple[str, Kind], Callable[[Call], Awaitable[web.Response]]] = {
            ("GET", Kind.NAMESPACE): self._get_namespace,
            ("GET", Kind.QUEUES): self._list_queues,
            ("GET", Kind.TOPICS): self._list_topics,
            ("GET", Kind.ENTITY): self._get_entity,
            ("PUT", Kind.ENTITY): self._put_entity,
            ("DELETE", Kind.ENTITY): self._delete,
            ("GET", Kind.SUBSCRIPTIONS): self._list_subscriptions,
            ("GET", Kind.SUBSCRIPTION): self._get_subscription,
            ("PUT", Kind.SUBSCRIPTION): self._put_subscription,
            ("DELETE", Kind.SUBSCRIPTION): self._delete,
            ("GET", Kind.RULES): self._list_rules,
            ("GET", Kind.RULE): self._get_rule,
            ("PUT", Kind.RULE): self._put_rule,
            ("DELETE", Kind.RULE): self._delete_rule,
        }

    async def answer(self, request: web.Request) -> web.Response:
        """Answer any request; no exception comes out."""
        try:
            call = self._admit(request)
            handler = self._handlers.get((request.method, call.target.kind))
            if handler is None:
                raise web.HTTPMethodNotAllowed(request.method, [])
            return await handler(call)
        except BusError as refusal:
            return self._refuse(request, refusal.kind.status, refusal.text)
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(request, 413, f"The body has more than {BODY_BYTES_MAX} bytes.")
        except web.HTTPMethodNotAllowed as error:
            return self._refuse(request, 405, f"{error.method} is not possible at this address.")
        except Exception:
            return self._fail(request)

    def _admit(self, request: web.Request) -> Call:
        """Find the namespace and check the token, before anything else is looked at."""
        host = request.host
        namespace = self._namespaces.namespace_for(bare_host(host))
        self._authorize(namespace, request, _token(request), request.path)
        admit(request)
        target = parse_target(request.path)
        api_version = request.query.get("api-version", _DEFAULT_API_VERSION)
        return Call(
            request, namespace, target, Origin(request.scheme, host, namespace.name, api_version)
        )

    def _authorize(
        self, namespace: Administration, request: web.Request, token: str, path: str
    ) -> None:
        audience = f"{request.scheme}://{request.host}{path}"
        namespace.authorize(token, audience, MANAGE, self._clock_ms() // 1000)

    # The namespace.

    async def _get_namespace(self, call: Call) -> web.Response:
        name = _first_label(call.origin.host) or call.namespace.name
        return _entry(writing.namespace_entry(name, call.namespace.created_ms, call.origin))

    async def _list_queues(self, call: Call) -> web.Response:
        return self._list(call, "Queues", call.namespace.list_queues(), self._queue_entry)

    async def _list_topics(self, call: Call) -> web.Response:
        return self._list(call, "Topics", call.namespace.list_topics(), self._topic_entry)

    # Queues and topics.

    async def _get_entity(self, call: Call) -> web.Response:
        queue = call.namespace.get_queue(call.target.entity)
        if queue is not None:
            return _entry(self._queue_entry(call, queue))
        topic = call.namespace.get_topic(call.target.entity)
        if topic is not None:
            return _entry(self._topic_entry(call, topic))
        raise call.missing()

    async def _put_entity(self, call: Call) -> web.Response:
        name, found = reading.read_entry(await read_whole(call.request, BODY_BYTES_MAX))
        namespace, entity = call.namespace, call.target.entity
        if name == "QueueDescription":
            old_queue = _existing(call, namespace.get_queue(entity))
            queue = reading.read_queue(found, old_queue or QueueDescription(entity))
            self._complete_rules(queue, old_queue)
            self._check_forwarding(call, queue, old_queue)
            await (namespace.update_queue(queue) if old_queue else namespace.create_queue(queue))
        elif name == "TopicDescription":
            old_topic = _existing(call, namespace.get_topic(entity))
            topic = reading.read_topic(found, old_topic or TopicDescription(entity))
            self._complete_rules(topic, old_topic)
            await (namespace.update_topic(topic) if old_topic else namespace.create_topic(topic))
        else:
            raise _unexpected(name, "QueueDescription or a TopicDescription")
        return _made(call, await self._get_entity(call))

    async def _delete(self, call: Call) -> web.Response:
        await call.namespace.delete(
            subscription_path(call.target.entity, call.target.subscription)
            if call.target.subscription
            else call.target.entity
        )
        return web.Response()

    def _complete_rules(
        self,
        new: QueueDescription | TopicDescription,
        old: QueueDescription | TopicDescription | None,
    ) -> None:
        """Fill in what a client may leave out of authorization rules: keys and times."""
        known = {rule.name: rule for rule in old.authorization_rules} if old else {}
        now_ms = self._clock_ms()
        new.authorization_rules = [
            _complete(rule, known.get(rule.name), now_ms) for rule in new.authorization_rules
        ]

    def _check_forwarding(
        self,
        call: Call,
        new: QueueDescription | SubscriptionDescription,
        old: QueueDescription | SubscriptionDescription | None,
    ) -> None:
        wanted = {setting: getattr(new, setting) for setting in FORWARDS}
        for setting, target in new_forwards(wanted, old):
            header = _FORWARD_TOKENS[setting]
            token = _token(call.request, header) or _token(call.request)
            try:
                self._authorize(call.namespace, call.request, token, f"/{target}")
            except BusError as error:
                raise BusError(
                    error.kind,
                    f"To forward to '{target}' takes Manage there; give a token in {header}."
                    f" {error.text}",
                ) from None

    def _queue_entry(self, call: Call, queue: QueueDescription) -> str:
        return writing.queue_entry(queue, call.namespace.counts(queue.name), call.origin)

    def _topic_entry(self, call: Call, topic: TopicDescription) -> str:
        return writing.topic_entry(topic, call.namespace.counts(topic.name), call.origin)

    # Subscriptions.

    async def _list_subscriptions(self, call: Call) -> web.Response:
        subscriptions = call.namespace.list_subscriptions(call.target.entity)
        return self._list(call, "Subscriptions", subscriptions, self._subscription_entry)

    async def _get_subscription(self, call: Call) -> web.Response:
        target = call.target
        subscription = call.namespace.get_subscription(target.entity, target.subscription)
        if subscription is None:
            raise call.missing()
        return _entry(self._subscription_entry(call, subscription))

    async def _put_subscription(self, call: Call) -> web.Response:
        name, found = reading.read_entry(await read_whole(call.request, BODY_BYTES_MAX))
        if name != "SubscriptionDescription":
            raise _unexpected(name, "SubscriptionDescription")
        topic, own_name = call.target.entity, call.target.subscription
        old = _existing(call, call.namespace.get_subscription(topic, own_name))
        subscription = reading.read_subscription(
            found, old or SubscriptionDescription(topic, own_name)
        )
        self._check_forwarding(call, subscription, old)
        if old:
            await call.namespace.update_subscription(subscription)
        else:
            default_rule = reading.read_default_rule(found)
            await call.namespace.create_subscription(subscription, default_rule)
        return _made(call, await self._get_subscription(call))

    def _subscription_entry(self, call: Call, subscription: SubscriptionDescription) -> str:
        path = subscription_path(subscription.topic, subscription.name)
        return writing.subscription_entry(subscription, call.namespace.counts(path), call.origin)

    # Rules.

    async def _list_rules(self, call: Call) -> web.Response:
        rules = call.namespace.list_rules(call.target.entity, call.target.subscription)
        return self._list(call, "Rules", rules, self._rule_entry)

    async def _get_rule(self, call: Call) -> web.Response:
        rule = call.namespace.get_rule(
            call.target.entity, call.target.subscription, call.target.rule
        )
        if rule is None:
            raise call.missing()
        return _entry(self._rule_entry(call, rule))

    async def _put_rule(self, call: Call) -> web.Response:
        name, found = reading.read_entry(await read_whole(call.request, BODY_BYTES_MAX))
        if name != "RuleDescription":
            raise _unexpected(name, "RuleDescription")
        target = call.target
        rule = reading.read_rule(found, target.rule)
        change = call.namespace.update_rule if call.is_update else call.namespace.create_rule
        await change(target.entity, target.subscription, rule)
        return _made(call, await self._get_rule(call))

    async def _delete_rule(self, call: Call) -> web.Response:
        target = call.target
        await call.namespace.delete_rule(target.entity, target.subscription, target.rule)
        return web.Response()

    def _rule_entry(self, call: Call, rule: RuleDescription) -> str:
        subscription = call.namespace.get_subscription(call.target.entity, call.target.subscription)
        if subscription is None:
            raise call.missing()
        return writing.rule_entry(subscription.topic, subscription.name, rule, call.origin)

    # All of them.

    def _list(
        self, call: Call, title: str, items: Sequence[Item], write: Callable[[Call, Item], str]
    ) -> web.Response:
        skip = _number(call.request, "$skip", 0)
        top = min(_number(call.request, "$top", PAGE_SIZE_MAX) or PAGE_SIZE_MAX, PAGE_SIZE_MAX)
        page = Page(skip, top, more=skip + top < len(items))
        entries = [write(call, item) for item in items[skip : skip + top]]
        text = writing.feed(title, call.target.path, entries, page, self._clock_ms(), call.origin)
        return _xml(200, text, _FEED)

    def _refuse(self, request: web.Request, status: int, text: str) -> web.Response:
        detail = self._track(request, status, text)
        logger.info("%s %s refused with %d: %s", request.method, _place(request), status, detail)
        return _xml(status, writing.error_body(status, detail), _ERROR)

    def _fail(self, request: web.Request) -> web.Response:
        detail = self._track(request, 500, "The broker failed; its log has the details")
        logger.exception("%s %s failed: %s", request.method, _place(request), detail)
        return _xml(500, writing.error_body(500, detail), _ERROR)

    def _track(self, request: web.Request, status: int, text: str) -> str:
        # Clients tell refusals by these words.
        if not text.startswith(("The messaging entity", "Entity", "No service")):
            text = f"SubCode={status}00. {text}"
        return tracked(text, new_tracking_id(), _place(request), time_to_iso(self._clock_ms()))


def _token(request: web.Request, header: str = "Authorization") -> str:
    return request.headers.get(header, "").removeprefix("Bearer ").strip()


def _existing(call: Call, old: Item | None) -> Item | None:
    """Give what an update starts from; a creation starts from nothing."""
    if not call.is_update:
        return None
    if old is None:
        raise call.missing()
    return old


def _complete(
    rule: AuthorizationRule, known: AuthorizationRule | None, now_ms: int
) -> AuthorizationRule:
    old = known or AuthorizationRule(rule.name, [], new_key(), new_key(), now_ms)
    same = replace(
        rule,
        primary_key=rule.primary_key or old.primary_key,
        secondary_key=rule.secondary_key or old.secondary_key,
        created_ms=old.created_ms,
        modified_ms=old.modified_ms,
    )
    return same if same == old else replace(same, modified_ms=now_ms)


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BusError(ARGUMENT_ERROR, f"{name} must be a whole number, not '{text}'.")
    return int(text)


def _unexpected(name: str, wanted: str) -> BusError:
    return BusError(ARGUMENT_ERROR, f"This address takes a {wanted}, not a {name}.")


def _first_label(host: str) -> str:
    """Give the first label of a host name; nothing for an IP address."""
    name = bare_host(host)
    try:
        ip_address(name)
    except ValueError:
        return name.partition(".")[0]
    return ""


def _place(request: web.Request) -> str:
    # Plain characters only, so that no request can write lines of its own into the log.
    return ascii(request.host + request.rel_url.raw_path)[1:-1]


def _made(call: Call, answer: web.Response) -> web.Response:
    answer.set_status(200 if call.is_update else 201)
    return answer


def _entry(text: str) -> web.Response:
    return _xml(200, text, _ENTRY)


def _xml(status: int, text: str, content_type: str) -> web.Response:
    return web.Response(status=status, body=text.encode(), headers={"Content-Type": content_type})
