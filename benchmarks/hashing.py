"""Records hashed side by side, beside hashlib in the same run: setsums alone, appends, verified scans; keyed records.

The rounds alternate between the two, and the best of each counts: a busy machine slows both. Beside MB a second it
prints MB for each second of processor time, of all threads, which other programs disturb less.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from tests.lanes import lanes_decided
from wal3_core import LogReader, LogWriter, ReaderOptions, open_store
from wal3_core.format.parquet import columns
from wal3_core.format.parquet.columns import table_of, table_setsum
from wal3_core.format.record import Record
from wal3_core.hashing.lanes import LANES, Lanes
from wal3_core.store.object_store import ObjectStore

MB = 1e6
ROUNDS = int(os.environ.get("WAL3_BENCH_ROUNDS", "5"))
SIZES = (100, 1024, 8192)
VOLUMES = {100: 24 * 2**20, 1024: 96 * 2**20, 8192: 96 * 2**20}
MEMORY_FOLDER = Path("/dev/shm")


@dataclass
class Best:
    """The best of some rounds: MB a second, and MB a second of processor time."""

    wall: float = 0.0
    processor: float = 0.0

    def take(self, num_bytes: int, action: Callable[[], object]) -> None:
        gc.collect()
        began, began_processor = time.perf_counter(), time.process_time()
        action()
        self.wall = max(self.wall, num_bytes / MB / (time.perf_counter() - began))
        self.processor = max(self.processor, num_bytes / MB / (time.process_time() - began_processor))

    def beside(self, other: Best) -> str:
        return f"{self.wall / other.wall:.2f} ({self.processor / other.processor:.2f})"

    def __str__(self) -> str:
        return f"{self.wall:,.0f} ({self.processor:,.0f})"


def measured(store: ObjectStore, size: int, hashed_by: dict[str, Lanes]) -> dict[tuple[str, str], Best]:
    """Return the best of each kind of work, by what hashes the records."""
    figures: dict[tuple[str, str], Best] = {("at length", "hashlib"): Best()}
    group = [os.urandom(size) for _ in range(4 * 2**20 // size)]
    groups = VOLUMES[size] // (size * len(group))
    table = table_of([Record(number, number, None, body) for number, body in enumerate(group)])
    whole = os.urandom(16 * 2**20)
    for _ in range(ROUNDS):
        figures["at length", "hashlib"].take(len(whole), lambda: hashlib.sha3_256(whole).digest())
        for name, lanes in hashed_by.items():
            columns.LANES = lanes
            take(figures, ("setsum", name), size * len(group), lambda: table_setsum(table))
            log = f"bench-{uuid.uuid4().hex}"
            with LogWriter.open_or_create(store, log) as writer:
                action = partial(append, writer, partial(writer.submit_many, group), groups)
                take(figures, ("append", name), size * len(group) * groups, action)
            for kind, verify in (("verified scan", True), ("unverified scan", False)):
                reader = LogReader.open(store, log, options=ReaderOptions(verify=verify))
                take(figures, (kind, name), size * len(group) * groups, partial(scan, reader))
    return figures


def with_keys(store: ObjectStore, size: int) -> dict[tuple[str, str], Best]:
    """Return the best of appends of tables, and of verified scans: of records with one of 1,000 keys, and without."""
    columns.LANES = LANES
    figures: dict[tuple[str, str], Best] = {}
    group = pa.array([os.urandom(size) for _ in range(4 * 2**20 // size)], pa.binary())
    keys = pa.array([b"key-%08d" % random.randrange(1000) for _ in group], pa.binary())
    rows = {"plain": pa.table({"body": group}), "keyed": pa.table({"body": group, "key": keys})}
    groups = VOLUMES[size] // (size * len(group))
    for _ in range(ROUNDS):
        for name, table in rows.items():
            log = f"bench-{uuid.uuid4().hex}"
            with LogWriter.open_or_create(store, log) as writer:
                action = partial(append, writer, partial(writer.submit_table, table), groups)
                take(figures, ("append of tables", name), size * len(group) * groups, action)
            reader = LogReader.open(store, log, options=ReaderOptions(verify=True))
            take(figures, ("verified scan", name), size * len(group) * groups, partial(scan, reader))
    return figures


def take(
    figures: dict[tuple[str, str], Best], name: tuple[str, str], num_bytes: int, action: Callable[[], object]
) -> None:
    figures.setdefault(name, Best()).take(num_bytes, action)


def append(writer: LogWriter, submit: Callable[[], object], groups: int) -> None:
    for _ in range(groups):
        submit()
    writer.flush()


def scan(reader: LogReader) -> None:
    for batch in reader.batches():
        len(batch)


def main() -> None:
    if not lanes_decided():
        raise SystemExit(f"expected compiled hashing, found hashlib: {LANES.hashing().because}")
    console = Console(width=150)
    table = Table(title="MB/s (MB for a second of processor time); SHA3-256 at length is hashlib's, of 16 MiB")
    for name in ("record", "work", "lanes", "hashlib", "lanes / hashlib", "SHA3 at length", "lanes / at length"):
        table.add_column(name, justify="right")
    beside = Table(title="Of 1,000 keys, beside records without: MB/s (MB for a second of processor time)")
    for name in ("record", "work", "with keys", "without", "with / without"):
        beside.add_column(name, justify="right")
    with TemporaryDirectory(dir=MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None) as folder:
        for size in SIZES:
            store = open_store((Path(folder) / str(size)).as_uri())
            figures = measured(store, size, {"lanes": LANES, "hashlib": Lanes("0")})
            limit = figures.pop(("at length", "hashlib"))
            for work in dict.fromkeys(work for work, _ in figures):
                lanes, plain = figures[work, "lanes"], figures[work, "hashlib"]
                row = (lanes, plain, lanes.beside(plain), limit, lanes.beside(limit))
                table.add_row(f"{size:,} B", work, *map(str, row))
            figures = with_keys(store, size)
            for work in dict.fromkeys(work for work, _ in figures):
                keyed, plain = figures[work, "keyed"], figures[work, "plain"]
                beside.add_row(f"{size:,} B", work, str(keyed), str(plain), keyed.beside(plain))
    console.print(table, beside)


if __name__ == "__main__":
    main()
