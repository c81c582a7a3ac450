"""The entities that a run of the model begins with: small groups, each with its own theme.

Every layout has a queue `sink`, to which others are made to forward.
"""

from __future__ import annotations

from naive_entities import Described

from twinbus.core.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)

#: A description and, for a subscription, the rule that it begins with.
Made = tuple[Described, str | None]

_LOCK_MS = 5_000


def _queue(name: str, **settings: object) -> Made:
    given = {"lock_duration_ms": _LOCK_MS, "max_delivery_count": 2, **settings}
    return QueueDescription(name, **given), None  # type: ignore[arg-type]


def _topic(name: str, **settings: object) -> Made:
    return TopicDescription(name, **settings), None  # type: ignore[arg-type]


def _subscription(topic: str, name: str, rule: str | None = None, **settings: object) -> Made:
    given = {"lock_duration_ms": _LOCK_MS, "max_delivery_count": 2, **settings}
    return SubscriptionDescription(topic, name, **given), rule  # type: ignore[arg-type]


_SINK = _queue("sink", max_delivery_count=3)
_EXPIRING = {
    "default_message_time_to_live_ms": 3_000,
    "dead_lettering_on_message_expiration": True,
}
_ONCE = {
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window_ms": 20_000,
}

LAYOUTS: dict[str, list[Made]] = {
    "one queue": [_SINK],
    "sessions": [_SINK, _queue("talks", requires_session=True)],
    "queues": [
        _SINK,
        _queue("brief", **_EXPIRING),
        _queue("fleeting", default_message_time_to_live_ms=2_000),
        _queue("once", **_ONCE),
    ],
    "more sessions": [
        _SINK,
        _queue("talks", requires_session=True, max_delivery_count=3),
        _queue("chats", requires_session=True, **_EXPIRING),
        _topic("news"),
        _subscription("news", "threads", requires_session=True),
        _subscription("news", "copies", forward_to="talks"),
    ],
    "topic": [
        _SINK,
        _topic("news"),
        _subscription("news", "all"),
        _subscription("news", "some", "red"),
        _subscription("news", "halved", "divides"),
        _subscription(
            "news", "lenient", "divides", dead_lettering_on_filter_evaluation_exceptions=False
        ),
        _subscription("news", "marked", "mark"),
    ],
    "topic that forwards": [
        _SINK,
        _topic("news", default_message_time_to_live_ms=5_000, **_ONCE),
        _subscription("news", "on", forward_to="sink"),
        _subscription("news", "red", "red", forward_to="sink", **_EXPIRING),
        _subscription("news", "dead", "share", forward_dead_lettered_messages_to="sink"),
    ],
    "forwarding": [
        _SINK,
        _queue("hop5", forward_to="sink"),
        _queue("hop4", forward_to="hop5"),
        _queue("hop3", forward_to="hop4"),
        _queue("hop2", forward_to="hop3"),
        _queue("hop1", forward_to="hop2", default_message_time_to_live_ms=4_000),
        _queue("graves", forward_dead_lettered_messages_to="hop4", **_EXPIRING),
    ],
    "circle": [
        _SINK,
        _topic("news"),
        _subscription("news", "again", forward_to="news"),
        _subscription("news", "kept", "red"),
        _queue("in", forward_to="news", forward_dead_lettered_messages_to="sink"),
    ],
    "forwarding to once": [
        _SINK,
        _queue("once", **_ONCE),
        _queue("in", forward_to="once"),
        _topic("news", **_ONCE),
        _subscription("news", "on", forward_to="in"),
        _subscription("news", "too", forward_to="once"),
        _subscription("news", "again", "red", forward_to="news"),
        _subscription("news", "dead", "share", forward_dead_lettered_messages_to="in"),
    ],
    "circle of the dead": [
        _SINK,
        _topic("news"),
        _queue("in", forward_to="news"),
        _subscription(
            "news", "threads", requires_session=True, forward_dead_lettered_messages_to="news"
        ),
        _subscription("news", "halved", "divides", forward_dead_lettered_messages_to="in"),
        _subscription("news", "kept", "red"),
    ],
    "full": [_SINK, _queue("small", max_size_in_megabytes=1), _queue("in", forward_to="small")],
}
