"""From how many logs, or bytes, on Spark is quicker than the run's own process, Spark's start included.

    PYTHONPATH=. .venv/bin/python benchmarks/spark_or_not.py --folder /dev/shm

Each measurement has a process of its own; the two ways alternate. What a run takes to begin is the same for both and
is left out: Python's imports are done before the clock starts. A store in memory as slow as S3 says what latencies make
of it; Spark's workers cannot reach that one, so its figures stand beside Spark's on the directory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.dagster_growth import fill, name_of
from benchmarks.slow_store import SlowStore
from wal3_core import CursorStore, LogPosition, LogWriter, open_store
from wal3_core.fleet.survey import survey_log
from wal3_core.log.read.scrub import scrub
from wal3_core.options import CollectorOptions
from wal3_core.store.object_store import ObjectStore

ROOT = Path(__file__).parents[1]
AT_ONCE = 16
OPTIONS = CollectorOptions()
MIB = 2**20


def plan_here(store: ObjectStore, logs: list[str]) -> float:
    begun_s = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda log: survey_log(store, log, OPTIONS), logs))
    return time.perf_counter() - begun_s


def plan_on_spark(url: str, logs: list[str]) -> float:
    from wal3_core.spark.maintenance import plan_collections  # noqa: PLC0415 - only where Spark is
    from wal3_orchestration.resources import spark_resource, spark_session  # noqa: PLC0415 - see above

    begun_s = time.perf_counter()
    plan_collections(spark_session(spark_resource()), url, logs, OPTIONS)
    return time.perf_counter() - begun_s


def read_here(store: ObjectStore, logs: list[str]) -> float:
    begun_s = time.perf_counter()
    for log in logs:
        assert scrub(store, log).sound
    return time.perf_counter() - begun_s


def read_on_spark(url: str, logs: list[str]) -> float:
    from wal3_core.spark.verify import verify_logs  # noqa: PLC0415 - only where Spark is
    from wal3_orchestration.resources import spark_resource, spark_session  # noqa: PLC0415 - see above

    begun_s = time.perf_counter()
    assert all(report.sound for report in verify_logs(spark_session(spark_resource()), url, logs))
    return time.perf_counter() - begun_s


def child(what: str, way: str, url: str, logs: list[str]) -> float:
    if way == "spark":
        return (plan_on_spark if what == "plan" else read_on_spark)(url, logs)
    return (plan_here if what == "plan" else read_here)(open_store(url), logs)


def measured(what: str, way: str, url: str, logs: list[str]) -> float:
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps([what, way, url, logs])],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "WAL3_STORE": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=1200,
    )
    return float(done.stdout.splitlines()[-1])


def slow(count: int) -> float:
    """Plan for logs of a store that answers as slowly as S3."""
    store = SlowStore()
    names = [name_of(number) for number in range(count)]

    def make(log: str) -> None:
        with LogWriter.open_or_create(store, log) as writer:
            writer.append_many([b"a record", b"another", b"a third"])
        CursorStore(store, log).create("reader", LogPosition(1, 0))

    with ThreadPoolExecutor(64) as threads:
        list(threads.map(make, names))
    return plan_here(store, names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", default="8,100,400,1000")
    parser.add_argument("--mib", default="64,256,1024")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(child(*json.loads(options.child)))
        return
    for count in map(int, filter(None, options.logs.split(","))):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            fill(Path(folder) / "store", count, 0)
            url, names = (Path(folder) / "store").as_uri(), [name_of(number) for number in range(count)]
            compare(f"plans of {count:5,} logs", "plan", url, names, options.times)
        print(f"  as slow as S3, in this process: {slow(count):.1f} s", flush=True)
    for size in map(int, filter(None, options.mib.split(","))):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            url = (Path(folder) / "store").as_uri()
            with LogWriter.open_or_create(open_store(url), "large") as writer:
                for _ in range(size):
                    writer.append_many([os.urandom(1024) for _ in range(1024)])
            compare(f"{size:5,} MiB read back", "read", url, ["large"], options.times)


def compare(label: str, what: str, url: str, logs: list[str], times: int) -> None:
    taken: dict[str, list[float]] = {"here": [], "spark": []}
    for _ in range(times):
        for way, seconds in taken.items():
            seconds.append(measured(what, way, url, logs))
    here, spark = (sorted(seconds)[len(seconds) // 2] for seconds in taken.values())
    print(f"{label}: in this process {here:6.2f} s, on Spark {spark:6.2f} s, {spark / here:5.1f} times", flush=True)


if __name__ == "__main__":
    main()
