"""Objects without references are found by age and deleted behind a fence, and no slow writer loses a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.stores import CountingStore, FaultyStore, life_store
from tests.world import (
    DAY_S,
    LATER,
    LOG,
    NOW,
    QUICK,
    SMALL,
    UNROLLED,
    ClockStore,
    Crashed,
    Later,
    World,
    count_requests,
    crash,
)
from wal3_core import LogWriter, MemoryStore, NotDurableError, PinStore, WriterOptions, scrub, seal
from wal3_core.errors import CollectionRefusedError
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.options import CollectorOptions, SnapshotCompactorOptions, SnapshotOptions
from wal3_core.store.object_store import ObjectStore

WITHOUT_ORPHANS = replace(NOW, orphans_max=0)
UNRETRIED = replace(UNROLLED, retry=replace(QUICK, attempts_max=1))


def clocked(store: ObjectStore, *, cursor: int | None = 1) -> ClockStore:
    clock = ClockStore(store)
    World(clock).plant(cursor=cursor)
    return clock


def abandon(store: FaultyStore, count: int = 1) -> list[str]:
    """Let appends fail between upload and commit; return the fragments they leave behind, oldest first."""
    world = World(store)
    left: list[str] = []
    for _ in range(count):
        before = world.stored()
        store.fail("replace", "MANIFEST", "denied")
        with LogWriter.open(store, LOG, options=UNRETRIED) as writer, pytest.raises(NotDurableError):
            writer.append(b"never")
        store.heal()
        left += sorted(world.stored() - before)
        if isinstance(store, ClockStore):
            store.pass_s(1)
    assert len(left) == count
    return left


def orphans(store: ObjectStore, options: CollectorOptions = LATER) -> list[str]:
    return Deleter(store, LOG, options=options).orphans()


def prune_orphans(store: ObjectStore, paths: Sequence[str]) -> str:
    marked = Collector(store, LOG, options=LATER).prune_orphans(paths, "a test")
    assert isinstance(marked, PrunedGarbage)
    return marked.path


def collect_orphans(clock: ClockStore) -> None:
    """A collector finds them, and runs again on each of the next two days."""
    for _ in range(3):
        clock.pass_s(DAY_S)
        World(clock).collect(LATER)


# ---------------------------------------------------------------------- found


def test_log_without_orphans_has_none_however_old_it_is(store: ObjectStore) -> None:
    clock = clocked(store)
    clock.pass_s(1000 * DAY_S)

    assert orphans(clock) == []


def test_orphans_are_those_older_than_the_interval_by_the_store_the_oldest_first(store: ObjectStore) -> None:
    clock = clocked(store)
    left = abandon(clock, 4)
    assert orphans(clock) == []

    clock.pass_s(DAY_S - 4)
    found = []
    for _ in range(4):
        found.append(orphans(clock))
        clock.pass_s(1)

    assert found == [left[:1], left[:2], left[:3], left]


def test_number_of_orphans_is_limited_and_the_oldest_come_first(store: ObjectStore) -> None:
    clock = clocked(store)
    left = abandon(clock, 4)
    clock.pass_s(2 * DAY_S)
    few = replace(LATER, orphans_max=2)

    first = orphans(clock, few)
    World(clock).delete(prune_orphans(clock, first))

    assert first == left[:2]
    assert orphans(clock, few) == left[2:]


def test_orphan_with_the_seq_no_of_a_linked_fragment_is_distinguished_from_it(store: ObjectStore) -> None:
    """The orphan is another writer's upload of the same seq_no, which lost."""
    clock = clocked(store)
    world = World(clock)
    left = abandon(clock)
    world.append(2)
    [same] = [pointer for pointer in world.manifest().fragments if pointer.path[-24:] == left[0][-24:]]
    clock.pass_s(2 * DAY_S)

    assert orphans(clock) == left
    collect_orphans(clock)
    assert same.path in world.stored()
    assert left[0] not in world.stored()
    assert world.offsets() == list(range(1, 23))


