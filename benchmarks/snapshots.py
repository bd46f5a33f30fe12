"""The cost of the manifest's tree, beside a flat manifest, and what repacking saves: ``make bench-snapshots``.

The library's own code makes the manifests and snapshots: pointers are applied to the manifest sixteen at a
time, rolled, uploaded and swapped in. The fragments below them do not exist and count one record each; only
those that are appended while measuring are written. Logs that would take hours to grow are built level by
level by tests/built_logs.py, into the shape that a writer leaves. Requests and bytes are exact; seconds are
of a store in memory, so they are the library's own.
"""

from __future__ import annotations

import argparse
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.built_logs import Builder
from tests.large_logs import Grower
from tests.stores import CountingStore, life_store
from wal3_core import LogReader, LogWriter, MemoryStore
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.log.read.scan import select
from wal3_core.options import POINTERS_MAX, UNLIMITED, ReaderOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import Etag, NotModified, ObjectStore, Versioned

OPTIONS = SnapshotOptions()
# A writer whose snapshots hold four fragments, and one that never rolls.
SMALL_LEAVES = SnapshotOptions(fragments_per_snapshot=4, snapshots_per_roll=128)
NO_LEAVES = SnapshotOptions(fragments_per_snapshot=POINTERS_MAX, fragments_kept=POINTERS_MAX)
COMMITS = 512
console = Console(width=190)


class WeighingStore(CountingStore):
    """Also counts the bytes that are read."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.num_bytes: Counter[str] = Counter()

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        """Read, and weigh."""
        data = super().read(path, start=start, length=length)
        self.num_bytes["read"] += len(data or b"")
        return data

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        """Read, and weigh."""
        found = super().get(path, if_none_match=if_none_match, length_max=length_max)
        self.num_bytes["get"] += len(found.data) if isinstance(found, Versioned) else 0
        return found


def well_shaped(store: ObjectStore, count: int) -> None:
    """Build a tree as a writer leaves it."""
    Grower(store, tree=OPTIONS, real=False).grow(count, per_change=count)


def lopsided(store: ObjectStore, count: int) -> None:
    """Build a tree of small snapshots, as other options or compacted fragments leave it."""
    Grower(store, tree=SMALL_LEAVES, real=False).grow(count, per_change=count)


def unrolled(store: ObjectStore, count: int) -> None:
    """Build a manifest as a writer leaves it that never rolled."""
    Grower(store, tree=NO_LEAVES, real=False).grow(count, per_step=count, per_change=count)


@dataclass(frozen=True)
class Cost:
    """The cost of a log's tree for readers; a scan needs one more request for each fragment."""

    manifest_bytes: int
    open_requests: int
    open_bytes: int
    scan_requests: int
    scan_bytes: int


def measure(inner: ObjectStore) -> Cost:
    store = WeighingStore(inner)
    reader = LogReader.open(store, "a", options=ReaderOptions(snapshots_loaded_max=2))
    opened = store.requests.total(), store.num_bytes.total()
    manifest = reader.manifest()
    store.requests.clear()
    store.num_bytes.clear()
    found = sum(1 for _ in select(manifest.pointers, None, UNLIMITED, reader.load_snapshot))
    assert found == manifest.next.seq_no - 1
    return Cost(len(manifest.to_bytes()), *opened, store.requests["read"], store.num_bytes["read"])


def append(inner: ObjectStore) -> Counter[str]:
    """Bytes of manifest and snapshots that a real writer writes in many commits of one fragment."""
    store = CountingStore(inner)
    with LogWriter.open(store, "a") as writer:
        for _ in range(COMMITS):
            writer.append(b"x")
    return store.written


def append_shortly(inner: ObjectStore) -> tuple[Counter[str], Counter[str]]:
    """Bytes and requests of as many writers that append once each."""
    store = CountingStore(inner)
    for _ in range(COMMITS):
        with LogWriter.open(store, "a") as writer:
            writer.append(b"x")
    return store.written, store.requests


def first_record(inner: ObjectStore) -> tuple[float, int, int]:
    """Seconds to open a log, and the GETs and bytes from there to its first fragment."""
    store = WeighingStore(inner)
    began = time.perf_counter()
    reader = LogReader.open(store, "a", options=ReaderOptions(snapshots_loaded_max=0))
    elapsed = time.perf_counter() - began
    store.num_bytes.clear()
    pointer, gets = reader.manifest().pointers[0], 1
    while isinstance(pointer, SnapshotPointer):
        pointer, gets = reader.load_snapshot(pointer).pointers[0], gets + 1
    return elapsed, gets, store.num_bytes["read"]


