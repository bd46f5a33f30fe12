"""Many logs in one process, each figure beside its peer or limit, in one run: ``make bench-fleet``.

It prints the memory of an open log; the throughput of 1,000 logs written at once beside that of one log; how much a
hot log slows 1,000 cold ones; requests per append, also with a limit of unprocessed records; and what marking adds to
an append at S3's published latencies, together with the bytes of a marker.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.slow_store import CAS_S, PUT_S, SlowStore
from tests.stores import CountingStore
from wal3_core import DirtyLog, Fleet, FleetOptions, LogReader, LogWriter, MemoryStore, ThreadRuntime, open_store
from wal3_core.runtime import shared_runtime

OPEN_LOGS = 5000
WRITTEN_LOGS = 1000
# Appends of each log that wait at the same time.
WAITING = 32
SECONDS = 10.0
COLD_CALLERS = (1, 4, 16, 64)
# Records of a log that is long enough to be checked for back-pressure.
LONG_LOG = 1000
BODY = os.urandom(100)
CREATING = FleetOptions(creates=True)
console = Console(width=140)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def logs(count: int) -> list[str]:
    return [f"tenants/{number % 40}/log-{number}" for number in range(count)]


def memory(folder: Path) -> None:
    """On a disk: what a store in memory holds would be counted too."""
    store = open_store(folder.as_uri())
    with Fleet.open(store, options=FleetOptions(creates=True, logs_open_max=2 * OPEN_LOGS)) as fleet:
        # What a process loads and starts once is not counted.
        append_to_all(fleet, [f"warm/{number}" for number in range(200)], 1)
        before = resident_bytes()
        append_to_all(fleet, logs(OPEN_LOGS), 1)
        each = (resident_bytes() - before) / OPEN_LOGS / 1024
        console.print(f"memory of each of {OPEN_LOGS:,} open logs, written once: {each:.1f} KiB (bar: 48)")


def append_to_all(fleet: Fleet, names: list[str], times: int) -> float:
    """Append to each log so often, all at once; return the seconds."""
    began = time.perf_counter()
    futures = [fleet.submit(log, BODY) for _ in range(times) for log in names]
    for future in futures:
        future.result()
    return time.perf_counter() - began


def throughput(folder: Path) -> None:
    table = Table(title=f"Appends/s on disk, 100 B records, {WAITING} of each log waiting at a time")
    for name in ("logs", "marked", "appends/s", "commits/s", "bar"):
        table.add_column(name, justify="right")
    for count, server in ((1, None), (WRITTEN_LOGS, None), (WRITTEN_LOGS, "bench")):
        with Fleet.open(open_store(folder.as_uri()), server=server, options=CREATING) as fleet:
            append_to_all(fleet, logs(count), 1)
            times = WAITING if count > 1 else WAITING * 100
            before = commits(folder, count)
            seconds = min(append_to_all(fleet, logs(count), times) for _ in range(3))
            per_round = (commits(folder, count) - before) / 3
        bar = "5,000" if count > 1 else ""
        rate = f"{count * times / seconds:,.0f}"
        table.add_row(f"{count:,}", "yes" if server else "no", rate, f"{per_round / seconds:,.0f}", bar)
    console.print(table)


def commits(folder: Path, count: int) -> int:
    """How often the logs' manifests were changed."""
    store = open_store(folder.as_uri())
    return sum(LogReader.open(store, log).manifest().generation for log in logs(count))


def fairness(folder: Path) -> None:
    """Callers append to cold logs, to each once; meanwhile 64 callers append to a hot one, or do not."""
    table = Table(title=f"One append each to {WRITTEN_LOGS:,} cold logs on disk, milliseconds")
    for name in ("cold callers", "p50 alone", "p99", "p50 beside a hot log", "p99", "hot appends/s", "ratio (bar 2)"):
        table.add_column(name, justify="right")
    with Fleet.open(open_store(folder.as_uri()), options=CREATING) as fleet:
        append_to_all(fleet, [*logs(WRITTEN_LOGS), "hot"], 1)
        alone = {callers: cold_appends(fleet, callers) for callers in COLD_CALLERS}
        stop, counted = threading.Event(), Counter[str]()

        def heat() -> None:
            while not stop.is_set():
                fleet.append("hot", BODY)
                counted["hot"] += 1

        with ThreadPoolExecutor(64) as pool:
            for _ in range(64):
                pool.submit(heat)
            for callers in COLD_CALLERS:
                before, began = counted["hot"], time.perf_counter()
                beside = cold_appends(fleet, callers)
                rate = (counted["hot"] - before) / (time.perf_counter() - began)
                quantiles = [f"{each[at] * 1e3:,.1f}" for each in (alone[callers], beside) for at in (49, 98)]
                table.add_row(f"{callers:,}", *quantiles, f"{rate:,.0f}", f"{beside[49] / alone[callers][49]:.2f}")
            stop.set()
    console.print(table)


def cold_appends(fleet: Fleet, callers: int) -> list[float]:
    """Append once to each cold log, with so many appends waiting at a time; return the latencies' percentiles."""
    with ThreadPoolExecutor(callers) as pool:
        return statistics.quantiles(pool.map(lambda log: timed(fleet, log), logs(WRITTEN_LOGS)), n=100)


def timed(fleet: Fleet | LogWriter, log: str | None = None) -> float:
    began = time.perf_counter()
    if isinstance(fleet, LogWriter):
        fleet.append(BODY)
    else:
        assert log is not None
        fleet.append(log, BODY)
    return time.perf_counter() - began