def test_object_named_by_a_pin_or_an_unfinished_collection_is_no_orphan(store: ObjectStore) -> None:
    clock = clocked(store, cursor=None)
    world = World(clock)
    PinStore(clock, LOG).create("audit", reason="a test")
    world.append(10)
    world.move_cursor(29)
    world.prune()
    left = abandon(clock)
    clock.pass_s(2 * DAY_S)
    deleter = Deleter(clock, LOG, options=LATER)

    unaware, aware = deleter.orphans(), deleter.orphans(deleter.pending())

    assert aware == left
    # The pin holds the first twenty of the pruned records.
    assert len(unaware) == 8 + 1
    prune_orphans(clock, left)
    assert deleter.orphans(deleter.pending()) == []


def test_snapshots_that_were_rolled_into_others_are_orphans(store: ObjectStore) -> None:
    clock = clocked(store)
    world = World(clock)
    larger = SnapshotOptions(fragments_per_snapshot=8, fragments_kept=4, snapshots_per_roll=4)
    SnapshotCompactor(clock, LOG, options=SnapshotCompactorOptions(snapshots=larger, retry=QUICK)).compact()
    replaced = world.stored() - world.reachable()
    clock.pass_s(2 * DAY_S)

    assert replaced
    assert set(orphans(clock)) == replaced
    collect_orphans(clock)
    assert world.stored() == world.reachable()


def test_foreign_file_among_the_data_is_an_error_that_names_it(store: ObjectStore) -> None:
    """It is not wal3's to delete, nor to ignore silently."""
    clock = clocked(store)
    life_store(clock, "a").create("log/readme.txt", b"not ours")
    clock.pass_s(2 * DAY_S)

    with pytest.raises(CollectionRefusedError, match=r"log/readme\.txt"):
        orphans(clock)
    with pytest.raises(CollectionRefusedError, match=r"log/readme\.txt"):
        World(clock).collect(LATER)

    assert life_store(clock, "a").read("log/readme.txt") == b"not ours"


# ---------------------------------------------------------------------- marked


def test_marking_orphans_raises_the_fence_and_deletes_nothing_yet(store: ObjectStore) -> None:
    clock = clocked(store)
    world = World(clock)
    left = abandon(clock, 2)
    clock.pass_s(2 * DAY_S)
    manifest = world.manifest()

    path = prune_orphans(clock, left)

    [written] = Deleter(clock, LOG).pending()
    after = world.manifest()
    assert (written.path, written.orphans, written.dropped, written.first) == (path, tuple(left), (), None)
    assert written.pruned
    assert after.fence == manifest.fence + 1
    assert replace(after, fence=0, generation=0, writer="") == replace(manifest, fence=0, generation=0, writer="")
    assert set(left) <= world.stored()
    assert world.delete(path, LATER).wait_s == DAY_S
    clock.pass_s(DAY_S)
    assert world.delete(path, LATER).num_deleted == 2
    assert world.stored() == world.reachable()


def test_marking_orphans_twice_raises_the_fence_once(store: ObjectStore) -> None:
    clock = clocked(store)
    world = World(clock)
    path = prune_orphans(clock, abandon(clock))
    fence = world.manifest().fence

    again = Collector(clock, LOG, options=LATER).prune(path)

    assert isinstance(again, PrunedGarbage)
    assert world.manifest().fence == fence


def test_marking_orphans_that_dies_anywhere_is_finished_by_the_next(store: ObjectStore) -> None:
    clock = clocked(store)
    world = World(clock)
    left = abandon(clock)
    requests = count_requests(clock, lambda: prune_orphans(clock, left))
    fence = world.manifest().fence
    assert requests >= 5

    # The first two requests identify the log and write the document: before them, nothing is marked.
    for number in range(3, requests + 1):
        Later(clock, number, crash)
        with pytest.raises(Crashed):
            prune_orphans(clock, left)
        clock.before = lambda _kind, _path: None
        Collector(clock, LOG, options=LATER).resume_all()
        assert all(garbage.pruned for garbage in Deleter(clock, LOG).pending())
        assert world.manifest().fence > fence, f"request {number}"
        fence = world.manifest().fence
    clock.pass_s(DAY_S)
    world.collect(LATER)

    assert world.stored() == world.reachable()
    assert world.documents() == []


