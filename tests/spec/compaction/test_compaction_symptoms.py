"""A short test for each defect of key compaction that random tests or the simulator found."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.spec.compacting import DAY_S, OPTIONS, append, compactor, held, keyed_log, records
from tests.stores import FaultyStore, life_store
from tests.world import LATER, LOG, NOW, ClockStore, Crashed, Later, World, count_requests, replant
from wal3_core import (
    CursorStore,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    Origin,
    Record,
    WriterOptions,
    bootstrap,
)
from wal3_core.compaction import scope
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.compaction.engine import LocalWork
from wal3_core.errors import KeyCompactionRefusedError, LogReplacedError, MissingError
from wal3_core.format.paths import POLICY, pass_path
from wal3_core.log.collect.collector import collect
from wal3_core.log.maintain.destroyer import destroy
from wal3_core.options import MIB, ReaderOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore


def grown() -> MemoryStore:
    """A log of twelve fragments, most of them in snapshots, of which a pass leaves two records."""
    store = MemoryStore(shared_runtime())
    keyed_log(store)
    append(store, *([(b"%d" % (number % 2), b"%d" % number)] for number in range(12)))
    return store


@pytest.mark.slow
def test_pass_is_planned_again_when_another_replaced_what_it_reads() -> None:
    """A pass that takes longer than deleted objects wait must not report damage."""
    template = grown()
    requests = count_requests(counted := FaultyStore(_again(template, 0)), lambda: compactor(counted).compact())

    for number in range(1, requests + 1):
        store = _again(template, number)
        later = FaultyStore(store)
        happened = Later(later, number, lambda store=store: _compact_and_delete(store))
        compactor(later).compact(force=True)
        assert happened.happened
        assert held(store) == [(11, b"0", b"10"), (12, b"1", b"11")]


@pytest.mark.slow
def test_plan_too_is_made_again() -> None:
    template = grown()
    requests = count_requests(counted := FaultyStore(_again(template, 0)), lambda: compactor(counted).plan())

    for number in range(1, requests + 1):
        store = _again(template, number)
        later = FaultyStore(store)
        Later(later, number, lambda store=store: _compact_and_delete(store))
        assert compactor(later).plan(force=True).limit == 13


def test_object_that_is_lost_is_reported_as_lost() -> None:
    store = grown()
    lost = next(meta.path for meta in life_store(store, LOG).list_objects("log/"))
    life_store(store, LOG).delete(lost)

    with pytest.raises(MissingError, match="expected"):
        compactor(store).compact()


def test_plan_does_not_count_tombstones_that_stay_because_nothing_is_behind_them() -> None:
    store = ClockStore(MemoryStore(shared_runtime()))
    keyed_log(store, delete_retention_s=DAY_S)
    append(store, [(b"a", None)])
    compactor(store).compact()
    store.pass_s(2 * DAY_S)

    planned = compactor(store).plan(force=True)
    done = compactor(store).compact(force=True)

    assert (planned.num_expired, planned.num_superseded) == (done.num_expired, done.num_superseded) == (0, 0)


@pytest.mark.slow
def test_pass_over_a_log_that_was_replaced_leaves_nothing_in_the_one_that_follows() -> None:
    store = grown()
    faulty = FaultyStore(store)

    def replace_log(_kind: str, _path: str) -> None:
        if len(held(store)) == 2:
            faulty.before = lambda _kind, _path: None
            destroy(store, LOG)
            LogWriter.create(store, LOG)

    faulty.before = replace_log

    with pytest.raises(LogReplacedError):
        KeyCompactor(faulty, LOG, options=OPTIONS).compact()
    assert World(store).documents() == []


@pytest.mark.slow
def test_records_that_compress_well_can_be_read_after_a_pass() -> None:
    """The stored bytes of a group say little about what its records expand to."""
    store = MemoryStore(shared_runtime())
    keyed_log(store)
    append(store, *([(b"%d" % number, bytes(MIB)), (b"x", b"%d" % number)] for number in range(16)))
    before = held(store)
    limited = KeyCompactor(store, LOG, options=replace(OPTIONS, fragment_expanded_bytes_max=6 * MIB))

    report = limited.compact()

    reader = LogReader.open(store, LOG, options=ReaderOptions(fragment_expanded_bytes_max=6 * MIB))
    newest = [(offset, key, body) for offset, key, body in before if key != b"x" or offset == 32]
    assert [(record.offset, record.key, record.body) for record in reader.records()] == newest
    assert (report.installed, report.num_superseded) == (True, 15)
    found = limited.verify()
    assert found is not None
    assert found.holds
    append(store, [(b"x", b"newest")])
    assert limited.compact(force=True).num_superseded == 1


@pytest.mark.slow
def test_log_of_more_fragments_than_a_pass_can_record_is_compacted_by_several(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ClockStore(MemoryStore(shared_runtime()))
    keyed_log(store, compacted_fragment_bytes=4096, delete_retention_s=DAY_S, min_dirty_percent=0)
    large = [bytes(random.Random(number).randbytes(5000)) for number in range(30)]
    append(store, *([(b"%d" % number, large[number]), (b"x%d" % number, b"1")] for number in range(30)))
    append(store, *([(b"%d" % number, None if number % 2 else b"new")] for number in range(30)), [(b"end", b"1")])
    monkeypatch.setattr(scope, "MEMBERS_MAX", 20)

    passes = 0
    while (report := compactor(store).compact()).installed:
        passes += 1
        found = compactor(store).verify()
        assert found is not None
        assert found.holds
    assert 3 <= passes <= 8
    assert report.plan.due is None
    assert len(held(store)) == 61

    store.pass_s(2 * DAY_S)
    while compactor(store).compact().installed:
        pass
    assert sorted(key for _, key, body in held(store) if key is not None and body == b"new") == sorted(
        b"%d" % number for number in range(0, 30, 2)
    )
    assert len(held(store)) == 46


@pytest.mark.slow
@pytest.mark.parametrize("arrange", [False, True])
def test_fragments_that_keep_nothing_are_more_than_a_pass_can_record(
    monkeypatch: pytest.MonkeyPatch, *, arrange: bool
) -> None:
    """Regression: they were one group, whose record no reader would have taken: no pass was ever installed again."""
    store = ClockStore(MemoryStore(shared_runtime()))
    keyed_log(store, compacted_fragment_bytes=4096, min_dirty_percent=0, arrange_by_key=arrange)
    large = [bytes(random.Random(number).randbytes(5000)) for number in range(50)]
    append(store, *([(b"%d" % number, body)] for number, body in enumerate(large)))
    append(store, [(b"%d" % number, b"new") for number in range(50)], [(b"end", b"1")])
    monkeypatch.setattr(scope, "MEMBERS_MAX", 20)
    monkeypatch.setattr(scope, "_FRAGMENTS_MAX", 10)

    rewritten = []
    while (report := compactor(store).compact()).installed and len(rewritten) < 9:
        rewritten.append(report.plan.num_rewritten)
        found = compactor(store).verify()
        assert found is not None
        assert found.holds

    assert max(rewritten) == 20
    assert len(rewritten) < 9
    assert [key for _, key, _ in held(store)] == [*(b"%d" % number for number in range(50)), b"end"]
    manifest = World(store).manifest()
    assert manifest.compaction.clean_limit == manifest.next.position.offset
    assert manifest.compaction.arranged == (manifest.next.position.offset if arrange else 0)


def _again(template: MemoryStore, number: int) -> ObjectStore:
    return replant(template, MemoryStore(shared_runtime()), number)


def _compact_and_delete(store: ObjectStore) -> None:
    compactor(store).compact(force=True)
    for _ in range(2):
        collect(store, LOG, options=NOW)


def test_pass_announced_again_by_another_process_is_withdrawn() -> None:
    """A cursor withdrew the pass after one of them had read the cursors; the other announced it once more."""
    store = MemoryStore(shared_runtime())
    keyed_log(store)
    append(store, *([(b"a", b"%d" % number)] for number in range(4)))
    token = compactor(store).merge().token
    assert token is not None
    first, second = FaultyStore(store), FaultyStore(store)

    def announce_again(kind: str, path: str) -> None:
        # The second has announced it, and is about to read the cursors.
        if (kind, path[-7:]) == ("list", "cursor/"):
            raise Crashed

    def cursor_in_between(kind: str, path: str) -> None:
        # The first has read the cursors, and is about to read the policy.
        if kind == "get" and path.endswith(POLICY):
            first.before = lambda _kind, _path: None
            CursorStore(store, LOG).create("reader", LogPosition(2, 0))
            second.before = announce_again
            with pytest.raises(Crashed):
                compactor(second).install(token)

    first.before = cursor_in_between

    done = compactor(first).install(token)

    assert done.overtaken is not None
    assert [offset for offset, _, _ in held(store)] == [1, 2, 3, 4]


def test_cursor_created_after_the_cursors_were_read_withdraws_the_pass() -> None:
    store = MemoryStore(shared_runtime())
    keyed_log(store)
    append(store, *([(b"a", b"%d" % number)] for number in range(4)))
    token = compactor(store).merge().token
    assert token is not None
    late = FaultyStore(store)

    def cursor_in_between(kind: str, path: str) -> None:
        # The cursors have been read, and the policy is read next.
        if kind == "get" and path.endswith(POLICY):
            late.before = lambda _kind, _path: None
            CursorStore(store, LOG).create("reader", LogPosition(2, 0))

    late.before = cursor_in_between

    done = compactor(late).install(token)

    assert done.overtaken is not None
    assert [offset for offset, _, _ in held(store)] == [1, 2, 3, 4]


def test_pass_whose_fragments_were_deleted_as_orphans_is_not_installed() -> None:
    store = grown()
    token = compactor(store).merge().token
    assert token is not None
    record = life_store(store, LOG).read(pass_path(token))
    assert record is not None
    for _ in range(2):
        collect(store, LOG, options=NOW)
    with pytest.raises(MissingError, match="expected the record of a pass, found none"):
        compactor(store).install(token)
    # A request that wrote it may arrive once more.
    life_store(store, LOG).create(pass_path(token), record)

    done = compactor(store).install(token)

    assert done.overtaken is not None
    assert len(held(store)) == 12


def test_pass_planned_by_an_earlier_policy_is_not_installed() -> None:
    store = grown()
    token = compactor(store).merge().token
    assert token is not None
    PolicyStore(store, LOG).change(lambda policy: replace(policy, min_compaction_lag_s=3600))

    done = compactor(store).install(token)

    assert done.overtaken is not None
    assert len(held(store)) == 12


def test_tombstone_stays_for_its_retention_after_the_first_pass() -> None:
    store = ClockStore(MemoryStore(shared_runtime()))
    keyed_log(store, delete_retention_s=DAY_S)
    append(store, [(b"a", None)], [(b"b", b"1")])
    compactor(store).compact()
    store.pass_s(DAY_S / 2)

    compactor(store).compact(force=True)

    assert [key for _, key, _ in held(store)] == [b"a", b"b"]


@pytest.mark.parametrize("damaged", [0, 1])
def test_damaged_record_of_an_installed_pass_stops_no_collection(memory_store: MemoryStore, damaged: int) -> None:
    store = ClockStore(memory_store)
    keyed_log(store)
    append(store, [(b"a", b"1"), (b"b", b"1")], [(b"c", b"0"), (b"a", b"2")], [(b"b", b"2"), (b"c", b"1")])
    never_installed, tokens = compactor(store).merge().token, list[str]()
    assert never_installed is not None
    for number in range(2):
        append(store, [(b"a", b"%d" % number)])
        tokens.append(compactor(store).compact(force=True).token or "")
    objects = life_store(store, LOG)
    replaced = len([*objects.list_objects("log/")])
    data = objects.read(pass_path(tokens[damaged]))
    assert data is not None
    objects.delete(pass_path(tokens[damaged]))
    objects.create(pass_path(tokens[damaged]), data[:-1])

    for _ in range(2):
        store.pass_s(2 * DAY_S)
        collect(store, LOG, options=LATER)

    # What nothing refers to is gone. Whether the other pass was installed long ago nothing says: its record stays.
    assert len([*objects.list_objects("log/")]) < replaced
    assert objects.head(pass_path(never_installed)) is not None
    assert held(store) == [(5, b"b", b"2"), (6, b"c", b"1"), (8, b"a", b"1")]


@pytest.mark.parametrize("first", [2**53 - 5, 2**60, 2**63 - 5, 2**63, 2**64 - 30])
def test_pass_drops_the_same_however_large_the_offsets_are(memory_store: MemoryStore, first: int) -> None:
    keys = [b"", b"a", b"a\0", b"b"]
    found = [Record(first + n, n, keys[n * n % 7 % 4], b"%d" % n) for n in range(20)]
    bootstrap(memory_store, LOG, found, Origin(first_offset=first), options=WriterOptions(batch_records_max=3))
    keyed_log(memory_store)

    report = compactor(memory_store).compact(force=True)

    newest = {record.key: record for record in found}
    assert records(memory_store) == sorted(newest.values(), key=lambda record: record.offset)
    assert report.num_superseded == len(found) - len(newest)


def test_pass_whose_merges_left_records_that_were_to_be_dropped_is_not_installed(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed_log(memory_store)
    append(memory_store, [(b"k", b"1")], [(b"k", b"2")])
    before, merge = held(memory_store), LocalWork.merge
    monkeypatch.setattr(LocalWork, "merge", lambda work, groups, losses, how: merge(work, groups, losses[:0], how))

    with pytest.raises(KeyCompactionRefusedError, match="nothing was changed: expected to drop"):
        compactor(memory_store).compact(force=True)

    monkeypatch.undo()
    assert held(memory_store) == before
    assert compactor(memory_store).compact(force=True).num_superseded == 1
