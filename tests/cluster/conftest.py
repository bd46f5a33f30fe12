"""A cluster for all tests of the folder: two workers whose Python has no wal3, each with its own way to the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.machines import WatchedProxy, role
from tests.cluster.outcomes import prepare
from tests.cluster.spark_cluster import EXECUTOR_MEMORY, Cluster, spark_cluster
from tests.cluster.worker_python import make_worker_python, zip_library
from tests.processes.fault_proxy import listening
from wal3_core import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.storage.object_store import ObjectStore

PROGRAM = Path(__file__).parent / "submitted.py"
SUBMIT_S = 240


@dataclass
class Machines:
    """The cluster, what its workers have, and the proxies that the workers' requests pass, in the workers' order."""

    cluster: Cluster
    python: Path
    library: Path
    proxies: list[WatchedProxy]
    environment: dict[str, str]

    def conf(self) -> dict[str, str]:
        """Return the settings of an application that uses all of the cluster."""
        return {
            "spark.master": self.cluster.master_url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "4",
            "spark.submit.pyFiles": str(self.library),
            "spark.pyspark.python": str(self.python),
            "spark.pyspark.driver.python": sys.executable,
            "spark.log.level": "ERROR",
        }


@pytest.fixture(scope="session")
def machines(s3_endpoint: str, s3_bucket_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """A running cluster."""
    assert s3_bucket_url
    folder = tmp_path_factory.mktemp("cluster")
    python = make_worker_python(folder / "python", "s3", "spark")
    library = zip_library(folder / "wal3.zip")
    with ExitStack() as stack:
        environment = stack.enter_context(role())
        proxies = [stack.enter_context(listening(WatchedProxy(s3_endpoint))) for _ in range(2)]
        shared = {**environment, "AWS_DEFAULT_REGION": "us-east-1"}
        environments = [{**shared, "AWS_ENDPOINT_URL": proxy.endpoint} for proxy in proxies]
        cluster = stack.enter_context(spark_cluster(folder / "spark", environments))
        yield Machines(cluster, python, library, proxies, shared)


@pytest.fixture
def prepared(s3_url: str) -> ObjectStore:
    """A store with the logs that the jobs work on."""
    store = open_store(s3_url)
    prepare(store)
    return store


def submit(machines: Machines, store: ObjectStore, folder: Path, *jobs: str, **conf: str) -> dict[str, Any]:
    """Run jobs by ``spark-submit``, as a user from a shell; return what they printed."""
    settings = {**machines.conf(), **conf}
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    # As in an activated environment. The path is the driver's alone: it is for the planner of streams, which Spark 4.3
    # starts with the workers' Python and without --py-files.
    environment = {**os.environ, "PYTHONPATH": str(machines.library)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    outcome = subprocess.run(
        ["spark-submit", *options, PROGRAM, store.url, folder, *jobs],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SUBMIT_S,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-5000:]
    return {name: found for line in outcome.stdout.splitlines() for name, found in json.loads(line).items()}
