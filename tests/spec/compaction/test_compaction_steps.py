"""A pass that is merged in one step and installed in another: nothing is lost between them, whatever happens there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.spec.compacting import DAY_S, LOG, OPTIONS, append, compactor, held, keyed_log
from tests.stores import CountingStore, FaultyStore, life_store
from tests.world import LATER, NOW, QUICK, ClockStore, Later, World, count_requests, replant
from wal3_core import LogPosition, MemoryStore, seal
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.errors import (
    GarbageCollectedError,
    InvalidRequestError,
    KeyCompactionRefusedError,
    MissingError,
    StoreDeniedError,
)
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.paths import pass_token
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.format.snapshot import sum_setsums
from wal3_core.log.collect.collector import Collector, collect
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.scan import select
from wal3_core.options import UNLIMITED
from wal3_core.runtime import US_PER_S, ThreadRuntime, shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore

NEWEST = [(4, b"a", b"2"), (5, b"b", b"2"), (6, b"c", b"1")]


def grown(store: ObjectStore) -> None:
    """Make a log in which two keys were written twice."""
    keyed_log(store)
    append(store, [(b"a", b"1"), (b"b", b"1")], [(b"c", b"0"), (b"a", b"2")], [(b"b", b"2"), (b"c", b"1")])


def compact_unmarked(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a pass, and end before what it replaced is marked."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Collector, "prune_orphans", killed)
        compactor(store).compact()


def merged(store: ObjectStore, *, force: bool = False) -> str:
    """Merge a pass, and return its token."""
    report = compactor(store).merge(force=force)
    assert report.token is not None
    assert not report.installed
    return report.token


def test_merge_changes_nothing_and_another_process_installs_it(store: ObjectStore) -> None:
    world = World(store)
    grown(store)
    before = world.manifest()

    token = merged(store)
    assert world.manifest() == before
    done = compactor(store).install(token)

    assert (done.overtaken, done.repeated, len(done.garbage)) == (None, False, 1)
    assert held(store) == NEWEST
    assert world.manifest().compaction.token == token
    found = compactor(store).verify()
    assert found is not None
    assert found.holds


def test_install_that_is_repeated_changes_nothing_even_after_the_next_pass(store: ObjectStore) -> None:
    world = World(store)
    grown(store)
    token = merged(store)
    compactor(store).install(token)
    once = world.manifest()

    again = compactor(store).install(token)
    assert (again.repeated, again.overtaken, again.garbage) == (True, None, ())
    assert world.manifest() == once

    append(store, [(b"a", b"3")])
    assert compactor(store).compact(force=True).installed
    after = world.manifest()
    assert compactor(store).install(token).repeated
    assert world.manifest() == after


def test_repeated_install_marks_what_a_killed_one_left(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(store)
    token = merged(store)
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "prune_orphans", killed)
        with pytest.raises(KeyboardInterrupt):
            compactor(store).install(token)
    assert held(store) == NEWEST

    again = compactor(store).install(token)

    assert (again.repeated, len(again.garbage)) == (True, 1)
    assert compactor(store).install(token).garbage == ()


def killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def cursor_below(store: ObjectStore) -> None:
    CursorStore(store, LOG).create("late", LogPosition(2, 0))


def other_policy(store: ObjectStore) -> None:
    PolicyStore(store, LOG).change(lambda _: Policy(cleanup=Cleanup.COMPACT, min_dirty_percent=10))


def orphans_marked(store: ObjectStore) -> None:
    Collector(store, LOG, options=NOW).prune_orphans([], "a test")


def another_pass(store: ObjectStore) -> None:
    assert compactor(store).compact().installed


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (cursor_below, "cursors below offset 7: {'late': 2}"),
        (other_policy, "the policy was changed"),
        (orphans_marked, "orphans were marked for deletion"),
        (another_pass, "another pass was installed"),
    ],
)
def test_pass_that_is_overtaken_between_its_steps_is_not_installed(
    store: ObjectStore, change: Callable[[ObjectStore], None], cause: str
) -> None:
    world = World(store)
    grown(store)
    token = merged(store)
    change(store)
    before = held(store)

    done = compactor(store).install(token)

    assert (done.overtaken, done.repeated, done.garbage) == (cause, False, ())
    assert held(store) == before
    assert world.manifest().compacting is None
    compactor(store).compact(force=True)
    world.manifest().check()


def test_outdated_pass_withdraws_no_other_announcement(store: ObjectStore) -> None:
    grown(store)
    old = merged(store)
    another_pass(store)
    stores = stores_of(store)
    stores.manifests.change(stores.manifests.load(), lambda manifest: manifest.announce_compaction("1" * 16, 7))

    assert compactor(store).install(old).overtaken == "another pass was installed"

    announced = World(store).manifest().compacting
    assert announced is not None
    assert announced.token == "1" * 16


def test_cursor_is_seen_though_another_process_announces_its_pass_again(memory_store: MemoryStore) -> None:
    """INV-44: a cursor withdraws an announcement, and a second install of that token makes another."""
    template, into = memory_store, MemoryStore(shared_runtime())
    grown(template)
    token = merged(template)

    def made_and_announced_again(store: ObjectStore, seen: list[int]) -> None:
        CursorStore(store, LOG).create("late", LogPosition(2, 0))
        seen.extend(offset for offset, _, _ in held(store) if offset >= 2)
        manifests = stores_of(store).manifests
        base = manifests.load()
        if base.manifest.compaction.token != token:
            # As far as the other process comes before it reads the cursors.
            manifests.change(base, lambda manifest: manifest.announce_compaction(token, 7))

    counted = FaultyStore(replant(template, into, 0))
    requests = count_requests(counted, lambda: compactor(counted).install(token))
    overtaken = 0
    for number in range(1, requests + 1):
        store, seen = replant(template, into, number), list[int]()
        beside = FaultyStore(store)
        Later(beside, number, lambda store=store, seen=seen: made_and_announced_again(store, seen))
        done = compactor(beside).install(token)
        overtaken += done.overtaken is not None
        assert [offset for offset, _, _ in held(store) if offset >= 2] == seen
    assert overtaken


def test_dead_pass_does_not_hold_up_processes_that_may_not_write_the_manifest(
    memory_store: MemoryStore,
) -> None:
    store = ClockStore(memory_store)
    grown(store)
    token = merged(store)
    manifests = LogStores(store, LOG, runtime=shared_runtime(), retry=QUICK, snapshots_loaded_max=0).manifests
    manifests.change(manifests.load(), lambda manifest: manifest.announce_compaction(token, 7))
    reader = FaultyStore(store)
    reader.fail("replace", "MANIFEST", "denied", times=2**31)
    cursors = CursorStore(reader, LOG, retry=QUICK)
    with pytest.raises(StoreDeniedError):
        cursors.create("early", LogPosition(1, 0))
    cursors.delete("early")

    store.pass_s(2 * DAY_S)
    collect(store, LOG, options=LATER)

    cursors.create("late", LogPosition(1, 0))
    assert World(store).manifest().compacting is None
    assert compactor(store).install(token).overtaken is not None


def test_cursor_that_came_too_late_sees_every_record_from_where_it_was_put(memory_store: MemoryStore) -> None:
    """INV-44: a cursor below the log's beginning is put there, which may be below an announced pass."""
    template, into = memory_store, MemoryStore(shared_runtime())
    grown(template)
    PolicyStore(template, LOG).change(lambda _: Policy(cleanup=Cleanup.BOTH))
    cursors = CursorStore(template, LOG)
    cursors.create("done", LogPosition(3, 0))
    assert collect(template, LOG, options=NOW).plan.num_records == 2
    cursors.delete("done")
    token = merged(template, force=True)

    def put_back(store: ObjectStore, seen: list[int]) -> None:
        cursors = CursorStore(store, LOG)
        with pytest.raises(GarbageCollectedError, match="it is now at 3"):
            cursors.create("late", LogPosition(1, 0))
        seen.extend(offset for offset, _, _ in held(store))

    counted = FaultyStore(replant(template, into, 0))
    requests = count_requests(counted, lambda: compactor(counted).install(token))
    overtaken = 0
    for number in range(1, requests + 1):
        store, seen = replant(template, into, number), list[int]()
        beside = FaultyStore(store)
        Later(beside, number, lambda store=store, seen=seen: put_back(store, seen))
        overtaken += compactor(beside).install(token).overtaken is not None
        assert [offset for offset, _, _ in held(store)] == seen
    assert overtaken


