"""Every `$management` operation, type by type, through qpid-proton (WIRE section 8)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from proton import Described, Message, int32, symbol, timestamp, uint, ulong
from proton.utils import BlockingReceiver

from tests.compat.whole.kit import (
    DEAD_LETTER,
    Bus,
    assert_empty,
    bodies,
    drain,
    ids,
    reason,
    receiver_of,
    send,
    session_filter,
    take_one,
)
from tests.compat.whole.raw import Management, longs, messages_in, tokens

SEQUENCE = symbol("x-opt-sequence-number")
STATE = symbol("x-opt-message-state")
TOKEN = symbol("x-opt-lock-token")
NO_FILTER = timestamp(253_402_300_800_000)


@contextmanager
def managed(bus: Bus, path: str) -> Iterator[Management]:
    with bus.proton() as connection:
        yield Management(connection, path)


@contextmanager
def locked(
    bus: Bus, queue: str, count: int, session_id: str | None = None
) -> Iterator[tuple[Management, list[uuid.UUID], BlockingReceiver]]:
    """The management node, and the lock tokens of the first messages."""
    with bus.proton() as connection:
        options = None if session_id is None else session_filter(session_id)
        receiver = connection.create_receiver(queue, options=options)
        held = [receiver.receive() for _ in range(count)]
        found = [message.instructions[TOKEN] for message in held]
        yield Management(connection, queue), found, receiver


def test_it_outlives_the_entity_it_was_opened_for(bus: Bus, client: ServiceBusClient) -> None:
    """E1: clients keep these links for as long as they live, and share them."""
    queue = bus.queue()
    ask = {"from-sequence-number": 1, "message-count": int32(10)}
    with managed(bus, queue) as management, bus.administration() as admin:
        assert management.ask("peek-message", ask).status == 204
        admin.delete_queue(queue)
        assert management.ask("peek-message", ask).status == 404
        admin.create_queue(queue)
        send(client, queue, "a")
        assert len(messages_in(management.ask("peek-message", ask))) == 1


# --- locks and settlement -------------------------------------------------------------


def test_renew_lock(bus: Bus, client: ServiceBusClient) -> None:
    """R6 R5: an array of timestamps in the order of the tokens; one lost token: 410."""
    queue = bus.queue()
    send(client, queue, "a", "b")
    with locked(bus, queue, 2) as (management, held, _):
        answer = management.ask("renew-lock", {"lock-tokens": tokens(*reversed(held))})
        assert answer.status == 200
        until = answer.body["expirations"].elements
        assert len(until) == 2
        assert all(isinstance(end, timestamp) and end > time.time() * 1000 for end in until)
        lost = management.ask("renew-lock", {"lock-tokens": tokens(held[0], uuid.uuid4())})
        assert (lost.status, lost.condition) == (410, "com.microsoft:message-lock-lost")
        assert "TrackingId:" in lost.text


@pytest.mark.parametrize("status", ["completed", "abandoned", "defered", "suspended"])
def test_update_disposition(bus: Bus, client: ServiceBusClient, status: str) -> None:
    """R4 R8 D2: by token, with properties; once only."""
    queue = bus.queue()
    send(client, queue, "a")
    with locked(bus, queue, 1) as (management, held, _):
        body: dict[str, Any] = {"disposition-status": status, "lock-tokens": tokens(*held)}
        if status == "suspended":
            body |= {"deadletter-reason": "unfit", "deadletter-description": "why"}
        if status != "completed":
            body |= {"properties-to-modify": {"tried": "once"}}
        assert management.ask("update-disposition", body).status == 200
        assert management.ask("update-disposition", body).status == 410
        if status == "defered":
            fetch = {"sequence-numbers": longs(1), "receiver-settle-mode": uint(0)}
            (message,) = messages_in(management.ask("receive-by-sequence-number", fetch))
            assert message.properties == {"tried": "once"}
    if status == "abandoned":
        (again,) = drain(client, queue, 1)
        assert (again.delivery_count, again.application_properties) == (1, {b"tried": b"once"})
    elif status == "suspended":
        (dead,) = drain(client, queue, 1, sub_queue=DEAD_LETTER)
        assert reason(dead) == ("unfit", "why")
        assert dead.application_properties[b"tried"] == b"once"
    assert_empty(client, queue)


def test_update_disposition_is_all_or_nothing(bus: Bus, client: ServiceBusClient) -> None:
    """R5: one lost lock among several, and none is settled; a token twice counts once."""
    queue = bus.queue()
    send(client, queue, "a", "b")
    with locked(bus, queue, 2) as (management, held, _):
        body = {"disposition-status": "completed", "lock-tokens": tokens(held[0], uuid.uuid4())}
        assert management.ask("update-disposition", body).status == 410
        body["lock-tokens"] = tokens(held[0], held[0], held[1])
        assert management.ask("update-disposition", body).status == 200
    assert_empty(client, queue)


def test_receive_by_sequence_number(bus: Bus, client: ServiceBusClient) -> None:
    """E5: with a lock (and its token and state) or without; missing numbers: 404."""
    queue = bus.queue(lock_duration=timedelta(seconds=5))
    send(client, queue, "a", "b")
    with locked(bus, queue, 2) as (management, held, _):
        body = {"disposition-status": "defered", "lock-tokens": tokens(*held)}
        assert management.ask("update-disposition", body).status == 200
        fetch = {"sequence-numbers": longs(1, 2), "receiver-settle-mode": uint(1)}
        answer = management.ask("receive-by-sequence-number", fetch)
        assert answer.status == 200
        first, second = messages_in(answer)
        assert (first.id, second.id) == ("a", "b")
        assert first.annotations[STATE] == 1
        assert first.delivery_count == 1
        assert first.instructions[TOKEN] == answer.body["messages"][0]["lock-token"]
        again = management.ask("receive-by-sequence-number", fetch)
        assert (again.status, again.condition) == (404, "com.microsoft:message-not-found")
        # When the lock runs out it is deferred, as before.
        time.sleep(5.3)
        fetch["receiver-settle-mode"] = uint(0)
        (a, b) = messages_in(management.ask("receive-by-sequence-number", fetch))
        assert (a.delivery_count, b.delivery_count) == (2, 2)
    assert_empty(client, queue)


# --- sessions -------------------------------------------------------------------------


def test_session_operations(bus: Bus, client: ServiceBusClient) -> None:
    """E6: renew, state, and what the holder has lost is refused."""
    queue = bus.queue(requires_session=True)
    send(client, queue, ServiceBusMessage("a", session_id="s"))
    with locked(bus, queue, 1, "s") as (management, held, receiver):
        renewed = management.ask("renew-session-lock", {"session-id": "s"})
        assert renewed.status == 200
        assert isinstance(renewed.body["expiration"], timestamp)
        state = {"session-id": "s", "session-state": b"\x01"}
        assert management.ask("set-session-state", state).status == 200
        found = management.ask("get-session-state", {"session-id": "s"})
        assert found.status == 200
        assert bytes(found.body["session-state"]) == b"\x01"
        state["session-state"] = None  # type: ignore[assignment]
        assert management.ask("set-session-state", state).status == 200
        found = management.ask("get-session-state", {"session-id": "s"})
        assert found.body == {"session-state": None}
        receiver.close()
        for operation in ("renew-session-lock", "set-session-state"):
            lost = management.ask(operation, {"session-id": "s", "session-state": b"x"})
            assert (lost.status, lost.condition) == (410, "com.microsoft:session-lock-lost")
        settle = {"disposition-status": "completed", "lock-tokens": tokens(*held)}
        lost = management.ask("update-disposition", settle)
        assert (lost.status, lost.condition) == (410, "com.microsoft:session-lock-lost")
    drain(client, queue, 1, session_id="s")


def test_deferred_messages_of_a_session_need_its_holder(bus: Bus, client: ServiceBusClient) -> None:
    """E5 E6: fetched under the session's lock, not without it."""
    queue = bus.queue(requires_session=True)
    send(client, queue, ServiceBusMessage("a", session_id="s", message_id="a"))
    with locked(bus, queue, 1, "s") as (management, held, receiver):
        settle = {"disposition-status": "defered", "lock-tokens": tokens(*held)}
        assert management.ask("update-disposition", settle).status == 200
        fetch = {"sequence-numbers": longs(1), "receiver-settle-mode": uint(1)}
        assert management.ask("receive-by-sequence-number", fetch).status == 400
        fetch |= {"session-id": "s"}
        (message,) = messages_in(management.ask("receive-by-sequence-number", fetch))
        assert message.id == "a"
        receiver.close()
        lost = management.ask("receive-by-sequence-number", fetch)
        assert (lost.status, lost.condition) == (410, "com.microsoft:session-lock-lost")


