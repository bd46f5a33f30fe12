"""The configuration of Spark sessions that read logs, and a session for tests and laptops."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from wal3_core.spark.source import LogDataSource

LOCAL = "local[*]"
_LOCAL_SHUFFLE_PARTITIONS = 4


def session_conf(master: str = LOCAL) -> dict[str, str]:
    """Return the configuration of a session on that master.

    Spark's workers take their environment from the driver's when it starts on a local master; on a
    cluster, name what the store needs in ``spark.executorEnv.…`` or in the store's URL.
    """
    shared = {
        "spark.master": master,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }
    if not _is_local(master):
        return shared
    return {
        **shared,
        # A laptop's host name may resolve to another machine, or not at all.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(_LOCAL_SHUFFLE_PARTITIONS),
        # Over TCP, each task waits 40 ms for an acknowledgement that is delayed.
        "spark.python.unix.domain.socket.enabled": "true",
    }


def use_this_python(conf: Mapping[str, str] | None = None) -> None:
    """Make the workers of sessions that start later run this interpreter, unless the environment or ``conf`` names one.

    Spark reads ``spark.pyspark.python`` only in programs of ``spark-submit``. Without either, it takes the first
    python3 on the PATH, which in an environment that is not activated lacks this library.
    """
    os.environ.setdefault("PYSPARK_PYTHON", (conf or {}).get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def local_session(app_name: str, cores: int | None = None) -> SparkSession:
    """Start a session in this process, on ``cores`` cores (all by default), that can read logs."""
    use_this_python()
    builder = SparkSession.builder.appName(app_name)
    for name, value in session_conf(LOCAL if cores is None else f"local[{cores}]").items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register ``spark.read.format("wal3")`` in a session."""
    if not is_remote() and _is_local(spark.sparkContext.master) and "PYSPARK_PYTHON" not in os.environ:
        # As use_this_python does, for a session that has started.
        spark.sparkContext.pythonExec = sys.executable
    spark.dataSource.register(LogDataSource)


def _is_local(master: str | None) -> bool:
    return master is not None and master.startswith("local")
