"""Passes that arrange a log by key keep every record, let those of each key lie together, and rewrite little."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from tests.spec.compacting import LOG, append, compactor, held, keyed_log
from tests.stores import FaultyStore, life_store
from tests.world import NOW, QUICK, World
from wal3_core import (
    Cleanup,
    CursorStore,
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    Policy,
    WriterOptions,
    copy,
    scrub,
)
from wal3_core.compaction.verifying import verify_pass
from wal3_core.errors import (
    InvalidRequestError,
    KeyCompactionRefusedError,
    KeyRequiredError,
    UnknownDurabilityError,
)
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.paths import KEY_ROLLUP_FOLDER
from wal3_core.format.policy import COMPACTED_FRAGMENT_BYTES_MIN
from wal3_core.log.collect.collector import collect
from wal3_core.log.log_stores import LogStores
from wal3_core.options import FRAGMENT_EXPANDED_BYTES_MAX, RetryOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.pass_store import PassStore
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore

Rows = list[tuple[bytes | None, bytes | None]]
KEYS = st.sampled_from([b"", b"a", b"a\0", b"b" * 1024, b"\xff"])


def arranging_log(store: ObjectStore, **terms: int) -> None:
    """Begin a log that is collected, and arranged by key."""
    LogWriter.open_or_create(store, LOG).close()
    PolicyStore(store, LOG).change(lambda _: Policy(arrange_by_key=True, **terms))


def is_arranged(store: ObjectStore, pointer: FragmentPointer) -> bool:
    data = life_store(store, LOG).read(pointer.path)
    assert data is not None
    return parquet.read_arrangement(memoryview(data), pointer) is not None


def rows(count: int, *, body_bytes: int = 20, seed: int = 0) -> Rows:
    rng = random.Random(seed)
    return [(b"%d" % rng.randrange(5), rng.randbytes(body_bytes)) for _ in range(count)]


def test_pass_over_a_collected_log_keeps_every_record_and_leaves_key_roll_ups(store: ObjectStore) -> None:
    world = World(store)
    arranging_log(store)
    append(store, *(rows(4, seed=number) for number in range(12)), [(b"3", None), (b"3", None)])
    before, manifest = held(store), world.manifest()

    report = compactor(store).compact()

    assert held(store) == before
    assert (report.num_superseded, report.num_expired, report.num_written, report.plan.num_rewritten) == (0, 0, 1, 13)
    after = world.manifest()
    assert (after.setsum, after.pruned, after.num_records) == (manifest.setsum, manifest.pruned, len(before))
    assert (after.compaction.arranged, after.compaction.clean, after.keyed) == (51, (), True)
    (pointer,) = LogReader.open(store, LOG).scan()
    assert is_arranged(store, pointer)
    verified = compactor(store).verify()
    assert verified is not None
    assert (verified.holds, verified.num_dropped, verified.num_records) == (True, 0, 50)
    assert scrub(store, LOG).balanced
    # Nothing is new, and nothing is written again, also if a pass is asked for.
    assert compactor(store).compact().token is None
    assert compactor(store).compact(force=True).num_written == 0
    assert LogReader.open(store, LOG).scan() == [pointer]


@pytest.mark.slow
def test_key_roll_ups_are_left_for_a_log_that_keeps_all(memory_store: MemoryStore) -> None:
    arranging_log(memory_store, compacted_fragment_bytes=COMPACTED_FRAGMENT_BYTES_MIN)
    append(memory_store, *(rows(6, body_bytes=1000, seed=number) for number in range(40)))

    compactor(memory_store).compact()

    leaves = [each for each in World(memory_store).manifest().snapshots if each.depth == 1]
    found = list(life_store(memory_store, LOG).list_objects(KEY_ROLLUP_FOLDER))
    assert len(found) >= max(1, len(leaves))
    assert all(is_arranged(memory_store, each) for each in LogReader.open(memory_store, LOG).scan())


@pytest.mark.slow
def test_record_is_rewritten_once_in_a_large_fragment_and_some_times_in_a_small(
    memory_store: MemoryStore,
) -> None:
    target = 16 * COMPACTED_FRAGMENT_BYTES_MIN
    arranging_log(memory_store, compacted_fragment_bytes=target, min_dirty_percent=0)
    rewritten = Counter[int]()
    for turn in range(40):
        append(memory_store, rows(4, body_bytes=500, seed=turn))
        before = {each.path: each for each in LogReader.open(memory_store, LOG).scan()}
        compactor(memory_store).compact()
        after = {each.path for each in LogReader.open(memory_store, LOG).scan()}
        for path in before.keys() - after:
            pointer = before[path]
            # Every one that was large enough stays, once it is arranged.
            assert pointer.num_bytes < target // 2 or not is_arranged(memory_store, pointer)
            rewritten.update(range(pointer.start.offset, pointer.limit.offset))

    # Once, and once more each time that its fragment grows by four fifths: from 3 kB to 32 kB that is five times.
    assert max(rewritten.values()) <= 1 + 5
    assert sum(rewritten.values()) < 5 * len(rewritten)
    assert all(is_arranged(memory_store, each) for each in LogReader.open(memory_store, LOG).scan())


def test_cursors_hold_back_no_pass_that_drops_nothing(memory_store: MemoryStore) -> None:
    arranging_log(memory_store)
    append(memory_store, *(rows(3, seed=number) for number in range(6)))
    before = held(memory_store)
    cursors = CursorStore(memory_store, LOG)
    cursors.create("first", LogPosition(5, 0))

    token = compactor(memory_store).merge().token
    assert token is not None
    cursors.create("second", LogPosition(2, 0))
    installed = compactor(memory_store).install(token)

    assert (installed.overtaken, held(memory_store)) == (None, before)
    assert len(LogReader.open(memory_store, LOG).scan()) == 1


def test_collection_goes_on_at_a_position_inside_an_arranged_fragment(memory_store: MemoryStore) -> None:
    arranging_log(memory_store)
    append(memory_store, *(rows(3, seed=number) for number in range(6)))
    cursors = CursorStore(memory_store, LOG)
    witness = cursors.create("c", LogPosition(8, 0))
    compactor(memory_store).compact()
    append(memory_store, rows(3), rows(3))
    before = held(memory_store)

    collect(memory_store, LOG, options=NOW)
    assert held(memory_store) == before

    cursors.save("c", LogPosition(20, 0), witness)
    collect(memory_store, LOG, options=NOW)
    assert held(memory_store) == before[18:]
    compactor(memory_store).compact(force=True)
    assert held(memory_store) == before[18:]


def test_appends_during_a_pass_stay_and_are_arranged_by_the_next(memory_store: MemoryStore) -> None:
    arranging_log(memory_store)
    append(memory_store, *(rows(3, seed=number) for number in range(6)))
    token = compactor(memory_store).merge().token
    assert token is not None
    append(memory_store, rows(3), rows(3))
    before = held(memory_store)

    assert compactor(memory_store).install(token).overtaken is None
    assert held(memory_store) == before
    assert compactor(memory_store).compact(force=True).plan.num_rewritten == 3
    assert (held(memory_store), World(memory_store).manifest().compaction.arranged) == (before, 25)


def test_append_without_a_key_is_refused_by_a_log_that_is_arranged(memory_store: MemoryStore) -> None:
    arranging_log(memory_store)

    with LogWriter.open(memory_store, LOG) as writer, pytest.raises(KeyRequiredError):
        writer.append(b"x")
    PolicyStore(memory_store, LOG).change(lambda _: Policy())
    with LogWriter.open(memory_store, LOG) as writer:
        writer.append(b"x", key=None)
    with pytest.raises(KeyCompactionRefusedError, match="arrange_by_key"):
        compactor(memory_store).compact()


@pytest.mark.parametrize("arrange", [False, True])
def test_log_that_drops_records_holds_the_same_whether_it_is_arranged_or_not(
    memory_store: MemoryStore, *, arrange: bool
) -> None:
    keyed_log(memory_store)
    PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, arrange_by_key=arrange))
    batches = [rows(7, seed=number) for number in range(9)]
    append(memory_store, *batches)
    newest = {key: offset for offset, (key, _) in enumerate((row for batch in batches for row in batch), start=1)}

    report = compactor(memory_store).compact()

    assert [offset for offset, _, _ in held(memory_store)] == sorted(newest.values())
    assert report.num_superseded == 63 - len(newest)
    found = LogReader.open(memory_store, LOG).scan()
    assert {is_arranged(memory_store, each) for each in found} == {arrange}
    assert World(memory_store).manifest().compaction.arranged == (64 if arrange else 0)
    verified = compactor(memory_store).verify()
    assert verified is not None
    assert verified.holds


def test_log_that_kept_all_is_clean_of_nothing_when_it_is_compacted_later(memory_store: MemoryStore) -> None:
    """What an arranging pass has looked at still has several records of a key."""
    world = World(memory_store)
    arranging_log(memory_store)
    append(memory_store, *(rows(5, seed=number) for number in range(5)))
    compactor(memory_store).compact()
    PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, cleanup=Cleanup.BOTH))

    report = compactor(memory_store).compact()

    assert report.plan.dirty_percent == 100
    assert len({key for _, key, _ in held(memory_store)}) == len(held(memory_store)) == 5
    # And back: what is new is arranged, and kept.
    PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, cleanup=Cleanup.COLLECT))
    append(memory_store, rows(20, seed=9))
    before = held(memory_store)
    assert compactor(memory_store).compact(force=True).num_superseded == 0
    assert (held(memory_store), world.manifest().compaction.clean_limit) == (before, 26)
    # Not arranged in between: all of it is looked at again.
    PolicyStore(memory_store, LOG).change(lambda _: Policy(cleanup=Cleanup.BOTH))
    assert compactor(memory_store).compact().installed
    assert world.manifest().compaction.arranged == 0
    left = held(memory_store)
    PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, arrange_by_key=True))
    compactor(memory_store).compact(force=True)
    assert (held(memory_store), world.manifest().compaction.arranged) == (left, 46)
    assert all(is_arranged(memory_store, each) for each in LogReader.open(memory_store, LOG).scan())


def test_pass_that_cannot_record_all_groups_goes_on_where_it_ended(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is arranged late: each fragment is rewritten once, however many passes it takes."""
    monkeypatch.setattr("wal3_core.compaction.scope.MEMBERS_MAX", 4)
    keyed_log(memory_store, compacted_fragment_bytes=COMPACTED_FRAGMENT_BYTES_MIN)
    rng = random.Random(1)
    append(memory_store, *([(b"%d" % number, rng.randbytes(4000))] for number in range(10)))
    compactor(memory_store).compact()
    PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, arrange_by_key=True))

    written = [compactor(memory_store).compact(force=True).num_written for _ in range(4)]

    assert written == [4, 4, 2, 0]
    assert all(is_arranged(memory_store, each) for each in LogReader.open(memory_store, LOG).scan())


