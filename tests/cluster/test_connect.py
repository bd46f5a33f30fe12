"""The same program through a Spark Connect server: the client has no JVM, and the server runs on the cluster."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.conftest import PROGRAM, Machines, finished, printed, submitting
from tests.cluster.outcomes import check, prepare
from tests.cluster.spark_cluster import wait_until
from tests.cluster.submitted import JOBS, LIBRARY_VARIABLE
from tests.s3_server import free_port
from wal3_core.store.object_store import ObjectStore

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(machines: Machines, folder: Path) -> Iterator[str]:
    """Run a server that works on the cluster; give its address."""
    port = free_port()
    conf = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    command, environment = submitting(machines, "--class", SERVER, **conf)
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: server.poll() is not None or _listens(port), "the Spark Connect server")
        assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait(60)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_program_does_all_jobs_through_spark_connect(machines: Machines, store: ObjectStore, tmp_path: Path) -> None:
    prepare(store, *JOBS)

    with connect_server(machines, tmp_path) as address:
        found = through(address, machines, store, tmp_path, *JOBS)

    for job in JOBS:
        check(job, store, found[job])
        assert (found[job]["retried"] or {"tasks": 0})["tasks"] == 0, found[job]


def test_executor_killed_under_spark_connect_changes_no_result_and_is_reported(
    machines: Machines, store: ObjectStore, tmp_path: Path
) -> None:
    prepare(store, "verify", "compact")

    with connect_server(machines, tmp_path) as address:
        with machines.in_the_middle("GET", "/log/", machines.kill_executor):
            found = through(address, machines, store, tmp_path, "verify")
        with machines.in_the_middle("PUT", "/log/", machines.kill_executor):
            found |= through(address, machines, store, tmp_path, "compact")

    for job in ("verify", "compact"):
        check(job, store, found[job])
        retried = found[job]["retried"]
        assert retried["tasks"] >= 1, found[job]
        # No more is said than is known.
        assert (retried["attempts_only"], retried["executors"], retried["reasons"]) == (True, 0, []), found[job]


def through(address: str, machines: Machines, store: ObjectStore, folder: Path, *jobs: str) -> dict[str, Any]:
    """Run jobs in a client of the server; return what they printed."""
    environment = {**os.environ, "SPARK_REMOTE": address, LIBRARY_VARIABLE: str(machines.library)}
    command = [sys.executable, PROGRAM, store.url, folder, *jobs]
    return printed(finished(command, environment, folder).stdout.splitlines())
