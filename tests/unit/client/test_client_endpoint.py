"""Connection strings, and when tokens are due."""

from __future__ import annotations

import pytest

from twinbus.client.endpoint import Endpoint, parse_connection_string
from twinbus.client.tokens import TOKEN_LIFE_S, Tokens
from twinbus.core.sas import parse_token

KEY = "SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0PT0="


@pytest.mark.parametrize(
    ("text", "host", "port", "tls"),
    [
        (f"Endpoint=sb://ns.example.net/;{KEY}", "ns.example.net", 5671, True),
        (f"Endpoint=sb://ns.example.net:7000;{KEY};EntityPath=q", "ns.example.net", 7000, True),
        (f"endpoint=sb://localhost;{KEY};UseDevelopmentEmulator=true", "localhost", 5672, False),
        (f"Endpoint=sb://[::1]:99;{KEY};useDevelopmentEmulator=True;", "::1", 99, False),
        (f"Endpoint=sb://[::1];{KEY}", "::1", 5671, True),
    ],
)
def test_a_connection_string_is_read(text: str, host: str, port: int, tls: bool) -> None:
    assert parse_connection_string(text) == Endpoint(host, port, tls, "root", "c2VjcmV0PT0=")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (KEY, "has no Endpoint"),
        ("Endpoint=sb://host", "neither SharedAccessKeyName"),
        ("Endpoint=sb://host;SharedAccessKeyName=root", "neither SharedAccessKeyName"),
        (f"Endpoint=sb://host:port;{KEY}", "bad port"),
        (f"Endpoint=sb://;{KEY}", "names no host"),
    ],
)
def test_what_is_wrong_is_said_without_the_key(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what) as error:
        parse_connection_string(text)
    assert "c2VjcmV0" not in str(error.value)


def test_the_key_is_not_shown() -> None:
    assert "c2VjcmV0" not in repr(parse_connection_string(f"Endpoint=sb://host;{KEY}"))


def test_tokens_are_due_at_first_and_again_long_before_their_end() -> None:
    tokens = Tokens(Endpoint("host", 5671, True, "root", "secret"))
    audience = tokens.audience("orders/$DeadLetterQueue")
    assert audience == "sb://host/orders"
    assert tokens.is_due(audience, 1000.0)
    token = parse_token(tokens.make(audience, 1000.0))
    assert (token.expiry_s, token.key_name) == (1000 + TOKEN_LIFE_S, "root")
    assert token.signed_by("secret")
    assert token.covers("sb://host/orders")
    tokens.shown(audience, 1000.0)
    renewal_s = 1000.0 + TOKEN_LIFE_S * 0.6
    assert not tokens.is_due(audience, renewal_s - 1)
    assert tokens.all_due(renewal_s - 1) == []
    assert tokens.all_due(renewal_s) == [audience]


def test_a_given_signature_is_shown_once_and_never_renewed() -> None:
    text = "Endpoint=sb://host;SharedAccessSignature=SharedAccessSignature sr=a&sig=b%3D&se=1&skn=c"
    tokens = Tokens(parse_connection_string(text))
    audience = tokens.audience("q")
    assert tokens.make(audience, 0.0) == "SharedAccessSignature sr=a&sig=b%3D&se=1&skn=c"
    tokens.shown(audience, 0.0)
    assert tokens.all_due(1e12) == []
