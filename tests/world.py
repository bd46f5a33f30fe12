"""A log that a test makes, changes and looks at, and a store whose clock only a test moves."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.effort import every
from tests.stores import FaultyStore, content, life_path, life_store
from wal3_core import LogReader, LogWriter, MemoryStore
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import CLOCK
from wal3_core.format.position import LogPosition
from wal3_core.format.snapshot import Pointer, SnapshotPointer
from wal3_core.log.collect.collector import CollectionReport, Collector, Plan, collect
from wal3_core.log.collect.deleter import Deleter, DeletionReport
from wal3_core.log.tree.shape import build_snapshot, plan_roll
from wal3_core.options import CollectorOptions, RetryOptions, SnapshotOptions, WriterOptions
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import Buffer, Done, Etag, FolderStore, ObjectMeta, ObjectStore, PutOutcome, log_store

LOG = "a"
STRIDE = every(3)
TEN_YEARS_S = 10 * 365 * 24 * 3600
# The smallest tree possible; no interval ends while a test runs.
SMALL = SnapshotOptions(
    fragments_per_snapshot=2,
    fragments_kept=2,
    snapshots_per_roll=2,
    snapshot_pointers_max=2,
    gc_interval_s=TEN_YEARS_S,
)
# Rolls nothing and makes a fragment of each record.
UNROLLED = WriterOptions(batch_records_max=1, snapshots=SnapshotOptions(fragments_per_snapshot=1000))
QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001, pause_s_max=0.002)
NOW = CollectorOptions(interval_s=0, fraction_max=1, deletes_per_s=1e9, retry=QUICK)
DAY_S = 24 * 60 * 60.0
LATER = replace(NOW, interval_s=DAY_S)


class Crashed(BaseException):
    """The process is gone."""


@dataclass
class ClockStore(FaultyStore):
    """A store whose clock only a test moves."""

    now_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    changed_us: dict[str, int] = field(default_factory=dict)

    def pass_s(self, seconds: float) -> None:
        self.now_us += int(seconds * US_PER_S)

    def create(self, path: str, data: Buffer) -> PutOutcome:
        return self._changed(path, lambda: super(ClockStore, self).create(path, data))

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        return self._changed(path, lambda: super(ClockStore, self).replace(path, data, etag))

    def _changed(self, path: str, apply: Callable[[], PutOutcome]) -> PutOutcome:
        # Noted before the write, because a listing may see it at any moment. An unanswered write may have been applied.
        self.changed_us.setdefault(path, self.now_us)
        outcome = apply()
        if isinstance(outcome, Done):
            self.changed_us[path] = self.now_us
        return outcome

    def head(self, path: str) -> ObjectMeta | None:
        found = super().head(path)
        return None if found is None else self._dated(found)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        return map(self._dated, super().list_objects(folder, start_after=start_after))

    def _dated(self, found: ObjectMeta) -> ObjectMeta:
        # An object written without this store is as old as its first sighting here.
        return replace(found, last_modified_us=self.changed_us.setdefault(found.path, self.now_us))


class Later:
    """Runs an action just before one of a FaultyStore's requests, and records that it ran."""

    def __init__(self, store: FaultyStore, number: int, act: Callable[[], object]) -> None:
        self.happened = False
        self._left = number
        self._act = act
        self._lock = threading.Lock()
        store.before = self._before

    def _before(self, _kind: str, _path: str) -> None:
        with self._lock:
            self._left -= 1
            now = self._left == 0
        if now:
            self.happened = True
            self._act()


