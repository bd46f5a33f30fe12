"""Updating a copy: it gains what its source has gained, and nothing else, whatever fails."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.spec.copies.test_copy_failures import crash_at
from tests.spec.copying import FEW, NOW, collect, data, fill, grow, records
from tests.stores import CountingStore, FaultyStore, damage, life_path
from tests.world import Crashed, World
from wal3_core import (
    Collector,
    CorruptError,
    CursorStore,
    GarbageCollectedError,
    InvalidRequestError,
    LogAt,
    LogNotFoundError,
    LogPosition,
    LogWriter,
    MemoryStore,
    Message,
    PinStore,
    UnavailableError,
    copy,
    destroy,
    scrub,
    seal,
    update_copy,
)
from wal3_core import collect as collect_all
from wal3_core.format.cursor import Owner
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore


def backed_up(store: ObjectStore, count: int = 5) -> None:
    fill(store, "a", count)
    copy(LogAt(store, "a"), LogAt(store, "b"))


def update(store: ObjectStore, *, with_cursors: bool = False) -> int:
    return update_copy(LogAt(store, "a"), LogAt(store, "b"), with_cursors=with_cursors).num_records


def test_update_appends_what_the_source_gained_at_the_same_positions(store: ObjectStore) -> None:
    backed_up(store)
    fill(store, "a", 40)
    with LogWriter.open(store, "a", options=FEW) as writer:
        writer.append_many([Message(None, key=b"deleted"), Message(b"", key=b""), Message(b"plain")])
    reported: list[tuple[int, int]] = []

    updated = update_copy(
        LogAt(store, "a"), LogAt(store, "b"), progress=lambda done, total: reported.append((done, total))
    )

    source, target = World(store).manifest(), World(store, "b").manifest()
    assert records(store, "b") == records(store, "a")
    assert (target.setsum, target.pruned, target.first, target.next) == (
        source.setsum,
        source.pruned,
        source.first,
        source.next,
    )
    assert scrub(store, "b").sound
    assert (updated.from_offset, updated.next_offset, updated.num_records, updated.num_fragments) == (6, 49, 43, 41)
    assert updated.setsum == source.setsum
    assert reported[-1] == (43, 43)
    assert PinStore(store, "a").list() == {}


def test_update_of_a_copy_that_lacks_nothing_writes_nothing(store: ObjectStore) -> None:
    backed_up(store)
    counting = CountingStore(store)

    updated = update_copy(LogAt(store, "a"), LogAt(counting, "b"))

    assert (updated.num_records, updated.num_bytes) == (0, 0)
    assert not +counting.written


def test_copy_of_an_empty_log_is_updated(store: ObjectStore) -> None:
    LogWriter.create(store, "a")
    copy(LogAt(store, "a"), LogAt(store, "b"))
    fill(store, "a", 3)

    assert update(store) == 3
    assert records(store, "b") == records(store, "a")


def test_copy_from_an_offset_is_updated(store: ObjectStore) -> None:
    fill(store, "a", 6)
    copy(LogAt(store, "a"), LogAt(store, "b"), from_offset=4)
    fill(store, "a", 6)

    assert update(store) == 6
    assert records(store, "b") == records(store, "a")[3:]


def test_source_and_copy_are_collected_each_by_its_own_rules(store: ObjectStore) -> None:
    held = grow(store, "a")
    copy(LogAt(store, "a"), LogAt(store, "b"))
    collect(store, "b", held)
    collect(store, "a", 4)
    fill(store, "a", 10)

    assert update(store) == 10
    assert [record.offset for record in records(store, "b")] == list(range(held, held + 11))
    assert World(store, "b").manifest().setsum == World(store).manifest().setsum
    assert scrub(store, "b").sound


@pytest.mark.slow
def test_tree_of_a_copy_that_is_updated_often_stays_small(memory_store: MemoryStore) -> None:
    backed_up(memory_store)
    for _ in range(40):
        fill(memory_store, "a", 5)
        update(memory_store)

    target = World(memory_store, "b").manifest()
    assert records(memory_store, "b") == records(memory_store, "a")
    assert len(target.pointers) <= 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda store: fill(store, "b", 1), "found records that it does not have, up to offset 6"),
        (lambda store: (fill(store, "b", 1), fill(store, "a", 4)), "found other records below offset 7"),
        (lambda store: seal(store, "b", reason="over", sealed_by="me"), "expected an open copy, found it sealed"),
    ],
)
def test_target_that_is_no_copy_is_refused_and_unchanged(
    store: ObjectStore, change: Callable[[ObjectStore], object], message: str
) -> None:
    backed_up(store)
    change(store)
    before = data(store, "b")

    with pytest.raises(InvalidRequestError, match=message):
        update(store)

    assert data(store, "b") == before


def test_copy_of_a_log_whose_name_was_used_again_is_refused(store: ObjectStore) -> None:
    backed_up(store)
    destroy(store, "a")
    fill(store, "a", 9)

    with pytest.raises(InvalidRequestError, match="found other records below offset 6"):
        update(store)


def test_missing_target_and_the_source_itself_are_refused(store: ObjectStore) -> None:
    fill(store, "a", 2)

    with pytest.raises(LogNotFoundError):
        update(store)
    with pytest.raises(InvalidRequestError, match="found itself"):
        update_copy(LogAt(store, "a"), LogAt(store, "a"))


def test_source_that_was_collected_beyond_the_copy_s_end_is_refused(store: ObjectStore) -> None:
    backed_up(store)
    fill(store, "a", 5)
    collect(store, "a", 8)

    with pytest.raises(GarbageCollectedError, match="begins at offset 8, found it at 6"):
        update(store)

    assert len(records(store, "b")) == 5


def test_cursor_on_the_source_keeps_what_the_copy_lacks(store: ObjectStore) -> None:
    backed_up(store)
    CursorStore(store, "a").create("backup", LogPosition(6, 0))
    fill(store, "a", 5)

    collect(store, "a", 8)

    assert World(store).manifest().first.position.offset == 6
    assert update(store) == 5


def test_log_restored_from_its_copy_goes_on_with_that_copy(store: ObjectStore) -> None:
    backed_up(store)
    destroy(store, "a")
    copy(LogAt(store, "b"), LogAt(store, "a"))
    fill(store, "a", 3)

    assert update(store) == 3
    assert records(store, "b") == records(store, "a")


def test_cursors_follow_the_source_s_within_the_copy(store: ObjectStore) -> None:
    backed_up(store)
    theirs, ours = CursorStore(store, "a"), CursorStore(store, "b")
    witness = theirs.create("billing", LogPosition(2, 0))
    ours.create("own", LogPosition(3, 0))
    update(store, with_cursors=True)
    fill(store, "a", 4)
    theirs.save("billing", LogPosition(9, 0), witness)
    theirs.create("new", LogPosition(1, 0))

    moved = update_copy(LogAt(store, "a"), LogAt(store, "b"), with_cursors=True).num_cursors

    assert {name: each.cursor.position.offset for name, each in ours.list().items()} == {
        "billing": 9,
        "new": 1,
        "own": 3,
    }
    assert moved == 2


def test_update_with_cursors_goes_on_while_a_collection_is_announced_in_the_copy(store: ObjectStore) -> None:
    """Its collector may have died: cursors below what it keeps are left out, and a writer's is put there."""
    backed_up(store, 9)
    for name, owner in (("reader", Owner.CONSUMER), ("writer-w", Owner.WRITER)):
        CursorStore(store, "a").create(name, LogPosition(3, 0), owner=owner)
    collector = Collector(store, "b", options=NOW)
    collector.announce(collector.plan(8))
    fill(store, "a", 2)

    assert [update(store, with_cursors=True) for _ in range(2)] == [2, 0]
    assert CursorStore(store, "b").offsets() == {"writer-w": 8}
    assert records(store, "b") == records(store, "a")


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("create", "replace"), pytest.param(("read", "get"), marks=pytest.mark.repeat)])
def test_update_that_was_cut_short_anywhere_is_finished_by_the_next(kinds: tuple[str, ...]) -> None:
    for step in range(300):
        origin = MemoryStore(shared_runtime())
        backed_up(origin)
        fill(origin, "a", 20)
        store = FaultyStore(origin)
        crash_at(store, step, kinds)
        try:
            update(store)
            finished = True
        except Crashed:
            finished = False
        cut = records(origin, "b")
        assert len(cut) >= 5
        assert cut == records(origin, "a")[: len(cut)]
        update(origin)
        assert records(origin, "b") == records(origin, "a")
        assert scrub(origin, "b").sound
        if finished:
            assert step >= 5
            return
    pytest.fail("300 requests did not finish an update")


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "late", "conflict"])
def test_commit_without_an_answer_appends_nothing_twice(store: ObjectStore, fault: str) -> None:
    backed_up(store)
    fill(store, "a", 20)
    faulty = FaultyStore(store)
    faulty.fail("replace", "MANIFEST", fault)

    updated = update_copy(LogAt(store, "a"), LogAt(faulty, "b"))
    faulty.arrive()

    assert updated.num_records == 20
    assert records(store, "b") == records(store, "a")
    assert scrub(store, "b").sound


