"""SAS tokens and keys against policies (S2, WIRE section 2)."""

import os

import pytest

from twinbus.core import errors, sas
from twinbus.core.descriptions import (
    LISTEN,
    MANAGE,
    SEND,
    AuthorizationRule,
    QueueDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.engine.engine import Engine
from twinbus.engine.namespace import Namespace
from twinbus.server.authorization import Guard

NOW_S = 1_700_000_000
ROOT = AuthorizationRule("Root", [MANAGE, SEND, LISTEN], "first", "second")
LISTENER = AuthorizationRule("Listener", [LISTEN], "ear", "")


class Nowhere:
    """A log that keeps nothing: authorization never reads it."""

    def append(self, head: bytes, body: bytes = b"") -> int:
        return 0

    append_carried = append

    def read(self, location: int, length: int) -> bytes:
        raise LookupError


@pytest.fixture
def namespace() -> Namespace:
    engine = Engine(Nowhere(), 0, os.urandom)
    namespace = engine.namespace("shop", 0)
    namespace.create_queue(QueueDescription("orders", authorization_rules=[LISTENER]), 0)
    namespace.create_queue(QueueDescription("orders2"), 0)
    namespace.create_queue(QueueDescription("orders/internal"), 0)
    shadow = AuthorizationRule("Root", [LISTEN], "shadow", "")
    namespace.create_topic(TopicDescription("events", authorization_rules=[LISTENER, shadow]), 0)
    return namespace


@pytest.fixture
def guard(namespace: Namespace) -> Guard:
    return Guard(namespace, [ROOT], checks=True)


def token(resource: str, name: str = "Root", key: str = "first", expiry_s: int = NOW_S + 60) -> str:
    return sas.make_token(resource, name, key, expiry_s)


def test_a_token_gives_its_policys_rights_below_its_address(guard: Guard) -> None:
    claim = guard.check_token(token("sb://host/orders"), "sb://host:5672/Orders", NOW_S)
    assert claim.allows("orders", SEND, NOW_S)
    assert claim.allows("orders/$deadletterqueue", LISTEN, NOW_S)
    assert not claim.allows("orders2", SEND, NOW_S)
    assert not claim.allows("orders", SEND, NOW_S + 60)


def test_a_token_for_the_namespace_covers_every_entity(guard: Guard) -> None:
    claim = guard.check_token(token("https://host:5300"), "sb://host/orders2", NOW_S)
    assert claim.allows("orders2", MANAGE, NOW_S)


def test_both_keys_of_a_policy_work(guard: Guard) -> None:
    for key in ("first", "second"):
        guard.check_token(token("sb://host/orders", key=key), "sb://host/orders", NOW_S)


def test_an_entitys_own_policy_works_there_only(guard: Guard) -> None:
    claim = guard.check_token(
        token("sb://host/orders", "listener", "ear"), "sb://host/orders", NOW_S
    )
    assert claim.allows("orders", LISTEN, NOW_S)
    assert not claim.allows("orders", SEND, NOW_S)
    with pytest.raises(BusError):
        guard.check_token(token("sb://host/", "listener", "ear"), "sb://host/orders2", NOW_S)


def test_s2_an_entitys_own_policy_is_not_for_others_below_its_name(guard: Guard) -> None:
    """A name may hold slashes: it does not make one entity part of another."""
    audience = "sb://host/orders"
    own = guard.check_token(token("sb://host", "listener", "ear"), audience, NOW_S)
    for path in ("orders", "orders/$deadletterqueue", "orders/$management"):
        assert own.allows(path, LISTEN, NOW_S)
    assert not own.allows("orders/internal", LISTEN, NOW_S)
    of_all = guard.check_token(token("sb://host"), audience, NOW_S)
    assert of_all.allows("orders/internal", LISTEN, NOW_S)


@pytest.mark.parametrize(
    "path",
    ["events", "Events/Subscriptions", "events/Subscriptions/", "events/subscriptions/s/rules/r"],
)
def test_s2_a_topics_policy_is_for_all_that_is_below_the_topic(guard: Guard, path: str) -> None:
    claim = guard.check_token(token("sb://host", "listener", "ear"), f"sb://host/{path}", NOW_S)
    assert claim.allows(claim.path, LISTEN, NOW_S)
    assert not claim.allows("orders", LISTEN, NOW_S)


def test_s2_a_policy_of_the_same_name_takes_nobodys_place(guard: Guard) -> None:
    for key, right in (("first", MANAGE), ("shadow", LISTEN)):
        claim = guard.check_token(token("sb://host", key=key), "sb://host/events", NOW_S)
        assert claim.allows("events", right, NOW_S)
        assert claim.allows("events", MANAGE, NOW_S) == (right is MANAGE)


@pytest.mark.parametrize(
    "bad",
    [
        token("sb://host/orders", key="wrong"),
        token("sb://host/orders", name="nobody"),
        token("sb://host/orders", key=""),
        token("sb://host/orders", expiry_s=NOW_S),
        token("sb://host/orders2"),
        token("sb://host/order"),
        token("sb://other/orders"),
        "SharedAccessSignature sr=a&sig=b&se=soon&skn=Root",
        "SharedAccessSignature sr=a",
        token("sb://host/orders") + "\udcff",
        "Bearer x",
        "",
    ],
)
def test_s2_what_does_not_hold_is_refused(guard: Guard, bad: str) -> None:
    with pytest.raises(BusError) as refusal:
        guard.check_token(bad, "sb://host/orders", NOW_S)
    assert refusal.value.kind is errors.UNAUTHORIZED


def test_an_empty_second_key_is_no_key(guard: Guard) -> None:
    with pytest.raises(BusError):
        guard.check_token(token("sb://host/orders", "listener", ""), "sb://host/orders", NOW_S)


def test_passwords(guard: Guard) -> None:
    assert guard.check_password("root", "second") is not None
    assert guard.check_password("root", "") is None
    assert guard.check_password("root", "wrong") is None
    assert guard.check_password("nobody", "first") is None
    assert guard.check_password("listener", "ear") is None, "an entity's key is not for all"


def test_development_mode_checks_nothing(namespace: Namespace) -> None:
    guard = Guard(namespace, [ROOT], checks=False)
    assert guard.check_token("", "sb://host/orders", NOW_S).allows("orders", SEND, NOW_S)
