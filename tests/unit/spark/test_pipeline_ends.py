"""How `twinbus pipeline` commands end (L2, L4): what they say, and their codes, with no Spark."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException
from typer.testing import CliRunner

from twinbus.cli import pipeline_bulk, pipeline_jobs, pipeline_spark
from twinbus.cli.failures import CommandError
from twinbus.cli.main import app
from twinbus.cli.printer import Printer
from twinbus.spark.bulk.rounds import Tally
from twinbus.spark.jobs import follow
from twinbus.spark.report import making

GONE = (
    "The messaging entity 'sb://localhost/nope' could not be found. TrackingId:1 (amqp:not-found)"
)
ENGINE = pipeline_spark.Engine(None, None, "1g")
CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=a2V5"


def on_the_driver(last: str) -> PySparkException:
    return AnalysisException(
        "[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions:"
        " Traceback (most recent call last):\n"
        '  File "reading.py", line 52, in partitions\n'
        "    low = first_at_or_after(line, options.from_sequence)\n"
        "          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        f"{last}\n SQLSTATE: 38000"
    )


def on_a_worker(last: str) -> PySparkException:
    return PythonException(
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        f'  File "writer.py", line 92, in write\n    return _write(rows)\n{last}\n'
    )


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that can only be stopped."""
    session = SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr("twinbus.spark.session.session", lambda *_, **__: session)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Whoever follows takes these signals for itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("raised", [on_the_driver, on_a_worker])
@pytest.mark.parametrize(
    ("last", "said", "code"),
    [
        (f"twinbus.client.errors.Refused: {GONE}", GONE, 3),
        ("twinbus.client.errors.Refused: no (amqp:unauthorized-access)", None, 4),
        ("twinbus.client.errors.Refused: no (com.microsoft:server-busy)", None, 1),
        ("twinbus.spark.writer.ColumnError: The column 'body' is missing.", None, 1),
        # Not ours: the name of its class says the most.
        ("KeyError: 'price'", "KeyError: 'price'", 1),
        ("shop.Gone: it is gone (amqp:not-found)", "shop.Gone: it is gone (amqp:not-found)", 1),
    ],
)
@pytest.mark.usefixtures("no_spark")
def test_l4_a_failure_is_told_by_its_reason_and_code(
    raised: Any, last: str, said: str | None, code: int
) -> None:
    with (
        pytest.raises(CommandError) as told,
        pipeline_spark.spark("export", ENGINE, pipeline_spark.Steps()),
    ):
        raise raised(last)
    assert str(told.value) == (said or last.partition(": ")[2])
    assert told.value.code == code


@pytest.mark.parametrize(
    ("job", "verdicts", "code"),
    [
        ("audit", ["1 violation"], 1),
        ("audit", ["clean"], 0),
        ("audit", [], 1),
        ("audit", None, 1),
        ("cost", None, 0),
    ],
)
@pytest.mark.usefixtures("handlers")
def test_l2_following_that_found_nothing_new_ends_as_the_report_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    verdicts: list[str] | None,
    code: int,
) -> None:
    """A proof is not made by stopping before there was one."""
    if verdicts is not None:
        place = tmp_path / job / "verdict"
        place.mkdir(parents=True)
        (place / "_SUCCESS").touch()
        rows = pa.table({"verdict": pa.array(verdicts, pa.string())})
        pq.write_table(rows, place / "part-00000.snappy.parquet")
    query = SimpleNamespace(isActive=False, awaitTermination=lambda: None)
    monkeypatch.setattr(follow, "follow", lambda *_, **__: query)
    order = pipeline_jobs.Order(job, ["capture"], tmp_path, follow=True, json_output=True)
    sources = making.Sources(("capture",))
    ended = pipeline_jobs._follow(cast(Any, None), order, sources, pipeline_spark.Steps())
    assert ended == code


def test_l2_a_report_that_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "audit" / "verdict"
    place.mkdir(parents=True)
    (place / "part-00000.snappy.parquet").touch()
    assert not making.was_clean("audit", tmp_path)


def test_l4_what_was_left_is_told_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally(
        Counter(sent=1, returned=3),
        Counter(NoMessage=2, Other=1),
        {"NoMessage": "the new subject is no string:\nit is 7"},
    )
    pipeline_bulk._print(Printer(json_output=False), tally, "resubmitted from q")
    assert capsys.readouterr().out == (
        "1 resubmitted from q; 3 left where they were\n"
        "  2 because of NoMessage (the new subject is no string: it is 7)\n"
        "  1 because of Other.\n"
    )


@pytest.mark.usefixtures("no_spark")
def test_l4_load_says_aside_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(spark: Any, directory: str, connection: str, entity: str, remark: Any) -> int:
        remark("Left out: customer")
        return 1

    monkeypatch.setattr("twinbus.spark.bulk.load.run", run)
    given = ["pipeline", "load", "files", "--to", "orders", "--connection", CONNECTION, "--json"]
    ended = CliRunner().invoke(app, given)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (
        0,
        '{"loaded": 1, "entity": "orders"}\n',
        "Left out: customer\n",
    )
