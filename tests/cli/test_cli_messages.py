"""Sending, receiving, peeking, dead letters, export and import (E4, E5, R4, D2)."""

import json
import os
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.cli.command_line import CommandLine
from tests.support.broker import Broker
from tests.support.queues import QueuePool
from twinbus.amqp.codec import encode, encode_map
from twinbus.cli.dead_letter import Wanted, send_again
from twinbus.cli.remote import Remote
from twinbus.client import Client


def bodies(run: CommandLine, entity: str, *options: str) -> list[object]:
    found = run("peek", entity, "--all", "--json", *options).lines
    return [message["body"] for message in found]


def test_messages_from_arguments_files_lines_and_stdin(
    run: CommandLine, queue: str, tmp_path: Path
) -> None:
    file, lines = tmp_path / "body.bin", tmp_path / "lines.jsonl"
    file.write_bytes(b"\xff\x00")
    given = [
        {"body": {"json": {"n": 1}}, "message_id": "one", "time_to_live": "PT1H"},
        {"body": "second", "subject": "own", "application_properties": {"n": {"int": 7}}},
    ]
    lines.write_text("".join(json.dumps(line) + "\n" for line in given))
    options = ("--subject", "common", "--property", "by=test")
    sent = run(
        "send", queue, "first", "-", "--file", str(file), "--lines", str(lines), *options,
        "--json", stdin="piped",
    )  # fmt: skip
    assert sent.json == {"sent": 5}
    got = run("peek", queue, "--all", "--json").lines
    assert [message["body"] for message in got] == [
        "first", "piped", {"binary": "/wA="}, '{"n": 1}', "second"
    ]  # fmt: skip
    assert [message["subject"] for message in got] == ["common"] * 4 + ["own"]
    assert got[3]["message_id"] == "one"
    assert got[3]["time_to_live"] == "PT1H"
    assert got[4]["application_properties"] == {"by": "test", "n": {"int": 7}}


def test_receive_prints_then_settles(run: CommandLine, queue: str) -> None:
    """R4: complete, abandon, defer and dead-letter; each is what it says."""
    run("send", queue, "a", "b", "c", "d")
    first = run("receive", queue, "--json").lines
    assert [message["body"] for message in first] == ["a"]
    assert run("receive", queue, "--settle", "defer").out.endswith("b\n")
    run("receive", queue, "--settle", "dead-letter")
    abandoned = run("receive", queue, "--all", "--wait", "1", "--settle", "abandon", "--json").lines
    assert [message["body"] for message in abandoned] == ["d"]
    assert bodies(run, queue) == ["b", "d"]
    assert bodies(run, queue, "--state", "deferred") == ["b"]
    assert bodies(run, queue, "--state", "active") == ["d"]
    assert bodies(run, f"{queue}/$DeadLetterQueue") == ["c"]


def test_peek_by_state_and_of_a_session(
    run: CommandLine, queue: str, session_queue: str, broker: Broker
) -> None:
    """E5, E6: scheduled and locked messages, and a session's, which no receiver can browse."""
    run("send", queue, "later", "--schedule", "PT1H")
    run("send", queue, "now")
    assert bodies(run, queue, "--state", "scheduled") == ["later"]
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        assert len(receiver.receive_messages(1, max_wait_time=5)) == 1
        assert bodies(run, queue, "--state", "locked") == ["now"]
    run("send", session_queue, "mine", "--session-id", "s1")
    run("send", session_queue, "other", "--session-id", "s2")
    assert bodies(run, session_queue, "--session", "s1") == ["mine"]
    got = run("receive", session_queue, "--session", "s2", "--json").lines
    assert [message["session_id"] for message in got] == ["s2"]


def test_dead_letters_are_listed_resubmitted_and_purged(run: CommandLine, queue: str) -> None:
    """D2: with the reason; one that is resubmitted has forgotten it."""
    run("send", queue, "a", "b", "--property", "kept=yes")
    run("receive", queue, "-n", "2", "--settle", "dead-letter")
    dead = run("dead-letter", "list", queue, "--json").lines
    reasons = {message["application_properties"]["DeadLetterReason"] for message in dead}
    assert reasons == {"DeadLetteredByOperator"}
    assert "reason=DeadLetteredByOperator" in run("dead-letter", "list", queue).out
    assert run("dead-letter", "list", queue, "--reason", "other").out == ""
    number = str(dead[0]["sequence_number"])
    moved = run("dead-letter", "resubmit", queue, "--sequence-number", number, "--json").json
    assert moved == {"resubmitted": 1, "atomic": True}
    back = run("peek", queue, "--json").lines
    assert [message["body"] for message in back] == ["a"]
    assert back[0]["application_properties"] == {"kept": "yes"}
    assert run("dead-letter", "purge", queue, "--yes", "--json").json == {"purged": 1}
    assert run("dead-letter", "list", queue).out == ""


