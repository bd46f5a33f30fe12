"""A keyed log: appends by key, scans that continue, followers, and what all this costs."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.stores import CountingStore, FaultyStore, life_store
from tests.views.keyed_queries import KEYS, LOG, OPTIONS, TREE, restored_under
from tests.world import SMALL
from wal3_core import (
    Cleanup,
    CursorStore,
    KeyCompactor,
    KeyCompactorOptions,
    KeyedLog,
    KeyedOptions,
    LogPosition,
    LogReader,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    Message,
    Policy,
    PolicyStore,
    ReaderOptions,
    destroy,
)
from wal3_core.errors import ClosedError, InvalidRequestError
from wal3_core.log.read.key_columns import KeyColumns, build_key_rollup
from wal3_core.runtime import ThreadRuntime, shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.keyed import key_reader
from wal3_core.views.keyed.key_reader import NO_ROLLUP, KeyReader

WAIT_S = 30
# Larger than what is read whole, also when it is compressed.
LARGE = random.Random(7).randbytes(70_000)


@pytest.mark.repeat_on("s3")
def test_keys_that_begin_alike_never_leak_into_each_other(store: ObjectStore) -> None:
    with KeyedLog.open_or_create(store, LOG, options=OPTIONS) as log:
        log.append_batch([(key, b"first of " + key) for key in KEYS])
        for key in KEYS:
            log.append(key, b"second of " + key)

        for key in KEYS:
            assert [record.body for record in log.scan(key)] == [b"first of " + key, b"second of " + key]
            assert {record.key for record in log.scan(key)} == {key}
            assert log.count(key) == 2
        assert log.keys() == sorted(KEYS)
        assert log.keys(b"a") == [b"a", b"a\0", b"a\0\0", b"ab", b"a\xff"]
        assert list(log.scan(b"a\0\0\0")) == []


def test_append_returns_before_it_is_durable_when_asked_to(memory_store: MemoryStore) -> None:
    with KeyedLog.open_or_create(memory_store, LOG) as log:
        futures = [log.append(b"a", b"%d" % number, await_durable=False) for number in range(3)]
        batch = log.append_batch([(b"a", b"3"), (b"b", None)], await_durable=False)

        assert [future.result(WAIT_S).offset for future in futures] == [1, 2, 3]
        assert batch.result(WAIT_S).offset == 4
        assert [record.body for record in log.scan(b"b")] == [None]
    with pytest.raises(ClosedError):
        log.append(b"a", b"late")
    assert log.count(b"a") == 4


# ---------------------------------------------------------------------- continuing


@pytest.mark.parametrize("records_max", [1, 2, 3, 7])
def test_scan_in_pieces_gives_what_one_scan_gives(memory_store: MemoryStore, records_max: int) -> None:
    with KeyedLog.open_or_create(memory_store, LOG, options=OPTIONS) as log:
        for number in range(12):
            log.append_batch([(KEYS[(number + step) % 4], b"%d" % number) for step in range(3)])
        whole, pieces, start = list(log.scan_prefix(b"a")), [], 1
        while start < 37:
            piece = log.scan_prefix(b"a", start, records_max=records_max)
            given = list(piece)
            assert len(given) <= records_max
            pieces += given
            start = piece.next_offset
        assert pieces == whole


def test_scan_ends_before_the_record_that_exceeds_its_bytes_but_gives_one(memory_store: MemoryStore) -> None:
    with KeyedLog.open_or_create(memory_store, LOG) as log:
        for size in (10, 20, 500, 1):
            log.append(b"k", b"x" * size)
            log.append(b"other", b"y")

        first = log.scan(b"k", bytes_max=32)
        assert [record.offset for record in first] == [1, 3]
        assert first.next_offset == 4
        second = log.scan(b"k", first.next_offset, bytes_max=32)
        assert [record.offset for record in second] == [5]
        rest = log.scan(b"k", second.next_offset, bytes_max=32)
        assert [record.offset for record in rest] == [7]
        assert rest.next_offset == 9
        assert list(log.scan(b"k", rest.next_offset)) == []


def test_list_of_keys_in_pieces_is_the_whole_list(memory_store: MemoryStore) -> None:
    with KeyedLog.open_or_create(memory_store, LOG, options=OPTIONS) as log:
        for number in range(10):
            log.append(KEYS[number % 8], b"x")

        listed = log.keys(keys_max=3)
        while (more := log.keys(after=listed[-1], keys_max=3)) != []:
            assert len(more) <= 3
            listed += more
        assert listed == sorted(KEYS)


# ---------------------------------------------------------------------- following


def test_follower_that_is_ahead_of_a_restored_log_raises_instead_of_waiting(memory_store: MemoryStore) -> None:
    log = KeyedLog.open_or_create(memory_store, LOG, options=OPTIONS)
    log.append(b"k", b"1")
    follower = log.follow(b"k", idle_s=1)

    def gone() -> None:
        log.append(b"k", b"2")
        assert [next(follower).offset for _ in range(2)] == [1, 2]

    restored_under(memory_store, gone)

    with pytest.raises(InvalidRequestError, match="expected an offset from 1 to 2, found 3"):
        next(follower)


def test_follower_begins_where_another_process_has_just_appended(memory_store: MemoryStore) -> None:
    rarely = KeyedOptions(reader=ReaderOptions(poll_s_min=WAIT_S, poll_s_max=WAIT_S))
    log = KeyedLog.open_or_create(memory_store, LOG, options=rarely)
    assert list(log.follow(b"k", idle_s=0)) == []
    # Its own runtime, as in another process: nothing tells the follower's.
    with ThreadRuntime() as runtime, LogWriter.open(memory_store, LOG, runtime=runtime) as writer:
        position = writer.append(b"1", key=b"k")

    assert list(log.follow(b"k", start=position.offset + 1, idle_s=0)) == []


def test_follower_gets_the_records_of_its_keys_as_they_are_appended(memory_store: MemoryStore) -> None:
    with KeyedLog.open_or_create(memory_store, LOG, options=OPTIONS) as log:
        log.append_batch([(b"a", b"1"), (b"ab", b"2"), (b"b", b"3")])
        found: list[bytes | None] = []
        got = threading.Semaphore(0)

        def follow() -> None:
            for record in log.follow(prefix=b"a", idle_s=WAIT_S):
                found.append(record.body)
                got.release()
                if record.body == b"last":
                    return

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        assert got.acquire(timeout=WAIT_S)
        log.append(b"b", b"4")
        log.append(b"a\0", b"last")
        thread.join(WAIT_S)

        assert found == [b"1", b"2", b"last"]
    with pytest.raises(InvalidRequestError, match="a key or a prefix, found neither"):
        next(log.follow())


def test_new_fragment_is_read_once_for_all_followers_of_a_process(memory_store: MemoryStore) -> None:
    counting = CountingStore(memory_store)
    with KeyedLog.open_or_create(memory_store, LOG, options=OPTIONS) as log:
        log.append_batch([(b"k%d" % number, b"x") for number in range(20)])
        logs = [KeyedLog.open(counting, LOG) for _ in range(4)]
        before = counting.requests["read"]

        found = [list(each.follow(b"k%d" % number, idle_s=0)) for number in range(20) for each in logs]

        assert all(len(records) == 1 for records in found)
        assert counting.requests["read"] - before == 1


def test_follower_sees_what_its_process_appended_though_another_looked_before(
    memory_store: MemoryStore,
) -> None:
    rarely = KeyedOptions(reader=ReaderOptions(poll_s_min=60, poll_s_max=60))
    with KeyedLog.open_or_create(memory_store, LOG, options=rarely) as log:
        for number in range(5):
            log.append(b"k", b"%d" % number)
            assert len(list(log.follow(b"k", idle_s=0))) == number + 1


def test_two_readers_that_want_a_fragment_at_the_same_time_read_it_once(memory_store: MemoryStore) -> None:
    with KeyedLog.open_or_create(memory_store, LOG) as log:
        log.append(b"k", b"x")
    store = FaultyStore(memory_store)
    counting = CountingStore(store)
    logs = [KeyedLog.open(counting, LOG) for _ in range(2)]
    asked, answer = threading.Event(), threading.Event()

    def hold(_kind: str, path: str) -> None:
        if "FragmentSeqNo" in path:
            asked.set()
            assert answer.wait(WAIT_S)

    store.before = hold
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(logs[0].count, b"k")
        assert asked.wait(WAIT_S)
        second = pool.submit(logs[1].count, b"k")
        # Time to ask for it as well, if it does.
        with contextlib.suppress(TimeoutError):
            second.result(0.05)
        answer.set()

        assert (first.result(WAIT_S), second.result(WAIT_S)) == (1, 1)
    assert counting.requests["read"] == 1


# ---------------------------------------------------------------------- what it costs


def test_reader_that_verifies_reads_again_what_another_has_read_without_verifying(memory_store: MemoryStore) -> None:
    store = CountingStore(memory_store)
    careless = KeyedOptions(reader=ReaderOptions(verify=False))
    with KeyedLog.open_or_create(store, LOG, options=careless) as log:
        log.append(b"k", b"1")
        assert log.count(b"k") == len(list(log.scan(b"k"))) == 1
        before = store.requests["read"]

        assert len(list(KeyedLog.open(store, LOG).scan(b"k"))) == 1

    assert store.requests["read"] == before + 1


def test_bounds_keep_to_their_requests_and_only_narrow(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, LOG, options=TREE) as writer:
        for number in range(30):
            writer.append_many([Message(b"x", b"k%d" % (number % 5))] * (number % 3 + 1))
    exact = KeyedLog.open(memory_store, LOG).count(b"k1", 5, 50)
    for budget in range(40):
        counting = CountingStore(memory_store)
        log = KeyedLog.open(counting, LOG)
        before = counting.requests.total()
        found = log.count_bounds(b"k1", 5, 50, requests_max=budget)
        assert counting.requests.total() - before <= budget
        assert found.lo <= exact <= found.hi
        if budget == 0:
            assert found.hi == 45
    assert found.exact


class SeededRuntime(ThreadRuntime):
    """Draws the same places each time: an estimate is near only as a rule."""

    def __init__(self) -> None:
        super().__init__()
        self._dice = random.Random(1)

    def jitter(self) -> float:
        return self._dice.random()


def fragments_read(store: ObjectStore, query: Callable[[KeyedLog], int]) -> tuple[int, int]:
    """Ask a log that has nothing in memory; return the answer, and how many fragments were asked for."""
    # What an earlier log of this process has read must not help.
    gc.collect()
    faulty, paths = FaultyStore(store), set[str]()
    faulty.before = lambda _, path: paths.add(path)
    with SeededRuntime() as runtime:
        answer = query(KeyedLog.open(faulty, LOG, runtime=runtime))
    return answer, sum("FragmentSeqNo" in path for path in paths)


@pytest.mark.slow
@pytest.mark.parametrize("num_keys", [1, 7, 40, 200])
@pytest.mark.parametrize("in_turns", [True, False])
def test_estimate_is_within_twenty_percent_on_keys_that_are_evenly_spread(
    memory_store: MemoryStore, num_keys: int, *, in_turns: bool
) -> None:
    keys = [b"%d" % (number % num_keys) for number in range(12_000)]
    if not in_turns:
        random.Random(num_keys).shuffle(keys)
    with LogWriter.open_or_create(memory_store, LOG, options=TREE) as writer:
        for at in range(0, len(keys), 100):
            writer.append_many([Message(b"x", key) for key in keys[at : at + 100]])

    for key, (start, limit) in ((b"0", (1, 12_001)), (b"%d" % (num_keys - 1), (1_500, 9_000))):
        exact = keys[start - 1 : limit - 1].count(key)
        found, num_fragments = fragments_read(
            memory_store, lambda log, k=key, a=start, b=limit: log.count(k, a, b, approximate=True)
        )
        assert abs(found - exact) <= exact / 5, f"{found}, of {exact}"
        assert num_fragments <= 32
    absent, _ = fragments_read(memory_store, lambda log: log.count(b"absent", approximate=True))
    assert absent <= 12_000 / num_keys * (num_keys > 7)


@pytest.mark.slow
def test_estimate_with_key_roll_ups_reads_few_fragments_and_none_without_the_key(
    memory_store: MemoryStore,
) -> None:
    with LogWriter.open_or_create(memory_store, LOG, options=TREE) as writer:
        for number in range(80):
            rows = [Message(LARGE[:20_000], b"%d" % (key * 40 + number % 40)) for key in range(8)]
            writer.append_many(rows)
    PolicyStore(memory_store, LOG).change(lambda _: Policy(arrange_by_key=True, compacted_fragment_bytes=2**16))
    KeyCompactor(memory_store, LOG, options=KeyCompactorOptions(snapshots=SMALL)).compact(force=True)

    found, num_fragments = fragments_read(memory_store, lambda log: log.count(b"47", approximate=True))

    assert (found, num_fragments <= 2) == (2, True), num_fragments


def test_records_without_a_key_are_passed_counted_and_logged_once(
    memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with KeyedLog.open_or_create(memory_store, LOG, options=OPTIONS) as log:
        log.append(b"a", b"1")
        with LogWriter.open(memory_store, LOG) as writer:
            writer.append_many([Message(b"stray"), Message(b"3", b"a"), Message(b"stray", None)])
            writer.append(b"stray")
        log.append(b"a", b"6")
        consumer = log.consumer("c")

        assert [record.offset for record in log.scan(b"a")] == [1, 3, 6]
        assert log.num_strays == 3
        assert [record.offset for record in log.scan_prefix(b"")] == [1, 3, 6]
        assert [record.offset for record in log.follow(prefix=b"", idle_s=0)] == [1, 3, 6]
        assert (log.count(b"a"), log.tail(b"a"), log.keys(), consumer.lags()) == (3, 6, [b"a"], {b"a": 3})
        for record in consumer.follow(idle_s=0):
            consumer.finish(record)
        consumer.save()
        assert consumer.floor == 7
        log.append(b"a", b"7", expect_tail=6)
        # Another log of this process has read nothing of its own.
        assert [record.offset for record in KeyedLog.open(memory_store, LOG).scan(b"a")] == [1, 3, 6, 7]
        assert log.num_strays == 3
    lines = [record.getMessage() for record in caplog.records if record.name == "wal3.reader"]
    assert sorted(line.partition("offsets ")[2] for line in lines) == ["2, 4", "5"]


@pytest.mark.slow
def test_key_in_each_fragment_costs_a_read_of_each_and_one_in_few_their_bodies(
    memory_store: MemoryStore,
) -> None:
    with LogWriter.open_or_create(memory_store, LOG, options=TREE) as writer:
        for number in range(40):
            writer.append_many([Message(LARGE, b"often"), Message(LARGE, b"seldom" if number < 4 else b"never")])

    def reads(key: bytes, records_max: int | None = None) -> tuple[int, int]:
        # What an earlier log of this process has read must not help.
        gc.collect()
        store, paths = FaultyStore(memory_store), list[str]()
        store.before = lambda _, path: paths.append(path)
        found = [record.offset for record in KeyedLog.open(store, LOG).scan(key, records_max=records_max)]
        assert found == sorted(set(found))
        return len(found), sum("FragmentSeqNo" in path for path in paths)

    often, requests = reads(b"often")
    # The keys alone of those that it comes to first, in two requests each.
    assert (often, requests < 40 + 2 * 10) == (40, True)
    assert reads(b"often", 40) == (40, 40 + 2 * 40)
    found, requests = reads(b"seldom")
    assert (found, requests <= 2 * 40 + 8) == (4, True)


@pytest.mark.slow
def test_key_roll_ups_spare_the_fragments_without_the_key(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, LOG, options=TREE) as writer:
        for number in range(40):
            writer.append_many([Message(LARGE, b"k%d" % number)] * 2)
    PolicyStore(memory_store, LOG).change(lambda _: Policy(cleanup=Cleanup.COMPACT, compacted_fragment_bytes=2**16))
    KeyCompactor(memory_store, LOG, options=KeyCompactorOptions(snapshots=SMALL)).compact(force=True)

    def reads() -> int:
        # What an earlier log of this process has read must not help.
        gc.collect()
        counting = CountingStore(memory_store)
        assert [record.key for record in KeyedLog.open(counting, LOG).scan(b"k7")] == [b"k7"]
        return counting.requests["read"]

    with_rollups = reads()
    life = life_store(memory_store, LOG)
    rollups = [meta.path for meta in life.list_objects("keys/")]
    assert len(rollups) > 5
    for path in rollups:
        life.delete(path)

    # Without one, the missing object is asked for, and then the keys of both its fragments, in two requests each.
    assert reads() - with_rollups > 2 * len(rollups)


@pytest.mark.slow
def test_key_roll_up_that_was_missing_is_found_once_a_pass_has_written_it(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        for number in range(40):
            writer.append_many([Message(LARGE, b"k%d" % number)] * 2)
    [leaf, *_] = [each for each in LogReader.open(memory_store, LOG).manifest().snapshots if each.depth == 1]
    keys = KeyReader(memory_store, LOG, KeyedOptions(), shared_runtime())
    assert keys.rollup(leaf) is NO_ROLLUP
    snapshot = keys.stores.snapshots.load(leaf)
    built = build_key_rollup(snapshot, KeyColumns(keys.stores.objects, ReaderOptions()), runtime=shared_runtime())
    keys.stores.key_rollups.write(leaf, built)

    assert keys.rollup(leaf) is NO_ROLLUP
    monkeypatch.setattr(key_reader, "MISSING_S", 1e-6)

    assert keys.rollup(leaf) == built


def test_lag_behind_a_cursor_counts_the_key_s_records_from_there(memory_store: MemoryStore) -> None:
    with KeyedLog.open_or_create(memory_store, LOG) as log:
        for number in range(10):
            log.append(b"k%d" % (number % 2), b"x")
        CursorStore(memory_store, LOG).create("c", LogPosition(4, 0))

        assert (log.lag("c", b"k0"), log.lag("c", b"k1"), log.lag("c", b"k")) == (3, 4, 0)
        with pytest.raises(InvalidRequestError, match="expected a cursor d, found none"):
            log.lag("d", b"k0")


def test_log_that_was_destroyed_and_created_again_is_neither_read_nor_appended_to(memory_store: MemoryStore) -> None:
    log = KeyedLog.open_or_create(memory_store, LOG)
    KeyedLog.open(memory_store, LOG).append(b"k", b"old")
    assert log.count(b"k") == 1

    destroy(memory_store, LOG)
    KeyedLog.open_or_create(memory_store, LOG).append(b"k", b"new")

    for act in (lambda: log.count(b"k"), lambda: log.append(b"k", b"x"), lambda: list(log.scan(b"k"))):
        with pytest.raises(LogReplacedError):
            act()
    assert [record.body for record in KeyedLog.open(memory_store, LOG).scan(b"k")] == [b"new"]
