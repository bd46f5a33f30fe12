"""Append latency with and without maintenance of the same log by another process, side by side.

For each store it prints the appends' p50, p99 and maximum, alone and while another process changes the
manifest (snapshot rolls, fences, generations), how many changes that process installed, and how many
appends failed, which must be none.
"""

from __future__ import annotations

import os
import statistics
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from tests.processes.children import await_word, child
from tests.processes.maintainer import Upkeep, maintain
from tests.s3_server import s3_server, use_endpoint
from wal3_core import AppendError, LogReader, LogWriter, open_store

CALLERS = 8
SECONDS = 8.0
# Changes aimed at per second; 0 is none. A real collection moves the fence once an interval, not twice a second.
RATES = (0, 10, 100)
FENCE_PAUSE_S = 0.5
console = Console(width=140)


def append_for(url: str, log: str, seconds: float) -> tuple[list[float], int]:
    """Append from several callers; return each append's seconds, and how many failed."""
    body = os.urandom(100)
    until_s = time.monotonic() + seconds
    with LogWriter.open(open_store(url), log) as writer:

        def call(_: int) -> tuple[list[float], int]:
            times, failed = [], 0
            while time.monotonic() < until_s:
                began_s = time.perf_counter()
                try:
                    writer.append(body)
                except AppendError as error:
                    console.print(f"append failed: {error}")
                    failed += 1
                times.append(time.perf_counter() - began_s)
            return times, failed

        with ThreadPoolExecutor(CALLERS) as pool:
            results = list(pool.map(call, range(CALLERS)))
    return [each for times, _ in results for each in times], sum(failed for _, failed in results)


def measure(url: str, rate: int) -> list[str]:
    """Append to a new log beside ``rate`` changes a second; return the table's cells."""
    log = f"maintenance-{uuid.uuid4().hex}"
    LogWriter.create(open_store(url), log)
    installed: object = {}
    with ExitStack() as stack:
        if rate:
            upkeep = Upkeep(url=url, log=log, pause_s=1 / rate, fence_pause_s=FENCE_PAUSE_S)
            _, connection = stack.enter_context(child(maintain, upkeep))
            await_word(connection, "begun")
        times, failed = append_for(url, log, SECONDS)
        if rate:
            connection.send("enough")
            installed = await_word(connection, "installed")
    held = LogReader.open(open_store(url), log).manifest().num_records
    assert held == len(times) - failed, f"log {log}: expected {len(times) - failed} records, found {held}"
    quantiles = statistics.quantiles(times, n=100)
    figures = [quantiles[49] * 1e3, quantiles[98] * 1e3, max(times) * 1e3]
    assert isinstance(installed, dict)
    changes = ", ".join(f"{count} {kind}" for kind, count in sorted(installed.items()))
    return [changes or "none", f"{len(times):,}", str(failed), *(f"{figure:,.1f}" for figure in figures)]


def main() -> None:
    table = Table(title=f"Append latency under maintenance, 100 B records, {CALLERS} callers, {SECONDS:.0f} s each")
    for name in ("store", "changes installed", "appends", "failed", "p50 ms", "p99 ms", "max ms"):
        table.add_column(name, justify="right")
    with ExitStack() as stack:
        disk = stack.enter_context(TemporaryDirectory(dir=os.environ.get("WAL3_BENCH_DIR")))
        s3 = use_endpoint(stack.enter_context(s3_server()))
        for name, url in {"disk": f"file://{disk}", "S3 (MiniStack)": f"{s3}/{uuid.uuid4().hex}"}.items():
            for rate in RATES:
                table.add_row(name, *measure(url, rate))
    console.print(table)


if __name__ == "__main__":
    main()
