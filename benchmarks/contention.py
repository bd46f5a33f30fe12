"""Several processes that append to one log at once, beside one process: ``make bench-contention``.

python -m benchmarks.contention [--processes N ...] [--callers N] [--seconds N] [--folder DIR | --simulated]

Each process has some callers, each with one append under way. They are processes of this machine and a directory; or,
``--simulated``, at S3's latencies in simulated time, in which the machine's speed has no part. ``share`` is what the
process with the fewest appends has of an equal share. Then new writers begin beside them, one after the other, with
one append each: ``new, s`` is the longest time from opening the log until it is durable. Requests are those of all
processes, for each append that became durable.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
import uuid
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.slow_store import SlowStore
from tests.faults.simulator import SimProcess, Simulation
from tests.stores import CountingStore
from wal3_core import ContentionError, LogPosition, LogWriter, MemoryStore, open_store

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier, Event


LOG = "contended"
KINDS = ("PUT", "CAS", "GET")
# Time for writers to learn of each other, which does not count.
WARM_S = 8.0
# New writers, and the pause between two.
NUM_NEW, NEW_EACH_S = 5, 1.3
# The appends end then, even if the new writers have not.
NEW_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What each process does."""

    url: str
    callers: int
    seconds: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Share:
    """What became of one process's appends."""

    waits_s: list[float]
    durable: int
    refused: int
    contentions: int
    uploads: int
    swaps: int
    reads: int


@dataclass(frozen=True, slots=True)
class Found:
    """The shares of all processes, and how long each new writer's first append took."""

    shares: list[Share]
    new_s: list[float]


