"""Several processes that append to one log at once, beside one process: ``make bench-contention``.

python -m benchmarks.contention [--processes N ...] [--callers N] [--seconds N] [--bytes N] [--folder DIR] [--rounds N]

Each process has some callers, each with one append under way. ``share`` is what the process with the fewest appends
has of an equal share. Requests are those of all processes: fragments that were uploaded, and manifests that were sent,
for each append that became durable.
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
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tests.stores import CountingStore
from wal3_core import ContentionError, LogWriter, open_store

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

LOG = "contended"
# Time for writers to learn of each other, which does not count.
WARM_S = 1.0


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
    swaps = store.requests["replace"]
    shares.put(Share(waits_s, refused, lost, store.requests["create"], swaps))


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


def row(processes: int, shares: list[Share], alone: float, seconds: float) -> tuple[str, ...]:
    waits_s = sorted(wait_s for share in shares for wait_s in share.waits_s)
    appends = len(waits_s)
    quantiles = statistics.quantiles(waits_s, n=100)
    fewest = min(len(share.waits_s) for share in shares) * processes / appends
    uploads, swaps = sum(share.uploads for share in shares), sum(share.swaps for share in shares)
    return (
        str(processes),
        f"{appends / seconds:,.0f}",
        f"{appends / seconds / alone:.2f}",
        f"{fewest:.2f}",
        f"{quantiles[49] * 1e3:.1f}",
        f"{quantiles[98] * 1e3:.1f}",
        f"{uploads / appends:.3f}",
        f"{swaps / appends:.3f}",
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
    given = parser.parse_args()
    table = Table(title=f"Processes that append to one log, {given.callers} callers each, on a directory")
    for name in (
        *("processes", "appends/s", "/ one process", "share", "p50 ms", "p99 ms"),
        *("uploads/append", "CAS/append", "places lost", "refused"),
    ):
        table.add_column(name, justify="right")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for _ in range(given.rounds):
            alone = 0.0
            for processes in given.processes:
                shares = measured(Path(folder), processes, given)
                alone = alone or sum(len(share.waits_s) for share in shares) / given.seconds / processes
                table.add_row(*row(processes, shares, alone, given.seconds))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
