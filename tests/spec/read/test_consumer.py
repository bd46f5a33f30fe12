"""A consumer gives each record at least once and skips none, wherever it stops; its cursor says what is processed."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spec.consuming import (
    BY_HAND,
    ONCE,
    READER,
    SELDOM,
    FailedError,
    consumed,
    cursor_of,
    ended,
    in_thread,
    offsets,
)
from tests.spec.seals import collect as collect_to
from tests.spec.seals import fill
from tests.stores import CountingStore, FaultyStore
from tests.world import NOW
from wal3_core import (
    AtTime,
    Consumer,
    CursorConflictError,
    GarbageCollectedError,
    InvalidRequestError,
    LogNotFoundError,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    UnavailableError,
    WriterOptions,
    collect,
)
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore


def fill_many(store: ObjectStore, log: str, count: int) -> None:
    with LogWriter.open_or_create(store, log) as writer:
        writer.append_many([b"x"] * count)


# ---------------------------------------------------------------------- processed and saved


def test_restart_continues_after_the_last_processed_record(store: ObjectStore) -> None:
    fill(store, "a", b"1", b"2", b"3")

    first = consumed(store)
    again = consumed(store)
    fill(store, "a", b"4")
    later = consumed(store)

    assert (first, again, later) == ([1, 2, 3], [], [4])
    assert cursor_of(store) == 5


def test_record_is_what_a_reader_gives_and_names_its_log(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append(b"body", key=b"key")
    [expected] = LogReader.open(memory_store, "a").records()

    with Consumer(memory_store, "a", "c", options=ONCE) as consumer:
        [record] = consumer

    assert (record.offset, record.timestamp_us, record.key, record.body) == (
        expected.offset,
        expected.timestamp_us,
        expected.key,
        expected.body,
    )
    assert record.log == "a"


def test_record_in_work_is_not_saved_before_the_next_is_asked_for(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2", b"3")
    seen = []

    with Consumer(memory_store, "a", "c", options=ONCE) as consumer:
        for record in consumer:
            seen.append((record.offset, cursor_of(memory_store)))

    assert seen == [(1, 1), (2, 2), (3, 3)]
    assert cursor_of(memory_store) == 4


def test_leaving_the_block_without_an_exception_saves_the_record_in_work(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2", b"3")

    with Consumer(memory_store, "a", "c", options=SELDOM) as consumer:
        for record in consumer:
            if record.offset == 2:
                break

    assert cursor_of(memory_store) == 3


@pytest.mark.parametrize("error", [FailedError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exception_in_the_block_saves_what_was_finished_and_not_the_record_in_work(
    memory_store: MemoryStore, error: type[BaseException]
) -> None:
    fill(memory_store, "a", b"1", b"2", b"3")

    with pytest.raises(error), Consumer(memory_store, "a", "c", options=SELDOM) as consumer:
        for record in consumer:
            if record.offset == 2:
                raise error

    assert cursor_of(memory_store) == 2
    assert consumed(memory_store) == [2, 3]


def test_cursor_is_saved_after_so_many_records_or_so_many_seconds(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", *[b"x"] * 10)
    store = CountingStore(memory_store)
    by_count = replace(SELDOM, commit_records_max=4)
    by_time = replace(SELDOM, commit_s_max=0)

    with Consumer(store, "a", "c", options=by_count) as consumer:
        saved = [cursor_of(memory_store) for _ in consumer]
    assert saved == [1, 1, 1, 1, 5, 5, 5, 5, 9, 9]
    assert store.requests["replace"] == 3

    with Consumer(memory_store, "a", "d", options=by_time) as consumer:
        saved = [cursor_of(memory_store, name="d") for _ in consumer]
    assert saved == list(range(1, 11))


def test_cursor_is_saved_in_time_while_no_record_comes(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    options = replace(SELDOM, idle_s=None, commit_s_max=0.02)
    consumer = Consumer(memory_store, "a", "c", options=options)

    def consume() -> None:
        with consumer:
            list(consumer)

    thread, waiting = in_thread(consume), threading.Event()
    for _ in range(2000):
        if cursor_of(memory_store) == 2 or waiting.wait(0.01):
            break

    assert cursor_of(memory_store) == 2
    consumer.stop()
    ended(thread)


def test_by_hand_only_a_commit_saves_and_never_moves_back(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2", b"3", b"4")

    with Consumer(memory_store, "a", "c", options=BY_HAND) as consumer:
        first, second, third, _ = consumer
        assert cursor_of(memory_store) == 1
        consumer.commit(third)
        assert cursor_of(memory_store) == 4
        consumer.commit(first)
        consumer.commit(second)
        assert consumer.lag()["a"].records == 1

    assert cursor_of(memory_store) == 4
    assert consumed(memory_store, options=BY_HAND) == [4]
    assert consumed(memory_store, options=BY_HAND) == [4]


def test_commit_of_a_record_that_was_not_given_is_refused(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2")

    with Consumer(memory_store, "a", "c", options=BY_HAND) as consumer:
        first = next(consumer)
        for wrong in (replace(first, offset=2), replace(first, log="b")):
            with pytest.raises(InvalidRequestError, match="expected a record that it has given"):
                consumer.commit(wrong)

    assert cursor_of(memory_store) == 1


def test_batch_is_processed_as_a_whole(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", *[b"x"] * 7)
    options = replace(ONCE, batch_records_max=3)
    seen = []

    with pytest.raises(FailedError), Consumer(memory_store, "a", "c", options=options) as consumer:
        for batch in consumer.batches():
            seen.append(offsets(batch))
            if len(seen) == 2:
                raise FailedError

    assert seen == [[1, 2, 3], [4, 5, 6]]
    assert cursor_of(memory_store) == 4
    with Consumer(memory_store, "a", "c", options=options) as consumer:
        assert [offsets(batch) for batch in consumer.batches()] == [[4, 5, 6], [7]]
    assert cursor_of(memory_store) == 8


@pytest.mark.parametrize("batch", [1, 4, 5, 10, 12, 100])
def test_batches_are_saved_after_so_many_records(memory_store: MemoryStore, batch: int) -> None:
    """Batches below, equal to and above ``commit_records_max``: a batch in work is never saved."""
    fill_many(memory_store, "a", 60)
    options = replace(SELDOM, commit_records_max=10, batch_records_max=batch)
    expected, seen, processed, saved = [], [], 0, 0

    with Consumer(memory_store, "a", "c", options=options) as consumer:
        for records in consumer.batches():
            if processed - saved >= options.commit_records_max:
                saved = processed
            expected.append(saved + 1)
            seen.append(cursor_of(memory_store))
            processed += len(records)

    assert seen == expected
    assert processed == 60
    assert cursor_of(memory_store) == 61


def test_batches_of_several_logs_count_together(memory_store: MemoryStore) -> None:
    fill_many(memory_store, "a", 20)
    fill_many(memory_store, "b", 20)
    options = replace(SELDOM, commit_records_max=10, batch_records_max=5)
    seen = []

    with Consumer(memory_store, ["a", "b"], "c", options=options) as consumer:
        for records in consumer.batches():
            seen.append((records[0].log, cursor_of(memory_store, "a"), cursor_of(memory_store, "b")))

    assert seen[:5] == [("a", 1, 1), ("b", 1, 1), ("a", 6, 6), ("b", 6, 6), ("a", 11, 11)]
    assert [cursor_of(memory_store, log) for log in "ab"] == [21, 21]


@pytest.mark.parametrize("batch", [5, 10, 20])
def test_commit_within_a_batch_saves_at_once_and_the_rest_once_it_is_processed(
    memory_store: MemoryStore, batch: int
) -> None:
    fill_many(memory_store, "a", 60)
    options = replace(SELDOM, commit_records_max=10, batch_records_max=batch)
    limit = 1

    with Consumer(memory_store, "a", "c", options=options) as consumer:
        for records in consumer.batches():
            saved = cursor_of(memory_store)
            assert saved is not None
            assert limit - options.commit_records_max < saved <= limit
            consumer.commit(records[2])
            assert cursor_of(memory_store) == records[2].offset + 1
            limit = records[-1].offset + 1

    assert cursor_of(memory_store) == 61


@pytest.mark.parametrize("batch", [5, 10, 20])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_batch_that_fails_comes_again_whatever_was_saved(memory_store: MemoryStore, batch: int, number: int) -> None:
    fill_many(memory_store, "a", 60)
    options = replace(SELDOM, commit_records_max=10, batch_records_max=batch)

    with pytest.raises(FailedError), Consumer(memory_store, "a", "c", options=options) as consumer:
        for count, _ in enumerate(consumer.batches(), start=1):
            if count == number:
                raise FailedError

    first = batch * (number - 1) + 1
    assert cursor_of(memory_store) == first
    assert consumed(memory_store) == list(range(first, 61))


def test_consumer_is_used_inside_its_block_only(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    consumer = Consumer(memory_store, "a", "c", options=ONCE)

    with pytest.raises(InvalidRequestError, match="inside its block"):
        next(consumer)
    with consumer:
        assert offsets(consumer) == [1]
    with pytest.raises(InvalidRequestError, match="inside its block"):
        next(consumer)
    fill(memory_store, "a", b"2")
    with consumer:
        assert offsets(consumer) == [2]


# ---------------------------------------------------------------------- at least once, whatever fails


class Killed(BaseException):
    """The process is gone: nothing is saved after it."""


@pytest.mark.slow
@given(
    runs=st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["raise", "kill", "break"])), max_size=6),
    saved_every=st.integers(1, 5),
    batched=st.booleans(),
)
def test_every_record_is_processed_wherever_the_body_fails_or_the_process_is_killed(
    runs: list[tuple[int, str]], saved_every: int, *, batched: bool
) -> None:
    """The oracle: a record counts once its processing is over; those before the cursor must all be."""
    store = MemoryStore(shared_runtime())
    with LogWriter.open_or_create(store, "a", options=WriterOptions(batch_records_max=3)) as writer:
        writer.append_many([b"x"] * 3)
        writer.append_many([b"x"] * 3)
        writer.append(b"x")
    options = replace(ONCE, commit_records_max=saved_every, batch_records_max=2)
    processed: list[int] = []

    def run(limit: int, way: str) -> None:
        consumer = Consumer(store, "a", "c", options=options)
        consumer.__enter__()
        error: BaseException | None = None
        try:
            source = consumer.batches() if batched else ([record] for record in consumer)
            for number, records in enumerate(source, start=1):
                if number == limit and way == "raise":
                    raise FailedError  # noqa: TRY301 - it is the body's
                processed.extend(offsets(records))
                if number == limit and way == "kill":
                    return
                if number == limit:
                    break
        except FailedError as failure:
            error = failure
        consumer.__exit__(type(error), error, None)

    for limit, way in runs:
        run(limit, way)
        cursor = cursor_of(store)
        assert cursor is not None
        assert set(range(1, cursor)) <= set(processed)
    run(100, "break")

    assert set(processed) == set(range(1, 8))
    assert cursor_of(store) == 8


@pytest.mark.parametrize("fault", ["unknown", "applied-unknown", "late", "unavailable"])
@pytest.mark.parametrize("number", range(6))
def test_no_record_is_skipped_by_a_save_that_fails_though_the_caller_goes_on(
    memory_store: MemoryStore, fault: str, number: int
) -> None:
    fill(memory_store, "a", *[b"x"] * 5)
    store = FaultyStore(memory_store)
    processed: list[int] = []
    with Consumer(memory_store, "a", "c", options=ONCE):
        pass

    with pytest.raises((UnavailableError, CursorConflictError)), Consumer(store, "a", "c", options=ONCE) as consumer:
        while True:
            try:
                record = next(consumer)
            except StopIteration:
                break
            except (UnavailableError, CursorConflictError):
                store.heal()
                continue
            processed.append(record.offset)
            if len(processed) == number:
                store.fail("replace", "cursor/", fault, times=10)
        # Numbers that no fault belongs to must fail, too.
        raise UnavailableError

    store.arrive()
    cursor = cursor_of(memory_store)
    assert cursor is not None
    assert processed == [1, 2, 3, 4, 5]
    assert set(range(1, cursor)) <= set(processed)


def test_read_that_fails_gives_what_it_read_before_and_skips_nothing(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", *[b"x"] * 6)
    store = FaultyStore(memory_store)
    options = replace(ONCE, reader=replace(READER, prefetch_fragments=0))
    processed: list[int] = []
    failures = 0

    with Consumer(store, "a", "c", options=options) as consumer:
        store.fail("read", f"FragmentSeqNo={4:016x}", "unavailable", times=6)
        while True:
            try:
                processed.append(next(consumer).offset)
            except StopIteration:
                break
            except UnavailableError:
                failures += 1

    assert processed == [1, 2, 3, 4, 5, 6]
    assert failures >= 1
    assert cursor_of(memory_store) == 7


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("kind", ["get", "read", "replace"])
def test_interrupt_of_any_request_skips_no_record(memory_store: MemoryStore, kind: str, number: int) -> None:
    """An interrupt between two records of a list that is being read must not lose the first."""
    fill(memory_store, "a", *[b"x"] * 6)
    store, seen = FaultyStore(memory_store), [0]

    def interrupt(asked: str, _path: str) -> None:
        if asked == kind:
            seen[0] += 1
            if seen[0] == number:
                raise KeyboardInterrupt

    processed: list[int] = []
    with Consumer(store, "a", "c", options=replace(ONCE, batch_records_max=4)) as consumer:
        store.before = interrupt
        while True:
            try:
                processed.append(next(consumer).offset)
            except StopIteration:
                break
            except KeyboardInterrupt:
                fill(memory_store, "a", b"x")

    assert seen[0] >= min(number, 2)
    assert list(dict.fromkeys(processed)) == list(range(1, max(processed) + 1))
    assert cursor_of(memory_store) == max(processed) + 1


# ---------------------------------------------------------------------- where it starts


def test_first_run_starts_where_it_is_asked_to_and_later_ones_at_the_cursor(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2", b"3", b"4")
    [*_, third, _] = LogReader.open(memory_store, "a").records()
    starts: dict[str, tuple[object, list[int]]] = {
        "beginning": ("beginning", [1, 2, 3, 4]),
        "end": ("end", []),
        "offset": (3, [3, 4]),
        "position": (LogPosition(4, 0), [4]),
        "next": (5, []),
        "time": (AtTime(third.timestamp_us), [3, 4]),
        "future": (AtTime(third.timestamp_us * 2), []),
    }

    for name, (start, expected) in starts.items():
        for found in (expected, []):
            with Consumer(memory_store, "a", name, start=start, options=ONCE) as consumer:
                assert offsets(consumer) == found, name
        assert cursor_of(memory_store, name=name) == 5
    with pytest.raises(InvalidRequestError, match="from 1 to 5, found 6"):
        Consumer(memory_store, "a", "c", start=6).__enter__()
    assert cursor_of(memory_store) is None


def test_cursor_exists_before_the_first_record_is_given(memory_store: MemoryStore) -> None:
    """Nothing that it has yet to read may be collected."""
    fill(memory_store, "a", b"1", b"2", b"3")

    with Consumer(memory_store, "a", "c", options=ONCE) as consumer:
        assert cursor_of(memory_store) == 1
        assert collect(memory_store, "a", options=NOW).plan.empty
        assert offsets(consumer) == [1, 2, 3]


def test_start_below_the_log_s_first_record_is_refused_at_every_start(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2", b"3")
    collect_to(memory_store, "a", 3)

    for start in (2, LogPosition(2, 0)):
        for _ in range(2):
            with pytest.raises(GarbageCollectedError, match="from 3, found 2"):
                Consumer(memory_store, "a", "c", start=start, options=ONCE).__enter__()
    assert cursor_of(memory_store) is None

    assert consumed(memory_store) == [3]


def test_records_before_the_cursor_may_be_collected(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2", b"3", b"4")
    with Consumer(memory_store, "a", "c", options=ONCE) as consumer:
        assert next(consumer).offset == 1
        assert next(consumer).offset == 2

    collect(memory_store, "a", options=NOW)

    assert LogReader.open(memory_store, "a").manifest().first.position.offset == 3
    assert consumed(memory_store) == [3, 4]


def test_log_that_does_not_exist_is_an_error_that_says_what_to_do(memory_store: MemoryStore) -> None:
    with pytest.raises(LogNotFoundError, match="create the log first"):
        consumed(memory_store)

    LogWriter.create(memory_store, "a")
    assert consumed(memory_store) == []
