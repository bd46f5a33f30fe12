"""A Spark standalone cluster of one machine: a master and workers, each a process of its own, on the loopback alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from tests.s3_server import free_port

SPARK_HOME = Path(pyspark.__file__).parent
DEADLINE_S = 90
# For daemons that do next to nothing, and for executors of short tasks: compilers and collectors of few threads.
DAEMON_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
EXECUTOR = "CoarseGrainedExecutorBackend"
EXECUTOR_MEMORY = "512m"
# Executors that tests kill are replaced, however many.
_SETTINGS = ("-Dspark.deploy.maxExecutorRetries=-1",)
# Spark needs them on Java 17; spark-submit would add them.
_OPENED = ("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")


def wait_until(done: Callable[[], object], what: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Return when something has come about; fail at the deadline."""
    limit = time.monotonic() + deadline_s
    while not done():
        assert time.monotonic() < limit, f"{what}: not within {deadline_s:.0f} s"
        time.sleep(0.05)


@dataclass
class Cluster:
    """The processes of one cluster, and where they are."""

    folder: Path
    port: int = field(default_factory=free_port)
    ui_port: int = field(default_factory=free_port)
    workers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def master_url(self) -> str:
        """The URL for ``--master``."""
        return f"spark://127.0.0.1:{self.port}"

    def state(self) -> dict[str, Any]:
        """Return what the master says of its workers and applications."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ui_port}/json/", timeout=10) as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    def alive(self) -> int:
        """Return how many workers the master knows to be alive."""
        try:
            return sum(worker["state"] == "ALIVE" for worker in self.state()["workers"])
        except OSError:
            return 0

    def start_master(self) -> subprocess.Popen[bytes]:
        """Start the master."""
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.ui_port)]
        return self._start("master", ["org.apache.spark.deploy.master.Master", *options], {})

    def start_worker(self, number: int, environment: Mapping[str, str]) -> None:
        """Start a worker with room for three executors, which get its environment, and wait until the master knows."""
        before = self.alive()
        # Of its own: Spark runs no copy of a task on the host of the original.
        host = f"127.0.0.{number + 2}"
        options = ["--host", host, "--webui-port", str(free_port()), "--cores", "3", "--memory", "3g"]
        options += ["--work-dir", str(self.folder / f"work-{number}"), self.master_url]
        command = ["org.apache.spark.deploy.worker.Worker", *options]
        self.workers[number] = self._start(f"worker-{number}", command, {**environment, "SPARK_LOCAL_IP": host})
        wait_until(lambda: self.alive() > before, f"worker {number} of {self.folder}")

    def executors(self) -> dict[int, int]:
        """Return the processes that run executors now, each with its worker's number."""
        numbers = {worker.pid: number for number, worker in self.workers.items()}
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        found = {pid: numbers.get(parent_of(pid)) for pid in pids if EXECUTOR in command_of(pid)}
        return {pid: number for pid, number in found.items() if number is not None}

    def lose(self, number: int) -> None:
        """Kill a worker and its executors at once, as a machine that is switched off."""
        executors = [pid for pid, of in self.executors().items() if of == number]
        for pid in (self.workers[number].pid, *executors):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.workers[number].wait(DEADLINE_S)

    def _start(self, name: str, command: list[str], further: Mapping[str, str]) -> subprocess.Popen[bytes]:
        # Only what a machine of its own would have: nothing of the tests' environment reaches executors.
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
        environment |= {
            "SPARK_LOCAL_IP": "127.0.0.1",
            **further,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_SCALA_VERSION": "2.13",
        }
        environment |= {"SPARK_LOCAL_DIRS": str(self.folder / "scratch"), "SPARK_CONF_DIR": str(self.folder / "conf")}
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                ["java", *DAEMON_OPTIONS, *_SETTINGS, *_OPENED, "-cp", f"{SPARK_HOME}/jars/*", *command],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


@contextmanager
def spark_cluster(folder: Path) -> Iterator[Cluster]:
    """Run a master; it, workers that are started, and what they started is gone at the end."""
    (folder / "conf").mkdir(parents=True)
    cluster = Cluster(folder)
    master = cluster.start_master()
    try:
        wait_until(lambda: _answers(cluster), f"the master of {folder}")
        yield cluster
    finally:
        for pid in cluster.executors():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in (*cluster.workers.values(), master):
            process.kill()
            process.wait(DEADLINE_S)


def _answers(cluster: Cluster) -> bool:
    try:
        return bool(cluster.state())
    except OSError:
        return False


def command_of(pid: int) -> str:
    """Return a process's command line; empty when it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 when it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