def test_get_message_sessions(bus: Bus, client: ServiceBusClient) -> None:
    """E6: in pages of at most 100; 204 when there is none."""
    queue = bus.queue(requires_session=True)
    names = [f"s{number:03}" for number in range(130)]
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage("a", session_id=name) for name in names])
    with managed(bus, queue) as management:
        found: list[str] = []
        while True:
            page = {"last-updated-time": NO_FILTER, "skip": int32(len(found)), "top": int32(100)}
            answer = management.ask("get-message-sessions", page)
            if answer.status == 204:
                break
            found += answer.body["sessions-ids"].elements
            assert answer.body["skip"] == len(found)
    assert found == names


# --- looking --------------------------------------------------------------------------


def test_peek_message(bus: Bus, client: ServiceBusClient) -> None:
    """E5: without lock token; without body on request; 204 when there is none."""
    queue = bus.queue()
    with managed(bus, queue) as management:
        ask = {"from-sequence-number": 1, "message-count": int32(10)}
        assert management.ask("peek-message", ask).status == 204
        send(client, queue, "a", "b")
        first, second = messages_in(management.ask("peek-message", ask))
        assert (first.id, second.id) == ("a", "b")
        assert first.annotations[SEQUENCE] == 1
        assert TOKEN not in (first.instructions or {})
        bare = messages_in(management.ask("peek-message", ask | {"omit-message-body": True}))
        assert [message.body for message in bare] == [None, None]
        assert bare[0].instructions[symbol("omitted-message-body-size")] > 0
        (last,) = messages_in(management.ask("peek-message", ask | {"from-sequence-number": 2}))
        assert last.id == "b"