def test_pass_installed_long_after_it_was_announced_is_clean_since_its_install(memory_store: MemoryStore) -> None:
    """INV-43: a process that died after the announcement must not begin the time that tombstones are kept."""
    store = ClockStore(memory_store)
    keyed_log(store, delete_retention_s=DAY_S)
    append(store, [(b"a", b"1"), (b"b", b"1")], [(b"a", None)], [(b"c", b"1")])
    token = merged(store)
    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CursorStore, "offsets", killed)
        compactor(store).install(token)
    assert World(store).manifest().compacting is not None
    store.pass_s(10 * DAY_S)

    assert compactor(store).install(token).overtaken is None
    assert compactor(store).compact(force=True).num_expired == 0
    store.pass_s(DAY_S + 60)
    assert compactor(store).compact().num_expired == 1


class SuspendedRuntime(ThreadRuntime):
    """A process of a machine that can be suspended: its monotonic clock stands still meanwhile."""

    ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


def test_pass_of_a_machine_that_was_suspended_is_clean_since_it_was_installed(memory_store: MemoryStore) -> None:
    """INV-43: whichever request of the install the machine was suspended before, but for the CAS itself."""
    template, into = memory_store, MemoryStore(shared_runtime())
    keyed_log(template, delete_retention_s=DAY_S)
    append(template, [(b"a", b"1"), (b"b", b"1")], [(b"a", None)], [(b"c", b"1")])
    token = merged(template)
    counted = FaultyStore(replant(template, into, 0))
    requests = count_requests(counted, lambda: compactor(counted).install(token))

    early = []
    for number in range(1, requests + 1):
        store, before = ClockStore(replant(template, into, number)), list[bool]()
        with SuspendedRuntime() as runtime:

            def suspend(
                store: ClockStore = store, runtime: SuspendedRuntime = runtime, before: list[bool] = before
            ) -> None:
                before.append(World(store.inner).manifest().compaction.token != token)
                store.pass_s(10 * DAY_S)
                runtime.ahead_us = 10 * DAY_S * US_PER_S

            Later(store, number, suspend)
            KeyCompactor(store, LOG, options=OPTIONS, runtime=runtime).install(token)
        [mark] = World(store.inner).manifest().compaction.clean
        if before == [True] and mark.timestamp_us < store.now_us - US_PER_S:
            early.append(number)
    assert len(early) <= 1


