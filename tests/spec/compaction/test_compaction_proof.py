"""A pass is verified from storage alone, and every dropped record has a receipt."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.spec.compacting import DAY_S, LOG, OPTIONS, append, compactor, held, keyed_log
from tests.stores import CountingStore, FaultyStore, life_store
from tests.world import LATER, ClockStore
from wal3_core import LogAt, LogReader, LogWriter, MemoryStore, copy
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.compaction.engine import DropReason
from wal3_core.errors import MissingError
from wal3_core.format import parquet
from wal3_core.format.pass_record import Replacement
from wal3_core.format.paths import MANIFEST, fragment_path, pass_path
from wal3_core.format.policy import COMPACTED_FRAGMENT_BYTES_MIN
from wal3_core.log.collect.collector import collect
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.log_stores import LogStores
from wal3_core.log.tree.splice import apply_splice, splice
from wal3_core.options import FRAGMENT_EXPANDED_BYTES_MAX
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import Installed
from wal3_core.store.documents.pass_store import PassStore
from wal3_core.store.documents.pin_store import PinStore
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import Etag, NotModified, ObjectStore, Versioned


class PathsStore(CountingStore):
    """Remembers what is read whole."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.got: list[str] = []

    def get(self, path: str, *, if_none_match: Etag | None = None, length_max: int) -> Versioned | NotModified | None:
        self.got.append(path)
        return super().get(path, if_none_match=if_none_match, length_max=length_max)


def stores_of(store: ObjectStore) -> LogStores:
    return LogStores(store, LOG, runtime=shared_runtime(), retry=OPTIONS.retry, snapshots_loaded_max=64)


def compacted(store: ObjectStore) -> None:
    """Make a log whose first fragment replaces several."""
    keyed_log(store)
    append(
        store,
        [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")],
        [(b"a", b"2"), (b"d", b"1"), (b"b", b"2")],
        [(b"e", b"1"), (b"f", None), (b"c", b"2")],
    )
    assert compactor(store).compact().token is not None


def forge(store: ObjectStore, change: Callable[[pa.Table, pa.Table], pa.Table]) -> None:
    """Write the pass's fragment differently, and everything that names it so that all sums fit.

    ``change`` gets its records and those it was made of.
    """
    stores, objects = stores_of(store), life_store(store, LOG)
    base = stores.manifests.load()
    passes = PassStore(stores.manifests, shared_runtime(), OPTIONS.retry)
    record = next(passes.newest_first())
    (done,) = record.replacements
    most = FRAGMENT_EXPANDED_BYTES_MAX

    def table_of(pointer: object) -> pa.Table:
        return parquet.decode(objects.read(pointer.path), pointer, expanded_bytes_max=most).table

    changed = change(table_of(done.pointer), pa.concat_tables(table_of(member) for member in done.members))
    encoded = parquet.encode_table(changed, seq_no=done.pointer.seq_no, token=record.token)
    pointer = replace(done.pointer, setsum=encoded.setsum, num_bytes=len(encoded.data), num_records=len(changed))
    dropped = record.proof.before - encoded.setsum - record.proof.expired
    proof = replace(record.proof, after=encoded.setsum, merged=encoded.setsum, superseded=dropped)
    forged = replace(record, proof=proof, replacements=(Replacement(done.members, pointer),))
    for path, data in ((pointer.path, encoded.data), (pass_path(record.token), forged.to_bytes())):
        objects.delete(path)
        objects.create(path, bytes(data))
    again = [Replacement((done.pointer,), pointer)]
    spliced = splice(base.manifest, again, OPTIONS.snapshots, stores.snapshots.load)
    for snapshot in spliced.written:
        stores.snapshots.write(snapshot, OPTIONS.retry)
    manifest = apply_splice(base.manifest, spliced, again, base.manifest.compaction)
    assert isinstance(stores.manifests.install(manifest, base), Installed)


def test_sound_pass_is_verified(store: ObjectStore) -> None:
    compacted(store)

    found = compactor(store).verify()

    assert found is not None
    assert (found.findings, found.num_gone, found.num_dropped, found.num_records) == ((), 0, 3, 6)


def test_log_without_a_pass_has_nothing_to_verify(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)

    assert compactor(memory_store).verify() is None


def without(table: pa.Table, _before: pa.Table) -> pa.Table:
    return table.slice(1)


def doubled(table: pa.Table, _before: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 1), table])


def altered(table: pa.Table, _before: pa.Table) -> pa.Table:
    bodies = [b"other", *table["body"].to_pylist()[1:]]
    return table.set_column(3, "body", pa.array(bodies, type=table.schema.field("body").type))


