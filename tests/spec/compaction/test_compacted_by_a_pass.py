"""What passes of key compaction leave is read, copied, updated, scrubbed and repaired as logs made by hand are."""

from __future__ import annotations

import pytest

from tests.compacted_logs import compact, fragments_of
from tests.spec.compacting import append, compactor, keyed_log, records
from tests.stores import life_store
from wal3_core import GarbageCollectedError, LogAt, LogReader, MemoryStore, copy, repair_log, scrub, update_copy
from wal3_core.runtime import shared_runtime

pytestmark = pytest.mark.slow


def compacted() -> MemoryStore:
    """A log of 30 fragments, compacted once."""
    store = MemoryStore(shared_runtime())
    keyed_log(store, min_compaction_lag_s=0)
    for number in range(30):
        rare = (b"only %d" % number, b"v") if number % 5 == 0 else (b"a", None)
        append(store, [(b"k%d" % (number % 4), b"%d" % number), rare])
    compactor(store).compact()
    assert any(pointer.compacted for pointer in fragments_of(store, "a"))
    return store


def test_scrub_and_copy_of_a_log_after_passes_are_balanced() -> None:
    store = compacted()
    copy(LogAt(store, "a"), LogAt(store, "b"))

    assert scrub(store, "a").balanced
    assert scrub(store, "b").balanced
    assert list(LogReader.open(store, "b").records()) == records(store)


def test_fragments_of_a_pass_are_repaired_with_the_same_bytes_from_other_fragments() -> None:
    store = compacted()
    copy(LogAt(store, "a"), LogAt(store, "b"))
    # The copy has no file of the pass any more, only the records.
    compact(store, "b", (), [(0, len(fragments_of(store, "b")))])
    inside, beside = life_store(store, "a"), life_store(store, "b")
    bad = [pointer.path for pointer in fragments_of(store, "a") if pointer.compacted]
    before = {path: inside.read(path) for path in bad}
    for path in bad:
        inside.delete(path)
        beside.delete(path)

    assert repair_log(LogAt(store, "a"), LogAt(store, "b")).complete
    assert {path: inside.read(path) for path in bad} == before


def test_update_of_a_copy_follows_passes_below_its_end_and_refuses_those_beyond() -> None:
    store = compacted()
    copy(LogAt(store, "a"), LogAt(store, "b"))
    append(store, [(b"k1", b"new")])
    assert update_copy(LogAt(store, "a"), LogAt(store, "b")).num_records == 1
    compactor(store).compact()
    assert update_copy(LogAt(store, "a"), LogAt(store, "b")).num_records == 0
    for number in range(8):
        append(store, [(b"k1", b"%d" % number)])
    compactor(store).compact()

    with pytest.raises(GarbageCollectedError, match="copy to another name"):
        update_copy(LogAt(store, "a"), LogAt(store, "b"))
    assert scrub(store, "b").balanced
