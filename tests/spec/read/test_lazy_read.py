"""A read of a long log begins at once, uses the memory of a short one, and follows maintenance."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice

import pytest

from tests.large_logs import Grower
from tests.rounds import round_trips
from tests.stores import CountingStore, FaultyStore, life_store
from wal3_core import (
    AtTime,
    CorruptError,
    GarbageCollectedError,
    InvalidRequestError,
    Limits,
    LogReader,
    LogWriter,
    MemoryStore,
    PinStore,
    ReaderOptions,
    WriterOptions,
    follow_across,
    migrate,
    open_pinned,
    records_across,
)
from wal3_core.format.manifest import Manifest
from wal3_core.format.position import ReadStart
from wal3_core.format.record import Record
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions, SnapshotOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

# Two levels of snapshots after a few dozen fragments.
TREE = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=64)
NOW = CollectorOptions(interval_s=0, fraction_max=1, deletes_per_s=1e9, without_cursors=True)
SIZE = 100


@pytest.fixture
def long_log(memory_store: MemoryStore) -> MemoryStore:
    """A hundred fragments of one record each."""
    with LogWriter.open_or_create(memory_store, "a", options=WriterOptions(snapshots=TREE)) as writer:
        for number in range(1, SIZE + 1):
            writer.append(b"%d" % number)
    assert depth_of(memory_store) == 2
    return memory_store


def depth_of(store: ObjectStore) -> int:
    return max(snapshot.depth for snapshot in LogReader.open(store, "a").manifest().snapshots)


def first_record(read: Callable[[LogReader], Iterator[Record]]) -> Callable[[ObjectStore, Runtime], int]:
    def work(store: ObjectStore, runtime: Runtime) -> int:
        reader = LogReader(store, "a", options=ReaderOptions(), runtime=runtime)
        return next(read(reader)).offset

    return work


# ---------------------------------------------------------------------- round trips and requests


READS: dict[str, Callable[[LogReader], Iterator[Record]]] = {
    "records": lambda reader: reader.records(),
    "from an offset": lambda reader: reader.records(13),
    "limited": lambda reader: reader.records(None, Limits(records=1)),
    "follow": lambda reader: reader.follow(),
}


@pytest.mark.slow
@pytest.mark.parametrize("size", [60, 1000])
@pytest.mark.parametrize("read", READS)
def test_first_record_of_a_log_takes_its_depth_and_two_round_trips_at_any_length(
    memory_store: MemoryStore, read: str, size: int
) -> None:
    """Regression: the whole tree was loaded first, with a request for each of its snapshots."""
    Grower(memory_store, tree=TREE).grow(size)

    offset, rounds = round_trips(memory_store, first_record(READS[read]))

    assert offset in {1, 13}
    assert rounds == depth_of(memory_store) + 2 <= 5


def test_first_record_across_logs_and_of_a_pin_comes_as_soon(long_log: MemoryStore) -> None:
    PinStore(long_log, "a").create("audit", reason="a test")

    def across(store: ObjectStore, runtime: Runtime) -> int:
        return next(records_across(store, "a", runtime=runtime)).offset

    def pinned(store: ObjectStore, runtime: Runtime) -> int:
        return next(open_pinned(store, "a", "audit", runtime=runtime).records()).offset

    # Opening reads the manifest, and the read checks that it is still the newest; the pin is one more document.
    assert round_trips(long_log, across) == (1, 5)
    assert round_trips(long_log, pinned) == (1, 5)


def test_first_record_takes_few_requests_and_a_full_read_no_more_than_before(long_log: MemoryStore) -> None:
    store = CountingStore(long_log)
    reader = LogReader.open(store, "a", options=ReaderOptions(prefetch_fragments=2, prefetch_snapshots=4))
    every = {pointer.path for snapshot in reader.manifest().snapshots for pointer in opened(reader, snapshot)}
    store.requests.clear()
    reader = LogReader.open(store, "a", options=reader._options)
    records = reader.records()

    assert next(records).offset == 1
    # The manifest twice, two snapshots on the way down and one ahead, three fragments.
    assert store.requests["get"] == 2
    assert store.requests["read"] <= 2 + 1 + 3
    assert [record.offset for record in records] == list(range(2, SIZE + 1))
    assert store.requests["read"] == len(every) + SIZE


def opened(reader: LogReader, snapshot: object) -> Iterator[object]:
    yield snapshot
    for pointer in reader.load_snapshot(snapshot).pointers:
        if pointer.depth:
            yield from opened(reader, pointer)


@pytest.mark.parametrize("limits", [Limits(records=5), Limits(fragments=5), Limits(offset=6), Limits(num_bytes=1)])
def test_nothing_is_loaded_ahead_beyond_the_limits(long_log: MemoryStore, limits: Limits) -> None:
    asked: list[str] = []
    store = FaultyStore(long_log, before=lambda _kind, path: asked.append(path))
    reader = LogReader.open(store, "a", options=ReaderOptions(prefetch_snapshots=16))

    found = list(reader.records(None, limits))

    # Two leaves under one node hold eight records.
    leaves = -(-len(found) // TREE.fragments_per_snapshot)
    assert sum("snapshot/" in path for path in asked) == leaves + 1
    assert sum("log/" in path for path in asked) == len(found)


def test_snapshots_are_loaded_concurrently_once_the_read_is_under_way(memory_store: MemoryStore) -> None:
    Grower(memory_store, tree=TREE, real=False).grow(500)

    def scan(ahead: int) -> Callable[[ObjectStore, Runtime], int]:
        def work(store: ObjectStore, runtime: Runtime) -> int:
            return len(LogReader(store, "a", options=ReaderOptions(prefetch_snapshots=ahead), runtime=runtime).scan())

        return work

    counted, one_by_one = round_trips(memory_store, scan(0))
    same, map_ahead = round_trips(memory_store, scan(8))

    assert counted == same == 500
    assert map_ahead < one_by_one / 2.5


# ---------------------------------------------------------------------- memory


@pytest.mark.slow
def test_memory_of_a_read_does_not_grow_with_the_log(memory_store: MemoryStore) -> None:
    grower, peaks = (
        Grower(memory_store, tree=replace(TREE, snapshots_per_roll=4, snapshot_pointers_max=8), real=False),
        [],
    )

    for size in (500, 4000):
        grower.grow(size - (peaks != []) * 500)
        reader = LogReader.open(memory_store, "a", options=ReaderOptions(snapshots_loaded_max=4))
        manifest = reader.manifest()
        tracemalloc.start()
        assert sum(1 for _ in reader.pointers(manifest=manifest)) == size
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    # The manifest itself is in memory: 32 fragments per pointer. One pointer per fragment would take 8 times as much.
    assert peaks[1] < 2 * peaks[0]


# ---------------------------------------------------------------------- concurrent maintenance


LAZY = ReaderOptions(prefetch_fragments=1, prefetch_snapshots=1, snapshots_loaded_max=0)
EAGER = ReaderOptions(prefetch_fragments=3, prefetch_snapshots=8, snapshots_loaded_max=64)


def repack(store: MemoryStore) -> None:
    """Replace every snapshot by its fragments' pointers, and delete the snapshots."""
    manifests = ManifestStore(log_store(store, "a"), shared_runtime())
    base, reader = manifests.load(), LogReader.open(store, "a")
    snapshots = [pointer for top in base.manifest.snapshots for pointer in opened(reader, top)]
    fragments = tuple(reader.scan())
    assert isinstance(manifests.install(replace(base.manifest, snapshots=(), fragments=fragments), base), Installed)
    for pointer in snapshots:
        life_store(store, "a").delete(pointer.path)


