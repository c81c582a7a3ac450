"""Replays what real clients sent: the engine must read the same meaning out of it.

Three clients that share no code: the Python SDK, qpid-proton and rhea. `record_amqp.py`
makes the recordings; qpid-proton's own decoder is the second opinion on the messages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from amqp_scribe import NOW_MS, Scribe, meaning, server_connection
from proton import Message

from twinbus.amqp.codec import decode, encode
from twinbus.amqp.connection import Connection
from twinbus.amqp.link import Link
from twinbus.amqp.types import Described

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.bin"))


def replay(name: str) -> Scribe:
    scribe = Scribe()
    connection = server_connection(scribe)
    connection.receive((FOLDER / f"{name}.bin").read_bytes(), NOW_MS)
    assert connection.finished
    return scribe


def of(scribe: Scribe, call: str) -> list[dict[str, Any]]:
    return [entry for entry in scribe.calls if entry["call"] == call]


def test_three_independent_clients_are_recorded() -> None:
    assert {name.split("-")[0] for name in NAMES} == {"azure", "proton", "rhea"}


@pytest.mark.parametrize("name", NAMES)
def test_recorded_bytes_keep_their_meaning(name: str) -> None:
    expected = json.loads((FOLDER / f"{name}.json").read_text())
    assert replay(name).calls == expected["calls"]


@pytest.mark.parametrize("name", ["azure-send", "proton-both", "rhea-both"])
def test_sent_messages_are_what_the_client_was_told(name: str) -> None:
    """E4: ids, subject, typed application properties and body come through."""
    sent = [call["messages"] for call in of(replay(name), "transfer")]
    sent = [messages for messages in sent if "Shared" not in str(messages[0]["body"])]
    first, last = sent[0][0], sent[-1][0]
    assert first["message_id"] == "one"
    assert first["subject"] == "greeting"
    # Each client has its own idea of the type of 7: int, long, uint.
    assert "7" in first["application_properties"]["number"].values()
    assert first["body"] in ("hello", {"binary": "hello"})
    assert last["message_id"] == "large"
    assert last["body"] == "10000 long"


def test_the_sdk_batch_is_taken_apart() -> None:
    """S6: a batch is one transfer that holds whole messages."""
    batch = [call for call in of(replay("azure-send"), "transfer") if call["batch"]]
    assert [message["message_id"] for message in batch[0]["messages"]] == [
        "item-0",
        "item-1",
        "item-2",
    ]


@pytest.mark.parametrize(
    ("name", "kinds", "settled"),
    [
        ("azure-receive", {1: "0x24", 2: "0x27", 3: "0x25", 4: "0x27"}, False),
        ("proton-both", {1: "0x24", 2: "0x25", 3: "0x27", 4: "0x24"}, True),
        ("rhea-both", {1: "0x24", 2: "0x27", 3: "0x25", 4: "0x26"}, False),
    ],
)
def test_outcomes_are_what_the_client_was_told(
    name: str, kinds: dict[int, str], settled: bool
) -> None:
    """R4: each settlement of a client arrives as its outcome, the fifth message stays open."""
    scribe = replay(name)
    outcomes = of(scribe, "outcome")
    assert {call["message"]: call["kind"] for call in outcomes} == kinds
    assert {call["settled"] for call in outcomes} == {settled}
    assert [5] in [call["unsettled"] for call in of(scribe, "detach")]


def test_dead_letter_reason_of_the_sdk() -> None:
    """R4, D2: reason and description travel in the error's info."""
    rejected = [call for call in of(replay("azure-receive"), "outcome") if call["info"]]
    assert rejected[0]["condition"] == "com.microsoft:dead-letter"
    assert rejected[0]["info"] == {
        "DeadLetterReason": "why",
        "DeadLetterErrorDescription": "because",
    }


def test_abandon_and_defer_differ_by_undeliverable_here() -> None:
    outcomes = {call["message"]: call for call in of(replay("azure-receive"), "outcome")}
    assert outcomes[2]["undeliverable_here"] is False
    assert outcomes[4]["undeliverable_here"] is True


def test_plain_user_of_rhea() -> None:
    scribe = replay("rhea-both")
    assert scribe.calls[0] == {"call": "sasl_plain", "user": "user", "password": "secret"}
    assert of(scribe, "open")[0]["user"] == "user"


class Keeper(Scribe):
    """Also keeps the raw payloads."""

    def __init__(self) -> None:
        super().__init__()
        self.payloads: list[bytes] = []

    def on_transfer(
        self,
        link: Link,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
        txn_id: bytes | None,
    ) -> None:
        self.payloads.append(payload)
        super().on_transfer(link, delivery_id, tag, message_format, settled, payload, txn_id)


def kept_payloads(name: str) -> list[bytes]:
    keeper = Keeper()
    connection: Connection = server_connection(keeper)
    connection.receive((FOLDER / f"{name}.bin").read_bytes(), NOW_MS)
    return keeper.payloads


@pytest.mark.parametrize("name", ["azure-send", "proton-both", "rhea-both"])
def test_payloads_agree_with_another_decoder(name: str) -> None:
    """The reassembled payload means to qpid-proton what it means to us."""
    for payload in kept_payloads(name):
        theirs = Message()
        theirs.decode(payload)

        ours = meaning(payload)
        assert str(theirs.id) in str(ours["message_id"])
        assert theirs.subject == ours["subject"]
        assert theirs.group_id == ours["group_id"]
        assert set(theirs.properties or {}) == set(ours["application_properties"] or {})


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_value_survives_a_round_trip(name: str) -> None:
    """What we decode we encode as the same types; meaning is compared, not bytes."""
    data = (FOLDER / f"{name}.bin").read_bytes()
    pos = 0
    while pos < len(data):
        if data[pos : pos + 4] == b"AMQP":
            pos += 8
            continue
        size = int.from_bytes(data[pos : pos + 4], "big")
        at = pos + 8
        while at < pos + size:
            value, at = decode(data[: pos + size], at)
            assert isinstance(value, Described)
            again, _ = decode(encode(value))
            assert repr(again) == repr(value)
            if value.descriptor == 0x14:
                break
        pos += size