def test_pass_that_dropped_a_record_of_a_log_that_keeps_all_does_not_verify(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    append(memory_store, rows(6), rows(6))
    compactor(memory_store).compact()
    stores = LogStores(memory_store, LOG, runtime=shared_runtime(), retry=QUICK, snapshots_loaded_max=1)
    record = next(PassStore(stores.manifests, shared_runtime(), QUICK).newest_first())

    found = verify_pass(
        life_store(memory_store, LOG),
        LOG,
        replace(record, keeps_all=True),
        LogReader.open(memory_store, LOG).scan(),
        expanded_bytes_max=FRAGMENT_EXPANDED_BYTES_MAX,
    )

    assert any("as the pass keeps all, found it dropped" in each for each in found.findings)


def test_outcome_of_an_append_whose_fragment_was_arranged_alone_is_unknown() -> None:
    """It covers what it covered before, under another path: that does not show that the append is not in the log."""
    faulty = FaultyStore(MemoryStore(shared_runtime()))
    arranging_log(faulty, compacted_fragment_bytes=COMPACTED_FRAGMENT_BYTES_MIN)
    quick = WriterOptions(batch_records_max=1, retry=RetryOptions(attempts_max=2, pause_s_min=0.001))
    with LogWriter.open(faulty, LOG, options=quick, ordered=True) as writer:
        faulty.fail("replace", "MANIFEST", "applied-unknown", times=1)
        faulty.fail("get", "MANIFEST", "unavailable", times=10_000)
        with pytest.raises(UnknownDurabilityError):
            writer.append(random.Random(1).randbytes(5000), key=b"mine")
        faulty.heal()
        for number in range(17):
            with LogWriter.open(faulty.inner, LOG) as other:
                other.append(random.Random(number).randbytes(5000), key=b"other")
        compactor(faulty.inner).compact()
        first = LogReader.open(faulty.inner, LOG).scan()[0]
        assert (first.first_seq_no, first.num_records, is_arranged(faulty.inner, first)) == (first.seq_no, 1, True)

        with pytest.raises(UnknownDurabilityError, match="was compacted: unknown whether it was ours"):
            writer.resume()


def test_values_that_a_log_that_keeps_all_does_not_use_are_refused() -> None:
    Policy(arrange_by_key=True, min_dirty_percent=5, retention_s=60, without_cursors=True).check()
    with pytest.raises(InvalidRequestError, match="delete_retention_s: expected none with cleanup collect, as nothing"):
        Policy(arrange_by_key=True, delete_retention_s=5).check()
    with pytest.raises(InvalidRequestError, match="min_dirty_percent: expected none with cleanup collect, as the log"):
        Policy(min_dirty_percent=5).check()
    with pytest.raises(InvalidRequestError, match="arrange_by_key"):
        Policy(arrange_by_key=1)


@pytest.mark.slow
@settings(max_examples=some(40))
@given(
    turns=st.lists(
        st.lists(
            st.lists(st.tuples(KEYS, st.sampled_from([None, b"", b"x" * 3000])), min_size=1, max_size=4),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=4,
    ),
    cursor=st.integers(1, 40),
)
def test_any_log_holds_what_it_held_after_every_pass_and_its_copy_does(turns: list[list[Rows]], cursor: int) -> None:
    store = MemoryStore(shared_runtime())
    arranging_log(store, compacted_fragment_bytes=COMPACTED_FRAGMENT_BYTES_MIN, min_dirty_percent=0)
    expected: list[tuple[int, bytes | None, bytes | None]] = []
    for turn in turns:
        append(store, *turn)
        expected += [
            (offset, *row) for offset, row in enumerate((row for each in turn for row in each), len(expected) + 1)
        ]
        compactor(store).compact()
        assert held(store) == expected
        pointers = LogReader.open(store, LOG).scan()
        assert all(before.limit.offset == after.start.offset for before, after in pairwise(pointers))
    copy(LogAt(store, LOG), LogAt(store, "copy"))
    assert [(each.offset, each.key, each.body) for each in LogReader.open(store, "copy").records()] == expected
    CursorStore(store, LOG).create("c", LogPosition(min(cursor, len(expected) + 1), 0))
    collect(store, LOG, options=NOW)
    first = World(store).manifest().first.position.offset
    assert held(store) == expected[first - 1 :]
    assert first <= cursor
    assert scrub(store, LOG).balanced
