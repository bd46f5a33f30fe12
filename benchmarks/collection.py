"""Collection of a large log, round after round, beside plain deletes of as many files: ``make bench-collection``.

The log lies in a directory and has real fragments of one record. Each round appends as many as the cursor
advances; a writer keeps appending while they are collected. Then the objects on storage are compared with
those that the manifest leads to, found without the library; the exit status is 1 when they differ.
Deletes are not throttled, and the interval is a tenth of a second.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from tests.large_logs import Grower, reachable, stored
from tests.stores import life_store
from wal3_core import CursorStore, LogWriter, MemoryStore, WriterOptions, open_store
from wal3_core.format.paths import CLOCK, GARBAGE_FOLDER, MANIFEST
from wal3_core.format.position import FIRST_OFFSET, LogPosition
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import POINTERS_MAX, CollectorOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore

T = TypeVar("T")
OPTIONS = CollectorOptions(interval_s=0.1, fraction_max=1, deletes_per_s=1e9)
# A writer that never rolls.
NO_LEAVES = SnapshotOptions(fragments_per_snapshot=POINTERS_MAX, fragments_kept=POINTERS_MAX)
PHASES = ("plan", "verify", "announce", "prune", "delete", "orphans", "mark")
APPEND_PAUSE_S = 0.01
MEMORY_FOLDER = Path("/dev/shm")
console = Console(width=180)


@dataclass
class Collecting:
    """One collection, step by step, with the seconds of each."""

    store: ObjectStore

    def __post_init__(self) -> None:
        """Set the counters to zero."""
        self.seconds: Counter[str] = Counter()
        self.num_deleted = 0
        self.num_dropped = 0
        self.num_searches = 0
        self.document_bytes = 0
        self._collector = Collector(self.store, "a", options=OPTIONS)
        self._deleter = Deleter(self.store, "a", options=OPTIONS)

    def _timed(self, phase: str, action: Callable[[], T]) -> T:
        began_s = time.perf_counter()
        result = action()
        self.seconds[phase] += time.perf_counter() - began_s
        return result

    def prune(self) -> None:
        """Collect below the cursor."""
        plan = self._timed("plan", self._collector.plan)
        self._timed("verify", lambda: self._collector.verify(plan))
        path = self._timed("announce", lambda: self._collector.announce(plan))
        outcome = self._timed("prune", lambda: self._collector.prune(path))
        assert isinstance(outcome, PrunedGarbage), outcome
        self.num_dropped += plan.num_fragments
        self._delete(outcome)

    def sweep(self) -> bool:
        """Collect orphans; False when there are none."""
        orphans = self.orphans()
        if orphans:
            marked = self._timed("mark", lambda: self._collector.prune_orphans(orphans, "benchmark"))
            assert isinstance(marked, PrunedGarbage)
            self._delete(marked)
        return bool(orphans)

    def orphans(self) -> list[str]:
        """Look for objects that the log does not refer to."""
        self.num_searches += 1
        return self._timed("orphans", lambda: self._deleter.orphans(self._deleter.pending()))

    def _delete(self, pruned: PrunedGarbage) -> None:
        document = life_store(self.store, "a").head(pruned.path)
        assert document is not None
        self.document_bytes = max(self.document_bytes, document.size)
        while (wait_s := self._deleter.wait_s(pruned.path)) > 0:
            time.sleep(wait_s)
        deleted = self._timed("delete", lambda: self._deleter.delete(pruned.path))
        assert deleted.finished, deleted
        self.num_deleted += deleted.num_deleted

    def cells(self) -> list[str]:
        """Return the seconds, the searches for orphans, the objects deleted, and their rate."""
        rate = self.num_deleted / self.seconds["delete"] if self.seconds["delete"] else 0
        counts = str(self.num_searches), f"{self.num_deleted:,}", f"{rate:,.0f}"
        return [*(f"{self.seconds[phase]:,.2f}" for phase in PHASES), *counts]


def advance(store: ObjectStore, offset: int) -> None:
    cursors, position = CursorStore(store, "a"), LogPosition(offset, 0)
    witness = cursors.load("reader")
    if witness is None:
        cursors.create("reader", position)
    else:
        cursors.save("reader", position, witness)


@contextmanager
def appending(store: ObjectStore) -> Iterator[list[LogPosition]]:
    """Append records while the block runs, each in a fragment of its own."""
    done, over = [], threading.Event()

    def append() -> None:
        with LogWriter.open(store, "a", options=WriterOptions(batch_records_max=1)) as writer:
            while not over.wait(APPEND_PAUSE_S):
                done.append(writer.append(b"beside"))

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def collect_round(store: ObjectStore, offset: int) -> tuple[list[str], bool]:
    """Collect up to an offset; return the table's cells, and whether exactly the referenced objects are left."""
    advance(store, offset)
    before, collecting = len(stored(store)), Collecting(store)
    with appending(store) as appended:
        collecting.prune()
        collecting.sweep()
    # Uploads that the writer could not use when the fence moved, once they are old enough.
    time.sleep(2 * OPTIONS.interval_s)
    while collecting.sweep():
        pass
    after, expected = stored(store), reachable(store)
    own = {meta.path for meta in life_store(store, "a").list_objects(GARBAGE_FOLDER)} - {CLOCK}
    equal = after.keys() == expected and not own
    found = "equal" if equal else f"{len(after.keys() ^ expected)} apart, {len(own)} documents left"
    sizes = [f"{before:,}", f"{len(after):,}", f"{len(expected):,}", found, f"{sum(after.values()) / 1e6:,.1f} MB"]
    return [f"{len(appended):,}", *sizes, *collecting.cells()], equal


