"""Followers and consumers of a log from which records are dropped, before, between and during their reads."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest

from tests.compacted_logs import Timed, append_fragments, compact, delete_objects, write_log
from tests.spec.copying import collect
from wal3_core import (
    AtTime,
    Consumer,
    GarbageCollectedError,
    LogPosition,
    LogReader,
    MemoryStore,
    Record,
    follow_across,
    records_across,
)
from wal3_core.options import ConsumerOptions, Limits, ReaderOptions
from wal3_core.runtime import shared_runtime

# Nothing is read ahead, so that each object is missing when its turn comes.
CLOSE = ReaderOptions(prefetch_fragments=1, prefetch_snapshots=1, snapshots_loaded_max=0, poll_s_min=0.001)
AT_ONCE = ConsumerOptions(idle_s=0, commit_records_max=1, reader=CLOSE)
T0 = 1_000


def fragments(count: int, at: int = 0) -> list[list[Timed]]:
    return [[(T0 + at + number, b"k%d" % index, b"v") for index in range(3)] for number in range(count)]


def grown(count: int = 12) -> tuple[MemoryStore, list[Record]]:
    """Make a log of fragments of three records, in snapshots."""
    store = MemoryStore(shared_runtime())
    return store, write_log(store, "a", fragments(count))


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def test_follower_goes_on_behind_a_compaction_between_two_polls() -> None:
    store, records = grown()
    following = LogReader.open(store, "a", options=CLOSE).following()
    assert list(following.look()) == records
    compact(store, "a", range(1, 30), [(0, 11)])
    more = append_fragments(store, "a", fragments(2, 50))

    assert list(following.look()) == more


@pytest.mark.parametrize("given", [1, 3, 4, 10, 20])
def test_follower_that_holds_an_older_manifest_gives_each_record_that_is_left_once(given: int) -> None:
    store, records = grown()
    looking = LogReader.open(store, "a", options=CLOSE).following().look()
    found = list(islice(looking, given))
    dropped = {2, 5, 6, 11, 12, 14, 15, 22, 23, 24}
    delete_objects(store, "a", compact(store, "a", dropped, [(1, 3), (3, 6), (6, 9)]))

    found += looking

    # What was loaded before is given whole.
    assert offsets(found) == sorted(set(offsets(found)))
    assert {record.offset for record in records} - dropped <= set(offsets(found))
    assert set(offsets(found)[given + 9 :]).isdisjoint(dropped)


def test_follower_at_an_end_that_was_dropped_loses_nothing_to_a_collection() -> None:
    store, _ = grown(4)
    compact(store, "a", {11, 12})
    following = LogReader.open(store, "a", options=CLOSE).following(LogPosition(1, T0))
    assert offsets(list(following.look())) == list(range(1, 11))
    collect(store, "a", 13)
    more = append_fragments(store, "a", fragments(1, 50))

    assert list(following.look()) == more


def test_follower_from_asyncio_reads_a_log_with_gaps() -> None:
    store, records = grown()
    compact(store, "a", {1, 2, 17}, [(4, 8)])

    async def read() -> list[Record]:
        return [record async for record in LogReader.open(store, "a", options=CLOSE).follow_async(2, idle_s=0)]

    assert asyncio.run(read()) == [record for record in records if record.offset not in {1, 2, 17}]


def test_following_and_reading_across_logs_with_gaps() -> None:
    store, records = grown()
    compact(store, "a", {1, 2, 17, 36}, [(4, 8)])
    left = [record for record in records if record.offset not in {1, 2, 17, 36}]

    assert list(follow_across(store, "a", idle_s=0)) == left
    assert (
        list(records_across(store, "a", AtTime(T0 + 5), Limits(records=4)))
        == [record for record in left if record.timestamp_us >= T0 + 5][:4]
    )


@pytest.mark.parametrize("across", [False, True])
def test_read_whose_records_are_dropped_meanwhile_is_refused(*, across: bool) -> None:
    """The newer record for which one is dropped may lie beyond the end of the read."""
    store, records = grown()
    reader = LogReader.open(store, "a", options=CLOSE)
    reading = records_across(store, "a", options=CLOSE) if across else reader.records()
    manifest = reader.manifest()
    assert next(reading) == records[0]
    append_fragments(store, "a", fragments(1, 50))
    delete_objects(store, "a", compact(store, "a", {20, 21}, [(5, 8)]))

    with pytest.raises(GarbageCollectedError, match="compacted away from offset .*: read again, or read a pin"):
        list(reading)
    with pytest.raises(GarbageCollectedError, match="compacted away"):
        reader.to_arrow(manifest=manifest)
    with pytest.raises(GarbageCollectedError, match="compacted away"):
        LogReader.open(store, "a", options=CLOSE).to_arrow(19, manifest=manifest)
    assert offsets(list(reader.records())) == [*range(1, 20), *range(22, 40)]


def test_read_goes_on_when_fragments_became_one_and_nothing_was_dropped() -> None:
    store, records = grown()
    reading = LogReader.open(store, "a", options=CLOSE).records()
    first = next(reading)
    delete_objects(store, "a", compact(store, "a", (), [(0, 5), (5, 8), (8, 12)]))

    assert [first, *reading] == records


def test_read_goes_on_when_records_were_dropped_only_outside_of_its_range() -> None:
    store, records = grown()
    reading = LogReader.open(store, "a", options=CLOSE).records(19)
    first = next(reading)
    delete_objects(store, "a", compact(store, "a", {1, 2}, [(0, 2), (7, 9)]))

    assert [first, *reading] == records[18:]


def test_consumer_goes_through_gaps_and_its_cursor_may_lie_in_one() -> None:
    store, records = grown()
    dropped = {1, 2, 3, 5, 6, 7, 8, 20, 36}
    compact(store, "a", dropped, [(0, 2), (2, 5)])
    left = [record for record in records if record.offset not in dropped]
    given: list[int] = []
    for _ in range(len(left)):
        with Consumer(store, "a", "c", options=AT_ONCE) as consumer:
            record = next(consumer)
            given.append(record.offset)
            consumer.commit(record)

    assert given == offsets(left)
    with Consumer(store, "a", "c", options=AT_ONCE) as consumer:
        assert list(consumer) == []
        # Offsets, not records: the newest one was dropped.
        assert consumer.lag()["a"].records == 1
