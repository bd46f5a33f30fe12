"""Key roll-ups on storage: written once, checked, computed again, and deleted with their snapshots. INV-39, INV-40."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest

from tests.stores import CountingStore, FaultyStore, damage, life_store
from tests.world import (
    LOG,
    NOW,
    QUICK,
    SMALL,
    ClockStore,
    Crashed,
    Later,
    World,
    crash,
)
from wal3_core import (
    Limits,
    LogAt,
    LogReader,
    LogWriter,
    Message,
    PinStore,
    ReaderOptions,
    UnavailableError,
    copy,
    destroy,
    plan_destroy,
    repair_log,
    scrub,
)
from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.format.key_rollup import KeyRollup
from wal3_core.format.paths import key_rollup_path
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.contents import ObjectKind
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.key_columns import KeyColumns, build_key_rollup
from wal3_core.options import RetryOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import Done, ObjectStore


def stores_of(store: ObjectStore, log: str = LOG, retry: RetryOptions = QUICK) -> LogStores:
    return LogStores(store, log, runtime=shared_runtime(), retry=retry, snapshots_loaded_max=0)


def built(store: ObjectStore, pointer: SnapshotPointer, log: str = LOG) -> KeyRollup:
    snapshot = stores_of(store, log).snapshots.load(pointer)
    return build_key_rollup(snapshot, KeyColumns(life_store(store, log), ReaderOptions()), runtime=shared_runtime())


def roll_keys_up(store: ObjectStore, log: str = LOG) -> set[str]:
    """Write the key roll-up of every snapshot of depth 1; returns their paths."""
    world = World(store, log)
    for pointer in world.leaves():
        stores_of(store, log).key_rollups.write(pointer, built(store, pointer, log))
    return {key_rollup_path(pointer.path) for pointer in world.leaves()}


def rollups(store: ObjectStore, log: str = LOG) -> set[str]:
    """The stored key roll-ups."""
    return {meta.path for meta in life_store(store, log).list_objects("keys/")}


def keyed(store: ObjectStore) -> None:
    """Make a log of six fragments with keys, four of them in two snapshots."""
    world = World(store)
    with LogWriter.open_or_create(store, LOG) as writer:
        for number in range(6):
            writer.append_many([Message(b"%d" % number, b"k%d" % number), Message(None, b"gone %d" % number)])
    world.roll(SMALL)
    world.move_cursor(1)


def wrong(rollup: KeyRollup) -> KeyRollup:
    """A sound key roll-up of the same fragments that lacks a key."""
    first = rollup.fragments[0]
    return KeyRollup((replace(first, hashes=first.hashes[1:], tombstones=first.tombstones[1:]), *rollup.fragments[1:]))


# ------------------------------------------------------------------ load and write


def test_key_rollup_is_loaded_as_it_was_written(store: ObjectStore) -> None:
    keyed(store)
    pointer = World(store).leaves()[0]
    key_rollups = stores_of(store).key_rollups
    assert key_rollups.load(pointer) is None

    key_rollups.write(pointer, built(store, pointer))

    assert key_rollups.load(pointer) == built(store, pointer)
    assert rollups(store) == {f"keys/{pointer.path.removeprefix('snapshot/')}"}


def test_equal_key_rollup_is_left_as_it_is(store: ObjectStore) -> None:
    keyed(store)
    pointer = World(store).leaves()[0]
    [first, *_] = sorted(roll_keys_up(store))
    before = life_store(store, LOG).head(first)

    roll_keys_up(store)

    assert life_store(store, LOG).head(first) == before
    assert stores_of(store).key_rollups.load(pointer) == built(store, pointer)


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "conflict", "unavailable"])
def test_write_whose_request_fails_is_repeated(memory_store: ObjectStore, fault: str) -> None:
    faulty = FaultyStore(memory_store)
    keyed(faulty)
    pointer = World(faulty).leaves()[0]
    rollup = built(faulty, pointer)
    faulty.fail("create", "keys/", fault, times=1)

    stores_of(faulty).key_rollups.write(pointer, rollup)

    assert stores_of(faulty).key_rollups.load(pointer) == rollup


def test_write_that_keeps_failing_raises_and_names_the_object(memory_store: ObjectStore) -> None:
    faulty = FaultyStore(memory_store)
    keyed(faulty)
    pointer = World(faulty).leaves()[0]
    rollup = built(faulty, pointer)
    faulty.fail("create", "keys/", "unknown", times=100)

    with pytest.raises(UnavailableError, match=r"keys/SNAPSHOT\..*not written in 3 tries"):
        stores_of(faulty).key_rollups.write(pointer, rollup)


def test_damaged_key_rollup_counts_as_missing_and_is_written_again(store: ObjectStore) -> None:
    keyed(store)
    pointer = World(store).leaves()[0]
    path = key_rollup_path(pointer.path)
    roll_keys_up(store)
    sound = life_store(store, LOG).read(path) or b""
    key_rollups = stores_of(store).key_rollups

    for data in (b"", sound[:-1], sound + b"PAR1", b"x" * 2**20):
        life_store(store, LOG).delete(path)
        assert isinstance(life_store(store, LOG).create(path, data), Done)
        assert key_rollups.load(pointer) is None
        with pytest.raises(CorruptError, match="keys/SNAPSHOT"):
            key_rollups.read(pointer)

        roll_keys_up(store)

        assert key_rollups.load(pointer) == built(store, pointer)


def test_key_rollup_of_other_keys_is_replaced(store: ObjectStore) -> None:
    keyed(store)
    pointer = World(store).leaves()[0]
    key_rollups = stores_of(store).key_rollups
    key_rollups.write(pointer, wrong(built(store, pointer)))

    key_rollups.write(pointer, built(store, pointer))

    assert key_rollups.load(pointer) == built(store, pointer)


def test_key_rollup_of_another_snapshot_is_never_written(memory_store: ObjectStore) -> None:
    keyed(memory_store)
    one, other = World(memory_store).leaves()

    with pytest.raises(InvalidRequestError, match="could not be read back"):
        stores_of(memory_store).key_rollups.write(one, built(memory_store, other))

    assert rollups(memory_store) == set()


def test_log_may_be_named_keys(store: ObjectStore) -> None:
    for log in ("keys", "keys/keys", "a/keys"):
        World(store, log).append(6)
        World(store, log).roll()
        assert roll_keys_up(store, log)
    keyed(store)

    destroy(store, LOG)

    assert [record.offset for record in LogReader.open(store, "a/keys").records()] == [1, 2, 3, 4, 5, 6]


# ------------------------------------------------------------------ lifecycle


def test_key_rollup_goes_with_its_snapshot_and_the_others_stay(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=7)
    before = roll_keys_up(store)

    world.collect()

    assert world.stored() == world.reachable()
    assert rollups(store) == {key_rollup_path(pointer.path) for pointer in world.leaves()} & before
    assert rollups(store)


def test_key_rollup_is_deleted_before_its_snapshot(memory_store: ObjectStore) -> None:
    World(memory_store).plant(cursor=7)
    roll_keys_up(memory_store)
    faulty = FaultyStore(memory_store)
    deleted: list[str] = []
    faulty.before = lambda kind, path: deleted.append(path.split("/", 2)[2]) if kind == "delete" else None

    World(faulty).collect()

    gone = [path for path in deleted if path.startswith("snapshot/")]
    assert gone
    for path in gone:
        assert key_rollup_path(path) in deleted[: deleted.index(path)]


@pytest.mark.slow
def test_deletion_cut_short_anywhere_leaves_no_key_rollup_without_a_snapshot(memory_store: ObjectStore) -> None:
    cut, number = True, 0
    while cut:
        number += 1
        store = FaultyStore(type(memory_store)(shared_runtime()))
        world = World(store)
        world.plant(cursor=7)
        roll_keys_up(store)
        path = world.prune()
        died = Later(store, number, crash)
        with contextlib.suppress(Crashed):
            Deleter(store, LOG, options=NOW).delete(path)
        store.before = lambda _kind, _path: None
        cut = died.happened

        left = {key_rollup_path(each) for each in world.stored() if each.startswith("snapshot/")}
        assert rollups(store) <= left
        world.collect()
        assert world.stored() == world.reachable()
        assert rollups(store) <= {key_rollup_path(pointer.path) for pointer in world.leaves()}
    assert number > 10


def test_log_without_key_rollups_pays_one_listing_for_each_pass(memory_store: ObjectStore) -> None:
    world = World(memory_store)
    world.plant(cursor=12)
    path = world.prune()
    counting = CountingStore(memory_store)

    deleted = Deleter(counting, LOG, options=NOW).delete(path)

    # The document and its mark, too.
    assert counting.requests["delete"] == deleted.num_deleted + 2


def test_key_rollup_written_late_for_a_deleted_snapshot_is_found_as_an_orphan(store: ObjectStore) -> None:
    store = clock = ClockStore(store)
    World(store).plant(cursor=7)
    gone = World(store).leaves()[0]
    rollup = built(store, gone)
    World(store).collect()
    assert gone.path not in World(store).stored()

    stores_of(store).key_rollups.write(gone, rollup)
    clock.pass_s(1)
    assert Deleter(store, LOG, options=NOW).orphans() == [key_rollup_path(gone.path)]
    World(store).collect()

    assert rollups(store) == set()


def test_young_key_rollup_of_no_snapshot_waits_for_the_interval(memory_store: ObjectStore) -> None:
    clock = ClockStore(memory_store)
    world = World(clock)
    world.plant(cursor=7)
    options = replace(NOW, interval_s=3600)
    gone = world.leaves()[0]
    rollup = built(clock, gone)
    world.collect()

    stores_of(clock).key_rollups.write(gone, rollup)

    assert Deleter(clock, LOG, options=options).orphans() == []
    clock.pass_s(3601)
    assert Deleter(clock, LOG, options=options).orphans() == [key_rollup_path(gone.path)]


def test_key_rollup_of_a_snapshot_in_use_is_no_orphan(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=1)
    written = roll_keys_up(store)

    assert Deleter(store, LOG, options=NOW).orphans() == []
    world.collect()

    assert rollups(store) == written


def test_key_rollup_of_a_pinned_snapshot_stays(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=7)
    written = roll_keys_up(store)
    PinStore(store, LOG).create("keep", reason="r")

    world.collect()
    assert rollups(store) == written
    PinStore(store, LOG).delete("keep")
    world.collect()

    assert len(rollups(store)) < len(written)


def test_key_rollup_of_a_snapshot_that_waits_for_its_deletion_is_not_named_twice(memory_store: ObjectStore) -> None:
    world = World(memory_store)
    world.plant(cursor=7)
    roll_keys_up(memory_store)
    world.prune()
    deleter = Deleter(memory_store, LOG, options=NOW)

    assert deleter.orphans(deleter.pending()) == []


def test_key_rollup_of_an_orphan_that_waits_for_its_deletion_is_not_named_again(memory_store: ObjectStore) -> None:
    world = World(memory_store)
    world.plant(cursor=7)
    gone = world.leaves()[0]
    rollup = built(memory_store, gone)
    world.collect()
    Collector(memory_store, LOG, options=NOW).prune_orphans([gone.path], "r")
    stores_of(memory_store).key_rollups.write(gone, rollup)
    deleter = Deleter(memory_store, LOG, options=NOW)

    assert deleter.orphans(deleter.pending()) == []


def test_destroy_deletes_key_rollups_and_names_them_in_its_plan(store: ObjectStore) -> None:
    keyed(store)
    written = roll_keys_up(store)
    plan = plan_destroy(store, LOG)
    inside = life_store(store, LOG)
    assert inside.head(next(iter(written))) is not None

    destroy(store, LOG)

    assert [part.num_objects for part in plan.parts if part.kind is ObjectKind.KEY_ROLLUP] == [2]
    assert [meta.path for meta in store.list_objects(f"{LOG}/")] == [f"{LOG}/manifest/MANIFEST.json"]


def test_copy_and_repair_ignore_key_rollups(store: ObjectStore) -> None:
    keyed(store)
    roll_keys_up(store)

    copy(LogAt(store, LOG), LogAt(store, "b"))

    assert rollups(store, "b") == set()
    assert scrub(store, "b").balanced
    damage(life_store(store, LOG), next(iter(rollups(store))))
    assert repair_log(LogAt(store, LOG), LogAt(store, "b")).complete


# ------------------------------------------------------------------ scrub


def test_scrub_compares_key_rollups_with_their_fragments(store: ObjectStore) -> None:
    keyed(store)
    roll_keys_up(store)
    assert scrub(store, LOG).balanced
    pointer = World(store).leaves()[1]
    path = key_rollup_path(pointer.path)
    life_store(store, LOG).delete(path)
    stores_of(store).key_rollups.write(pointer, wrong(built(store, pointer)))

    report = scrub(store, LOG)

    assert [problem.path for problem in report.problems] == [path]
    assert "expected the keys of its fragments, found others: delete this object" in report.problems[0].message
    life_store(store, LOG).delete(path)
    assert scrub(store, LOG).balanced


def test_scrub_reports_a_damaged_key_rollup(store: ObjectStore) -> None:
    keyed(store)
    path = min(roll_keys_up(store))
    damage(life_store(store, LOG), path)

    [problem] = scrub(store, LOG).problems

    assert problem.path == path
    assert "delete this object: it holds no records" in problem.message


def test_each_key_rollup_is_checked_by_one_of_adjoining_ranges(store: ObjectStore) -> None:
    keyed(store)
    for path in roll_keys_up(store):
        damage(life_store(store, LOG), path)

    begin, found = 1, []
    while begin < 13:
        report = scrub(store, LOG, begin, Limits(fragments=1))
        found += [problem.path for problem in report.problems]
        begin = report.next_offset

    assert sorted(found) == sorted(rollups(store))


def test_damaged_fragment_is_reported_once_and_not_its_key_rollup(store: ObjectStore) -> None:
    keyed(store)
    roll_keys_up(store)
    fragment = LogReader.open(store, LOG).scan()[1]
    damage(life_store(store, LOG), fragment.path)

    assert [problem.path for problem in scrub(store, LOG).problems] == [fragment.path]


def test_snapshots_that_replace_others_take_over_what_their_key_rollups_say(memory_store: ObjectStore) -> None:
    keyed(memory_store)
    one, other = World(memory_store).leaves()
    stores = stores_of(memory_store)
    joined = replace(
        stores.snapshots.load(one),
        pointers=(*stores.snapshots.load(one).pointers, *stores.snapshots.load(other).pointers),
    )
    counting = CountingStore(life_store(memory_store, LOG))
    known = [built(memory_store, one), built(memory_store, other)]

    rollup = build_key_rollup(joined, KeyColumns(counting, ReaderOptions()), runtime=shared_runtime(), known=known)

    assert not counting.requests
    pointer = stores.snapshots.write(joined, QUICK)
    assert rollup == built(memory_store, pointer)
    assert np.array_equal(rollup.fragments[0].hashes, known[0].fragments[0].hashes)