def search_alone(store: ObjectStore, count: int) -> None:
    """Look once for orphans in a log that nothing else changes."""
    searching = Collecting(store)
    num_found, seconds = len(searching.orphans()), searching.seconds["orphans"]
    console.print(f"one search for orphans among {count:,} fragments: {num_found:,} found in {seconds:.1f} s")


def rounds(store: ObjectStore, count: int, step: int, num_rounds: int) -> bool:
    table = Table(title=f"A log of {count:,} fragments; each round collects and appends {step:,}; then all at once")
    for name in ("round", "appended\nbeside", "objects\nbefore", "after", "referred to", "", "on storage"):
        table.add_column(name, justify="right")
    for name in (*(f"{phase}\ns" for phase in PHASES), "searches", "deleted", "deletes\na second"):
        table.add_column(name, justify="right")
    grower, equal = Grower(store), True
    grower.grow(count)
    advance(store, FIRST_OFFSET)
    search_alone(store, count)
    for number in range(1, num_rounds + 1):
        grower.grow(step)
        cells, same = collect_round(store, FIRST_OFFSET + number * step)
        table.add_row(str(number), *cells)
        console.print(f"round {number}: {', '.join(cells)}")
        equal = equal and same
    cells, same = collect_round(store, FIRST_OFFSET + count + num_rounds * step)
    table.add_row("all", *cells)
    console.print(table)
    return equal and same


def plain(folder: Path, count: int, num_bytes: int) -> None:
    """Delete as many files as a round, without a log."""
    store = open_store((folder / "plain").as_uri())
    ways: dict[str, Callable[[str], object]] = {
        "os.unlink": lambda path: os.unlink(folder / "plain" / path),  # noqa: PTH108 - the limit, without Path's own
        "the store's delete": store.delete,
    }
    for name, delete in ways.items():
        paths = [f"files/{number // 4096}/{number}" for number in range(count)]
        for path in paths:
            file = folder / "plain" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bytes(num_bytes))
        began_s = time.perf_counter()
        for path in paths:
            delete(path)
        elapsed_s = time.perf_counter() - began_s
        console.print(f"{name}: {count:,} files of {num_bytes:,} bytes, {count / elapsed_s:,.0f} a second")


def bare(count: int) -> None:
    """Collect a log whose fragments are all in the manifest, as many as one holds."""
    table = Table(title="All fragments in the manifest, in memory; their files do not exist")
    for name in (
        "fragments",
        "manifest",
        "garbage document",
        *(f"{phase}\ns" for phase in PHASES),
        "searches",
        "deleted",
        "a second",
    ):
        table.add_column(name, justify="right")
    store = MemoryStore(shared_runtime(), name=uuid.uuid4().hex)
    Grower(store, tree=NO_LEAVES, real=False).grow(count, per_step=count, per_change=count)
    found = store.head(f"a/{MANIFEST}")
    assert found is not None
    advance(store, FIRST_OFFSET + count)
    collecting = Collecting(store)
    collecting.prune()
    sizes = (f"{size / 1e6:,.1f} MB" for size in (found.size, collecting.document_bytes))
    table.add_row(f"{count:,}", *sizes, *collecting.cells())
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fragments", type=int, default=200_000, help="fragments of the log (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds before the last (default: %(default)s)")
    parser.add_argument("--step", type=int, default=20_000, help="fragments per round (default: %(default)s)")
    parser.add_argument("--bare", type=int, default=99_000, help="fragments in the manifest (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the store lies (default: a directory in memory)")
    given = parser.parse_args()
    folder = given.folder or (MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None)
    with TemporaryDirectory(dir=folder) as name:
        store = open_store((Path(name) / "store").as_uri())
        equal = rounds(store, given.fragments, given.step, given.rounds)
        plain(Path(name), given.step, 1000)
    bare(given.bare)
    console.print(f"Load of the machine: {os.getloadavg()}, of {os.cpu_count()} cores")
    console.print(f"At most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:,.0f} MiB of memory")
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