@pytest.mark.slow
@pytest.mark.parametrize("options", [LAZY, EAGER], ids=["lazy", "eager"])
@pytest.mark.parametrize("after", [0, 1, 3, 4, 5, 50, 93])
def test_read_continues_from_where_it_was_when_its_snapshots_are_replaced(
    long_log: MemoryStore, options: ReaderOptions, after: int
) -> None:
    records = LogReader.open(long_log, "a", options=options).records()
    found = [record.offset for record in islice(records, after)]

    repack(long_log)
    found += [record.offset for record in records]

    assert found == list(range(1, SIZE + 1))


@pytest.mark.slow
@pytest.mark.parametrize("look", range(1, 40, 3))
def test_read_survives_snapshots_that_are_replaced_at_any_of_its_requests(long_log: MemoryStore, look: int) -> None:
    requests, store = count(1), FaultyStore(long_log)

    def move_on(_kind: str, _path: str) -> None:
        if next(requests) == look:
            repack(long_log)

    store.before = move_on
    reader = LogReader.open(store, "a", options=EAGER)

    assert [record.offset for record in reader.records(3, Limits(offset=90))] == list(range(3, 90))
    assert [pointer.start.offset for pointer in reader.scan(3, Limits(offset=90))] == list(range(3, 90))


def test_read_of_records_collected_meanwhile_raises_after_those_it_had(
    long_log: MemoryStore,
) -> None:
    records = LogReader.open(long_log, "a", options=LAZY).records()
    found = [record.offset for record in islice(records, 10)]

    collect_below(long_log, 80)
    with pytest.raises(GarbageCollectedError, match="from 80, found"):
        found += [record.offset for record in records]

    assert found == list(range(1, len(found) + 1))
    assert 10 <= len(found) < 80


