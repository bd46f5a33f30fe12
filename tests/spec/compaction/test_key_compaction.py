"""A compacted log holds the newest record of every key, at its offset, and accounts for every one that it dropped."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count

import pytest

from tests.spec.compacting import DAY_S, LOG, OPTIONS, append, compactor, held, keyed_log
from tests.stores import FaultyStore, life_store
from tests.world import QUICK, ClockStore, World
from wal3_core import LogReader, MemoryStore
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.compaction.reports import may_be_due
from wal3_core.errors import KeyCompactionRefusedError
from wal3_core.format.paths import KEY_ROLLUP_FOLDER, MANIFEST, rolled_up_path
from wal3_core.format.policy import COMPACTED_FRAGMENT_BYTES_MIN
from wal3_core.format.position import LogPosition
from wal3_core.log.log_stores import LogStores
from wal3_core.log.write.writer import LogWriter
from wal3_core.options import RetryOptions
from wal3_core.runtime import ThreadRuntime, shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.object_store import ObjectStore


def test_pass_keeps_the_newest_record_of_each_key_at_its_offset(store: ObjectStore) -> None:
    world = World(store)
    keyed_log(store)
    append(store, [(b"a", b"1"), (b"b", b"1")], [(b"a", b"2"), (b"", b"")], [(b"b", None), (b"ab", b"1"), (b"a", b"")])
    setsum = world.manifest().setsum

    report = compactor(store).compact()

    assert held(store) == [(4, b"", b""), (5, b"b", None), (6, b"ab", b"1"), (7, b"a", b"")]
    assert (report.num_superseded, report.num_expired, report.proof.holds) == (3, 0, True)
    manifest = world.manifest()
    assert (manifest.setsum, manifest.pruned) == (setsum, report.proof.superseded)
    assert manifest.next.position.offset == 8
    assert [record.offset for record in LogReader.open(store, LOG).records(start=1)] == [4, 5, 6, 7]


def test_log_whose_policy_does_not_compact_is_refused(store: ObjectStore) -> None:
    LogWriter.open_or_create(store, LOG).close()

    with pytest.raises(KeyCompactionRefusedError, match="expected a policy that compacts"):
        compactor(store).compact()


def test_pass_is_not_due_below_the_smallest_dirty_ratio(store: ObjectStore) -> None:
    keyed_log(store)
    append(store, *([(b"%d" % number, b"x")] for number in range(20)))
    assert compactor(store).compact().token is not None
    append(store, [(b"1", b"y")])

    report = compactor(store).compact()

    assert (report.token, report.plan.due) == (None, None)
    assert compactor(store).compact(force=True).num_superseded == 1


def test_dry_run_counts_exactly_what_a_pass_does_and_writes_nothing(store: ObjectStore) -> None:
    world = World(store)
    keyed_log(store)
    append(store, *([(b"%d" % (number % 5), b"x" * number)] for number in range(20)))
    before = world.manifest()

    planned = compactor(store).compact(dry_run=True)
    assert world.manifest() == before
    done = compactor(store).compact()

    for name in ("num_superseded", "num_expired", "num_merged", "num_written", "bytes_read"):
        assert getattr(planned, name) == getattr(done, name)
    assert planned.proof == done.proof


def test_tombstone_goes_a_retention_after_the_pass_below_it_also_in_a_quiet_log(
    memory_store: MemoryStore,
) -> None:
    store = ClockStore(memory_store)
    keyed_log(store, delete_retention_s=DAY_S)
    append(store, [(b"a", b"1"), (b"b", b"1")], [(b"a", None)], [(b"c", b"1")])
    store.pass_s(10 * DAY_S)
    compactor(store).compact()
    assert held(store) == [(2, b"b", b"1"), (3, b"a", None), (4, b"c", b"1")]

    store.pass_s(DAY_S - 60)
    assert compactor(store).compact(force=True).num_expired == 0
    store.pass_s(120)
    report = compactor(store).compact()

    assert (report.plan.due, report.num_expired) == ("tombstones have expired", 1)
    assert held(store) == [(2, b"b", b"1"), (4, b"c", b"1")]
    assert compactor(store).compact().token is None


def test_cursor_keeps_every_record_from_its_position_on(store: ObjectStore) -> None:
    keyed_log(store)
    append(store, *([(b"a", b"%d" % number)] for number in range(6)))
    CursorStore(store, LOG).create("reader", LogPosition(4, 0))

    compactor(store).compact()

    assert [offset for offset, _, _ in held(store)] == [3, 4, 5, 6]


@pytest.mark.slow
def test_passes_go_on_while_a_log_is_appended_to_and_keep_each_key_s_newest_value(store: ObjectStore) -> None:
    keyed_log(store)
    latest: dict[bytes, bytes] = {}
    for turn in range(12):
        batch = [(b"%d" % (turn * number % 7), b"%d.%d" % (turn, number)) for number in range(5)]
        append(store, batch)
        latest |= dict(batch)
        report = KeyCompactor(store, LOG, options=OPTIONS).compact(force=True)
        assert report.proof.holds

    assert {key: body for _, key, body in held(store)} == latest
    assert len(held(store)) == len(latest)
    World(store).manifest().check()


class CountingClock(ThreadRuntime):
    """A process whose clock advances only by the sleep of its tasks."""

    slept_s = 0.0

    def monotonic_s(self) -> float:
        return self.slept_s

    def sleep(self, seconds: float) -> None:
        # One after another: each has paid for all before it.
        self.slept_s += seconds


def test_pass_reads_and_writes_no_more_bytes_a_second_than_its_limit(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    append(memory_store, *([(b"%d" % (number % 5), b"x" * 1000)] for number in range(20)))
    options = replace(OPTIONS, bytes_per_s_max=10_000, requests_ahead=1)

    with CountingClock() as runtime:
        report = KeyCompactor(memory_store, LOG, options=options, runtime=runtime).compact()

    assert report.bytes_read > 0
    # Keys are read before; the whole of such small fragments.
    assert runtime.slept_s >= (report.bytes_read + report.bytes_written) / 10_000


def test_pass_reads_the_new_fragments_and_those_their_keys_touch_and_no_others(store: ObjectStore) -> None:
    keyed_log(store, compacted_fragment_bytes=COMPACTED_FRAGMENT_BYTES_MIN)
    # Too large to be merged.
    bodies = random.Random(0)
    append(store, *([(b"%d" % number, bodies.randbytes(10_000))] for number in range(20)))
    compactor(store).compact()
    append(store, [(b"3", b"new")])
    # The new fragment is among those that no key roll-up covers: in the manifest, or in a snapshot just rolled.
    known = {rolled_up_path(meta.path) for meta in life_store(store, LOG).list_objects(KEY_ROLLUP_FOLDER)}
    covered = sum(each.num_pointers for each in World(store).leaves() if each.path in known)

    report = compactor(store).compact(force=True)

    assert report.num_superseded == 1
    without = report.plan.num_fragments - covered
    assert report.plan.num_read <= without + 1 < report.plan.num_fragments
    assert sorted(key for _, key, _ in held(store)) == sorted(b"%d" % number for number in range(20))


def test_log_whose_key_rollups_are_gone_is_compacted_all_the_same(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    append(memory_store, *([(b"%d" % (number % 9), b"%d" % number)] for number in range(20)))
    compactor(memory_store).compact()
    objects = life_store(memory_store, LOG)
    for meta in list(objects.list_objects(KEY_ROLLUP_FOLDER)):
        objects.delete(meta.path)
    append(memory_store, [(b"3", b"new"), (b"4", None)])

    compactor(memory_store).compact(force=True)

    assert len(held(memory_store)) == 9
    assert {b"3": b"new", b"4": None}.items() <= {key: body for _, key, body in held(memory_store)}.items()


@pytest.mark.parametrize("request_number", range(1, 40))
def test_cursor_created_during_a_pass_sees_every_record(memory_store: MemoryStore, request_number: int) -> None:
    """INV-44: whichever request of the pass it comes before."""
    keyed_log(memory_store)
    append(memory_store, *([(b"a", b"%d" % number)] for number in range(6)))
    store, seen = FaultyStore(memory_store), list[int]()
    numbers = count(1)

    def create(_kind: str, _path: str) -> None:
        if next(numbers) == request_number:
            CursorStore(memory_store, LOG).create("reader", LogPosition(4, 0))
            seen.extend(offset for offset, _, _ in held(memory_store) if offset >= 4)

    store.before = create
    compactor(store).compact()
    store.before = lambda _kind, _path: None

    assert [offset for offset, _, _ in held(memory_store) if offset >= 4] == (seen or [6])


def test_record_younger_than_the_smallest_lag_stays(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    keyed_log(store, min_compaction_lag_s=DAY_S)
    append(store, [(b"a", b"1")], [(b"a", b"2")])

    assert compactor(store).compact(force=True).num_superseded == 0
    assert [offset for offset, _, _ in held(store)] == [1, 2]


def test_cursor_of_a_process_that_may_not_write_the_manifest_waits_for_the_pass(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    append(memory_store, *([(b"a", b"%d" % number)] for number in range(6)))
    token = compactor(memory_store).merge().token
    assert token is not None
    stores = LogStores(memory_store, LOG, runtime=shared_runtime(), retry=QUICK, snapshots_loaded_max=4)
    stores.manifests.change(stores.manifests.load(), lambda manifest: manifest.announce_compaction(token, 7))
    denied = FaultyStore(memory_store)
    denied.fail("replace", MANIFEST, "denied")

    def install(kind: str, _path: str) -> None:
        # As soon as the cursor was refused to withdraw the pass, which has read no cursor yet.
        if kind == "get" and denied.fired["denied"]:
            denied.before = lambda _kind, _path: None
            assert compactor(memory_store).install(token).overtaken is not None

    denied.before = install
    CursorStore(denied, LOG, retry=RetryOptions(timeout_s=30)).create("reader", LogPosition(4, 0))

    assert denied.fired["denied"] == 1
    assert [offset for offset, _, _ in held(memory_store)] == [1, 2, 3, 4, 5, 6]


def test_tombstones_at_the_end_go_but_for_the_last_and_that_once_one_is_behind_it(
    store: ObjectStore,
) -> None:
    clocked = ClockStore(store)
    # Of the target's size: fragments behind it are not joined with it.
    keyed_log(clocked, delete_retention_s=DAY_S, compacted_fragment_bytes=COMPACTED_FRAGMENT_BYTES_MIN)
    live = random.Random(1).randbytes(2 * COMPACTED_FRAGMENT_BYTES_MIN)
    append(clocked, [(b"live", live)], *([(b"k%d" % number, b"1")] for number in range(9)))
    append(clocked, *([(b"k%d" % number, None), (b"l%d" % number, None)] for number in range(9)))
    compactor(clocked).compact()
    clocked.pass_s(DAY_S + 1)

    assert compactor(clocked).compact().num_expired == 17
    assert [key for _, key, _ in held(clocked)] == [b"live", b"l8"]
    clocked.pass_s(400 * DAY_S)
    assert compactor(clocked).outline().due is None

    append(clocked, [(b"new", b"1")])
    done = compactor(clocked).compact()
    assert (done.plan.due, done.num_expired) == ("tombstones have expired", 1)
    assert [key for _, key, _ in held(clocked)] == [b"live", b"new"]


def test_log_of_nothing_but_expired_tombstones_keeps_one_record(store: ObjectStore) -> None:
    clocked = ClockStore(store)
    keyed_log(clocked, delete_retention_s=0)
    append(clocked, *([(b"k%d" % number, None)] for number in range(9)))
    compactor(clocked).compact()
    clocked.pass_s(1)

    assert compactor(clocked).compact().num_expired == 8
    assert [key for _, key, _ in held(clocked)] == [b"k8"]
    assert compactor(clocked).outline().due is None
    assert not may_be_due(World(clocked).manifest())
    verified = compactor(clocked).verify()
    assert verified is not None
    assert verified.holds


def test_no_pass_is_due_when_the_time_of_a_pass_is_over_that_left_no_tombstones(memory_store: MemoryStore) -> None:
    """A log of a new record a day: each pass would be the cause of the next one."""
    store = ClockStore(memory_store)
    keyed_log(store, delete_retention_s=DAY_S, min_dirty_percent=100)
    append(store, [(b"gone", b"1")], [(b"gone", None)], [(b"live", b"1")])
    due = []
    for number in range(9):
        due.append(compactor(store).compact(force=number == 0).plan.due)
        append(store, [(b"new%d" % number, b"1")])
        store.pass_s(DAY_S + 1)

    assert due == ["100 % of its bytes are dirty", "tombstones have expired", *[None] * 7]


def test_forced_pass_drops_the_tombstones_that_are_recorded_as_swept(memory_store: MemoryStore) -> None:
    """Earlier versions kept those at the end of a log, and recorded them so."""
    store = ClockStore(memory_store)
    keyed_log(store, delete_retention_s=DAY_S)
    append(store, *([(b"k%d" % number, None)] for number in range(9)), [(b"live", b"1")])
    compactor(store).compact()
    manifests = LogStores(store, LOG, runtime=shared_runtime(), retry=QUICK, snapshots_loaded_max=9).manifests
    end = World(store).manifest().next.position.offset
    manifests.change(
        manifests.load(), lambda each: replace(each, compaction=replace(each.compaction, swept=end)), rebases_max=1
    )
    store.pass_s(DAY_S + 1)
    assert compactor(store).outline().due is None

    assert compactor(store).compact(force=True).num_expired == 9
    assert [key for _, key, _ in held(store)] == [b"live"]
