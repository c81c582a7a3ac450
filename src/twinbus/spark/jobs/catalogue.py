"""The jobs by the names that users type."""

from collections.abc import Callable
from typing import Final, Protocol, cast

from pyspark.sql import DataFrame

from twinbus.spark.jobs import audit, cost, dead_letters, failovers, latency

Tables = dict[str, DataFrame]
Report = Callable[[DataFrame], Tables]


class Job(Protocol):
    """What each job's module is. `report` takes more where a job has settings."""

    def partial(self, rows: DataFrame) -> DataFrame: ...

    def merge(self, partials: DataFrame) -> DataFrame: ...

    def report(self, merged: DataFrame) -> Tables: ...


JOBS: Final = {
    "cost": cast(Job, cost),
    "dead-letters": cast(Job, dead_letters),
    "failovers": cast(Job, failovers),
    "latency": cast(Job, latency),
    "audit": cast(Job, audit),
}


def run(name: str, rows: DataFrame, report: Report | None = None) -> Tables:
    """The batch form of a job. `report` stands in for the job's own, to give it settings."""
    job = JOBS[name]
    return (report or job.report)(job.merge(job.partial(rows)))