def collect_below(store: ObjectStore, offset: int, log: str = "a") -> None:
    """Advance a log's first record to ``offset`` and delete everything below."""
    collector = Collector(store, log, options=NOW)
    path = collector.announce(collector.plan(offset))
    collector.prune(path)
    Deleter(store, log, options=NOW).delete(path)


def collected_at_the_first_snapshot(store: MemoryStore) -> FaultyStore:
    """A store whose log is collected when a holder of its manifest asks for more."""
    slow = FaultyStore(store)

    def meanwhile(kind: str, _path: str) -> None:
        if kind == "read":
            slow.before = lambda _kind, _path: None
            collect_below(store, 80)

    slow.before = meanwhile
    return slow


# The starts that name the log's first record.
STARTS: dict[str, Callable[[Manifest], ReadStart]] = {
    "none": lambda _: None,
    "offset": lambda manifest: manifest.first.position.offset,
    "time zero": lambda _: AtTime(0),
    "first time": lambda manifest: AtTime(manifest.pointers[0].start.timestamp_us),
}


@pytest.mark.parametrize("start", STARTS)
def test_read_of_a_manifest_whose_beginning_was_collected_never_begins_later(long_log: MemoryStore, start: str) -> None:
    """Regression: a start without an offset was resolved again, so the read began at the log's new first record."""
    in_hand = LogReader.open(long_log, "a").manifest()
    collect_below(long_log, 80)
    reader, begins = LogReader.open(long_log, "a"), STARTS[start](in_hand)

    for read in (reader.records, reader.batches, reader.fragments, reader.scan):
        with pytest.raises(GarbageCollectedError, match="from 80, found 1"):
            list(read(begins, manifest=in_hand))


@pytest.mark.parametrize("start", STARTS)
def test_read_whose_beginning_is_collected_before_its_first_record_is_an_error(
    long_log: MemoryStore, start: str
) -> None:
    begins = STARTS[start](LogReader.open(long_log, "a").manifest())

    for read in (
        lambda store: LogReader.open(store, "a").records(begins),
        lambda store: LogReader.open(store, "a").follow(begins),
        lambda store: records_across(store, "a", begins),
        lambda store: follow_across(store, "a", begins),
    ):
        fresh = MemoryStore(shared_runtime())
        for meta in long_log.list_objects(""):
            fresh.create(meta.path, long_log.read(meta.path) or b"")
        with pytest.raises(GarbageCollectedError, match="from 80, found 1"):
            next(read(collected_at_the_first_snapshot(fresh)))


@pytest.mark.parametrize("start", [None, 1, AtTime(0)], ids=str)
@pytest.mark.parametrize("across", [False, True], ids=["one log", "across logs"])
def test_follower_of_an_empty_log_misses_no_records_collected_between_two_polls(
    memory_store: MemoryStore, start: ReadStart, *, across: bool
) -> None:
    """Regression: a follower without a record yet began at the log's new first record."""
    LogWriter.create(memory_store, "a")
    store, looks, options = FaultyStore(memory_store), count(1), ReaderOptions(poll_s_min=0, poll_s_max=0)

    def between(kind: str, _path: str) -> None:
        # Opening reads the manifest twice at most, and following at least once before this.
        if kind == "get" and next(looks) == 4:
            with LogWriter.open(memory_store, "a", options=WriterOptions(snapshots=TREE)) as writer:
                for number in range(20):
                    writer.append(b"%d" % number)
            collect_below(memory_store, 15)

    store.before = between
    following = (
        follow_across(store, "a", start, idle_s=30, options=options)
        if across
        else LogReader.open(store, "a", options=options).follow(start, idle_s=30)
    )

    with pytest.raises(GarbageCollectedError, match="from 15, found 1"):
        next(following)