def at_first_commit(store: ObjectStore, act: Callable[[], object]) -> FaultyStore:
    """Run ``act`` once, just before the copy's manifest is replaced."""
    faulty = FaultyStore(store)

    def before(kind: str, path: str) -> None:
        if kind == "replace" and path.startswith("b/") and path.endswith("MANIFEST.json"):
            faulty.before = lambda _kind, _path: None
            act()

    faulty.before = before
    return faulty


def test_another_update_meanwhile_doubles_nothing(store: ObjectStore) -> None:
    backed_up(store)
    fill(store, "a", 20)
    faulty = at_first_commit(store, lambda: update(store))

    update_copy(LogAt(store, "a"), LogAt(faulty, "b"))

    assert records(store, "b") == records(store, "a")
    assert scrub(store, "b").sound


def test_another_update_that_saw_more_of_the_source_ends_neither(store: ObjectStore) -> None:
    backed_up(store)
    fill(store, "a", 20)
    faulty = at_first_commit(store, lambda: (fill(store, "a", 20), update(store)))

    updated = update_copy(LogAt(store, "a"), LogAt(faulty, "b"))

    assert updated.next_offset == 46
    assert records(store, "b") == records(store, "a")
    assert scrub(store, "b").sound


@pytest.mark.slow
def test_source_s_snapshots_that_were_replaced_and_deleted_meanwhile_are_no_damage(store: ObjectStore) -> None:
    backed_up(store)
    fill(store, "a", 150)
    CursorStore(store, "a").create("backup", LogPosition(6, 0))

    def maintain() -> None:
        SnapshotCompactor(store, "a").compact()
        for _ in range(2):
            collect_all(store, "a", options=NOW)

    update_copy(LogAt(store, "a"), LogAt(at_first_commit(store, maintain), "b"))

    assert records(store, "b")[5:] == records(store, "a")
    assert scrub(store, "b").sound