def test_peek_a_session_without_holding_it(bus: Bus, client: ServiceBusClient) -> None:
    """E5 E6: a session's messages and state can be browsed."""
    queue = bus.queue(requires_session=True)
    for name in ("x", "y"):
        send(client, queue, ServiceBusMessage(name, session_id=name, message_id=name))
    with managed(bus, queue) as management:
        ask = {"from-sequence-number": 1, "message-count": int32(10), "session-id": "y"}
        (found,) = messages_in(management.ask("peek-message", ask))
        assert (found.id, found.group_id) == ("y", "y")
        state = management.ask("get-session-state", {"session-id": "y"})
        assert (state.status, state.body) == (200, {"session-state": None})


def test_only_the_holder_of_a_session_uses_its_lock(bus: Bus, client: ServiceBusClient) -> None:
    """E6 R6: whoever else asks has lost the session, or never had it."""
    queue = bus.queue(requires_session=True)
    send(client, queue, ServiceBusMessage("x", session_id="x"))
    holder = client.get_queue_receiver(queue, session_id="x")
    with holder, managed(bus, queue) as management:
        (message,) = holder.receive_messages(max_wait_time=10)
        holder.defer_message(message)
        fetch = {"sequence-numbers": longs(message.sequence_number or 0)}
        for operation, more in (
            ("renew-session-lock", {}),
            ("set-session-state", {"session-state": b"theirs"}),
            ("receive-by-sequence-number", fetch | {"receiver-settle-mode": uint(1)}),
        ):
            answer = management.ask(operation, {"session-id": "x", **more})
            assert (answer.status, answer.condition) == (410, "com.microsoft:session-lock-lost"), (
                operation
            )
        named = {"associated-link-name": "a-link-of-another"}
        assert management.ask("get-session-state", {"session-id": "x"}, named).status == 410
        holder.session.set_state(b"mine")
        assert holder.session.get_state() == b"mine"
        holder.session.renew_lock()
        (again,) = holder.receive_deferred_messages([message.sequence_number])
        holder.complete_message(again)


# --- scheduling -----------------------------------------------------------------------


