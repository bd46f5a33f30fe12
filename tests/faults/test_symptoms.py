"""Defects that simulated worlds found, each as a short test."""

from __future__ import annotations

import pytest

from tests.stores import FaultyStore, life_store
from wal3_core import (
    CursorStore,
    GarbageCollectedError,
    InvalidRequestError,
    LogAt,
    LogNotFoundError,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    PinStore,
    UnavailableError,
    WriterOptions,
    collect,
    copy,
    destroy,
)
from wal3_core.format.cursor import Cursor
from wal3_core.format.manifest import Boundary
from wal3_core.format.paths import cursor_path
from wal3_core.format.position import FragmentSeqNo
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import Done, ObjectMeta, log_store


def grow(store: MemoryStore, count: int) -> None:
    with LogWriter.open_or_create(store, "a", options=WriterOptions(batch_bytes_max=1)) as writer:
        for number in range(count):
            writer.append(f"{number}".encode())


def collector(store: MemoryStore) -> Collector:
    return Collector(store, "a", options=CollectorOptions(fraction_max=1.0, rebases_max=8))


def test_cursor_is_not_moved_from_a_place_to_which_it_was_moved_too_late() -> None:
    """A mover moved it back and has not read the manifest yet; another one loads it and moves it a little forward."""
    store = MemoryStore(shared_runtime())
    grow(store, 8)
    cursors = CursorStore(store, "a")
    witness = cursors.create("c", LogPosition(6, 0))
    collecting = collector(store)
    collecting.prune(collecting.announce(collecting.plan()))
    log_id = witness.cursor.log_id
    late = Cursor(position=LogPosition(2, 0), epoch_us=0, writer="another hand", generation=2, log_id=log_id)
    assert isinstance(life_store(store, "a").replace(cursor_path("c"), late.to_bytes(), witness.etag), Done)

    hand = CursorStore(store, "a")
    found = hand.load("c")
    assert found is not None

    with pytest.raises(GarbageCollectedError):
        hand.save("c", LogPosition(3, 0), found)
    left = hand.load("c")
    assert left is not None
    assert left.cursor.position.offset >= 6


def test_collection_announced_over_one_that_pruned_meanwhile_is_carried_out() -> None:
    """Another collector pruned part of what its document names between the document and the announcement."""
    store = MemoryStore(shared_runtime())
    grow(store, 8)
    CursorStore(store, "a").create("c", LogPosition(6, 0))
    slow, quick = collector(store), collector(store)
    announced = slow.announce(slow.plan())
    quick.prune(quick.announce(quick.plan(limit_offset=3)))
    manifests = ManifestStore(log_store(store, "a"), shared_runtime())
    base = manifests.load()
    # The slow collector's CAS was refused, and it tries again on the manifest that the quick one left.
    manifests.install(base.manifest.apply_announcement(announced, Boundary(FragmentSeqNo(6), LogPosition(6, 0))), base)

    outcome = slow.prune(announced)

    assert isinstance(outcome, PrunedGarbage)
    assert manifests.load().manifest.first.position.offset == 6
    # It drops less than its document named, so it writes another document.
    assert outcome.garbage.path != announced
    done = collect(store, "a", options=CollectorOptions(interval_s=0, fraction_max=1.0))
    assert announced in {each.path for each in done.deleted}
    assert Deleter(store, "a").pending() == []


class ForgettingStore(MemoryStore):
    """Another collector deletes a garbage document between two reads of it."""

    def head(self, path: str) -> ObjectMeta | None:
        if "/gc/GARBAGE" in path:
            self.delete(path)
        return super().head(path)


def test_document_deleted_meanwhile_does_not_end_the_wait() -> None:
    store = ForgettingStore(shared_runtime())
    grow(store, 8)
    CursorStore(store, "a").create("c", LogPosition(6, 0))
    collecting = collector(store)
    path = collecting.announce(collecting.plan())
    assert isinstance(collecting.prune(path), PrunedGarbage)

    deleted = Deleter(store, "a", options=CollectorOptions(interval_s=3600)).delete(path)

    assert deleted.num_deleted == 0


def test_object_linked_before_the_fence_moved_is_not_marked() -> None:
    """A collector slept after listing orphans; the object, once dropped, has to wait an interval like any other."""
    store = MemoryStore(shared_runtime())
    grow(store, 8)
    held = ManifestStore(log_store(store, "a"), shared_runtime()).load().manifest.pointers[0].path

    marked = collector(store).prune_orphans([held], "an old list")

    assert isinstance(marked, PrunedGarbage)
    assert marked.garbage.orphans == ()


def test_copy_finished_while_it_is_destroyed_is_checked_for_pins_like_any_log() -> None:
    """It was taken for cut short, but when its name is made vacant, the same life is a log."""
    store = MemoryStore(shared_runtime())
    grow(store, 3)
    slow = FaultyStore(store)
    slow.fail("replace", "b/manifest/MANIFEST.json", "denied", times=9)
    with pytest.raises(UnavailableError):
        copy(LogAt(store, "a"), LogAt(slow, "b"))

    def finish(kind: str, path: str) -> None:
        if (kind, path) == ("replace", "b/manifest/MANIFEST.json"):
            slow.before = lambda _kind, _path: None
            copy(LogAt(store, "a"), LogAt(store, "b"))
            PinStore(store, "b").create("mine", reason="a long read")

    slow.heal()
    slow.before = finish

    with pytest.raises(InvalidRequestError, match="expected no pins, found mine"):
        destroy(slow, "b")
    assert len(list(LogReader.open(store, "b").records())) == 3


def test_collector_of_a_destroyed_log_reports_that_and_nothing_about_clocks() -> None:
    store = MemoryStore(shared_runtime())
    grow(store, 8)
    CursorStore(store, "a").create("c", LogPosition(6, 0))
    collecting = collector(store)
    path = collecting.announce(collecting.plan())
    assert isinstance(collecting.prune(path), PrunedGarbage)
    watched = FaultyStore(store)
    deleter = Deleter(watched, "a", options=CollectorOptions(interval_s=3600))

    def end(kind: str, path: str) -> None:
        if kind == "head" and path.endswith("gc/CLOCK"):
            destroy(store, "a")

    watched.before = end

    with pytest.raises(LogNotFoundError):
        deleter.delete(path)
