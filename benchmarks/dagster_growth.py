"""What Dagster's processes cost as a store grows: requests of each sensor by tick, and memory.

    PYTHONPATH=. .venv/bin/python benchmarks/dagster_growth.py                      # 100, 1,000 and 10,000 logs
    PYTHONPATH=. .venv/bin/python benchmarks/dagster_growth.py --fragments 1000000  # one log of many fragments, too
    PYTHONPATH=. .venv/bin/python benchmarks/dagster_growth.py --sizes 1000 --sweeps "" --ticks 200         # many ticks

Each size has a process of its own, on a directory store and a Dagster instance on SQLite. The logs are links to the
files of one log, which has three records and a cursor; the large log's fragments are pointers without files. Requests
are those of the directory store, where a listing is one; on S3 each thousand objects of a listing are one.

With ``--ticks``, each sensor looks at all logs so often, in a process of its own; a process that keeps nothing takes as
much memory after the last tick as after the first ones.

The peak is that of the process's resident memory while it evaluates the sensors; and of each sweep that the sensors and
schedules ask for, in a process of its own as a run has it, without Spark. The first row, without logs, is what Dagster
and the libraries take.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wal3_core import CursorStore, LogPosition, LogWriter, open_store
from wal3_core.runtime import Observer, RequestEnd, shared_runtime

ROOT = Path(__file__).parents[1]
SIZES = (0, 100, 1_000, 10_000)
SWEEPS = (
    "manifest",
    "verification",
    "garbage_plan",
    "collection",
    "deletion",
    "orphans",
    "snapshot_compaction",
    "compaction",
    "maintenance",
    "delay_queue",
)
FOLDERS = 40
NO_LOGS_OF_STEPS = """
compute_logs:
  module: dagster._core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
"""
SILENT = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# Their steps do not take the resource.
WITHOUT_LIMITS = {"manifest", "snapshot_compaction"}
WITHOUT_SPARK = {"resources": {"collection": {"config": {"spark_work_s_min": 1e9, "spark_bytes_min": 2**60}}}}


def name_of(number: int) -> str:
    return f"tenants/{number % FOLDERS}/log-{number:05}"


class Requests(Observer):
    """Counts the requests of this process to its stores."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def requested(self, store: str, kind: str, end: RequestEnd, seconds: float) -> None:
        del store, end, seconds
        self.counts[kind] += 1


