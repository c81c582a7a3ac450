"""Shared access signatures."""

from __future__ import annotations

import pytest

from twinbus.core import sas

KEY = "a2V5IG9mIHRoZSB0ZXN0"
RESOURCE = "amqps://orders.example.net/queue"


def test_a_token_reads_back_and_is_signed_by_its_key_alone() -> None:
    token = sas.parse_token(sas.make_token(RESOURCE, "Root+Manage", KEY, 1_700_000_000))
    assert token.resource == RESOURCE
    assert token.key_name == "Root+Manage"
    assert token.expiry_s == 1_700_000_000
    assert token.signed_by(KEY)
    assert not token.signed_by(KEY + "x")


def test_a_known_signature() -> None:
    """HMAC-SHA256 over the encoded resource, a line feed and the expiry."""
    encoded = "sb%3A%2F%2Fhost%2Fq"
    assert sas.sign(encoded, "1700000000", "key") == "QruN8p+uyE+EbzeD/1BRDaDTHWkpf2gY/qUQ0x9ndNg="


def test_the_resource_is_signed_as_it_was_encoded() -> None:
    """Clients differ in whether they write %3a or %3A."""
    for encoded in ("sb%3a%2f%2fhost", "sb%3A%2F%2Fhost", "sb://host"):
        signature = sas.sign(encoded, "5", KEY).replace("+", "%2B").replace("/", "%2F")
        text = f"{sas.PREFIX}sr={encoded}&sig={signature}&se=5&skn=k"
        token = sas.parse_token(text)
        assert token.resource == "sb://host"
        assert token.signed_by(KEY)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.removeprefix("SharedAccess"), "does not begin"),
        (lambda t: t.replace("&sig=", "&gis="), "lacks sig"),
        (lambda t: t.replace("&se=5", ""), "lacks se"),
        (lambda t: t.replace("&skn=k", ""), "lacks skn"),
        (lambda t: t.replace("&se=5", "&se=soon"), "not a number"),
        (lambda t: t.replace("&se=5", "&se=-5"), "not a number"),
        (lambda t: t.replace("&se=5", "&se=٥"), "not a number"),
    ],
)
def test_what_is_no_token_is_refused_with_the_reason(change, match: str) -> None:  # type: ignore[no-untyped-def]
    token = sas.make_token(RESOURCE, "k", KEY, 5)
    with pytest.raises(ValueError, match=match):
        sas.parse_token(change(token))


@pytest.mark.parametrize(
    ("audience", "covered"),
    [
        ("sb://host/q", True),
        ("https://HOST:5300/Q/$DeadLetterQueue", True),
        ("host/q/$management", True),
        ("sb://host/q?api-version=1", True),
        ("sb://host/queue", False),
        ("sb://host", False),
        ("sb://other/q", False),
    ],
)
def test_a_token_covers_its_path_and_what_is_below(audience: str, covered: bool) -> None:
    token = sas.parse_token(sas.make_token("sb://host:5671/q/", "k", KEY, 5))
    assert token.covers(audience) is covered


def test_a_token_for_the_host_covers_everything_on_it() -> None:
    token = sas.parse_token(sas.make_token("sb://host/", "k", KEY, 5))
    assert token.covers("amqps://host/any/queue")
    assert not token.covers("amqps://host.example/any/queue")


def test_secrets_are_compared() -> None:
    assert sas.equal("schlüssel", "schlüssel")
    assert not sas.equal("a", "b")