def test_schedule_and_cancel(bus: Bus, client: ServiceBusClient) -> None:
    """E5: on a queue's and on a topic's node."""
    due = timestamp(int(time.time() * 1000) + 60_000)
    message = Message(id="a", body="a", annotations={symbol("x-opt-scheduled-enqueue-time"): due})
    entry = {"message-id": "a", "message": message.encode()}
    for path in (bus.queue(), bus.topic()):
        with managed(bus, path) as management:
            answer = management.ask("schedule-message", {"messages": [entry, entry]})
            assert answer.status == 200
            numbers = answer.body["sequence-numbers"].elements
            assert len(set(numbers)) == 2
            ask = {"from-sequence-number": 1, "message-count": int32(10)}
            states = [
                m.annotations[STATE] for m in messages_in(management.ask("peek-message", ask))
            ]
            assert states == [2, 2]
            cancel = {"sequence-numbers": longs(*numbers)}
            assert management.ask("cancel-scheduled-message", cancel).status == 200
            again = management.ask("cancel-scheduled-message", cancel)
            assert (again.status, again.condition) == (404, "com.microsoft:message-not-found")


def test_scheduling_what_is_too_large(bus: Bus) -> None:
    """E4 S2."""
    with managed(bus, bus.queue()) as management:
        large = Message(id="a", body="x" * 300_000).encode()
        entry = {"message-id": "a", "message": large}
        answer = management.ask("schedule-message", {"messages": [entry]})
        assert (answer.status, answer.condition) == (403, "amqp:link:message-size-exceeded")


# --- rules ----------------------------------------------------------------------------

SQL = {"sql-filter": {"expression": "a > 1"}, "sql-rule-action": {"expression": "SET b = 2"}}
CORRELATION = {
    "correlation-filter": {
        "correlation-id": "c",
        "label": "l",
        "to": None,
        "properties": {"text": "t", "whole": int32(3), "yes": True},
    }
}


def test_rules(bus: Bus, client: ServiceBusClient) -> None:
    """E8: added, listed with their described types, paged, removed."""
    topic = bus.topic()
    sub = bus.subscription(topic)
    with managed(bus, f"{topic}/Subscriptions/{sub}") as management:
        for name, rule in (("sql", SQL), ("correlation", CORRELATION)):
            body = {"rule-name": name, "rule-description": rule}
            assert management.ask("add-rule", body).status == 200
            twice = management.ask("add-rule", body)
            assert (twice.status, twice.condition) == (
                409,
                "com.microsoft:entity-already-exists",
            )
        answer = management.ask("enumerate-rules", {"top": int32(10), "skip": int32(0)})
        rules = {
            r["rule-description"].value[2]: r["rule-description"] for r in answer.body["rules"]
        }
        assert sorted(rules) == ["$Default", "correlation", "sql"]
        assert all(rule.descriptor == ulong(0x0000013700000004) for rule in rules.values())
        assert rules["$Default"].value[0] == Described(ulong(0x1370000007), [])
        assert rules["sql"].value[0].value[0] == "a > 1"
        assert rules["sql"].value[1].value[0] == "SET b = 2"
        wanted = ["c", None, None, None, "l", None, None, None]
        assert rules["correlation"].value[0].value[:8] == wanted
        assert rules["correlation"].value[0].value[8] == {"text": "t", "whole": 3, "yes": True}
        page = management.ask("enumerate-rules", {"top": int32(2), "skip": int32(2)})
        assert len(page.body["rules"]) == 1
        assert management.ask("enumerate-rules", {"top": int32(2), "skip": int32(3)}).status == 204
        assert management.ask("remove-rule", {"rule-name": "$Default"}).status == 200
        missing = management.ask("remove-rule", {"rule-name": "$Default"})
        assert missing.status == 404
    for number in (1, 2):
        send(client, topic, ServiceBusMessage(str(number), application_properties={"a": number}))
    send(
        client,
        topic,
        ServiceBusMessage(
            "c",
            subject="l",
            correlation_id="c",
            application_properties={"text": "t", "whole": 3, "yes": True},
        ),
    )
    assert bodies(drain(client, f"{topic}/{sub}", 2)) == ["2", "c"]


def test_a_bad_rule_is_refused(bus: Bus) -> None:
    """E8 S2: with the position of the fault."""
    topic = bus.topic()
    sub = bus.subscription(topic)
    with managed(bus, f"{topic}/Subscriptions/{sub}") as management:
        bad = {"rule-name": "r", "rule-description": {"sql-filter": {"expression": "a >"}}}
        answer = management.ask("add-rule", bad)
        assert (answer.status, answer.condition) == (400, "com.microsoft:argument-error")
        assert "position" in answer.text


