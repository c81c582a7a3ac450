"""L4: dead letters through a transformation, back to where they came from or elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.bulk_kit import DESCRIPTION, REASON, bury, bury_all, contents, ids
from tests.spark.conftest import FORM, worker_path
from tests.support.broker import PROJECT, Broker, form_environment
from twinbus.amqp.codec import encode, encode_map
from twinbus.client import Client
from twinbus.spark.bulk import resubmit, rounds, transform
from twinbus.spark.messages import to_batch


def numbered(count: int) -> list[dict[str, Any]]:
    return [
        {
            "message_id": f"m-{number}",
            "body": json.dumps({"number": number}).encode(),
            "application_properties": [("number", str(number))],
            "application_property_types": [("number", "long")],
        }
        for number in range(count)
    ]


def run(
    spark: SparkSession,
    broker: Broker,
    queue: str,
    change: transform.Transformation = transform.unchanged,
    where: str | None = None,
    to: str | None = None,
) -> rounds.Tally:
    source = resubmit.dead_letter_path(queue)
    work = resubmit.Work(broker.connection_string, source, to)
    return resubmit.run(spark, work, change, where, lambda _: None)


def dead(broker: Broker, queue: str) -> list[str]:
    return ids(broker.connection_string, f"{queue}/$DeadLetterQueue")


def held(broker: Broker, entity: str) -> list[Any]:
    with Client.connect(broker.connection_string) as client:
        found = client.request(entity, "twinbus:reservations", {}).body["reservations"]
    return [epoch for consumer in found for epoch in consumer["epochs"]]


def _payloads(broker: Broker, entity: str) -> list[bytes]:
    body = {"from": 1, "to": 2**62, "byte-count": 4 * 1024 * 1024}
    with Client.connect(broker.connection_string) as client:
        found: list[bytes] = client.request(entity, "twinbus:read", body).body["messages"]
    return found


def test_l4_dead_letters_go_home_without_the_marks_of_death(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    bury(broker.connection_string, queue, numbered(20))
    buried = contents(broker.connection_string, f"{queue}/$DeadLetterQueue")[0]
    assert (buried["dead_letter_reason"], buried["dead_letter_description"]) == (
        REASON,
        DESCRIPTION,
    )
    tally = run(spark, broker, queue)
    assert tally.counts == {"sent": 20}
    assert dead(broker, queue) == []
    home = contents(broker.connection_string, queue)
    assert sorted(row["message_id"] for row in home) == sorted(f"m-{n}" for n in range(20))
    for row in home:
        number = int(row["message_id"].removeprefix("m-"))
        assert json.loads(row["body"]) == {"number": number}
        assert dict(row["application_properties"]) == {"number": str(number)}
        assert dict(row["application_property_types"]) == {"number": "long"}
        assert row["dead_letter_reason"] is None


def test_l4_sql_makes_the_body_and_null_leaves_a_message_where_it_is(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    bury(broker.connection_string, queue, numbered(10))
    number = "cast(get_json_object(cast(body as string), '$.number') as int)"
    change = transform.by_sql(f"if({number} < 4, concat('n', {number}), null)")
    tally = run(spark, broker, queue, change, where=f"{number} <> 2")
    assert tally.counts == {"sent": 3, "returned": 7}
    home = {r["message_id"]: r["body"] for r in contents(broker.connection_string, queue)}
    assert home == {"m-0": b"n0", "m-1": b"n1", "m-3": b"n3"}
    assert dead(broker, queue) == ["m-2", *(f"m-{n}" for n in range(4, 10))]
    # They are not held by anybody: the next run, or a receiver, can have them.
    assert held(broker, f"{queue}/$DeadLetterQueue") == []


def test_l4_sql_conditions_and_structs(
    spark: SparkSession, broker: Broker, queue: str, unique_queue: str
) -> None:
    bury(broker.connection_string, queue, numbered(6))
    chosen = transform.by_sql("message_id in ('m-1', 'm-2')")
    assert run(spark, broker, queue, chosen, to=unique_queue).counts == {"sent": 2, "returned": 4}
    set_two = transform.by_sql(
        "named_struct('subject', concat('s-', message_id), 'time_to_live_ms', 60000)"
    )
    assert run(spark, broker, queue, set_two, to=unique_queue).counts == {"sent": 4}
    rows = {row["message_id"]: row for row in contents(broker.connection_string, unique_queue)}
    assert sorted(rows) == [f"m-{n}" for n in range(6)]
    assert (rows["m-1"]["subject"], rows["m-0"]["subject"]) == (None, "s-m-0")
    assert rows["m-0"]["time_to_live_ms"] == 60_000
    assert json.loads(rows["m-0"]["body"]) == {"number": 0}


def test_l4_a_python_function_repairs(spark: SparkSession, broker: Broker, queue: str) -> None:
    bury(broker.connection_string, queue, numbered(10))
    tally = run(spark, broker, queue, transform.by_function("tests.spark.repairs:mend"))
    assert tally.counts == {"sent": 8, "returned": 2}
    home = {row["message_id"]: row for row in contents(broker.connection_string, queue)}
    assert json.loads(home["m-4"]["body"]) == {"number": 4, "mended": True}
    assert (home["m-4"]["subject"], home["m-3"]["subject"]) == ("mended", None)
    assert json.loads(home["m-3"]["body"]) == {"number": 3}
    assert dead(broker, queue) == ["m-0", "m-5"]


def test_l4_what_the_target_refuses_stays_dead_and_is_told(
    spark: SparkSession, broker: Broker, queue: str, session_queue: str
) -> None:
    rows = numbered(4)
    for row in rows[:2]:
        row["session_id"] = "s"
    bury(broker.connection_string, queue, rows)
    tally = run(spark, broker, queue, to=session_queue)
    assert tally.counts == {"sent": 2, "returned": 2}
    assert sum(tally.reasons.values()) == 2
    assert dead(broker, queue) == ["m-2", "m-3"]
    assert ids(broker.connection_string, session_queue) == ["m-0", "m-1"]


def test_l4_e7_dead_letters_come_home_to_a_queue_that_remembers_their_ids(
    spark: SparkSession, broker: Broker, unique_queue: str
) -> None:
    bury(broker.connection_string, unique_queue, numbered(4))
    path = f"{unique_queue}/$DeadLetterQueue"
    batch = to_batch(_payloads(broker, path)).append_column(transform.WANTED, pa.array([True] * 4))
    batch = batch.append_column(transform.FAULT, pa.nulls(4, pa.string()))
    # As a run that is killed before it settles: all are sent, and stay dead.
    work = resubmit.Work(broker.connection_string, path, None)
    assert sum(fates.column("count")[0].as_py() for fates in resubmit._send(work, batch)) == 4
    assert run(spark, broker, unique_queue).counts == {"sent": 4}
    assert ids(broker.connection_string, unique_queue) == [f"m-{n}" for n in range(4)]
    assert dead(broker, unique_queue) == []


def test_l4_what_cannot_be_made_into_a_message_stays_dead_and_the_rest_goes(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    bury(broker.connection_string, queue, numbered(3))
    change = transform.by_sql("named_struct('time_to_live_ms', if(message_id = 'm-1', 0, 60000))")
    tally = run(spark, broker, queue, change)
    assert tally.counts == {"sent": 2, "returned": 1}
    assert tally.reasons == {resubmit.NO_MESSAGE: 1}
    assert dead(broker, queue) == ["m-1"]


def test_l4_a_change_of_the_wrong_type_stays_dead_and_the_rest_goes(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    bury(broker.connection_string, queue, numbered(4))
    tally = run(spark, broker, queue, transform.by_function("tests.spark.repairs:mistype"))
    assert tally.counts == {"sent": 3, "returned": 1}
    assert tally.reasons == {resubmit.NO_MESSAGE: 1}
    assert "the new application_properties is no map" in tally.examples[resubmit.NO_MESSAGE]
    assert dead(broker, queue) == ["m-1"]
    assert sorted(ids(broker.connection_string, queue)) == ["m-0", "m-2", "m-3"]


def test_l4_a_letter_without_a_body_and_one_that_is_not_utf_8_go_home_with_the_rest(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    """What the official SDK makes of None, and a text of a sender that writes Latin-1."""
    latin = b"\x00\x53\x74" + encode_map([("city", b"\xa1\x04K\xf6ln")])
    body = b"\x00\x53\x75\xa0\x04body"
    names = [b"\x00\x53\x73" + encode([name]) for name in ("none", "latin", "good")]
    payloads = [names[0], names[1] + latin + body, names[2] + body]
    with Client.connect(broker.connection_string) as client:
        with client.sender(queue) as sender:
            sender.send(payloads)
            sender.flush()
        bury_all(client, queue)
    assert run(spark, broker, queue).counts == {"sent": 3}
    home = {row["message_id"]: row for row in contents(broker.connection_string, queue)}
    assert {name: row["body"] for name, row in home.items()} == {
        "none": b"", "latin": b"body", "good": b"body"
    }  # fmt: skip
    assert dict(home["latin"]["application_properties"]) == {"city": "K\ufffdln"}


def test_l4_a_failing_transformation_gives_everything_back(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    bury(broker.connection_string, queue, numbered(5))
    path = f"{queue}/$DeadLetterQueue"
    with pytest.raises(PySparkException):
        run(spark, broker, queue, transform.by_sql("cast(raise_error('no') as string)"))
    assert dead(broker, queue) == [f"m-{n}" for n in range(5)]
    assert held(broker, path) == []
    assert run(spark, broker, queue).counts == {"sent": 5}


@pytest.mark.parametrize(
    ("expression", "said"),
    [("size", "not int"), ("named_struct('state', 'active')", "cannot set 'state'")],
)
def test_l4_an_expression_that_makes_no_sense_holds_nothing(
    spark: SparkSession, broker: Broker, queue: str, expression: str, said: str
) -> None:
    bury(broker.connection_string, queue, numbered(1))
    with pytest.raises(transform.TransformError, match=said):
        run(spark, broker, queue, transform.by_sql(expression))
    assert held(broker, f"{queue}/$DeadLetterQueue") == []


def test_l4_the_broker_may_be_killed_meanwhile(spark: SparkSession, own_broker: Broker) -> None:
    """Tasks and driver wait for it to come back, and each message is in the target once."""
    text = own_broker.connection_string
    bury(text, "source", numbered(550)[450:])
    work = resubmit.Work(text, resubmit.dead_letter_path("source"), "target")
    change = transform.by_function("tests.spark.repairs:slowly")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(resubmit.run, spark, work, change, None, lambda _: None)
        give_up = time.monotonic() + 60
        while not ids(text, "target") and time.monotonic() < give_up:
            time.sleep(0.05)
        own_broker.kill()
        own_broker.start()
        assert running.result(120).counts == {"sent": 100}
    assert sorted(ids(text, "target")) == sorted(f"m-{n}" for n in range(450, 550))
    assert ids(text, "source/$DeadLetterQueue") == []


@pytest.mark.slow
def test_l4_killed_in_the_middle_and_run_again_each_is_home_once(
    broker: Broker, queue: str, unique_queue: str
) -> None:
    """Half of 1,000 are sent and none is settled when driver, JVM and workers are killed."""
    home = unique_queue
    bury(broker.connection_string, queue, numbered(1_000))
    first = _start(broker, queue, home, "--python", "tests.spark.repairs:slowly")
    try:
        _wait_until(lambda: len(ids(broker.connection_string, home)) >= 400, first)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate(timeout=30)
    arrived = ids(broker.connection_string, home)
    assert 0 < len(arrived) < 1_000
    assert len(dead(broker, queue)) == 1_000
    second = _start(broker, queue, home)
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert json.loads(out) == {"sent": 1_000, "returned": 0, "dead_lettered": 0, "reasons": {}}
    assert sorted(ids(broker.connection_string, home)) == sorted(f"m-{n}" for n in range(1_000))
    assert dead(broker, queue) == []


def _start(broker: Broker, queue: str, to: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "twinbus", "pipeline", "resubmit", queue, "--to", to]
    command += ["--connection", broker.connection_string, "--master", "local[2]", "--json"]
    environment = form_environment(FORM)
    environment["PYTHONPATH"] = os.pathsep.join(
        part for part in (environment.get("PYTHONPATH", ""), worker_path()) if part
    )
    return subprocess.Popen(
        [*command, "--memory", "1g", *options],
        env=environment, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def _wait_until(condition: Any, process: subprocess.Popen[str], seconds: float = 90) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.05)
