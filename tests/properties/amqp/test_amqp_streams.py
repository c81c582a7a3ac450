"""Recorded clients, cut anywhere and damaged anywhere.

However a transport cuts a stream, the same calls and the same answers come of it; and
whatever a stranger makes of one, the engine neither raises nor hangs nor answers with
anything but frames.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from amqp_client import Peer
from amqp_scribe import NOW_MS, Scribe, server_connection
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinbus.amqp.connection import NEVER_MS, Connection

FOLDER = Path(__file__).parents[2] / "vectors" / "amqp"
STREAMS = {path.stem: path.read_bytes() for path in sorted(FOLDER.glob("*.bin"))}
NAMES = sorted(STREAMS)


def play(pieces: list[bytes]) -> tuple[list[dict[str, Any]], bytes, Connection]:
    scribe = Scribe()
    connection = server_connection(scribe)
    output = b""
    for piece in pieces:
        connection.receive(piece, NOW_MS)
        output += connection.take_output()
    return scribe.calls, output, connection


def frame_starts(stream: bytes) -> list[int]:
    starts: list[int] = []
    pos = 0
    while pos < len(stream):
        starts.append(pos)
        is_header = stream[pos : pos + 4] == b"AMQP"
        pos += 8 if is_header else int.from_bytes(stream[pos : pos + 4], "big")
    return starts


@pytest.mark.parametrize("name", NAMES)
def test_one_byte_at_a_time(name: str) -> None:
    stream = STREAMS[name]
    pieces = [stream[i : i + 1] for i in range(len(stream))]
    assert play(pieces)[:2] == play([stream])[:2]


@pytest.mark.parametrize("name", NAMES)
def test_every_split_in_two(name: str) -> None:
    """Every position in and around each frame's head, and every one of short streams."""
    stream = STREAMS[name]
    whole = play([stream])[:2]
    positions = {start + i for start in frame_starts(stream) for i in range(-2, 40)}
    if len(stream) < 2000:
        positions = set(range(len(stream)))
    for position in sorted(positions):
        assert play([stream[: max(position, 0)], stream[max(position, 0) :]])[:2] == whole


@given(st.sampled_from(NAMES), st.lists(st.integers(0, 12_000), max_size=12))
@settings(deadline=None)
def test_any_cuts(name: str, cuts: list[int]) -> None:
    stream = STREAMS[name]
    bounds = [0, *sorted(cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(bounds)]
    assert play(pieces)[:2] == play([stream])[:2]


def check_survived(pieces: list[bytes]) -> None:
    calls, output, connection = play(pieces)
    if connection.finished:
        assert calls[-1]["call"] == "close"
        assert connection.deadline_ms() == NEVER_MS
    # Our answers are frames that a client can read.
    reader = Peer()
    reader.server.output.append(output)
    reader.read()
    connection.abort()
    assert len([call for call in calls if call["call"] == "close"]) == 1
    attached = [call["handle"] for call in calls if call["call"] == "attach"]
    assert len([call for call in calls if call["call"] == "detach"]) == len(attached)


mutations = st.lists(
    st.tuples(st.sampled_from(["flip", "set", "drop", "insert", "repeat"]), st.integers(0, 2**20)),
    min_size=1,
    max_size=6,
)


def damage(data: bytes, changes: list[tuple[str, int]]) -> bytes:
    damaged = bytearray(data)
    for kind, seed in changes:
        at = seed % max(len(damaged), 1)
        if kind == "flip" and damaged:
            damaged[at] ^= 1 << (seed >> 16) % 8
        elif kind == "set" and damaged:
            damaged[at] = (seed >> 8) & 0xFF
        elif kind == "drop":
            del damaged[at : at + 1 + (seed >> 16) % 4]
        elif kind == "insert":
            damaged[at:at] = bytes([(seed >> 8) & 0xFF] * (1 + (seed >> 16) % 4))
        else:
            damaged[at:at] = damaged[at : at + 64]
    return bytes(damaged)


@given(st.sampled_from(NAMES), mutations)
@settings(deadline=None)
def test_damaged_streams(name: str, changes: list[tuple[str, int]]) -> None:
    check_survived([damage(STREAMS[name], changes)])


@example("azure-delete", 89, [("set", 19985)])  # in a part of a source that is only sent back
@given(st.sampled_from(NAMES), st.integers(0, 1000), mutations)
@settings(deadline=None, max_examples=400)
def test_damage_inside_one_frame(name: str, which: int, changes: list[tuple[str, int]]) -> None:
    """The frame's size is put right afterwards, so that its body is really read."""
    stream = STREAMS[name]
    starts = [*frame_starts(stream), len(stream)]
    index = 1 + which % (len(starts) - 2)
    start, end = starts[index], starts[index + 1]
    body = damage(stream[start + 8 : end], changes)
    head = (len(body) + 8).to_bytes(4, "big") + stream[start + 4 : start + 8]
    if stream[start : start + 4] == b"AMQP":
        head = stream[start : start + 8]
    check_survived([stream[:start], head + body, stream[end:]])


@given(st.sampled_from(NAMES), st.permutations(range(30)))
@settings(deadline=None)
def test_frames_in_another_order(name: str, order: list[int]) -> None:
    stream = STREAMS[name]
    starts = [*frame_starts(stream), len(stream)]
    frames = [stream[a:b] for a, b in pairwise(starts)]
    # The handshake stays, or nothing is ever read.
    shuffled = frames[:4] + [frames[4 + i] for i in order if 4 + i < len(frames)]
    check_survived(shuffled)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes(data: bytes) -> None:
    check_survived([data])
    check_survived([b"AMQP\x00\x01\x00\x00", data])
    check_survived([b"AMQP\x03\x01\x00\x00", data])
