"""A backup in parts: a full copy, then copies from where the one before ended; restored as one log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stores import CountingStore
from tests.world import LATER
from wal3_core import (
    CursorStore,
    GarbageCollectedError,
    LogAt,
    LogNotFoundError,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    PinStore,
    Policy,
    PolicyStore,
    Record,
    collect,
    copy,
    scrub,
    update_copy,
)
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.format.policy import Cleanup
from wal3_core.store.object_store import ObjectStore


def append(store: ObjectStore, count: int) -> None:
    with LogWriter.open_or_create(store, "orders") as writer:
        for number in range(count):
            writer.append(b"%d" % number, key=b"k%d" % (number % 3))


def test_increment_reads_only_the_fragments_since_the_copy_before(store: ObjectStore) -> None:
    append(store, 40)
    full = copy(LogAt(store, "orders"), LogAt(store, "backup/full"))
    append(store, 2)
    source = CountingStore(store)

    increment = copy(LogAt(source, "orders"), LogAt(store, "backup/1"), from_offset=full.next_offset)

    assert (increment.first_offset, increment.num_records, increment.num_fragments) == (full.next_offset, 2, 2)
    assert source.requests["read"] == 2


def collect_and_pass(store: ObjectStore, policy: Policy) -> None:
    """Collect what the cursor has passed, or let a pass go to it, as days later."""
    PolicyStore(store, "orders").change(lambda _: replace(policy, min_dirty_percent=0) if policy.has_passes else policy)
    if CursorStore(store, "orders").list() and policy.cleanup is not Cleanup.COMPACT:
        collect(store, "orders", options=LATER)
    if policy.has_passes:
        KeyCompactor(store, "orders").compact()


@pytest.mark.parametrize(
    "policy",
    [Policy(), Policy(cleanup=Cleanup.COMPACT), Policy(cleanup=Cleanup.BOTH), Policy(arrange_by_key=True)],
    ids=["collected", "compacted", "both", "arranged"],
)
def test_parts_of_a_backup_restore_to_one_log_of_the_same_records_and_setsum(
    memory_store: MemoryStore, policy: Policy
) -> None:
    """A cursor where the last part ends keeps all that comes after it."""
    log, cursors = memory_store, CursorStore(memory_store, "orders")
    held: dict[int, Record] = {}
    append(log, 4)
    before: str | None = None
    witness = cursors.create("backup", LogPosition(1, 0))
    parts = ["backup/full", "backup/1", "backup/2"]
    for count, part in zip((20, 3, 0), parts, strict=True):
        append(log, count)
        collect_and_pass(log, policy)
        begins = None if before is None else LogAt(log, before)
        done = copy(LogAt(log, "orders"), LogAt(log, part), from_offset=begins, with_cursors=True)
        held |= {record.offset: record for record in LogReader.open(log, part).records()}
        witness = cursors.save("backup", LogReader.open(log, part).manifest().next.position, witness)
        before = part
    collect_and_pass(log, policy)

    copy(LogAt(log, parts[0]), LogAt(log, "restored"), with_cursors=True)
    for part in parts[1:]:
        update_copy(LogAt(log, part), LogAt(log, "restored"), with_cursors=True)

    assert list(LogReader.open(log, "restored").records()) == [held[offset] for offset in sorted(held)]
    assert LogReader.open(log, "restored").manifest().setsum == LogReader.open(log, "orders").manifest().setsum
    assert scrub(log, "restored").sound
    assert done.next_offset == LogReader.open(log, "restored").manifest().next.position.offset
    assert CursorStore(log, "restored").offsets()["backup"] == done.next_offset
    left = {record.offset for record in LogReader.open(log, "orders").records()}
    assert left <= held.keys()


@pytest.mark.parametrize("policy", [Policy(cleanup=Cleanup.COMPACT), Policy()], ids=["compacted", "collected"])
def test_part_that_lacks_records_since_the_copy_before_is_refused_when_it_is_made(
    memory_store: MemoryStore, policy: Policy
) -> None:
    """Without a cursor, a tombstone record may be gone that the earlier part still needs."""
    append(memory_store, 4)
    copy(LogAt(memory_store, "orders"), LogAt(memory_store, "full"))
    append(memory_store, 6)
    CursorStore(memory_store, "orders").create(
        "consumer", LogReader.open(memory_store, "orders").manifest().next.position
    )
    collect_and_pass(memory_store, policy)

    with pytest.raises(GarbageCollectedError, match="were compacted away|an offset the log still holds"):
        copy(LogAt(memory_store, "orders"), LogAt(memory_store, "part"), from_offset=LogAt(memory_store, "full"))
    with pytest.raises(LogNotFoundError):
        LogReader.open(memory_store, "part")
    assert PinStore(memory_store, "orders").list() == {}


def test_copy_does_not_go_on_after_another_log(memory_store: MemoryStore) -> None:
    append(memory_store, 4)
    with LogWriter.open_or_create(memory_store, "other") as writer:
        writer.append(b"of another log")

    with pytest.raises(GarbageCollectedError, match="or that this is no copy of the log"):
        copy(LogAt(memory_store, "orders"), LogAt(memory_store, "part"), from_offset=LogAt(memory_store, "other"))


def test_parts_adjoin_though_a_pass_has_joined_fragments_on_both_sides(memory_store: MemoryStore) -> None:
    append(memory_store, 5)
    copy(LogAt(memory_store, "orders"), LogAt(memory_store, "full"))
    append(memory_store, 5)
    collect_and_pass(memory_store, Policy(arrange_by_key=True))
    assert len(LogReader.open(memory_store, "orders").scan()) == 1

    part = copy(LogAt(memory_store, "orders"), LogAt(memory_store, "part"), from_offset=LogAt(memory_store, "full"))

    assert (part.first_offset, part.num_records) == (6, 5)
    copy(LogAt(memory_store, "full"), LogAt(memory_store, "restored"))
    update_copy(LogAt(memory_store, "part"), LogAt(memory_store, "restored"))
    assert list(LogReader.open(memory_store, "restored").records()) == list(
        LogReader.open(memory_store, "orders").records()
    )
