"""A cluster for all tests of the folder: two workers whose Python has no wal3, each with its own way to the store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.cluster.machines import WatchedProxy, role, write_profile
from tests.cluster.spark_cluster import DEADLINE_S, EXECUTOR_MEMORY, Cluster, spark_cluster, wait_until
from tests.cluster.worker_python import make_worker_python, zip_library
from tests.processes.fault_proxy import listening
from wal3_core import open_store
from wal3_core.spark import register
from wal3_core.store.object_store import ObjectStore

PROGRAM = Path(__file__).parent / "submitted.py"
SUBMIT_S = 540
JOB_S = 400
# A task gets a copy when half of its stage is done, or, if it is the only one, after a second.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.task.duration.threshold": "1s",
}


@dataclass
class Machines:
    """The cluster, what its workers have, and the proxies that the workers' requests pass, in the workers' order."""

    cluster: Cluster
    python: Path
    library: Path
    proxies: list[WatchedProxy]
    environment: dict[str, str]

    @contextmanager
    def holding(self, method: str, part: str) -> Iterator[None]:
        """Hold the requests of both workers of a method whose path contains ``part``."""
        with ExitStack() as stack:
            for proxy in self.proxies:
                stack.enter_context(proxy.holding(method, part))
            yield

    @contextmanager
    def in_the_middle(self, method: str, part: str, act: Callable[[int], None]) -> Iterator[None]:
        """Within the block, do something to the first worker that makes such a request, while that is held.

        The block is the driver's: Spark finds no data source for a write from a thread that it does not know.
        """
        with ThreadPoolExecutor(1) as thread, self.holding(method, part):
            ended = threading.Event()
            acting = thread.submit(self._act, act, ended)
            try:
                yield
            finally:
                ended.set()
            acting.result(DEADLINE_S)

    def _act(self, act: Callable[[int], None], ended: threading.Event) -> None:
        # As long as a job may take to come there; what is held meanwhile is let go if this fails.
        try:
            wait_until(lambda: ended.is_set() or self._holding(), "a task's request", deadline_s=JOB_S)
            act(self._holding()[0])
        except BaseException:
            self.release()
            raise

    def _holding(self) -> list[int]:
        """Return the numbers of the workers whose requests are held."""
        return [number for number, proxy in enumerate(self.proxies) if proxy.holds.is_set()]

    def kill_executor(self, number: int) -> None:
        """Kill the executor of a worker, and let its requests go."""
        pids = [pid for pid, worker in self.cluster.executors().items() if worker == number]
        assert pids, f"no executor of worker {number}"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.release()

    def lose(self, number: int) -> None:
        """Kill a worker and its executor."""
        self.cluster.lose(number)
        self.release()

    def let_others_go_on(self, number: int) -> None:
        """Hold the requests of this worker alone."""
        for other, proxy in enumerate(self.proxies):
            if other != number:
                proxy.release()

    def release(self) -> None:
        """Hold no requests."""
        for proxy in self.proxies:
            proxy.release()

    def keys_used(self, act: Callable[[], object]) -> set[str]:
        """Do something; return the access keys with which workers signed requests meanwhile."""
        for proxy in self.proxies:
            proxy.keys.clear()
        act()
        return set().union(*(proxy.keys for proxy in self.proxies))

    @contextmanager
    def refusing(self, key: str) -> Iterator[None]:
        """Refuse the workers' requests with this access key."""
        for proxy in self.proxies:
            proxy.refused = frozenset({key})
        try:
            yield
        finally:
            for proxy in self.proxies:
                proxy.refused = frozenset()

    def start_worker(self, number: int) -> None:
        """Start a worker, the first one or one in the place of one that is lost."""
        environment = {**self.environment, "AWS_ENDPOINT_URL": self.proxies[number].endpoint}
        self.cluster.start_worker(number, environment)

    def conf(self) -> dict[str, str]:
        """Return the settings of an application that uses all of the cluster."""
        return {
            "spark.master": self.cluster.master_url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": EXECUTOR_MEMORY,
            # One executor on each worker.
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "4",
            "spark.submit.pyFiles": str(self.library),
            "spark.pyspark.python": str(self.python),
            "spark.pyspark.driver.python": sys.executable,
            "spark.log.level": "ERROR",
            "spark.ui.enabled": "false",
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
        shared["AWS_SHARED_CREDENTIALS_FILE"] = str(write_profile(folder / "credentials"))
        cluster = stack.enter_context(spark_cluster(folder / "spark"))
        machines = Machines(cluster, python, library, proxies, shared)
        for number in range(len(proxies)):
            machines.start_worker(number)
        yield machines


@pytest.fixture(scope="session")
def spark(machines: Machines) -> Iterator[SparkSession]:
    """A session on the cluster whose driver is this process; it runs copies of slow tasks."""
    builder = SparkSession.builder.appName("wal3-cluster-tests")
    for name, value in {**machines.conf(), **SPECULATION}.items():
        if not name.startswith(("spark.pyspark.", "spark.submit.")):
            builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        # As a notebook's environment; the path as in `submitting`.
        patch.setenv("PYSPARK_PYTHON", str(machines.python))
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(machines.library))
        session = builder.getOrCreate()
    session.sparkContext.addPyFile(str(machines.library))
    register(session)
    yield session
    session.stop()


@pytest.fixture
def store(s3_url: str) -> ObjectStore:
    """An empty store on the S3 server."""
    return open_store(s3_url)


def submitting(machines: Machines, *arguments: str | Path, **conf: str) -> tuple[list[str | Path], dict[str, str]]:
    """Return the command and the environment of ``spark-submit`` on the cluster, as a user has it in a shell."""
    settings = {**machines.conf(), **conf}
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    # As in an activated environment. The path is the driver's alone: it is for the planner of streams, which Spark 4.3
    # starts with the workers' Python and without --py-files.
    environment = {**os.environ, "PYTHONPATH": str(machines.library)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    # spark-submit looks at the configuration for its own Python, a server only here.
    environment |= {"PYSPARK_PYTHON": settings["spark.pyspark.python"], "PYSPARK_DRIVER_PYTHON": sys.executable}
    return ["spark-submit", *options, *arguments], environment


def submit(machines: Machines, store: ObjectStore, folder: Path, *jobs: str, **conf: str) -> dict[str, Any]:
    """Run jobs by ``spark-submit``; return what they printed."""
    command, environment = submitting(machines, PROGRAM, store.url, folder, *jobs, **conf)
    return printed(finished(command, environment, folder).stdout.splitlines())


def finished(
    command: Sequence[str | Path], environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; fail unless it succeeds."""
    outcome = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=SUBMIT_S, check=False
    )
    assert outcome.returncode == 0, outcome.stderr[-5000:]
    return outcome


def printed(lines: Iterable[str]) -> dict[str, Any]:
    """Return what a program has printed of each job, by name."""
    return {name: found for line in lines for name, found in json.loads(line).items()}
