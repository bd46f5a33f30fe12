"""A consumer of several logs is fair; it follows successors, and says what has happened to a log or a cursor."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace

import pytest

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
from wal3_core import (
    Consumer,
    CorruptError,
    CursorConflictError,
    CursorStore,
    GarbageCollectedError,
    InvalidRequestError,
    LogNotFoundError,
    LogPosition,
    LogReplacedError,
    MemoryStore,
    UnavailableError,
    create_successor,
    destroy,
    migrate,
    seal,
)
from wal3_core.options import RetryOptions
from wal3_core.store.object_store import ObjectStore

FOREVER = replace(ONCE, idle_s=None)


# ---------------------------------------------------------------------- several logs


def test_each_log_has_its_turn_before_one_has_a_second(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", *[b"x"] * 5)
    fill(memory_store, "b", *[b"x"] * 2)
    fill(memory_store, "c", *[b"x"] * 4)

    with Consumer(memory_store, ["a", "b", "c"], "c", options=replace(ONCE, batch_records_max=2)) as consumer:
        found = [(record.log, record.offset) for record in consumer]

    assert found == [
        *(("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1), ("c", 2)),
        *(("a", 3), ("a", 4), ("c", 3), ("c", 4), ("a", 5)),
    ]
    assert [cursor_of(memory_store, log) for log in "abc"] == [6, 3, 5]


def test_exception_saves_what_was_finished_in_every_log(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", *[b"x"] * 3)
    fill(memory_store, "b", *[b"x"] * 3)

    with pytest.raises(FailedError), Consumer(memory_store, ["a", "b"], "c", options=SELDOM) as consumer:
        for record in consumer:
            if (record.log, record.offset) == ("b", 2):
                raise FailedError

    assert [cursor_of(memory_store, log) for log in "ab"] == [4, 2]


def test_record_that_comes_to_any_log_is_given(memory_store: MemoryStore) -> None:
    found: list[tuple[str, bytes | None]] = []
    fill(memory_store, "a")
    fill(memory_store, "b")
    consumer = Consumer(memory_store, ["a", "b"], "c", options=FOREVER)

    def consume() -> None:
        with consumer:
            for record in consumer:
                found.append((record.log, record.body))
                if len(found) == 3:
                    consumer.stop()

    thread = in_thread(consume)
    for log in ("b", "a", "b"):
        fill(memory_store, log, b"x")

    ended(thread)
    assert sorted(found) == [("a", b"x"), ("b", b"x"), ("b", b"x")]


def test_position_in_one_log_is_no_start_for_several(memory_store: MemoryStore) -> None:
    for start in (3, LogPosition(3, 0)):
        with pytest.raises(InvalidRequestError, match="start: expected no position in one log for 2 logs"):
            Consumer(memory_store, ["a", "b"], "c", start=start)


def test_cursors_of_other_logs_are_saved_though_one_is_refused(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", *[b"x"] * 3)
    fill(memory_store, "b", *[b"x"] * 3)

    with (
        pytest.raises(CursorConflictError),
        Consumer(memory_store, ["a", "b"], "c", options=SELDOM) as consumer,
    ):
        offsets(consumer)
        CursorStore(memory_store, "a").delete("c")

    assert (cursor_of(memory_store, "a"), cursor_of(memory_store, "b")) == (None, 4)


# ---------------------------------------------------------------------- lag


def test_lag_counts_what_is_not_processed(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2", b"3")
    fill(memory_store, "b", b"1")

    with Consumer(memory_store, ["a", "b"], "c", options=replace(ONCE, batch_records_max=10)) as consumer:
        first = consumer.lag()
        next(consumer)
        next(consumer)
        second = consumer.lag()
        offsets(consumer)
        last = consumer.lag()
        store = CountingStore(memory_store)
        with Consumer(store, ["a", "b"], "d", options=ONCE) as other:
            before = store.requests.total()
            other.lag()
            assert store.requests.total() == before + 2

    assert {log: lag.records for log, lag in first.items()} == {"a": 3, "b": 1}
    assert {log: lag.records for log, lag in second.items()} == {"a": 2, "b": 1}
    assert second["a"].seconds > 0
    assert {log: (lag.records, lag.seconds) for log, lag in last.items()} == {"a": (0, 0), "b": (0, 0)}


# ---------------------------------------------------------------------- sealed logs


def test_consumer_goes_on_in_successors_and_resumes_there(store: ObjectStore) -> None:
    fill(store, "a", b"1", b"2")
    seal(store, "a", reason="full", successor="b")

    assert consumed(store) == [1, 2]
    create_successor(store, "a")
    assert consumed(store) == []
    assert cursor_of(store, "b") == 3
    fill(store, "b", b"3")
    migrate(store, "b", "c", reason="full")
    fill(store, "c", b"4")

    with Consumer(store, "a", "c", options=ONCE) as consumer:
        found = [(record.log, record.offset) for record in consumer]
        assert {log: lag.records for log, lag in consumer.lag().items()} == {"a": 0, "b": 0, "c": 0}

    assert found == [("b", 3), ("c", 4)]
    assert [cursor_of(store, log) for log in "abc"] == [3, 4, 5]
    assert consumed(store) == []


def test_successor_is_consumed_once_also_where_both_logs_are_named(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", b"2", b"3", b"4", b"5")
    by_turns = replace(ONCE, batch_records_max=1)

    assert sorted(consumed(memory_store, ["a", "b"], by_turns)) == [1, 2, 3, 4, 5]
    assert consumed(memory_store, ["a", "b"]) == []


def test_consumer_ends_at_a_seal_without_a_successor(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2")
    seal(memory_store, "a", reason="full")

    assert consumed(memory_store, options=FOREVER) == [1, 2]
    assert consumed(memory_store, options=FOREVER) == []


def test_by_hand_uncommitted_records_of_a_sealed_log_are_given_again(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2")
    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", b"3", b"4")

    with Consumer(memory_store, "a", "c", options=BY_HAND) as consumer:
        first, _, third, _ = consumer
        consumer.commit(third)
        consumer.commit(first)

    assert consumed(memory_store, options=BY_HAND) == [2, 4]


def test_records_lost_between_a_log_and_its_successor_are_an_error_at_every_start(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", b"2", b"3")
    collect_to(memory_store, "b", 3)

    for _ in range(2):
        with (
            pytest.raises(GarbageCollectedError, match="from 3, found 2"),
            Consumer(memory_store, "a", "c", options=ONCE) as consumer,
        ):
            offsets(consumer)
    assert (cursor_of(memory_store, "a"), cursor_of(memory_store, "b")) == (2, None)


def test_records_collected_while_the_cursor_is_created_are_an_error_at_every_start(memory_store: MemoryStore) -> None:
    """The cursor that came too late must not stay behind them: the next start would pass over them."""
    fill(memory_store, "a", b"1")
    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", b"2", b"3")
    store = FaultyStore(memory_store)

    def prune(kind: str, path: str) -> None:
        if kind == "create" and path.startswith("b/") and "cursor/" in path:
            store.before = lambda _kind, _path: None
            collect_to(memory_store, "b", 3)

    store.before = prune
    for _ in range(2):
        with (
            pytest.raises(GarbageCollectedError),
            Consumer(store, "a", "c", options=ONCE) as consumer,
        ):
            offsets(consumer)
    assert (cursor_of(memory_store, "a"), cursor_of(memory_store, "b")) == (2, None)


def test_log_that_does_not_continue_the_sealed_one_is_refused(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")
    migrate(memory_store, "a", "b", reason="full")
    destroy(memory_store, "b")
    fill(memory_store, "b", b"other")

    with pytest.raises(CorruptError, match="expected it to go on from log a"):
        consumed(memory_store)
    assert cursor_of(memory_store, "b") is None


# ---------------------------------------------------------------------- cursors moved by others


def test_second_consumer_of_a_name_is_refused_and_says_what_to_do(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2", b"3")

    with pytest.raises(CursorConflictError) as caught, Consumer(memory_store, "a", "c", options=ONCE) as second:
        next(second)
        assert consumed(memory_store) == [1, 2, 3]
        next(second)

    for part in ("log a, consumer c", "at 4, moved by", "up to offset 2", "run one consumer of a name at a time"):
        assert part in str(caught.value)
    assert cursor_of(memory_store) == 4
    assert consumed(memory_store) == []


def test_two_consumers_that_begin_at_once_share_no_cursor_silently(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", *[b"x"] * 20)
    refused, processed = [], []

    def consume() -> None:
        try:
            with Consumer(memory_store, "a", "c", options=ONCE) as consumer:
                for record in consumer:
                    processed.append(record.offset)
        except CursorConflictError as error:
            refused.append(error)

    for thread in [in_thread(consume) for _ in range(4)]:
        ended(thread)

    assert cursor_of(memory_store) == 21
    assert set(processed) == set(range(1, 21))
    assert len(refused) <= 3


def test_cursor_deleted_meanwhile_is_named(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2")

    with pytest.raises(CursorConflictError, match="deleted"), Consumer(memory_store, "a", "c", options=ONCE) as found:
        next(found)
        CursorStore(memory_store, "a").delete("c")
        next(found)

    assert cursor_of(memory_store) is None


def test_error_of_a_save_does_not_hide_the_exception_of_the_block(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2")

    with pytest.raises(FailedError) as caught, Consumer(memory_store, "a", "c", options=SELDOM) as consumer:
        next(consumer)
        next(consumer)
        CursorStore(memory_store, "a").delete("c")
        raise FailedError

    assert any("CursorConflictError" in note for note in caught.value.__notes__)


# ---------------------------------------------------------------------- logs and stores that go away


def test_log_that_was_replaced_is_an_error_and_its_cursor_is_not_moved(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2")

    with pytest.raises(LogReplacedError), Consumer(memory_store, "a", "c", options=ONCE) as consumer:
        next(consumer)
        destroy(memory_store, "a")
        fill(memory_store, "a", *[b"x"] * 9)
        offsets(consumer)

    assert cursor_of(memory_store) is None


def test_log_that_was_destroyed_is_an_error(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1")

    with pytest.raises((LogNotFoundError, LogReplacedError)), Consumer(memory_store, "a", "c", options=ONCE) as found:
        next(found)
        destroy(memory_store, "a")
        next(found)


def test_store_that_does_not_answer_for_a_while_is_asked_again(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", *[b"x"] * 5)
    store = FaultyStore(memory_store)
    patient = replace(READER, retry=RetryOptions(attempts_max=100, pause_s_min=0.001, pause_s_max=0.002))

    with Consumer(store, "a", "c", options=replace(ONCE, reader=patient)) as consumer:
        for kind in ("get", "read"):
            store.fail(kind, "", "unavailable", times=20)
        store.fail("replace", "cursor/", "unknown", times=20)
        assert offsets(consumer) == [1, 2, 3, 4, 5]

    assert store.fired["unavailable"] == 40
    assert cursor_of(memory_store) == 6


def test_store_that_stays_silent_is_an_error_after_which_nothing_is_skipped(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", *[b"x"] * 3)
    store = FaultyStore(memory_store)

    with pytest.raises(UnavailableError), Consumer(store, "a", "c", options=ONCE) as consumer:
        next(consumer)
        next(consumer)
        for kind in ("get", "read", "replace"):
            store.fail(kind, "", "unavailable", times=10**6)
        offsets(consumer)

    assert cursor_of(memory_store) == 2
    assert consumed(memory_store) == [2, 3]


# ---------------------------------------------------------------------- stopping


def test_stop_ends_a_consumer_that_waits_and_saves(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", b"1", b"2")
    slow = replace(SELDOM, idle_s=None, reader=replace(READER, poll_s_min=60, poll_s_max=60))
    consumer, given = Consumer(memory_store, "a", "c", options=slow), threading.Semaphore(0)

    def consume() -> None:
        with consumer:
            for _ in consumer:
                given.release()

    thread = in_thread(consume)
    assert all(given.acquire(timeout=20) for _ in range(2))
    consumer.stop()

    ended(thread)
    assert cursor_of(memory_store) == 3


def test_stop_by_a_signal_handler_ends_after_the_record_in_work(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", *[b"x"] * 5)
    consumer = Consumer(memory_store, "a", "c", options=replace(SELDOM, idle_s=None))
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
    found = []

    try:
        with consumer:
            for record in consumer:
                if record.offset == 3:
                    signal.raise_signal(signal.SIGUSR1)
                found.append(record.offset)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert found == [1, 2, 3]
    assert cursor_of(memory_store) == 4