# --- deleting in bulk -----------------------------------------------------------------


def test_batch_delete(bus: Bus, client: ServiceBusClient) -> None:
    """WIRE 8: up to a count, enqueued before a time; locked ones stay; 204 when none is left."""
    queue = bus.queue()
    send(client, queue, "locked", "a", "b", "c")
    time.sleep(0.01)
    now = timestamp(int(time.time() * 1000))
    with locked(bus, queue, 1) as (management, _, receiver):
        early = {"message-count": int32(10), "enqueued-time-utc": timestamp(1_000_000)}
        none = management.ask("batch-delete-messages", early)
        assert (none.status, none.condition) == (204, "com.microsoft:message-not-found")
        some = {"message-count": int32(2), "enqueued-time-utc": now}
        answer = management.ask("batch-delete-messages", some)
        assert (answer.status, answer.body) == (200, {"message-count": 2})
        assert management.ask("batch-delete-messages", some).body == {"message-count": 1}
        receiver.release(delivered=False)
    assert ids(drain(client, queue, 1)) == ["locked"]


# --- the frame ------------------------------------------------------------------------


def test_unknown_operations_and_bad_bodies(bus: Bus) -> None:
    """S2: 501 or 400 with condition and tracking id; the node goes on answering."""
    with managed(bus, bus.queue()) as management:
        unknown = management.ask("no-such-operation", {})
        assert (unknown.status, unknown.condition) == (501, "amqp:not-implemented")
        tracked = management.ask(
            "renew-lock",
            {"lock-tokens": tokens(uuid.uuid4())},
            {"com.microsoft:tracking-id": "mine", "associated-link-name": "x"},
        )
        assert tracked.tracking_id == "mine"
        for operation, body in (
            ("renew-lock", {}),
            ("renew-lock", {"lock-tokens": ["no uuid"]}),
            ("renew-lock", "no map"),
            ("peek-message", {"from-sequence-number": "x", "message-count": 1}),
            ("peek-message", {"from-sequence-number": 1, "message-count": float("inf")}),
            ("schedule-message", {"messages": [{"message": 10**9}]}),
            ("schedule-message", {"messages": [{"message": b"\x00"}]}),
            ("schedule-message", {"messages": "abc"}),
            ("update-disposition", {"disposition-status": "burnt", "lock-tokens": tokens()}),
            ("receive-by-sequence-number", {"sequence-numbers": longs(1)}),
            ("cancel-scheduled-message", {"sequence-numbers": [None]}),
            ("get-message-sessions", {"last-updated-time": None}),
            ("batch-delete-messages", {"message-count": 1, "enqueued-time-utc": "now"}),
        ):
            answer = management.ask(operation, body)
            assert answer.status == 400, (operation, body, answer)
            assert answer.condition
            assert "TrackingId:" in answer.text
        ask = {"from-sequence-number": 1, "message-count": int32(1)}
        assert management.ask("peek-message", ask).status == 204


def test_what_a_node_does_not_have(bus: Bus) -> None:
    """S2: rules of a queue, messages of a topic, sessions where there are none."""
    with managed(bus, bus.queue()) as management:
        rules = management.ask("enumerate-rules", {"top": int32(1), "skip": int32(0)})
        assert (rules.status, rules.condition) == (400, "amqp:not-allowed")
        assert management.ask("renew-session-lock", {"session-id": "s"}).status == 410
    with managed(bus, bus.topic()) as management:
        fetch = {"sequence-numbers": longs(1), "receiver-settle-mode": uint(1)}
        assert management.ask("receive-by-sequence-number", fetch).status == 400


def test_every_node_of_a_subqueue(bus: Bus, client: ServiceBusClient) -> None:
    """E2 R6: peek and renew in the dead-letter queue over its own node."""
    queue = bus.queue()
    send(client, queue, "a")
    with receiver_of(client, queue) as receiver:
        receiver.dead_letter_message(take_one(receiver))
    with locked(bus, f"{queue}/$DeadLetterQueue", 1) as (management, held, _):
        assert management.ask("renew-lock", {"lock-tokens": tokens(*held)}).status == 200
        ask = {"from-sequence-number": 1, "message-count": int32(5)}
        assert [m.id for m in messages_in(management.ask("peek-message", ask))] == ["a"]
