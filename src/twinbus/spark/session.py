"""Gives a Spark session that is fit for this package, or the one that is there.

Enters: a name, perhaps the address of a cluster, settings. Leaves: a session. A session that
runs already, one under spark-submit and one of Spark Connect are used as their owner set
them up; only local mode gets our settings, since there nobody else gave any.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from pyspark.sql import SparkSession

from twinbus.spark.java import java_home

LOCAL = "local[*]"
MEMORY = "2g"
_LOOPBACK = "127.0.0.1"
_EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# The second compiler pays off after minutes only; without it a session starts in half the time.
_SHORT = "-XX:TieredStopAtLevel=1"
_OPTIONS = "spark.driver.extraJavaOptions"
_CONNECT = ("pandas", "grpc", "grpc_status", "zstandard")


def session(
    app_name: str,
    master: str | None = None,
    *,
    remote: str | None = None,
    memory: str = MEMORY,
    short: bool = False,
    **conf: str,
) -> SparkSession:
    """Give a session: the active one, or one on `remote`, on `master`, or on this machine.

    `memory` bounds the heap of a local session's JVM; `short` says that it is for a short
    job. `conf` holds settings of Spark and wins over ours.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if remote or os.environ.get("SPARK_REMOTE"):
        return _connect(app_name, remote, conf)
    builder = SparkSession.Builder().appName(app_name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = master or LOCAL
        os.environ["JAVA_HOME"] = str(java_home())
        builder = builder.master(master)
        ours = dict(_EVERYWHERE)
        if master.startswith("local"):
            ours |= _local(memory)
        if short:
            ours[_OPTIONS] = f"{_SHORT} {conf.pop(_OPTIONS, '')}".strip()
        conf = ours | conf
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _local(memory: str) -> dict[str, str]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    return {
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.host": _LOOPBACK,
        "spark.driver.memory": memory,
        # 200, Spark's own figure, is for clusters: a stream would write 200 states a batch.
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    }


def _connect(app_name: str, remote: str | None, conf: dict[str, str]) -> SparkSession:
    # Spark itself may end the process without a word when one of them is missing.
    missing = [name for name in _CONNECT if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"Spark Connect needs packages that are not installed ({', '.join(missing)}): "
            '`pip install "pyspark[connect]"`'
        )
    builder = SparkSession.Builder().appName(app_name)
    if remote:
        builder = builder.remote(remote)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