@pytest.mark.parametrize("start", [None, AtTime(0)], ids=str)
def test_follower_that_waits_for_a_time_or_a_record_misses_none_of_a_successor(
    memory_store: MemoryStore, start: ReadStart
) -> None:
    LogWriter.create(memory_store, "a")
    store, looks, options = FaultyStore(memory_store), count(1), ReaderOptions(poll_s_min=0, poll_s_max=0)

    def between(kind: str, path: str) -> None:
        if kind == "get" and path.startswith("a/") and next(looks) == 4:
            migrate(memory_store, "a", "b", reason="full")
            with LogWriter.open(memory_store, "b") as writer:
                for number in range(20):
                    writer.append(b"%d" % number)
            collect_below(memory_store, 15, "b")

    store.before = between

    with pytest.raises(GarbageCollectedError, match="from 15, found 1"):
        next(follow_across(store, "a", start, idle_s=30, options=options))


@pytest.mark.slow
def test_read_from_a_time_continues_where_everything_collected_is_older(long_log: MemoryStore) -> None:
    reader = LogReader.open(long_log, "a")
    in_hand = reader.manifest()
    wanted = next(reader.records(50))
    [holder] = [each for each in in_hand.pointers if each.start.offset <= 50 < each.limit.offset]
    assert holder.start.offset < 40

    collect_below(long_log, 49)

    found = [record.offset for record in reader.records(AtTime(wanted.timestamp_us), manifest=in_hand)]
    assert found == list(range(50, SIZE + 1))


@pytest.mark.parametrize("options", [LAZY, EAGER], ids=["lazy", "eager"])
@pytest.mark.parametrize("spoil", ["delete", "damage"])
def test_lost_snapshot_is_an_error_after_all_records_before_it(
    long_log: MemoryStore, options: ReaderOptions, spoil: str
) -> None:
    reader = LogReader.open(long_log, "a")
    leaves = [each for top in reader.manifest().snapshots for each in opened(reader, top) if each.depth == 1]
    victim, found = leaves[12], []
    data = life_store(long_log, "a").read(victim.path)
    life_store(long_log, "a").delete(victim.path)
    if spoil == "damage":
        life_store(long_log, "a").create(victim.path, (data or b"")[:-1])

    with pytest.raises(CorruptError, match="SNAPSHOT"):
        for record in LogReader.open(long_log, "a", options=options).records():
            found.append(record.offset)

    assert found == list(range(1, victim.start.offset))


def test_failed_load_ahead_is_tried_again_when_its_turn_comes(long_log: MemoryStore) -> None:
    store = FaultyStore(long_log)
    records = LogReader.open(store, "a", options=LAZY).records()
    found = [next(records).offset]

    store.fail("read", "snapshot/", "unavailable", times=1)
    found += [record.offset for record in records]

    assert found == list(range(1, SIZE + 1))
    assert store.fired["unavailable"] == 1


# ---------------------------------------------------------------------- a loaded manifest


@pytest.mark.slow
def test_read_of_a_loaded_manifest_is_of_its_moment_and_says_whether_it_is_current(
    long_log: MemoryStore,
) -> None:
    store = CountingStore(long_log)
    reader = LogReader.open(store, "a")
    in_hand = reader.manifest()
    store.requests.clear()

    assert reader.is_current(in_hand)
    assert store.requests == {"get": 1}
    store.requests.clear()
    assert len(reader.scan(manifest=in_hand)) == SIZE
    assert store.requests["get"] == 0

    with LogWriter.open(long_log, "a") as writer:
        writer.append(b"later")
    repack(long_log)
    assert not reader.is_current(in_hand)
    assert held(reader, in_hand) == list(range(1, SIZE + 1))
    assert held(reader, reader.manifest()) == list(range(1, SIZE + 2))
    assert held(reader, in_hand, 99) == [99, 100]


def held(reader: LogReader, manifest: Manifest, start: int | None = None) -> list[int]:
    found = [record.offset for record in reader.records(start, manifest=manifest)]
    assert found == [pointer.start.offset for pointer in reader.scan(start, manifest=manifest)]
    assert len(found) == sum(len(batch) for batch in reader.batches(start, manifest=manifest))
    return found


def test_manifest_of_another_log_is_refused(long_log: MemoryStore) -> None:
    LogWriter.create(long_log, "b")
    other = LogReader.open(long_log, "b").manifest()

    with pytest.raises(InvalidRequestError, match="expected a manifest of log"):
        LogReader.open(long_log, "a").scan(manifest=other)