def test_two_who_mark_the_same_orphans_delete_them_once_and_leave_nothing(store: ObjectStore) -> None:
    clock = clocked(store)
    world = World(clock)
    left = abandon(clock, 2)
    clock.pass_s(2 * DAY_S)
    first, second = prune_orphans(clock, left), prune_orphans(clock, left)
    clock.pass_s(DAY_S)

    assert world.delete(first, LATER).finished
    assert world.delete(second, LATER).finished
    assert world.stored() == world.reachable()
    assert world.documents() == []


def test_orphan_that_was_linked_before_the_fence_moved_is_kept_and_not_waited_for(store: ObjectStore) -> None:
    """A commit came between finding and marking."""
    clock = clocked(store)
    world = World(clock)
    found: list[str] = []

    def find() -> None:
        clock.before = lambda _kind, _path: None
        clock.pass_s(2 * DAY_S)
        found.extend(orphans(clock))

    with LogWriter.open(clock, LOG, options=UNROLLED) as writer:
        clock.before = lambda kind, path: find() if kind == "replace" and "MANIFEST" in path else None
        writer.append(b"in time")
    path = prune_orphans(clock, found)
    clock.pass_s(DAY_S)
    done = world.delete(path, LATER)

    assert len(found) == 1
    assert (done.num_deleted, done.num_held, done.finished) == (0, 0, True)
    assert world.offsets() == list(range(1, 22))
    assert world.documents() == []


# ---------------------------------------------------------------------- slow writers


def sleeps(clock: ClockStore, kind: str, path_part: str, meanwhile: Callable[[], object]) -> list[str]:
    """Run an action once, just before a matching request; return that request's path."""
    slept: list[str] = []

    def before(at_kind: str, path: str) -> None:
        if not slept and at_kind == kind and path_part in path:
            slept.append(path)
            meanwhile()

    clock.before = before
    return slept


@pytest.mark.parametrize(("kind", "path_part"), [("create", "/log/"), ("replace", "MANIFEST")])
def test_writer_that_slept_for_days_loses_time_and_no_record(store: ObjectStore, kind: str, path_part: str) -> None:
    """It slept between upload and commit, or before the upload, and its fragment was marked and deleted meanwhile."""
    clock = clocked(store)
    world = World(clock)
    before = world.stored()

    with LogWriter.open(clock, LOG, options=UNROLLED) as writer:
        slept = sleeps(clock, kind, path_part, lambda: collect_orphans(clock))
        first = writer.append(b"slow").offset
        second = writer.append(b"quick").offset

    assert slept
    assert (first, second) == (21, 22)
    assert world.offsets() == list(range(1, 23))
    assert scrub(clock, LOG).sound
    if kind == "replace":
        assert world.manifest().fence == 1
    collect_orphans(clock)
    assert world.stored() == world.reachable()
    assert before <= world.stored()


@pytest.mark.slow
def test_writer_that_slept_before_each_of_many_commits_commits_them_all(store: ObjectStore) -> None:
    clock = clocked(store)

    with LogWriter.open(clock, LOG, options=UNROLLED) as writer:
        for count in range(3):
            sleeps(clock, "replace", "MANIFEST", lambda: collect_orphans(clock))
            futures = [writer.submit(b"%d" % number) for number in range(4)]
            assert [future.result().offset for future in futures] == list(range(21 + 4 * count, 25 + 4 * count))

    assert World(clock).offsets() == list(range(1, 33))
    assert scrub(clock, LOG).sound


def test_snapshot_that_was_marked_is_never_linked(store: ObjectStore) -> None:
    """The same records under a later fence make a snapshot of another name."""
    clock = ClockStore(store)
    world = World(clock)
    world.append(20)
    world.move_cursor(1)
    options = SnapshotCompactorOptions(snapshots=SMALL, pointers_per_step_max=1, retry=QUICK)
    slept = sleeps(clock, "replace", "MANIFEST", lambda: collect_orphans(clock))

    SnapshotCompactor(clock, LOG, options=options).compact()

    assert slept
    assert world.manifest().fence == 1
    assert world.manifest().snapshots
    assert world.offsets() == list(range(1, 21))
    assert scrub(clock, LOG).sound
    collect_orphans(clock)
    assert world.stored() == world.reachable()
    assert world.offsets() == list(range(1, 21))