def test_record_appended_to_the_copy_meanwhile_is_kept_and_ends_the_update(store: ObjectStore) -> None:
    backed_up(store)
    fill(store, "a", 20)
    faulty = at_first_commit(store, lambda: fill(store, "b", 1))

    with pytest.raises(InvalidRequestError, match="other records below offset 7"):
        update_copy(LogAt(store, "a"), LogAt(faulty, "b"))

    assert len(records(store, "b")) == 6
    assert scrub(store, "b").sound


def test_record_appended_to_a_copy_after_a_lost_answer_is_not_called_the_source_s(
    store: ObjectStore,
) -> None:
    backed_up(store)
    fill(store, "a", 3)
    faulty = FaultyStore(store)
    faulty.fail("replace", "MANIFEST", "applied-unknown")

    def before(kind: str, path: str) -> None:
        # The manifest is loaded because the commit was not answered.
        if kind == "get" and path.endswith("b/manifest/MANIFEST.json") and faulty.fired:
            faulty.before = lambda _kind, _path: None
            fill(store, "b", 1)

    faulty.before = before

    with pytest.raises(InvalidRequestError, match="expected a copy of .*, found records that it does not have"):
        update_copy(LogAt(store, "a"), LogAt(faulty, "b"))

    assert len(records(store, "b")) == 9
    assert scrub(store, "b").sound


def test_fragments_deleted_as_orphans_before_their_commit_are_written_again(store: ObjectStore) -> None:
    backed_up(store)
    CursorStore(store, "b").create("all", LogPosition(1, 0))
    fill(store, "a", 20)
    faulty = at_first_commit(store, lambda: collect_all(store, "b", options=NOW))

    update_copy(LogAt(store, "a"), LogAt(faulty, "b"))
    collect_all(store, "b", options=NOW)

    assert records(store, "b") == records(store, "a")
    assert scrub(store, "b").sound


@pytest.mark.slow
def test_many_updates_at_once_append_everything_once(memory_store: MemoryStore) -> None:
    backed_up(memory_store)
    fill(memory_store, "a", 60)

    def run(_: int) -> None:
        for _ in range(10):
            try:
                update(memory_store)
            except UnavailableError:
                continue
            return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))

    assert records(memory_store, "b") == records(memory_store, "a")
    assert scrub(memory_store, "b").sound


def test_damaged_fragment_of_the_source_is_not_appended(memory_store: MemoryStore) -> None:
    backed_up(memory_store)
    fill(memory_store, "a", 1)
    last = World(memory_store).manifest().fragments[-1]
    damage(memory_store, life_path(memory_store, "a", last.path))

    with pytest.raises(CorruptError):
        update(memory_store)

    assert len(records(memory_store, "b")) == 5


def test_records_that_are_collected_while_they_are_copied_end_the_update(memory_store: MemoryStore) -> None:
    backed_up(memory_store)
    fill(memory_store, "a", 20)
    faulty = FaultyStore(memory_store)

    def before(kind: str, path: str) -> None:
        if kind == "read" and "/log/" in path:
            faulty.before = lambda _kind, _path: None
            collect(memory_store, "a", 20)

    faulty.before = before

    with pytest.raises(GarbageCollectedError, match="found them collected while they were copied: it begins at 20"):
        update_copy(LogAt(faulty, "a"), LogAt(memory_store, "b"))

    assert records(memory_store, "b")[-1].offset < 20
    assert scrub(memory_store, "b").sound
