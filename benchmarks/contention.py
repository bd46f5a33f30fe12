"""Several processes that append to one log at once, beside one process: ``make bench-contention``.

python -m benchmarks.contention [--processes N ...] [--callers N] [--seconds N] [--folder DIR | --simulated]

Each process has some callers, each with one append under way. They are processes of this machine and a directory; or,
``--simulated``, at S3's latencies in simulated time, in which the machine's speed has no part. ``share`` is what the
process with the fewest appends has of an equal share. Requests are those of all processes, for each append that became
durable.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.slow_store import SlowStore
from tests.faults.simulator import SimProcess, Simulation
from tests.stores import CountingStore
from wal3_core import ContentionError, LogWriter, open_store
from wal3_core.storage.backends.memory import MemoryStore

if TYPE_CHECKING:
    from concurrent.futures import Future
    from multiprocessing.synchronize import Barrier

    from wal3_core import LogPosition

LOG = "contended"
KINDS = ("PUT", "CAS", "GET")
# Time for writers to learn of each other, which does not count.
WARM_S = 12.0


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
    refused: int
    places_lost: int
    uploads: int
    swaps: int
    reads: int


def append(load: Load, began: Barrier, shares: multiprocessing.Queue[Share]) -> None:
    store = CountingStore(open_store(load.url))
    body, waits_s, refused = os.urandom(load.num_bytes), list[float](), 0
    with LogWriter.open(store, LOG) as writer:
        began.wait(60)
        warm_s = time.perf_counter() + WARM_S
        until_s = warm_s + load.seconds

        def call() -> None:
            nonlocal refused
            while (now_s := time.perf_counter()) < until_s:
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
        lost = writer.stats().places_lost
    requests = store.requests
    shares.put(Share(waits_s, refused, lost, requests["create"], requests["replace"], requests["get"]))


def measured(folder: Path, processes: int, given: argparse.Namespace) -> list[Share]:
    load = Load((folder / uuid.uuid4().hex).as_uri(), given.callers, given.seconds, given.bytes)
    LogWriter.initialize(open_store(load.url), LOG)
    context = multiprocessing.get_context("spawn")
    began, shares = context.Barrier(processes), context.Queue()
    running = [context.Process(target=append, args=(load, began, shares)) for _ in range(processes)]
    for process in running:
        process.start()
    try:
        return [shares.get(timeout=120 + given.seconds) for _ in running]
    finally:
        for process in running:
            process.join(60)
            process.kill()


class Simulated:
    """The same in simulated time, at S3's latencies."""

    def __init__(self, processes: int, given: argparse.Namespace) -> None:
        self._given = given
        self._simulation = Simulation(seed=1, steps_max=10**9)
        self._processes = [SimProcess(self._simulation, f"{number}", steady=True) for number in range(processes)]
        self._memory = MemoryStore(self._processes[0], name=uuid.uuid4().hex)
        self.shares: list[Share] = []

    def run(self) -> list[Share]:
        LogWriter.initialize(self._memory, LOG, runtime=self._processes[0])
        tasks = [
            self._simulation.spawn(process, "main", partial(self._append, number))
            for number, process in enumerate(self._processes)
        ]
        for task in tasks:
            self._simulation.run(task)
        return self.shares

    def _append(self, number: int) -> None:
        given, simulation, process = self._given, self._simulation, self._processes[number]
        store = SlowStore(given.spread, runtime=process, seed=number, memory=self._memory)
        body, waits_s, refused, left = os.urandom(given.bytes), list[float](), 0, given.callers
        until_s = WARM_S + given.seconds

        def call() -> None:
            nonlocal left
            if simulation.now_s < until_s:
                writer.submit(body).add_done_callback(partial(done, simulation.now_s))
            else:
                left -= 1

        def done(began_s: float, future: Future[LogPosition]) -> None:
            nonlocal refused
            refused += isinstance(future.exception(), ContentionError)
            if began_s >= WARM_S and simulation.now_s < until_s and future.exception() is None:
                waits_s.append(simulation.now_s - began_s)
            call()

        with LogWriter.open(store, LOG, runtime=process) as writer:
            for _ in range(given.callers):
                call()
            simulation.block(lambda: not left, None)
            lost = writer.stats().places_lost
        kinds = (sum(count for name, count in store.requests.items() if name.startswith(kind)) for kind in KINDS)
        self.shares.append(Share(waits_s, refused, lost, *kinds))


def row(processes: int, shares: list[Share], alone: float, seconds: float) -> tuple[str, ...]:
    waits_s = sorted(wait_s for share in shares for wait_s in share.waits_s)
    appends = len(waits_s)
    quantiles = statistics.quantiles(waits_s, n=100)
    fewest = min(len(share.waits_s) for share in shares) * processes / appends
    uploads, swaps, reads = (sum(getattr(share, kind) for share in shares) for kind in ("uploads", "swaps", "reads"))
    return (
        str(processes),
        f"{appends / seconds:,.0f}",
        f"{appends / seconds / alone:.2f}",
        f"{fewest:.2f}",
        f"{quantiles[49] * 1e3:.1f}",
        f"{quantiles[98] * 1e3:.1f}",
        f"{uploads / appends:.3f}",
        f"{swaps / appends:.3f}",
        f"{reads / appends:.3f}",
        str(sum(share.places_lost for share in shares)),
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
        *("processes", "appends/s", "/ one process", "share", "p50 ms", "p99 ms"),
        *("uploads/append", "CAS/append", "GET/append", "places lost", "refused"),
    ):
        table.add_column(name, justify="right")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for _ in range(given.rounds):
            alone = 0.0
            for processes in given.processes:
                if given.simulated:
                    shares = Simulated(processes, given).run()
                else:
                    shares = measured(Path(folder), processes, given)
                alone = alone or sum(len(share.waits_s) for share in shares) / given.seconds / processes
                table.add_row(*row(processes, shares, alone, given.seconds))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
