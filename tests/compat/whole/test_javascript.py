"""The official JavaScript SDK in the same situations; scripts in `tests/compat/js/whole`.

Needs `npm ci` in tests/compat/js; node comes from PATH or from the development environment.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest

from tests.compat.whole.credentials import PRIMARY, policies, token
from tests.compat.whole.kit import JS, Bus
from tests.support.broker import KEY, KEY_NAME

pytestmark = pytest.mark.skipif(
    not (JS / "node_modules").is_dir(), reason="npm ci was not run in tests/compat/js"
)

LOCKS: dict[str, threading.Lock] = defaultdict(threading.Lock)
TOLD: dict[str, Any] = {}


def told(bus: Bus, script: str, scenario: str) -> Any:
    """What a scenario saw; its script runs once, for whoever asks first."""
    with LOCKS[script]:
        if script not in TOLD:
            TOLD[script] = bus.javascript(script, prefix=bus.fresh("js"), **extra(bus, script))
    return TOLD[script][scenario]


def extra(bus: Bus, script: str) -> dict[str, Any]:
    """What a script needs beside the clients."""
    if script == "administration.mjs":
        port = bus.broker.ready["ports"]["amqps"]
        credentials = f"SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"
        return {"tlsString": f"Endpoint=sb://localhost:{port};{credentials}"}
    if script == "errors.mjs":
        guarded = bus.queue(authorization_rules=policies())
        endpoint = f"Endpoint=sb://localhost:{bus.broker.amqp_port};UseDevelopmentEmulator=true"
        resource = f"sb://localhost/{guarded}"
        return {
            "guarded": guarded,
            "badAdminString": bus.admin_string_of(KEY_NAME, PRIMARY),
            "strings": {
                "send": bus.connection_string_of("send", PRIMARY),
                "listen": bus.connection_string_of("listen", PRIMARY),
                "manage": bus.connection_string_of("manage", PRIMARY),
                "bad key": bus.connection_string_of(KEY_NAME, PRIMARY),
                "expired": f"{endpoint};SharedAccessSignature="
                + token(resource, KEY_NAME, KEY, -5),
            },
        }
    return {}


def test_e8_rules(bus: Bus) -> None:
    """E8: the rule manager over `$management`."""
    assert told(bus, "messages.mjs", "rules") == {
        "names": ["large", "red"],
        "red": {"colour": "red"},
        "large": ["size > 10", "SET seen = 'yes'"],
        "twice": "MessagingEntityAlreadyExists",
        "bad": "GeneralError",
        "missing": "MessagingEntityNotFound",
        "bodies": ["red", "large"],
        "seen": "yes",
        "empty": True,
    }


def test_e5_scheduling(bus: Bus) -> None:
    """E5."""
    assert told(bus, "messages.mjs", "scheduling") == {
        "again": "MessageNotFound",
        "body": "kept",
        "inTime": True,
        "newNumber": True,
        "scheduled": True,
    }


def test_e5_deferral(bus: Bus) -> None:
    """E5 R4 D2."""
    seen = told(bus, "messages.mjs", "deferral")
    properties = {"why": "later", "extra": 1, "DeadLetterReason": "r"}
    assert seen == {
        "empty": True,
        "seen": ["a", "deferred", 1, {"why": "later"}],
        "missing": "MessageNotFound",
        "dead": ["a", "r", properties],
    }


def test_e7_duplicates(bus: Bus) -> None:
    """E7 S6."""
    assert told(bus, "messages.mjs", "duplicates") == {"bodies": ["a", "b"], "empty": True}


def test_d9_delivery_limit(bus: Bus) -> None:
    """D9 D3 D2."""
    assert told(bus, "messages.mjs", "deliveryLimit") == {
        "counts": list(range(10)),
        "reason": "MaxDeliveryCountExceeded",
        "deliveryCount": 10,
        "source": True,
    }


def test_r5_lock_lost(bus: Bus) -> None:
    """R3 R5 R6."""
    assert told(bus, "messages.mjs", "lockLost") == {
        "code": "MessageLockLost",
        "renew": "MessageLockLost",
        "deliveryCount": 1,
        "empty": True,
    }


def test_r2_competing(bus: Bus) -> None:
    """R2."""
    assert told(bus, "messages.mjs", "competing") == {"all": list(range(60)), "both": True}


def test_d5_expiry(bus: Bus) -> None:
    """D5 D3."""
    expected = {"empty": True, "reason": "TTLExpiredException"}
    assert told(bus, "messages.mjs", "expiry") == expected


def test_e9_forwarding(bus: Bus) -> None:
    """E9 D8."""
    assert told(bus, "messages.mjs", "forwarding") == {
        "arrived": ["a"],
        "refused": "GeneralError",
        "dead": ["b", "MessagingEntityNotFound"],
    }


def test_e5_peeking(bus: Bus) -> None:
    """E5: with and without bodies."""
    assert told(bus, "messages.mjs", "peeking") == {
        "bodies": ["a", "b"],
        "states": ["active", "active"],
        "bare": [None, None],
    }


def test_e6_hand_over(bus: Bus) -> None:
    """E6: a session goes from one receiver to another with its state."""
    assert told(bus, "sessions.mjs", "handOver") == {
        "taken": "SessionCannotBeLocked",
        "id": "job",
        "state": {"done": 1},
        "cleared": None,
        "bodies": [2, 3],
    }


def test_e6_a_lost_session(bus: Bus) -> None:
    """E6 R5: the handler is told; the settlement fails; the next holder gets the message."""
    assert told(bus, "sessions.mjs", "lost") == {
        "told": "SessionLockLost",
        "settled": "SessionLockLost",
        "body": "a",
        "deliveryCount": 1,
    }


def test_e6_r6_a_renewed_session(bus: Bus) -> None:
    """E6 R6: the SDK renews by itself past the first end."""
    assert told(bus, "sessions.mjs", "renewed") == {"prolonged": True}


def test_e6_misfits(bus: Bus) -> None:
    """E6 S2: whatever refuses a named session, the SDK says that it cannot be locked."""
    assert told(bus, "sessions.mjs", "misfits") == {
        "noSessionId": "GeneralError",
        "noSessions": "SessionCannotBeLocked",
        "noSession": "GeneralError",
    }


def test_s2_unknown_entities(bus: Bus) -> None:
    """S2 E1."""
    assert told(bus, "errors.mjs", "unknown") == {
        "send": "MessagingEntityNotFound",
        "receive": "MessagingEntityNotFound",
        "subscription": "MessagingEntityNotFound",
        "topicAsQueue": "GeneralError",
    }


def test_e4_sizes(bus: Bus) -> None:
    """E4 S2."""
    assert told(bus, "errors.mjs", "sizes") == {
        "message": "MessageSizeExceeded",
        "limit": 262144,
        "fits": False,
    }


def test_e11_quota(bus: Bus) -> None:
    """E11."""
    assert told(bus, "errors.mjs", "quota") == {"code": "QuotaExceeded", "full": True}


def test_e3_disabled(bus: Bus) -> None:
    """E3 S2."""
    disabled = "MessagingEntityDisabled"
    assert told(bus, "errors.mjs", "disabled") == {"send": disabled, "receive": disabled}


def test_s2_rights(bus: Bus) -> None:
    """S2: claims of an entity's policies, a bad key, an expired token."""
    refused = "UnauthorizedAccess"
    assert told(bus, "errors.mjs", "rights") == {
        "send": [None, refused],
        "listen": [refused, None],
        "manage": [None, None],
        "bad key": [refused, refused],
        "expired": [refused, refused],
    }