def test_all_that_a_pass_has_left_which_was_never_installed_is_deleted_as_orphans(memory_store: MemoryStore) -> None:
    """Recovery: its fragments, its record and its lists; those of installed passes stay, for receipts."""
    store = ClockStore(memory_store)
    grown(store)
    lost = merged(store)
    append(store, [(b"a", b"3")])
    installed = compactor(store).compact(force=True).token
    assert installed is not None

    objects, left = life_store(store, LOG), []
    for _ in range(3):
        left.append([meta.path for meta in objects.list_objects("") if lost in meta.path])
        store.pass_s(2 * DAY_S)
        collect(store, LOG, options=LATER)

    # They wait for an interval after they were marked, as all orphans do.
    assert [len(paths) for paths in left] == [3, 3, 0]
    kept = [meta.path.partition(".")[0] for meta in objects.list_objects("compaction/") if installed in meta.path]
    assert sorted(kept) == ["compaction/DELETED", "compaction/DROPPED", "compaction/PASS"]
    assert {(each.offset, each.token, each.stored) for each in compactor(store).erased(b"a")} == {
        (1, installed, False),
        (4, installed, False),
    }


def test_pass_that_is_installed_while_its_record_is_taken_for_an_orphan_keeps_it(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    grown(store)
    token = merged(store)
    store.pass_s(2 * DAY_S)
    faulty = FaultyStore(store)

    def install(kind: str, path: str) -> None:
        if kind == "create" and "GARBAGE" in path:
            # It was found by the search already; its fragments are, too.
            faulty.before = lambda _kind, _path: None
            assert compactor(store).install(token).overtaken is None

    faulty.before = install
    for _ in range(3):
        collect(faulty, LOG, options=LATER)
        store.pass_s(2 * DAY_S)

    assert held(store) == NEWEST
    assert {each.token for each in compactor(store).erased(b"a")} == {token}


def test_pass_whose_replaced_files_may_remain_keeps_its_record_whatever_follows(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ClockStore(memory_store)
    grown(store)
    compact_unmarked(store, monkeypatch)
    first = World(store).manifest().compaction.token
    tokens = [first]
    for number in range(5):
        append(store, [(b"a", b"%d" % number)])
        tokens.append(str(compactor(store).compact(force=True).token))
        lost = merged(store, force=True)
        store.pass_s(2 * DAY_S)
        collect(store, LOG, options=LATER)

    for _ in range(2):
        store.pass_s(2 * DAY_S)
        collect(store, LOG, options=LATER)

    left = {pass_token(meta.path) for meta in life_store(store, LOG).list_objects("compaction/")}
    assert left == set(tokens)
    assert lost not in left
    assert len(list(compactor(store).erased(b"a"))) == 6


def test_receipt_has_no_time_of_deletion_if_the_pass_was_killed_before_it_marked(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery: the replaced files are found as orphans, in a document that belongs to no pass."""
    store = ClockStore(memory_store)
    grown(store)
    compact_unmarked(store, monkeypatch)

    for _ in range(3):
        store.pass_s(2 * DAY_S)
        collect(store, LOG, options=LATER)

    assert held(store) == NEWEST
    assert {(each.stored, each.deleted_us) for each in compactor(store).erased(b"a")} == {(False, None)}


def test_unknown_pass_is_reported(store: ObjectStore) -> None:
    grown(store)

    with pytest.raises(MissingError, match="expected the record of a pass"):
        compactor(store).install("0" * 16)


@pytest.mark.parametrize("token", ["", "0" * 15, "A" * 16, "../../policy.json", "x" * 300, b"0" * 16])
def test_token_that_no_pass_can_have_is_refused(memory_store: MemoryStore, token: str) -> None:
    """Regression: a directory was asked for a name that is too long, again and again for two minutes."""
    grown(memory_store)

    for call in (compactor(memory_store).install, compactor(memory_store).record):
        with pytest.raises(InvalidRequestError, match="token: expected"):
            call(token)


def test_appends_between_the_steps_stay(store: ObjectStore) -> None:
    grown(store)
    token = merged(store)
    append(store, [(b"a", b"3")], [(b"d", b"1")])

    assert compactor(store).install(token).overtaken is None

    assert held(store) == [*NEWEST, (7, b"a", b"3"), (8, b"d", b"1")]
    assert compactor(store).outline().dirty_bytes > 0


def test_sealed_log_is_compacted(store: ObjectStore) -> None:
    grown(store)
    seal(store, LOG, reason="a test")

    assert compactor(store).compact().installed

    assert held(store) == NEWEST


@pytest.mark.slow
def test_outline_is_what_the_fragments_add_up_to(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    for turn in range(12):
        append(memory_store, *([(b"%d" % (turn * number % 5), b"x" * number)] for number in range(4)))
        limit = 3 + 4 * turn
        plan = compactor(memory_store).outline(limit_offset=limit)
        whole = [pointer for pointer in fragments(memory_store) if pointer.limit.offset <= plan.limit]
        dirty = [pointer for pointer in whole if pointer.limit.offset > plan.clean_limit]
        assert plan.held_bytes == sum(pointer.num_bytes for pointer in whole)
        assert plan.dirty_bytes == sum(pointer.num_bytes for pointer in dirty)
        assert plan.held_records == sum(pointer.num_records for pointer in whole)
        assert plan.dirty_records == sum(pointer.num_records for pointer in dirty)
        assert plan.limit == (whole[-1].limit.offset if whole else plan.first)
        assert all(pointer.limit.offset > limit for pointer in fragments(memory_store) if pointer not in whole)
        if turn % 3 == 2:
            done = compactor(memory_store).compact(limit_offset=limit, force=True)
            assert done.proof.before == sum_setsums(whole)


def stores_of(store: ObjectStore) -> LogStores:
    return LogStores(store, LOG, runtime=shared_runtime(), retry=NOW.retry, snapshots_loaded_max=64)


def fragments(store: ObjectStore) -> list[FragmentPointer]:
    stores = stores_of(store)
    return list(select(stores.manifests.load().manifest.pointers, None, UNLIMITED, stores.snapshots.load))


def test_outline_takes_as_many_requests_for_a_long_log_as_for_a_short_one(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    counts = []
    for _ in range(2):
        append(memory_store, *([(b"%d" % number, b"x")] for number in range(40)))
        counted = CountingStore(memory_store)
        KeyCompactor(counted, LOG).outline()
        counts.append(sum(counted.requests.values()))

    assert counts[0] == counts[1] <= 10


def test_outline_of_a_log_that_is_not_compacted_is_refused(memory_store: MemoryStore) -> None:
    grown(memory_store)
    PolicyStore(memory_store, LOG).change(lambda _: Policy())

    with pytest.raises(KeyCompactionRefusedError, match="expected a policy that compacts"):
        compactor(memory_store).outline()