def growth(grown: Sequence[int], built: Sequence[int]) -> None:
    table = Table(
        title=f"A log as it grows: snapshots of {OPTIONS.fragments_per_snapshot} fragments,"
        f" and of up to {OPTIONS.snapshot_pointers_max} snapshots"
    )
    for name in (
        "fragments",
        "",
        "manifest",
        "snapshots\nin it",
        "levels",
        "open:\nGETs",
        "ms",
        "first record:\nGETs",
        "bytes",
        "PUT a commit:\nmanifest",
        "snapshots",
        "by writers\nof one append",
        "requests\neach",
        "scan:\nGETs more",
        "largest\nsnapshot",
    ):
        table.add_column(name, justify="right")
    for count in (*grown, *built):
        inner = new_store()
        if count in grown:
            well_shaped(inner, count)
        else:
            Builder(inner).build(count)
        table.add_row(f"{count:,}", "grown" if count in grown else "built", *_row(inner, scanned=count in grown))
    console.print(table)


def _row(inner: ObjectStore, *, scanned: bool) -> tuple[str, ...]:
    manifest = LogReader.open(inner, "a").manifest()
    elapsed, gets, num_bytes = first_record(inner)
    scan = f"{measure(inner).scan_requests:,}" if scanned else ""
    long = append(inner)
    short, requests = append_shortly(inner)
    return (
        f"{len(manifest.to_bytes()):,}",
        str(len(manifest.snapshots)),
        str(max((pointer.depth for pointer in manifest.snapshots), default=0)),
        "1",
        f"{elapsed * 1e3:.1f}",
        str(gets),
        f"{num_bytes:,}",
        f"{long['manifest'] / COMMITS:,.0f}",
        f"{long['snapshot'] / COMMITS:,.0f}",
        f"{(short['manifest'] + short['snapshot']) / COMMITS:,.0f}",
        f"{requests.total() / COMMITS:.2f}",
        scan,
        f"{max((meta.size for meta in life_store(inner, 'a').list_objects('snapshot/')), default=0):,}",
    )


def compaction(cases: Sequence[tuple[str, Callable[[ObjectStore, int], None], int]]) -> None:
    table = Table(title="Repacking a tree: before, after, and its cost")
    for name in (
        "tree",
        "fragments",
        "",
        "manifest",
        "GETs more to scan",
        "of",
        "steps",
        "written",
        "seconds",
        "again",
    ):
        table.add_column(name, justify="left" if name in {"tree", ""} else "right")
    for kind, build, count in cases:
        store = new_store()
        build(store, count)
        before = measure(store)
        counting = WeighingStore(store)
        began = time.perf_counter()
        done = SnapshotCompactor(counting, "a").compact()
        elapsed = time.perf_counter() - began
        after = measure(store)
        again = SnapshotCompactor(store, "a").compact()
        table.add_row(kind, f"{count:,}", "before", *shown(before), "", "", "", "")
        table.add_row(
            "",
            "",
            "after",
            *shown(after),
            f"{done.num_steps}",
            f"{done.num_written:,} of {done.num_bytes / 1e6:,.1f} MB",
            f"{elapsed:,.1f}",
            f"{again.num_steps} steps",
        )
    console.print(table)


def shown(cost: Cost) -> tuple[str, str, str]:
    return f"{cost.manifest_bytes:,}", f"{cost.scan_requests:,}", f"{cost.scan_bytes / 1e6:,.1f} MB"


def new_store() -> MemoryStore:
    return MemoryStore(shared_runtime(), name=uuid.uuid4().hex)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--grown", type=int, default=100_000, help="fragments of the largest log grown (default: %(default)s)"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=100_000_000,
        help="fragments of the largest log built (default: %(default)s)",
    )
    parser.add_argument(
        "--packed", type=int, default=100_000, help="fragments of the largest log repacked (default: %(default)s)"
    )
    given = parser.parse_args()
    sizes = [10**digits for digits in range(2, 9) if 10**digits <= given.most]
    if sizes:
        growth([size for size in sizes if size <= given.grown], [size for size in sizes if size > given.grown])
    compaction(
        [
            ("well shaped", well_shaped, given.packed),
            ("leaves of 4", lopsided, given.packed // 10),
            ("leaves of 4", lopsided, given.packed),
            ("never rolled", unrolled, 500),
            ("never rolled", unrolled, given.packed // 2),
        ]
    )
    console.print(f"Load of the machine: {os.getloadavg()}, of {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