def append(load: Load, began: Barrier, over: Event, shares: multiprocessing.Queue[Share]) -> None:
    store = CountingStore(open_store(load.url))
    body, waits_s, refused = os.urandom(load.num_bytes), list[float](), 0
    with LogWriter.open(store, LOG) as writer:
        began.wait(60)
        warm_s = time.perf_counter() + WARM_S
        until_s = warm_s + load.seconds

        def call() -> None:
            nonlocal refused
            while not over.is_set() and (now_s := time.perf_counter()) < until_s + NEW_S_MAX:
                try:
                    writer.append(body)
                    done_s = time.perf_counter()
                    if now_s >= warm_s and done_s < until_s:
                        waits_s.append(done_s - now_s)
                except ContentionError:
                    refused += 1

        callers = [threading.Thread(target=call) for _ in range(load.callers)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        stats = writer.stats()
    requests = store.requests
    shares.put(
        Share(
            waits_s, stats.appends, refused, stats.contentions, requests["create"], requests["replace"], requests["get"]
        )
    )


def begin_anew(load: Load, began: Barrier, over: Event, new_s: multiprocessing.Queue[list[float]]) -> None:
    store, waits_s = open_store(load.url), list[float]()
    try:
        began.wait(60)
        time.sleep(WARM_S + load.seconds)
        for _ in range(NUM_NEW):
            began_s = time.perf_counter()
            with LogWriter.open(store, LOG) as writer:
                writer.append(os.urandom(load.num_bytes))
            waits_s.append(time.perf_counter() - began_s)
            time.sleep(NEW_EACH_S)
    finally:
        over.set()
        new_s.put(waits_s)


def measured(folder: Path, processes: int, given: argparse.Namespace) -> Found:
    load = Load((folder / uuid.uuid4().hex).as_uri(), given.callers, given.seconds, given.bytes)
    LogWriter.create(open_store(load.url), LOG)
    context = multiprocessing.get_context("spawn")
    began, over, shares, new_s = context.Barrier(processes + 1), context.Event(), context.Queue(), context.Queue()
    running = [context.Process(target=append, args=(load, began, over, shares)) for _ in range(processes)]
    running.append(context.Process(target=begin_anew, args=(load, began, over, new_s)))
    for process in running:
        process.start()
    try:
        timeout_s = 60 + WARM_S + given.seconds + NEW_S_MAX
        return Found([shares.get(timeout=timeout_s) for _ in range(processes)], new_s.get(timeout=timeout_s))
    finally:
        for process in running:
            process.join(60)
            process.kill()


class Simulated:
    """The same in simulated time, at S3's latencies."""

    def __init__(self, processes: int, given: argparse.Namespace) -> None:
        self._given = given
        self._simulation = Simulation(seed=1, steps_max=10**9)
        self._processes = [SimProcess(self._simulation, f"{number}", steady=True) for number in range(processes + 1)]
        self._memory = MemoryStore(self._processes[0], name=uuid.uuid4().hex)
        self._until_s = WARM_S + given.seconds
        self._over = False
        self._found = Found([], [])

    def run(self) -> Found:
        LogWriter.create(self._memory, LOG, runtime=self._processes[0])
        *appending, new = self._processes
        tasks = [
            self._simulation.spawn(process, "main", partial(self._append, number, process))
            for number, process in enumerate(appending)
        ]
        tasks.append(self._simulation.spawn(new, "main", partial(self._begin_anew, new)))
        for task in tasks:
            self._simulation.run(task)
        return self._found

    def _store(self, process: SimProcess, seed: int) -> SlowStore:
        return SlowStore(self._given.spread, runtime=process, seed=seed, memory=self._memory)

    def _begin_anew(self, process: SimProcess) -> None:
        process.sleep(self._until_s)
        for number in range(NUM_NEW):
            began_s = self._simulation.now_s
            with LogWriter.open(self._store(process, 1000 + number), LOG, runtime=process) as writer:
                writer.append(os.urandom(self._given.bytes))
            self._found.new_s.append(self._simulation.now_s - began_s)
            process.sleep(NEW_EACH_S)
        self._over = True

    def _append(self, number: int, process: SimProcess) -> None:
        given, simulation, store = self._given, self._simulation, self._store(process, number)
        body, waits_s, refused, left = os.urandom(given.bytes), list[float](), 0, given.callers

        def call() -> None:
            nonlocal left
            if not self._over and simulation.now_s < self._until_s + NEW_S_MAX:
                writer.submit(body).add_done_callback(partial(done, simulation.now_s))
            else:
                left -= 1

        def done(began_s: float, future: Future[LogPosition]) -> None:
            nonlocal refused
            refused += isinstance(future.exception(), ContentionError)
            if began_s >= WARM_S and simulation.now_s < self._until_s and future.exception() is None:
                waits_s.append(simulation.now_s - began_s)
            call()

        with LogWriter.open(store, LOG, runtime=process) as writer:
            for _ in range(given.callers):
                call()
            simulation.block(lambda: not left, None)
            stats = writer.stats()
        kinds = (sum(count for name, count in store.requests.items() if name.startswith(kind)) for kind in KINDS)
        self._found.shares.append(Share(waits_s, stats.appends, refused, stats.contentions, *kinds))


def row(processes: int, found: Found, alone: float, seconds: float) -> tuple[str, ...]:
    shares = found.shares
    waits_s = sorted(wait_s for share in shares for wait_s in share.waits_s)
    appends = len(waits_s)
    quantiles = statistics.quantiles(waits_s, n=100)
    fewest = min(len(share.waits_s) for share in shares) * processes / appends
    uploads, swaps, reads = (sum(getattr(share, kind) for share in shares) for kind in ("uploads", "swaps", "reads"))
    durable = sum(share.durable for share in shares)
    return (
        str(processes),
        f"{appends / seconds:,.0f}",
        f"{appends / seconds / alone:.2f}",
        f"{fewest:.2f}",
        f"{quantiles[49] * 1e3:.1f}",
        f"{quantiles[98] * 1e3:.1f}",
        f"{max(found.new_s):.2f}",
        f"{uploads / durable:.3f}",
        f"{swaps / durable:.3f}",
        f"{reads / durable:.3f}",
        str(sum(share.contentions for share in shares)),
        str(sum(share.refused for share in shares)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 8])
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", help="on the disk to measure")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--spread", type=float, default=0.25, help="sigma of simulated latencies")
    given = parser.parse_args()
    where = "at S3's latencies" if given.simulated else "on a directory"
    table = Table(title=f"Processes that append to one log, {given.callers} callers each, {where}")
    for name in (
        *("processes", "appends/s", "/ one process", "share", "p50 ms", "p99 ms", "new, s"),
        *("uploads/append", "CAS/append", "GET/append", "places lost", "refused"),
    ):
        table.add_column(name, justify="right")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for _ in range(given.rounds):
            alone = 0.0
            for processes in given.processes:
                if given.simulated:
                    found = Simulated(processes, given).run()
                else:
                    found = measured(Path(folder), processes, given)
                alone = alone or sum(len(share.waits_s) for share in found.shares) / given.seconds / processes
                table.add_row(*row(processes, found, alone, given.seconds))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
