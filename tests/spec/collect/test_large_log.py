"""A log of thousands of fragments is collected down to what is referenced, and is as cheap to open as a small one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from tests.built_logs import Builder
from tests.large_logs import Grower, reachable, stored
from tests.stores import CountingStore, FaultyStore, life_store
from tests.world import World
from wal3_core import LogError, LogReader, LogWriter, MemoryStore
from wal3_core.format.paths import CLOCK, fragment_path, fragment_seq_no
from wal3_core.format.position import FIRST_OFFSET, FragmentSeqNo, LogPosition
from wal3_core.log.collect.collector import CollectionReport, Collector, PrunedGarbage, collect
from wal3_core.options import POINTERS_MAX, CollectorOptions, ReaderOptions, SnapshotOptions
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.object_store import ObjectStore

TREE = SnapshotOptions(fragments_per_snapshot=8, fragments_kept=4, snapshots_per_roll=4, snapshot_pointers_max=16)
# The tree of a writer that never rolled.
FLAT = SnapshotOptions(fragments_per_snapshot=100_000)
NOW = CollectorOptions(interval_s=0, fraction_max=1, deletes_per_s=1e9)


def advance(store: ObjectStore, offset: int) -> None:
    """Move the cursor to an offset, or create it there."""
    cursors, position = CursorStore(store, "a"), LogPosition(offset, 0)
    witness = cursors.load("reader")
    if witness is None:
        cursors.create("reader", position)
    else:
        cursors.save("reader", position, witness)


def left_behind(store: ObjectStore) -> set[str]:
    """The objects that collections write for themselves."""
    return {meta.path for meta in life_store(store, "a").list_objects("gc/")} - {CLOCK}


def check_exact(store: ObjectStore, offset: int) -> None:
    """The stored objects are those the manifest refers to, from the fragment at the offset to the last one."""
    present = set(stored(store))
    following = World(store).manifest().next.seq_no

    assert present == reachable(store)
    assert sorted(fragment_seq_no(path) for path in present if path.startswith("log/")) == list(
        range(offset, following)
    )
    assert left_behind(store) == set()


@pytest.mark.slow
@pytest.mark.parametrize(("tree", "size", "step"), [(TREE, 800, 171), (FLAT, 200, 41)], ids=["tree", "flat"])
def test_storage_holds_exactly_what_the_manifest_refers_to_after_every_round(
    memory_store: MemoryStore, tree: SnapshotOptions, size: int, step: int
) -> None:
    """INV-16: no referenced object is deleted, and no other object stays."""
    grower = Grower(memory_store, tree=tree)
    grower.grow(size)
    advance(memory_store, FIRST_OFFSET)
    held_bytes, counts = [], []

    for number in range(1, 5):
        # Cut across the boundaries of leaves and nodes.
        offset = 1 + number * step
        advance(memory_store, offset)
        grower.grow(step)
        before = len(stored(memory_store))
        collect(memory_store, "a", options=NOW)
        after = stored(memory_store)
        held_bytes.append(sum(after.values()))
        counts.append(before - len(after))
        check_exact(memory_store, offset)

    # Every round deletes as much as it adds: the stored bytes stay within a few percent.
    assert max(held_bytes) < 1.05 * min(held_bytes)
    assert all(gone >= step for gone in counts)
    held = [record.offset for record in LogReader.open(memory_store, "a").records()]
    assert held == list(range(offset, size + 4 * step + 1))


@pytest.mark.slow
def test_log_collected_to_its_end_at_once_holds_nothing_and_accepts_appends(memory_store: MemoryStore) -> None:
    Grower(memory_store, tree=TREE).grow(600)
    advance(memory_store, 601)

    collect(memory_store, "a", options=NOW)

    assert (stored(memory_store), reachable(memory_store), left_behind(memory_store)) == ({}, set(), set())
    with LogWriter.open(memory_store, "a") as writer:
        assert writer.append(b"on").offset == 601
    check_exact(memory_store, 601)


@pytest.mark.slow
def test_orphans_beyond_the_limit_of_one_collection_are_deleted_by_the_next_ones(memory_store: MemoryStore) -> None:
    # Rolled into snapshots of fragments alone, which leaves no other orphans.
    Grower(memory_store, tree=replace(TREE, snapshots_per_roll=1000)).grow(250)
    advance(memory_store, FIRST_OFFSET)
    inside = life_store(memory_store, "a")
    for fragment in LogReader.open(memory_store, "a").scan():
        inside.create(fragment_path(fragment.seq_no, "f" * 16), b"never linked")

    rounds: list[CollectionReport] = []
    while not rounds or rounds[-1].num_orphans:
        rounds.append(collect(memory_store, "a", options=replace(NOW, orphans_max=100)))

    assert [done.num_orphans for done in rounds] == [100, 100, 50, 0]
    check_exact(memory_store, FIRST_OFFSET)


@pytest.mark.slow
def test_more_orphans_than_a_document_can_name_do_not_stop_later_collections(
    memory_store: MemoryStore,
) -> None:
    """Regression: a document was written that could not be read, and every later collection failed."""
    Grower(memory_store, tree=TREE).grow(100)
    advance(memory_store, 51)
    orphans = [fragment_path(FragmentSeqNo(number), "f" * 16) for number in range(1, POINTERS_MAX + 2)]

    with suppress(LogError):
        Collector(memory_store, "a", options=NOW).prune_orphans(orphans, "too many at once")
    collect(memory_store, "a", options=NOW)

    check_exact(memory_store, 51)


def test_log_that_is_appended_to_continuously_is_pruned_nevertheless(memory_store: MemoryStore) -> None:
    """A collector that makes more requests between reading and changing the manifest than a writer does never wins."""
    Grower(memory_store, tree=TREE).grow(300)
    advance(memory_store, 150)
    busy, since_look = FaultyStore(memory_store), [0]
    collector = Collector(busy, "a", options=replace(NOW, rebases_max=16))
    plan = collector.plan()
    appended: list[str] = []

    with LogWriter.open(memory_store, "a") as writer:

        def append_as_fast(kind: str, path: str) -> None:
            # A writer makes two requests per append: the upload and the change of the manifest. A collector that
            # makes two from reading the manifest to changing it comes too late.
            since_look[0] = 0 if kind == "get" and path.endswith("MANIFEST.json") else since_look[0] + 1
            if since_look[0] == 2:
                writer.append(b"beside")
                appended.append(kind)

        busy.before = append_as_fast
        outcome = collector.prune(collector.announce(plan))

    assert len(appended) > 2
    assert isinstance(outcome, PrunedGarbage)
    assert World(memory_store).manifest().first.position.offset == 150


@pytest.mark.slow
def test_pointers_and_requests_to_open_stay_few_as_the_log_grows(memory_store: MemoryStore) -> None:
    """INV-8."""
    counting = CountingStore(memory_store)
    grower = Grower(memory_store, tree=TREE, real=False)
    sizes, pointers = [], []

    for _ in range(8):
        grower.grow(500)
        counting.requests.clear()
        reader = LogReader.open(counting, "a")
        assert counting.requests == {"get": 1}
        sizes.append(len(reader.manifest().to_bytes()))
        pointers.append(len(reader.manifest().pointers))

    # With eight times the fragments: one snapshot more, of one level more.
    assert max(pointers) <= TREE.fragments_per_snapshot + TREE.fragments_kept + 2 * TREE.snapshots_per_roll
    assert max(sizes) < 600 * max(pointers)


@pytest.mark.slow
def test_full_scan_costs_one_request_per_fan_out_of_fragments(memory_store: MemoryStore) -> None:
    Grower(memory_store, tree=TREE, real=False).grow(2000)
    counting = CountingStore(memory_store)
    reader = LogReader.open(counting, "a", options=ReaderOptions(snapshots_loaded_max=2))
    counting.requests.clear()

    found = reader.scan()

    assert [pointer.seq_no for pointer in found] == list(range(1, 2001))
    leaves = 2000 / TREE.fragments_per_snapshot
    assert set(counting.requests) == {"get", "read"}
    assert counting.requests["get"] == 1
    # Three levels, each with one node that is not full.
    nodes = leaves / (TREE.snapshot_pointers_max - 1)
    assert counting.requests["read"] <= leaves + nodes + 3


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 20, 1000, 9000])
def test_tree_built_level_by_level_equals_the_tree_that_a_writer_grows(memory_store: MemoryStore, count: int) -> None:
    """The benchmarks build trees that would take days to grow."""
    Grower(memory_store, "grown", real=False).grow(count, per_step=1)
    Builder(memory_store, "built").build(count)

    grown, built = (LogReader.open(memory_store, log).manifest() for log in ("grown", "built"))

    assert [(p.depth, p.num_pointers) for p in built.snapshots] == [(p.depth, p.num_pointers) for p in grown.snapshots]
    assert [p.seq_no for p in built.fragments] == [p.seq_no for p in grown.fragments]
    assert built.setsum == grown.setsum