def test_writer_s_own_snapshot_that_was_marked_is_never_linked(store: ObjectStore) -> None:
    clock = ClockStore(store)
    world = World(clock)
    world.append(6)
    world.move_cursor(1)
    with LogWriter.open(clock, LOG, options=WriterOptions(batch_records_max=1, snapshots=SMALL)) as writer:
        for number in range(6):
            writer.append(b"%d" % number)
            collect_orphans(clock)

    assert world.offsets() == list(range(1, 13))
    assert scrub(clock, LOG).sound
    assert {pointer.path for pointer in world.pointers(world.manifest().pointers)} <= world.stored()


def test_part_of_a_snapshot_that_a_dead_collector_wrote_is_never_linked(store: ObjectStore) -> None:
    """It died between uploading the kept parts and pruning; they were marked, and another collector prunes the same."""
    clock = clocked(store, cursor=12)
    world = World(clock)
    sleeps(clock, "replace", "MANIFEST", lambda: None)
    collector = Collector(clock, LOG, options=LATER)
    path = collector.announce(collector.plan())
    sleeps(clock, "replace", "MANIFEST", crash)
    with pytest.raises(Crashed):
        collector.prune(path)
    clock.before = lambda _kind, _path: None
    written = world.stored() - world.reachable()
    depth = max(pointer.depth for pointer in world.manifest().snapshots)
    clock.pass_s(2 * DAY_S)

    marked = prune_orphans(clock, sorted(written))
    assert isinstance(collector.prune(path), PrunedGarbage)
    clock.pass_s(DAY_S)
    world.delete(marked, LATER)

    assert 2 <= len(written) <= depth, "one of each depth at most"
    assert written.isdisjoint(world.stored())
    assert world.offsets() == list(range(12, 21))
    assert scrub(clock, LOG).sound


def test_orphans_of_a_sealed_log_are_deleted_too(store: ObjectStore) -> None:
    clock = clocked(store)
    world = World(clock)
    left = abandon(clock)
    seal(clock, LOG, reason="the end", sealed_by="a test")

    collect_orphans(clock)

    assert set(left).isdisjoint(world.stored())
    assert world.stored() == world.reachable()
    assert world.offsets() == list(range(1, 21))


def test_one_collection_marks_and_a_later_one_deletes(store: ObjectStore) -> None:
    clock = clocked(store)
    world = World(clock)
    left = abandon(clock, 3)

    rounds = []
    for _ in range(4):
        done = world.collect(LATER)
        rounds.append((done.num_orphans, sum(each.num_deleted for each in done.deleted), set(left) <= world.stored()))
        clock.pass_s(DAY_S)

    assert rounds == [(0, 0, True), (3, 0, True), (0, 3, False), (0, 0, False)]
    assert world.stored() == world.reachable()
    assert world.collect(NOW).num_orphans == 0


def test_no_orphans_are_looked_for_without_a_request(memory_store: MemoryStore) -> None:
    """As ``wal3 gc --dry-run --no-orphans`` does, perhaps with credentials that cannot write."""
    World(memory_store).plant()
    counting = CountingStore(memory_store)

    assert Deleter(counting, LOG, options=WITHOUT_ORPHANS).orphans() == []

    assert not counting.requests


def test_orphans_of_a_log_with_unreadable_pins_are_refused_before_any_write(
    memory_store: MemoryStore,
) -> None:
    World(memory_store).plant()
    life_store(memory_store, LOG).create("pin/audit.json", b"not a pin")
    counting = CountingStore(memory_store)

    for options in (NOW, WITHOUT_ORPHANS):
        with pytest.raises(CollectionRefusedError):
            Deleter(counting, LOG, options=options).orphans_below(("log/",), [])

    assert sum(counting.written.values()) == 0
