"""A log can begin with records from elsewhere, with their offsets and times, and proves that it holds exactly those."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from tests.stores import FaultyStore
from wal3_core import (
    AtTime,
    BootstrapReport,
    CorruptError,
    CursorStore,
    GarbageCollectedError,
    InvalidRequestError,
    LogExistsError,
    LogNotFoundError,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    Message,
    Origin,
    Record,
    Setsum,
    UnavailableError,
    WriterOptions,
    bootstrap,
    destroy,
    scrub,
)
from wal3_core.format.record import record_setsum
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore

FIRST = 1000
# Small fragments below two levels of snapshots, and no retries.
FEW = WriterOptions(
    batch_records_max=3,
    retry=RetryOptions(attempts_max=1),
    snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2),
)


def foreign(number: int, *, first: int = FIRST) -> list[Record]:
    """Records as another system has them: two of each time, some with keys, some tombstones."""
    keys = (None, None, b"k", b"gone")
    return [Record(first + n, 10 * (n // 2), keys[n % 4], None if n % 4 == 3 else b"%d" % n) for n in range(number)]


def setsum_of(records: list[Record]) -> Setsum:
    return sum(map(record_setsum, records), start=Setsum())


def held(store: ObjectStore, log: str = "a") -> list[Record]:
    return list(LogReader.open(store, log).records())


@pytest.mark.parametrize("number", [1, 3, 50])
def test_log_begins_with_the_records_at_their_offsets_and_times(store: ObjectStore, number: int) -> None:
    records, below = foreign(number), Setsum.of([b"what lay below"])

    done = bootstrap(store, "a", iter(records), Origin(first_offset=FIRST, pruned=below), options=FEW)

    assert held(store) == records
    assert (done.first_offset, done.next_offset, done.num_records) == (FIRST, FIRST + number, number)
    assert done.num_fragments == -(-number // 3)
    assert done.setsum == setsum_of(records)
    manifest = LogReader.open(store, "a").manifest()
    assert (manifest.pruned, manifest.setsum, manifest.generation) == (below, below + done.setsum, manifest.generation)
    assert (manifest.num_bytes, manifest.log_id) == (done.num_bytes, done.log_id)
    assert len(manifest.fragments) < 5
    assert scrub(store, "a").balanced


def test_bootstrapped_log_continues_like_any_other(store: ObjectStore) -> None:
    records = foreign(20)
    bootstrap(store, "a", records, Origin(first_offset=FIRST), options=FEW)

    with LogWriter.open(store, "a") as writer:
        appended = writer.append(b"on")

    assert appended.offset == FIRST + 20
    assert appended.timestamp_us >= records[-1].timestamp_us
    assert [record.offset for record in LogReader.open(store, "a").records(AtTime(70))] == list(range(1014, 1021))
    assert CursorStore(store, "a").create("reader", LogPosition(FIRST, 0)).cursor.position.offset == FIRST
    with pytest.raises(GarbageCollectedError, match="from 1000, found 999"):
        list(LogReader.open(store, "a").records(FIRST - 1))


def test_part_of_another_log_is_proven_by_that_log_s_own_setsum(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "source") as writer:
        for number in range(30):
            writer.append_many([Message(b"%d" % number, b"k"), b"x"])
    reader = LogReader.open(memory_store, "source")
    pointers = reader.scan()
    below = sum((pointer.setsum for pointer in pointers[:10]), start=Setsum())
    whole, start = reader.manifest().setsum, pointers[10].start

    origin = Origin(first_offset=start.offset, timestamp_us=start.timestamp_us, pruned=below, setsum=whole - below)
    bootstrap(memory_store, "a", reader.records(start), origin)

    assert LogReader.open(memory_store, "a").manifest().setsum == whole
    assert held(memory_store) == list(reader.records(start))


def test_log_may_be_bootstrapped_without_a_record(memory_store: MemoryStore) -> None:
    done = bootstrap(memory_store, "a", [], Origin(first_offset=FIRST, timestamp_us=7))

    assert (done.num_records, done.next_offset, done.setsum) == (0, FIRST, Setsum())
    with LogWriter.open(memory_store, "a") as writer:
        assert writer.append(b"1").offset == FIRST


def wrong(at: int, **changes: object) -> list[Record]:
    records = foreign(12)
    records[at] = replace(records[at], **changes)
    return records


def test_records_whose_buffer_is_used_again_are_kept_as_they_were_given(memory_store: MemoryStore) -> None:
    """Regression: all records of a fragment were the last one, and the setsum agreed."""
    buffer = bytearray(4)

    def given() -> Iterator[Record]:
        for number in range(10):
            buffer[:] = b"r%03d" % number
            yield Record(np.int64(FIRST + number), np.uint64(number), memoryview(buffer), buffer)

    bootstrap(memory_store, "a", given(), Origin(first_offset=FIRST), options=FEW)

    kept = list(LogReader.open(memory_store, "a").records())
    assert kept == [Record(FIRST + n, n, b"r%03d" % n, b"r%03d" % n) for n in range(10)]


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        (foreign(5, first=FIRST + 1), "expected a record at offset 1000, not older than 0, found one at 1001"),
        (wrong(7, offset=FIRST + 8), "at offset 1007, not older than 30, found one at 1008"),
        (wrong(7, offset=FIRST + 6), "at offset 1007, not older than 30, found one at 1006"),
        (wrong(7, timestamp_us=29), "at offset 1007, not older than 30, found one at 1007 of 29"),
        (wrong(7, timestamp_us=30.0), "at offset 1007: timestamp_us: expected an integer, found float 30.0"),
        (wrong(7, timestamp_us=2**64), "found one at 1007 of"),
        (wrong(0, offset=True), "at offset 1000: offset: expected an integer, found bool"),
        (wrong(6, body="text"), "record at offset 1006: body: expected bytes, found str"),
        (wrong(4, body=None, key=None), "record at offset 1004: record: expected a body, a key, or both"),
        ([*foreign(6), b"bytes"], "expected a Record at offset 1006, found bytes"),
    ],
)
def test_record_that_does_not_follow_the_one_before_is_named_and_makes_no_log(
    memory_store: MemoryStore, records: list[Record], complaint: str
) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        bootstrap(memory_store, "a", records, Origin(first_offset=FIRST), options=FEW)

    assert_no_log_yet(memory_store)
    bootstrap(memory_store, "a", foreign(12), Origin(first_offset=FIRST), options=FEW)
    assert held(memory_store) == foreign(12)


def assert_no_log_yet(store: ObjectStore) -> None:
    with pytest.raises(LogNotFoundError):
        LogReader.open(store, "a")
    with pytest.raises((LogExistsError, CorruptError)):
        LogWriter.create(store, "a")


@pytest.mark.parametrize("origin", [{"first_offset": 0}, {"first_offset": 2**64}, {"timestamp_us": -1}])
def test_invalid_origin_is_refused(origin: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="bootstrap"):
        Origin(**origin)


def test_records_of_another_setsum_than_the_source_s_make_no_log(memory_store: MemoryStore) -> None:
    expected = setsum_of(foreign(10))
    origin = Origin(first_offset=FIRST, setsum=expected)

    with pytest.raises(InvalidRequestError, match=f"expected records of setsum {expected}, found"):
        bootstrap(memory_store, "a", foreign(9), origin, options=FEW)
    assert_no_log_yet(memory_store)

    assert bootstrap(memory_store, "a", foreign(10), origin, options=FEW).setsum == expected


def test_time_far_beyond_the_store_s_clock_is_refused_unless_that_is_allowed(store: ObjectStore) -> None:
    """Nothing that is appended later could be older, so that no retention would ever end."""
    now_us = shared_runtime().now_us()
    for times, origin, complaint in (
        ([0, now_us * 1000], Origin(), rf"record at offset 2: .* 60 s beyond .* found {now_us * 1000} .in nanosec"),
        ([now_us + 3600_000_000], Origin(), r"record at offset 1: .*, found \d+: if it is right, give an origin"),
        ([], Origin(timestamp_us=now_us * 1000), "timestamp_us of the origin: .* nanoseconds"),
    ):
        with pytest.raises(InvalidRequestError, match=complaint):
            bootstrap(store, "a", [Record(1 + at, time, None, b"v") for at, time in enumerate(times)], origin)
        with pytest.raises(LogNotFoundError):
            LogReader.open(store, "a")

    ahead = [Record(1, now_us + 3600_000_000, None, b"v")]
    bootstrap(store, "a", ahead, Origin(any_time=True))
    assert held(store) == ahead
    bootstrap(store, "b", [Record(1, now_us + 30_000_000, None, b"of a clock that is ahead")])
    assert len(held(store, "b")) == 1


def test_existing_log_is_left_alone(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, "a") as writer:
        writer.append(b"mine")
    before = LogReader.open(store, "a").manifest()

    with pytest.raises(LogExistsError):
        bootstrap(store, "a", foreign(10), Origin(first_offset=FIRST), options=FEW)

    assert LogReader.open(store, "a").manifest() == before
    assert [record.body for record in held(store)] == [b"mine"]


def test_source_that_fails_in_the_middle_leaves_no_log_and_can_be_read_again(memory_store: MemoryStore) -> None:
    def failing() -> Iterator[Record]:
        yield from foreign(8)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        bootstrap(memory_store, "a", failing(), Origin(first_offset=FIRST), options=FEW)

    assert_no_log_yet(memory_store)
    # Even with other records: nothing of the earlier attempt is relied on.
    bootstrap(memory_store, "a", foreign(8)[2:], Origin(first_offset=FIRST + 2), options=FEW)
    assert held(memory_store) == foreign(8)[2:]
    assert scrub(memory_store, "a").balanced


@pytest.mark.parametrize("fault", ["unavailable", "dies"])
def test_bootstrap_cut_short_anywhere_is_no_log_and_is_repeated_or_destroyed(
    memory_store: MemoryStore, fault: str
) -> None:
    done: BootstrapReport | None = None
    for request in count(1):
        asked, store = count(1), FaultyStore(memory_store)

        def fail(_kind: str, path: str, asked: Iterator[int] = asked, request: int = request) -> None:
            number = next(asked)
            if number == request or (fault == "dies" and number > request):
                raise UnavailableError(path)

        store.before = fail
        try:
            done = bootstrap(store, "a", foreign(14), Origin(first_offset=FIRST), options=FEW)
        except UnavailableError:
            assert whole_or_none(memory_store)
        if done is not None and next(asked) <= request:
            break
        # In turns: destroyed, or continued.
        if (request % 2 or done is not None or whole(memory_store)) and list(memory_store.list_objects("a/")):
            destroy_what_is_there(memory_store)
        done = None

    assert held(memory_store) == foreign(14)
    assert scrub(memory_store, "a").balanced
    # A failed attempt's late uploads may arrive in its own life's folder; they are deleted with the name.
    destroy_what_is_there(memory_store)
    assert [meta.path for meta in memory_store.list_objects("a/")] == ["a/manifest/MANIFEST.json"]


def whole(store: ObjectStore) -> bool:
    try:
        return held(store) == foreign(14)
    except LogNotFoundError:
        return False


def whole_or_none(store: ObjectStore) -> bool:
    try:
        return held(store) == foreign(14)
    except LogNotFoundError:
        return True


def destroy_what_is_there(store: ObjectStore) -> None:
    with suppress(LogNotFoundError):
        destroy(store, "a")


def test_two_bootstraps_at_once_make_one_log_of_one_of_them(memory_store: MemoryStore) -> None:
    def overtaken() -> Iterator[Record]:
        yield from foreign(8)
        bootstrap(memory_store, "a", foreign(5), Origin(first_offset=FIRST), options=FEW)
        yield from foreign(12)[8:]

    with pytest.raises(LogExistsError):
        bootstrap(memory_store, "a", overtaken(), Origin(first_offset=FIRST), options=FEW)

    assert held(memory_store) == foreign(5)
    assert scrub(memory_store, "a").balanced
