"""Spark on a cluster of two workers: balance of tasks, requests, the driver's memory: ``make bench-cluster``.

The master and the workers are processes of their own; a worker has one core. Figures of each stage are those that
Spark's own REST interface gives.

- A log of many tiny fragments beside many logs of one: verified, and read.
- A log of fragments of 8 MiB: verified, and read, beside ``spark.read.parquet`` of the same files.
- Planning alone, of logs whose fragments do not exist: the peak memory of a driver's Python process.
- One task of a read, in a store as slow as S3: many fragments of one log, and many logs of one fragment.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.slow_store import SlowStore
from tests.cluster.spark_cluster import Cluster, spark_cluster
from tests.large_logs import Grower
from tests.s3_server import free_port
from tests.stores import CountingStore
from wal3_core import LogReader, LogWriter, WriterOptions, list_logs, open_store
from wal3_core.format.snapshot import count_fragments
from wal3_core.spark import planning, register, verify, verify_logs
from wal3_core.spark.columns import COLUMNS, spark_schema
from wal3_core.spark.jobs import TASK_BYTES, count_pieces, cut, work_table
from wal3_core.spark.requests import EVERYTHING, Bounds, ReadRequest
from wal3_core.spark.source import LogSourceReader
from wal3_core.store.object_store import ObjectStore

ROOT = Path(__file__).parent.parent
WORKERS = 2
FRAGMENT_BYTES = 8 * 2**20
RECORD_BYTES = 1024


@contextmanager
def cluster_session(folder: Path) -> Iterator[tuple[SparkSession, str]]:
    """Start a cluster, and a session on it; give the address of its REST interface, too."""
    with spark_cluster(folder / "spark") as cluster:
        for number in range(WORKERS):
            cluster.start_worker(number, {})
        port = free_port()
        spark = _session(cluster, port)
        try:
            yield spark, f"http://127.0.0.1:{port}/api/v1/applications/{spark.sparkContext.applicationId}"
        finally:
            spark.stop()


def _session(cluster: Cluster, ui_port: int) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.master": cluster.master_url,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The bar: a driver that holds more fails.
        "spark.driver.memory": "512m",
        "spark.executor.memory": "768m",
        "spark.executor.cores": "1",
        "spark.cores.max": str(WORKERS),
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.ui.port": str(ui_port),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.appName("wal3-bench-cluster")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def stages_of(rest: str, since: int) -> list[dict[str, Any]]:
    """Return the stages after number ``since``, each with its tasks, as the REST interface tells them."""
    # It shows a stage a moment after its end.
    time.sleep(1)
    listed = _json(f"{rest}/stages?status=complete")
    numbers = sorted(stage["stageId"] for stage in listed if stage["stageId"] > since)
    return [_json(f"{rest}/stages/{number}?details=true")[0] for number in numbers]


def _json(url: str) -> Any:  # noqa: ANN401 - as JSON has it
    with urllib.request.urlopen(url, timeout=60) as reply:
        return json.load(reply)


class Meter:
    """Runs something, and prints its seconds and the balance of its largest stage."""

    def __init__(self, rest: str) -> None:
        self._rest = rest
        self._seen = -1

    def run(self, name: str, work: Callable[[], object], *, unit: str, count: float) -> None:
        """Print a line: seconds, units a second, tasks of the stage that took longest, their median and longest."""
        began = time.perf_counter()
        work()
        elapsed = time.perf_counter() - began
        stages = stages_of(self._rest, self._seen)
        self._seen = max((stage["stageId"] for stage in stages), default=self._seen)
        largest = max(stages, key=lambda stage: stage["executorRunTime"])
        # The first task of each executor starts its Python.
        tasks = sorted(task["taskMetrics"]["executorRunTime"] for task in largest["tasks"].values())
        median, longest = statistics.median(tasks), tasks[-1]
        print(
            f"{name:44} {elapsed:7.1f} s {count / elapsed:10,.0f} {unit}/s  {len(tasks):4} tasks,"
            f" median {median / 1e3:6.2f} s, longest {longest / 1e3:6.2f} s = {longest / max(1, median):.1f} x",
            flush=True,
        )


def read(spark: SparkSession, url: str, **options: str) -> None:
    frame = spark.read.format("wal3").options(store=url, columns="offset,timestamp_us,key,body", **options).load()
    frame.write.format("noop").mode("overwrite").save()


def tiny_fragments(spark: SparkSession, meter: Meter, url: str, *, fragments: int, logs: int) -> None:
    names = ["large", *(f"small/{number}" for number in range(logs))]
    make_tiny_fragments(open_store(url), names, fragments)
    print(f"\nOne log of {fragments:,} fragments of one record, and {logs:,} logs of one")
    planned_balance(url, names)
    everything = fragments + logs
    for turn in ("first", "again"):
        meter.run(f"verify_logs, {turn}", lambda: sound(spark, url, names), unit="fragments", count=everything)
    for turn in ("first", "again"):
        meter.run(f"read, {turn}", lambda: read(spark, url, prefix=""), unit="fragments", count=everything)


def make_tiny_fragments(store: ObjectStore, names: Sequence[str], fragments: int) -> None:
    """Make the first log of many fragments, and the others of one, unless an earlier run has kept them."""
    if {*names} <= set(list_logs(store)):
        return
    Grower(store, names[0]).grow(fragments)
    for name in names[1:]:
        with LogWriter.open_or_create(store, name) as writer:
            writer.append(b"x")


def planned_balance(url: str, names: Sequence[str]) -> None:
    """Print how evenly the work is cut: objects and bytes of each task, as the planner counts them."""
    store = open_store(url)
    pieces = [piece for name in names for piece in verify.plan_log(store, name).pieces]
    count = count_pieces(pieces, cores=WORKERS, task_bytes=TASK_BYTES)
    costs = Counter[int]()
    objects = Counter[int]()
    for number, piece in cut(store, pieces, count=count):
        costs[number] += piece.cost
        objects[number] += count_fragments((piece.pointer,)) if not piece.opened else 0
    for what, found in (("fragments", objects), ("cost", costs)):
        median, largest = statistics.median(found.values()), max(found.values())
        print(
            f"planned {what} a task: median {median:,.0f}, largest {largest:,} = {largest / median:.2f} x", flush=True
        )


def sound(spark: SparkSession, url: str, names: list[str]) -> None:
    assert all(report.sound for report in verify_logs(spark, url, names))


def large_log(spark: SparkSession, meter: Meter, url: str, *, num_bytes: int) -> None:
    each = FRAGMENT_BYTES // RECORD_BYTES
    options = WriterOptions(batch_bytes_max=2 * FRAGMENT_BYTES)
    with LogWriter.open_or_create(open_store(url), "bytes", options=options) as writer:
        for _ in range(num_bytes // FRAGMENT_BYTES):
            data = os.urandom(FRAGMENT_BYTES)
            writer.append_many([data[at * RECORD_BYTES : (at + 1) * RECORD_BYTES] for at in range(each)])
    reader = LogReader.open(open_store(url), "bytes")
    planned_balance(url, ["bytes"])
    print(f"\nOne log of {num_bytes / 2**20:,.0f} MiB in {len(reader.scan()):,} fragments")
    parquet = f"{url}/bytes/Life={reader.manifest().log_id}/log"
    mib = num_bytes / 2**20
    for turn in ("first", "again"):
        meter.run(f"verify_logs, {turn}", lambda: sound(spark, url, ["bytes"]), unit="MiB", count=mib)
        meter.run(f"read, {turn}", lambda: read(spark, url, log="bytes"), unit="MiB", count=mib)
        meter.run(
            f"spark.read.parquet, {turn}",
            lambda: spark.read.parquet(parquet).write.format("noop").mode("overwrite").save(),
            unit="MiB",
            count=mib,
        )


def plan(url: str, count: int) -> None:
    """Plan a verification and a read of a log whose fragments do not exist; print requests, seconds, peak memory."""
    before = _peak_mib()
    store = CountingStore(open_store(url))
    began = time.perf_counter()
    pieces = verify.plan_log(store, "a").pieces
    number = count_pieces(pieces, cores=WORKERS, task_bytes=TASK_BYTES)
    rows = work_table(verify.work_of(cut(store, pieces, count=number)))
    elapsed, requests = time.perf_counter() - began, store.requests.total()
    began = time.perf_counter()
    request = ReadRequest.from_options({"store": url, "log": "a"})
    tasks = LogSourceReader(request, spark_schema(COLUMNS)).partitions()
    print(
        f"{count:>11,} fragments: verification {elapsed:5.1f} s, {requests:,} requests, {number:,} tasks of"
        f" {len(rows):,} rows; read {time.perf_counter() - began:5.1f} s, {len(tasks):,} tasks;"
        f" Python {before:.0f} MiB before, {_peak_mib():.0f} MiB at most",
        flush=True,
    )


def one_task(count: int) -> None:
    """Read fragments of one log, and as many logs of one, as one task does, at 20 ms a GET; print requests, seconds."""
    store = SlowStore()
    # Tasks open stores by their URLs.
    planning.open_store = lambda _: store
    with LogWriter.open_or_create(store, "large") as writer:
        for _ in range(count):
            writer.append(b"x")
    for number in range(count):
        with LogWriter.open_or_create(store, f"small/{number}") as writer:
            writer.append(b"x")
    for kind, options in (("of one log", {"log": "large"}), ("each of a log", {"prefix": "small"})):
        request = ReadRequest.from_options({"store": "file:///unused", "partitions": "1", **options})
        names = options.get("log", "").split() or [f"small/{number}" for number in range(count)]
        pieces = [piece for name in names for piece in verify.plan_log(store, name).pieces]
        (task,) = planning.tasks_of(store, request, pieces, lambda _: Bounds())
        store.requests.clear()
        began = time.perf_counter()
        records = sum(len(batch) for batch in planning.read_runs(request, spark_schema(COLUMNS), task, EVERYTHING))
        elapsed, requests = time.perf_counter() - began, store.requests.total()
        print(f"one task, {records} fragments {kind}: {requests} requests, {elapsed:.1f} s at 20 ms each", flush=True)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fragments", type=int, default=20_000, help="of the log of tiny ones (default: %(default)s)")
    parser.add_argument("--logs", type=int, default=500, help="of one fragment beside it (default: %(default)s)")
    parser.add_argument("--mib", type=int, default=2048, help="of the log in large fragments (default: %(default)s)")
    parser.add_argument("--planned", type=int, default=10**6, help="fragments that are planned (default: %(default)s)")
    parser.add_argument("--parts", default="planning,task,tiny,bytes")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the logs of tiny fragments for the next run")
    parser.add_argument("--plan", nargs=2, metavar=("URL", "FRAGMENTS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plan:
        plan(given.plan[0], int(given.plan[1]))
        return
    parts = given.parts.split(",")
    with tempfile.TemporaryDirectory() as folder:
        if "planning" in parts:
            for count in (10**4, given.planned):
                url = (Path(folder) / f"planned-{count}").as_uri()
                Grower(open_store(url), real=False).grow(count, per_step=128, per_change=count)
                # A process of its own: the peak is the process's.
                subprocess.run([sys.executable, __file__, "--plan", url, str(count)], check=True)
        if "task" in parts:
            one_task(128)
        if {"tiny", "bytes"} & set(parts):
            with cluster_session(Path(folder)) as (spark, rest):
                meter = Meter(rest)
                if "tiny" in parts:
                    url = ((given.keep or Path(folder)).resolve() / "tiny").as_uri()
                    tiny_fragments(spark, meter, url, fragments=given.fragments, logs=given.logs)
                if "bytes" in parts:
                    large_log(spark, meter, (Path(folder) / "bytes").as_uri(), num_bytes=given.mib * 2**20)
    print(f"Load of the machine: {os.getloadavg()}, of {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