def test_dead_letters_go_back_to_a_broker_without_the_operation(
    run: CommandLine, queue: str, broker: Broker
) -> None:
    """As on Azure: sent anew under another id, then completed; those not meant stay."""
    run("send", queue, "a", "b", "--property", "kept:int=5")
    run("receive", queue, "-n", "2", "--settle", "dead-letter")
    path = f"{queue}/$DeadLetterQueue"
    dead = run("peek", path, "--json").lines
    wanted = Wanted(None, frozenset([dead[0]["sequence_number"]]))
    with Remote(broker.connection_string).client() as client:
        assert list(send_again(client, path, queue, wanted, 1.0)) == [1]
    (back,) = run("peek", queue, "--json").lines
    assert back["body"] == "a"
    assert back["message_id"].startswith(dead[0]["message_id"] + "-resubmitted-")
    assert back["application_properties"] == {"kept": {"int": 5}}
    assert bodies(run, path) == ["b"]


def test_a_dead_letter_that_cannot_be_read_goes_back_as_it_is(
    run: CommandLine, queue: str, broker: Broker
) -> None:
    """The broker takes in what it need not read, such as a text in Latin-1."""
    latin = b"\x00\x53\x74" + encode_map([("city", b"\xa1\x04K\xf6ln")])
    odd = b"\x00\x53\x73" + encode(["odd"]) + latin + b"\x00\x53\x75\xa0\x01x"
    with Client.connect(broker.connection_string) as client:
        with client.sender(queue) as sender:
            sender.send([odd])
            sender.flush()
        asked = {"consumer": "test", "epoch": 1}
        client.request(queue, "twinbus:reserve", {**asked, "message-count": 1})
        dead = [{"sequence-number": 1, "reason": "r", "description": "d"}]
        client.request(queue, "twinbus:settle-upto", {**asked, "dead-lettered": dead})
    path = f"{queue}/$DeadLetterQueue"
    (shown,) = run("dead-letter", "list", queue, "--json").lines
    assert shown.keys() == {"sequence_number", "unreadable"}
    with Remote(broker.connection_string).client() as sdk:
        assert list(send_again(sdk, path, queue, Wanted(None, frozenset()), 1.0)) == []
    assert run("dead-letter", "resubmit", queue, "--json").json == {
        "resubmitted": 1, "atomic": True
    }  # fmt: skip
    with Client.connect(broker.connection_string) as client:
        body = {"from": 1, "to": 9, "byte-count": 1}
        (back,) = client.request(queue, "twinbus:read", body).body["messages"]
    assert b"K\xf6ln" in back


def test_a_message_that_is_too_large_is_refused(run: CommandLine, queue: str) -> None:
    """S2: with the broker's own words."""
    refused = run("send", queue, "-", stdin="x" * 300_000, code=1)
    assert "exceeds the limit" in refused.err
    assert refused.err.count("\n") == 1


EVERYTHING = {
    "message_id": {"uuid": "12345678-1234-5678-1234-567812345678"},
    "correlation_id": {"ulong": 18446744073709551615},
    "user_id": {"binary": "AAEC"},
    "subject": "s", "to": "t", "reply_to": "r", "reply_to_session_id": "rs",
    "content_type": "text/plain", "content_encoding": "gzip", "group_sequence": 7,
    "creation_time_utc": "2026-01-01T00:00:00.001Z",
    "absolute_expiry_time_utc": "2036-01-01T00:00:00.001Z",
    "time_to_live": "PT2H0.500S", "partition_key": "p", "session_id": "p",
    "application_properties": {
        "null": None, "string": "ä€😀", "true": True, "long": -9223372036854775808,
        "double": 0.1, "nan": {"double": "nan"}, "float": {"float": 1.5}, "int": {"int": -5},
        "short": {"short": -300}, "byte": {"byte": -1}, "ubyte": {"ubyte": 255},
        "ushort": {"ushort": 65535}, "uint": {"uint": 4294967295}, "ulong": {"ulong": 1},
        "char": {"char": "€"}, "symbol": {"symbol": "sym"}, "binary": {"binary": "/w=="},
        "uuid": {"uuid": "00000000-0000-0000-0000-000000000001"},
        "time": {"timestamp": "1969-12-31T23:59:59.999Z"},
        "far": {"timestamp": 253402300800000},
        "decimal": {"decimal64": "AAAAAAAAAAE="},
    },
    "annotations": {"x-own": {"int": 1}},
}  # fmt: skip
BODIES = (
    "text",
    {"binary": "/wD+"},
    {"data": ["one", "two"]},
    {"value": {"map": [["k", {"int": 1}], [{"symbol": "s"}, [1, "x", None]]]}},
    {"sequence": [[1, {"uint": 2}], ["three"]]},
)
# What a broker writes by itself, anew for every message it takes.
WRITTEN = ("sequence_number", "enqueued_time_utc", "delivery_count", "enqueued_sequence_number")


