"""A backup in parts: a full copy, then copies from where the one before ended; restored as one log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.stores import CountingStore
from wal3_core import LogAt, LogReader, LogWriter, Origin, bootstrap, copy, scrub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core import Record
    from wal3_core.storage.object_store import ObjectStore


def append(store: ObjectStore, count: int) -> None:
    with LogWriter.open_or_initialize(store, "orders") as writer:
        for number in range(count):
            writer.append(b"%d" % number)


def records_of(store: ObjectStore, parts: list[str]) -> Iterator[Record]:
    for part in parts:
        yield from LogReader.open(store, part).records()


def test_increment_reads_only_the_fragments_since_the_copy_before(store: ObjectStore) -> None:
    append(store, 40)
    full = copy(LogAt(store, "orders"), LogAt(store, "backup/full"))
    append(store, 2)
    source = CountingStore(store)

    increment = copy(LogAt(source, "orders"), LogAt(store, "backup/1"), from_offset=full.next_offset)

    assert (increment.first_offset, increment.num_records, increment.num_fragments) == (full.next_offset, 2, 2)
    assert source.requests["read"] == 2


def test_parts_of_a_backup_restore_to_one_log_of_the_same_setsum(store: ObjectStore) -> None:
    parts = ["backup/full", "backup/1", "backup/2"]
    next_offset = None
    for count, part in zip((20, 3, 0), parts, strict=True):
        append(store, count)
        next_offset = copy(LogAt(store, "orders"), LogAt(store, part), from_offset=next_offset).next_offset

    first, last = (LogReader.open(store, part).manifest() for part in (parts[0], parts[-1]))
    begun = first.first.position
    origin = Origin(
        first_offset=begun.offset,
        timestamp_us=begun.timestamp_us,
        pruned=first.pruned,
        setsum=last.setsum - first.pruned,
    )
    bootstrap(store, "restored", records_of(store, parts), origin)

    assert list(LogReader.open(store, "restored").records()) == list(LogReader.open(store, "orders").records())
    assert LogReader.open(store, "restored").manifest().setsum == LogReader.open(store, "orders").manifest().setsum
    assert scrub(store, "restored").sound
