"""A driver process that copies queues by streams: `python -m tests.spark.streams.driver JSON`.

The argument is a list of copies, each with the options of its source and target. All run at
once until everything that was there is copied, or until the process is killed.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.streams.points import PointedSource
from twinbus.spark.session import session


@dataclass(frozen=True)
class Copy:
    connection_string: str
    source: str
    target: str
    #: The consumer's name, too.
    name: str
    mode: str
    checkpoint: str
    batch: int

    def start(self, spark: SparkSession) -> StreamingQuery:
        rows = (
            spark.readStream.format("servicebus")
            .option("connectionString", self.connection_string)
            .option("entity", self.source)
            .option("consumer", self.name)
            .option("mode", self.mode)
            .option("maxMessagesPerTrigger", str(self.batch))
            .option("partitions", "2")
            # However often it is killed: it is not the messages' fault.
            .option("maxBatchFailures", "0")
            .load()
        )
        return (
            rows.writeStream.format("servicebus")
            .option("connectionString", self.connection_string)
            .option("entity", self.target)
            .option("runId", self.name)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )


def arguments(copies: list[Copy]) -> list[str]:
    return [sys.executable, "-m", __name__, json.dumps([asdict(copy) for copy in copies])]


def main() -> None:
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.executor.memory": "512m",
    }
    master = os.environ.get("TWINBUS_TEST_MASTER", "local[2]")
    spark = session("stream under test", master, memory="512m", short=True, **conf)
    spark.dataSource.register(PointedSource)
    queries = [Copy(**given).start(spark) for given in json.loads(sys.argv[1])]
    for query in queries:
        query.awaitTermination()
    print("copied", flush=True)


if __name__ == "__main__":
    main()