def requests() -> None:
    """Count the requests of the same appends through one writer, a fleet, and a fleet with a limit of its logs."""
    counting = CountingStore(MemoryStore(shared_runtime(), name=uuid.uuid4().hex))
    with LogWriter.open_or_create(counting, "one") as writer:
        writer.append(BODY)
        counting.requests.clear()
        for _ in range(100):
            writer.append(BODY)
    alone = counting.requests.total() / 100
    with Fleet.open(counting, options=CREATING) as fleet:
        append_to_all(fleet, logs(100), 1)
        counting.requests.clear()
        for _ in range(10):
            for log in logs(100):
                fleet.append(log, BODY)
    console.print(
        f"requests of an append: one writer {alone:.2f}, a fleet of 100 logs {counting.requests.total() / 1000:.2f}"
    )
    free, limited = (requests_of_long_logs(limit) for limit in (None, LONG_LOG * 2))
    console.print(f"... of {LONG_LOG:,} appends to each of 10 logs: without a limit {free:.3f}, with one {limited:.3f}")


def requests_of_long_logs(unprocessed_max: int | None) -> float:
    """Double logs of some length record by record; a log is checked in the beginning, and twice after."""
    counting = CountingStore(MemoryStore(shared_runtime(), name=uuid.uuid4().hex))
    with Fleet.open(counting, options=CREATING) as fleet:
        for log in logs(10):
            fleet.append_many(log, [BODY] * LONG_LOG)
    counting.requests.clear()
    with Fleet.open(counting, options=FleetOptions(unprocessed_max=unprocessed_max)) as fleet:
        for _ in range(LONG_LOG):
            for log in logs(10):
                fleet.append(log, BODY)
    return counting.requests.total() / (10 * LONG_LOG)


def marking() -> None:
    table = Table(title=f"Marking at S3's latencies (PUT {PUT_S * 1e3:.0f} ms, CAS {CAS_S * 1e3:.0f}), milliseconds")
    titles = ("latencies", "logs", "callers of each", "pause", "p50", "marked", "ratio (bar 1.15)", "p99", "marked p99")
    for name in (*titles, "PUT and CAS of markers, of all"):
        table.add_column(name, justify="right")
    for spread in (0.0, 0.3):
        for count, callers, pause_s in ((1, 1, 0.0), (1, 64, 0.0), (50, 1, 0.0), (50, 1, 0.5), (50, 1, 3.0)):
            plain, _ = slow_appends(count, callers, pause_s, spread, marked=False)
            marked, sent = slow_appends(count, callers, pause_s, spread, marked=True)
            share = (sent["PUT dirty"] + sent["CAS dirty"]) / sum(n for kind, n in sent.items() if kind[:3] != "GET")
            table.add_row(
                f"spread {spread}" if spread else "constant",
                str(count),
                str(callers),
                f"{pause_s} s",
                *(f"{plain[49] * 1e3:.0f}", f"{marked[49] * 1e3:.0f}", f"{marked[49] / plain[49]:.2f}"),
                *(f"{plain[98] * 1e3:.0f}", f"{marked[98] * 1e3:.0f}", f"{share:.0%}"),
            )
    console.print(table)


def slow_appends(
    count: int, callers: int, pause_s: float, spread: float, *, marked: bool
) -> tuple[list[float], Counter[str]]:
    """Append from each caller after random pauses; return the latencies' percentiles, and the requests."""
    store, times = SlowStore(spread), list[float]()
    # Enough threads for every request under way: this measures the protocol, not this process's limit.
    with ThreadRuntime(workers_max=128) as runtime:
        dirty = DirtyLog.open_or_create(store, "bench", runtime=runtime) if marked else None
        writers = [LogWriter.open_or_create(store, log, runtime=runtime, marks=dirty) for log in logs(count)]
        store.requests.clear()
        began = time.perf_counter()

        def call(writer: LogWriter) -> None:
            while (now := time.perf_counter()) < began + SECONDS:
                if pause_s:
                    time.sleep(random.expovariate(1 / pause_s))
                took = timed(writer)
                if now > began + 1:
                    times.append(took)

        with ThreadPoolExecutor(count * callers) as pool:
            list(pool.map(call, writers * callers))
        for writer in writers:
            writer.close()
        if dirty is not None:
            dirty.close()
    return statistics.quantiles(times, n=100), store.requests


def marker_bytes() -> None:
    store = MemoryStore(shared_runtime(), name=uuid.uuid4().hex)
    with Fleet.open(store, server="bench", options=CREATING) as fleet:
        append_to_all(fleet, logs(WRITTEN_LOGS), 1)
        append_to_all(fleet, logs(WRITTEN_LOGS), 5)
    held = LogReader.open(store, "dirty/bench").manifest()
    sizes = [len(each.key or b"") + len(each.body or b"") for each in LogReader.open(store, "dirty/bench").records()]
    console.print(
        f"a marker, names of {len(logs(WRITTEN_LOGS)[-1])} bytes: {statistics.mean(sizes):.1f} bytes of key and body"
        f" (bar: 48); {held.num_bytes / held.num_records:.1f} bytes stored, in {len(held.fragments)} fragments and"
        f" {len(held.snapshots)} snapshots"
    )


def main() -> None:
    with TemporaryDirectory(dir=os.environ.get("WAL3_BENCH_DIR")) as folder:
        memory(Path(folder, "memory"))
        throughput(Path(folder, "throughput"))
        fairness(Path(folder, "fairness"))
    requests()
    marker_bytes()
    marking()


if __name__ == "__main__":
    main()
