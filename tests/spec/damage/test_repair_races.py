"""Repairs that are cut short, repeated, run at once, or run beside writers and collectors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.spec.copies.test_copy_failures import crash_at
from tests.spec.copying import NOW, collect, data, fill, fragments, grow, records
from tests.spec.damage.test_repair import A, B, by_copy, by_update, flip, lose, overwrite, pointers, repair, snapshots
from tests.stores import Fault, FaultyStore
from tests.world import ClockStore, Crashed, World
from wal3_core import (
    CursorStore,
    LogAt,
    LogPosition,
    LogReader,
    LogReplacedError,
    MemoryStore,
    RepairReport,
    StoreDeniedError,
    UnavailableError,
    copy,
    destroy,
    repair_log,
    scrub,
)
from wal3_core import collect as collect_all
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import Buffer, Etag, ObjectStore, PutOutcome, Refused

# Many cases: some ten seconds.
pytestmark = pytest.mark.slow


def objects(store: ObjectStore) -> list[str]:
    """Make a log and a copy of it; return the paths of a snapshot and three fragments to damage."""
    grow(store, A)
    by_update(store)
    found = pointers(store)
    return [snapshots(store, 1)[0].path, found[0].path, found[len(found) // 2].path, found[-1].path]


def break_all(store: ObjectStore, bad: list[str]) -> None:
    for number, path in enumerate(bad):
        overwrite(store, path, lose if number % 2 else flip)


def repaired_by(store: ObjectStore, source: ObjectStore) -> RepairReport:
    return repair_log(LogAt(store, A), LogAt(source, B))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("create", "replace"), ("read", "get", "list")])
def test_repair_that_was_cut_short_anywhere_is_finished_by_the_next(kinds: tuple[str, ...]) -> None:
    origin = MemoryStore(shared_runtime())
    bad = objects(origin)
    sound = data(origin, A)
    for step in range(1000):
        break_all(origin, bad)
        store = FaultyStore(origin)
        crash_at(store, step, kinds)
        try:
            repaired_by(store, store)
            finished = True
        except Crashed:
            finished = False
        cut = data(origin, A)
        changed = [path for path in cut.keys() | sound.keys() if cut.get(path) != sound.get(path)]
        assert all(path.endswith(tuple(bad)) for path in changed)
        assert repair(origin).complete
        assert data(origin, A) == sound
        if finished:
            assert step >= len(bad)
            return
    pytest.fail("1000 requests did not finish a repair")


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "late", "conflict", "applied-refused", "unavailable"])
@pytest.mark.parametrize("kind", ["create", "replace"])
def test_write_without_an_answer_is_looked_up_and_repeated(store: ObjectStore, kind: str, fault: Fault) -> None:
    bad = objects(store)
    sound = data(store, A)
    break_all(store, bad)
    faulty = FaultyStore(store)
    faulty.fail(kind, "/log/", fault, times=2)

    report = repaired_by(faulty, store)
    faulty.arrive()

    assert faulty.fired[fault]
    assert set(report.repaired) == set(bad)
    assert data(store, A) == sound


def test_denied_write_ends_the_repair_and_the_next_finishes_it(store: ObjectStore) -> None:
    bad = objects(store)
    sound = data(store, A)
    break_all(store, bad)
    faulty = FaultyStore(store)
    faulty.fail("create", bad[-1], "denied")

    with pytest.raises(StoreDeniedError):
        repaired_by(faulty, store)

    assert repair(store).repaired == (bad[-1],)
    assert data(store, A) == sound


def test_many_repairs_at_once_give_the_same_log(store: ObjectStore) -> None:
    bad = objects(store)
    sound = data(store, A)
    break_all(store, bad)

    with ThreadPoolExecutor(6) as pool:
        reports = list(pool.map(lambda _: repair(store), range(6), timeout=600))

    assert all(report.complete for report in reports)
    assert set().union(*(report.repaired for report in reports)) == set(bad)
    assert data(store, A) == sound


@dataclass
class WatchedStore(FaultyStore):
    """Keeps the outcomes of PUTs."""

    outcomes: list[PutOutcome] = field(default_factory=list)

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        self.outcomes.append(super().replace(path, data, etag))
        return self.outcomes[-1]


def test_object_that_another_repaired_after_it_was_read_is_not_overwritten(store: ObjectStore) -> None:
    fill(store, A, 4)
    by_copy(store)
    sound = data(store, A)
    bad = pointers(store)[1].path
    overwrite(store, bad, flip)
    watched = WatchedStore(store)
    writes: list[str] = []

    def overtaken(kind: str, path: str) -> None:
        if kind in {"create", "replace"}:
            if not writes:
                repair(store)
            writes.append(path)

    watched.before = overtaken

    report = repaired_by(watched, store)

    assert report.repaired == (bad,)
    # It came too late, and was refused.
    assert watched.outcomes == [Refused()]
    assert data(store, A) == sound


def test_object_that_is_sound_by_the_time_it_is_to_be_written_is_left_alone(store: ObjectStore) -> None:
    fill(store, A, 4)
    by_copy(store)
    bad = pointers(store)[1].path
    overwrite(store, bad, flip)
    watched = WatchedStore(store)
    seen: list[str] = []

    def repaired_first(kind: str, path: str) -> None:
        if kind == "get" and path.endswith(bad) and not seen:
            seen.append(path)
            repair(store)

    watched.before = repaired_first

    assert repaired_by(watched, store).repaired == (bad,)
    assert (len(seen), watched.outcomes) == (1, [])


def test_fragment_that_is_collected_meanwhile_is_not_written_again(store: ObjectStore) -> None:
    fill(store, A, 6)
    by_copy(store)
    bad, kept = pointers(store)[0].path, pointers(store)[4].path
    for path in (bad, kept):
        overwrite(store, path, lose)
    faulty, begun = FaultyStore(store), list[str]()

    def collected(kind: str, path: str) -> None:
        # The first look at the fragment: the manifest that names it was read before.
        if kind == "read" and path.endswith(bad) and not begun:
            begun.append(path)
            collect(store, A, 4)

    faulty.before = collected

    report = repaired_by(faulty, store)

    assert begun
    assert (report.repaired, report.problems) == ((kept,), ())
    assert bad not in fragments(store, A)
    assert scrub(store, A).sound


def test_write_that_arrives_after_the_fragment_was_collected_is_found_as_an_orphan(store: ObjectStore) -> None:
    fill(store, A, 6)
    by_copy(store)
    bad = pointers(store)[0].path
    overwrite(store, bad, lose)
    faulty = FaultyStore(store)
    faulty.fail("create", bad, "late", times=1)
    repaired_by(faulty, store)
    collect(store, A, 4)
    assert bad not in fragments(store, A)
    CursorStore(store, A).create("reader", LogPosition(4, 0))

    faulty.arrive()

    assert bad in fragments(store, A)
    assert scrub(store, A).sound
    assert [record.offset for record in records(store, A)] == [4, 5, 6]
    clock = ClockStore(store)
    for _ in range(4):
        collect_all(clock, A, options=NOW)
        clock.pass_s(1)
    assert bad not in fragments(store, A)


def test_snapshots_that_maintenance_replaces_meanwhile_hide_no_damage(store: ObjectStore) -> None:
    grow(store, A)
    by_copy(store)
    found = pointers(store)
    bad = [found[0].path, found[-1].path]
    for path in bad:
        overwrite(store, path, flip)
    faulty, begun = FaultyStore(store), list[str]()

    def repacked(kind: str, path: str) -> None:
        if kind == "read" and "/snapshot/" in path and not begun:
            begun.append(path)
            SnapshotCompactor(store, A).compact()
            collect_garbage(store)

    faulty.before = repacked

    report = repaired_by(faulty, store)

    assert begun
    assert set(report.repaired) == set(bad)
    assert scrub(store, A).balanced


def collect_garbage(store: ObjectStore) -> None:
    """Delete the snapshots that nothing refers to any more; keep every record."""
    CursorStore(store, A).create("first", LogPosition(1, 0))
    for _ in range(3):
        collect_all(store, A, options=NOW)


def test_log_that_is_written_and_collected_meanwhile_is_repaired(store: ObjectStore) -> None:
    fill(store, A, 30)
    by_copy(store)
    bad = [pointer.path for pointer in pointers(store)[::3]]
    for number, path in enumerate(bad):
        overwrite(store, path, lose if number % 2 else flip)
    faulty, asked = FaultyStore(store), list[str]()

    def busy(kind: str, path: str) -> None:
        if kind == "get" and "/log/" in path:
            asked.append(path)
            if len(asked) == 5:
                fill(store, A, 10)
            if len(asked) == 8:
                collect(store, A, 16)

    faulty.before = busy

    report = repaired_by(faulty, store)

    first = World(store).manifest().first.position.offset
    assert (first, report.problems) == (16, ())
    assert [record.offset for record in records(store, A)] == list(range(16, 41))
    assert scrub(store, A).balanced


def test_log_that_is_destroyed_and_begun_again_meanwhile_is_left_alone(store: ObjectStore) -> None:
    fill(store, A, 3)
    by_copy(store)
    overwrite(store, pointers(store)[1].path, lose)
    faulty, begun = FaultyStore(store), list[str]()

    def restored(kind: str, path: str) -> None:
        if kind == "get" and "/log/" in path and not begun:
            begun.append(path)
            destroy(store, A)
            copy(LogAt(store, B), LogAt(store, A))

    faulty.before = restored

    with pytest.raises(LogReplacedError):
        repaired_by(faulty, store)

    assert begun
    assert len(fragment_files(store)) == 3
    assert records(store, A) == records(store, B)


def fragment_files(store: ObjectStore) -> list[str]:
    return [meta.path for meta in store.list_objects(f"{A}/") if meta.path.endswith(".parquet")]


def test_store_that_never_takes_the_write_is_an_error_and_the_log_as_before(memory_store: MemoryStore) -> None:
    fill(memory_store, A, 3)
    by_copy(memory_store)
    overwrite(memory_store, pointers(memory_store)[1].path, flip)
    before = data(memory_store, A)

    class Brief(FaultyStore):
        @property
        def url(self) -> str:
            return "s3://bucket/brief?timeout_s=0.2"

    faulty = Brief(memory_store)
    faulty.fail("replace", "/log/", "unknown", times=10**9)

    with pytest.raises(UnavailableError, match="not repaired: the request was dropped: repair the log again"):
        repaired_by(faulty, memory_store)

    assert data(memory_store, A) == before
    assert len(list(LogReader.open(memory_store, A).records(start=3))) == 1
