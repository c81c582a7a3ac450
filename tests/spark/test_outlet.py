"""The sink's way out (L3) while the broker dies and comes back; no Spark is needed for that."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest

from tests.spark.test_writer import ids_in
from tests.support.broker import Broker
from twinbus.client import ConnectionLost, Refused
from twinbus.spark import outlet as subject
from twinbus.spark.messages import to_messages
from twinbus.spark.outlet import Outlet, RefusedRowError

WINDOW_MESSAGES, WINDOW_BYTES = 2000, 1024 * 1024


def rows(first: int, count: int, size: int = 800) -> list[bytes]:
    batch = pa.RecordBatch.from_pydict({"body": [b"x" * size] * count})
    return to_messages(batch, lambda row: f"m-{first + row:05}")


def outlet(broker: Broker, entity: str = "target") -> Outlet:
    return Outlet(broker.connection_string, entity, WINDOW_MESSAGES, WINDOW_BYTES)


def test_l3_rows_survive_a_broker_that_is_killed_twice(own_broker: Broker) -> None:
    """Each row is in the target once: it drops what is sent again."""
    over = threading.Event()

    def kill_and_start() -> None:
        for _ in range(2):
            time.sleep(0.2)
            own_broker.kill()
            own_broker.start()
        over.set()

    killer = threading.Thread(target=kill_and_start)
    sent = 0
    with outlet(own_broker) as out:
        out.send(rows(0, 500))
        killer.start()
        while not over.is_set():
            sent += 500
            out.send(rows(sent, 500))
            time.sleep(0.01)
        out.flush()
    killer.join()
    found = ids_in(own_broker, "target")
    assert sorted(found) == [f"m-{i:05}" for i in range(sent + 500)]


def test_l3_a_refused_row_has_its_own_number_after_a_restart(own_broker: Broker) -> None:
    with outlet(own_broker) as out:
        out.send(rows(0, 300))
        out.flush()
        out.send(rows(300, 100))
        own_broker.kill()
        own_broker.start()
        out.send(rows(400, 50))
        out.flush()
        with pytest.raises(RefusedRowError, match="300") as refusal:
            out.send(rows(450, 7) + rows(457, 1, 300_000) + rows(458, 500))
    assert (refusal.value.row, refusal.value.message_id) == (457, "m-00457")
    found = set(ids_in(own_broker, "target"))
    assert {f"m-{i:05}" for i in range(450)} <= found
    assert "m-00457" not in found


def test_l3_what_cannot_be_mended_is_told_at_once(own_broker: Broker) -> None:
    with outlet(own_broker, "no-such-queue") as out, pytest.raises(Refused, match="not be found"):
        out.send(rows(0, 1))


def test_l3_patience_has_an_end(own_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    own_broker.kill()
    monkeypatch.setattr(subject, "PATIENCE_S", 0.1)
    with outlet(own_broker) as out, pytest.raises(ConnectionLost, match="cannot reach"):
        out.send(rows(0, 1))
