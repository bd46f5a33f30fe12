"""Random keyed logs, compacted and collected: every scan, count and list of keys equals brute force, at every step."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compacted_logs import append_fragments, compact, delete_objects, fragments_of, write_log
from tests.effort import some
from tests.stores import CountingStore, FaultyStore, damage, life_store
from tests.views.keyed_queries import KEYS, LOG, OPTIONS, check_queries, open_keyed, records_of
from tests.world import NOW, QUICK, SMALL, ClockStore, Later
from wal3_core import (
    Cleanup,
    CursorStore,
    Excluded,
    Included,
    KeyCompactor,
    KeyCompactorOptions,
    KeyedLog,
    KeyedOptions,
    LogPosition,
    LogReader,
    MemoryStore,
    Policy,
    Record,
)
from wal3_core.errors import CorruptError, GarbageCollectedError, InvalidRequestError
from wal3_core.format.parquet import key_groups
from wal3_core.format.snapshot import Pointer
from wal3_core.log.collect.collector import collect
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.keyed import key_count, key_reader, reads

# Larger than what is read whole, also when it is compressed.
LARGE = random.Random(7).randbytes(70_000)
ROWS = st.tuples(st.just(1), st.sampled_from([*KEYS, None]), st.sampled_from([b"", b"x", b"y" * 50]))
FRAGMENTS = st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=12)
OFFSETS = st.integers(0, 40)


@contextlib.contextmanager
def small_groups() -> Iterator[None]:
    """Arrange by key in row groups of some records, and read no fragment whole that is arranged."""
    with (
        mock.patch.object(key_groups, "GROUP_BYTES", 100),
        mock.patch.object(key_reader, "WHOLE_BYTES_MAX", 0),
        mock.patch.object(key_count, "WHOLE_BYTES_MAX", 0),
    ):
        yield


def random_drop(store: ObjectStore, chosen: Sequence[int], groups: int, *, arrange: bool = False) -> list[Pointer]:
    """Drop records, but not all of a fragment, and let fragments of several stand for each of some groups."""
    drop = set()
    fragments = fragments_of(store, LOG)
    for pointer, rows in zip(fragments, _rows_of(store), strict=True):
        some = [offset for offset in rows if offset in chosen]
        drop.update(some[: len(rows) - 1])
        assert pointer.num_records == len(rows)
    pairs = [(at, at + 2) for at in range(0, len(fragments) - 1, 2)][:groups]
    return compact(store, LOG, drop, pairs, arrange=arrange)


def _rows_of(store: ObjectStore) -> list[list[int]]:
    reader = LogReader.open(store, LOG)
    return [[record.offset for record in reader.fetch(pointer).records()] for pointer in reader.scan()]


@pytest.mark.slow
@pytest.mark.parametrize("arrange", [False, True])
@settings(max_examples=some(25))
@given(
    fragments=FRAGMENTS,
    more=FRAGMENTS,
    chosen=st.lists(OFFSETS, max_size=20),
    groups=st.integers(0, 3),
    cutoff=OFFSETS,
    bounds=st.tuples(OFFSETS, OFFSETS),
    budget=st.integers(0, 12),
)
def test_every_query_equals_brute_force_around_compaction_and_collection(  # noqa: PLR0913, PLR0917 - drawn
    fragments: list[list[tuple[int, bytes | None, bytes | None]]],
    more: list[list[tuple[int, bytes | None, bytes | None]]],
    chosen: list[int],
    groups: int,
    cutoff: int,
    bounds: tuple[int, int],
    budget: int,
    arrange: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    with small_groups() if arrange else contextlib.nullcontext():
        check_every_step(fragments, more, chosen, groups, cutoff, bounds, budget, arrange=arrange)


def check_every_step(  # noqa: PLR0913, PLR0917 - drawn
    fragments: list[list[tuple[int, bytes | None, bytes | None]]],
    more: list[list[tuple[int, bytes | None, bytes | None]]],
    chosen: list[int],
    groups: int,
    cutoff: int,
    bounds: tuple[int, int],
    budget: int,
    *,
    arrange: bool,
) -> None:
    store = MemoryStore(shared_runtime())
    write_log(store, LOG, fragments)
    kept = open_keyed(store)

    def check() -> None:
        held = records_of(store)
        manifest = LogReader.open(store, LOG).manifest()
        first, end = manifest.first.position.offset, manifest.next.position.offset
        start = min(max(bounds[0], first), end)
        for log in (open_keyed(store), kept):
            check_queries(log, held, (start, bounds[1]), budget=budget + 1)

    check()
    replaced = random_drop(store, chosen, groups, arrange=arrange)
    check()
    append_fragments(store, LOG, more)
    check()
    delete_objects(store, LOG, replaced)
    check()
    limit = LogReader.open(store, LOG).manifest().next.position.offset
    CursorStore(store, LOG).create("c", LogPosition(min(max(cutoff, 1), limit), 0))
    collect(store, LOG, options=NOW)
    check()


@pytest.mark.slow
@settings(max_examples=15)
@given(
    turns=st.lists(FRAGMENTS, min_size=1, max_size=3),
    bounds=st.tuples(OFFSETS, OFFSETS),
    cutoff=OFFSETS,
    budget=st.integers(0, 12),
)
def test_every_query_equals_brute_force_while_a_log_that_keeps_all_is_arranged(
    turns: list[list[list[tuple[int, bytes | None, bytes | None]]]],
    bounds: tuple[int, int],
    cutoff: int,
    budget: int,
) -> None:
    store = ClockStore(MemoryStore(shared_runtime()))
    with small_groups():
        write_log(store, LOG, [[(1, b"a", b"first")]])
        PolicyStore(store, LOG).change(lambda _: Policy(arrange_by_key=True))
        kept = open_keyed(store)

        def check() -> None:
            held, manifest = records_of(store), LogReader.open(store, LOG).manifest()
            first, end = manifest.first.position.offset, manifest.next.position.offset
            start = min(max(bounds[0], first), end)
            for log in (open_keyed(store), kept):
                check_queries(log, held, (start, bounds[1]), budget=budget + 1)

        compactor = KeyCompactor(store, LOG, options=KeyCompactorOptions(snapshots=SMALL, retry=QUICK))
        for turn in turns:
            append_fragments(store, LOG, turn)
            check()
            held = records_of(store)
            token = compactor.merge(force=True).token
            check()
            assert token is not None
            compactor.install(token)
            assert records_of(store) == held
            check()
        limit = LogReader.open(store, LOG).manifest().next.position.offset
        CursorStore(store, LOG).create("c", LogPosition(min(max(cutoff, 1), limit), 0))
        collect(store, LOG, options=NOW)
        check()


@pytest.mark.slow
def test_counts_stay_exact_between_the_steps_of_a_pass_and_its_deletion(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    with KeyedLog.open_or_create(store, LOG, options=OPTIONS) as log:
        for number in range(20):
            log.append_batch([(key, b"%d" % number) for key in KEYS[number % 3 :]])
        PolicyStore(store, LOG).change(lambda _: Policy(cleanup=Cleanup.COMPACT))
        compactor = KeyCompactor(store, LOG, options=KeyCompactorOptions(snapshots=SMALL, retry=QUICK))
        scan = log.scan(b"a\0")
        first = next(scan)
        whole = [record for record in records_of(store) if record.key == b"a\0"]

        check_queries(log, records_of(store), (1, 1000))
        merged = compactor.merge(force=True)
        check_queries(log, records_of(store), (1, 1000))
        assert merged.token is not None
        compactor.install(merged.token)

        # What it began to read is there for an interval.
        assert [first, *scan] == whole
        assert log.count(b"a\0") == 1
        check_queries(log, records_of(store), (1, 1000))
        collect(store, LOG, options=NOW)
        check_queries(log, records_of(store), (1, 1000))
        log.append(b"a", b"new")
        check_queries(log, records_of(store), (1, 1000))


def test_scan_whose_records_were_compacted_away_raises_and_leaves_none_out(
    memory_store: MemoryStore,
) -> None:
    records = write_log(memory_store, LOG, [[(1, b"a", LARGE)] * 2 for _ in range(6)])
    scan = open_keyed(memory_store).scan(b"a")
    assert next(scan) == records[0]

    replaced = compact(memory_store, LOG, drop={9, 11})
    delete_objects(memory_store, LOG, replaced)

    with pytest.raises(GarbageCollectedError, match="compacted away"):
        list(scan)


@pytest.mark.parametrize("request_number", range(1, 14, 2))
def test_count_during_which_records_are_compacted_away_is_that_of_one_moment(
    memory_store: MemoryStore, request_number: int
) -> None:
    write_log(memory_store, LOG, [[(1, b"a", LARGE)] * 2 for _ in range(5)])
    store = FaultyStore(memory_store)
    log = open_keyed(store)

    def compacted() -> None:
        delete_objects(memory_store, LOG, compact(memory_store, LOG, drop={1, 3, 5, 7, 9}))

    later = Later(store, request_number, compacted)

    assert log.count(b"a") in (10, 5)

    assert later.happened
    assert log.count(b"a") == 5


def moved_behind_the_end(store: MemoryStore) -> None:
    """Give each key a newer record, and compact the older ones away: a fragment without any of ``a`` is left."""
    append_fragments(store, LOG, [[(1, key, b"newer")] for key in (b"a", b"b")])
    delete_objects(store, LOG, compact(store, LOG, drop={1, 2, 3}, groups=[(0, 4)]))


@pytest.mark.parametrize("request_number", range(1, 10, 2))
@pytest.mark.parametrize("query", ["count", "keys"])
def test_key_compacted_away_for_a_newer_record_is_counted_and_listed_throughout(
    memory_store: MemoryStore, query: str, request_number: int
) -> None:
    write_log(memory_store, LOG, [[(1, key, LARGE)] for key in (b"a", b"b", b"a", b"b")])
    store = FaultyStore(memory_store)
    log = open_keyed(store)
    later = Later(store, request_number, lambda: moved_behind_the_end(memory_store))

    if query == "count":
        assert log.count(b"a") in (2, 1)
    else:
        assert log.keys() == [b"a", b"b"]

    assert later.happened


def test_scan_of_a_key_with_nothing_left_in_its_range_raises_and_does_not_end(
    memory_store: MemoryStore,
) -> None:
    write_log(memory_store, LOG, [[(1, key, LARGE)] for key in (b"a", b"b", b"a", b"b")])
    scan = open_keyed(memory_store).scan(b"a")
    moved_behind_the_end(memory_store)

    with pytest.raises(GarbageCollectedError, match="compacted away"):
        list(scan)

    assert scan.next_offset == 1


def arranged_log(store: ObjectStore, *, keys: int = 100, records: int = 4000) -> list[Record]:
    """Make a log of one fragment that is arranged by key, of some megabytes; return its records."""
    rng = random.Random(11)
    rows = [(1, b"key %03d" % rng.randrange(keys), rng.randbytes(1000)) for _ in range(records)]
    write_log(store, LOG, [rows[at : at + 500] for at in range(0, len(rows), 500)])
    compact(store, LOG, groups=[(0, len(fragments_of(store, LOG)))], arrange=True)
    return records_of(store)


@pytest.mark.slow
def test_key_of_an_arranged_fragment_costs_its_row_groups_and_not_the_fragment(memory_store: MemoryStore) -> None:
    records = arranged_log(memory_store)
    (pointer,) = fragments_of(memory_store, LOG)
    assert pointer.num_bytes > 3_900_000
    counting, requests = CountingStore(memory_store), list[str]()
    store = FaultyStore(counting, before=lambda _kind, path: requests.append(path) if "FragmentSeqNo" in path else None)
    log = open_keyed(store)
    of = {key: [each for each in records if each.key == key] for key in (b"key 007", b"key 033", b"key 034")}

    def cost(query: Callable[[], object]) -> tuple[int, int]:
        """Count requests of the fragment, and bytes."""
        requests.clear()
        before = counting.bytes_read
        query()
        return len(requests), counting.bytes_read - before

    # Of some 40 kB a key: the file's end, then a group or two; and snapshots, of a kilobyte.
    number, num_bytes = cost(lambda: check_equal(log.scan(b"key 007"), of[b"key 007"]))
    assert (number, num_bytes < 4 * 2**16 + 2**13) == (2, True)
    # Where the groups lie is known by now, and what was read is held.
    later = [each for each in of[b"key 007"] if each.offset >= 2000]
    assert cost(lambda: check_equal(log.scan(b"key 007", 2000), later)) == (0, 0)
    number, num_bytes = cost(lambda: check_equal(log.scan(b"key 033"), of[b"key 033"]))
    assert (number, num_bytes < 3 * 2**16) == (1, True)
    # Neighbours are one request.
    some = [each for each in records if each.key is not None and each.key.startswith(b"key 05")]
    number, num_bytes = cost(lambda: check_equal(log.scan_prefix(b"key 05"), some))
    assert (number, 300_000 < num_bytes < 700_000) == (1, True)
    assert cost(lambda: log.tail(b"key 033")) == (0, 0)
    assert cost(lambda: log.count(b"key 0333"))[0] <= 1
    assert log.count(b"a key before all others") == 0
    # All of it is read as a whole.
    assert cost(log.keys) == (1, pointer.num_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        KeyedOptions(keys_cached_bytes_max=0),
        KeyedOptions(bodies_cached_bytes_max=0),
        KeyedOptions(keys_cached_bytes_max=0, bodies_cached_bytes_max=0),
    ],
)
def test_arranged_fragment_is_read_by_key_though_nothing_is_held(
    memory_store: MemoryStore, options: KeyedOptions
) -> None:
    with small_groups():
        records = write_log(
            memory_store, LOG, [[(1, key, b"%d" % at) for at in range(5) for key in KEYS] for _ in range(3)]
        )
        compact(memory_store, LOG, groups=[(0, 3)], arrange=True)
        for _ in range(2):
            log = open_keyed(memory_store, options)
            for key in KEYS:
                of = [record for record in records if record.key == key]
                assert list(log.scan(key)) == of
                assert (log.count(key), log.tail(key)) == (len(of), of[-1].offset)
            assert log.keys() == KEYS


@pytest.mark.slow
def test_damage_in_an_arranged_fragment_is_an_error_for_keys_of_its_row_groups(
    memory_store: MemoryStore,
) -> None:
    records = arranged_log(memory_store, records=400)
    (pointer,) = fragments_of(memory_store, LOG)
    options = KeyedOptions(bodies_cached_bytes_max=0, keys_cached_bytes_max=0)
    damage(life_store(memory_store, LOG), pointer.path, pointer.num_bytes // 2)
    read, refused = 0, 0
    for number in range(100):
        key = b"key %03d" % number
        try:
            assert list(open_keyed(memory_store, options).scan(key)) == [each for each in records if each.key == key]
            read += 1
        except CorruptError:
            refused += 1

    assert 0 < refused < read


@pytest.mark.slow
def test_footer_that_was_damaged_in_transit_leaves_no_row_group_unreadable(memory_store: MemoryStore) -> None:
    """What it says is held by all readers of the process, and only a part of it is used each time."""
    with small_groups():
        records = write_log(memory_store, LOG, [[(1, b"%d" % number, b"x" * 90) for number in range(4)]])
        compact(memory_store, LOG, groups=[(0, 1)], arrange=True)
        (pointer,) = fragments_of(memory_store, LOG)
        life = life_store(memory_store, LOG)
        length = int.from_bytes(life.read(pointer.path, start=pointer.num_bytes - 8, length=4) or b"", "little")
        read = 0
        for place in range(pointer.num_bytes - 8 - length, pointer.num_bytes - 8, 11):
            with mock.patch.object(reads, "_known", {}):
                log = open_keyed(memory_store)
            damage(life, pointer.path, place)
            with contextlib.suppress(CorruptError):
                read += len(list(log.scan(b"0")))
            # The same bit again.
            damage(life, pointer.path, place)
            assert [list(log.scan(b"%d" % number)) for number in range(4)] == [[record] for record in records]
    assert read


def check_equal(found: Iterable[Record], expected: list[Record]) -> None:
    assert expected
    assert list(found) == expected


@pytest.mark.parametrize("reads_before", [0, 1])
def test_damaged_fragment_is_an_error_also_when_it_was_read_before(
    memory_store: MemoryStore, reads_before: int
) -> None:
    write_log(memory_store, LOG, [[(1, b"a", LARGE)] * 3])
    log = open_keyed(memory_store, KeyedOptions(bodies_cached_bytes_max=0))
    for _ in range(reads_before):
        assert len(list(log.scan(b"a"))) == 3
    pointer = fragments_of(memory_store, LOG)[0]
    for place in range(1000, pointer.num_bytes, 20_000):
        damage(life_store(memory_store, LOG), pointer.path, place)

        with pytest.raises(CorruptError):
            list(log.scan(b"a"))

        # The same bit again.
        damage(life_store(memory_store, LOG), pointer.path, place)
    assert len(list(log.scan(b"a"))) == 3


def collected_log(store: MemoryStore) -> KeyedLog:
    """Open a log that begins at offset 4 and ends before 7."""
    write_log(store, LOG, [[(1, b"a", b"x")] for _ in range(6)])
    CursorStore(store, LOG).create("c", LogPosition(4, 0))
    log = open_keyed(store)
    assert log.count(b"a") == 6
    collect(store, LOG, options=NOW)
    return log


BOUNDS = [None, 0, 1, 3, 4, 5, 7, 8, 1000, 2**64 - 1]
BOUNDS += [kind(value) for kind in (Included, Excluded) for value in (0, 3, 4, 6, 7, 1000, 2**64 - 1)]


@pytest.mark.parametrize("start", BOUNDS)
def test_range_is_cut_to_what_the_log_holds_wherever_it_starts_and_ends(
    memory_store: MemoryStore, start: int | Included[int] | Excluded[int] | None
) -> None:
    log = collected_log(memory_store)
    low = range(0 if start is None else _value(start) + isinstance(start, Excluded), 2**65)

    for limit in BOUNDS:
        high = 2**65 if limit is None else _value(limit) + isinstance(limit, Included)
        expected = [offset for offset in (4, 5, 6) if offset in low and offset < high]
        scan = log.scan(b"a", start, limit)
        assert [record.offset for record in scan] == expected
        assert scan.start == max(low[0], 4)
        assert scan.next_offset == max(scan.start, min(high, 7))
        assert [record.offset for record in log.scan_prefix(b"", start, limit)] == expected
        assert [record.offset for record in log.scan_keys(b"a", None, start, limit)] == expected
        assert log.count(b"a", start, limit) == log.count(b"a", start, limit, approximate=True) == len(expected)
        assert log.keys(b"", start, limit) == [b"a"] * bool(expected)
        for requests_max in (0, 9):
            bounds = log.count_bounds(b"a", start, limit, requests_max=requests_max)
            assert bounds.lo <= len(expected) <= bounds.hi


def _value(bound: int | Included[int] | Excluded[int]) -> int:
    return bound if isinstance(bound, int) else bound.value


@pytest.mark.parametrize("bound", [-1, -(10**30), 2**64, 10**30, Included(-1), Excluded(2**64)])
def test_bound_that_is_no_offset_is_refused_by_its_name(
    memory_store: MemoryStore, bound: int | Included[int] | Excluded[int]
) -> None:
    log = collected_log(memory_store)
    queries = (log.scan, log.scan_prefix, log.keys, log.count, log.count_bounds, partial(log.scan_keys, None))

    for query in queries:
        with pytest.raises(InvalidRequestError, match="^start: expected an offset from 0 to 18446744073709551615, fou"):
            query(b"a", bound)
        with pytest.raises(InvalidRequestError, match="^limit: expected an offset from 0 to 18446744073709551615, fou"):
            query(b"a", None, bound)


def test_follower_and_consumer_do_not_begin_below_the_first_offset(memory_store: MemoryStore) -> None:
    log = collected_log(memory_store)

    with pytest.raises(GarbageCollectedError, match="from 4, found 3"):
        next(log.follow(b"a", start=3, idle_s=0))
    CursorStore(memory_store, LOG).delete("c")
    consumer = log.consumer("k")
    CursorStore(memory_store, LOG).create("far", LogPosition(6, 0))
    CursorStore(memory_store, LOG).delete("k")
    collect(memory_store, LOG, options=NOW)
    for query in (consumer.lags, consumer.save, partial(consumer.lag, b"a")):
        with pytest.raises(GarbageCollectedError, match="from 6, found 4"):
            query()