def test_s2_administration(bus: Bus) -> None:
    """S2 E1 E8: each refusal of the admin API by its code."""
    assert told(bus, "errors.mjs", "administration") == {
        "unauthorized": "UnauthorizedRequestError",
        "missing": "MessageEntityNotFoundError",
        "exists": "MessageEntityAlreadyExistsError",
        "badValue": "ServiceError",
        "badFilter": "ServiceError",
        "gone": "MessageEntityNotFoundError",
    }


def test_s2_the_connection_goes_on(bus: Bus) -> None:
    """S2: one connection for everything; a refused link does not hurt it."""
    assert told(bus, "errors.mjs", "goesOn") == "after"


def test_e3_queues(bus: Bus) -> None:
    """E1 E3: made, read, changed, listed, deleted through the admin client."""
    assert told(bus, "administration.mjs", "queues") == {
        "lockDuration": "PT45S",
        "requiresSession": True,
        "timeToLive": "PT1H",
        "userMetadata": "žluťoučký <&>",
        "updated": 8,
        "exists": [True, False],
        "listed": True,
    }


def test_e3_counts(bus: Bus) -> None:
    """E3: current at once: active, scheduled, dead-letter, total."""
    assert told(bus, "administration.mjs", "counts") == [2, 1, 1, 4]


def test_e8_rules_through_the_admin_client(bus: Bus) -> None:
    """E8."""
    assert told(bus, "administration.mjs", "rules") == {
        "names": ["$Default", "correlation", "sql"],
        "sql": ["a = @p", {"@p": 1}, "SET b = 2"],
        "correlation": ["s", {"text": "t", "number": 1.5, "yes": True}],
        "subscriptions": 1,
    }


def test_namespace(bus: Bus) -> None:
    """WIRE 13."""
    assert told(bus, "administration.mjs", "namespace") == ["localhost", "Standard"]


def test_amqps(bus: Bus) -> None:
    """S1 R4: TLS with the broker's own certificate."""
    assert told(bus, "administration.mjs", "tls") == [1, 200_000]


def test_amqp_over_websocket(bus: Bus) -> None:
    """S1 R4: wss on the admin port."""
    assert told(bus, "administration.mjs", "webSocket") == [1, 200_000]