def fill(folder: Path, logs: int, fragments: int) -> None:
    """Make one log, link its files as often as there are to be logs; and make one with many fragments."""
    store = open_store(folder.as_uri())
    if logs:
        with LogWriter.open_or_create(store, name_of(0)) as writer:
            writer.append_many([b"a record", b"another", b"a third"])
        CursorStore(store, name_of(0)).create("reader", LogPosition(1, 0))
        for number in range(1, logs):
            link(folder / name_of(0), folder / name_of(number))
    if fragments:
        from tests.large_logs import Grower  # noqa: PLC0415 - only then

        Grower(store, "large", real=False).grow(fragments, per_step=2048)
        CursorStore(store, "large").create("reader", LogPosition(fragments // 2, 0))


def link(source: Path, target: Path) -> None:
    for file in source.rglob("*"):
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, copy)


def sensors() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the sensors that ask the store, each with its tick."""
    from wal3_orchestration.defs.delay_queues import DELAY_QUEUES  # noqa: PLC0415 - see measure
    from wal3_orchestration.defs.dirty_logs.sensors import DIRTY_LOGS  # noqa: PLC0415 - see above
    from wal3_orchestration.defs.discovery import DISCOVERY  # noqa: PLC0415 - see above
    from wal3_orchestration.defs.garbage_collection.sensors import SENSORS  # noqa: PLC0415 - see above
    from wal3_orchestration.defs.key_compaction.sensors import DUE  # noqa: PLC0415 - see above
    from wal3_orchestration.defs.snapshot_compaction import LOPSIDED  # noqa: PLC0415 - see above

    for each in (DISCOVERY, *SENSORS, DELAY_QUEUES, LOPSIDED, DUE, DIRTY_LOGS):
        yield each.name, each.tick


def resident_kib(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:")))


def peak_mib() -> float:
    """Return the peak of resident memory since the last call."""
    peak = resident_kib("VmHWM")
    Path("/proc/self/clear_refs").write_text("5")
    return peak / 1024


def resources() -> dict[str, Any]:
    """Return what the sensors require, for the store that the environment names."""
    from wal3_orchestration.resources import CollectionResource, RollUpResource, StoreResource  # noqa: PLC0415 - see above

    return {"store": StoreResource.from_environment(), "collection": CollectionResource(), "rollup": RollUpResource()}


def evaluated(folder: Path) -> dict[str, Any]:
    """Evaluate every sensor until a round is over; in a process of its own."""
    os.environ["WAL3_STORE"] = folder.as_uri()
    from dagster import AddDynamicPartitionsRequest, DagsterInstance, build_sensor_context  # noqa: PLC0415 - see above

    from wal3_orchestration.deployment import settings  # noqa: PLC0415 - see above
    from wal3_orchestration.framework.scope import StoreScope  # noqa: PLC0415 - see above

    found: dict[str, Any] = {}
    home = home_of(folder)
    home.mkdir()
    (home / "dagster.yaml").write_text(settings() + NO_LOGS_OF_STEPS)
    with DagsterInstance.from_config(str(home)) as instance:
        for name, tick in sensors():
            cursor, rows = None, []
            peak_mib()
            while True:
                shared_runtime().observer = requests = Requests()
                begun_s = time.perf_counter()
                with build_sensor_context(instance, cursor=cursor, resources=resources()) as context:
                    result = tick(StoreScope(), context)
                taken_s = time.perf_counter() - begun_s
                for change in result.dynamic_partitions_requests or ():
                    if isinstance(change, AddDynamicPartitionsRequest) and change.partition_keys:
                        instance.add_dynamic_partitions(change.partitions_def_name, list(change.partition_keys))
                cursor = result.cursor
                rows.append((sum(requests.counts.values()), dict(requests.counts), taken_s))
                if '"after": "t' not in (cursor or ""):
                    break
            found[name] = {"rows": rows, "peak_mib": peak_mib()}
    return found


def repeated(folder: Path, name: str, ticks: int) -> dict[str, float]:
    """Evaluate a sensor over all logs again and again; return the resident memory after some ticks, in MiB."""
    os.environ["WAL3_STORE"] = folder.as_uri()
    from dagster import DagsterInstance, build_sensor_context  # noqa: PLC0415 - see above

    from wal3_orchestration.framework.scope import StoreScope  # noqa: PLC0415 - see above

    tick, resident_mib = dict(sensors())[name], {}
    with DagsterInstance.from_config(str(home_of(folder))) as instance:
        for number in range(1, ticks + 1):
            with build_sensor_context(instance, resources=resources()) as context:
                tick(StoreScope(), context)
            if number in {1, ticks // 10, ticks // 2, ticks}:
                resident_mib[str(number)] = resident_kib("VmRSS") / 1024
    return resident_mib


def swept(folder: Path, name: str) -> dict[str, Any]:
    """Do a sweep over the logs that the sensors have found; in a process of its own."""
    os.environ["WAL3_STORE"] = folder.as_uri()
    from dagster import DagsterInstance  # noqa: PLC0415 - see above

    from wal3_orchestration.definitions import defs  # noqa: PLC0415 - see above

    with DagsterInstance.from_config(str(home_of(folder))) as instance:
        begun_s = time.perf_counter()
        done = (
            defs()
            .resolve_job_def(f"{name}_sweep")
            .execute_in_process(
                instance=instance,
                run_config={**SILENT, **({} if name in WITHOUT_LIMITS else WITHOUT_SPARK)},
                raise_on_error=False,
            )
        )
        taken_s = time.perf_counter() - begun_s
    return {"success": done.success, "seconds": taken_s, "peak_mib": peak_mib()}


def home_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-home")


def in_a_process(folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=3600,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show_ticks(found: dict[str, Any]) -> None:
    for name, each in found.items():
        rows = each["rows"]
        first = rows[0]
        print(
            f"  {name:<20} {len(rows)} ticks a round, {first[0]:7,} requests in the first, {sum(r[0] for r in rows):7,}"
            f" in all, the longest {max(r[2] for r in rows):5.2f} s, peak {each['peak_mib']:6.1f} MiB  {first[1]}"
        )
    sys.stdout.flush()


def show_repeated(name: str, resident_mib: dict[str, float]) -> None:
    said = ", ".join(f"{mib:.1f} after {number}" for number, mib in resident_mib.items())
    print(f"  {name:<20} MiB after how many ticks over all logs: {said}", flush=True)


def show_sweep(name: str, each: dict[str, Any]) -> None:
    failed = "" if each["success"] else "  FAILED"
    print(f"  {name + '_sweep':<25} {each['seconds']:6.1f} s, peak {each['peak_mib']:6.1f} MiB{failed}", flush=True)


def child(options: argparse.Namespace) -> dict[str, Any]:
    """Do what a process of its own is started for."""
    if options.sensor:
        return repeated(options.child, options.sensor, options.ticks)
    return swept(options.child, options.sweep) if options.sweep else evaluated(options.child)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--fragments", type=int, default=0, help="how many fragments one more log has")
    parser.add_argument("--folder", type=Path, help="where the stores are made: a RAM disk is quick")
    parser.add_argument("--sweeps", default=",".join(SWEEPS))
    parser.add_argument("--ticks", type=int, default=0, help="how often each sensor looks at all logs")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sweep", default="", help=argparse.SUPPRESS)
    parser.add_argument("--sensor", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sweeps = [name for name in options.sweeps.split(",") if name]
    if options.child is not None:
        print(json.dumps(child(options)))
        return
    cases = [(int(size), 0) for size in options.sizes.split(",") if size]
    cases += [(0, options.fragments)] if options.fragments else []
    for logs, fragments in cases:
        with tempfile.TemporaryDirectory(dir=options.folder) as parent:
            folder = Path(parent) / "store"
            fill(folder, logs, fragments)
            print(f"a log of {fragments:,} fragments" if fragments else f"{logs:,} logs", flush=True)
            show_ticks(in_a_process(folder))
            for name, _ in sensors() if options.ticks else ():
                show_repeated(name, in_a_process(folder, "--sensor", name, "--ticks", str(options.ticks)))
            for name in sweeps:
                show_sweep(name, in_a_process(folder, "--sweep", name))


if __name__ == "__main__":
    main()