def reordered(table: pa.Table, _before: pa.Table) -> pa.Table:
    return table.take(pa.array(np.r_[1, 0, 2 : len(table)]))


def twin(table: pa.Table, before: pa.Table) -> pa.Table:
    """The older record of key a instead of the newer one."""
    return pa.concat_tables(
        [before.slice(0, 1), table.filter(pa.array([key != b"a" for key in table["key"].to_pylist()]))]
    )


def untimely(table: pa.Table, _before: pa.Table) -> pa.Table:
    """Without the tombstone, whose time has not come."""
    return table.filter(table["body"].is_valid())


def both(table: pa.Table, before: pa.Table) -> pa.Table:
    """With a superseded record."""
    return pa.concat_tables([before.slice(0, 1), table])


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (without, "found a dropped record without a newer one of its key"),
        (doubled, "expected rising positions"),
        (altered, "expected records of fragments 1 to 3 as they were"),
        (reordered, "expected rising positions"),
        (twin, "found a dropped record without a newer one of its key"),
        (untimely, "found a dropped tombstone whose time had not come"),
        (both, "expected one record below offset"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_forged_pass_is_found_whatever_was_done(
    memory_store: MemoryStore, change: Callable[[pa.Table, pa.Table], pa.Table], finding: str
) -> None:
    compacted(memory_store)
    forge(memory_store, change)

    found = compactor(memory_store).verify()

    assert found is not None
    assert any(finding in each for each in found.findings), found.findings


def test_change_of_a_fragment_that_the_pass_does_not_name_is_found(memory_store: MemoryStore) -> None:
    keyed_log(memory_store, compacted_fragment_bytes=COMPACTED_FRAGMENT_BYTES_MIN)
    large = random.Random(0).randbytes(8 * COMPACTED_FRAGMENT_BYTES_MIN)
    append(memory_store, [(b"x", large), (b"y", b"lost")], [(b"a", b"1")], [(b"a", b"2")])
    done = compactor(memory_store).compact()
    assert (done.num_superseded, done.plan.num_rewritten) == (1, 2)
    stores, objects = stores_of(memory_store), life_store(memory_store, LOG)
    base = stores.manifests.load()
    held = LogReader.open(memory_store, LOG).scan()[0]
    data = objects.read(held.path)
    assert data is not None
    table = parquet.decode(data, held, expanded_bytes_max=FRAGMENT_EXPANDED_BYTES_MAX).table
    encoded = parquet.encode_table(table.slice(0, 1), seq_no=held.seq_no, token="0" * 16)
    pointer = replace(
        held,
        path=fragment_path(held.seq_no, "0" * 16),
        setsum=encoded.setsum,
        num_bytes=len(encoded.data),
        num_records=1,
    )
    objects.create(pointer.path, bytes(encoded.data))
    another = [Replacement((held,), pointer)]
    spliced = splice(base.manifest, another, OPTIONS.snapshots, stores.snapshots.load)
    manifest = apply_splice(base.manifest, spliced, another, base.manifest.compaction)
    assert isinstance(stores.manifests.install(manifest, base), Installed)

    found = compactor(memory_store).verify()

    assert found is not None
    assert any("records below offset 5: expected setsum" in each for each in found.findings), found.findings


def test_receipt_names_each_dropped_record_of_a_key_and_when_its_object_went(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    compacted(store)
    append(store, [(b"b", b"3")], [(b"b", None)])
    compactor(store).compact(force=True)

    assert [(each.offset, each.reason, each.stored) for each in compactor(store).erased(b"b")] == [
        (6, DropReason.SUPERSEDED, True),
        (10, DropReason.SUPERSEDED, True),
        (2, DropReason.SUPERSEDED, True),
    ]
    assert list(compactor(store).erased(b"")) == []

    store.pass_s(2 * DAY_S)
    collect(store, LOG, options=LATER)
    receipts = list(compactor(store).erased(b"b"))

    assert [each.offset for each in receipts] == [6, 10, 2]
    assert not any(each.stored for each in receipts)
    assert all(each.deleted_us == store.now_us for each in receipts)
    assert len(held(store)) == 6


@pytest.mark.parametrize("retention_s", [None, 0, 5 * DAY_S])
def test_list_of_dropped_records_goes_a_retention_after_them_and_never_without_one(
    memory_store: MemoryStore, retention_s: int | None
) -> None:
    store = ClockStore(memory_store)
    compacted(store)
    PolicyStore(store, LOG).change(lambda policy: replace(policy, receipt_retention_s=retention_s))
    first = stores_of(store).manifests.load().manifest.compaction.token
    objects, lists = life_store(store, LOG), list[bool]()
    for _ in range(8):
        store.pass_s(DAY_S)
        collect(store, LOG, options=LATER)
        lists.append(any(f"DROPPED.{first}" in meta.path for meta in objects.list_objects("compaction/")))

    # What was dropped is deleted on the first day. A list is found then or later, and deleted an interval after that.
    going = {None: 8, 0: 1, 5 * DAY_S: 6}[retention_s]
    assert lists == [True] * going + [False] * (8 - going)
    left = sorted(meta.path.partition(".")[0] for meta in objects.list_objects("compaction/") if first in meta.path)
    assert left == ["compaction/DELETED", *["compaction/DROPPED"] * (going == 8), "compaction/PASS"]
    assert len(held(store)) == 6
    assert len(list(compactor(store).erased(b"b"))) == (going == 8)
    verified = compactor(store).verify()
    assert verified is not None
    assert verified.holds


def test_search_for_orphans_reads_the_policy_once(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    compacted(store)
    PolicyStore(store, LOG).change(lambda policy: replace(policy, receipt_retention_s=0))
    store.pass_s(DAY_S)
    collect(store, LOG, options=LATER)
    store.pass_s(2 * DAY_S)
    counted = PathsStore(store)

    found = Deleter(counted, LOG, options=LATER).orphans([])

    assert any("DROPPED" in path for path in found)
    assert sum(path.endswith("policy.json") for path in counted.got) == 1


def test_receipts_of_later_passes_are_given_when_the_lists_of_earlier_ones_are_gone(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    compacted(store)
    PolicyStore(store, LOG).change(lambda policy: replace(policy, receipt_retention_s=0))
    for _ in range(3):
        store.pass_s(2 * DAY_S)
        collect(store, LOG, options=LATER)
    append(store, [(b"b", b"3")])
    later = compactor(store).compact(force=True).token

    assert [(each.offset, each.token) for each in compactor(store).erased(b"b")] == [(6, later)]


def test_receipt_names_the_lists_that_are_gone_also_after_the_retention_was_lifted(
    memory_store: MemoryStore,
) -> None:
    store = ClockStore(memory_store)
    compacted(store)
    PolicyStore(store, LOG).change(lambda policy: replace(policy, receipt_retention_s=0))
    for _ in range(3):
        store.pass_s(2 * DAY_S)
        collect(store, LOG, options=LATER)
    PolicyStore(store, LOG).change(lambda policy: replace(policy, receipt_retention_s=None))
    append(store, [(b"b", b"3")])
    later = compactor(store).compact(force=True).token

    for key, offsets in ((b"b", [6]), (b"a", []), (b"never seen", [])):
        receipt = compactor(store).erased(key)
        assert [(each.offset, each.token) for each in receipt] == [(offset, later) for offset in offsets]
        assert [(each.number, each.num_dropped) for each in receipt.lists_gone] == [(1, 3)]
        assert receipt.num_passes_unknown == 0


def test_list_that_is_gone_before_what_it_names_is_deleted_was_lost(memory_store: MemoryStore) -> None:
    compacted(memory_store)
    objects = life_store(memory_store, LOG)
    [path] = [meta.path for meta in objects.list_objects("compaction/") if "DROPPED" in meta.path]
    objects.delete(path)

    for key in (b"a", b"never seen"):
        with pytest.raises(MissingError, match="not known to be deleted, found none: it was lost"):
            compactor(memory_store).erased(key)


def test_receipts_of_a_copy_begin_anew_and_say_so(memory_store: MemoryStore) -> None:
    """A copy has no lists: what passes over its source dropped is not in it, and never was."""
    compacted(memory_store)
    copy(LogAt(memory_store, LOG), LogAt(memory_store, "b"))
    copied = KeyCompactor(memory_store, "b", options=OPTIONS)

    assert copied.verify() is None
    receipt = copied.erased(b"b")
    assert ([*receipt], receipt.lists_gone, receipt.num_passes_unknown) == ([], (), 1)

    with LogWriter.open(memory_store, "b") as writer:
        writer.append(b"3", key=b"b")
    token = copied.compact(force=True).token
    verified = copied.verify()
    assert verified is not None
    assert (verified.token, verified.holds) == (token, True)
    receipt = copied.erased(b"b")
    assert [(each.offset, each.token) for each in receipt] == [(6, token)]
    assert receipt.num_passes_unknown == 1
    assert compactor(memory_store).erased(b"b").num_passes_unknown == 0


def test_receipts_go_by_the_passes_of_an_older_manifest_that_is_restored(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    compacted(store)
    older = memory_store.read(f"{LOG}/{MANIFEST}")
    assert older is not None
    append(store, [(b"d", b"2")])
    lost = compactor(store).compact(force=True).token
    assert [each.token for each in compactor(store).erased(b"d")] == [lost]

    memory_store.delete(f"{LOG}/{MANIFEST}")
    memory_store.create(f"{LOG}/{MANIFEST}", older)

    receipt = compactor(store).erased(b"d")
    assert ([*receipt], receipt.num_passes_unknown) == ([], 0)
    # What the lost pass wrote holds the record, too, until it is collected as an orphan.
    assert all(each.stored for each in compactor(store).erased(b"b"))
    verified = compactor(store).verify()
    assert verified is not None
    assert verified.holds


def test_receipt_calls_no_record_deleted_that_an_earlier_pass_s_object_holds(
    memory_store: MemoryStore,
) -> None:
    """A pin holds the fragment that was written first; the one that a pass made of it is gone."""
    store = ClockStore(memory_store)
    keyed_log(store)
    append(store, [(b"k", b"secret")], [(b"a", b"1")], [(b"b", b"1")])
    pins = PinStore(store, LOG)
    pins.create("p", reason="a test")
    compactor(store).compact(force=True)
    append(store, [(b"k", b"new")], [(b"c", b"1")])
    assert compactor(store).compact(force=True).num_superseded == 1

    store.pass_s(2 * DAY_S)
    collect(store, LOG, options=LATER)
    [receipt] = compactor(store).erased(b"k")
    assert (receipt.stored, receipt.deleted_us) == (True, None)

    pins.delete("p")
    store.pass_s(2 * DAY_S)
    for _ in range(2):
        collect(store, LOG, options=LATER)
        store.pass_s(2 * DAY_S)
    [receipt] = compactor(store).erased(b"k")
    assert (receipt.stored, receipt.deleted_us) == (False, None)


@pytest.mark.parametrize("recorded", [True, False])
def test_receipt_calls_no_record_deleted_that_an_orphan_of_another_pass_still_holds(
    memory_store: MemoryStore, *, recorded: bool
) -> None:
    store = ClockStore(memory_store)
    keyed_log(store, min_dirty_percent=0)
    append(store, [(b"a", b"1"), (b"b", b"1")], [(b"b", b"2")])
    lost = compactor(store).merge().token
    assert lost is not None
    if not recorded:
        life_store(store, LOG).delete(pass_path(lost))
    append(store, [(b"a", b"2")])
    assert compactor(store).compact().num_superseded == 2

    found = []
    for orphans_max in (0, 0, 1000, 1000):
        found.append([(each.stored, each.deleted_us is None) for each in compactor(store).erased(b"a")])
        store.pass_s(2 * DAY_S)
        collect(store, LOG, options=replace(LATER, orphans_max=orphans_max))
    found.append([(each.stored, each.deleted_us is None) for each in compactor(store).erased(b"a")])

    assert not [meta.path for meta in life_store(store, LOG).list_objects("") if lost in meta.path]
    assert found == [[(True, True)]] * 4 + [[(False, False)]]


def test_receipt_gives_no_time_of_deletion_at_which_a_pin_still_held_the_record(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    keyed_log(store)
    append(store, [(b"k", b"secret")], [(b"k", b"new")], [(b"b", b"1")])
    pins = PinStore(store, LOG)
    pins.create("p", reason="a test")
    compactor(store).compact(force=True)

    for _ in range(3):
        store.pass_s(2 * DAY_S)
        collect(store, LOG, options=LATER)
        [receipt] = compactor(store).erased(b"k")
        assert receipt.deleted_us is None
        pins.delete("p")

    assert not receipt.stored


def test_pass_that_is_installed_while_the_one_before_is_verified_makes_no_finding() -> None:
    """The record for which the first pass dropped another may be gone by then, for one beyond its limit."""
    faulty = FaultyStore(MemoryStore(shared_runtime()))
    keyed_log(faulty, compacted_fragment_bytes=COMPACTED_FRAGMENT_BYTES_MIN)
    append(faulty, [(b"a", b"1"), (b"k", b"1")], [(b"k", b"2"), (b"b", b"1")])
    assert compactor(faulty).compact().num_superseded == 1
    append(faulty, [(b"k", random.Random(1).randbytes(5000))])

    def overtake(kind: str, path: str) -> None:
        if kind == "read" and "PASS" in path:
            faulty.before = lambda _kind, _path: None
            assert compactor(faulty.inner).compact(force=True).num_superseded == 1

    faulty.before = overtake
    verified = compactor(faulty).verify()

    assert verified is not None
    assert verified.findings == ()