def test_export_and_import_lose_nothing(run: CommandLine, pool: QueuePool, tmp_path: Path) -> None:
    """E4: every property, type and kind of body comes out of the second export as it went in."""
    source, target = pool.take(), pool.take()
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    given = [{**EVERYTHING, "body": body} for body in BODIES]
    given.append({"message_id": "later", "body": "", "scheduled_enqueue_time_utc":
                  "2099-01-01T00:00:00.000Z"})  # fmt: skip
    lines = "".join(json.dumps(message) + "\n" for message in given)
    assert run("import", source, "-", "--json", stdin=lines).json == {"imported": len(given)}
    run("export", source, str(first))
    assert first.stat().st_mode & 0o777 == 0o600
    assert run("import", target, str(first), "--json").json == {"imported": len(given)}
    assert run("export", target, str(second), "--json").json["exported"] == len(given)
    for wanted, one, two in zip(given, _stripped(first), _stripped(second), strict=True):
        assert one == two
        assert {name: one[name] for name in wanted} == wanted
        assert set(one) - set(wanted) <= {"state"}
    assert run("export", source, "-").out == first.read_text()


def _stripped(path: Path) -> list[dict[str, object]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in message.items() if k not in WRITTEN} for message in found]


def test_an_import_that_cannot_be_read_says_where(
    run: CommandLine, queue: str, tmp_path: Path
) -> None:
    file = tmp_path / "bad.jsonl"
    good = '{"body": "good"}\n'
    for bad in ('{"body": {"value": {"int": 99999999999}}}', '{"body": "cut o'):
        file.write_text(good * 600 + bad)
        told = run("import", queue, str(file), code=1)
        assert "601" in told.err
        assert told.out == ""
        assert run("peek", queue, "--json").lines == [], "it would be there twice after the next"
    # Of what comes through a pipe some has gone: it is told how much.
    told = run("import", queue, "-", "--json", stdin=good * 600 + bad, code=1)
    assert told.json == {"imported": 500}
    assert run("import", queue, str(tmp_path / "none"), code=3).err.count("\n") == 1


def test_lines_that_cannot_be_sent_say_where(run: CommandLine, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    lines = '\n{"body": "good"}' * 600 + '\n{"body": "bad", "sbject": "y"}\n'
    file.write_text(lines)
    told = run("send", queue, "first", "--lines", str(file), code=1)
    assert f"{file}, line 602: unknown: sbject" in told.err
    assert run("peek", queue).out == "", "it would be there twice after the next"
    told = run("send", queue, "--lines", "-", "--json", stdin=lines, code=1)
    assert "-, line 602: unknown: sbject" in told.err
    assert told.json == {"sent": 500}
    pairs = '{"body": "x", "application_properties": [["k", 1]]}'
    told = run("send", queue, "--lines", "-", "--property", "a=b", stdin=pairs, code=1)
    assert "--property can add nothing" in told.err


def test_a_pipe_is_read_once(run: CommandLine, queue: str) -> None:
    """As a shell gives it for `<(zcat all.jsonl.gz)`: a name, and what is read is gone."""
    for arguments in (("import", queue), ("send", queue, "--lines")):
        reading, writing = os.pipe()
        os.write(writing, b'{"body": "piped"}\n')
        os.close(writing)
        run(*arguments, f"/proc/{os.getpid()}/fd/{reading}")
        os.close(reading)
    assert bodies(run, queue) == ["piped", "piped"]


def test_nothing_that_strangers_wrote_steers_the_terminal(run: CommandLine, queue: str) -> None:
    """JSON has it as it was; people see that there was something."""
    subject = "a\x1b[2Jb\rc\u202ed"
    run("send", queue, "x\x07y", "--subject", subject)
    line = run("peek", queue).out
    assert line.endswith("subject=a\ufffd[2Jb c\ufffdd  x\ufffdy\n")
    (shown,) = run("peek", queue, "--json").lines
    assert (shown["subject"], shown["body"]) == (subject, "x\x07y")


def test_the_sdk_s_own_messages_come_through(
    run: CommandLine, queue: str, broker: Broker, tmp_path: Path
) -> None:
    """What an application sent is what a receiver gets after export and import."""
    message = ServiceBusMessage(b"body", message_id="m", application_properties={"n": 5, "s": "x"})
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(message)
        file = tmp_path / "all.jsonl"
        run("export", queue, str(file))
        run("import", queue, str(file))
        with client.get_queue_receiver(queue, max_wait_time=5) as receiver:
            got = receiver.receive_messages(2, max_wait_time=5)
            got += receiver.receive_messages(2 - len(got), max_wait_time=5) if len(got) < 2 else []
    first, second = got
    assert (str(first), first.application_properties) == ("body", second.application_properties)
    assert str(second) == "body"
    assert first.message_id == second.message_id == "m"