class World:
    """A log in a store: what a test does to it, and what it sees of it."""

    def __init__(self, store: ObjectStore, log: str = LOG) -> None:
        self.store = store
        self.log = log

    def manifest(self) -> Manifest:
        return LogReader.open(self.store, self.log).manifest()

    def bodies(self) -> list[bytes | None]:
        """Read the bodies of all records."""
        return [record.body for record in LogReader.open(self.store, self.log).records()]

    def append(self, count: int) -> None:
        """Append fragments of one record each; none is rolled into a snapshot."""
        with LogWriter.open_or_create(self.store, self.log, options=UNROLLED) as writer:
            for future in [writer.submit(b"%d" % number) for number in range(count)]:
                future.result()

    def roll(self, options: SnapshotOptions = SMALL) -> None:
        """Roll the manifest's fragments into snapshots up to depth 2, as a writer with these options would."""
        manifests = ManifestStore(log_store(self.store, self.log), shared_runtime())
        trees = SnapshotStore(manifests, shared_runtime(), loaded_max=64)
        base = manifests.load()
        manifest = base.manifest
        while (planned := plan_roll(manifest, options)) is not None:
            last = planned[-1]
            if isinstance(last, SnapshotPointer) and last.depth > 1:
                break
            snapshot = trees.write(build_snapshot(planned, manifest, trees.load), QUICK)
            manifest = manifest.apply_snapshot(snapshot, planned)
        assert isinstance(manifests.install(manifest, base), Installed)

    def plant(self, *, cursor: int | None = None) -> None:
        """Make a log of 20 fragments with a tree of both depths, no orphans, and a cursor if one is given.

        ((1 2) (3 4)) ((5 6) (7 8)) ((9 10) (11 12)) ((13 14) (15 16)) (17 18) 19 20
        """
        self.append(20)
        self.roll()
        self.sweep()
        if cursor is not None:
            self.move_cursor(cursor)

    def sweep(self) -> None:
        """Delete the snapshots that were rolled into others."""
        for path in self.stored() - self.reachable():
            life_store(self.store, self.log).delete(path)

    def move_cursor(self, offset: int, name: str = "reader") -> None:
        """Create a cursor, or move it."""
        cursors = CursorStore(self.store, self.log, retry=QUICK)
        witness = cursors.load(name)
        if witness is None:
            cursors.create(name, LogPosition(offset, 0))
        else:
            cursors.save(name, LogPosition(offset, 0), witness)

    def abandon_cursor(self, name: str, offset: int) -> None:
        """Write a cursor as a creator that crashes before it reads the manifest."""
        faulty = FaultyStore(self.store)
        written: list[str] = []

        def before(kind: str, path: str) -> None:
            if written:
                raise Crashed
            if kind in {"create", "replace"}:
                written.append(path)

        faulty.before = before
        with contextlib.suppress(Crashed):
            World(faulty).move_cursor(offset, name)
        assert written

    def offsets(self) -> list[int]:
        """The offsets of all readable records, each checked against its fragment's setsum."""
        return [record.offset for record in LogReader.open(self.store, self.log).records()]

    def pointers(self, pointers: Sequence[Pointer]) -> Iterator[Pointer]:
        """All pointers reachable from these, including these."""
        manifests = ManifestStore(log_store(self.store, self.log), shared_runtime())
        snapshots = SnapshotStore(manifests, shared_runtime(), loaded_max=0)
        for pointer in pointers:
            yield pointer
            if isinstance(pointer, SnapshotPointer):
                yield from self.pointers(snapshots.load(pointer).pointers)

    def leaves(self) -> list[SnapshotPointer]:
        """The snapshots of depth 1 that the manifest leads to."""
        found = self.pointers(self.manifest().pointers)
        return [each for each in found if isinstance(each, SnapshotPointer) and each.depth == 1]

    def reachable(self) -> set[str]:
        """The fragments and snapshots that the manifest refers to."""
        return {pointer.path for pointer in self.pointers(self.manifest().pointers)}

    def stored(self) -> set[str]:
        """The stored fragments and snapshots."""
        inside = life_store(self.store, self.log)
        return {meta.path for folder in ("log/", "snapshot/") for meta in inside.list_objects(folder)}

    def documents(self) -> list[str]:
        """The stored garbage documents."""
        return [meta.path for meta in Deleter(self.store, self.log).documents()]

    def collect(self, options: CollectorOptions = NOW, **more: object) -> CollectionReport:
        """Collect the log once."""
        return collect(self.store, self.log, options=options, **more)

    def plan(self, limit_offset: int | None = None, options: CollectorOptions = NOW) -> Plan:
        return Collector(self.store, self.log, options=options).plan(limit_offset)

    def announce(self, options: CollectorOptions = NOW) -> str:
        """Plan a collection and announce it; returns its document's path."""
        collector = Collector(self.store, self.log, options=options)
        return collector.announce(collector.plan())

    def prune(self, options: CollectorOptions = NOW) -> str:
        """Plan a collection, announce it and prune; returns its document's path."""
        path = self.announce(options)
        Collector(self.store, self.log, options=options).prune(path)
        return path

    def delete(self, path: str, options: CollectorOptions = NOW) -> DeletionReport:
        """Delete what a garbage document names."""
        return Deleter(self.store, self.log, options=options).delete(path)


def count_requests(store: FaultyStore, act: Callable[[], object]) -> int:
    """How many requests an action makes."""
    seen: list[str] = []
    store.before = lambda kind, _path: seen.append(kind)
    act()
    return len(seen)


def beside_the_clock(store: ObjectStore) -> dict[str, bytes | None]:
    """All stored objects, except the one written to learn the store's time."""
    return {path: data for path, data in content(store).items() if path != life_path(store, "a", CLOCK)}


def crash() -> None:
    raise Crashed


def planted(options: CollectorOptions = NOW) -> tuple[MemoryStore, int]:
    """A log that each attempt starts from, and how many requests its collection makes."""
    template = MemoryStore(shared_runtime())
    World(template).plant(cursor=12)
    faulty = FaultyStore(replant(template, MemoryStore(shared_runtime()), 0))
    return template, count_requests(faulty, lambda: World(faulty).collect(options))


def replant(template: MemoryStore, store: ObjectStore, number: int) -> ObjectStore:
    """Copy the content of another store into a folder of its own."""
    place = FolderStore(store, f"run{number}/")
    for meta in template.list_objects(""):
        place.create(meta.path, template.read(meta.path) or b"")
    return place


def stride(store: ObjectStore) -> int:
    """The step between requests to try: in memory each third, fewer on slower stores, where only the answers differ."""
    return STRIDE if store.url.startswith("memory:") else 11
